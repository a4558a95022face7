"""Attention on graphs: a look-up in which it matters, a club in which it does not, and what edges cost."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_course.attention import masked_softmax, mix
from attention_course.beyond.graphs import GraphAttention, mix_edges, with_self_loops
from attention_course.inputs import check_choice
from attention_course.lab.data.graphs import (
    WORDS,
    Club,
    Dictionaries,
    dictionaries,
    karate_club,
    random_edges,
)
from attention_course.lab.measure.memory import LiveBytes
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train

Score = Literal["gat", "gatv2"]

# A look-up in which attention must matter --------------------------------------------------------


class LookUp(nn.Module):
    """One layer of graph attention that answers questions from the dictionary they are connected with."""

    def __init__(self, score: Score, num_heads: int, width: int, *, d_model: int = 32) -> None:
        super().__init__()
        self.word, self.value = nn.Embedding(WORDS, d_model), nn.Embedding(WORDS + 1, d_model)
        self.attention = GraphAttention(d_model, width, num_heads, score=score)
        self.output = nn.Linear(num_heads * width, WORDS)

    def forward(self, batch: Dictionaries) -> tuple[Float[Tensor, "Q words"], Float[Tensor, "E h"]]:
        """Return ``(logits, weights)``: one row of logits for each question."""
        x = self.word(batch.word) + self.value(batch.value)
        context, weights = self.attention(x, batch.edges)
        return self.output(context[batch.asking]), weights


def batches(size: int, seed: int) -> Iterator[Dictionaries]:
    """Return an endless stream of fresh dictionaries, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield dictionaries(size, generator)


def loss(model: LookUp, batch: Dictionaries) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of all questions."""
    return F.cross_entropy(model(batch)[0], batch.answer)


def as_tables(weights: Float[Tensor, "E h"], words: int = WORDS) -> Float[Tensor, "B h words words"]:
    """Return the weights of dictionaries as tables: questions down, entries across."""
    return weights.unflatten(0, (-1, words, words)).movedim(-1, 1)


def look_up(
    score: Score,
    num_heads: int,
    width: int,
    seed: int,
    *,
    steps: int = 600,
    learning_rate: float = 0.01,
    held_out: int = 500,
) -> dict[str, Any]:
    """Train one model and return it with what it does on ``held_out`` dictionaries that it never saw.

    "accuracy" is the share of right answers, "favourites" the number of different entries that the
    largest weight of a head lies on, averaged over heads and dictionaries: 1 where all questions prefer
    the same entry, ``WORDS`` where each has its own. "reached" counts them over all heads together.
    "on_word" is the mean weight on the entry that has the question's word: even weights give it
    1 / ``WORDS``. Besides "parameters", "seconds", "model" and "weights", the tables [h, words, words] of
    the first of these dictionaries.
    """
    torch.manual_seed(seed)
    model = LookUp(score, num_heads, width)
    history = train(
        model, batches(32, seed + 1), loss, steps=steps, learning_rate=learning_rate, seed=seed, warmup=20
    )
    unseen = dictionaries(held_out, torch.Generator().manual_seed(seed + 1000))
    with torch.no_grad():
        logits, weights = model(unseen)
    tables = as_tables(weights)
    return {
        "accuracy": (logits.argmax(-1) == unseen.answer).float().mean().item(),
        "favourites": favourites(tables).mean().item(),
        "reached": favourites(tables.flatten(1, 2)).mean().item(),
        "on_word": tables.diagonal(dim1=-2, dim2=-1).mean().item(),
        "weights": tables[0],
        "parameters": count_parameters(model),
        "seconds": history.seconds,
        "model": model,
    }


def favourites(tables: Float[Tensor, "... T_q T_k"]) -> Float[Tensor, "..."]:
    """Return how many different keys the largest weights of all queries lie on."""
    return F.one_hot(tables.argmax(-1), tables.shape[-1]).any(-2).sum(-1).float()


# The club, in which it does not ------------------------------------------------------------------


class Averaging(nn.Module):
    """A layer of fixed weights in the place of attention's: each node's mean, or Kipf and Welling's.

    ``kind="mean"`` weighs a node's edges alike, ``kind="gcn"`` by 1/√(dᵢdⱼ), where d counts edges (Kipf &
    Welling 2017, equation 2). Raises a ``ValueError`` for another kind.
    """

    def __init__(self, d_in: int, d_out: int, kind: Literal["mean", "gcn"]) -> None:
        super().__init__()
        check_choice("kind", kind, ("mean", "gcn"))
        self.projection, self.kind = nn.Linear(d_in, d_out), kind

    def forward(
        self, x: Float[Tensor, "N d_in"], edges: Int[Tensor, "2 E"]
    ) -> tuple[Float[Tensor, "N d_out"], Float[Tensor, "E 1"]]:
        """Return ``(context, weights)`` as ``GraphAttention`` does."""
        degree = edges[1].bincount(minlength=len(x)).to(x.dtype)
        at_key = degree[edges[0] if self.kind == "gcn" else edges[1]]
        weights = (degree[edges[1]] * at_key).rsqrt().unsqueeze(-1)
        return mix_edges(weights, self.projection(x).unsqueeze(1), edges).squeeze(1), weights


Kind = Literal["mean", "gcn", "gat"]


class TwoLayers(nn.Module):
    """Two layers over a graph whose nodes are known by their number alone."""

    def __init__(self, num_nodes: int, kind: Kind, *, width: int = 16) -> None:
        super().__init__()
        sizes = ((num_nodes, width), (width, 2))
        self.layers = nn.ModuleList(
            GraphAttention(*size, score="gat") if kind == "gat" else Averaging(*size, kind) for size in sizes
        )

    def forward(
        self, x: Float[Tensor, "N N"], edges: Int[Tensor, "2 E"]
    ) -> tuple[Float[Tensor, "N 2"], list[Float[Tensor, "E h"]]]:
        """Return ``(logits, weights of each layer)``."""
        first, second = self.layers
        x, weights = first(x, edges)
        x, more = second(F.elu(x), edges)
        return x, [weights, more]


def club(kind: Kind, labelled: int, seed: int, *, steps: int = 100) -> dict[str, Any]:
    """Train on ``labelled`` members of the karate club, as many on each side, and judge all others.

    Which members are labelled is drawn from the seed alone, so that all kinds get the same ones.
    "accuracy" is the share of the others that are right. "entropy" is that of the first layer's weights,
    as a share of what even weights would have: their mean over nodes. Besides "parameters".
    """
    edges, side = _of_club(karate_club())
    num_nodes = len(side)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(num_nodes, generator=generator)
    each = [order[side[order] == which][: labelled // 2] for which in (0, 1)]
    known = torch.cat(each)
    others = torch.ones(num_nodes, dtype=torch.bool).index_fill(0, known, False)
    torch.manual_seed(seed)
    model, x = TwoLayers(num_nodes, kind), torch.eye(num_nodes)

    def wrong(model: TwoLayers, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(x, edges)[0][known], labels)

    labels = iter(lambda: side[known], None)  # the same again in each step
    train(model, labels, wrong, steps=steps, learning_rate=0.01, seed=seed, warmup=1)
    with torch.no_grad():
        logits, weights = model(x, edges)
    degree = edges[1].bincount(minlength=num_nodes)
    entropy = torch.zeros(num_nodes).index_add(0, edges[1], torch.special.entr(weights[0][:, 0]))
    return {
        "accuracy": (logits.argmax(-1) == side)[others].float().mean().item(),
        "entropy": (entropy / degree.log()).mean().item(),
        "parameters": count_parameters(model),
    }


def _of_club(of: Club) -> tuple[Tensor, Tensor]:
    return with_self_loops(of.edges, len(of.side)), of.side


# What edges cost ---------------------------------------------------------------------------------

#: along the edges with either score, and GAT over all pairs with a mask
Way = Literal["gat", "gatv2", "dense"]
#: the layer that is timed: so many heads of such a width, on as many inputs
HEADS, WIDTH, DEGREE = 4, 8, 16


class Cost(NamedTuple):
    """What one forward and backward pass took, on the processor and in bytes of tensors held at once."""

    way: str
    num_nodes: int
    num_edges: int
    seconds: float
    bytes: int


def over_all_pairs(
    layer: GraphAttention, x: Float[Tensor, "N d_in"], mask: Bool[Tensor, "N N"]
) -> tuple[Float[Tensor, "N d"], Float[Tensor, "h N N"]]:
    """Return what a GAT layer does, by a table of all N × N pairs and a mask: ``(context, weights)``.

    The mask has queries down and keys across, True where an edge leads from the key to the query. Raises
    a ``ValueError`` for a layer with another score.
    """
    check_choice("score", layer.score, ("gat",))
    key = layer.key_projection(x).unflatten(-1, (layer.num_heads, layer.d_out)).transpose(0, 1)  # [h, N, d]
    query_part, key_part = (key * layer.a_query[:, None]).sum(-1), (key * layer.a_key[:, None]).sum(-1)
    scores = F.leaky_relu(query_part.unsqueeze(-1) + key_part.unsqueeze(-2), layer.negative_slope)
    weights = masked_softmax(scores, mask)
    return mix(weights, key).transpose(0, 1).flatten(1), weights


def as_mask(edges: Int[Tensor, "2 E"], num_nodes: int) -> Bool[Tensor, "N N"]:
    """Return the edges as a mask: queries down, keys across."""
    mask = torch.zeros(num_nodes, num_nodes, dtype=torch.bool, device=edges.device)
    mask[edges[1], edges[0]] = True
    return mask


def work(way: Way, num_nodes: int, *, degree: int = DEGREE, seed: int = 0) -> Callable[[], None]:
    """Return one forward and backward pass of a layer over a random graph, ready to be called.

    Raises a ``ValueError`` for an unknown ``way``.
    """
    check_choice("way", way, get_args(Way))
    generator = torch.Generator().manual_seed(seed)
    edges = random_edges(num_nodes, degree, generator)
    x = torch.randn(num_nodes, HEADS * WIDTH, generator=generator).requires_grad_()
    layer = GraphAttention(HEADS * WIDTH, WIDTH, HEADS, score="gat" if way == "dense" else way)
    seen = as_mask(edges, num_nodes) if way == "dense" else edges

    def call() -> None:
        context, _ = over_all_pairs(layer, x, seen) if way == "dense" else layer(x, seen)
        torch.autograd.grad(context.square().mean(), [x, *layer.parameters()])

    return call


def cost(way: Way, num_nodes: int, *, degree: int = DEGREE, seed: int = 0, repeats: int = 3) -> Cost:
    """Return what one forward and backward pass takes: processor seconds, and bytes of live tensors.

    The seconds are the quickest of ``repeats``, after one pass to warm up. The bytes are those of the
    tensors that a pass makes, at their peak; what an operation takes and gives back within itself is not
    seen.
    """
    call = work(way, num_nodes, degree=degree, seed=seed)
    with LiveBytes() as live:
        call()
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return Cost(way, num_nodes, num_nodes * degree, min(taken), live.peak)

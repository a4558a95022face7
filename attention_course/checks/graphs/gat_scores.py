"""Exercise 3: the scores of GAT."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.asks import Function
from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Exercise, Inputs, Mistake
from attention_course.checks.graphs import shared
from attention_course.checks.graphs.shared import NAME, leaky

Parts = Callable[[Tensor, Tensor], Tensor]


def _gat_scores(features: Tensor, a_query: Tensor, a_key: Tensor, edges: Tensor) -> Tensor:
    query, key = (features * a_query).sum(-1), (features * a_key).sum(-1)  # [N, h]
    source, target = edges
    return leaky(query[target] + key[source])


def _made(
    dot: Parts = lambda features, a: (features * a).sum(-1),
    join: Parts = lambda query, key: leaky(query + key),
    ends: Callable[[Tensor], tuple[Tensor, Tensor]] = lambda edges: (edges[1], edges[0]),
) -> Callable[..., Tensor]:
    """The reference with one of its parts replaced; ``ends`` says whose query and whose key an edge takes."""

    def gat_scores(features: Tensor, a_query: Tensor, a_key: Tensor, edges: Tensor) -> Tensor:
        looks, is_seen = ends(edges)
        return join(dot(features, a_query)[looks], dot(features, a_key)[is_seen])

    return gat_scores


def _softmaxed(features: Tensor, a_query: Tensor, a_key: Tensor, edges: Tensor) -> Tensor:
    scores = _gat_scores(features, a_query, a_key, edges)
    return shared.segment_softmax(scores, edges[1], len(features))


def _table(features: Tensor, a_query: Tensor, a_key: Tensor, edges: Tensor) -> Tensor:
    """[N, N, h], query down, key across."""
    query, key = (features * a_query).sum(-1), (features * a_key).sum(-1)
    return leaky(query[:, None] + key)


def _in_place(features: Tensor, a_query: Tensor, a_key: Tensor, edges: Tensor) -> Tensor:
    scores = _gat_scores(features, a_query, a_key, edges)
    features *= a_query
    return scores


def _drawn(
    generator: Generator, N: int, E: int, h: int, d: int, dtype: torch.dtype = torch.float32
) -> Inputs:
    return (
        normal(generator, N, h, d, dtype=dtype), normal(generator, h, d, dtype=dtype),
        normal(generator, h, d, dtype=dtype), shared.edges(generator, N, E, deaf=(N - 1,)),
    )  # fmt: skip


def _by_hand(generator: Generator) -> Inputs:
    signs = 1.0 - 2.0 * torch.randint(2, (2, 1, 2), generator=generator)
    return tenths(generator, 3, 1, 2), *signs, shared.edges(generator, 3, 5)


GAT_SCORES = Exercise(
    name=f"{NAME}.gat_scores",
    title="What GAT thinks of an edge",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_gat_scores,
    asks=Function(effort=shared.EFFORT),
    returns=("scores",),
    cases=shared.cases_of_scores(_by_hand, _drawn, per_node=1),
    mistakes=(
        Mistake(
            "source and target exchanged",
            _made(ends=lambda edges: (edges[0], edges[1])),
            "The source takes the part of the query and the target that of the key. Row 0 of edges is looked "
            "at, row 1 looks: a_query belongs to the target, a_key to the source.",
        ),
        Mistake(
            "the target twice",
            _made(ends=lambda edges: (edges[1], edges[1])),
            "Both parts come from the target. The key is that of the source, edges[0].",
        ),
        Mistake(
            "the source twice",
            _made(ends=lambda edges: (edges[0], edges[0])),
            "Both parts come from the source. The query is that of the target, edges[1].",
        ),
        Mistake(
            "a_query twice",
            lambda features, a_query, a_key, edges: _gat_scores(features, a_query, a_query, edges),
            "Both parts are made with a_query. The source's is made with a_key.",
        ),
        Mistake(
            "a_key twice",
            lambda features, a_query, a_key, edges: _gat_scores(features, a_key, a_key, edges),
            "Both parts are made with a_key. The target's is made with a_query.",
        ),
        Mistake(
            "no LeakyReLU",
            _made(join=lambda query, key: query + key),
            "The sum goes out as it is. LeakyReLU comes after it; without it, a node's softmax would forget "
            "the query, which all its edges share.",
        ),
        Mistake(
            "ReLU",
            _made(join=lambda query, key: (query + key).relu()),
            "What is below 0 has become 0. LeakyReLU keeps a fifth of it: slope 0.2.",
        ),
        Mistake(
            "another slope",
            _made(join=lambda query, key: F.leaky_relu(query + key)),
            "Below 0 your slope is 0.01, torch's own unless told. GAT's is 0.2.",
        ),
        Mistake(
            "another function",
            _made(join=lambda query, key: F.elu(query + key)),
            "That is ELU, which GAT has behind the whole layer. The scores have LeakyReLU with slope 0.2.",
        ),
        Mistake(
            "tanh",
            _made(join=lambda query, key: (query + key).tanh()),
            "That is the tanh of the additive score. GAT's has LeakyReLU with slope 0.2.",
        ),
        Mistake(
            "LeakyReLU before the sum",
            _made(join=lambda query, key: leaky(query) + leaky(key)),
            "LeakyReLU is applied to the two parts, and then they are added. Add first.",
        ),
        Mistake(
            "LeakyReLU before the vector",
            _made(dot=lambda features, a: (leaky(features) * a).sum(-1), join=lambda query, key: query + key),
            "LeakyReLU is applied to the features, and a afterwards. Here it comes last: the products first, "
            "then their sum, then LeakyReLU.",
        ),
        Mistake(
            "LeakyReLU twice",
            _made(dot=lambda features, a: (leaky(features) * a).sum(-1)),
            "LeakyReLU is applied to the features and once more to the sum. It comes once, at the end.",
        ),
        Mistake(
            "product of the parts",
            _made(join=lambda query, key: leaky(query * key)),
            "The two parts are multiplied. They are added: a is one vector, cut in two, and stands on "
            "query and key side by side.",
        ),
        Mistake(
            "mean over the columns",
            _made(dot=lambda features, a: (features * a).mean(-1)),
            "You average over the columns. A dot product is their sum.",
        ),
        Mistake(
            "divided by the root of d",
            _made(dot=lambda features, a: (features * a).sum(-1) / features.shape[-1] ** 0.5),
            "The scores are divided by √d, as those of a scaled dot product. GAT's are not.",
        ),
        Mistake(
            "weights instead of scores",
            _softmaxed,
            "These are weights: a softmax has been taken already. The scores are asked for.",
        ),
        Mistake(
            "heads added up",
            lambda *inputs: _gat_scores(*inputs).sum(-1),
            "The heads are added up, so that there is one number for each edge. Each head has a score of its "
            "own: [E, h].",
        ),
        Mistake(
            "heads in front",
            lambda *inputs: _gat_scores(*inputs).mT,
            "The heads come first, [h, E]. The edges do: [E, h].",
        ),
        Mistake(
            "features changed in place",
            _in_place,
            "The result is right, but features is overwritten, as *= does. Make a new tensor.",
        ),
    ),
    hints=(
        "There are two numbers for each node and head: what it brings as a query, and what it brings as a "
        "key. Make these first, for all nodes at once, without looking at any edge.",
        "Times a_query, and summed over the last axis, features become [N, h]; the same with a_key. "
        "Indexed by a row of edges, a table [N, h] becomes [E, h].",
        "Which row of edges goes with which table? The target looks, so it is the query. Add the two, and "
        "F.leaky_relu takes the slope as its second argument.",
    ),
)

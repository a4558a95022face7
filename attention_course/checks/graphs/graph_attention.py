"""Exercise 5: a layer of graph attention, as a module."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attention_course.checks.engine.asks import Effort, Inputs, Module
from attention_course.checks.engine.drawing import halves, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.graphs import shared
from attention_course.checks.graphs.shared import NAME, leaky

Both = tuple[Tensor, Tensor]


class GraphAttention(nn.Module):
    """The reference; each of its mistakes is one of its parts, replaced."""

    def __init__(self, d_in: int, d_out: int, num_heads: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_in, num_heads * d_out, bias=False)
        self.key = nn.Linear(d_in, num_heads * d_out, bias=False)
        self.a = nn.Parameter(torch.randn(num_heads, d_out))

    def forward(self, x: Tensor, edges: Tensor) -> Both:
        query, key = self.split(self.query(x)), self.split(self.key(x))  # [N, h, d]
        weights = self.weigh(self.score(query, key, edges), edges, len(x))
        return self.join(self.mix(weights, query, key, edges)), weights

    def split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, self.a.shape)

    def score(self, query: Tensor, key: Tensor, edges: Tensor) -> Tensor:
        return (leaky(query[edges[1]] + key[edges[0]]) * self.a).sum(-1)

    def weigh(self, scores: Tensor, edges: Tensor, number: int) -> Tensor:
        return shared.segment_softmax(scores, edges[1], number)

    def mix(self, weights: Tensor, query: Tensor, key: Tensor, edges: Tensor) -> Tensor:
        return shared.summed(weights[..., None] * key[edges[0]], edges[1], len(key))

    def join(self, heads: Tensor) -> Tensor:
        return heads.flatten(1)


def _with(**parts: Callable) -> type[GraphAttention]:
    """The reference with methods replaced."""
    return type("GraphAttention", (GraphAttention,), parts)


def _mixing(
    whose: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda query, key, edges: key[edges[0]],
    into: int = 1,
    add: Callable[[Tensor, Tensor, int], Tensor] = shared.summed,
) -> type[GraphAttention]:
    """``whose(query, key, edges)`` values, [E, h, d], added up at this end of their edges."""

    def mix(self: GraphAttention, weights: Tensor, query: Tensor, key: Tensor, edges: Tensor) -> Tensor:
        return add(weights[..., None] * whose(query, key, edges), edges[into], len(key))

    return _with(mix=mix)


def _exchanged(self: GraphAttention, x: Tensor, edges: Tensor) -> Both:
    return GraphAttention.forward(self, x, edges.flip(0))


def _static(self: GraphAttention, query: Tensor, key: Tensor, edges: Tensor) -> Tensor:
    return leaky(((query[edges[1]] + key[edges[0]]) * self.a).sum(-1))


def _scored(
    join: Callable[[Tensor], Tensor],
) -> Callable[[GraphAttention, Tensor, Tensor, Tensor], Tensor]:
    """The score with another function in the place of LeakyReLU."""

    def score(self: GraphAttention, query: Tensor, key: Tensor, edges: Tensor) -> Tensor:
        return (join(query[edges[1]] + key[edges[0]]) * self.a).sum(-1)

    return score


def _asks_the_source(self: GraphAttention, query: Tensor, key: Tensor, edges: Tensor) -> Tensor:
    return (leaky(query[edges[0]] + key[edges[1]]) * self.a).sum(-1)


def _interleaved(self: GraphAttention, projected: Tensor) -> Tensor:
    return projected.unflatten(-1, (self.a.shape[1], self.a.shape[0])).mT


def _mean(per_edge: Tensor, target: Tensor, number: int) -> Tensor:
    count = shared.summed(torch.ones_like(per_edge), target, number)
    return shared.summed(per_edge, target, number) / count.clamp_min(1.0)


def _keeps_its_own(
    self: GraphAttention, weights: Tensor, query: Tensor, key: Tensor, edges: Tensor
) -> Tensor:
    heads = GraphAttention.mix(self, weights, query, key, edges)
    alone = torch.ones(len(key), dtype=torch.bool).index_fill(0, edges[1], False)
    return heads.where(~alone[:, None, None], key)


def _with_loops(self: GraphAttention, x: Tensor, edges: Tensor) -> Both:
    loops = torch.arange(len(x)).expand(2, -1)
    return GraphAttention.forward(self, x, torch.cat((edges, loops), dim=1))


def _with_loops_once(self: GraphAttention, x: Tensor, edges: Tensor) -> Both:
    return _with_loops(self, x, edges[:, edges[0] != edges[1]])


def _context_alone(self: GraphAttention, x: Tensor, edges: Tensor) -> Tensor:
    return GraphAttention.forward(self, x, edges)[0]


def _weights_first(self: GraphAttention, x: Tensor, edges: Tensor) -> Both:
    context, weights = GraphAttention.forward(self, x, edges)
    return weights, context


class _WithBiases(GraphAttention):
    def __init__(self, d_in: int, d_out: int, num_heads: int) -> None:
        super().__init__(d_in, d_out, num_heads)
        self.query, self.key = (nn.Linear(d_in, num_heads * d_out) for _ in range(2))


class _NoParameter(GraphAttention):
    def __init__(self, d_in: int, d_out: int, num_heads: int) -> None:
        super().__init__(d_in, d_out, num_heads)
        del self.a
        self.a = torch.randn(num_heads, d_out)


class _OneProjection(GraphAttention):
    def __init__(self, d_in: int, d_out: int, num_heads: int) -> None:
        super().__init__(d_in, d_out, num_heads)
        self.query = self.key


# Cases ----------------------------------------------------------------------------------------


def _drawn(
    generator: Generator, N: int, E: int, *, d_in: int, d_out: int, num_heads: int,
    dtype: torch.dtype = torch.float32,
) -> Inputs:  # fmt: skip
    query, key = (normal(generator, num_heads * d_out, d_in, dtype=dtype) / d_in**0.5 for _ in range(2))
    a, x = normal(generator, num_heads, d_out, dtype=dtype), normal(generator, N, d_in, dtype=dtype)
    return query, key, a, x, shared.edges(generator, N, E, deaf=(N - 2,))


def _by_hand(generator: Generator) -> Inputs:
    return (
        halves(generator, 2, 2), halves(generator, 2, 2), torch.tensor([[1.0, -1.0]]),
        tenths(generator, 4, 2), shared.edges(generator, 4, 6, deaf=(2,)),
    )  # fmt: skip


def _far(generator: Generator) -> Inputs:
    """Scores in the hundreds, of either sign."""
    query, key, a, x, edges = _drawn(generator, 6, 14, d_in=3, d_out=2, num_heads=2)
    return query, key, a, 200 * tenths(generator, 6, 1).sign() * x, edges


def _many(generator: Generator) -> Inputs:
    *rest, _ = _drawn(generator, shared.NODES, 5, d_in=3, d_out=3, num_heads=2)
    return *rest, shared.many(generator)


GRAPH_ATTENTION = Exercise(
    name=f"{NAME}.graph_attention",
    title="A layer, as a module",
    points=3,
    difficulty=3,
    minutes=25,
    reference=GraphAttention,
    # the bound of operations for one call, four times
    asks=Module(
        ("query.weight", "key.weight", "a"),
        effort=Effort(shared.EFFORT.entries, 4 * shared.EFFORT.operations),
    ),
    returns=("context", "weights"),
    unseen=("x",),
    cases=(
        Case("one decimal", _by_hand, arguments={"d_in": 2, "d_out": 2, "num_heads": 1}),
        Case(
            "three heads",
            lambda g: _drawn(g, 5, 11, d_in=4, d_out=2, num_heads=3),
            arguments={"d_in": 4, "d_out": 2, "num_heads": 3},
        ),
        Case(
            "as many of everything",
            lambda g: _drawn(g, 4, 9, d_in=4, d_out=4, num_heads=4),
            arguments={"d_in": 4, "d_out": 4, "num_heads": 4},
        ),
        Case("large scores", _far, arguments={"d_in": 3, "d_out": 2, "num_heads": 2}),
        Case(
            "float64",
            lambda g: _drawn(g, 6, 13, d_in=5, d_out=3, num_heads=2, dtype=torch.float64),
            arguments={"d_in": 5, "d_out": 3, "num_heads": 2},
        ),
        Case(f"{shared.NODES} nodes", _many, arguments={"d_in": 3, "d_out": 3, "num_heads": 2}),
        Case(
            "gradient",
            lambda g: _drawn(g, 5, 10, d_in=3, d_out=2, num_heads=2),
            gradient=True,
            arguments={"d_in": 3, "d_out": 2, "num_heads": 2},
        ),
    ),
    mistakes=(
        Mistake(
            "a is no parameter",
            _NoParameter,
            "self.a is a plain tensor: no optimizer learns it, and no file keeps it. Wrap it in "
            "nn.Parameter.",
        ),
        Mistake(
            "one projection under two names",
            _OneProjection,
            "query and key are one layer under two names. GATv2 has a matrix for each.",
        ),
        Mistake(
            "biases",
            _WithBiases,
            "The two projections have no biases here. nn.Linear makes one unless told bias=False.",
        ),
        Mistake(
            "source and target exchanged",
            _with(forward=_exchanged),
            "All runs against the direction of the edges: the sources look and the targets are looked at. "
            "Row 0 of edges is looked at, row 1 looks.",
        ),
        Mistake(
            "the source asks",
            _with(score=_asks_the_source),
            "In the scores the source gives the query and the target the key. It is the target that looks; "
            "the rest is right.",
        ),
        Mistake(
            "softmax over outgoing edges",
            _with(weigh=lambda self, scores, edges, number: shared.segment_softmax(scores, edges[0], number)),
            "The weights of the edges that leave a node sum to 1. Those of the edges that end in it do: "
            "group them by the target.",
        ),
        Mistake(
            "softmax over all edges",
            _with(weigh=lambda self, scores, edges, number: scores.softmax(0)),
            "All edges of the graph share one softmax. Each node has one of its own, over the edges that end "
            "in it.",
        ),
        Mistake(
            "softmax over the heads",
            _with(weigh=lambda self, scores, edges, number: scores.softmax(-1)),
            "The softmax runs along the last axis, that of the heads. It runs over the edges that end in a "
            "node.",
        ),
        Mistake(
            "no softmax",
            _with(weigh=lambda self, scores, edges, number: scores),
            "The scores themselves are used as weights. A softmax over each node's edges comes first.",
        ),
        Mistake(
            "GAT's score",
            _with(score=_static),
            "LeakyReLU comes after the product with a: that is GAT's score. Here it is that of exercise 4.",
        ),
        Mistake(
            "another slope",
            _with(score=_scored(F.leaky_relu)),
            "Below 0 your slope is 0.01, torch's own unless told. Exercise 4 has 0.2.",
        ),
        Mistake(
            "ReLU",
            _with(score=_scored(torch.relu)),
            "There is a ReLU in the scores: what is below 0 becomes 0. LeakyReLU keeps a fifth of it.",
        ),
        Mistake(
            "tanh",
            _with(score=_scored(torch.tanh)),
            "There is a tanh in the scores, as in chapter 2. These have LeakyReLU with slope 0.2, as in "
            "exercise 4.",
        ),
        Mistake(
            "values of the target",
            _mixing(whose=lambda query, key, edges: key[edges[1]]),
            "Each node mixes its own key, as often as it has edges, and so gets it back. What is mixed comes "
            "from the source: key[source].",
        ),
        Mistake(
            "queries mixed",
            _mixing(whose=lambda query, key, edges: query[edges[0]]),
            "What is mixed are the sources' queries. Their keys are the values.",
        ),
        Mistake(
            "sums of query and key mixed",
            _mixing(whose=lambda query, key, edges: query[edges[1]] + key[edges[0]]),
            "What is mixed is the sum of query and key, which the score is made of. The values are the keys "
            "alone.",
        ),
        Mistake(
            "a function behind the layer",
            _with(join=lambda self, heads: F.elu(heads.flatten(1))),
            "There is an ELU behind the layer, as in the networks of the paper. Here the context goes out as "
            "it is.",
        ),
        Mistake(
            "added up at the source",
            _mixing(into=0),
            "What an edge carries is added up at its source. It arrives at the target.",
        ),
        Mistake(
            "the last edge alone is added",
            _mixing(add=shared.last_wins),
            "context[target] += ... writes once for each node: only its last edge counts. index_add adds "
            "them all.",
        ),
        Mistake(
            "mean over the edges",
            _mixing(add=_mean),
            "You divide by the number of edges as well. The weights sum to 1 already: add.",
        ),
        Mistake(
            "heads cut the other way",
            _with(split=_interleaved),
            "Head 0 gets every other column. A head is d_out columns side by side: unflatten into "
            "(num_heads, d_out).",
        ),
        Mistake(
            "columns of the heads interleaved",
            _with(join=lambda self, heads: heads.mT.flatten(1)),
            "The heads are right, but in the context their columns alternate. They stand side by side: first "
            "all of head 0.",
        ),
        Mistake(
            "heads not joined",
            _with(join=lambda self, heads: heads),
            "The context has an axis for the heads still. They stand side by side in one: "
            "[N, num_heads · d_out].",
        ),
        Mistake(
            "mean of the heads",
            _with(join=lambda self, heads: heads.mean(1)),
            "The heads are averaged. They stand side by side: [N, num_heads · d_out].",
        ),
        Mistake(
            "a node without edges keeps its own",
            _with(mix=_keeps_its_own),
            "A node to which no edge leads gets its own key. It has nobody to look at, not even itself: its "
            "context is 0. (Whoever wants it otherwise adds self-loops first.)",
        ),
        Mistake(
            "self-loops added",
            _with(forward=_with_loops),
            "You add self-loops inside, so there are more weights than edges. The layer takes the edges as "
            "they are given.",
        ),
        Mistake(
            "self-loops added, those that were there replaced",
            _with(forward=_with_loops_once),
            "You take out the loops that there are and put one for each node behind the rest, so the weights "
            "belong to other edges. The layer takes the edges as they are given.",
        ),
        Mistake(
            "context alone",
            _with(forward=_context_alone),
            "The weights are asked for as well: return context, weights.",
        ),
        Mistake(
            "weights first",
            _with(forward=_weights_first),
            "The two stand the wrong way round: return context, weights.",
        ),
    ),
    hints=(
        "forward has the four steps: scores for the edges, no mask (the edges are the mask), a softmax for "
        "each node, and the mixing. The first and the third you have written.",
        "What self.query makes of x, with its last axis split into heads and columns, is [N, h, d_out]. "
        "What an edge carries is its weight, with an axis added, times key[source]: [E, h, d_out].",
        "What arrives at a target is added up by index_add on zeros [N, h, d_out], which leaves 0 where "
        "nothing arrives. Flattened from the heads on, the heads lie side by side.",
    ),
)

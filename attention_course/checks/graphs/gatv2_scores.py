"""Exercise 4: the scores of GATv2."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.asks import Function
from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Exercise, Inputs, Mistake
from attention_course.checks.graphs import shared
from attention_course.checks.graphs.shared import NAME, SLOPE, leaky


def _gatv2_scores(query: Tensor, key: Tensor, a: Tensor, edges: Tensor) -> Tensor:
    source, target = edges
    return (leaky(query[target] + key[source]) * a).sum(-1)


def _made(
    join: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda q, k, a: (leaky(q + k) * a).sum(-1),
    ends: Callable[[Tensor], tuple[Tensor, Tensor]] = lambda edges: (edges[1], edges[0]),
) -> Callable[..., Tensor]:
    """The reference with one of its parts replaced; ``ends`` says whose query and whose key an edge takes."""

    def gatv2_scores(query: Tensor, key: Tensor, a: Tensor, edges: Tensor) -> Tensor:
        looks, is_seen = ends(edges)
        return join(query[looks], key[is_seen], a)

    return gatv2_scores


def _crossed(query: Tensor, key: Tensor, a: Tensor, edges: Tensor) -> Tensor:
    return _gatv2_scores(key, query, a, edges.flip(0))


def _exchanged(query: Tensor, key: Tensor, a: Tensor, edges: Tensor) -> Tensor:
    return _gatv2_scores(query, key, a, edges.flip(0))


def _softmaxed(query: Tensor, key: Tensor, a: Tensor, edges: Tensor) -> Tensor:
    return shared.segment_softmax(_gatv2_scores(query, key, a, edges), edges[1], len(query))


def _in_place(query: Tensor, key: Tensor, a: Tensor, edges: Tensor) -> Tensor:
    scores = _gatv2_scores(query, key, a, edges)
    F.leaky_relu_(query, SLOPE)
    return scores


def _drawn(
    generator: Generator, N: int, E: int, h: int, d: int, dtype: torch.dtype = torch.float32
) -> Inputs:
    query, key = (normal(generator, N, h, d, dtype=dtype) for _ in range(2))
    return query, key, normal(generator, h, d, dtype=dtype), shared.edges(generator, N, E, deaf=(N - 1,))


def _by_hand(generator: Generator) -> Inputs:
    a = 1.0 - 2.0 * torch.randint(2, (1, 2), generator=generator)
    return tenths(generator, 3, 1, 2), tenths(generator, 3, 1, 2), a, shared.edges(generator, 3, 5)


GATV2_SCORES = Exercise(
    name=f"{NAME}.gatv2_scores",
    title="What GATv2 thinks of it",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_gatv2_scores,
    asks=Function(effort=shared.EFFORT),
    returns=("scores",),
    cases=shared.cases_of_scores(_by_hand, _drawn, per_node=2),
    mistakes=(
        Mistake(
            "LeakyReLU last, as in GAT",
            _made(lambda q, k, a: leaky(((q + k) * a).sum(-1))),
            "The product with a comes first and LeakyReLU after it: that is GAT's score again, and all its "
            "queries prefer the same key. The other way round.",
        ),
        Mistake(
            "no LeakyReLU",
            _made(lambda q, k, a: ((q + k) * a).sum(-1)),
            "LeakyReLU is missing. Without it the score is one number of the query plus one of the key, and "
            "a softmax forgets the first.",
        ),
        Mistake(
            "LeakyReLU before the sum",
            _made(lambda q, k, a: ((leaky(q) + leaky(k)) * a).sum(-1)),
            "LeakyReLU is applied to query and key, and then they are added: the two never meet inside it. "
            "Add first.",
        ),
        Mistake(
            "source and target exchanged",
            _exchanged,
            "The query is that of the source, and the key that of the target. Row 0 of edges is looked at, "
            "row 1 looks: query[target] + key[source].",
        ),
        Mistake(
            "the target twice",
            _made(ends=lambda edges: (edges[1], edges[1])),
            "Query and key are both those of the target. The key is that of the source, edges[0].",
        ),
        Mistake(
            "the source twice",
            _made(ends=lambda edges: (edges[0], edges[0])),
            "Query and key are both those of the source. The query is that of the target, edges[1].",
        ),
        Mistake(
            "the query twice",
            lambda query, key, a, edges: _gatv2_scores(query, query, a, edges),
            "Both ends of the edge give their query. The source gives its key.",
        ),
        Mistake(
            "ReLU",
            _made(lambda q, k, a: ((q + k).relu() * a).sum(-1)),
            "What is below 0 has become 0. LeakyReLU keeps a fifth of it: slope 0.2.",
        ),
        Mistake(
            "another slope",
            _made(lambda q, k, a: (F.leaky_relu(q + k) * a).sum(-1)),
            "Below 0 your slope is 0.01, torch's own unless told. Here it is 0.2.",
        ),
        Mistake(
            "tanh",
            _made(lambda q, k, a: ((q + k).tanh() * a).sum(-1)),
            "That is the additive score of chapter 2, with tanh. GATv2 has LeakyReLU with slope 0.2 in its "
            "place.",
        ),
        Mistake(
            "dot product",
            _made(lambda q, k, a: (leaky(q * k) * a).sum(-1)),
            "Query and key are multiplied. They are added.",
        ),
        Mistake(
            "a inside LeakyReLU",
            _made(lambda q, k, a: leaky((q + k) * a).sum(-1)),
            "The columns are weighed by a first, and LeakyReLU comes after. It comes before a: what is below "
            "0 is told by the sum of query and key alone.",
        ),
        Mistake(
            "a left out",
            _made(lambda q, k, a: leaky(q + k).sum(-1)),
            "You add up the columns as they are. Each is weighed by its entry of a.",
        ),
        Mistake(
            "mean over the columns",
            _made(lambda q, k, a: (leaky(q + k) * a).mean(-1)),
            "You average over the columns. A dot product is their sum.",
        ),
        Mistake(
            "divided by the root of d",
            _made(lambda q, k, a: (leaky(q + k) * a).sum(-1) / q.shape[-1] ** 0.5),
            "The scores are divided by √d, as those of a scaled dot product. These are not.",
        ),
        Mistake(
            "weights instead of scores",
            _softmaxed,
            "These are weights: a softmax has been taken already. The scores are asked for.",
        ),
        Mistake(
            "heads added up",
            lambda *inputs: _gatv2_scores(*inputs).sum(-1),
            "The heads are added up, so that there is one number for each edge. Each head has a score of its "
            "own: [E, h].",
        ),
        Mistake(
            "not summed",
            _made(lambda q, k, a: leaky(q + k) * a),
            "There are d numbers for each edge and head. Their sum is the score.",
        ),
        Mistake(
            "query changed in place",
            _in_place,
            "The result is right, but query is overwritten, as leaky_relu_ or += does. Make a new tensor.",
        ),
    ),
    hints=(
        "In GAT two numbers are added for each edge. Here two vectors are: make the sums first, one row for "
        "each edge and head.",
        "query[target] is [E, h, d]. So is its sum with the keys of the sources, and LeakyReLU changes no "
        "shape.",
        "A dot product with a: multiply by a, which is [h, d] and broadcasts over the edges, and sum over "
        "the last axis. Nothing comes after it.",
    ),
)

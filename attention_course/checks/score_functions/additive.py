"""Exercise 2: additive, in two parts."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.asks import Effort, Function
from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.score_functions import shared
from attention_course.checks.score_functions.shared import NAME

#: more than twice what the reference does in its longest case, "wide"
WORK = 30_000
#: what another way does there, somewhat less
USUAL = ((40_000, "So much it takes to project a query or a key once for each pair."),)


def _additive(query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, v: Tensor) -> Tensor:
    return _pairs(query @ query_weight, key @ key_weight).tanh() @ v


def _pairs(query: Tensor, key: Tensor) -> Tensor:
    """[..., T_q, T_k, hidden]: every query plus every key."""
    return query.unsqueeze(-2) + key.unsqueeze(-3)


def _from_projected(score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Other scores of rightly projected queries and keys."""
    return lambda query, key, query_weight, key_weight, v: score(query @ query_weight, key @ key_weight, v)


def _additive_inputs(
    generator: Generator,
    query: tuple[int, ...],
    key: tuple[int, ...],
    hidden: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    return (
        normal(generator, *query, dtype=dtype),
        normal(generator, *key, dtype=dtype),
        shared.weight(generator, query[-1], hidden, dtype),
        shared.weight(generator, key[-1], hidden, dtype),
        normal(generator, hidden, dtype=dtype),
    )


ADDITIVE = Exercise(
    name=f"{NAME}.additive",
    title="A small network, each side projected once",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_additive,
    asks=Function(effort=Effort(entries=50_000, operations=10_000, work=WORK, known=USUAL)),
    returns=("scores",),
    cases=(
        Case(
            "one decimal",
            lambda g: tuple(tenths(g, *shape, most=9) for shape in ((2, 3), (3, 2), (3, 2), (2, 2), (2,))),
        ),
        # exchanged, transposed and forgotten weights run here, and show
        Case("all widths equal", lambda g: _additive_inputs(g, (3, 4), (5, 4), 4)),
        Case("as many queries as keys", lambda g: _additive_inputs(g, (4, 3), (4, 5), 6)),
        Case("one query", lambda g: _additive_inputs(g, (2, 1, 3), (2, 5, 4), 6)),
        Case(
            "batch and heads, float64",
            lambda g: _additive_inputs(g, (2, 3, 5, 4), (2, 3, 7, 6), 8, torch.float64),
        ),
        # to project is most of the work here: who does it for each pair is far above the bound
        Case("wide", lambda g: _additive_inputs(g, (10, 40), (12, 36), 8)),
        Case("gradient", lambda g: _additive_inputs(g, (3, 4), (5, 6), 7), gradient=True),
    ),
    mistakes=(
        Mistake(
            "softmax of the scores",
            lambda *inputs: _additive(*inputs).softmax(-1),
            "You return weights. Scores are asked for here: any numbers, before softmax makes shares of "
            "them.",
        ),
        Mistake(
            "no tanh",
            _from_projected(lambda query, key, v: _pairs(query, key) @ v),
            "Without the tanh the score falls apart into one number for the query and one for the "
            "key. The query's number is the same for all keys, and the softmax cancels it: what is "
            "asked would not matter.",
        ),
        Mistake(
            "tanh after v",
            _from_projected(lambda query, key, v: (_pairs(query, key) @ v).tanh()),
            "tanh goes over the finished score, which therefore lies between -1 and 1. It belongs "
            "inside, over each of the hidden numbers, before v sums them.",
        ),
        Mistake(
            "tanh before the sum",
            _from_projected(lambda query, key, v: _pairs(query.tanh(), key.tanh()) @ v),
            "Query and key each go through a tanh of their own and are added afterwards. Then the "
            "query adds the same number to every score. They must meet inside the tanh.",
        ),
        Mistake(
            "product instead of sum",
            _from_projected(lambda query, key, v: (query.unsqueeze(-2) * key.unsqueeze(-3)).tanh() @ v),
            "Query and key are multiplied. This score is called additive because they are added: "
            "look at the sign between them.",
        ),
        Mistake(
            "v left out",
            _from_projected(lambda query, key, v: _pairs(query, key).tanh().sum(-1)),
            "The hidden numbers are summed as they are. v says how much each of them counts, and in "
            "which direction.",
        ),
        Mistake(
            "queries not projected",
            lambda query, key, query_weight, key_weight, v: _pairs(query, key @ key_weight).tanh() @ v,
            "The queries go in as they are, which runs only when d_q is the hidden width. Look for "
            "query_weight: is it used?",
        ),
        Mistake(
            "keys not projected",
            lambda query, key, query_weight, key_weight, v: _pairs(query @ query_weight, key).tanh() @ v,
            "The keys go in as they are, which runs only when d_k is the hidden width. Keys that "
            "were projected beforehand come in another function; here it is your part.",
        ),
        Mistake(
            "weights exchanged",
            lambda query, key, query_weight, key_weight, v: _additive(
                query, key, key_weight, query_weight, v
            ),
            "Queries are multiplied with key_weight and keys with query_weight, which runs only "
            "when d_q = d_k. Look at which weight goes where.",
        ),
        Mistake(
            "weights transposed",
            lambda query, key, query_weight, key_weight, v: _additive(
                query, key, query_weight.mT, key_weight.mT, v
            ),
            "The projections are x @ W.T, as torch.nn.Linear stores them; that runs only when W is "
            "square. Here W has shape [d, hidden]: multiply from the right with W as it is.",
        ),
        Mistake(
            "keys down, queries across",
            _from_projected(lambda query, key, v: _pairs(key, query).tanh() @ v),
            "There is one row per key and one column per query. Queries go down, keys go across: "
            "look at which of the two gets its new axis where.",
        ),
        Mistake(
            "axes counted from the front",
            _from_projected(lambda query, key, v: (query.unsqueeze(2) + key.unsqueeze(1)).tanh() @ v),
            "unsqueeze(2) and unsqueeze(1) are right with exactly one batch axis in front. Here any "
            "number may stand there, or none: count the axes from the end.",
        ),
        Mistake(
            "queries paired with keys",
            _from_projected(lambda query, key, v: (query + key).tanh() @ v),
            "Query i is added to key i alone: broadcasting takes them in pairs, or raises where "
            "their numbers differ. There is a score for every query and every key: each side needs "
            "an axis of length 1 for the other.",
        ),
    ),
    hints=(
        "Project each side once: [..., T_q, hidden] and [..., T_k, hidden]. The sum of every query "
        "with every key has the shape [..., T_q, T_k, hidden].",
        "Two axes of length 1 make broadcasting do that: unsqueeze(-2) for the queries, "
        "unsqueeze(-3) for the keys.",
        "tanh over the sum, then the product with v, which sums over the last axis and takes it away.",
    ),
)

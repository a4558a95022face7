"""Exercise 3: concat."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.score_functions import shared
from attention_course.checks.score_functions.shared import NAME


def _side_by_side(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Every query and every key, each [..., T_q, T_k, its width]."""
    T_q, T_k = query.shape[-2], key.shape[-2]
    return (
        query.unsqueeze(-2).expand(*query.shape[:-1], T_k, -1),
        key.unsqueeze(-3).expand(*key.shape[:-2], T_q, -1, -1),
    )


def _joined(query: Tensor, key: Tensor) -> Tensor:
    return torch.cat(_side_by_side(query, key), dim=-1)


def _concat(query: Tensor, key: Tensor, weight: Tensor, v: Tensor) -> Tensor:
    return (_joined(query, key) @ weight).tanh() @ v


def _apart(query: Tensor, key: Tensor, weight: Tensor, v: Tensor) -> Tensor:
    """A tanh over each part alone."""
    of_query, of_key = weight.split([query.shape[-1], key.shape[-1]])
    return ((query @ of_query).tanh().unsqueeze(-2) + (key @ of_key).tanh().unsqueeze(-3)) @ v


def _concat_out_of_order(query: Tensor, key: Tensor, weight: Tensor, v: Tensor) -> Tensor:
    """The rows of pairs run through the queries fastest, and are cut as if through the keys."""
    T_q, T_k = query.shape[-2], key.shape[-2]
    queries = torch.cat([query] * T_k, dim=-2)  # q0 q1 q2 q0 q1 q2 ...
    keys = key.repeat_interleave(T_q, dim=-2)  # k0 k0 k0 k1 k1 k1 ...
    scores = (torch.cat((queries, keys), dim=-1) @ weight).tanh() @ v
    return scores.unflatten(-1, (T_q, T_k))


def _concat_inputs(
    generator: Generator,
    query: tuple[int, ...],
    key: tuple[int, ...],
    hidden: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    return (
        normal(generator, *query, dtype=dtype),
        normal(generator, *key, dtype=dtype),
        shared.weight(generator, query[-1] + key[-1], hidden, dtype),
        normal(generator, hidden, dtype=dtype),
    )


CONCAT = Exercise(
    name=f"{NAME}.concat",
    title="The same network with one matrix",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_concat,
    returns=("scores",),
    cases=(
        Case(
            "one decimal",
            lambda g: tuple(tenths(g, *shape, most=9) for shape in ((2, 1), (3, 2), (3, 2), (2,))),
        ),
        Case("widths equal", lambda g: _concat_inputs(g, (3, 4), (5, 4), 6)),
        Case("as many queries as keys", lambda g: _concat_inputs(g, (4, 3), (4, 5), 6)),
        Case(
            "batch and heads, float64",
            lambda g: _concat_inputs(g, (2, 3, 5, 4), (2, 3, 7, 6), 8, torch.float64),
        ),
        Case("gradient", lambda g: _concat_inputs(g, (3, 4), (5, 6), 7), gradient=True),
    ),
    mistakes=(
        Mistake(
            "key in front of query",
            lambda query, key, weight, v: (
                (torch.cat(_side_by_side(query, key)[::-1], dim=-1) @ weight).tanh() @ v
            ),
            "Each row is [k; q]. That has the right width, so nothing raises, but the rows of "
            "weight that belong to the query are applied to the key. The order is [q; k].",
        ),
        Mistake(
            "no tanh",
            lambda query, key, weight, v: _joined(query, key) @ weight @ v,
            "Without the tanh, the query only adds the same number to every score of its row, and "
            "the softmax cancels it. Look between weight and v.",
        ),
        Mistake(
            "tanh before the weight",
            lambda query, key, weight, v: _joined(query, key).tanh() @ weight @ v,
            "tanh goes over query and key themselves, before weight has mixed them. It belongs "
            "over the hidden numbers, between weight and v.",
        ),
        Mistake(
            "tanh after v",
            lambda query, key, weight, v: (_joined(query, key) @ weight @ v).tanh(),
            "tanh goes over the finished score, which therefore lies between -1 and 1. It belongs "
            "over the hidden numbers, between weight and v.",
        ),
        Mistake(
            "tanh of each part alone",
            _apart,
            "Query and key each go through a tanh of their own and are added afterwards. Then the query adds "
            "the same number to every score of its row. They must meet inside the tanh.",
        ),
        Mistake(
            "softmax of the scores",
            lambda query, key, weight, v: _concat(query, key, weight, v).softmax(-1),
            "You return weights: a softmax has gone over the scores already. Scores are asked for, and those "
            "may be any numbers.",
        ),
        Mistake(
            "v left out",
            lambda query, key, weight, v: (_joined(query, key) @ weight).tanh().sum(-1),
            "The hidden numbers are summed as they are. v says how much each of them counts.",
        ),
        Mistake(
            "keys down, queries across",
            lambda query, key, weight, v: _concat(query, key, weight, v).mT,
            "There is one row per key and one column per query. Queries go down, keys go across: "
            "look at which of the two gets its new axis where.",
        ),
        Mistake(
            "pairs out of order",
            _concat_out_of_order,
            "The pairs are all there, but in the order q0k0 q1k0 q2k0 …, and they are cut into rows "
            "as if it were q0k0 q0k1 q0k2 …: most scores stand at another pair's place. Look at "
            "repeat and repeat_interleave, or broadcast instead.",
        ),
    ),
    hints=(
        "The tensor of all pairs [q; k] has the shape [..., T_q, T_k, d_q + d_k]. torch.cat does not "
        "broadcast, so both parts need all leading axes first.",
        "Repeat every query along a new axis behind its own, for the keys, and every key along a new "
        "axis in front of its own, for the queries: unsqueeze and expand, which copies nothing. Then "
        "both have all leading axes.",
        "Or never build the pairs: the first d_q rows of weight are a query_weight, the others a "
        "key_weight, and exercise 2 does the rest.",
    ),
)

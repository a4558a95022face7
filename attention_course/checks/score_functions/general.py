"""Exercise 1: general."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.score_functions import shared
from attention_course.checks.score_functions.shared import NAME


def _general(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    return query @ weight @ key.mT


def _general_inputs(
    generator: Generator, query: tuple[int, ...], key: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(generator, *query, dtype=dtype),
        normal(generator, *key, dtype=dtype),
        shared.weight(generator, query[-1], key[-1], dtype),
    )


GENERAL = Exercise(
    name=f"{NAME}.general",
    title="A dot product with a matrix in between",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_general,
    returns=("scores",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3), tenths(g, 4, 2), tenths(g, 3, 2))),
        # a transposed or a forgotten weight runs here, and shows
        Case("square weight", lambda g: _general_inputs(g, (3, 4), (5, 4))),
        Case("batch, float64", lambda g: _general_inputs(g, (2, 3, 5), (2, 4, 6), torch.float64)),
        Case("batch and heads", lambda g: _general_inputs(g, (2, 3, 5, 6), (2, 3, 7, 4))),
        Case("gradient", lambda g: _general_inputs(g, (4, 3), (6, 5)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "weight transposed",
            lambda query, key, weight: query @ weight.mT @ key.mT,
            "The query is multiplied with Wᵀ, which runs only when W is square. W has shape "
            "[d_q, d_k], and rows are multiplied from the right: with W as it is.",
        ),
        Mistake(
            "weight left out",
            lambda query, key, weight: query @ key.mT,
            "This is the plain dot product. Look for weight: is it used?",
        ),
        Mistake(
            "weight on both sides",
            lambda query, key, weight: (query @ weight) @ (key @ weight).mT,
            "Query and key are both multiplied with W, so the score is q W Wᵀ kᵀ. One matrix stands "
            "between them: apply it to one side only.",
        ),
        Mistake(
            "keys down, queries across",
            lambda query, key, weight: (query @ weight @ key.mT).mT,
            "There is one row per key and one column per query. Queries go down, keys go across: "
            "look at the order of the product.",
        ),
        Mistake(
            "scaled by √d_k",
            lambda query, key, weight: query @ weight @ key.mT / key.shape[-1] ** 0.5,
            "The scores are divided by √d_k. That is chapter 3's scale for a bare dot product. "
            "Luong's general score has none: W can learn its own.",
        ),
        Mistake(
            "weights instead of scores",
            lambda query, key, weight: (query @ weight @ key.mT).softmax(-1),
            "The rows sum to 1: a softmax has gone over the scores already. A score function ends "
            "before that; it may give any number.",
        ),
        Mistake(
            "all axes reversed by .T",
            lambda query, key, weight: query @ weight @ key.T,
            "key.T reverses every axis, the batch too, and is right for a single matrix only. Look "
            "for the transpose that swaps just the last two axes.",
        ),
    ),
    hints=(
        "query is [..., T_q, d_q] and weight [d_q, d_k]. Which product makes queries as wide as keys?",
        "query @ weight is [..., T_q, d_k]: a query that speaks the keys' language. What is left is "
        "a dot product with every key.",
        "Of key, only the last two axes change places, and what stands in front stays. Then two matrix "
        "products in the order of the formula: [..., T_q, d_q], [d_q, d_k], [..., d_k, T_k].",
    ),
)

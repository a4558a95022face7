"""Exercise 4: cosine."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.score_functions.shared import NAME


def _unit(x: Tensor, dim: int = -1) -> Tensor:
    return x / x.norm(dim=dim, keepdim=True).clamp_min(1e-8)


def _cosine(query: Tensor, key: Tensor) -> Tensor:
    return _unit(query) @ _unit(key).mT


def _cosine_in_place(query: Tensor, key: Tensor) -> Tensor:
    query /= query.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return query @ _unit(key).mT


def _with_zero_vectors(generator: Generator) -> tuple[Tensor, Tensor]:
    query = normal(generator, 2, 3, 4, dtype=torch.float64)
    key = normal(generator, 2, 5, 4, dtype=torch.float64)
    query[0, 1] = 0
    key[1, 2] = 0
    return query, key


def _short(generator: Generator) -> tuple[Tensor, Tensor]:
    """Lengths near 0.004: a small number beside them is no small number beside their product."""
    return tuple(1e-3 * normal(generator, T, 16) for T in (3, 5))


def _above_zero(query: Tensor, key: Tensor) -> Tensor:
    lengths = query.norm(dim=-1, keepdim=True) * key.norm(dim=-1).unsqueeze(-2)
    return query @ key.mT / (lengths + 1e-8)


def _longer(x: Tensor) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) + 1e-6)


def _sums_of_sizes(x: Tensor) -> Tensor:
    return x / x.abs().sum(-1, keepdim=True).clamp_min(1e-8)


COSINE = Exercise(
    name=f"{NAME}.cosine",
    title="Direction without length",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_cosine,
    returns=("scores",),
    forbidden=("cosine_similarity",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3), tenths(g, 4, 3))),
        Case("batch and heads", lambda g: (normal(g, 2, 3, 5, 6), normal(g, 2, 3, 7, 6))),
        Case("long vectors", lambda g: (100 * normal(g, 3, 8), 100 * normal(g, 5, 8))),
        Case("short vectors", _short),
        # padding is embedded as zeros: a NaN in its gradient ends a training run
        Case("zero vectors, float64", _with_zero_vectors, finite=True),
        Case("gradient", lambda g: (normal(g, 4, 5), normal(g, 6, 5)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no length taken out",
            lambda query, key: query @ key.mT,
            "This is the plain dot product: a long key still wins over a short one. Divide by the "
            "lengths of both.",
        ),
        Mistake(
            "only the queries' length",
            lambda query, key: _unit(query) @ key.mT,
            "The queries have length 1, the keys have not, so a long key still wins. Both lengths go out.",
        ),
        Mistake(
            "only the keys' length",
            lambda query, key: query @ _unit(key).mT,
            "The keys have length 1, the queries have not, so a long query has larger scores. Both "
            "lengths go out.",
        ),
        Mistake(
            "0 / 0 at a zero vector",
            lambda query, key: (
                (query / query.norm(dim=-1, keepdim=True)) @ (key / key.norm(dim=-1, keepdim=True)).mT
            ),
            "A vector of zeros has length 0, and 0 / 0 is NaN. It points nowhere and should score 0 "
            "with everybody: keep the divisor above 0.",
        ),
        Mistake(
            "squared lengths",
            lambda query, key: (
                query
                @ key.mT
                / query.square().sum(-1, keepdim=True).clamp_min(1e-8)
                / key.square().sum(-1).clamp_min(1e-8).unsqueeze(-2)
            ),
            "You divide by q·q and k·k, which are the lengths squared. Look for the square root.",
        ),
        Mistake(
            "one length for all",
            lambda query, key: query @ key.mT / (query.norm() * key.norm()),
            "norm() without dim gives one length for the whole tensor. Every query and every key "
            "has its own: along the last axis.",
        ),
        Mistake(
            "lengths of the columns",
            lambda query, key: _unit(query, dim=-2) @ _unit(key, dim=-2).mT,
            "Each column of query and key has length 1, not each row. A vector is a row: look at dim.",
        ),
        Mistake(
            "axis 1 instead of the last",
            lambda query, key: _unit(query, dim=1) @ _unit(key, dim=1).mT,
            "The lengths are taken along axis 1, as F.normalize does unless told. That is the last axis of a "
            "matrix only: with a batch and heads in front it is another one.",
        ),
        Mistake(
            "sum of sizes as the length",
            lambda query, key: _sums_of_sizes(query) @ _sums_of_sizes(key).mT,
            "You divide by the sum of the sizes of a vector's entries. Its length is the root of the sum of "
            "their squares.",
        ),
        Mistake(
            "a number added to each length",
            lambda query, key: _longer(query) @ _longer(key).mT,
            "You add 1e-6 to each length. It keeps 0 / 0 away, but short vectors come out shorter than 1, "
            "and their cosine too small. Change a length only where it would be 0.",
        ),
        Mistake(
            "a number added to the product of the lengths",
            _above_zero,
            "You add 1e-8 to the product of the lengths. It keeps 0 / 0 away, but the product of two short "
            "vectors' lengths is itself not far from that, and their cosine comes out too small. Change the "
            "divisor only where it would be 0.",
        ),
        Mistake(
            "without its sign",
            lambda query, key: _cosine(query, key).abs(),
            "All scores are positive. Vectors that point in opposite directions have the cosine -1: look for "
            "what takes the sign away.",
        ),
        Mistake(
            "distance instead of similarity",
            lambda query, key: 1 - _cosine(query, key),
            "This is 1 minus the cosine, which is small where two vectors agree. A score is large there.",
        ),
        Mistake(
            "query changed in place",
            _cosine_in_place,
            "The length is divided out of query itself, as query /= ... does. Make a new tensor.",
        ),
    ),
    hints=(
        "cos(q, k) = q·k / (|q| |k|). Which part can be done before the product, for each row alone?",
        "The norm of each row, with the axis kept, is [..., T_q, 1] and divides every row by its own length.",
        "clamp_min(1e-8) keeps a length of 0 from becoming a divisor. Then one product of all queries "
        "with all keys.",
    ),
)

"""Exercise 5: grouped heads."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import lifted, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.multi_head import shared
from attention_course.checks.multi_head.shared import NAME


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def _shared(query: Tensor, few: Tensor) -> Tensor:
    """Neighbouring query heads share a head: 0 0 0 1 1 1."""
    return few.repeat_interleave(query.shape[-3] // few.shape[-3], dim=-3)


def _tiled(query: Tensor, few: Tensor) -> Tensor:
    """Query heads take turns: 0 1 0 1 0 1."""
    return torch.cat([few] * (query.shape[-3] // few.shape[-3]), dim=-3)


def _grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attention(query, _shared(query, key), _shared(query, value))


def _grouped_queries_averaged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _attention(query.unflatten(-3, (key.shape[-3], -1)).mean(-3), key, value)


def _grouped_with(
    width: Callable[[Tensor, Tensor, Tensor], float] = lambda query, key, value: query.shape[-1],
    axis: int = -1,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The reference with the root of another width as its scale, or another axis for the softmax."""

    def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ _shared(query, key).mT / width(query, key, value) ** 0.5
        return scores.softmax(axis) @ _shared(query, value)

    return grouped


def _far_below(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    query = shared.normal_heads(generator, 2, 4, 3, 4, dtype=torch.float64)
    key, value = (shared.normal_heads(generator, 2, 2, 5, width, dtype=torch.float64) for width in (4, 3))
    return *lifted(query, key, -800.0), value


GROUPED_QUERY_ATTENTION = Exercise(
    name=f"{NAME}.grouped_query_attention",
    title="Fewer heads for keys and values",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_grouped,
    returns=("context",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 4, 3, 2), tenths(g, 2, 5, 2), tenths(g, 2, 5, 1))),
        Case(
            "multi-query",
            lambda g: (
                shared.normal_heads(g, 2, 4, 5, 8),
                shared.normal_heads(g, 2, 1, 7, 8),
                shared.normal_heads(g, 2, 1, 7, 6),
            ),
        ),
        Case(
            "batch",
            lambda g: (
                shared.normal_heads(g, 2, 6, 5, 8),
                shared.normal_heads(g, 2, 2, 7, 8),
                shared.normal_heads(g, 2, 2, 7, 9),
            ),
        ),
        Case(
            "two leading axes, float64",
            lambda g: (
                shared.normal_heads(g, 2, 3, 6, 4, 8, dtype=torch.float64),
                shared.normal_heads(g, 2, 3, 3, 7, 8, dtype=torch.float64),
                shared.normal_heads(g, 2, 3, 3, 7, 5, dtype=torch.float64),
            ),
        ),
        Case("scores far below 0, float64", _far_below),
        Case(
            "gradient",
            lambda g: (
                shared.normal_heads(g, 2, 6, 4, 5),
                shared.normal_heads(g, 2, 3, 7, 5),
                shared.normal_heads(g, 2, 3, 7, 2),
            ),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "heads take turns",
            lambda query, key, value: _attention(query, _tiled(query, key), _tiled(query, value)),
            "The key heads are laid out 0 1 0 1 0 1, as torch's repeat does. Neighbouring query heads "
            "form a group and share one: 0 0 0 1 1 1.",
        ),
        Mistake(
            "keys in groups, values in turns",
            lambda query, key, value: _attention(query, _shared(query, key), _tiled(query, value)),
            "Keys are shared in groups but values in turns, so a head looks with one and takes from "
            "another. Lay out both alike.",
        ),
        Mistake(
            "first key head for all",
            lambda query, key, value: _attention(query, key[..., :1, :, :], value[..., :1, :, :]),
            "Every query head uses key head 0. That is right for multi-query attention only, where "
            "there is no other.",
        ),
        Mistake(
            "key heads averaged",
            lambda query, key, value: _attention(
                query, key.mean(-3, keepdim=True), value.mean(-3, keepdim=True)
            ),
            "The key heads are averaged into one. Each group of query heads has a key head of its own.",
        ),
        Mistake(
            "query heads averaged",
            _grouped_queries_averaged,
            "The query heads of a group are averaged, so h heads became as many as the keys have. "
            "Every query head keeps a context of its own.",
        ),
        Mistake(
            "no scale",
            _grouped_with(lambda query, key, value: 1),
            "The scores are plain dot products. Divide by √d_k.",
        ),
        Mistake(
            "scaled with √(h d_k)",
            _grouped_with(lambda query, key, value: query.shape[-1] * query.shape[-3]),
            "The scale counts the columns of all heads. A score sums over one head's d_k products.",
        ),
        Mistake(
            "scaled with √(h/g d_k)",
            _grouped_with(lambda query, key, value: query.shape[-1] * query.shape[-3] // key.shape[-3]),
            "The scale counts the heads that share a key head. A score sums over one head's d_k products, "
            "however many share the key.",
        ),
        Mistake(
            "scaled with √d_v",
            _grouped_with(lambda query, key, value: value.shape[-1]),
            "The scale is the root of the values' width. A score sums over d_k products, the width of "
            "queries and keys.",
        ),
        Mistake(
            "softmax over the queries",
            _grouped_with(axis=-2),
            "The columns of the weights sum to 1, not the rows. Each query shares 1 among the keys: look at "
            "dim.",
        ),
        Mistake(
            "softmax over the heads",
            _grouped_with(axis=-3),
            "The heads compete with each other. Each query shares 1 among its head's keys: look at dim.",
        ),
    ),
    hints=(
        "How many query heads share one key head? Write for h = 6 and 2 key heads which of the two "
        "each query head uses.",
        "torch.repeat_interleave copies each head in place; torch.Tensor.repeat copies the whole row of "
        "heads. Count the axis of the heads from the end: -3.",
        "Without a copy: split the heads' axis of query into groups and the heads of a group, [..., "
        "groups, h / groups, T_q, d_k], and give key and value an axis of length 1 there to broadcast. "
        "Flatten the two axes of the context again.",
    ),
)

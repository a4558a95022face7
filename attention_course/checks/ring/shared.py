"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal
from attention_course.checks.engine.exercise import Inputs

NAME = "11_ring"


INF = torch.inf


def scaled(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / query.shape[-1] ** 0.5


def qkv(
    generator: Generator,
    *leading: int,
    T_q: int = 3,
    T_k: int = 5,
    d_k: int = 4,
    d_v: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    return (
        normal(generator, *leading, T_q, d_k, dtype=dtype),
        normal(generator, *leading, T_k, d_k, dtype=dtype),
        normal(generator, *leading, T_k, d_v, dtype=dtype),
    )


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.maximum(lse_a, lse_b)
    blind = top == -INF  # in both parts: no logarithm is taken of 0 there, whose gradient would be NaN
    top = top.masked_fill(blind, 0.0)
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    total = (a + b).masked_fill(blind, 1.0)
    out = (a / total)[..., None] * out_a + (b / total)[..., None] * out_b
    return out, (top + total.log()).masked_fill(blind, -INF)


Merge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def merged(
    share: Callable[[Tensor, Tensor], Tensor] = lambda a, b: (a - torch.logaddexp(a, b)).exp(),
    lse: Callable[[Tensor, Tensor], Tensor] = torch.logaddexp,
) -> Merge:
    """``share(a, b)`` is what the part with lse a gets; parts that are both empty stay empty."""

    def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
        blind = (lse_a == -INF) & (lse_b == -INF)
        a, b = lse_a.masked_fill(blind, 0.0), lse_b.masked_fill(blind, 0.0)
        out = share(a, b)[..., None] * out_a + share(b, a)[..., None] * out_b
        return out, lse(a, b).masked_fill(blind, -INF)

    return merge


def said_as_finite(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """As nan_to_num leaves it: the smallest number of the dtype in the place of -inf."""
    out, lse = merge(out_a, lse_a, out_b, lse_b)
    return out, lse.nan_to_num()


def no_guard(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(lse_a, lse_b)
    return (lse_a - lse).exp()[..., None] * out_a + (lse_b - lse).exp()[..., None] * out_b, lse


def by_the_maximum(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.maximum(lse_a, lse_b)
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    return (a[..., None] * out_a + b[..., None] * out_b) / (a + b)[..., None], top + (a + b).log()

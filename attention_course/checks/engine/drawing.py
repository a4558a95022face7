"""Inputs that checks draw: each from the generator it is handed, so that a seed names them."""

import torch
from torch import Generator, Tensor


def normal(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normal numbers, the same ones rounded to any ``dtype``."""
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def weight(generator: Generator, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a matrix: rows times it have about the variance they had before."""
    return (normal(generator, rows, columns, dtype=torch.float64) / rows**0.5).to(dtype)


def tenths(generator: Generator, *shape: int, most: int = 20) -> Tensor:
    """Return numbers with one decimal, from -2.0 to 2.0 unless told, that can be followed by hand."""
    return torch.randint(-most, most + 1, shape, generator=generator).to(torch.float32) / 10


def halves(generator: Generator, *shape: int) -> Tensor:
    """Return -0.5, 0.0 and 0.5."""
    return torch.randint(-1, 2, shape, generator=generator).to(torch.float32) / 2


def lifted(query: Tensor, key: Tensor, heights: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return query and key with another first component each, which lifts the scores, divided by the root of
    the width, of every key by its height: one for all keys, or [..., T_k]."""
    first = torch.arange(query.shape[-1]) == 0
    height = torch.as_tensor(heights, dtype=key.dtype).expand(key.shape[:-1])
    high = height[..., None] * key.shape[-1] ** 0.5
    return query.masked_fill(first, 1.0), torch.where(first, high, key)


def loud(scores: Tensor, seen: Tensor, loudness: float = 120.0) -> Tensor:
    """Return scores of which the hidden ones, where ``seen`` is False, are the largest by far, and those that
    are seen lie so low that their exponentials are 0."""
    return scores + torch.where(seen, -loudness, loudness)


def integer(generator: Generator, low: int, high: int) -> Tensor:
    """Return one integer from ``low`` to ``high``, both included, as a tensor without axes."""
    return torch.randint(low, high + 1, (), generator=generator)

"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

from collections.abc import Callable

import torch
from torch import Tensor

NAME = "06_positions"


BASE = 10000.0


def frequencies_for(width: int) -> Tensor:
    return BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def same_for_all(width: int) -> Tensor:
    return torch.ones(width // 2, dtype=torch.float64)


def neighbours(first: Tensor, second: Tensor) -> Tensor:
    """Pair i in columns 2i and 2i + 1."""
    return torch.stack((first, second), dim=-1).flatten(-2)


def halves(first: Tensor, second: Tensor) -> Tensor:
    """Pair i in columns i and i + d/2."""
    return torch.cat((first, second), dim=-1)


Join = Callable[[Tensor, Tensor], Tensor]


#: how to take apart what a join has put together
TAKEN = {
    neighbours: lambda x: (x[..., 0::2], x[..., 1::2]),
    halves: lambda x: x.chunk(2, dim=-1),
}


def encoding(
    positions: Tensor,
    width: int,
    frequencies: Callable[[int], Tensor] = frequencies_for,
    join: Join = neighbours,
) -> Tensor:
    """[...] -> [..., width], in float64."""
    angles = positions.double()[..., None] * frequencies(width)
    return join(angles.sin(), angles.cos())

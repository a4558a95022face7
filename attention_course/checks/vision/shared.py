"""What the exercises of this chapter share: drawing weights over cells, which are counted row by row."""

import math

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal

NAME = "14_vision"

BASE = 10000.0


def number(value: int) -> Tensor:
    """A number as a case hands it over: a tensor without axes."""
    return torch.tensor(value)


def side(N: int) -> int:
    """The columns of a grid that is taken to be square."""
    return math.isqrt(N)


def weights(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., N], every row of sum 1, neither saturated nor flat."""
    return (1.2 * normal(generator, *shape, dtype=torch.float64)).softmax(-1).to(dtype)


def tenths_of_1(generator: Generator, *shape: int) -> Tensor:
    """[..., N], every row of sum 1, in tenths; some are 0."""
    *leading, N = shape
    cuts = torch.randint(11, (*leading, N - 1), generator=generator).sort(-1).values
    ends = torch.zeros(*leading, 1, dtype=cuts.dtype)
    return torch.cat((ends, cuts, ends + 10), -1).diff() / 10

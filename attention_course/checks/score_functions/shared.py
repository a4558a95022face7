"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal

NAME = "02_score_functions"


def weight(generator: Generator, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A matrix that keeps the variance of the rows it is applied to, so that no tanh is saturated."""
    return normal(generator, rows, columns, dtype=dtype) / rows**0.5


def real(T: int, lengths: Tensor) -> Tensor:
    """[batch, 1, T]: True for a word, False for the padding behind it, whichever query asks."""
    return (torch.arange(T) < lengths[:, None]).unsqueeze(1)


def softmax_where(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)

"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal

NAME = "15_speech"


def real(T: int, lengths: Tensor) -> Tensor:
    """[B, T]: True for a frame or state, False behind the clip's end."""
    return torch.arange(T) < lengths[:, None]


def weight(generator: Generator, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows times this matrix have about the variance they had before."""
    return (normal(generator, rows, columns, dtype=torch.float64) / rows**0.5).to(dtype)

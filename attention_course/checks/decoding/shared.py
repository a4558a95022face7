"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal

NAME = "09_decoding"


def double(generator: Generator, *shape: int) -> Tensor:
    return normal(generator, *shape, dtype=torch.float64)

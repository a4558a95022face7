"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal

NAME = "04_multi_head"


#: in every exercise that cannot read the number of heads from a shape; the notebook says so
NUM_HEADS = 3


def normal_heads(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., heads, length, width], laid out in memory as split heads are: not contiguous."""
    *leading, heads, length, width = shape
    return normal(generator, *leading, length, heads, width, dtype=dtype).transpose(-2, -3)


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (NUM_HEADS, -1)).transpose(-2, -3)


def split_by_view(x: Tensor) -> Tensor:
    *leading, length, width = x.shape
    return x.reshape(*leading, NUM_HEADS, length, width // NUM_HEADS)


def split_every_third(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, NUM_HEADS)).movedim(-1, -3)


def split_same(x: Tensor) -> Tensor:
    first = x[..., : x.shape[-1] // NUM_HEADS].unsqueeze(-3)
    return first.expand(*first.shape[:-3], NUM_HEADS, *first.shape[-2:])


def merge(context: Tensor) -> Tensor:
    return context.transpose(-2, -3).flatten(-2)


def merge_by_view(context: Tensor) -> Tensor:
    *leading, heads, length, width = context.shape
    return context.reshape(*leading, length, heads * width)


def merge_interleaved(context: Tensor) -> Tensor:
    return context.movedim(-3, -1).flatten(-2)

"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.linear import elu_plus_one

NAME = "10_linear"


Three = tuple[Tensor, Tensor, Tensor]


def tokens(
    generator: Generator,
    *leading: int,
    T_q: int,
    T_k: int,
    d_k: int,
    d_v: int,
    dtype: torch.dtype = torch.float32,
) -> Three:
    shapes = ((T_q, d_k), (T_k, d_k), (T_k, d_v))
    query, key, value = (normal(generator, *leading, *shape, dtype=dtype) for shape in shapes)
    return query, key, value


def state(
    generator: Generator, *leading: int, d_k: int, d_v: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """S [..., d_k, d_v] and z [..., d_k] after five tokens."""
    features = elu_plus_one(normal(generator, *leading, 5, d_k, dtype=dtype))
    value = normal(generator, *leading, 5, d_v, dtype=dtype)
    return features.mT @ value, features.sum(-2)


def far_below(generator: Generator, *shape: int) -> Tensor:
    """Keys near -50: their φ, near 1e-22, are floats like others, and elu(k) + 1 is 0."""
    return tenths(generator, *shape) - 50.0


def rounded(x: Tensor) -> Tensor:
    """What is elu_plus_one on paper."""
    return F.elu(x) + 1


#: what is added to a divisor so that it is never 0
SMALL = 1e-6


def divided(sums: Tensor, normaliser: Tensor) -> Tensor:
    return sums / normaliser.unsqueeze(-1)


def as_it_is(x: Tensor) -> Tensor:
    return x


Map = Callable[[Tensor], Tensor]

"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, weight
from attention_course.checks.engine.exercise import Inputs

NAME = "07_transformer"


#: what layer norm adds to a variance; the notebook says so
EPSILON = 1e-5


def gains(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Between 0.5 and 2."""
    return (0.5 + 1.5 * torch.rand(shape, generator=generator, dtype=torch.float64)).to(dtype)


def real(T: int, *lengths: int) -> Tensor:
    """1.0 for a word, 0.0 for the padding behind the words.

    Some cases hand it over as integers, as tokenizers do; those with gradients always, so that
    a solution may multiply by it or take its logarithm and is asked for no gradient of it.
    """
    return (torch.arange(T) < torch.tensor(lengths)[:, None]).float()


def layer_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + EPSILON).sqrt() * gain + shift


def feed_forward(x: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor) -> Tensor:
    return (x @ w_in + b_in).relu() @ w_out + b_out


def two_layers(generator: Generator, width: int, hidden: int, dtype=torch.float32) -> Inputs:
    """w_in, b_in, w_out, b_out."""
    return (
        weight(generator, width, hidden, dtype),
        normal(generator, hidden, dtype=dtype),
        weight(generator, hidden, width, dtype),
        normal(generator, width, dtype=dtype),
    )

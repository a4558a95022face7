"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal

NAME = "13_probing"


def weights(
    generator: Generator, B: int, h: int, T: int, *, seen: Tensor | None = None, dtype=torch.float32
) -> Tensor:
    """[B, h, T, T], each row of sum 1; ``seen`` [..., T] or [..., T, T] is True where a query may look.

    Every head leans to some distance of its own, so that heads differ and places of a row do.
    """
    places = torch.arange(T)
    leaning = torch.randint(-2, 3, (h, 1, 1), generator=generator)
    scores = normal(generator, B, h, T, T, dtype=torch.float64)
    scores = scores + 1.5 * (places - places[:, None] == leaning)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).to(dtype)


def real(T: int, lengths: Tensor) -> Tensor:
    """[B, T], True for a token that is no padding."""
    return torch.arange(T) < lengths[:, None]


def chosen_half(generator: Generator, N: int) -> Tensor:
    """[N], True for the examples on which something is chosen: about half of them, in no order."""
    return torch.randperm(N, generator=generator) < (N + 1) // 2

"""What the exercises of this chapter share: drawing weights, as a softmax makes them or in whole tenths."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal

NAME = "12_seeing"


def real(T: int, lengths: Tensor) -> Tensor:
    """[B, T]: True for a token, False for the padding behind it."""
    return torch.arange(T) < lengths[:, None]


def rows(
    generator: Generator,
    *shape: int,
    lengths: tuple[int, ...] | None = None,
    causal: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Weights [..., T, T] of a softmax, neither saturated nor flat; nothing lies on padding, nor on the
    future where they are causal. Padded queries have a row like any other's."""
    T = shape[-1]
    scores = 1.2 * normal(generator, *shape, dtype=torch.float64)
    if lengths is not None:
        scores = scores.masked_fill(~real(T, torch.tensor(lengths))[:, None, None], -torch.inf)
    if causal:
        scores = scores.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf)
    return scores.softmax(-1).to(dtype)


def tenths_of_1(generator: Generator, *shape: int, keys: int | None = None) -> Tensor:
    """Weights [..., T, T] of one decimal, some of them 0, that lie on the first ``keys`` keys."""
    *leading, T = shape
    keys = keys or T
    cuts = torch.randint(11, (*leading, keys - 1), generator=generator).sort(-1).values
    ends = torch.zeros(*leading, 1, dtype=cuts.dtype)
    steps = torch.cat((ends, cuts, ends + 10), -1).diff()
    return torch.cat((steps, torch.zeros(*leading, T - keys, dtype=cuts.dtype)), -1) / 10

"""What the exercises of this chapter share: ways to weigh, right and wrong, and vectors of length 1."""

from collections.abc import Callable

import torch
from torch import Tensor

NAME = "16_senses"

#: weights from scores and from what may be looked at
Weigh = Callable[[Tensor, Tensor], Tensor]


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def filled(fill: float) -> Weigh:
    """A softmax in which hidden scores become ``fill`` first."""
    return lambda scores, mask: scores.masked_fill(~mask, fill).softmax(-1)


by_infinity = filled(-torch.inf)


def safely(scores: Tensor, mask: Tensor) -> Tensor:
    """The same where some see nothing: their weights are 0."""
    blind = ~mask.any(-1, keepdim=True)
    return by_infinity(scores, mask | blind).masked_fill(blind, 0.0)


def unmasked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.softmax(-1)


def zeroed_after(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.softmax(-1) * mask


def renormalised(scores: Tensor, mask: Tensor) -> Tensor:
    kept = zeroed_after(scores, mask)
    return kept / kept.sum(-1, keepdim=True)


def renormalised_safely(scores: Tensor, mask: Tensor) -> Tensor:
    """Nothing is left where nothing is seen, and nothing is divided by."""
    kept = zeroed_after(scores, mask)
    return kept / kept.sum(-1, keepdim=True).masked_fill(~mask.any(-1, keepdim=True), 1.0)


def lowered(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores - 1e9 * ~mask).softmax(-1)


def over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-2)

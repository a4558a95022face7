"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

from collections.abc import Callable

import torch
from torch import Tensor

NAME = "05_masks"


def far_below(scores: Tensor, seen: Tensor) -> Tensor:
    """Scores of which what is seen lies below -1e9, in float64, where they still differ by tenths. What is
    hidden lies near 0: above any number that is written there, and above the others when one is added."""
    return torch.where(seen, scores.double() - 2e9, scores.double())


def real_keys(T: int, *lengths: int) -> Tensor:
    """1.0 for a word, 0.0 for padding, which stands behind the words.

    Some cases hand it over as integers, as tokenizers do; those with gradients always, so that
    a solution may multiply by it or take its logarithm and is asked for no gradient of it.
    """
    return (torch.arange(T) < torch.tensor(lengths)[:, None]).float()


def filled(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A softmax in which masked scores become ``fill`` first."""
    return lambda scores, mask: scores.masked_fill(~mask, fill).softmax(-1)


by_infinity = filled(-torch.inf)


def lowered(by: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A softmax in which ``by`` is taken off the masked scores first."""
    return lambda scores, mask: (scores - by * (~mask).to(scores.dtype)).softmax(-1)


def zeroed_after(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.softmax(-1).masked_fill(~mask, 0.0)


def zero_times_infinity(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores + (~mask).to(scores.dtype) * -torch.inf).softmax(-1)


def added_as_number(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores + mask.to(scores.dtype)).softmax(-1)


def over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-2)


def later(scores: Tensor) -> Tensor:
    """How far each key stands behind each query, last query at last key; above 0: the future."""
    T_q, T_k = scores.shape[-2:]
    return torch.arange(T_k) - torch.arange(T_k - T_q, T_k)[:, None]


def later_from_the_first(scores: Tensor) -> Tensor:
    """The same, first query at first key."""
    T_q, T_k = scores.shape[-2:]
    return torch.arange(T_k) - torch.arange(T_q)[:, None]


def keys(real: Tensor) -> Tensor:
    """[batch, T_k] -> [batch, 1, 1, T_k]: the same keys for every head and query."""
    return real.bool()[:, None, None, :]


def safe_softmax(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)

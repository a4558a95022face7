"""One number for a head: how widely it looks, how far, and how unlike another head."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Weights = Float[Tensor, "... h T_q T_k"]
Lengths = Int[Tensor, " B"]


def entropy(weights: Weights, lengths: Lengths | None = None) -> Float[Tensor, "... h"]:
    """Return the mean entropy of each head's rows, in nats: 0 for one key alone, log T for all alike.

    Shapes: weights [..., h, T_q, T_k] -> [..., h]. ``lengths`` [B], for weights [..., B, h, T, T], says
    how many tokens of each sentence are no padding; padded queries, and such as look nowhere, do not
    count. Raises a ``ValueError`` for lengths that do not fit and for weights that lie on padding.
    """
    return _mean(torch.special.entr(weights).sum(-1), _real(weights, lengths))


def distance(weights: Weights, lengths: Lengths | None = None) -> Float[Tensor, "... h"]:
    """Return how many tokens away a head looks, from query i to key j, on the mean over its weights.

    Shapes and errors as in ``entropy``; the last query stands at the last key.
    """
    T_q, T_k = weights.shape[-2:]
    query = torch.arange(T_k - T_q, T_k, device=weights.device)[:, None]
    away = (query - torch.arange(T_k, device=weights.device)).abs()
    return _mean((weights * away).sum(-1), _real(weights, lengths))


def divergence(weights: Weights, lengths: Lengths | None = None) -> Float[Tensor, "... h h"]:
    """Return the Jensen–Shannon divergence between any two heads, in nats: 0 for the same, at most log 2.

    It is H(½(p + q)) − ½ (H(p) + H(q)), averaged over the queries (Clark et al. 2019, section 6, where it
    is summed). Shapes: weights [..., h, T_q, T_k] -> [..., h, h]; ``lengths`` and errors as in ``entropy``.
    """
    real = _real(weights, lengths)  # [..., h, T_q]
    single = torch.special.entr(weights).sum(-1)  # [..., h, T_q]
    middle = (weights.unsqueeze(-3) + weights.unsqueeze(-4)) / 2  # [..., h, h, T_q, T_k]
    between = torch.special.entr(middle).sum(-1) - (single.unsqueeze(-2) + single.unsqueeze(-3)) / 2
    both = real.unsqueeze(-2) & real.unsqueeze(-3)
    return _mean(between.clamp(min=0.0), both)  # rounding alone would make it negative


def _mean(numbers: Float[Tensor, "... T_q"], real: Bool[Tensor, "... T_q"]) -> Float[Tensor, "..."]:
    """The mean over the queries that count; 0 where there is none."""
    return (numbers * real).sum(-1) / real.sum(-1).clamp(min=1)


def _real(weights: Weights, lengths: Lengths | None) -> Bool[Tensor, "... h T_q"]:
    """Which queries count: those that are no padding and look somewhere."""
    looks = weights.sum(-1) > 0
    if lengths is None:
        return looks
    T_q, T_k = weights.shape[-2:]
    if weights.dim() < 4 or lengths.shape != weights.shape[-4:-3] or T_q != T_k:
        raise ValueError(
            "lengths [B] need weights [..., B, h, T, T], got "
            f"lengths {tuple(lengths.shape)} and weights {tuple(weights.shape)}"
        )
    inside = torch.arange(T_k, device=weights.device) < lengths[:, None]  # [B, T]
    _check_padding(weights, inside)
    return looks & inside[:, None]


def _check_padding(weights: Weights, inside: Bool[Tensor, "B T"]) -> None:
    """Refuse weights of real queries on padding, where they can be read (not on ``meta``)."""
    if weights.is_meta:
        return
    on_padding = (weights * ~inside[:, None, None]).sum(-1) * inside[:, None]
    if (on_padding > 1e-6).any():
        raise ValueError(
            f"weights must be 0 on padding, got up to {on_padding.max():.3g} there: was the mask passed on?"
        )

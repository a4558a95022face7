"""Softmax over keys that come in parts: what each part gives, and how two parts become one."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Partial(NamedTuple):
    """What queries get from some of their keys, and how much those keys weigh.

    ``out`` [..., T_q, d_v] is the attention over these keys alone, ``lse`` [..., T_q] the logarithm of
    the sum of the exponentials of their scores. A query that may look at none of them has an ``out``
    of 0 and an ``lse`` of -inf.
    """

    out: Float[Tensor, "... T_q d_v"]
    lse: Float[Tensor, "... T_q"]


def merge(first: Partial, second: Partial) -> Partial:
    """Return what queries get from the keys of both parts, as if all had been scored at once.

    Shapes as in ``Partial``, equal or broadcastable. The order of the parts makes no difference but
    for rounding. Nothing overflows, and a query that may look nowhere in either part stays at 0 and
    -inf, with gradients that are finite. Source: Milakov and Gimelshein 2018, section 3.1, with sums
    kept as logarithms.
    """
    blind = (first.lse == -torch.inf) & (second.lse == -torch.inf)  # -inf minus -inf is NaN
    left, right = (part.lse.masked_fill(blind, 0.0) for part in (first, second))
    # exp(left - lse) is sigmoid(left - right), which sums to 1 also where rounding has eaten lse's digits.
    out = (left - right).sigmoid()[..., None] * first.out + (right - left).sigmoid()[..., None] * second.out
    return Partial(out, torch.logaddexp(left, right).masked_fill(blind, -torch.inf))

"""Attention in time and in space: frames of a clip, and places in a frame.

A clip is a table of vectors, T frames by N places. Who may look at whom is the whole difference: in *joint*
attention everyone at everyone, in *divided* attention first along one axis of the table, then the other.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

# any layer of the course: from [..., tokens, d] to (output of the same shape, weights or None)
SelfAttention = Callable[[Tensor], tuple[Tensor, Tensor | None]]


def joint(attention: SelfAttention, x: Float[Tensor, "... T N d"]) -> Float[Tensor, "... T N d"]:
    """Return ``attention`` over all T·N tokens of a clip at once (Bertasius et al. 2021, section 3).

    Shapes: x [..., T, N, d] -> [..., T, N, d], by (T·N)² scores a head. ``attention`` maps [..., tokens, d]
    to ``(output, weights)``, as ``MultiHeadAttention`` and ``EncoderLayer`` do. Raises a ``ValueError``
    for an x without the axes of time and place, or an output of another shape.
    """
    _check(x)
    return _looked("attention", attention, x.flatten(-3, -2)).unflatten(-2, x.shape[-3:-1])


def divided(
    time: SelfAttention, space: SelfAttention, x: Float[Tensor, "... T N d"]
) -> Float[Tensor, "... T N d"]:
    """Return ``time`` over the frames at each place, then ``space`` over the places in each frame.

    Shapes: x [..., T, N, d] -> [..., T, N, d], by N·T² + T·N² scores a head (Bertasius et al. 2021, section
    3: "divided space-time attention"). ``time`` and ``space`` as ``attention`` in ``joint``; what they add
    to the stream is theirs to add. Raises a ``ValueError`` as ``joint`` does.
    """
    _check(x)
    x = _looked("time", time, x.transpose(-3, -2)).transpose(-3, -2)  # to [..., N, T, d], and back
    return _looked("space", space, x)


def _looked(name: str, attention: SelfAttention, x: Tensor) -> Tensor:
    output, _ = attention(x)
    if output.shape != x.shape:
        raise ValueError(f"{name} must keep the shape {tuple(x.shape)}, got {tuple(output.shape)}")
    return output


def _check(x: Tensor) -> None:
    if x.dim() < 3:
        raise ValueError(f"x must have shape [..., T, N, d], got {tuple(x.shape)}")

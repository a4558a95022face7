"""The same sum, faster. The choice of a kernel is made here and nowhere else.

``reference`` is the definition, ``attention.attention_weights`` and then ``mix``: it holds all weights,
and is the only one that can return them. ``fused`` is torch's. ``tiled`` is the online softmax in plain
PyTorch; ``windowed`` is its loop over the tiles that a sliding window touches, at a cost of T·w.
``triton`` is the same loop as a program for a GPU.
"""

import torch
from torch import Tensor

from attention_course.kernels.fused import fused
from attention_course.kernels.tiled import tiled
from attention_course.kernels.triton import supports as triton_supports
from attention_course.kernels.triton import triton_attention

__all__ = ["BACKENDS", "choose", "fused", "in_blocks", "tiled", "triton_attention"]

BACKENDS = ("auto", "fused", "reference", "tiled", "windowed", "triton")

#: "auto" takes the tiles of a window when it is at most this share of the keys: a tile has more
#: overhead than torch's kernel, which works through everything that the window hides.
WINDOW_PAYS = 1 / 4

#: numbers in the table of an additive score's tanhs from which it is made block by block. On a processor
#: a block stays in its cache; on a GPU it costs a launch, and pays only where the table would fill memory.
BLOCKWISE, BLOCKWISE_ELSEWHERE = 1 << 22, 1 << 28


def in_blocks(numbers: int, device: torch.device) -> bool:
    """Return whether ``kernels.additive`` makes a table of so many numbers, or the formula as it stands."""
    return numbers >= (BLOCKWISE if device.type == "cpu" else BLOCKWISE_ELSEWHERE)


def choose(
    backend: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    *,
    dropout_p: float,
    window: int | None,
) -> str:
    """Return the kernel that ``backend`` stands for: itself, unless it is "auto".

    "auto" is "windowed" on a CPU for a window so narrow that it pays, else "fused". Raises a
    ``ValueError`` for an unknown name, and for a kernel that cannot do what is asked.
    """
    if window is not None and window < 1:
        raise ValueError(f"the window's size must be at least 1, got {window}")
    if backend == "auto":
        pays = window is not None and window <= WINDOW_PAYS * key.shape[-2] and query.device.type == "cpu"
        return "windowed" if pays and _lacks("windowed", attn_mask, dropout_p, window) is None else "fused"
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    lacks = _lacks(backend, attn_mask, dropout_p, window)
    if lacks is None and backend == "triton":
        lacks = triton_supports(query, key, value)
    if lacks is not None:
        raise ValueError(f"backend={backend!r} cannot do this: {lacks}")
    return backend


def _lacks(backend: str, attn_mask: Tensor | None, dropout_p: float, window: int | None) -> str | None:
    """Why a kernel does not fit the options, or ``None`` if it does."""
    if backend in ("fused", "reference"):
        return None
    if dropout_p > 0:
        return f"it has no dropout, got dropout_p={dropout_p}"
    if backend == "triton":
        return "it takes no attn_mask" if attn_mask is not None else None
    if backend == "windowed" and window is None:
        return "it needs a window"
    if attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled():
        return "it has no gradient for attn_mask"
    return None

"""What public functions refuse, said in one way: which argument, what came, what was expected."""

from collections.abc import Iterable

import torch
from torch import Tensor


def check_attention(
    query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool = False, same_width: bool = False
) -> None:
    """Refuse a query [..., T_q, d_q], key [..., T_k, d_k] and value [..., T_k, d_v] that do not fit.

    With ``enable_gqa`` the last leading axis counts heads, and key and value may have fewer of them.
    Raises a ``TypeError`` for what is no floating-point tensor or of another dtype, else a ``ValueError``.
    """
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.dim() < 2:
            raise ValueError(f"{name} must have shape [..., T, d], got {tuple(tensor.shape)}")
        check_alike(name, tensor, "the query's", query)
    if same_width:
        check_same_width(query, key)
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            "key and value must have the same length, got "
            f"key {tuple(key.shape)} and value {tuple(value.shape)}"
        )
    leading = [tensor.shape[:-2] for tensor in named.values()]
    if enable_gqa:
        check_head_counts(*leading)
        leading = [shape[:-1] for shape in leading]
    if leading[0] == leading[1] == leading[2]:
        return  # broadcast_shapes takes as long as all other checks together
    try:
        torch.broadcast_shapes(*leading)
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
        raise ValueError(f"leading dimensions must broadcast, got {shapes}") from error


def check_alike(name: str, tensor: Tensor, whose: str, other: Tensor) -> None:
    """Refuse a tensor on another device than ``other``'s, or of another dtype."""
    if tensor.device != other.device:
        raise ValueError(f"{name} must be on {whose} device {other.device}, got {tensor.device}")
    # Under autocast some inputs come from narrowed layers and others do not.
    if tensor.dtype != other.dtype and not torch.is_autocast_enabled(other.device.type):
        raise TypeError(f"{name} must have {whose} dtype {other.dtype}, got {tensor.dtype}")


def check_same_width(query: Tensor, key: Tensor) -> None:
    """Refuse a query and a key that no dot product can join."""
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "query and key must have the same width, got "
            f"query {tuple(query.shape)} and key {tuple(key.shape)}"
        )


def check_head_counts(query: torch.Size, key: torch.Size, value: torch.Size) -> None:
    """Refuse leading shapes in which groups of query heads cannot share key heads."""
    if not (query and key and value):
        raise ValueError("enable_gqa needs a dimension for the heads: [..., H, T, d]")
    if key[-1] != value[-1] or key[-1] == 0 or query[-1] % key[-1] != 0:
        raise ValueError(
            "with enable_gqa key and value need the same number of heads, a divisor of the query's, "
            f"got query {query[-1]}, key {key[-1]}, value {value[-1]}"
        )


def check_mask(attn_mask: Tensor, shape: tuple[int, ...], query: Tensor, *, floating: bool = False) -> None:
    """Refuse a mask of the wrong kind or device, or one that would stretch the scores, not cover them."""
    if attn_mask.dtype != torch.bool and not (floating and attn_mask.is_floating_point()):
        kinds = "boolean (True = may look) or floating point" if floating else "boolean (True = may look)"
        raise TypeError(f"attn_mask must be {kinds}, got {attn_mask.dtype}")
    if attn_mask.device != query.device:
        raise ValueError(f"attn_mask must be on the query's device {query.device}, got {attn_mask.device}")
    try:
        fits = torch.broadcast_shapes(attn_mask.shape, shape) == tuple(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"attn_mask must broadcast to the scores' shape {tuple(shape)}, got {tuple(attn_mask.shape)}"
        )


def check_width(name: str, x: Tensor, width: int, *, axis: str = "") -> None:
    """Refuse an ``x`` that is not [..., T, ``width``]."""
    if x.dim() < 2 or x.shape[-1] != width:
        raise ValueError(f"{name} must have shape [..., T, {axis}{width}], got {tuple(x.shape)}")


def check_range(name: str, numbers: Tensor, least: int, most: int, called: str = "") -> None:
    """Refuse whole numbers outside ``least`` to ``most`` (``called`` so), where they can be read.

    A GPU that meets an unknown index stops for good, so that it must not get that far. What only has a
    shape (``meta``) cannot be read, and what is being compiled must not be.
    """
    if numbers.is_meta or torch.compiler.is_compiling() or not numbers.numel():
        return
    lowest, highest = (bound.item() for bound in numbers.aminmax())
    if lowest < least or highest > most:
        raise ValueError(f"{name} must lie between {least} and {called or most}, got {lowest} to {highest}")


def check_at_least(least: int, **sizes: int) -> None:
    """Refuse a number below ``least``."""
    for name, size in sizes.items():
        if size < least:
            raise ValueError(f"{name} must be at least {least}, got {size}")


def check_share(name: str, share: float) -> None:
    """Refuse a share to drop that is negative, or everything."""
    if not 0.0 <= share < 1.0:
        raise ValueError(f"{name} must be at least 0 and below 1, got {share}")


def check_choice(name: str, choice: object, choices: Iterable[object]) -> None:
    """Refuse what is none of ``choices``."""
    if choice not in choices:
        listed = " or ".join(f'"{each}"' if isinstance(each, str) else repr(each) for each in choices)
        raise ValueError(f"{name} must be {listed}, got {choice!r}")

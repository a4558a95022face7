"""torch's own fused attention, which never stores the weights."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attention_course import masks


def fused(
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None,
    *,
    is_causal: bool,
    scale: float | None,
    dropout_p: float,
    window: int | None,
    enable_gqa: bool,
) -> Float[Tensor, "... T_q d_v"]:
    """Return ``F.scaled_dot_product_attention``'s context under this package's meaning of the masks.

    Inputs are taken to be checked: torch reads past the keys when the value is longer. Shapes as in
    ``attention.scaled_dot_product_attention``.
    """
    # The flag lets torch skip the blocks above the diagonal, which it does for no mask tensor. It
    # means the same here and in torch only for as many queries as keys.
    flag = is_causal and attn_mask is None and window is None and query.shape[-2] == key.shape[-2]
    # With it torch hides before it scales: a scale of 0 or less would make NaN of -inf.
    flag = flag and (scale is None or scale > 0)
    mask = None if flag else masks.with_structure(attn_mask, query, key, is_causal=is_causal, window=window)
    if mask is not None and mask.is_floating_point():
        mask = _narrowed(mask, query.dtype)
    # torch has its fast kernels for [B, H, T, d] alone; [H, T, d] takes several times as long.
    batch = query.shape[:-3]
    folds = query.dim() not in (2, 4) and key.shape[:-3] == value.shape[:-3] == batch
    if mask is not None and mask.dim() > 3:
        folds = False  # its own leading dimensions would have to be folded, and so copied
    if folds:
        query, key, value = (x.reshape(math.prod(batch), *x.shape[-3:]) for x in (query, key, value))
    context = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout_p,
        is_causal=flag,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    return context.reshape(*batch, *context.shape[-3:]) if folds else context


def _narrowed(mask: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """The mask in another dtype; what is finite stays so, as only -inf means: may not look."""
    lowest = torch.finfo(dtype).min
    if torch.finfo(mask.dtype).min < lowest:
        mask = torch.where(mask == -torch.inf, mask, mask.clamp_min(lowest))
    return mask.to(dtype)

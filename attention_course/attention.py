"""Attention is score → mask → softmax → mix."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attention_course import kernels, masks
from attention_course.scores import scaled_dot

Score = Callable[[Tensor, Tensor], Tensor]


def masked_softmax(
    scores: Float[Tensor, "... T_q T_k"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "... T_q T_k"]:
    """Return softmax over the keys a query may look at; a query that may look nowhere gets zeros.

    Shapes: scores [..., T_q, T_k], mask broadcastable to them, True = may look. A score of -inf
    counts as masked. Computed in float32 at least; the result has the dtype of ``scores``. Raises a
    ``TypeError`` for a mask that is not boolean and a ``ValueError`` for one that does not fit.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        _check_mask(mask, scores.shape)
        wide = wide.masked_fill(~mask, -torch.inf)
    blind = (wide == -torch.inf).all(dim=-1, keepdim=True)  # softmax of nothing but -inf is NaN
    weights = wide.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)
    return weights.to(scores.dtype)


def mix(
    weights: Float[Tensor, "... T_q T_k"], value: Float[Tensor, "... T_k d_v"]
) -> Float[Tensor, "... T_q d_v"]:
    """Return the weighted sums of the values, in the dtype of ``value``.

    Shapes: weights [..., T_q, T_k], value [..., T_k, d_v] -> [..., T_q, d_v].
    """
    wide = torch.promote_types(weights.dtype, value.dtype)
    return (weights.to(wide) @ value.to(wide)).to(value.dtype)


def attend(
    query: Float[Tensor, "... T_q d_q"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    score: Score = scaled_dot,
) -> tuple[Float[Tensor, "... T_q d_v"], Float[Tensor, "... T_q T_k"]]:
    """Return ``(context, weights)`` of attention with any score (Bahdanau et al. 2015, equations 5-6).

    Shapes: query [..., T_q, d_q], key [..., T_k, d_k], value [..., T_k, d_v], mask broadcastable to
    [..., T_q, T_k], True = may look; context [..., T_q, d_v], weights [..., T_q, T_k]. ``score`` is
    any callable of ``attention_course.scores``' form. Masked keys and values must still be finite.
    Raises a ``ValueError`` or ``TypeError`` for shapes, dtypes or devices that do not fit.
    """
    _check_inputs(query, key, value)
    scores = score(query, key)
    weights = masked_softmax(scores, mask)
    context = mix(weights, value)
    return context, weights.to(query.dtype)


def scaled_dot_product_attention(
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    window: int | None = None,
    enable_gqa: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "... T_q d_v"]:
    """Return softmax(query keyᵀ · scale) value (Vaswani et al. 2017, equation 1).

    Arguments and defaults are those of ``F.scaled_dot_product_attention``, with these differences.
    ``is_causal`` aligns the *last* query with the last key, also when T_q and T_k differ (torch
    aligns the first with the first); it may be combined with ``attn_mask``. ``window`` hides keys
    that lie ``window`` or more positions away. A query that may look nowhere gets a context of 0.

    Shapes: query [..., H, T_q, d_k], key [..., H, T_k, d_k], value [..., H, T_k, d_v] -> [..., H,
    T_q, d_v]; H and the dimensions before it are optional and broadcast. With ``enable_gqa`` key and
    value may have fewer heads, as long as their number divides the query's. ``attn_mask`` is boolean
    (True = may look) or floating point (added to the scores) and broadcasts to [..., T_q, T_k].
    ``dropout_p`` is applied whenever it is above 0. ``backend`` is one of ``kernels.BACKENDS``: "auto"
    chooses. All can be differentiated once, "reference" as often as you like. Raises a ``ValueError``
    or ``TypeError`` for shapes, dtypes, devices or options that do not fit.
    """
    _check_inputs(query, key, value, enable_gqa=enable_gqa)
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p must be at least 0 and below 1, got {dropout_p}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "query and key must have the same width, got "
            f"query {tuple(query.shape)} and key {tuple(key.shape)}"
        )
    if attn_mask is not None:
        leading = query.shape[:-2]
        if not enable_gqa:
            leading = torch.broadcast_shapes(leading, key.shape[:-2])
        _check_mask(attn_mask, (*leading, query.shape[-2], key.shape[-2]), floating=True)
    kernel = kernels.choose(backend, query, key, value, attn_mask, dropout_p=dropout_p, window=window)
    options = {"is_causal": is_causal, "scale": scale, "window": window}
    if kernel == "fused":
        return kernels.fused(
            query, key, value, attn_mask, dropout_p=dropout_p, enable_gqa=enable_gqa, **options
        )
    if kernel in ("tiled", "windowed"):
        return kernels.tiled(query, key, value, attn_mask, enable_gqa=enable_gqa, **options)
    if kernel == "triton":
        return kernels.triton_attention(query, key, value, **options)
    weights = attention_weights(query, key, attn_mask, enable_gqa=enable_gqa, **options)
    if enable_gqa:
        value = _repeat_heads(value, query.shape[-3])
    return mix(F.dropout(weights, dropout_p), value)


def attention_weights(
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "... T_q T_k"]:
    """Return the weights that ``scaled_dot_product_attention`` mixes its values with.

    Arguments and shapes as there; the weights are [..., H, T_q, T_k], in float32 at least (under
    autocast in the dtype that it gives to products).
    """
    mask = masks.with_structure(attn_mask, query, key, is_causal=is_causal, window=window)
    if enable_gqa:
        key = _repeat_heads(key, query.shape[-3])
    scores = scaled_dot(query, key, scale=scale)
    if mask is not None and mask.is_floating_point():
        scores, mask = scores + mask, None
    return masked_softmax(scores, mask)


def _repeat_heads(tensor: Tensor, num_heads: int) -> Tensor:
    """Give each query head its key head: [..., H_kv, T, d] -> [..., num_heads, T, d]."""
    return tensor.repeat_interleave(num_heads // tensor.shape[-3], dim=-3)


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool = False) -> None:
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.dim() < 2:
            raise ValueError(f"{name} must have shape [..., T, d], got {tuple(tensor.shape)}")
        if tensor.device != query.device:
            raise ValueError(f"{name} must be on the query's device {query.device}, got {tensor.device}")
        # Under autocast some inputs come from narrowed layers and others do not.
        if tensor.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
            raise TypeError(f"{name} must have the query's dtype {query.dtype}, got {tensor.dtype}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            "key and value must have the same length, got "
            f"key {tuple(key.shape)} and value {tuple(value.shape)}"
        )
    leading = [tensor.shape[:-2] for tensor in named.values()]
    if enable_gqa:
        _check_head_counts(*leading)
        leading = [shape[:-1] for shape in leading]
    if leading[0] == leading[1] == leading[2]:
        return  # broadcast_shapes takes as long as all other checks together
    try:
        torch.broadcast_shapes(*leading)
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
        raise ValueError(f"leading dimensions must broadcast, got {shapes}") from error


def _check_head_counts(query: torch.Size, key: torch.Size, value: torch.Size) -> None:
    if not (query and key and value):
        raise ValueError("enable_gqa needs a dimension for the heads: [..., H, T, d]")
    if key[-1] != value[-1] or key[-1] == 0 or query[-1] % key[-1] != 0:
        raise ValueError(
            "with enable_gqa key and value need the same number of heads, a divisor of the query's, "
            f"got query {query[-1]}, key {key[-1]}, value {value[-1]}"
        )


def _check_mask(mask: Tensor, shape: tuple[int, ...], *, floating: bool = False) -> None:
    """Refuse a mask of the wrong kind, or one that would stretch the scores instead of covering them."""
    if mask.dtype != torch.bool and not (floating and mask.is_floating_point()):
        kinds = "boolean (True = may look) or floating point" if floating else "boolean (True = may look)"
        raise TypeError(f"the mask must be {kinds}, got {mask.dtype}")
    try:
        fits = torch.broadcast_shapes(mask.shape, shape) == tuple(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"the mask must broadcast to the scores' shape {tuple(shape)}, got {tuple(mask.shape)}"
        )

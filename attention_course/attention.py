"""Attention is score → mask → softmax → mix."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attention_course import kernels, masks
from attention_course.inputs import check_attention, check_mask, check_share
from attention_course.scores import scaled_dot

# from queries [..., T_q, d_q] and keys [..., T_k, d_k] to scores [..., T_q, T_k]
Score = Callable[[Tensor, Tensor], Tensor]


def attend(
    query: Float[Tensor, "... T_q d_q"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    *,
    attn_mask: Bool[Tensor, "..."] | None = None,
    score: Score = scaled_dot,
) -> tuple[Float[Tensor, "... T_q d_v"], Float[Tensor, "... T_q T_k"]]:
    """Return ``(context, weights)`` of attention with any score (Bahdanau et al. 2015, equations 5-6).

    Shapes: query [..., T_q, d_q], key [..., T_k, d_k], value [..., T_k, d_v], attn_mask broadcastable
    to [..., T_q, T_k], True = may look; context [..., T_q, d_v], weights [..., T_q, T_k]. ``score``
    is any callable of ``attention_course.scores``' form. Masked keys and values must still be finite.
    Raises a ``ValueError`` or ``TypeError`` for shapes, dtypes or devices that do not fit.
    """
    check_attention(query, key, value)
    scores = score(query, key)
    weights = masked_softmax(scores, attn_mask)
    context = mix(weights, value)
    return context, weights.to(query.dtype)


def masked_softmax(
    scores: Float[Tensor, "... T_q T_k"], attn_mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "... T_q T_k"]:
    """Return softmax over the keys a query may look at; a query that may look nowhere gets zeros.

    Shapes: scores [..., T_q, T_k], attn_mask broadcastable to them, True = may look. A score of -inf
    counts as masked. Computed in float32 at least; the result has the dtype of ``scores``. Raises a
    ``TypeError`` for a mask that is not boolean and a ``ValueError`` for one that does not fit.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if attn_mask is not None:
        check_mask(attn_mask, scores.shape, scores)
        wide = wide.masked_fill(~attn_mask, -torch.inf)
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
    _check(query, key, value, attn_mask, dropout_p, enable_gqa)
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
    # "reference" is the definition: all weights, then one product with the values.
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
    attn_mask = masks.with_structure(attn_mask, query, key, is_causal=is_causal, window=window)
    if enable_gqa:
        key = _repeat_heads(key, query.shape[-3])
    scores = scaled_dot(query, key, scale=scale)
    if attn_mask is not None and attn_mask.is_floating_point():
        return masked_softmax(scores + attn_mask)
    return masked_softmax(scores, attn_mask)


def _repeat_heads(tensor: Tensor, num_heads: int) -> Tensor:
    """Give each query head its key head: [..., H_kv, T, d] -> [..., num_heads, T, d]."""
    return tensor.repeat_interleave(num_heads // tensor.shape[-3], dim=-3)


def _check(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, enable_gqa: bool
) -> None:
    check_attention(query, key, value, enable_gqa=enable_gqa, same_width=True)
    check_share("dropout_p", dropout_p)
    if attn_mask is not None:
        leading = query.shape[:-2]
        if not enable_gqa:
            leading = torch.broadcast_shapes(leading, key.shape[:-2])
        check_mask(attn_mask, (*leading, query.shape[-2], key.shape[-2]), query, floating=True)

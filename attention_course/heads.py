"""Many attentions side by side: ``MultiHeadAttention``.

The three protocols before it say what it can be handed.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from attention_course import masks
from attention_course.attention import attention_weights, scaled_dot_product_attention
from attention_course.inputs import check_share, check_width


@runtime_checkable
class Rotation(Protocol):
    """What turns queries and keys by where they stand, such as ``positions.Rotary``."""

    def __call__(self, x: Float[Tensor, "... h T d_k"], *, start: int) -> Float[Tensor, "... h T d_k"]:
        """Return x turned, for the positions ``start`` onwards."""
        ...


@runtime_checkable
class ScoreBias(Protocol):
    """What adds to the scores, such as ``positions.ALiBi``."""

    def __call__(
        self, query: Float[Tensor, "... h T_q d_k"], key: Float[Tensor, "... h_kv T_k d_k"]
    ) -> Float[Tensor, "... h T_q T_k"]:
        """Return what to add to the scaled scores, the last query standing at the last key."""
        ...


@runtime_checkable
class Cache(Protocol):
    """What causal self-attention asks of a store of earlier keys and values; ``decoding`` has two."""

    #: tokens so far
    length: int
    #: how many of the last tokens are kept; None means all of them
    window: int | None

    def extend(
        self, key: Float[Tensor, "B h_kv T d_k"], value: Float[Tensor, "B h_kv T d_k"]
    ) -> tuple[Float[Tensor, "B h_kv T_k d_k"], Float[Tensor, "B h_kv T_k d_k"]]:
        """Take in the new tokens' rows; return all that the new queries may need."""
        ...

    def spread(self, weights: Float[Tensor, "B h T_q T_k"]) -> Float[Tensor, "B h T_q length"]:
        """Return weights over what ``extend`` returned as weights over all tokens so far, in their order."""
        ...


class MultiHeadAttention(nn.Module):
    """Attention of ``num_heads`` heads of width d_model / num_heads (Vaswani et al. 2017, section 3.2.2).

    With ``num_kv_heads`` below ``num_heads``, groups of query heads share a key and a value head
    (Ainslie et al. 2023); with 1 it is multi-query attention (Shazeer 2019). ``qk_norm`` makes two norms
    for a width, one for every head's queries and one for its keys (Dehghani et al. 2023). ``rotation``
    turns queries and keys by their positions and ``score_bias`` adds to the scores: with either, it is
    self-attention only. ``dropout`` applies to the weights, in training only. Raises a ``ValueError``
    when the heads do not divide.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        bias: bool = True,
        qk_norm: Callable[[int], nn.Module] | None = None,
        rotation: Rotation | None = None,
        score_bias: ScoreBias | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model, got d_model={d_model}, num_heads={num_heads}")
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads, got num_heads={num_heads}, num_kv_heads={num_kv_heads}"
            )
        check_share("dropout", dropout)
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, num_kv_heads
        self.rotation, self.score_bias = rotation, score_bias
        self.dropout = dropout
        d_k = d_model // num_heads
        self.query_projection = nn.Linear(d_model, num_heads * d_k, bias=bias)
        self.key_projection = nn.Linear(d_model, num_kv_heads * d_k, bias=bias)
        self.value_projection = nn.Linear(d_model, num_kv_heads * d_k, bias=bias)
        self.output_projection = nn.Linear(num_heads * d_k, d_model, bias=bias)
        self.query_norm = nn.Identity() if qk_norm is None else qk_norm(d_k)
        self.key_norm = nn.Identity() if qk_norm is None else qk_norm(d_k)

    def forward(
        self,
        query: Float[Tensor, "... T_q d_model"],
        key: Float[Tensor, "... T_k d_model"] | None = None,
        value: Float[Tensor, "... T_k d_model"] | None = None,
        *,
        attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        window: int | None = None,
        need_weights: bool = False,
        cache: Cache | None = None,
    ) -> tuple[Float[Tensor, "... T_q d_model"], Float[Tensor, "... num_heads T_q T_k"] | None]:
        """Return ``(output, weights)``; weights are None unless asked for.

        Shapes: query [..., T_q, d_model], key and value [..., T_k, d_model] -> output [..., T_q,
        d_model], weights [..., num_heads, T_q, T_k]. A missing key is the query (self-attention), a
        missing value the key. ``attn_mask`` is True where a query may look (or floating point, added
        to the scores): [T_q, T_k] for all alike, padding as [..., 1, T_k], and whatever else differs
        from sentence to sentence or from head to head with an axis for the heads, broadcastable to
        [..., num_heads, T_q, T_k]. Without that axis nobody could tell a mask for each sentence from
        one for each head: a ``ValueError``. ``is_causal`` aligns the last query with the last key;
        ``window`` hides keys that lie ``window`` or more positions away.

        With a ``cache``, ``query`` [B, T_q, d_model] holds the new tokens only: their keys and values
        join the cache's, and T_k counts all tokens so far. It serves causal self-attention without
        ``attn_mask``; anything else is a ``ValueError``.
        """
        _check_call(self, key, value, attn_mask, is_causal, window, cache)
        key = query if key is None else key
        value = key if value is None else value
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            check_width(name, tensor, self.d_model, axis="d_model=")
        if attn_mask is not None and 2 < attn_mask.dim() <= query.dim():
            _check_without_heads(attn_mask, query)
            attn_mask = attn_mask.unsqueeze(-3)  # the same for every head

        query = self.query_norm(_split(self.query_projection(query), self.num_heads))  # [..., h, T_q, d_k]
        key = self.key_norm(_split(self.key_projection(key), self.num_kv_heads))  # [..., h_kv, T_k, d_k]
        value = _split(self.value_projection(value), self.num_kv_heads)  # [..., h_kv, T_k, d_k]
        if self.rotation is not None:
            start = 0 if cache is None else cache.length
            query, key = self.rotation(query, start=start), self.rotation(key, start=start)
        if cache is not None:
            key, value = cache.extend(key, value)
        if self.score_bias is not None:
            attn_mask = masks.with_bias(attn_mask, self.score_bias(query, key), query)
        T_q, T_k = query.shape[-2], key.shape[-2]
        if T_q == 1:
            is_causal = False  # the last query sees every key: no mask to build in each step of decoding
        if window is not None and max(T_q, T_k) <= window:
            window = None  # nothing is that far away
        structure = {"is_causal": is_causal, "window": window}
        grouped = self.num_kv_heads != self.num_heads
        context = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=grouped,
            **structure,
        )
        output = self.output_projection(_merge(context))
        if not need_weights:
            return output, None
        # A second pass over the scores: the fused sum above never holds the weights.
        weights = attention_weights(query, key, attn_mask, enable_gqa=grouped, **structure)
        return output, weights if cache is None else cache.spread(weights)


def _split(x: Float[Tensor, "... T width"], num_heads: int) -> Float[Tensor, "... h T d_k"]:
    """Consecutive columns become heads; the heads move in front of the tokens."""
    return x.unflatten(-1, (num_heads, -1)).transpose(-2, -3)


def _merge(x: Float[Tensor, "... h T d_k"]) -> Float[Tensor, "... T width"]:
    """The heads' columns side by side again."""
    return x.transpose(-2, -3).flatten(-2)


def _check_call(
    layer: MultiHeadAttention,
    key: Tensor | None,
    value: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    window: int | None,
    cache: Cache | None,
) -> None:
    """Refuse what a layer's parts, or a cache of earlier keys and values, would silently make wrong."""
    if key is not None and (layer.rotation is not None or layer.score_bias is not None):
        raise ValueError(
            "key must be None with rotation or score_bias: the query's positions say nothing of another "
            "sequence's"
        )
    if cache is None:
        return
    for name, given in (("key", key), ("value", value), ("attn_mask", attn_mask)):
        if given is not None:
            raise ValueError(f"{name} must be None with a cache, which serves causal self-attention only")
    if not is_causal:
        raise ValueError(
            "is_causal must be True with a cache: without it, old outputs change with new tokens"
        )
    if cache.window is not None and cache.window != window:
        raise ValueError(
            f"window must be {cache.window}, which is how many tokens the cache keeps, got {window}"
        )
    if layer.score_bias is not None and cache.window is not None:
        raise ValueError(
            "score_bias needs a cache of all tokens in their order, got one that keeps the last "
            f"{cache.window} as they come"
        )


def _check_without_heads(attn_mask: Tensor, query: Tensor) -> None:
    """Refuse a mask that may be meant for each sentence or for each head, whatever their numbers are."""
    if attn_mask.shape[-3] != 1 and attn_mask.shape[-2] != 1:
        raise ValueError(
            f"attn_mask beside a query {tuple(query.shape)} must have shape [T_q, T_k], [..., 1, T_k] or "
            f"{query.dim() + 1} dimensions, [..., num_heads or 1, T_q, T_k], got {tuple(attn_mask.shape)}: "
            "for a mask of each sentence attn_mask.unsqueeze(-3), for one of each head attn_mask.unsqueeze(0)"
        )

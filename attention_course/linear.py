"""Attention whose sum is taken in another order: keys meet values first, and queries come last.

With a score that is a dot product of features, φ(q)·φ(k), the sum over the keys can be made once for
all queries (Katharopoulos et al. 2020). What is left of the keys and values is a state of fixed size:
``S``, the sum of φ(k)ᵀv, and ``z``, the sum of φ(k).

A feature map must not give negative numbers, else weights are no weights. Inputs narrower than
float32 are widened first, and states are kept wide.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attention_course import masks
from attention_course.device import without_autocast
from attention_course.inputs import check_at_least, check_attention

FeatureMap = Callable[[Tensor], Tensor]

CHUNK = 64


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with autocast off: it would narrow the sums that have just been widened.

    Inputs are checked before, as the check asks whether autocast is on.
    """

    @functools.wraps(function)
    def wide(query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **options: Any) -> Any:
        check_attention(query, key, value, same_width=True)
        with without_autocast(query.device):
            return function(query, key, value, *arguments, **options)

    return wide


class LinearState(NamedTuple):
    """All that causal linear attention keeps of the tokens so far, however many they were."""

    S: Float[Tensor, "... m d_v"]
    z: Float[Tensor, "... m"]


def elu_plus_one(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return x + 1 where x is positive and eˣ elsewhere (Katharopoulos et al. 2020, equation 7).

    ``F.elu(x) + 1`` is the same on paper; in float32 it is 0 below about -17, where this is still
    positive.
    """
    return torch.where(x > 0, x + 1, x.clamp_max(0).exp())


@_wide
def linear_attention(
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    *,
    feature_map: FeatureMap = elu_plus_one,
    attn_mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    chunk: int | None = None,
) -> Float[Tensor, "... T_q d_v"]:
    """Return the values mixed with weights in proportion to φ(q)·φ(k), in time linear in T.

    Katharopoulos et al. 2020, equation 6; with ``is_causal`` equation 12, in chunks of ``chunk``
    tokens (64 unless given; see ``chunked``), the last query aligned with the last key. Shapes: query
    [..., T_q, d_k], key [..., T_k, d_k], value [..., T_k, d_v] -> [..., T_q, d_v]. ``attn_mask`` is True
    for the keys that may be seen, and the same for all queries: [T_k] or [..., 1, T_k], as
    ``masks.padding`` makes it. Masked keys and values must still be finite. A query that sees nothing,
    or nothing it shares a feature with, gets 0. Raises a ``ValueError`` or ``TypeError`` for inputs
    that do not fit.
    """
    q, k, v = _features(query, key, value, feature_map, attn_mask)
    if not is_causal:
        if chunk is not None:
            raise ValueError(f"chunk is for is_causal=True; without, there is one sum, got chunk={chunk}")
        return _read(q, _sums(k, v)).to(value.dtype)
    unseen = max(q.shape[-2] - k.shape[-2], 0)  # queries in front of the first key
    before = max(k.shape[-2] - q.shape[-2], 0)  # keys in front of the first query
    start = _sums(k[..., :before, :], v[..., :before, :])
    context, _ = _chunks(
        q[..., unseen:, :], k[..., before:, :], v[..., before:, :], start, CHUNK if chunk is None else chunk
    )
    return F.pad(context, (0, 0, unseen, 0)).to(value.dtype)


@_wide
def recurrent(
    query: Float[Tensor, "... T d_k"],
    key: Float[Tensor, "... T d_k"],
    value: Float[Tensor, "... T d_v"],
    state: LinearState | None = None,
    *,
    feature_map: FeatureMap = elu_plus_one,
    attn_mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "... T d_v"], LinearState]:
    """Return ``(context, state)`` of causal linear attention, one token after the other.

    Katharopoulos et al. 2020, equations 16 to 20. ``state`` is what an earlier call returned: the
    tokens here come after all that it has seen. Shapes and ``attn_mask`` as in ``linear_attention``, T
    queries and T keys. For gradients take ``chunked``: here autograd keeps a state for every token.
    """
    q, k, v = _features(query, key, value, feature_map, attn_mask)
    state = _checked(state, k, v)
    rows = [_read(q[..., :0, :], state)]  # [..., 0, d_v]: the right shape even without tokens
    for t in range(_one_length(q, k)):
        now = slice(t, t + 1)
        added = _sums(k[..., now, :], v[..., now, :])
        state = LinearState(state.S + added.S, state.z + added.z)
        rows.append(_read(q[..., now, :], state))
    return torch.cat(rows, dim=-2).to(value.dtype), state


@_wide
def chunked(
    query: Float[Tensor, "... T d_k"],
    key: Float[Tensor, "... T d_k"],
    value: Float[Tensor, "... T d_v"],
    state: LinearState | None = None,
    *,
    chunk: int = CHUNK,
    feature_map: FeatureMap = elu_plus_one,
    attn_mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "... T d_v"], LinearState]:
    """Return what ``recurrent`` returns, ``chunk`` tokens at a time.

    A query takes all chunks before its own from a state, and its own chunk by weights, [chunk, chunk].
    All chunks are computed at once; forward and backward hold O(T · chunk) weights and T / chunk
    states, no [T, T]. Shapes as in ``recurrent``. Raises a ``ValueError`` when ``chunk`` is below 1.
    """
    q, k, v = _features(query, key, value, feature_map, attn_mask)
    _one_length(q, k)
    context, state = _chunks(q, k, v, _checked(state, k, v), chunk)
    return context.to(value.dtype), state


@_wide
def linear_attention_quadratic(
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    *,
    feature_map: FeatureMap = elu_plus_one,
    attn_mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
) -> tuple[Float[Tensor, "... T_q d_v"], Float[Tensor, "... T_q T_k"]]:
    """Return ``(context, weights)`` by the definition, every pair of tokens computed: to see the weights.

    Katharopoulos et al. 2020, equation 4 with φ(q)·φ(k) as similarity. Shapes as in
    ``linear_attention``; ``attn_mask`` may be any that broadcasts to [..., T_q, T_k].
    """
    q, k, v = _features(query, key, value, feature_map, None)
    scores = q @ k.mT
    structure = masks.causal(q.shape[-2], k.shape[-2], device=q.device) if is_causal else None
    attn_mask = masks.combine(attn_mask, structure)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, 0.0)
    weights = _divided(scores, scores.sum(-1))
    return (weights @ v).to(value.dtype), weights.to(query.dtype)


def _features(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    attn_mask: Bool[Tensor, "..."] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """φ(query), φ(key) and value, wide; keys behind the mask have no features at all."""
    wide = functools.reduce(torch.promote_types, (query.dtype, key.dtype, value.dtype), torch.float32)
    q, k = feature_map(query.to(wide)), feature_map(key.to(wide))
    if attn_mask is not None:
        k = k.masked_fill(~_over_keys(attn_mask, k), 0.0)
    return q, k, value.to(wide)


def _sums(k: Float[Tensor, "... T m"], v: Float[Tensor, "... T d_v"]) -> LinearState:
    return LinearState(k.mT @ v, k.sum(-2))


def _read(q: Float[Tensor, "... T m"], state: LinearState) -> Float[Tensor, "... T d_v"]:
    """What queries find in a state."""
    return _divided(q @ state.S, (q @ state.z.unsqueeze(-1)).squeeze(-1))


def _divided(sums: Float[Tensor, "... T d"], normaliser: Float[Tensor, "... T"]) -> Float[Tensor, "... T d"]:
    """sums / normaliser, and 0 where the normaliser is 0; gradients stay finite there."""
    nothing = (normaliser == 0).unsqueeze(-1)
    return (sums / normaliser.unsqueeze(-1).masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)


def _chunks(
    q: Float[Tensor, "... T m"],
    k: Float[Tensor, "... T m"],
    v: Float[Tensor, "... T d_v"],
    start: LinearState,
    chunk: int,
) -> tuple[Float[Tensor, "... T d_v"], LinearState]:
    check_at_least(1, chunk=chunk)
    T = q.shape[-2]
    number = -(-T // chunk)
    # Rows of zeros fill up the last chunk: without features, they add nothing to any sum.
    q, k, v = (F.pad(x, (0, 0, 0, number * chunk - T)).unflatten(-2, (number, chunk)) for x in (q, k, v))
    added = _sums(k, v)  # of each chunk: [..., number, m, d_v] and [..., number, m]
    S = torch.cat((start.S.unsqueeze(-3), added.S), dim=-3).cumsum(-3)
    z = torch.cat((start.z.unsqueeze(-2), added.z), dim=-2).cumsum(-2)
    scores = (q @ k.mT).tril()  # [..., number, chunk, chunk]
    sums = q @ S[..., :-1, :, :] + scores @ v
    normaliser = (q @ z[..., :-1, :].unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    context = _divided(sums, normaliser).flatten(-3, -2)[..., :T, :]
    return context, LinearState(S[..., -1, :, :], z[..., -1, :])


def _over_keys(attn_mask: Tensor, k: Tensor) -> Tensor:
    """A mask over keys as a column, [..., T_k, 1]."""
    if attn_mask.dtype != torch.bool:
        raise TypeError(f"attn_mask must be boolean (True = may look), got {attn_mask.dtype}")
    rows = attn_mask.unsqueeze(0) if attn_mask.dim() == 1 else attn_mask
    wanted = (*k.shape[:-2], 1, k.shape[-2])
    try:
        fits = torch.broadcast_shapes(rows.shape, wanted) == wanted
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            "attn_mask must be the same for all queries and broadcast to "
            f"{wanted}, got {tuple(attn_mask.shape)}"
        )
    return rows.mT


def _checked(state: LinearState | None, k: Tensor, v: Tensor) -> LinearState:
    """The state to go on from: the given one if it fits, else that of no tokens."""
    empty = _sums(k[..., :0, :], v[..., :0, :])
    if state is None:
        return empty
    for name, sums, fitting in zip(LinearState._fields, state, empty, strict=True):
        if sums.shape != fitting.shape:
            raise ValueError(f"state.{name} must have shape {tuple(fitting.shape)}, got {tuple(sums.shape)}")
    return state


def _one_length(q: Tensor, k: Tensor) -> int:
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"query and key must have the same length, got {q.shape[-2]} queries and {k.shape[-2]} keys"
        )
    return q.shape[-2]

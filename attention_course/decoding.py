"""Decoding: one token after the other, without computing the past again.

In a causal model nothing that comes later changes the keys and values of a token. A cache keeps them,
so that a step computes those of the new token only. Caches are handed to the model with every call;
no module holds one.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attention_course.device import widest
from attention_course.inputs import check_at_least
from attention_course.kernels import row
from attention_course.positions import Learned
from attention_course.transformer import LanguageModel

Rows = Float[Tensor, "B h_kv T d_k"]
Kept = Float[Tensor, "B h_kv T_k d_k"]
Logits = Float[Tensor, "... vocabulary"]
#: from the next token's logits to the token
Choose = Callable[[Float[Tensor, "B vocabulary"]], Int[Tensor, " B"]]


# Stores of keys and values ----------------------------------------------------------------------


class KeyValueCache:
    """One layer's keys and values of all tokens so far, in room for ``max_length`` of them.

    ``num_kv_heads`` is all that grouped- and multi-query attention need. The room is taken at once
    and never moves: growing a tensor row by row would copy all of it at every step. Raises a
    ``ValueError`` for a size below 1.
    """

    window = None

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        max_length: int,
        d_k: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_at_least(1, batch=batch, num_kv_heads=num_kv_heads, max_length=max_length, d_k=d_k)
        self.keys = torch.empty(batch, num_kv_heads, max_length, d_k, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def extend(self, key: Rows, value: Rows) -> tuple[Kept, Kept]:
        """Store the new tokens' rows; return ``(keys, values)`` of all tokens so far, as views.

        Shapes: key and value [B, h_kv, T, d_k] -> [B, h_kv, length, d_k] each. Raises a ``ValueError``
        or ``TypeError`` for rows that do not fit, and when there is no room for them.
        """
        _check_rows(key, value, self.keys)
        end, max_length = self.length + key.shape[-2], self.keys.shape[-2]
        if end > max_length:
            raise ValueError(
                f"the cache has room for max_length={max_length} tokens and holds {self.length}, "
                f"got {key.shape[-2]} more"
            )
        self.keys[:, :, self.length : end] = key
        self.values[:, :, self.length : end] = value
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def spread(self, weights: Float[Tensor, "B h T_q T_k"]) -> Float[Tensor, "B h T_q length"]:
        """Return ``weights`` as they are: a column for every token already."""
        return weights


class WindowCache:
    """One layer's keys and values of the last ``window`` tokens: a ring of rows for sliding-window attention.

    Token p lies in slot p % ``window``, where it overwrites token p - ``window``: the nearest one that
    it does not see. Raises a ``ValueError`` for a size below 1.
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        window: int,
        d_k: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_at_least(1, batch=batch, num_kv_heads=num_kv_heads, window=window, d_k=d_k)
        self.keys = torch.empty(batch, num_kv_heads, window, d_k, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.window = window
        self.length = 0

    def extend(self, key: Rows, value: Rows) -> tuple[Kept, Kept]:
        """Store the new tokens' rows; return the ``(keys, values)`` that the new queries may see.

        Shapes: key and value [B, h_kv, T, d_k] -> [B, h_kv, T_k, d_k] each. For one new token they are
        views of the ring, T_k = min(length, window), in the order of the slots: softmax does not mind.
        Several new tokens overwrite rows that the first of them still see, so these are copied first,
        in the tokens' order, T_k = min(old length, window - 1) + T, and the window has still to be
        masked. Raises a ``ValueError`` or ``TypeError`` for rows that do not fit.
        """
        _check_rows(key, value, self.keys)
        T = key.shape[-2]
        if T == 1:
            self._write(key, value)
            kept = min(self.length, self.window)
            return self.keys[:, :, :kept], self.values[:, :, :kept]
        past = self._slots(max(0, self.length - self.window + 1), self.length)
        keys = torch.cat((self.keys[:, :, past], key), dim=-2)
        values = torch.cat((self.values[:, :, past], value), dim=-2)
        self._write(key, value)
        return keys, values

    def spread(self, weights: Float[Tensor, "B h T_q T_k"]) -> Float[Tensor, "B h T_q length"]:
        """Return ``weights`` over what ``extend`` returned last with a column for every token so far.

        Tokens that are no longer kept have the weight 0.
        """
        if weights.shape[-2] == 1:  # slots: the oldest token lies where the next one will
            weights = weights.roll(-self.length, dims=-1)
        return F.pad(weights, (self.length - weights.shape[-1], 0))

    def _write(self, key: Rows, value: Rows) -> None:
        T = key.shape[-2]
        if T == 1:
            slots = slice(self.length % self.window, self.length % self.window + 1)
        else:
            key, value = key[:, :, -self.window :], value[:, :, -self.window :]  # no slot twice
            slots = self._slots(self.length + T - key.shape[-2], self.length + T)
        self.keys[:, :, slots] = key
        self.values[:, :, slots] = value
        self.length += T

    def _slots(self, start: int, end: int) -> Int[Tensor, " tokens"]:
        return torch.arange(start, end, device=self.keys.device) % self.window


def caches_for(
    model: LanguageModel, *, batch: int, max_length: int, dtype: torch.dtype | None = None
) -> list[KeyValueCache | WindowCache]:
    """Return an empty cache for each of the model's layers, on its device and unless given in its dtype.

    A layer with a window that is shorter than ``max_length`` gets a ring of that size, any other one
    room for ``max_length`` tokens.
    """
    caches = []
    for layer in model.stack.layers:
        attention, weight = layer.attention, layer.attention.key_projection.weight
        ring = layer.window is not None and layer.window < max_length
        ring = ring and attention.score_bias is None  # which needs the keys in their order
        caches.append(
            (WindowCache if ring else KeyValueCache)(
                batch,
                attention.num_kv_heads,
                layer.window if ring else max_length,
                attention.d_model // attention.num_heads,
                dtype=dtype or weight.dtype,
                device=weight.device,
            )
        )
    return caches


def bytes_per_token(
    *, num_layers: int, num_kv_heads: int, d_k: int, dtype: torch.dtype = torch.float16
) -> int:
    """Return what a cache keeps of one token of one sentence: 2 · num_layers · num_kv_heads · d_k numbers."""
    return 2 * num_layers * num_kv_heads * d_k * dtype.itemsize


def bytes_of(caches: Sequence[KeyValueCache | WindowCache]) -> int:
    """Return how much memory the caches take, filled or not."""
    return sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)


# Choosing a token -------------------------------------------------------------------------------


def greedy(logits: Float[Tensor, "B vocabulary"]) -> Int[Tensor, " B"]:
    """Return the most likely token of each row; among equals the first."""
    return logits.argmax(dim=-1)


def temperature(logits: Logits, t: float) -> Logits:
    """Return logits / t: below 1 sharper, above 1 flatter. Raises a ``ValueError`` unless t is above 0."""
    if not 0.0 < t < math.inf:
        raise ValueError(f"temperature must be above 0 and finite, got {t}; for the limit 0 use greedy")
    return logits / t


def top_k(logits: Logits, k: int) -> Logits:
    """Return the logits with all but the k largest at -inf; of equal ones the first stay.

    With k at or above the size of the vocabulary all stay. Raises a ``ValueError`` for k below 1.
    """
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}")
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    return logits.scatter(-1, order[..., k:], -torch.inf)


def top_p(logits: Logits, p: float) -> Logits:
    """Return the logits with all at -inf but the fewest whose probabilities sum to p (Holtzman et al. 2020).

    They are taken from the most likely downwards, of equal ones the first, and at least one stays.
    Sums are those of the widest dtype the device has. Raises a ``ValueError`` unless p is above 0 and
    at most 1.
    """
    if not 0.0 < p <= 1.0:
        raise ValueError(f"top_p must be above 0 and at most 1, got {p}")
    if p == 1.0:
        return logits  # a rounded sum could reach 1 before the last token
    sorted_logits, order = logits.sort(dim=-1, descending=True, stable=True)
    sums = sorted_logits.to(widest(logits.device)).softmax(dim=-1).cumsum(dim=-1)
    before = F.pad(sums[..., :-1], (1, 0))  # what the more likely ones sum to; 0 for the first
    return sorted_logits.masked_fill(before >= p, -torch.inf).gather(-1, order.argsort(dim=-1))


def sample(
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Choose:
    """Return a choice that draws a token from softmax(logits), after the filters in the order given here.

    The filters are this module's functions, and raise as they do; those that are not given are left
    out. The ``generator`` must be on the logits' device.
    """
    filters = _filters(temperature, top_k, top_p)

    def choose(logits: Float[Tensor, "B vocabulary"]) -> Int[Tensor, " B"]:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        for filtered in filters:
            logits = filtered(logits)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).squeeze(-1)

    return choose


def _filters(t: float, k: int | None, p: float | None) -> list[Callable[[Tensor], Tensor]]:
    filters = [partial(temperature, t=t)]
    if k is not None:
        filters.append(partial(top_k, k=k))
    if p is not None:
        filters.append(partial(top_p, p=p))
    nothing = torch.zeros(1)
    for filtered in filters:
        filtered(nothing)  # a wrong number is refused here, not at the first token
    return filters


# Writing ----------------------------------------------------------------------------------------


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"],
    *,
    steps: int,
    choose: Choose = greedy,
    eos: int | None = None,
) -> Int[Tensor, "B T_new"]:
    """Return the tokens that the model writes behind ``prompt``, each chosen given all before it.

    Shapes: prompt [B, T] -> [B, T_new], T_new = ``steps``; with ``eos`` it ends with the last
    sentence's first ``eos`` if that comes earlier, and what follows a sentence's first ``eos`` is
    ``eos`` too. The prompt goes through the model in one call, then every token in one of its own,
    with a cache that holds the past. Raises a ``ValueError`` for an empty prompt, ``steps`` below 1,
    more tokens than the model has positions, and a model in training mode (call ``model.eval()``).
    """
    _check_task(model, prompt, steps)
    model = row.spread(model)
    batch, T = prompt.shape
    caches = caches_for(  # nobody reads the last token
        model, batch=batch, max_length=T + steps - 1, dtype=_dtype_of_rows(model)
    )
    ended = torch.zeros(batch, dtype=torch.bool, device=prompt.device)
    tokens, new = [], prompt
    for _ in range(steps):
        logits = model(new, caches=caches)[:, -1]  # [B, vocabulary]
        token = choose(logits)  # [B]
        if eos is not None:
            token = token.masked_fill(ended, eos)
            ended = ended | (token == eos)
        tokens.append(token)
        if eos is not None and ended.all():
            break
        new = token[:, None]
    return torch.stack(tokens, dim=1)


def _dtype_of_rows(model: LanguageModel) -> torch.dtype:
    """What the projections give: the weights' dtype, or what autocast makes of float32."""
    weight = model.embedding.table.weight
    kind = weight.device.type
    if weight.dtype == torch.float32 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype


def _check_task(model: LanguageModel, prompt: Tensor, steps: int) -> None:
    if model.training:
        raise ValueError("model must be in evaluation mode, where nothing is dropped: call model.eval()")
    if not model.is_causal:
        raise ValueError("model must be causal, got one in which every token sees all others")
    if prompt.dim() != 2 or prompt.shape[1] == 0:
        raise ValueError(f"prompt must have shape [B, T] with at least one token, got {tuple(prompt.shape)}")
    check_at_least(1, steps=steps)
    positions, needed = model.embedding.positions, prompt.shape[1] + steps - 1
    if isinstance(positions, Learned) and needed > len(positions.table):
        raise ValueError(
            f"a prompt of {prompt.shape[1]} tokens and steps={steps} need {needed} positions, "
            f"the model has {len(positions.table)}"
        )


def _check_rows(key: Tensor, value: Tensor, store: Tensor) -> None:
    B, h_kv, _, d_k = store.shape
    for name, rows in (("key", key), ("value", value)):
        if rows.dim() != 4 or rows.shape[:2] != (B, h_kv) or rows.shape[-1] != d_k:
            raise ValueError(
                f"{name} must have shape [B={B}, num_kv_heads={h_kv}, T, d_k={d_k}], got {tuple(rows.shape)}"
            )
        if rows.dtype != store.dtype:
            raise TypeError(f"{name} must have the cache's dtype {store.dtype}, got {rows.dtype}")
        if rows.device != store.device:
            raise ValueError(f"{name} must be on the cache's device {store.device}, got {rows.device}")
        if rows.requires_grad:
            raise ValueError(f"{name} must not require a gradient: use a cache under torch.no_grad()")
    if key.shape != value.shape:
        raise ValueError(
            "key and value must have the same length, got "
            f"key {tuple(key.shape)} and value {tuple(value.shape)}"
        )

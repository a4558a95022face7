"""Attention tile by tile: the online softmax in plain PyTorch, forward and backward.

No table of T_q × T_k numbers is ever held, only one tile of it. Each tile gives an answer of its own,
and answers merge by the logarithms of their sums of exponentials (lse). The forward pass leaves the
context and one lse for each query; from these the backward pass makes each tile's weights again.
After FlashAttention-2 (Dao 2023, algorithms 1 and 2).

Query i stands at position i + T_k - T_q: the last query meets the last key. It may see the keys from
``back`` positions before it to ``ahead`` positions after it, so that causal is ahead = 0 and a window
of w is back = w - 1. Tiles in which no query may see any key are not visited.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_course.device import without_autocast
from attention_course.kernels.mapped import OneByOne
from attention_course.kernels.once import refused
from attention_course.kernels.online import Partial, merge

#: Queries and keys of a tile. Eight heads of float32 make 4 MB forward, and twice 2 MB backward: larger
#: tiles fall out of a processor's cache, smaller ones cost more calls.
FORWARD, BACKWARD = (128, 1024), (256, 256)


def tiled(
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    attn_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None,
    *,
    is_causal: bool,
    scale: float | None,
    window: int | None,
    enable_gqa: bool,
) -> Float[Tensor, "... T_q d_v"]:
    """Return the context, with the memory of one tile beside what comes in and goes out.

    Inputs are taken to be checked; shapes as in ``attention.scaled_dot_product_attention``. Computed
    in float32 at least. Differentiable once, in query, key and value.
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, dim=-3) for x in (key, value))
    leading = query.shape[:-2]
    if not leading == key.shape[:-2] == value.shape[:-2]:
        leading = torch.broadcast_shapes(leading, key.shape[:-2], value.shape[:-2])  # imports 30 MB of sympy
    wide = torch.promote_types(torch.promote_types(query.dtype, value.dtype), torch.float32)
    q, k, v = (
        x.to(wide).expand(*leading, *x.shape[-2:]).reshape(math.prod(leading), *x.shape[-2:])
        for x in (query, key, value)
    )
    T_q, T_k = q.shape[1], k.shape[1]
    if attn_mask is not None:
        attn_mask = attn_mask.detach().expand(*leading, T_q, T_k)  # a view: only tiles of it are laid out
    limit = T_q + T_k if window is None else window - 1
    tiles = Tiles(T_q, T_k, back=limit, ahead=0 if is_causal else limit)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    with without_autocast(q.device):  # it would narrow what was widened above
        context, _ = _Tiled.apply(q, k, v, attn_mask, scale, tiles)
    return context.to(value.dtype).reshape(*leading, T_q, value.shape[-1])


@dataclass(frozen=True)
class Tiles:
    """Which tiles of [T_q, T_k] are visited, and what is hidden within one."""

    T_q: int
    T_k: int
    back: int
    ahead: int
    mask: Bool[Tensor, "... T_q T_k"] | Float[Tensor, "... T_q T_k"] | None = None

    def visit(self, rows: int, columns: int) -> Iterator[tuple[slice, list[slice]]]:
        """Yield each block of queries, with the blocks of keys in which one of them may see one."""
        shift = self.T_k - self.T_q
        for first in range(0, self.T_q, rows):
            last = min(first + rows, self.T_q)
            begin = max(0, first + shift - self.back)
            end = min(self.T_k, last + shift + self.ahead)
            yield slice(first, last), [slice(a, min(a + columns, end)) for a in range(begin, end, columns)]

    def hide(self, scores: Float[Tensor, "heads rows columns"], i: slice, j: slice) -> bool:
        """Put -inf where query i may not see key j, in place; return whether any query may see none."""
        for part, hidden in self._out_of_reach(i, j, scores.device):
            scores[:, :, part].masked_fill_(hidden, -torch.inf)
        if self.mask is not None:
            tile = self.mask[..., i, j].reshape(scores.shape)
            if tile.dtype == torch.bool:
                scores.masked_fill_(~tile, -torch.inf)
            else:
                scores.add_(tile)
            return True
        shift = self.T_k - self.T_q
        first, last = i.start + shift, i.stop - 1 + shift  # the positions of the first and the last query
        return first + self.ahead < j.start or last - self.back >= j.stop

    def _out_of_reach(
        self, i: slice, j: slice, device: torch.device
    ) -> Iterator[tuple[slice, Bool[Tensor, "rows part"]]]:
        """Only the columns that some query does not reach, on either side: most tiles have none."""
        shift = self.T_k - self.T_q
        at = torch.arange(i.start + shift, i.stop + shift, device=device).unsqueeze(-1)
        seen_by_all = i.start + shift + self.ahead  # the last key that every query reaches ahead
        if j.stop - 1 > seen_by_all:
            start = max(j.start, seen_by_all + 1)
            columns = torch.arange(start, j.stop, device=device)
            yield slice(start - j.start, None), columns > at + self.ahead
        seen_by_all = i.stop - 1 + shift - self.back  # the first key that every query reaches back
        if j.start < seen_by_all:
            stop = min(j.stop, seen_by_all)
            columns = torch.arange(j.start, stop, device=device)
            yield slice(0, stop - j.start), columns < at - self.back


class _Tiled(OneByOne):
    """q [heads, T_q, d_k], k [heads, T_k, d_k], v [heads, T_k, d_v] -> context [heads, T_q, d_v], lse."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, scale: float, tiles: Tiles
    ) -> tuple[Tensor, Tensor]:
        tiles = replace(tiles, mask=attn_mask)
        context = q.new_zeros(*q.shape[:2], v.shape[-1])
        lse = q.new_full(q.shape[:2], -torch.inf)
        buffer = _Buffer(q, tiles, FORWARD)
        for i, blocks in tiles.visit(*FORWARD):
            scaled = q[:, i] * scale
            parts = (_answer(scaled, k[:, j], v[:, j], tiles, i, j, buffer) for j in blocks)
            answer = next(parts, None)
            if answer is None:
                continue  # nobody in this block sees any key
            for part in parts:
                answer = merge(answer, part)
            context[:, i], lse[:, i] = answer
        return context, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.scale, ctx.tiles = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)  # autograd sees when one is changed

    @staticmethod
    def backward(ctx: Any, d_context: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _TiledGradients.apply(d_context, *ctx.saved_tensors, ctx.scale, ctx.tiles)
        return *gradients, None, None, None


class _TiledGradients(OneByOne):
    """d_context [heads, T_q, d_v], and what ``_Tiled`` took and gave -> the gradients of q, k and v."""

    @staticmethod
    def forward(
        d_context: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None,
        context: Tensor,
        lse: Tensor,
        scale: float,
        tiles: Tiles,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tiles = replace(tiles, mask=attn_mask)
        d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        # The softmax's Jacobian needs Σ_j w_j dw_j of each query: its context times its context's gradient.
        mean = (d_context * context).sum(-1, keepdim=True)
        lse = lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1)  # a blind query: exp(-inf - 0) is 0
        for_weights, for_scores = _Buffer(q, tiles, BACKWARD), _Buffer(q, tiles, BACKWARD)
        for i, blocks in tiles.visit(*BACKWARD):
            scaled, d_answer = q[:, i] * scale, d_context[:, i]
            d_scaled = torch.zeros_like(scaled)
            for j in blocks:
                weights = torch.bmm(scaled, k[:, j].mT, out=for_weights(i, j))
                tiles.hide(weights, i, j)
                weights.sub_(lse[:, i]).exp_()
                d_v[:, j] += weights.mT @ d_answer
                d_scores = torch.bmm(d_answer, v[:, j].mT, out=for_scores(i, j))
                d_scores.sub_(mean[:, i]).mul_(weights)
                d_scaled.baddbmm_(d_scores, k[:, j])
                d_k[:, j] += d_scores.mT @ scaled
            torch.mul(d_scaled, scale, out=d_q[:, i])
        return d_q, d_k, d_v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass  # it is not differentiated

    backward = staticmethod(refused)


def _answer(
    scaled: Tensor, k: Tensor, v: Tensor, tiles: Tiles, i: slice, j: slice, buffer: "_Buffer"
) -> Partial:
    """What the queries of a tile get from its keys alone."""
    scores = torch.bmm(scaled, k.mT, out=buffer(i, j))
    some_blind = tiles.hide(scores, i, j)
    largest = scores.amax(-1)
    weights = torch.softmax(scores, -1, out=scores)
    if some_blind:
        weights.masked_fill_((largest == -torch.inf).unsqueeze(-1), 0.0)  # they came out as NaN
    # The largest weight is exp(0) / Σ exp(score - largest): its logarithm gives the sum away.
    lse = largest - weights.amax(-1).log()
    if some_blind:
        lse = lse.masked_fill(largest == -torch.inf, -torch.inf)
    return Partial(torch.bmm(weights, v), lse)


class _Buffer:
    """The memory of one tile, used for all of them: fresh pages for each would cost more than the sums."""

    def __init__(self, like: Tensor, tiles: Tiles, shape: tuple[int, int]) -> None:
        self.heads = len(like)
        rows, columns = min(shape[0], tiles.T_q), min(shape[1], tiles.T_k)
        self.memory = like.new_empty(self.heads * rows * columns)

    def __call__(self, i: slice, j: slice) -> Float[Tensor, "heads rows columns"]:
        shape = (self.heads, i.stop - i.start, j.stop - j.start)
        return self.memory[: math.prod(shape)].view(shape)

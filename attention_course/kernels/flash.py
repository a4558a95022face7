"""What runs on the GPU: FlashAttention-2 in Triton, one program for each block of queries or of keys.

A program is the loop of ``tiled`` for a single block, and hundreds of programs run at once. Its block
stays on the chip while it walks over the blocks of the other side; scores and weights never reach the
GPU's main memory. After Dao 2023 (algorithms 1 and 2), but with a pass for the queries and one for the
keys in the backward, so that no two programs ever write to the same place.

In all of it query i stands at position i + T_k - T_q: the last query meets the last key. A query sees
the keys from BACK positions before it to AHEAD after it. Causal is AHEAD = 0, a window of w is
BACK = w - 1, no limit is a number larger than any sequence. Heads [T, D] lie one after the other in
memory, and GROUP query heads share one key head. Scores are multiplied by ``scale2``, the scale times
log₂e, so that their exponentials are powers of 2: a GPU has hardware for those.

``attention_course.kernels.triton`` imports this module when it is first used: it needs Triton.
"""

from typing import no_type_check  # Triton reads the source of these functions: nothing may wrap them

import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret

#: Queries per block, keys per block, warps, stages. Which are fastest, and which fit at all, depends on
#: width, dtype and GPU: Triton tries all of them once. The interpreter gets small ones, with many edges.
_ON_A_GPU = ((128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (32, 32, 4, 2))


def _fitting(configs, named, **_):
    """Float32 stays out of the tensor cores, which would round it: without them large blocks do not fit."""
    small = named["query_ptr"].element_size() == 4
    return [config for config in configs if (config.kwargs["BLOCK_Q"] == 32) == small]


_tuned = triton.autotune(
    [
        triton.Config({"BLOCK_Q": q, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
        for q, k, warps, stages in (((16, 32, 4, 1),) if INTERPRETED else _ON_A_GPU)
    ],
    key=["D"],
    prune_configs_by={"early_config_prune": _fitting},
)


@triton.jit
@no_type_check
def _load(head, at, T, D: tl.constexpr, GUARDED: tl.constexpr):
    """The rows ``at`` of one head; with GUARDED, zeros beyond its end."""
    pointers = head + at[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(pointers, mask=at[:, None] < T, other=0.0) if GUARDED else tl.load(pointers)


@triton.jit
@no_type_check
def _store(head, at, T, rows, D: tl.constexpr):
    pointers = head + at[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(pointers, rows.to(head.dtype.element_ty), mask=at[:, None] < T)


@triton.jit
@no_type_check
def _spans(first, last, T, back, ahead, BLOCK: tl.constexpr):
    """Four bounds in 0..T: between the outer two, some of first..last see something.

    Between the inner two, which are bounds of blocks, all of them see everything: no mask needed.
    """
    begin = tl.maximum(first - back, 0) // BLOCK * BLOCK
    end = tl.maximum(tl.minimum(last + ahead + 1, T), begin)
    full_begin = tl.minimum(tl.cdiv(tl.maximum(last - back, 0), BLOCK) * BLOCK, end)
    full_end = tl.maximum(tl.minimum(first + ahead + 1, T), 0) // BLOCK * BLOCK
    return begin, full_begin, tl.maximum(full_end, full_begin), end


@triton.jit
@no_type_check
def _scores(
    query, key, position, key_at, T_k, scale2, BACK: tl.constexpr, AHEAD: tl.constexpr, MASKED: tl.constexpr
):
    """[BLOCK_Q, BLOCK_K]; -inf where a query may not look."""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale2  # float32 stays float32
    if MASKED:
        distance = position[:, None] - key_at[None, :]
        seen = (distance <= BACK) & (distance >= -AHEAD) & (key_at[None, :] < T_k)
        scores = tl.where(seen, scores, float("-inf"))
    return scores


@_tuned
@triton.jit
@no_type_check
def forward(
    query_ptr, key_ptr, value_ptr, context_ptr, lse_ptr, scale2, T_q, T_k,
    GROUP: tl.constexpr, BACK: tl.constexpr, AHEAD: tl.constexpr, D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one block of queries of one head walks over all keys that it may see."""
    blocks = tl.cdiv(T_q, BLOCK_Q)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    start = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_Q  # the last see most when causal: they go first
    at = start + tl.arange(0, BLOCK_Q)
    position = at + T_k - T_q
    query = _load(query_ptr + head * T_q * D, at, T_q, D, True)
    key_head = key_ptr + head // GROUP * T_k * D
    value_head = value_ptr + head // GROUP * T_k * D

    m = tl.full([BLOCK_Q], float("-inf"), tl.float32)  # largest score so far
    l = tl.zeros([BLOCK_Q], tl.float32)  # sum of 2^(score - m) so far
    context = tl.zeros([BLOCK_Q, D], tl.float32)  # not yet divided by l
    last = tl.minimum(start + BLOCK_Q, T_q) - 1
    bounds = _spans(start + T_k - T_q, last + T_k - T_q, T_k, BACK, AHEAD, BLOCK_K)
    for part in tl.static_range(3):  # edge, inside, edge: masks cost time at the edges only
        for key_start in range(bounds[part], bounds[part + 1], BLOCK_K):
            key_at = key_start + tl.arange(0, BLOCK_K)
            key = _load(key_head, key_at, T_k, D, part != 1)
            scores = _scores(query, key, position, key_at, T_k, scale2, BACK, AHEAD, part != 1)
            larger = tl.maximum(m, tl.max(scores, 1))
            shift = tl.where(larger == float("-inf"), 0.0, larger)  # nothing seen yet; -inf + inf is NaN
            rescale = tl.exp2(m - shift)  # what was summed under the old maximum is worth this much now
            weights = tl.exp2(scores - shift[:, None])
            l = l * rescale + tl.sum(weights, 1)
            value = _load(value_head, key_at, T_k, D, part != 1)
            context = context * rescale[:, None]
            context += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            m = larger

    blind = l == 0.0  # a query that may look nowhere
    context = context / tl.where(blind, 1.0, l)[:, None]
    _store(context_ptr + head * T_q * D, at, T_q, context, D)
    # All that the backward needs: log₂ of the sum. For a blind query +inf, as 2^(anything - inf) is 0.
    lse = tl.where(blind, float("inf"), m + tl.log2(tl.where(blind, 1.0, l)))
    tl.store(lse_ptr + head * T_q + at, lse, mask=at < T_q)


@triton.jit
@no_type_check
def _weights_and_slopes(
    query, key, value, slope, lse, total, position, key_at, T_k, scale2,
    BACK: tl.constexpr, AHEAD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The weights, made again from the sum that was kept, and the loss's slope in the scaled scores."""
    scores = _scores(query, key, position, key_at, T_k, scale2, BACK, AHEAD, MASKED)
    weights = tl.exp2(scores - lse[:, None])
    slope_weights = tl.dot(slope, tl.trans(value), input_precision="ieee")
    return weights, weights * (slope_weights - total[:, None])


@_tuned
@triton.jit
@no_type_check
def backward_query(
    query_ptr, key_ptr, value_ptr, slope_ptr, lse_ptr, total_ptr, d_query_ptr, scale, scale2, T_q, T_k,
    GROUP: tl.constexpr, BACK: tl.constexpr, AHEAD: tl.constexpr, D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: the gradient of one block of queries, on the same walk as ``forward``."""
    blocks = tl.cdiv(T_q, BLOCK_Q)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    start = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_Q
    at = start + tl.arange(0, BLOCK_Q)
    position = at + T_k - T_q
    query = _load(query_ptr + head * T_q * D, at, T_q, D, True)
    slope = _load(slope_ptr + head * T_q * D, at, T_q, D, True)
    lse = tl.load(lse_ptr + head * T_q + at, mask=at < T_q, other=float("inf"))
    total = tl.load(total_ptr + head * T_q + at, mask=at < T_q, other=0.0)
    key_head = key_ptr + head // GROUP * T_k * D
    value_head = value_ptr + head // GROUP * T_k * D

    d_query = tl.zeros([BLOCK_Q, D], tl.float32)
    last = tl.minimum(start + BLOCK_Q, T_q) - 1
    bounds = _spans(start + T_k - T_q, last + T_k - T_q, T_k, BACK, AHEAD, BLOCK_K)
    for part in tl.static_range(3):
        for key_start in range(bounds[part], bounds[part + 1], BLOCK_K):
            key_at = key_start + tl.arange(0, BLOCK_K)
            key = _load(key_head, key_at, T_k, D, part != 1)
            value = _load(value_head, key_at, T_k, D, part != 1)
            _, slope_scores = _weights_and_slopes(
                query, key, value, slope, lse, total, position, key_at, T_k, scale2, BACK, AHEAD, part != 1
            )
            d_query += tl.dot(slope_scores.to(key.dtype), key, input_precision="ieee")
    _store(d_query_ptr + head * T_q * D, at, T_q, d_query * scale, D)


@_tuned
@triton.jit
@no_type_check
def backward_key(
    query_ptr, key_ptr, value_ptr, slope_ptr, lse_ptr, total_ptr, d_key_ptr, d_value_ptr, scale, scale2,
    T_q, T_k, GROUP: tl.constexpr, BACK: tl.constexpr, AHEAD: tl.constexpr, D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: the gradients of one block of keys and values, over all queries that see them."""
    blocks = tl.cdiv(T_k, BLOCK_K)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK_K
    key_at = start + tl.arange(0, BLOCK_K)
    key = _load(key_ptr + head * T_k * D, key_at, T_k, D, True)
    value = _load(value_ptr + head * T_k * D, key_at, T_k, D, True)

    d_key = tl.zeros([BLOCK_K, D], tl.float32)
    d_value = tl.zeros([BLOCK_K, D], tl.float32)
    last = tl.minimum(start + BLOCK_K, T_k) - 1
    # Keys count from the first query here, and those who see a key stand from AHEAD before to BACK after.
    bounds = _spans(start - (T_k - T_q), last - (T_k - T_q), T_q, AHEAD, BACK, BLOCK_Q)
    for member in range(GROUP):
        row = (head * GROUP + member) * T_q
        for part in tl.static_range(3):
            for query_start in range(bounds[part], bounds[part + 1], BLOCK_Q):
                at = query_start + tl.arange(0, BLOCK_Q)
                query = _load(query_ptr + row * D, at, T_q, D, part != 1)
                slope = _load(slope_ptr + row * D, at, T_q, D, part != 1)
                lse = tl.load(lse_ptr + row + at, mask=at < T_q, other=float("inf"))
                total = tl.load(total_ptr + row + at, mask=at < T_q, other=0.0)
                weights, slope_scores = _weights_and_slopes(
                    query, key, value, slope, lse, total, at + T_k - T_q, key_at, T_k, scale2,
                    BACK, AHEAD, part != 1,
                )  # fmt: skip
                d_value += tl.dot(tl.trans(weights.to(slope.dtype)), slope, input_precision="ieee")
                d_key += tl.dot(tl.trans(slope_scores.to(query.dtype)), query, input_precision="ieee")
    _store(d_key_ptr + head * T_k * D, key_at, T_k, d_key * scale, D)
    _store(d_value_ptr + head * T_k * D, key_at, T_k, d_value, D)

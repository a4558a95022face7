"""Additive scores block by block: the table [B, T_q, T_k, H] of tanhs is never held at once."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attention_course.kernels.mapped import OneByOne

#: Numbers in a block: small enough to stay in a processor's cache between the passes over it; on a GPU,
#: which has no such cache and pays for each launch, as many as make one worth it.
BLOCK, BLOCK_ELSEWHERE = 1 << 18, 1 << 26


def additive_scores(
    query: Float[Tensor, "... T_q H"], key: Float[Tensor, "... T_k H"], v: Float[Tensor, " H"]
) -> Float[Tensor, "... T_q T_k"]:
    """Return vᵀ tanh(q + k) for projected queries and keys (Bahdanau et al. 2015, appendix A.1.2).

    Shapes: query [..., T_q, H], key [..., T_k, H], v [H] -> [..., T_q, T_k]; leading dimensions
    broadcast. The memory beside the result is that of one block, in the backward pass too, where the
    tanhs are computed again. A second derivative builds the table after all.
    """
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query, key = (
        x.expand(*leading, *x.shape[-2:]).reshape(math.prod(leading), *x.shape[-2:]) for x in (query, key)
    )
    return _AdditiveScores.apply(query, key, v).reshape(*leading, *query.shape[1:2], *key.shape[1:2])


class _AdditiveScores(OneByOne):
    """query [N, T_q, H], key [N, T_k, H], v [H] -> scores [N, T_q, T_k]."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        scores = query.new_empty(len(query), query.shape[1], key.shape[1])
        for n, i, tanh in _tanhs(query, key):
            torch.matmul(tanh, v, out=scores[n, i])
        return scores

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, d_scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _AdditiveGradients.apply(*ctx.saved_tensors, d_scores)


class _AdditiveGradients(OneByOne):
    """The same and d_scores [N, T_q, T_k] -> the gradients of query, key and v."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, v: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # With t = tanh(q + k) and s = v·t: ds/dq = ds/dk = v (1 - t²), so that every sum over
        # (1 - t²) is a sum of d_scores less the same sum weighted with t².
        d_v = torch.zeros_like(v)
        squares_q = torch.empty_like(query)  # Σ_j d_scores t²
        squares_k = torch.zeros_like(key)  # Σ_i d_scores t²
        for n, i, tanh in _tanhs(query, key):
            d = d_scores[n, i]  # [rows, T_k] of one sentence
            d_v += torch.mv(tanh.flatten(0, 1).mT, d.flatten())
            tanh.square_().mul_(d.unsqueeze(-1))
            squares_q[n, i] = tanh.sum(1)
            squares_k[n] += tanh.sum(0)
        d_query = (d_scores.sum(2).unsqueeze(-1) - squares_q) * v
        d_key = (d_scores.sum(1).unsqueeze(-1) - squares_k) * v
        return d_query, d_key, d_v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return torch.func.vjp(_gradients, *ctx.saved_tensors)[1](gradients)


def _gradients(query: Tensor, key: Tensor, v: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What ``_AdditiveGradients`` computes, with the table [N, T_q, T_k, H] and so differentiable again."""
    tanh = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh()
    d = d_scores.unsqueeze(-1)
    d_pairs = d * (1 - tanh.square()) * v
    return d_pairs.sum(-2), d_pairs.sum(-3), (d * tanh).sum((0, 1, 2))


def _tanhs(query: Tensor, key: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield (n, rows, tanh(q_i + k_j) as [rows, T_k, H]) over all blocks; the next overwrites the last."""
    N, T_q, H = query.shape
    T_k = key.shape[1]
    numbers = BLOCK if query.device.type == "cpu" else BLOCK_ELSEWHERE
    rows = max(1, numbers // max(1, T_k * H))
    buffer = query.new_empty(min(rows, T_q), T_k, H)
    for n in range(N):
        for first in range(0, T_q, rows):
            i = slice(first, min(first + rows, T_q))
            block = buffer[: i.stop - i.start]
            yield n, i, torch.add(query[n, i].unsqueeze(1), key[n], out=block).tanh_()

"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal

NAME = "03_scaled_dot_product"


def split_heads(generator: Generator, batch: int, length: int, heads: int, width: int) -> Tensor:
    """[batch, heads, length, width], laid out in memory as split heads are: not contiguous."""
    return normal(generator, batch, length, heads, width).transpose(1, 2)


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / query.shape[-1] ** 0.5


def causal(scores: Tensor) -> Tensor:
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf)


def softmax(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def softmax_over(axis: int):
    def softmax(scores: Tensor) -> Tensor:
        powers = torch.exp(scores - scores.amax(axis, keepdim=True))
        return powers / powers.sum(axis, keepdim=True)

    return softmax


def softmax_unstable(scores: Tensor) -> Tensor:
    powers = torch.exp(scores)
    return powers / powers.sum(-1, keepdim=True)


def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = softmax(scaled_scores(query, key))
    return weights @ value, weights

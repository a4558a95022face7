"""One small head that looks things up, in many copies: runs that stand side by side in one tensor.

The first dimension of every weight counts the runs. Adam works entry by entry, so they do not mix.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class Heads(nn.Module):
    """The weights of ``runs`` independent heads; each starts from its own.

    Entries of W_Q and W_K start with variance 1/d_model, so that queries and keys have entries of
    variance 1, as in the derivation of √d_k.
    """

    def __init__(self, runs: int, d_k: int, *, keys: int, values: int, seed: int, d_model: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, deviation: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(runs, *shape, generator=generator) * deviation)

        # An item is the sum of two embeddings; each carries half of the item's variance of 1.
        self.key_embedding = normal(keys, d_model, deviation=math.sqrt(0.5))
        self.value_embedding = normal(values, d_model, deviation=math.sqrt(0.5))
        self.asked_embedding = normal(keys, d_model, deviation=1.0)
        self.w_query = normal(d_model, d_k, deviation=1 / math.sqrt(d_model))
        self.w_key = normal(d_model, d_k, deviation=1 / math.sqrt(d_model))
        self.w_value = normal(d_model, d_model, deviation=1 / math.sqrt(d_model))
        self.w_answer = normal(d_model, values, deviation=1 / math.sqrt(d_model))

    def project(
        self, key: Int[Tensor, "B items"], value: Int[Tensor, "B items"], asked: Int[Tensor, "B questions"]
    ) -> tuple[
        Float[Tensor, "runs B questions d_k"],
        Float[Tensor, "runs B items d_k"],
        Float[Tensor, "runs B items d_model"],
    ]:
        """Return queries of what is asked, and keys and values of the items, by each run's weights."""
        items = self.key_embedding[:, key] + self.value_embedding[:, value]
        asked = self.asked_embedding[:, asked]
        return _each(asked, self.w_query), _each(items, self.w_key), _each(items, self.w_value)

    def answer(
        self, context: Float[Tensor, "runs B questions d_model"]
    ) -> Float[Tensor, "runs B questions values"]:
        """Return logits over the values."""
        return _each(context, self.w_answer)


def _each(x: Float[Tensor, "runs B T d"], weight: Float[Tensor, "runs d e"]) -> Float[Tensor, "runs B T e"]:
    """x @ weight, each run with its own weight, as one product per run."""
    return torch.einsum("rbtd,rde->rbte", x, weight)


def summed_loss(
    logits: Float[Tensor, "runs *batch values"], answer: Int[Tensor, "*batch"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy summed over the runs, so that no run's gradient sees another's."""
    runs = len(logits)
    return F.cross_entropy(logits.flatten(0, -2), answer.flatten().repeat(runs)) * runs


def right(
    logits: Float[Tensor, "runs *batch values"], answer: Int[Tensor, "*batch"]
) -> Float[Tensor, " runs"]:
    """Return the share of right answers of each run."""
    return (logits.argmax(-1) == answer).flatten(1).float().mean(1)

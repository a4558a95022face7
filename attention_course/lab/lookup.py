"""A look-up that only attention can do: sixteen items with a key and a value each; one key is asked for.

Chapter 3 trains many copies of one small head on it, side by side in one tensor: the first
dimension of every weight counts the runs. Adam works entry by entry, so the runs do not mix.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.attention import masked_softmax
from attention_course.lab.training import train
from attention_course.scores import scaled_dot

ITEMS, KEYS, VALUES = 16, 32, 16


class Lookup(NamedTuple):
    """A batch: each item's key and value, the key asked for, and the value that belongs to it."""

    key: Int[Tensor, "B items"]
    value: Int[Tensor, "B items"]
    asked: Int[Tensor, " B"]
    answer: Int[Tensor, " B"]


def draw(size: int, generator: torch.Generator) -> Lookup:
    """Return ``size`` look-ups: 16 distinct keys of 32, 16 values drawn anew, one item asked for."""
    key = torch.rand(size, KEYS, generator=generator).argsort(-1)[:, :ITEMS]
    value = torch.randint(VALUES, (size, ITEMS), generator=generator)
    item = torch.randint(ITEMS, (size, 1), generator=generator)
    return Lookup(key, value, key.gather(1, item).squeeze(1), value.gather(1, item).squeeze(1))


def batches(size: int, seed: int) -> Iterator[Lookup]:
    """Return an endless stream of fresh batches, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield draw(size, generator)


class OneHead(nn.Module):
    """``runs`` independent heads that answer look-ups; every run starts from its own weights.

    Entries of W_Q and W_K start with variance 1/d_model, so that queries and keys have entries of
    variance 1, as in the derivation of √d_k. ``scale`` is what scores are multiplied by.
    """

    def __init__(self, runs: int, d_k: int, *, scale: float, seed: int, d_model: int = 64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, deviation: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(runs, *shape, generator=generator) * deviation)

        self.scale = scale
        # An item is the sum of two embeddings; each carries half of the item's variance of 1.
        self.key_embedding = normal(KEYS, d_model, deviation=math.sqrt(0.5))
        self.value_embedding = normal(VALUES, d_model, deviation=math.sqrt(0.5))
        self.asked_embedding = normal(KEYS, d_model, deviation=1.0)
        self.w_query = normal(d_model, d_k, deviation=1 / math.sqrt(d_model))
        self.w_key = normal(d_model, d_k, deviation=1 / math.sqrt(d_model))
        self.w_value = normal(d_model, d_model, deviation=1 / math.sqrt(d_model))
        self.w_answer = normal(d_model, VALUES, deviation=1 / math.sqrt(d_model))

    def forward(
        self, batch: Lookup
    ) -> tuple[Float[Tensor, "runs B values"], Float[Tensor, "runs B 1 items"]]:
        """Return ``(logits, weights)`` over the 16 values and over the 16 items."""
        items = self.key_embedding[:, batch.key] + self.value_embedding[:, batch.value]
        asked = self.asked_embedding[:, batch.asked].unsqueeze(-2)  # [runs, B, 1, d_model]
        query = _project(asked, self.w_query)  # [runs, B, 1, d_k]
        key = _project(items, self.w_key)  # [runs, B, items, d_k]
        value = _project(items, self.w_value)  # [runs, B, items, d_model]
        weights = masked_softmax(scaled_dot(query, key, scale=self.scale))  # [runs, B, 1, items]
        context = (weights @ value).squeeze(-2)  # [runs, B, d_model]
        return context @ self.w_answer, weights


def _project(
    x: Float[Tensor, "runs B T d"], weight: Float[Tensor, "runs d e"]
) -> Float[Tensor, "runs B T e"]:
    """x @ weight, each run with its own weight, as one product per run."""
    return torch.einsum("rbtd,rde->rbte", x, weight)


def loss(model: OneHead, batch: Lookup) -> Float[Tensor, ""]:
    """Return the cross-entropy summed over the runs, so that no run's gradient sees another's."""
    logits, _ = model(batch)
    return F.cross_entropy(logits.flatten(0, 1), batch.answer.repeat(len(logits))) * len(logits)


@torch.no_grad()
def accuracy(model: OneHead, batch: Lookup) -> Float[Tensor, " runs"]:
    """Return the share of right answers of each run."""
    logits, _ = model(batch)
    return (logits.argmax(-1) == batch.answer).float().mean(-1)


def trial(d_k: int, scaled: bool, learning_rate: float, *, steps: int = 400, runs: int = 3) -> dict[str, Any]:
    """Return accuracy [runs], entropy at the start, losses per run and seconds of one setting.

    Accuracy is measured on 2000 look-ups that no run is trained on.
    """
    unseen = draw(2000, torch.Generator().manual_seed(1))
    model = OneHead(runs, d_k, scale=1 / math.sqrt(d_k) if scaled else 1.0, seed=2)
    with torch.no_grad():
        entropy = torch.special.entr(model(unseen)[1]).sum(-1).mean().item()
    stream = batches(32, seed=3)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, clip=math.inf)
    return {
        "accuracy": accuracy(model, unseen),
        "entropy": entropy,
        "loss": [value / runs for value in history.losses],
        "seconds": history.seconds,
    }

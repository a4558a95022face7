"""A look-up that only attention can do: sixteen items with a key and a value each; one key is asked for.

Chapter 3 trains many copies of one small head on it, side by side in one tensor: see ``runs``.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_course.attention import masked_softmax
from attention_course.lab.train.heads import Heads, right, summed_loss
from attention_course.lab.train.loop import train
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


class OneHead(Heads):
    """``runs`` independent heads that answer look-ups; ``scale`` is what scores are multiplied by."""

    def __init__(self, runs: int, d_k: int, *, scale: float, seed: int, d_model: int = 64) -> None:
        super().__init__(runs, d_k, keys=KEYS, values=VALUES, seed=seed, d_model=d_model)
        self.scale = scale

    def forward(
        self, batch: Lookup
    ) -> tuple[Float[Tensor, "runs B values"], Float[Tensor, "runs B 1 items"]]:
        """Return ``(logits, weights)`` over the 16 values and over the 16 items."""
        query, key, value = self.project(batch.key, batch.value, batch.asked.unsqueeze(-1))
        weights = masked_softmax(scaled_dot(query, key, scale=self.scale))  # [runs, B, 1, items]
        return self.answer(weights @ value).squeeze(-2), weights


def loss(model: OneHead, batch: Lookup) -> Float[Tensor, ""]:
    """Return the cross-entropy summed over the runs."""
    return summed_loss(model(batch)[0], batch.answer)


@torch.no_grad()
def accuracy(model: OneHead, batch: Lookup) -> Float[Tensor, " runs"]:
    """Return the share of right answers of each run."""
    return right(model(batch)[0], batch.answer)


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

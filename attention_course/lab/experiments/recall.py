"""Associative recall: a list of pairs is read, then the values of some keys are asked for.

Chapter 10 trains one head on it whose memory is all pairs (softmax), the last of them (a window) or a
state of fixed size (linear attention). Runs stand side by side in one tensor: see ``runs``.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_course import masks
from attention_course.attention import attention_weights, scaled_dot_product_attention
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.heads import Heads, right, summed_loss
from attention_course.lab.train.loop import train
from attention_course.linear import linear_attention, linear_attention_quadratic

KEYS, VALUES, QUESTIONS = 128, 128, 16
#: numbers of pairs in training; tests also ask for more
TRAINED = (4, 8, 16, 32)
TESTED = (*TRAINED, 64)


class Recall(NamedTuple):
    """A batch of lists: each pair's key and value, then the keys asked for, and their values."""

    key: Int[Tensor, "B pairs"]
    value: Int[Tensor, "B pairs"]
    asked: Int[Tensor, "B questions"]
    answer: Int[Tensor, "B questions"]


def draw(size: int, pairs: int, generator: torch.Generator) -> Recall:
    """Return ``size`` lists of ``pairs`` distinct keys of 128 with values of 128, and 16 questions each."""
    key = torch.rand(size, KEYS, generator=generator).argsort(-1)[:, :pairs]
    value = torch.randint(VALUES, (size, pairs), generator=generator)
    pair = torch.randint(pairs, (size, QUESTIONS), generator=generator)
    return Recall(key, value, key.gather(1, pair), value.gather(1, pair))


def batches(size: int, seed: int, lengths: Sequence[int] = TRAINED) -> Iterator[Recall]:
    """Return an endless stream of fresh batches, the same for the same seed; ``lengths`` in turn."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        for pairs in lengths:
            yield draw(size, pairs, generator)


def seen(pairs: int, questions: int, window: int) -> Bool[Tensor, "questions pairs"]:
    """Return which pairs each question sees through a causal window; the questions follow the pairs."""
    T = pairs + questions
    return masks.window(T, T, window, is_causal=True)[pairs:, :pairs]


class OneHead(Heads):
    """``runs`` independent heads that answer questions about pairs.

    ``linear`` chooses linear attention with elu(x) + 1, whose state is d_k by d_model, instead of
    softmax; ``window`` limits the softmax to the last pairs.
    """

    def __init__(
        self,
        runs: int,
        d_k: int,
        *,
        seed: int,
        linear: bool = False,
        window: int | None = None,
        d_model: int = 64,
    ) -> None:
        if linear and window is not None:
            raise ValueError(f"a window is for softmax, got linear=True and window={window}")
        super().__init__(runs, d_k, keys=KEYS, values=VALUES, seed=seed, d_model=d_model)
        self.linear, self.window = linear, window

    def _mask(self, batch: Recall) -> Bool[Tensor, "questions pairs"] | None:
        if self.window is None:
            return None
        return seen(batch.key.shape[1], batch.asked.shape[1], self.window)

    def forward(self, batch: Recall) -> Float[Tensor, "runs B questions values"]:
        """Return logits over the 128 values."""
        query, key, value = self.project(batch.key, batch.value, batch.asked)
        if self.linear:
            return self.answer(linear_attention(query, key, value))
        return self.answer(scaled_dot_product_attention(query, key, value, self._mask(batch)))

    @torch.no_grad()
    def weights(self, batch: Recall) -> Float[Tensor, "runs B questions pairs"]:
        """Return how much each question takes from each pair."""
        query, key, value = self.project(batch.key, batch.value, batch.asked)
        if self.linear:
            return linear_attention_quadratic(query, key, value)[1]
        return attention_weights(query, key, self._mask(batch))


def loss(model: OneHead, batch: Recall) -> Float[Tensor, ""]:
    """Return the cross-entropy summed over the runs."""
    return summed_loss(model(batch), batch.answer)


@torch.no_grad()
def accuracy(model: OneHead, batch: Recall) -> Float[Tensor, " runs"]:
    """Return the share of right answers of each run."""
    return right(model(batch), batch.answer)


def every_key(pairs: int, generator: torch.Generator) -> Recall:
    """Return one list in which each key is asked for once, in the order of the pairs."""
    key, value, _, _ = draw(1, pairs, generator)
    return Recall(key, value, key, value)


def trial(
    d_k: int,
    *,
    learning_rate: float,
    linear: bool = False,
    window: int | None = None,
    steps: int = 600,
    runs: int = 3,
    unseen_seed: int = 1,
) -> dict[str, Any]:
    """Return one setting's accuracy [TESTED, runs], parameters, weights, losses and seconds.

    Accuracy is measured on 250 lists of each length (4000 questions) that no run is trained on. The
    weights [runs, 64, 64] are those of one unseen list of 64 pairs, every key asked for in turn.
    """
    generator = torch.Generator().manual_seed(unseen_seed)
    unseen = [draw(250, pairs, generator) for pairs in TESTED]
    model = OneHead(runs, d_k, linear=linear, window=window, seed=2)
    history = train(model, batches(32, seed=3), loss, steps=steps, learning_rate=learning_rate, clip=math.inf)
    return {
        "accuracy": torch.stack([accuracy(model, batch) for batch in unseen]),
        "parameters": count_parameters(model) // runs,
        "weights": model.weights(every_key(TESTED[-1], generator)).squeeze(1),
        "loss": [value / runs for value in history.losses],
        "seconds": history.seconds,
    }

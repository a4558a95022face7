"""A task that needs several relations at once: one query names four items and wants all four values.

Chapter 4 trains one layer of multi-head attention on it, with more and fewer heads but equally many
parameters. Runs stand side by side in one tensor, as in ``lookup``: the first dimension of every
weight counts them.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.attention import attend
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train

ITEMS, QUERIES, RELATIONS, KEY_WIDTH, VALUES = 16, 8, 4, 16, 8


class Relations(NamedTuple):
    """A batch: the items' keys and values, the keys each query names, and the values it wants."""

    key: Float[Tensor, "B items width"]
    value: Int[Tensor, "B items"]
    asked: Float[Tensor, "B queries relations*width"]
    answer: Int[Tensor, "B queries relations"]


def draw(size: int, generator: torch.Generator, *, relations: int = RELATIONS) -> Relations:
    """Return ``size`` scenes: 16 random keys with a value each, and 8 queries of distinct items.

    Keys are drawn anew for every scene, so none can be learned by heart. A query is the keys of its
    items one after the other; the place of a key in it is a *slot*.
    """
    key = torch.randn(size, ITEMS, KEY_WIDTH, generator=generator)
    value = torch.randint(VALUES, (size, ITEMS), generator=generator)
    item = torch.rand(size, QUERIES, ITEMS, generator=generator).argsort(-1)[..., :relations]
    scene = torch.arange(size)[:, None, None]
    return Relations(key, value, key[scene, item].flatten(-2), value[scene, item])


def batches(size: int, seed: int, *, relations: int = RELATIONS) -> Iterator[Relations]:
    """Return an endless stream of fresh batches, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield draw(size, generator, relations=relations)


class OneLayer(nn.Module):
    """``runs`` independent layers of multi-head attention that answer such queries, slot by slot.

    Every run starts from its own weights. Heads are ``d_model / num_heads`` wide, or ``d_k`` if it is
    given. Nothing but the attention looks at the items, and the answers are linear in its output.
    """

    def __init__(
        self,
        runs: int,
        num_heads: int,
        *,
        seed: int,
        d_model: int = 64,
        d_k: int | None = None,
        relations: int = RELATIONS,
    ) -> None:
        super().__init__()
        if d_k is None and d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model, got d_model={d_model}, num_heads={num_heads}")
        generator = torch.Generator().manual_seed(seed)

        def normal(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(runs, rows, columns, generator=generator) / math.sqrt(rows))

        self.num_heads = num_heads
        width = num_heads * (d_k or d_model // num_heads)
        self.item = normal(KEY_WIDTH + VALUES, d_model)
        self.asked = normal(relations * KEY_WIDTH, d_model)
        self.w_query = normal(d_model, width)
        self.w_key = normal(d_model, width)
        self.w_value = normal(d_model, width)
        self.w_output = normal(width, d_model)
        self.w_answer = normal(d_model, relations * VALUES)

    def forward(
        self, batch: Relations
    ) -> tuple[Float[Tensor, "runs B queries relations values"], Float[Tensor, "runs B heads queries items"]]:
        """Return ``(logits, weights)``: over the 8 values for each slot, over the 16 items for each head."""
        items = torch.cat((batch.key, F.one_hot(batch.value, VALUES).float()), dim=-1)
        x, asked = _project(items, self.item), _project(batch.asked, self.asked)
        query, key, value = (
            _project(source, weight).unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
            for source, weight in ((asked, self.w_query), (x, self.w_key), (x, self.w_value))
        )  # [runs, B, h, T, d_k]
        context, weights = attend(query, key, value)
        output = _project(context.transpose(-2, -3).flatten(-2), self.w_output)
        return _project(output, self.w_answer).unflatten(-1, (-1, VALUES)), weights


def _project(
    x: Float[Tensor, "*runs B T d"], weight: Float[Tensor, "runs d e"]
) -> Float[Tensor, "runs B T e"]:
    """x @ weight, each run with its own weight, as one product per run."""
    flat = x.flatten(-3, -2)  # [runs, B * T, d], or [B * T, d] for what all runs share
    return (flat @ weight).unflatten(-2, x.shape[-3:-1])


def loss(model: OneLayer, batch: Relations) -> Float[Tensor, ""]:
    """Return the cross-entropy summed over the runs, so that no run's gradient sees another's."""
    logits, _ = model(batch)
    runs = len(logits)
    answer = batch.answer.flatten().repeat(runs)
    return F.cross_entropy(logits.flatten(0, -2), answer) * runs


@torch.no_grad()
def slot_accuracy(model: OneLayer, batch: Relations) -> Float[Tensor, "runs relations"]:
    """Return how often each run gets each slot right."""
    logits, _ = model(batch)
    return (logits.argmax(-1) == batch.answer).float().mean((1, 2))


def predicted(num_heads: int, *, relations: int = RELATIONS) -> float:
    """Return the share of right answers if every head answers one slot and the rest is guessed."""
    answered = min(num_heads / relations, 1.0)
    return answered + (1 - answered) / VALUES


def trial(
    num_heads: int,
    *,
    d_k: int | None = None,
    relations: int = RELATIONS,
    steps: int = 600,
    runs: int = 3,
    learning_rate: float = 0.003,
    unseen_seed: int = 1,
) -> dict[str, Any]:
    """Return accuracy per run and slot, parameters of one run, losses and seconds for a head count.

    Accuracy is measured on 500 scenes (4000 queries) that no run is trained on.
    """
    unseen = draw(500, torch.Generator().manual_seed(unseen_seed), relations=relations)
    model = OneLayer(runs, num_heads, d_k=d_k, relations=relations, seed=2)
    stream = batches(32, seed=3, relations=relations)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, clip=math.inf)
    slots = slot_accuracy(model, unseen)
    return {
        "accuracy": slots.mean(-1),
        "slots": slots,
        "parameters": count_parameters(model) // runs,
        "loss": [value / runs for value in history.losses],
        "seconds": history.seconds,
    }

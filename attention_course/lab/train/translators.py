"""Training on pairs of sequences, as chapters 1, 2 and 7 do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attention_course.lab.data.pairs import PAD, Batch, Pair, Task, batches
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.measure.translations import exact_match, translate
from attention_course.lab.train.loop import History, train


def token_loss(model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
    """Return the mean cross-entropy per target token in nats, padding left out."""
    logits, _ = model(batch.source, batch.lengths, batch.previous)
    return F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=PAD)


@dataclass(frozen=True)
class Run:
    """One trained model with what its training cost."""

    model: nn.Module
    parameters: int
    history: History


def learn(
    build: Callable[[], nn.Module],
    task: Task,
    *,
    seed: int,
    steps: int,
    learning_rate: float,
    batch_size: int = 64,
) -> Run:
    """Build a model and train it on ``task.train``; ``seed`` fixes its first weights and the batches."""
    torch.manual_seed(seed)
    model = build()
    history = train(
        model,
        batches(task.train, task, batch_size=batch_size, seed=seed),
        token_loss,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
    )
    return Run(model, count_parameters(model), history)


def learn_and_test(groups: Sequence[Sequence[Pair]], task: Task, **learning: Any) -> tuple[Run, list[float]]:
    """Do ``learn(task=task, **learning)`` and return its run with the exact match in each of ``groups``."""
    run = learn(task=task, **learning)
    return run, [exact_match(translate(run.model, pairs, task), pairs) for pairs in groups]

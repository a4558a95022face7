"""Milestone 5: one step of training."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attention_course.checks.capstone.shared import NAME
from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.drawing import normal
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.scenes import Scene

#: the largest rate, the steps until it is reached, and the longest gradient; the notebook says so
PEAK, WARM_UP, LONGEST = 4e-3, 50, 1.0


def _next(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return logits[:, :-1], tokens[:, 1:]


def _entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def _rate(step: int) -> float:
    return PEAK * min(1.0, (step + 1) / WARM_UP)


def _clipped(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), LONGEST)


def _update(
    *,
    align: Callable = _next,
    loss: Callable = _entropy,
    rate: Callable[[int], float] = _rate,
    groups: slice = slice(None),
    clip: Callable[[nn.Module], Any] = _clipped,
    training: bool = True,
    zero: bool = True,
) -> Callable:
    """The reference with one of its parts replaced."""

    def update(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, step: int) -> float:
        if training:
            model.train()
        for group in optimizer.param_groups[groups]:
            group["lr"] = rate(step)
        if zero:
            optimizer.zero_grad()
        found = loss(*align(model(tokens), tokens))
        found.backward()
        clip(model)
        optimizer.step()
        return found.item()

    return update


def _drawn(generator: Generator, *shape: int) -> Inputs:
    """A table of pairs, with one more row for what all of them have, and batches."""
    return normal(generator, 7, 6, dtype=torch.float64), torch.randint(6, shape, generator=generator)


def _normalised(model: nn.Module) -> None:
    length = nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
    for parameter in model.parameters():
        parameter.grad *= LONGEST / length


def _each_clipped(model: nn.Module) -> None:
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_(parameter, LONGEST)


UPDATE = Exercise(
    name=f"{NAME}.update",
    title="One step of training",
    points=2,
    difficulty=2,
    minutes=20,
    reference=_update(),
    asks=Scene(
        "updated",
        given=("table", "batches"),
        called="update(model, optimizer, tokens, step)",
        told={"unit": PEAK},
        noun="function",
        handed_over="function",
    ),
    returns=("what each step moved", "losses"),
    cases=(
        Case(
            "plain descent, long gradients",
            lambda g: _drawn(g, 4, 2, 3),
            arguments={"adamw": False, "first": 0, "times": 8},
        ),
        Case(
            "plain descent, short gradients",
            lambda g: _drawn(g, 3, 3, 5),
            arguments={"adamw": False, "first": 0, "times": 1},
        ),
        Case("AdamW", lambda g: _drawn(g, 5, 2, 4), arguments={"adamw": True, "first": 0, "times": 4}),
        Case(
            "around the end of the warm-up",
            lambda g: _drawn(g, 6, 3, 5),
            arguments={"adamw": False, "first": WARM_UP - 4, "times": 8},
        ),
    ),
    mistakes=(
        Mistake(
            "targets not shifted",
            _update(align=lambda logits, tokens: (logits, tokens)),
            "Every position is asked for the token that it has just read. Position t is asked for token "
            "t + 1: drop the last logits and the first token.",
        ),
        Mistake(
            "shifted the wrong way",
            _update(align=lambda logits, tokens: (logits[:, 1:], tokens[:, :-1])),
            "Every position is asked for the token before its own. Drop the last logits and the first token, "
            "not the other way round.",
        ),
        Mistake(
            "targets rolled round",
            _update(align=lambda logits, tokens: (logits, tokens.roll(-1, 1))),
            "The last position of a sentence is asked for its first token. Nothing follows there: the last "
            "logits are asked for nothing.",
        ),
        Mistake(
            "the last token alone",
            _update(align=lambda logits, tokens: (logits[:, -2:-1], tokens[:, -1:])),
            "Only the last token of each sentence is asked for. Every position but the last has a next "
            "token.",
        ),
        Mistake(
            "softmax before the cross-entropy",
            _update(loss=lambda logits, target: _entropy(logits.softmax(-1), target)),
            "F.cross_entropy takes logits, and is given probabilities: its softmax is the second. The loss "
            "cannot get small, and gradients nearly vanish.",
        ),
        Mistake(
            "sum over the tokens",
            _update(loss=lambda logits, target: logits.shape[0] * logits.shape[1] * _entropy(logits, target)),
            "Your loss is the sum over all tokens of the batch, so a larger batch takes larger steps. Take "
            "the mean.",
        ),
        Mistake(
            "sum over the tokens of a sentence",
            _update(loss=lambda logits, target: logits.shape[1] * _entropy(logits, target)),
            "Your loss is a sum over the tokens of a sentence and a mean over sentences: longer ones take "
            "larger steps. Take the mean over all tokens.",
        ),
        Mistake(
            "nothing moves",
            _update(clip=lambda model: model.zero_grad()),
            "No step moves the model. Is step called, and are the gradients still there then? zero_grad "
            "between backward and step takes them away.",
        ),
        Mistake(
            "gradients that add up",
            _update(zero=False),
            "Each step moves by the gradients of all batches so far: backward adds to what .grad holds. "
            "optimizer.zero_grad() before it.",
        ),
        Mistake(
            "no clipping",
            _update(clip=lambda model: None),
            "A batch of long gradients moves the model further than one of length 1 may. Clip with "
            "nn.utils.clip_grad_norm_ between backward and step: behind step it is too late.",
        ),
        Mistake(
            "each parameter clipped",
            _update(clip=_each_clipped),
            "The gradient of each parameter is clipped by itself, which turns the step. The length is that "
            "of all gradients together: one call for all parameters.",
        ),
        Mistake(
            "each number clipped",
            _update(clip=lambda model: nn.utils.clip_grad_value_(model.parameters(), LONGEST)),
            "Each number of the gradient is clipped by itself, which turns its direction. Clip its length: "
            "clip_grad_norm_, not clip_grad_value_.",
        ),
        Mistake(
            "short gradients made long",
            _update(clip=_normalised),
            "Every gradient gets the same length, short ones too: near the end each step is as large as at "
            "the start. Clip only what is longer than LONGEST.",
        ),
        Mistake(
            "rate of the first group",
            _update(groups=slice(1)),
            "Only the first group of the optimizer's parameters gets the rate. An optimizer may have "
            "several: set it in each of them.",
        ),
        Mistake(
            "rate never set",
            _update(groups=slice(0)),
            "The steps have the rate that the optimizer came with. It is kept in each of "
            "optimizer.param_groups; optimizer.lr and optimizer.defaults change nothing.",
        ),
        Mistake(
            "no warm-up",
            _update(rate=lambda step: PEAK),
            "The first step is as large as all others. Adam knows little of its gradients then: let the rate "
            "rise over the first WARM_UP steps.",
        ),
        Mistake(
            "warm-up from 0",
            _update(rate=lambda step: PEAK * min(1.0, step / WARM_UP)),
            "Your first step has a rate of 0 and learns nothing. Step 0 is the first: (step + 1) / WARM_UP.",
        ),
        Mistake(
            "warm-up without an end",
            _update(rate=lambda step: PEAK * (step + 1) / WARM_UP),
            "Behind WARM_UP the rate goes on rising. It stays at PEAK: min(1, ...).",
        ),
        Mistake(
            "trained in evaluation mode",
            _update(training=False),
            "The model came in evaluation mode, and you train it so: nothing is dropped. model.train() "
            "first.",
        ),
    ),
    hints=(
        "Six things in order: training mode, the rate, no old gradients, the loss and its gradients, their "
        "length, the step. Which of them does a line of yours do?",
        'The rate stands in optimizer.param_groups, one dict with "lr" for each group. The loss is the mean '
        "cross-entropy of logits[:, :-1] and tokens[:, 1:].",
        "clip_grad_norm_ works on model.parameters() and changes their .grad, so it has to stand behind "
        "backward and before step. Return the loss as a number.",
    ),
)

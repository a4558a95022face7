"""Exercise 5: the loss of a policy gradient."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.memory.shared import NAME

Four = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _taken(logits: Tensor, action: Tensor, axis: int = -1) -> Tensor:
    """[T, B]: the log-probability of each action that was taken, by a softmax over ``axis``."""
    return logits.log_softmax(axis).gather(-1, action[..., None]).squeeze(-1)


def _mean(returns: Tensor, alive: Tensor) -> Tensor:
    return returns.masked_fill(~alive, 0.0).sum() / alive.sum()


def _policy_loss(logits: Tensor, action: Tensor, returns: Tensor, alive: Tensor) -> Tensor:
    log_probs, gains = _taken(logits, action)[alive], returns.detach()[alive]  # of the steps that count
    return -(log_probs * (gains - gains.mean())).sum() / alive.shape[1]


def _made(
    log_probs: Callable[[Tensor, Tensor], Tensor] = _taken,
    baseline: Callable[[Tensor, Tensor], Tensor | float] = _mean,
    advantage: Callable[[Tensor, Tensor], Tensor] = lambda advantage, alive: advantage,
    total: Callable[[Tensor, Tensor], Tensor] = lambda terms, alive: (
        terms.masked_fill(~alive, 0.0).sum() / alive.shape[1]
    ),
) -> Four:
    """The reference with one of its parts replaced."""

    def policy_loss(logits: Tensor, action: Tensor, returns: Tensor, alive: Tensor) -> Tensor:
        returns = returns.detach()
        weight = advantage(returns - baseline(returns, alive), alive)
        return -total(log_probs(logits, action) * weight, alive)

    return policy_loss


def _each_step(returns: Tensor, alive: Tensor, axis: int = 1) -> Tensor:
    """A mean for each step, or with ``axis`` 0 for each episode."""
    seen = returns.masked_fill(~alive, 0.0).sum(axis, keepdim=True)
    return seen / alive.sum(axis, keepdim=True).clamp_min(1)


def _spread(advantage: Tensor, alive: Tensor) -> Tensor:
    known = advantage[alive]
    return advantage / known.std()


def _finite(x: Tensor, alive: Tensor) -> Tensor:
    return x.masked_fill(~alive, 0.0)


def _per_episode(terms: Tensor, alive: Tensor) -> Tensor:
    """The mean over each episode's steps, and then over the episodes."""
    return (_finite(terms, alive).sum(0) / alive.sum(0).clamp_min(1)).mean()


def _best(logits: Tensor, action: Tensor) -> Tensor:
    return logits.log_softmax(-1).amax(-1)


def _every_action(logits: Tensor, action: Tensor) -> Tensor:
    return logits.log_softmax(-1).sum(-1)


def _subtracted_late(logits: Tensor, action: Tensor, returns: Tensor, alive: Tensor) -> Tensor:
    terms = _taken(logits, action) * returns.detach() - _mean(returns.detach(), alive)
    return -_finite(terms, alive).sum() / alive.shape[1]


def _in_place(logits: Tensor, action: Tensor, returns: Tensor, alive: Tensor) -> Tensor:
    loss = _policy_loss(logits, action, returns, alive)
    returns -= _mean(returns, alive)
    return loss


# Inputs ---------------------------------------------------------------------------------------


def _drawn(
    generator: Generator, T: int, B: int, A: int, *, whole: bool = False, dtype: torch.dtype = torch.float32
) -> Inputs:
    """Episodes of different lengths, one of them as long as the rollout unless all are; what stands behind
    their ends is large, and means nothing."""
    lengths = torch.randint(1, T, (B,), generator=generator)
    lengths[torch.randint(B, (), generator=generator)] = T
    alive = torch.arange(T)[:, None] < (torch.full((B,), T) if whole else lengths)
    returns = 2.0 + normal(generator, T, B, dtype=dtype)
    action = torch.randint(A, (T, B), generator=generator)
    return 1.5 * normal(generator, T, B, A, dtype=dtype), action, returns.where(alive, 10 * returns), alive


def _by_hand(generator: Generator) -> Inputs:
    _, action, _, alive = _drawn(generator, 3, 2, 2)
    logits = torch.zeros(3, 2, 2)
    return logits, action, tenths(generator, 3, 2) * alive, alive


def _nothing_behind(generator: Generator) -> Inputs:
    """Behind the ends stand infinite numbers, and logits of -inf."""
    logits, action, returns, alive = _drawn(generator, 6, 4, 3)
    impossible = torch.arange(3) != (action[..., None] + 1) % 3  # what was taken is among it
    return (
        logits.masked_fill(~alive[..., None] & impossible, -torch.inf), action,
        returns.masked_fill(~alive, torch.inf), alive,
    )  # fmt: skip


def _scattered(generator: Generator) -> Inputs:
    """Steps at which nothing was to decide stand between others."""
    logits, action, returns, alive = _drawn(generator, 6, 3, 2)
    alive = torch.rand(6, 3, generator=generator) < 0.5
    alive[torch.randint(6, (), generator=generator)] = True
    return logits, action, returns, alive


def _sure(generator: Generator) -> Inputs:
    """A policy that is so sure that the probability of what it did is 0 in float32."""
    logits, action, returns, alive = _drawn(generator, 4, 3, 3)
    return 200 * logits, action, returns, alive


POLICY_LOSS = Exercise(
    name=f"{NAME}.policy_loss",
    title="More of what went well",
    points=3,
    difficulty=3,
    minutes=25,
    reference=_policy_loss,
    returns=("loss",),
    constants=("returns",),
    cases=(
        Case("all actions alike", _by_hand),
        Case("five episodes", lambda g: _drawn(g, 7, 5, 3)),
        Case("as many of everything", lambda g: _drawn(g, 4, 4, 4)),
        Case("all equally long, float64", lambda g: _drawn(g, 5, 3, 2, whole=True, dtype=torch.float64)),
        Case("steps that do not count", _scattered),
        Case("nothing behind the ends", _nothing_behind),
        Case("a policy that is sure", _sure),
        Case("gradient", lambda g: _drawn(g, 5, 4, 3), gradient=True),
        Case("gradient, nothing behind the ends", _nothing_behind, gradient=True),
    ),
    mistakes=(
        Mistake(
            "no minus",
            lambda *inputs: -_policy_loss(*inputs),
            "The sign is wrong: a step down this loss makes what went well less likely. An optimizer goes "
            "down, so what is to grow gets a minus.",
        ),
        Mistake(
            "no baseline",
            _made(baseline=lambda returns, alive: 0.0),
            "The returns are used as they are. Subtract the baseline, their mean over the steps that count.",
        ),
        Mistake(
            "baseline over everything",
            _made(baseline=lambda returns, alive: returns.mean()),
            "The baseline is the mean over all T · B entries, those among them that mean nothing. Only "
            "steps at which alive is True count.",
        ),
        Mistake(
            "baseline divided by everything",
            _made(baseline=lambda returns, alive: _finite(returns, alive).mean()),
            "For the baseline you add the returns of the steps that count and divide by T · B. Divide by how "
            "many there are.",
        ),
        Mistake(
            "a baseline for each step",
            _made(baseline=_each_step),
            "Each step has a baseline of its own, the mean over the batch. That is done, too; here there is "
            "one number for all.",
        ),
        Mistake(
            "a baseline for each episode",
            _made(baseline=lambda returns, alive: _each_step(returns, alive, 0)),
            "Each episode has a baseline of its own, the mean over its steps. An episode that went well "
            "altogether then teaches nothing. One number for all.",
        ),
        Mistake(
            "steps that do not count are counted",
            _made(total=lambda terms, alive: terms.sum() / alive.shape[1]),
            "The sum runs over all T · B entries. Only steps at which alive is True count.",
        ),
        Mistake(
            "multiplied by the mask",
            _made(
                baseline=lambda returns, alive: (returns * alive).sum() / alive.sum(),
                total=lambda terms, alive: (terms * alive).sum() / alive.shape[1],
            ),
            "You multiply by alive. That does not take away what is infinite: 0 · inf is NaN. masked_fill or "
            "torch.where puts a 0 in its place.",
        ),
        Mistake(
            "mean over the steps",
            _made(total=lambda terms, alive: _finite(terms, alive).sum() / alive.sum()),
            "You divide by the number of steps that count. Divide by the number of episodes, B: a long "
            "episode has more to say than a short one.",
        ),
        Mistake(
            "divided by the number of steps T",
            _made(total=lambda terms, alive: _finite(terms, alive).sum() / alive.shape[0]),
            "You divide by T, the first axis. The number of episodes, B, is the second.",
        ),
        Mistake(
            "baseline subtracted from the product",
            _subtracted_late,
            "The baseline is subtracted from log π times the return. It is subtracted from the return first: "
            "mind the brackets.",
        ),
        Mistake(
            "mean over everything",
            _made(total=lambda terms, alive: _finite(terms, alive).mean()),
            "You divide by T · B. Divide by the number of episodes, B.",
        ),
        Mistake(
            "mean of each episode's mean",
            _made(total=_per_episode),
            "You average over each episode's steps, and then over the episodes. Add up the steps; divide by "
            "B only.",
        ),
        Mistake(
            "sum",
            _made(total=lambda terms, alive: _finite(terms, alive).sum()),
            "That is the sum. Divide by the number of episodes, B, so that a larger batch makes no larger "
            "steps.",
        ),
        Mistake(
            "probabilities",
            _made(log_probs=lambda logits, action: _taken(logits, action).exp()),
            "You weigh probabilities. It is their logarithms: the gradient of log π is what is followed.",
        ),
        Mistake(
            "logits",
            _made(log_probs=lambda logits, action: logits.gather(-1, action[..., None]).squeeze(-1)),
            "You weigh the logits of the actions. Their log-probabilities are asked for: log_softmax first.",
        ),
        Mistake(
            "logarithm of a softmax",
            _made(
                log_probs=lambda logits, action: (
                    logits.softmax(-1).gather(-1, action[..., None]).squeeze(-1).log()
                )
            ),
            "A softmax, and then the logarithm: where a probability is too small for a number that is -inf. "
            "log_softmax does both in one.",
        ),
        Mistake(
            "softmax over the batch",
            _made(log_probs=lambda logits, action: _taken(logits, action, 1)),
            "The softmax runs over the batch. It runs over the actions, the last axis.",
        ),
        Mistake(
            "softmax over time",
            _made(log_probs=lambda logits, action: _taken(logits, action, 0)),
            "The softmax runs over the steps. It runs over the actions, the last axis.",
        ),
        Mistake(
            "the best action",
            _made(log_probs=_best),
            "You take the most likely action, whatever was done. The return came of the action that was "
            "taken.",
        ),
        Mistake(
            "all actions",
            _made(log_probs=_every_action),
            "You add up all actions' log-probabilities. Only the action that was taken counts: gather.",
        ),
        Mistake(
            "divided by the spread",
            _made(advantage=_spread),
            "The difference is divided by the returns' standard deviation. That is done, too; here it is "
            "not.",
        ),
        Mistake(
            "returns changed in place",
            _in_place,
            "The result is right, but the baseline is subtracted from returns itself, as -= does. Make a new "
            "tensor.",
        ),
    ),
    hints=(
        "Three tables [T, B]: the log-probability of what was done, how much better than usual it went, and "
        "whether it counts. What is done with the first two, and what with the third?",
        "gather takes each action's log-probability along the last axis, if action has an axis of length "
        "1 there, and leaves that axis. The baseline is the mean over the steps that count.",
        "Leave out the steps that do not count before you multiply, by a boolean index or by "
        "masked_fill: after it, the gradient is 0 times what is infinite. .detach() makes the returns "
        "constants. A minus, a sum, and a division by B, the second axis of alive.",
    ),
)

"""Exercise 4: what a step still brings."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.memory import shared
from attention_course.checks.memory.shared import NAME


def _returns(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    later, found = torch.zeros_like(rewards[0]), []
    for t in reversed(range(len(rewards))):
        later = rewards[t] + discount * later.masked_fill(done[t], 0.0)
        found.append(later)
    return torch.stack(found[::-1])


def _made(
    ends: Callable[[Tensor], Tensor] = lambda done: done,
    step: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda reward, discount, later: (
        reward + discount * later
    ),
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The reference with one of its parts replaced."""

    def returns(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
        later, found, ended = torch.zeros_like(rewards[0]), [], ends(done)
        for t in reversed(range(len(rewards))):
            later = step(rewards[t], discount, later.masked_fill(ended[t], 0.0))
            found.append(later)
        return torch.stack(found[::-1])

    return returns


def _moved(done: Tensor, by: int) -> Tensor:
    moved = done.roll(by, 0)
    moved[: max(by, 0)] = False
    moved[len(moved) + min(by, 0) :] = False
    return moved


def _reward_lost(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    """The last step's own reward goes to nobody."""
    return _returns(rewards.masked_fill(done, 0.0), discount, done)


def _one_ahead(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    following = torch.cat((rewards[1:], torch.zeros_like(rewards[:1]))).masked_fill(done, 0.0)
    return rewards + discount * following


def _looking_back(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    """What a step has been brought so far."""
    before, found = torch.zeros_like(rewards[0]), []
    for reward, ended in zip(rewards, done, strict=True):
        before = reward + discount * before
        found.append(before)
        before = before.masked_fill(ended, 0.0)
    return torch.stack(found)


def _number(done: Tensor) -> Tensor:
    """[T, ...]: of which episode a step is."""
    return done.long().cumsum(0) - done.long()


def _since(done: Tensor) -> Tensor:
    """[T, ...]: how many steps its episode has had before this one."""
    count, found = torch.zeros_like(done[0], dtype=torch.int64), []
    for ended in done:
        found.append(count)
        count = (count + 1).masked_fill(ended, 0)
    return torch.stack(found)


def _power(discount: Tensor, steps: Tensor, like: Tensor) -> Tensor:
    return discount.to(like.dtype) ** steps.to(like.dtype)


def _of_the_first_step(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    """Each later reward discounted by its own distance from the start."""
    powers = _power(discount, _since(done), rewards)
    return _returns(rewards * powers, torch.ones_like(discount), done)


def _same_for_all(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    """The whole episode's return, from its first step, at each of its steps."""
    found = _returns(rewards, discount, done)
    since, place = _since(done), torch.arange(len(rewards))
    first = place.view(-1, *[1] * (rewards.dim() - 1)) - since
    return found.gather(0, first)


def _divided(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    """All at once: powers from the start of the rollout, a sum from behind, and divided again."""
    place = torch.arange(len(rewards)).view(-1, *[1] * (rewards.dim() - 1))
    powers = _power(discount, place, rewards)
    return _returns(rewards * powers, torch.ones_like(discount), done) / powers


def _of_the_rollout(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    """Each reward discounted by its place in the rollout."""
    place = torch.arange(len(rewards)).view(-1, *[1] * (rewards.dim() - 1))
    return _returns(rewards * _power(discount, place, rewards), torch.ones_like(discount), done)


def _any(done: Tensor) -> Tensor:
    """Everybody's end, wherever one is."""
    return done.flatten(1).any(1).view(-1, *[1] * (done.dim() - 1)).expand_as(done)


def _along_the_last_axis(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    return _returns(rewards.movedim(-1, 0), discount, done.movedim(-1, 0)).movedim(0, -1)


def _standardised(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    found = _returns(rewards, discount, done)
    return (found - found.mean()) / (found.std() + 1e-8)


def _in_place(rewards: Tensor, discount: Tensor, done: Tensor) -> Tensor:
    return rewards.copy_(_returns(rewards, discount, done))


# Inputs ---------------------------------------------------------------------------------------


def _drawn(
    generator: Generator, T: int, *rest: int, discount: float = 0.9, dtype: torch.dtype = torch.float32
) -> Inputs:
    done = shared.ends(generator, math.prod(rest), T)
    return (
        normal(generator, T, *rest, dtype=dtype), torch.tensor(discount, dtype=dtype),
        done.mT.reshape(T, *rest).clone(),
    )  # fmt: skip


def _by_hand(generator: Generator) -> Inputs:
    _, _, done = _drawn(generator, 6, 1)
    return tenths(generator, 6, 1), torch.tensor(0.5), done


def _long(generator: Generator) -> Inputs:
    rewards, discount, done = _drawn(generator, 300, 2, discount=0.5)
    return rewards, discount, done & (torch.arange(300) % 7 == 0)[:, None]


RETURNS = Exercise(
    name=f"{NAME}.returns",
    title="What a step still brings",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_returns,
    returns=("returns",),
    settings=("discount",),
    cases=(
        Case("one decimal", _by_hand),
        Case("four environments", lambda g: _drawn(g, 8, 4)),
        Case("two axes of environments, float64", lambda g: _drawn(g, 7, 2, 3, dtype=torch.float64)),
        Case("as many environments as steps", lambda g: _drawn(g, 5, 5, discount=0.7)),
        Case("nothing discounted", lambda g: _drawn(g, 6, 3, discount=1.0)),
        Case("only the next reward counts", lambda g: _drawn(g, 6, 3, discount=0.0)),
        Case("300 steps", _long),
        Case("gradient", lambda g: _drawn(g, 6, 3), gradient=True),
    ),
    mistakes=(
        Mistake(
            "across the ends",
            _made(ends=torch.zeros_like),
            "Rewards of later episodes flow back over an end. Where done is True nothing follows any more.",
        ),
        Mistake(
            "cut one step too late",
            _made(ends=lambda done: _moved(done, 1)),
            "The last step of an episode still gets what the next one's first step brings, and that first "
            "step is cut off. done[t] cuts between t and t + 1.",
        ),
        Mistake(
            "cut one step too early",
            _made(ends=lambda done: _moved(done, -1)),
            "The reward of an episode's last step goes to itself alone: you cut between it and the step "
            "before. done[t] cuts between t and t + 1.",
        ),
        Mistake(
            "the last reward lost",
            _reward_lost,
            "The reward of the step with which an episode ends is lost. It belongs to that episode, and is "
            "often the only one.",
        ),
        Mistake(
            "one environment's end cuts all",
            _made(ends=_any),
            "As soon as an episode ends in one environment, the returns of all are cut. Each for itself: "
            "done[t] has an entry for each.",
        ),
        Mistake(
            "cut where nothing ends",
            _made(ends=lambda done: ~done),
            "You cut behind every step but the ends. It is the other way round.",
        ),
        Mistake(
            "no discount",
            _made(step=lambda reward, discount, later: reward + later),
            "All later rewards count in full: the discount is missing.",
        ),
        Mistake(
            "discounted twice",
            _made(step=lambda reward, discount, later: reward + discount * discount * later),
            "What follows is multiplied by the discount twice for each step. Look where it is multiplied: "
            "once, between a step and the one before it.",
        ),
        Mistake(
            "only one step ahead",
            _one_ahead,
            "Only the next reward is added. All later ones of the episode count: it is the next step's "
            "return that is discounted, not its reward.",
        ),
        Mistake(
            "own reward discounted",
            _made(step=lambda reward, discount, later: discount * (reward + later)),
            "A step's own reward is discounted as well. It counts in full, the next one times the discount.",
        ),
        Mistake(
            "own reward left out",
            lambda rewards, discount, done: _returns(rewards, discount, done) - rewards,
            "A step's own reward is left out. It comes after the decision: it counts.",
        ),
        Mistake(
            "the discount on the wrong side",
            _made(step=lambda reward, discount, later: discount * reward + later),
            "The reward is discounted and what follows is not, so that what is far away counts as much as "
            "what is near. reward + discount · later.",
        ),
        Mistake(
            "discounted from the start of the episode",
            _of_the_first_step,
            "Each reward is discounted by how far it lies from the episode's first step. It is its distance "
            "from the step whose return you make that counts.",
        ),
        Mistake(
            "discounted from the start of the rollout",
            _of_the_rollout,
            "Each reward is discounted by its place in the rollout, from step 0 on. It is its distance from "
            "the step whose return you make that counts.",
        ),
        Mistake(
            "along the last axis",
            _along_the_last_axis,
            "You go along the last axis, from one environment to another. Time is the first axis.",
        ),
        Mistake(
            "looking back",
            _looking_back,
            "You add up what came before a step. What a decision brings comes after it: begin at the end.",
        ),
        Mistake(
            "one return for the whole episode",
            _same_for_all,
            "Each step gets the return of its episode's first step. No decision changes what came before it: "
            "each step has a return of its own.",
        ),
        Mistake(
            "averaged",
            _made(step=lambda reward, discount, later: (1 - discount) * reward + discount * later),
            "That is a moving average: the reward is multiplied by 1 - discount. It counts in full.",
        ),
        Mistake(
            "divided by a power of the discount",
            _divided,
            "All at once, you multiply by powers of the discount and divide by them again. With a small "
            "discount or many steps they are 0, and 0/0 is NaN. Go step by step, from the end.",
        ),
        Mistake(
            "standardised",
            _standardised,
            "The returns have mean 0 and standard deviation 1. What is done with them comes later; here they "
            "stay as they are.",
        ),
        Mistake(
            "latest step first",
            lambda *inputs: _returns(*inputs).flip(0),
            "The steps stand in reverse: you made them from the end. Turn them round.",
        ),
        Mistake(
            "rewards changed in place",
            _in_place,
            "The result is right, but it is written into rewards itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Begin at the end: the last step's return is its reward. What is that of the step before, if you "
        "know what follows?",
        "Carry one tensor from behind, what the next step brings, [...]. Where done[t] is True nothing "
        "follows t: set it to 0 there before you use it.",
        "A step's return is its reward plus the discounted return behind it; keep it, and the step to "
        "the left uses it in turn. At the end the list is in reverse: turn it round, and torch.stack.",
    ),
)

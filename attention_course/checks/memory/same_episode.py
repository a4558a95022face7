"""Exercise 1: who is of one episode."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.memory import shared
from attention_course.checks.memory.shared import NAME


def _before(done: Tensor) -> Tensor:
    """[B, T]: how many episodes ended before this step."""
    ended = done.long()
    return ended.cumsum(1) - ended


def _earlier(T: int) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).tril()


def _same_episode(done: Tensor) -> Tensor:
    episode = _before(done)
    return (episode[:, :, None] == episode[:, None, :]) & _earlier(done.shape[1])


def _numbered(number: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The reference with its episodes numbered otherwise."""

    def same_episode(done: Tensor) -> Tensor:
        episode = number(done)
        return (episode[:, :, None] == episode[:, None, :]) & _earlier(done.shape[1])

    return same_episode


def _before_the_last(done: Tensor) -> Tensor:
    """[B, T]: how many episodes ended before the step before this one."""
    before = _before(done)
    return torch.cat((before[:, :1], before[:, :-1]), 1)


def _all_of_it(done: Tensor) -> Tensor:
    episode = _before(done)
    return episode[:, :, None] == episode[:, None, :]


def _last_alone(done: Tensor) -> Tensor:
    """Behind the last end of the row, for whoever looks."""
    place = torch.arange(done.shape[1])
    last = torch.where(done, place, -1).amax(1)
    return (place > last[:, None])[:, None, :] & _earlier(done.shape[1])


def _ends_hidden(done: Tensor) -> Tensor:
    """Steps that end an episode are hidden from others, and nothing else is."""
    T = done.shape[1]
    return (_earlier(T) & ~done[:, None, :]) | torch.eye(T, dtype=torch.bool)


def _counted_and_not_causal(done: Tensor) -> Tensor:
    ended = done.long().cumsum(1)
    return ended[:, :, None] == ended[:, None, :]


def _batch_and_time(done: Tensor) -> Tensor:
    return _before(done.reshape(1, -1)).view_as(done)


def _to_the_end(generator: Generator) -> Tensor:
    """The last step ends an episode too."""
    done = shared.ends(generator, 3, 6)
    done[:, -1] = True
    return done


def _rarely(generator: Generator) -> Tensor:
    """One environment in which nothing ends, between two in which something does."""
    done = shared.ends(generator, 3, 7)
    done[1] = False
    return done


SAME_EPISODE = Exercise(
    name=f"{NAME}.same_episode",
    title="Whose memory is it?",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_same_episode,
    returns=("mask",),
    cases=(
        Case("one environment", lambda g: (shared.ends(g, 1, 6),)),
        Case("three environments", lambda g: (shared.ends(g, 3, 8),)),
        Case("as many environments as steps", lambda g: (shared.ends(g, 5, 5),)),
        Case("nothing ends in one of them", lambda g: (_rarely(g),)),
        Case("the last step ends an episode", lambda g: (_to_the_end(g),)),
    ),
    mistakes=(
        Mistake(
            "ends not looked at",
            lambda done: _earlier(done.shape[1]).expand(len(done), -1, -1).clone(),
            "That is the causal mask alone: every step sees all earlier ones, those of other episodes among "
            "them. The memory is not reset.",
        ),
        Mistake(
            "an end counted to the next episode",
            _numbered(lambda done: done.long().cumsum(1)),
            "The step with which an episode ends counts as the first of the next one. It is the last of its "
            "own: count the ends before a step, without its own.",
        ),
        Mistake(
            "one step too far back",
            _numbered(_before_the_last),
            "The first step of an episode counts as the last of the one before: your ends come one step too "
            "late.",
        ),
        Mistake(
            "not causal",
            _all_of_it,
            "Steps of one episode all see each other, so that a step sees what comes after it. Only itself "
            "and what came before.",
        ),
        Mistake(
            "an end counted to the next episode, and not causal",
            _counted_and_not_causal,
            "Two things. Each end counts to the episode behind it: count the ends before a step, without its "
            "own. And steps of one episode all see each other, those ahead as well: take these away.",
        ),
        Mistake(
            "a step that does not see itself",
            lambda done: _same_episode(done) & ~torch.eye(done.shape[1], dtype=torch.bool),
            "No step sees itself. It sees its own observation, and the first step of an episode sees nothing "
            "else.",
        ),
        Mistake(
            "an end that sees nothing",
            lambda done: _same_episode(done) & ~done[:, :, None],
            "A step with which an episode ends sees nothing. It decides like any other: what it saw belongs "
            "to its episode.",
        ),
        Mistake(
            "an end that does not see itself",
            lambda done: _same_episode(done) & ~done[:, None, :],
            "The step with which an episode ends is hidden as a key, from itself too. Those behind it are of "
            "another episode, and all others may look at it.",
        ),
        Mistake(
            "only the ends hidden",
            _ends_hidden,
            "You hide the steps with which episodes end, and what lies before them is seen still. An end "
            "parts all that is before it from all that is behind it.",
        ),
        Mistake(
            "queries across",
            lambda done: _same_episode(done).mT,
            "Row t holds who may look at t. Queries run down and keys across: row t, column s says whether t "
            "may look at s.",
        ),
        Mistake(
            "inverted",
            lambda done: ~_same_episode(done),
            "True and False are exchanged: True = may look.",
        ),
        Mistake(
            "only the first end",
            _numbered(lambda done: (_before(done) > 0).long()),
            "All steps behind the first end count as one episode. Number the episodes: how many ended "
            "before?",
        ),
        Mistake(
            "only what follows the last end",
            _last_alone,
            "You hide all that lies before the row's last end, from steps of earlier episodes too. To each "
            "step only the ends before it matter.",
        ),
        Mistake(
            "all environments in one row",
            _numbered(lambda done: _before(done.any(0, keepdim=True)).expand_as(done)),
            "When an episode ends in one environment, all the others' end as well. Each row for itself.",
        ),
        Mistake(
            "counted along the environments",
            _numbered(lambda done: done.long().cumsum(0) - done.long()),
            "You count along the first axis, from one environment to the next. Time is axis 1.",
        ),
        Mistake(
            "numbers instead of truths",
            lambda done: _same_episode(done).float(),
            "These are 0.0 and 1.0. A mask is boolean, True where a step may look: an attention would add "
            "numbers to its scores.",
        ),
    ),
    hints=(
        "Give every step the number of its episode: how many ended before it? Then two steps are of one "
        "episode if their numbers are equal.",
        "cumsum along time counts the ends up to a step, its own among them. Its own must not count: the "
        "step with which an episode ends is still of it.",
        "The numbers as a column, compared with the numbers as a row, are all against all. Then take "
        "away what lies ahead, as in any causal mask.",
    ),
)

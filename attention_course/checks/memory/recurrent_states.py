"""Exercise 3: a state that is carried, and reset."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.memory import shared
from attention_course.checks.memory.shared import NAME


def _recurrent_states(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    state, states = start, []
    for t in range(x.shape[1]):
        state = (x[:, t] + state @ weight).tanh()
        states.append(state)
        state = state.masked_fill(done[:, t, None], 0.0)
    return torch.stack(states, 1)


def _made(
    resets: Callable[[Tensor], Tensor] = lambda done: done,
    to: Callable[[Tensor], Tensor] = torch.zeros_like,
    first: Callable[[Tensor], Tensor] = lambda start: start,
    step: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda x, state, weight: (x + state @ weight).tanh(),
) -> Callable[..., Tensor]:
    """The reference with one of its parts replaced: behind which steps the state is reset, and to what;
    what it starts from; what a step makes of it."""

    def recurrent_states(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
        state, states, ended = first(start), [], resets(done)
        for t in range(x.shape[1]):
            state = step(x[:, t], state, weight)
            states.append(state)
            state = torch.where(ended[:, t, None], to(start), state)
        return torch.stack(states, 1)

    return recurrent_states


def _shifted(done: Tensor, by: int) -> Tensor:
    """Later by ``by`` steps."""
    moved = done.roll(by, 1)
    moved[:, :by] = False
    return moved


def _too_early(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    """The state is reset before the step with which an episode ends."""
    state, states = start, []
    for t in range(x.shape[1]):
        state = (x[:, t] + state.masked_fill(done[:, t, None], 0.0) @ weight).tanh()
        states.append(state)
    return torch.stack(states, 1)


def _ends_are_zero(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    return _recurrent_states(x, start, done, weight).masked_fill(done[..., None], 0.0)


def _time_first(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    return _recurrent_states(x, start, done, weight).transpose(0, 1)


def _shared_state(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    """From environment to environment instead of from step to step."""
    state, states = start[0].expand(x.shape[1], -1), []
    for b in range(len(x)):
        state = (x[b] + state @ weight).tanh()
        states.append(state)
        state = state.masked_fill(done[b, :, None], 0.0)
    return torch.stack(states)


def _one_behind(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    """The states before each step."""
    after = _recurrent_states(x, start, done, weight).masked_fill(done[..., None], 0.0)
    return torch.cat((start[:, None], after[:, :-1]), 1)


def _start_wiped(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    """As with ``done[:, t - 1]`` at t = 0."""
    return _recurrent_states(x, start.masked_fill(done[:, -1:], 0.0), done, weight)


def _laid_along_the_columns(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    state, states = start, []
    for t in range(x.shape[1]):
        state = (x[:, t] + state @ weight).tanh()
        states.append(state)
        state = state * ~done[:, t]
    return torch.stack(states, 1)


def _in_place(x: Tensor, start: Tensor, done: Tensor, weight: Tensor) -> Tensor:
    states = _recurrent_states(x, start, done, weight)
    start.copy_(states[:, -1])
    return states


# Inputs ---------------------------------------------------------------------------------------


def _drawn(generator: Generator, B: int, T: int, d: int, dtype: torch.dtype = torch.float32) -> Inputs:
    return (
        0.7 * normal(generator, B, T, d, dtype=dtype), normal(generator, B, d, dtype=dtype).tanh(),
        shared.ends(generator, B, T), 1.2 * normal(generator, d, d, dtype=dtype) / d**0.5,
    )  # fmt: skip


def _by_hand(generator: Generator) -> Inputs:
    return (
        tenths(generator, 1, 5, 2, most=10), tenths(generator, 1, 2, most=10), shared.ends(generator, 1, 5),
        halves(generator, 2, 2) + 0.2,
    )  # fmt: skip


def _turned(generator: Generator) -> Inputs:
    """Time first in memory, though not in the shape."""
    x, start, done, weight = _drawn(generator, 4, 7, 3)
    return x.transpose(0, 1).contiguous().transpose(0, 1), start, done.mT.contiguous().mT, weight


def _to_the_end(generator: Generator) -> Inputs:
    """The last step ends an episode too, in two of three environments."""
    x, start, done, weight = _drawn(generator, 3, 6, 4)
    done[1:, -1] = True
    return x, start, done, weight


RECURRENT_STATES = Exercise(
    name=f"{NAME}.recurrent_states",
    title="A state that is carried",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_recurrent_states,
    returns=("states",),
    unseen=("x",),
    cases=(
        Case("one decimal", _by_hand),
        Case("four environments", _turned),
        Case("as many of everything", lambda g: _drawn(g, 4, 4, 4)),
        Case("float64", lambda g: _drawn(g, 3, 9, 2, torch.float64)),
        Case("the last step ends an episode", _to_the_end),
        Case("gradient", lambda g: _drawn(g, 3, 6, 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "state not reset",
            _made(resets=torch.zeros_like),
            "The state goes through the ends: each episode begins with what the one before has left. Behind "
            "a step with done, the state is 0.",
        ),
        Mistake(
            "reset one step too late",
            _made(resets=lambda done: _shifted(done, 1)),
            "The first step of an episode still reads the state of the one before; only the second begins "
            "from 0. done[t] speaks of what step t + 1 reads.",
        ),
        Mistake(
            "reset one step too early",
            _too_early,
            "The step with which an episode ends begins from 0 already. It is the last of its episode, and "
            "reads its state; the step behind it does not.",
        ),
        Mistake(
            "the last step's end at the first",
            _start_wiped,
            "Where an episode ends with the last step of the rollout, you begin from 0. At the first step, "
            "t - 1 is -1: an index of -1 is the last place. Nothing has ended between start and the first "
            "step.",
        ),
        Mistake(
            "reset to the start",
            _made(to=lambda start: start),
            "Behind an end you begin again from start. start is what an earlier episode left, in the rollout "
            "before; a new episode begins from 0.",
        ),
        Mistake(
            "all environments reset together",
            _made(resets=lambda done: done.any(0, keepdim=True).expand_as(done)),
            "When an episode ends in one environment, all states are reset. Each row for itself.",
        ),
        Mistake(
            "ends laid along the columns",
            _laid_along_the_columns,
            "done[:, t] is [B] and the state [B, d]: where B is d, another row's end makes a column 0, and "
            "nothing raises. It needs an axis more, [B, 1].",
        ),
        Mistake(
            "reset where nothing ends",
            _made(resets=lambda done: ~done),
            "The state is reset behind every step but the ends. It is the other way round.",
        ),
        Mistake(
            "start not used",
            _made(first=torch.zeros_like),
            "You begin from 0. The rollout may begin in the middle of an episode: start is the state to go "
            "on from.",
        ),
        Mistake(
            "weight transposed",
            _made(step=lambda x, state, weight: (x + state @ weight.mT).tanh()),
            "You multiply by weight transposed, as nn.Linear does. Here it stands on the right as it is.",
        ),
        Mistake(
            "no tanh",
            _made(step=lambda x, state, weight: x + state @ weight),
            "The tanh is missing: the state is not held between -1 and 1.",
        ),
        Mistake(
            "tanh of the state alone",
            _made(step=lambda x, state, weight: x + (state @ weight).tanh()),
            "x is added behind the tanh. It is taken of the sum.",
        ),
        Mistake(
            "x multiplied as well",
            _made(step=lambda x, state, weight: ((x + state) @ weight).tanh()),
            "The weight multiplies x as well. x comes ready: only the state is multiplied.",
        ),
        Mistake(
            "an end that shows 0",
            _ends_are_zero,
            "The states of the last steps of episodes are 0 in what you return. The policy decides by them. "
            "Is the state reset before you keep it? Or do you keep it, and then write 0 into that very "
            "tensor, as state[...] = 0 does? masked_fill and torch.where make a new one.",
        ),
        Mistake(
            "states before each step",
            _one_behind,
            "Each step shows the state that it read, not the one that it made. Keep it after the step.",
        ),
        Mistake(
            "from environment to environment",
            _shared_state,
            "The state is handed from one row of the batch to the next. It goes along time, axis 1, in every "
            "row for itself.",
        ),
        Mistake(
            "time first",
            _time_first,
            "Time is the first axis of your result. The batch is: stack along dim=1.",
        ),
        Mistake(
            "start changed in place",
            _in_place,
            "The result is right, but start itself is overwritten. Whoever called your function still needs "
            "it.",
        ),
    ),
    hints=(
        "A loop over time, and in it three things: make the new state, keep it, reset it where the episode "
        "is over. In which order?",
        "x[:, t] is [B, d], and so is the state. done[:, t] is [B]: it needs an axis more to stand in front "
        "of d columns.",
        "masked_fill makes a new state with 0 in the rows that ended, without changing the one that is kept. "
        "torch.stack(kept, dim=1) puts the steps in their place.",
    ),
)

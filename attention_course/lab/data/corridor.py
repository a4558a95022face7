"""A corridor to walk: a cue at its entrance says which way to turn at its end (after Bakker 2002).

Each step shows three numbers: a signal of ±1, whether it is the cue (the flag), and whether this is the
junction. At the entrance the signal is the cue, in the corridor it is drawn anew at every step and means
nothing, at the junction it is 0. The corridor carries whoever is in it; only at the junction does an
action count, 1 for right and 0 for left, and right is right if the cue was +1.

``Corridor`` is one agent's environment, in Gymnasium's interface; ``draw`` makes whole batches of
episodes at once, which is possible because no action changes what is seen. A test walks both, step by step.
"""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_course.inputs import check_at_least

#: numbers an observation, and actions
SEEN, ACTIONS = 3, 2


class Corridor(gymnasium.Env):
    """One walk after the other through corridors of ``shortest`` to ``length`` steps.

    Without ``shortest`` all are ``length`` long. ``flagged`` says whether the second number marks the cue;
    if not, it is always 0. The reward is 1 for the right turn, else 0. Raises a ``ValueError`` for lengths
    below 0 or out of order.
    """

    def __init__(self, length: int = 10, *, shortest: int | None = None, flagged: bool = True) -> None:
        self.shortest, self.length = _lengths(length, shortest)
        self.flagged = flagged
        self.observation_space = spaces.Box(-1, 1, (SEEN,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)
        self.signals: list[int] = []
        self.time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the first observation of a new walk; ``options={"signals": […]}`` says which.

        The first signal is the cue, the others are what the corridor shows.
        """
        super().reset(seed=seed)
        if options and "signals" in options:
            self.signals = [int(signal) for signal in options["signals"]]
        else:
            steps = self.np_random.integers(self.shortest, self.length + 1)
            self.signals = [int(sign) for sign in 2 * self.np_random.integers(2, size=steps + 1) - 1]
        self.time = 0
        return self._seen(), {}

    def step(self, action: int | np.integer) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Return (observation, reward, terminated, truncated, info) after one step.

        Raises Gymnasium's ``ResetNeeded`` where no walk is under way.
        """
        if not self.signals:
            raise gymnasium.error.ResetNeeded("call reset before step: no walk is under way")
        if self.time < len(self.signals):  # in the corridor: carried on, whatever the action
            self.time += 1
            return self._seen(), 0.0, False, False, {}
        reward = float((action == 1) == (self.signals[0] == 1))
        self.signals = []
        return np.zeros(SEEN, np.float32), reward, True, False, {}

    def _seen(self) -> np.ndarray:
        if self.time == len(self.signals):
            return np.array([0, 0, 1], np.float32)
        return np.array([self.signals[self.time], self.flagged and self.time == 0, 0], np.float32)


class Walks(NamedTuple):
    """A batch of rows; each holds one walk or several, one behind the other, and padding at its end."""

    observations: Float[Tensor, "B T 3"]
    #: the way that is right for this step's walk, 0 or 1
    way: Int[Tensor, "B T"]
    #: where the action counts, and the walk ends with this step
    junction: Bool[Tensor, "B T"]
    #: no padding
    alive: Bool[Tensor, "B T"]


def draw(
    size: int,
    generator: torch.Generator,
    length: int,
    *,
    shortest: int | None = None,
    walks: int = 1,
    flagged: bool = True,
) -> Walks:
    """Return ``size`` rows of so many ``walks`` each, as ``Corridor`` makes them; T = walks·(length + 2).

    Raises a ``ValueError`` for lengths below 0 or out of order, or for less than one walk.
    """
    low, high = _lengths(length, shortest)
    check_at_least(1, walks=walks)
    steps = torch.randint(low, high + 1, (size, walks), generator=generator)
    ends = (steps + 2).cumsum(1)  # the first step that is no longer in the walk
    T = walks * (length + 2)
    signs = 2.0 * torch.randint(2, (size, T), generator=generator) - 1
    time = torch.arange(T)
    alive = time < ends[:, -1:]
    walk = (time[None, :, None] >= ends[:, None, :]).sum(-1).clamp(max=walks - 1)  # [size, T]: which one
    starts = ends - steps - 2
    entrance = (time == starts.gather(1, walk)) & alive
    junction = time == ends.gather(1, walk) - 1
    cue = signs.gather(1, starts.gather(1, walk))  # [size, T]: that of the step's own walk
    signal = signs.masked_fill(junction | ~alive, 0)
    flag = entrance.float() if flagged else torch.zeros_like(signs)
    observations = torch.stack((signal, flag, junction.float()), -1)
    return Walks(observations, (cue > 0).long(), junction, alive)


def rewards(walks: Walks, actions: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return what the actions bring at every step: 1 for the right turn at a junction, else 0."""
    return (walks.junction & (actions == walks.way)).float()


def _lengths(length: int, shortest: int | None) -> tuple[int, int]:
    shortest = length if shortest is None else shortest
    if not 0 <= shortest <= length:
        raise ValueError(f"shortest must lie between 0 and length, got {shortest} and {length}")
    return shortest, length

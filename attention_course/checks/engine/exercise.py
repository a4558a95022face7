"""What an exercise is: a reference, cases that tell right from wrong, and the usual mistakes."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attention_course.checks.engine.asks import Asks, Function, Inputs, Step
from attention_course.checks.engine.surroundings import undisturbed

_FUNCTION = Function()


@dataclass(frozen=True)
class Case:
    """One input on which a solution is tried; ``build`` draws it from a generator."""

    name: str
    build: Callable[[torch.Generator], Inputs]
    #: also compare the gradients with respect to every input
    gradient: bool = False
    #: ask of the gradients only that they arrive and are finite, where right answers may differ in them
    finite: bool = False
    #: what a module is built with, by name
    arguments: Mapping[str, int | float | bool] = field(default_factory=dict, hash=False)

    def inputs(self, seed: int = 0) -> Inputs:
        """The case's tensors: the same for the same seed, on the CPU, on every machine.

        Any integer is a seed. Two cases given the same seed still draw different numbers.
        """
        digest = hashlib.sha256(f"{seed}:{self.name}".encode()).digest()
        generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
        with undisturbed():  # a notebook may have set another default device or dtype
            return self.build(generator)


@dataclass(frozen=True)
class Mistake:
    """A usual mistake: a mutant of the reference, and the sentence for whoever made it."""

    name: str
    function: Callable[..., Any]
    message: str
    #: whether what a training run says shows the mistake: (said, questions, right answers) -> bool. To
    #: train the mutant as well, and compare, would take too long
    shows: Callable[[Tensor, Tensor, Tensor], bool] | None = None


@dataclass(frozen=True)
class Exercise:
    """What one exercise demands, and what it is worth."""

    name: str
    title: str
    points: int
    reference: Callable[..., Any]
    cases: tuple[Case, ...]
    mistakes: tuple[Mistake, ...]
    #: 1, 2 or 3
    difficulty: int
    minutes: int
    hints: tuple[str, ...]
    #: names of what is returned; one name means a tensor, several a tuple of tensors
    returns: tuple[str, ...]
    #: those of ``returns`` whose last axis must sum to 1
    distributions: tuple[str, ...] = ()
    #: those of ``returns`` that are weights with a mask: what may not be seen has a weight of exactly 0
    hidden: tuple[str, ...] = ()
    #: inputs of whose rows some results may not see some, as keys behind a mask: a wrong answer is tried with
    #: one row after the other exchanged
    unseen: tuple[str, ...] = ()
    #: inputs whose last axis sums to 1: right answers may rely on that, so gradients are compared along
    #: changes that keep it so
    given_distributions: tuple[str, ...] = ()
    #: inputs that count as constants in the gradient: none may flow to them
    constants: tuple[str, ...] = ()
    #: inputs that are settings: of their gradient nothing is asked, and an answer gets them without one, so
    #: that it may change in place what it multiplies with them
    settings: tuple[str, ...] = ()
    #: torch functions that would be the exercise's own answer
    forbidden: tuple[str, ...] = ()
    #: what a learner hands over
    asks: Asks = _FUNCTION

    @property
    def chapter(self) -> str:
        return self.name.partition(".")[0]

    @property
    def answer(self) -> str:
        """The name of the answer in the notebook: ``scores``, or a class's ``EncoderLayer``."""
        return self.asks.answer(self.name.partition(".")[2], self.reference)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the tensors that a case draws and an answer may not change."""
        return self.asks.parameters(self.reference)

    @property
    def call(self) -> str:
        """How a solution is called, as in ``scores(query, key)``."""
        return self.asks.call(self.name.partition(".")[2], self.reference)

    def setting(self, case: Case) -> str:
        """What goes in, as in ``query [3, 4], key [5, 4]``."""
        return self.asks.setting(case, self.reference)

    def steps(self, case: Case, inputs: Inputs) -> tuple[Step, ...]:
        """The calls of an answer by which the case is tried, on ``inputs`` drawn by it."""
        steps = self.asks.steps(case, inputs)
        if not self.settings:
            return steps
        places = [self.parameters.index(name) for name in self.settings]
        return tuple(replace(step, use={**step.use, "settings": places}) for step in steps)

    def shown(self, case: Case) -> Step:
        """What a learner sees of the case, and what of it is what."""
        return Step(self.asks.use(case), case.inputs())

    @property
    def stars(self) -> str:
        """The difficulty as it is printed: ●○○, ●●○ or ●●●."""
        return "●" * self.difficulty + "○" * (3 - self.difficulty)


@dataclass(frozen=True)
class Chapter:
    """The exercises of one chapter, in the order of its notebook."""

    name: str
    title: str
    exercises: tuple[Exercise, ...]

    @property
    def points(self) -> int:
        return sum(exercise.points for exercise in self.exercises)

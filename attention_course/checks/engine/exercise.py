"""What an exercise is: a reference, cases that tell right from wrong, and the usual mistakes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from attention_course.checks.engine.surroundings import undisturbed

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One input on which a solution is tried; ``build`` draws it from a generator."""

    name: str
    build: Callable[[torch.Generator], Inputs]
    #: also compare the gradients with respect to every input
    gradient: bool = False

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
    #: torch functions that would be the exercise's own answer
    forbidden: tuple[str, ...] = ()

    @property
    def chapter(self) -> str:
        return self.name.partition(".")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(signature(self.reference).parameters)

    @property
    def call(self) -> str:
        """How a solution is called, as in ``scores(query, key)``."""
        return f"{self.name.partition('.')[2]}({', '.join(self.parameters)})"

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

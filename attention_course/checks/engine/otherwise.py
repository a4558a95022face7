"""Mistakes of any exercise that are the right answer to other inputs: two of them swapped, one left out.

Who multiplies by a matrix from the wrong side, turns a mask round or counts from 1 computes what the
reference makes of inputs changed in that one way.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

from attention_course.checks.engine.asks import Inputs, Loaded
from attention_course.checks.engine.exercise import Exercise, Mistake

#: what is done to one input; None where it cannot be done
Change = Callable[[Tensor], Tensor | None]


def _transposed(x: Tensor) -> Tensor | None:
    square = x.dim() > 1 and x.shape[-1] == x.shape[-2]
    return x.mT if square and x.is_floating_point() else None


def _is_mask(x: Tensor) -> bool:
    return x.dim() > 0 and bool(((x == 0) | (x == 1)).all())


def _inverted(x: Tensor) -> Tensor | None:
    return (1 - x.long()).to(x.dtype) if _is_mask(x) else None


def _everything(x: Tensor) -> Tensor | None:
    return torch.ones_like(x) if _is_mask(x) else None


def _of_floats(change: Change) -> Change:
    return lambda x: change(x) if x.is_floating_point() and not _is_mask(x) else None


def _identity(x: Tensor) -> Tensor | None:
    square = x.dim() == 2 and x.shape[0] == x.shape[1]
    return torch.eye(len(x), dtype=x.dtype) if square else None


def _moved_on(by: int) -> Change:
    """Integers ``by`` more, such as lengths and places."""
    return lambda x: x + by if not (x.is_floating_point() or x.dtype == torch.bool) and x.dim() < 2 else None


def _by_the_root(power: float) -> Change:
    return lambda x: x * x.shape[-1] ** power if x.dim() > 1 else None


#: (name, message, change); ``{}`` is the input's name
_OF_ONE: tuple[tuple[str, str, Change], ...] = (
    (
        "{} transposed",
        "You use the transpose of {}. In x @ w the rows of w are the width of x; nn.Linear, which computes "
        "x @ w.mT, keeps its weight the other way round. Which of the two is {}?",
        _transposed,
    ),
    (
        "{} the other way round",
        "You take {} for its opposite: 1 for 0, True for False. What does True mean in it, and what does the "
        "function that takes it want True to mean?",
        _inverted,
    ),
    ("{} not used as a mask", "All is as if {} were True everywhere. Is it used, and where?", _everything),
    (
        "{} not used",
        "All is as if {} were 0, so that it adds nothing. Is it used, and is what comes of it used?",
        _of_floats(torch.zeros_like),
    ),
    (
        "{} not multiplied with",
        "All is as if {} were the identity: what should go through it goes past it.",
        _of_floats(_identity),
    ),
    ("{} with the other sign", "You use {} with the other sign. Which of two is subtracted?",
     _of_floats(torch.neg)),
    ("{} one too large", "You count one too many: all is as if {} were larger by 1.", _moved_on(1)),
    ("{} one too small", "You count one too few: all is as if {} were smaller by 1.", _moved_on(-1)),
    (
        "{} times the root of its width",
        "All is as if {} were multiplied by the root of its width. Is a scale left out, or used upside down?",
        _of_floats(_by_the_root(0.5)),
    ),
    (
        "{} times its width",
        "All is as if {} were multiplied by its width. Is a scale used upside down?",
        _of_floats(_by_the_root(1.0)),
    ),
    (
        "{} divided by the root of its width",
        "All is as if {} were divided by the root of its width. Is a scale used twice?",
        _of_floats(_by_the_root(-0.5)),
    ),
)  # fmt: skip


@lru_cache(maxsize=256)
def changes(exercise: Exercise) -> tuple[tuple[Mistake, Callable[[Inputs], Inputs | None]], ...]:
    """Every change of the inputs of ``exercise``, and the mistake that it shows."""
    # of two dozen tensors that are loaded by name, most pairs would be swapped for nothing
    state = exercise.asks.state if isinstance(exercise.asks, Loaded) else ()
    return tuple(_changes(exercise.parameters, len(state)))


def _changes(
    names: tuple[str, ...], first: int
) -> Iterator[tuple[Mistake, Callable[[Inputs], Inputs | None]]]:
    numbered = [*enumerate(names)][first:]
    for (a, one), (b, other) in combinations(numbered, 2):
        text = (
            f"All is as if {one} and {other} had changed places. Follow each to where it is used: is one "
            "taken for the other, or a product of the two the other way round?"
        )
        yield Mistake(f"{one} and {other} swapped", tuple, text), _swap(a, b)
    for name, message, change in _OF_ONE:
        for place, one in numbered:
            said = Mistake(name.format(one), tuple, message.format(one, one))
            yield said, _at(place, change)


def _swap(a: int, b: int) -> Callable[[Inputs], Inputs | None]:
    def swapped(inputs: Inputs) -> Inputs | None:
        changed = list(inputs)
        changed[a], changed[b] = inputs[b], inputs[a]
        alike = inputs[a].dtype == inputs[b].dtype and inputs[a].dim() == inputs[b].dim()
        return tuple(changed) if alike else None

    return swapped


def _at(place: int, change: Change) -> Callable[[Inputs], Inputs | None]:
    def changed(inputs: Inputs) -> Inputs | None:
        new = change(inputs[place])
        return None if new is None else (*inputs[:place], new, *inputs[place + 1 :])

    return changed

"""A mistake of any exercise: the result moves with something that it may not depend on.

A leak test, as one would make it by hand: one row of an input is exchanged, and nothing else. Where the right
result stands still and an answer's does not, the answer has looked where it may not.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attention_course.checks.engine.asks import Module, Step
from attention_course.checks.engine.examine import ATOL, RTOL, tensors
from attention_course.checks.engine.exercise import Exercise, Mistake
from attention_course.checks.engine.observe import Outcome, is_plain

#: of so many rows at either end of an axis
_ROWS = 3
#: an answer that takes longer is not called again and again
_SECONDS = 0.2

#: (step) -> what is made of it
Made = Callable[[Step], Outcome]


def moved_by(exercise: Exercise, answer: Made, right: Made, steps: list[Step]) -> Mistake | None:
    """The first row of the inputs of ``steps`` with which the answer moves where what is right does not."""
    for step in steps:
        mine, theirs = answer(step), right(step)
        if mine.seconds > _SECONDS or not _comparable(mine, theirs):
            continue
        for name, row, exchanged in _exchanged(exercise, step):
            my_other, their_other = answer(exchanged), right(exchanged)
            if not _comparable(my_other, their_other):
                continue
            results = (tensors(each.result) for each in (mine, my_other, theirs, their_other))
            for returned, one, other, want, still in zip(exercise.returns, *results, strict=True):
                # a number that is not finite stands for nothing
                moved = (want == still) & one.isfinite() & other.isfinite()
                moved &= ~torch.isclose(one, other, rtol=10 * RTOL, atol=10 * ATOL)
                if moved.any() and _repeats(answer, step, mine):
                    place = tuple(moved.nonzero()[0].tolist())
                    return _told(name, row, returned, place, float(one[place]), float(other[place]))
    return None


def _told(name: str, row: str, returned: str, place: tuple[int, ...], before: float, after: float) -> Mistake:
    where = f"{returned}[{', '.join(map(str, place))}]" if place else returned
    message = (
        f"A leak test: {name}[{row}] is exchanged, and nothing else. {where} was {before:.4g} and is "
        f"{after:.4g} now; a right answer does not move there. What comes out in that place has looked at "
        "what it may not see, or stands in another's place."
    )
    return Mistake("sees what it may not", torch.where, message)


def _comparable(mine: Outcome, theirs: Outcome) -> bool:
    if mine.raised or theirs.raised:
        return False
    one, other = tensors(mine.result), tensors(theirs.result)
    return len(one) == len(other) and all(
        is_plain(a) and a.shape == b.shape and a.dtype == b.dtype and a.is_floating_point()
        for a, b in zip(one, other, strict=True)
    )


def _repeats(answer: Made, step: Step, before: Outcome) -> bool:
    """Whether nothing moves where nothing is exchanged: no random number, nothing kept between calls."""
    again = answer(step)
    return _comparable(again, before) and all(
        torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(tensors(again.result), tensors(before.result), strict=True)
    )


def _exchanged(exercise: Exercise, step: Step) -> Iterator[tuple[str, str, Step]]:
    """(input, its row, the step with that row exchanged), the last rows first: most masks hide those."""
    state = exercise.asks.state if isinstance(exercise.asks, Module) else ()
    for place, (name, x) in enumerate(zip(exercise.parameters, step.inputs, strict=True)):
        # A weight matrix has rows of another kind. A value whose weight is too small for a float moves
        # nothing, though it is in sight; a key that is turned round then has all the weight.
        if name in (*state, *exercise.settings) or name.startswith("w_") or name.endswith("value"):
            continue
        for axis, row in _rows(x):
            other = _other(x, axis, row, name in exercise.given_distributions)
            if other is not None:
                inputs = (*step.inputs[:place], other, *step.inputs[place + 1 :])
                yield name, _written(x, axis, row), replace(step, inputs=inputs)


def _rows(x: Tensor) -> Iterator[tuple[int, int]]:
    """(axis, place on it): tokens, and the first of several sentences or heads."""
    if x.dim() < 2 or x.dtype == torch.bool or bool(((x == 0) | (x == 1)).all()):
        return
    tokens = -2 if x.is_floating_point() else -1
    length = x.shape[tokens]
    places = [*range(length - 1, -1, -1)] if length > 1 else []
    if length > 2 * _ROWS:
        places = [*places[:_ROWS], *places[-_ROWS:]]
    yield from ((tokens, place) for place in places)
    yield from ((axis, 0) for axis in range(x.dim() + tokens) if x.shape[axis] > 1)


def _other(x: Tensor, axis: int, row: int, sums_to_1: bool = False) -> Tensor | None:
    """``x`` with another row there; integers and distributions are exchanged for their neighbours, which
    are allowed ones."""
    before = x.select(axis, row)
    after = 1 - 2 * before if x.is_floating_point() and not sums_to_1 else x.select(axis, row - 1)
    if torch.equal(before, after):
        return None
    changed = x.clone()
    changed.select(axis, row).copy_(after)
    return changed


def _written(x: Tensor, axis: int, row: int) -> str:
    """The row as it is indexed, as in ``..., 2, :``."""
    if axis < 0:
        return ", ".join(["...", str(row), *[":"] * (-axis - 1)])
    return ", ".join([*[":"] * axis, str(row)])

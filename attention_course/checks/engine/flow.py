"""A mistake of exercises in which something may not be seen: the result moves with it.

A leak test, as one would make it by hand: one row of an input is exchanged, and nothing else. Where the right
result stands still and an answer's does not, the answer has looked where it may not.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attention_course.checks.engine.asks import Inputs, Step
from attention_course.checks.engine.examine import ATOL, RTOL, tensors
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.observe import Outcome, all_plain

#: of so many rows at either end of an axis
_ROWS = 3
#: an answer that takes longer is not called again and again
_SECONDS = 0.2
#: inputs are made so small that no softmax is saturated: whatever is in sight then moves the right result
_SMALL = 0.05

#: (step) -> what is made of it
Made = Callable[[Step], Outcome]


def moved_by(exercise: Exercise, answer: Made, right: Made, steps: list[tuple[Case, Step]]) -> Mistake | None:
    """The first row of the inputs in ``exercise.unseen`` with which the answer moves where what is right does
    not, whatever its size."""
    for case, step in steps:
        mine, theirs = answer(step), right(step)
        if mine.seconds > _SECONDS or not _comparable(mine, theirs):
            continue
        for name, row, exchanged in _exchanged(exercise, step):
            my_other, their_other = answer(exchanged), right(exchanged)
            if not _comparable(my_other, their_other):
                continue
            small = [right(replace(each, inputs=_small(each.inputs))) for each in (step, exchanged)]
            if small[0].raised or small[1].raised:
                continue
            results = (tensors(each.result) for each in (mine, my_other, theirs, their_other, *small))
            for returned, one, other, *still in zip(exercise.returns, *results, strict=True):
                at_rest = (still[0] == still[1]) & (still[2] == still[3])
                # one number of a row may rest by chance; and what is not finite stands for nothing
                at_rest = at_rest.all(-1, keepdim=True) if at_rest.dim() else at_rest
                moved = at_rest & one.isfinite() & other.isfinite()
                moved &= ~torch.isclose(one, other, rtol=10 * RTOL, atol=10 * ATOL)
                if moved.any() and _repeats(answer, step, mine):
                    place = tuple(moved.nonzero()[0].tolist())
                    return _told(case, name, row, returned, place, float(one[place]), float(other[place]))
    return None


def _told(
    case: Case, name: str, row: str, returned: str, place: tuple[int, ...], before: float, after: float
) -> Mistake:
    where = f"{returned}[{', '.join(map(str, place))}]" if place else returned
    message = (
        f"A leak test, in the case “{case.name}”: {name}[{row}] is exchanged, and nothing else. {where} was "
        f"{before:.4g} and is {after:.4g} now. It may not see that, and a right answer stays as it was there."
    )
    return Mistake("sees what it may not", torch.where, message)


def _small(inputs: Inputs) -> Inputs:
    return tuple(_SMALL * x.double() if x.is_floating_point() and not _is_mask(x) else x for x in inputs)


def _is_mask(x: Tensor) -> bool:
    return x.dtype == torch.bool or bool(((x == 0) | (x == 1)).all())


def _comparable(mine: Outcome, theirs: Outcome) -> bool:
    if not (all_plain(mine.result) and all_plain(theirs.result)):  # an error has no result
        return False
    one, other = tensors(mine.result), tensors(theirs.result)
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.is_floating_point()
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
    for place, (name, x) in enumerate(zip(exercise.parameters, step.inputs, strict=True)):
        if name not in exercise.unseen:
            continue
        for axis, row in _rows(x):
            other = _other(x, axis, row)
            if other is not None:
                inputs = (*step.inputs[:place], other, *step.inputs[place + 1 :])
                yield name, _written(axis, row), replace(step, inputs=inputs)


def _rows(x: Tensor) -> Iterator[tuple[int, int]]:
    """(axis, place on it): tokens, and the first of several sentences or heads."""
    tokens = -2 if x.is_floating_point() else -1
    length = x.shape[tokens]
    places = [*range(length - 1, -1, -1)] if length > 1 else []
    if length > 2 * _ROWS:
        places = [*places[:_ROWS], *places[-_ROWS:]]
    yield from ((tokens, place) for place in places)
    yield from ((axis, 0) for axis in range(x.dim() + tokens) if x.shape[axis] > 1)


def _other(x: Tensor, axis: int, row: int) -> Tensor | None:
    """``x`` with another row there; integers are exchanged for their neighbours, which are allowed ones."""
    before = x.select(axis, row)
    after = 1 - 2 * before if x.is_floating_point() else x.select(axis, row - 1)
    if torch.equal(before, after):
        return None
    changed = x.clone()
    changed.select(axis, row).copy_(after)
    return changed


def _written(axis: int, row: int) -> str:
    """The row as it is indexed, as in ``..., 2, :``."""
    if axis < 0:
        return ", ".join(["...", str(row), *[":"] * (-axis - 1)])
    return ", ".join([*[":"] * axis, str(row)])

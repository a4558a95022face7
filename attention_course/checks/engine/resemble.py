"""Mistakes of any exercise, known by what is left of the right result: its order, its sign, its neighbours.

An exercise's own mistakes come first; these say something where none of them fits.
"""

from collections.abc import Callable, Iterable
from itertools import permutations

import torch
from torch import Tensor

from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.examine import ATOL, RTOL, tensors
from attention_course.checks.engine.exercise import Exercise, Mistake
from attention_course.checks.engine.observe import Outcome, is_plain

Results = tuple[Tensor, ...]

#: fewer numbers than these are multiples of one another, or each other's neighbours, by chance
_ENOUGH = 4
#: no case draws larger numbers but one that is about large scores
_LOUD = 12.0
#: a factor nearer to 1 is rounding
_FACTOR = 1e-3


def resembled(exercise: Exercise, tried: Iterable[tuple[Inputs, Outcome, Results]]) -> Mistake | None:
    """The first relation that holds between what came out and what was expected, wherever they differ."""
    cases = [(inputs, outcome.result, expected) for inputs, outcome, expected in tried]
    if not cases or not all(_comparable(got, expected) for _, got, expected in cases):
        return None
    pairs = [(tensors(got), expected) for _, got, expected in cases]
    loud = all(_loud(inputs) for inputs, *_ in cases)
    for mistake, holds in _RELATIONS if loud else _OF_ANY_SIZE:
        if all(holds(exercise, got, expected) for got, expected in pairs):
            return mistake
    return None


def _loud(inputs: Inputs) -> bool:
    """Whether the scores made of them may be too large for an exponential."""
    return any(bool((x.abs()[x.isfinite()] > _LOUD).any()) for x in inputs if x.is_floating_point())


def _comparable(got: object, expected: Results) -> bool:
    found = got if isinstance(got, tuple) else (got,)
    return len(found) == len(expected) and all(map(is_plain, found))


def _close(got: Tensor, want: Tensor) -> bool:
    if got.shape != want.shape:
        return False
    return torch.allclose(got.double(), want.double(), rtol=RTOL, atol=ATOL, equal_nan=True)


# Relations ------------------------------------------------------------------------------------


def _in_another_order(exercise: Exercise, got: Results, expected: Results) -> bool:
    others = [order for order in permutations(range(len(got))) if order != tuple(range(len(got)))]
    return len(got) > 1 and any(
        all(_close(got[place], want) for place, want in zip(order, expected, strict=True)) for order in others
    )


def _sees_what_is_hidden(exercise: Exercise, got: Results, expected: Results) -> bool:
    """The weights of what may be seen are the right ones, but for what the hidden entries took of them."""
    rows = [
        (one, want)
        for name, one, want in zip(exercise.returns, got, expected, strict=True)
        if name in exercise.hidden
    ]
    if not rows or any(one.shape != want.shape for one, want in rows):
        return False
    return all(_visible_is_right(one.double(), want.double()) for one, want in rows) and any(
        bool(((want == 0) & (one > 0)).any()) for one, want in rows
    )


def _visible_is_right(got: Tensor, want: Tensor) -> bool:
    if not got.isfinite().all() or bool((got < 0).any()):
        return False
    visible = got.masked_fill(want == 0, 0.0)
    seen = visible.sum(-1, keepdim=True)
    # rows whose weight the hidden entries took as a whole, and rows that see nothing, say nothing
    telling = (seen > 1e-6) & (want.sum(-1, keepdim=True) > 0)
    share = torch.where(telling, visible / seen, want)
    return torch.allclose(share, want, rtol=10 * RTOL, atol=10 * ATOL) and bool(
        torch.isclose(got.sum(-1), torch.ones_like(got.sum(-1)), atol=1e-3).all()
    )


def _nan_where_nothing_is(exercise: Exercise, got: Results, expected: Results) -> bool:
    return _right_but_for_nan(got, expected) and all(
        bool((want[one.isnan()] == 0).all()) and not bool((one.isinf() & want.isfinite()).any())
        for one, want in zip(got, expected, strict=True)
    )


def _nan_where_scores_are_large(exercise: Exercise, got: Results, expected: Results) -> bool:
    return _right_but_for_nan(got, expected)


def _right_but_for_nan(got: Results, expected: Results) -> bool:
    """Whether every number that is finite is right, and some are not finite that should be."""
    strange = right = False
    for one, want in zip(got, expected, strict=True):
        if one.shape != want.shape:
            return False
        lost = ~one.isfinite() & want.isfinite()
        strange |= bool(lost.any())
        right |= bool((one.isfinite() & (want != 0)).any())
        if not _close(one.double().masked_fill(lost, 0.0), want.double().masked_fill(lost, 0.0)):
            return False
    return strange and right


def _each(relation: Callable[[Tensor, Tensor], bool]) -> Callable[[Exercise, Results, Results], bool]:
    """``relation`` between every result that differs and what was expected in its place."""

    def holds(exercise: Exercise, got: Results, expected: Results) -> bool:
        apart = [pair for pair in zip(got, expected, strict=True) if not _close(*pair)]
        return bool(apart) and all(_finite(*pair) and relation(*pair) for pair in apart)

    return holds


def _finite(got: Tensor, want: Tensor) -> bool:
    return got.numel() > 0 and bool(got.isfinite().all() and want.isfinite().all())


def _transposed(got: Tensor, want: Tensor) -> bool:
    return got.dim() > 1 and _close(got.mT, want)


def _negated(got: Tensor, want: Tensor) -> bool:
    if want.dtype == torch.bool:
        return _close(1 - got.double(), want)
    return _close(-got.double(), want)


def _multiplied(got: Tensor, want: Tensor) -> bool:
    if got.shape != want.shape or got.numel() < _ENOUGH:
        return False
    got, want = got.double(), want.double()
    factor = float((got * want).sum() / want.square().sum())
    return factor > 0 and abs(factor - 1) > _FACTOR and _close(got / factor, want)


def _raised_by_one_number(got: Tensor, want: Tensor) -> bool:
    if got.shape != want.shape or got.numel() < _ENOUGH:
        return False
    got, want = got.double(), want.double()
    return _close(got - (got - want).mean(), want)


def _moved(got: Tensor, want: Tensor) -> bool:
    """Whether what is there stands one place from where it should, but for the edge."""
    if got.shape != want.shape:
        return False
    return any(
        got.shape[axis] >= _ENOUGH
        and (
            _close(got.narrow(axis, 1, got.shape[axis] - 1), want.narrow(axis, 0, got.shape[axis] - 1))
            or _close(got.narrow(axis, 0, got.shape[axis] - 1), want.narrow(axis, 1, got.shape[axis] - 1))
        )
        for axis in range(-min(2, got.dim()), 0)
    )


def _turned_round(got: Tensor, want: Tensor) -> bool:
    return any(_close(got.flip(axis), want) for axis in range(-min(2, got.dim()), 0))


def _one_axis_more(got: Tensor, want: Tensor) -> bool:
    return got.dim() == want.dim() + 1 and any(
        size == 1 and _close(got.squeeze(axis), want) for axis, size in enumerate(got.shape)
    )


def _in_float32(got: Tensor, want: Tensor) -> bool:
    """Whether float64 is asked for and came, with the digits that float32 leaves of large scores."""
    wide = got.dtype == want.dtype == torch.float64 and got.shape == want.shape
    return wide and torch.allclose(got, want, rtol=2e-3, atol=2e-3)


def _columns_sum_to_1(exercise: Exercise, got: Results, expected: Results) -> bool:
    """Where there is a distribution: its columns sum to 1 in the place of its rows."""
    found = [
        (one, want)
        for name, one, want in zip(exercise.returns, got, expected, strict=True)
        if name in exercise.distributions
    ]

    def ones(sums: Tensor) -> bool:
        return bool((sums.double() - 1).abs().max() < 1e-3)

    return bool(found) and all(
        one.shape == want.shape and one.dim() > 1 and _finite(one, want)
        and ones(one.sum(-2)) and not ones(one.sum(-1))
        for one, want in found
    )  # fmt: skip


_RELATIONS: tuple[tuple[Mistake, Callable[[Exercise, Results, Results], bool]], ...] = (
    (
        Mistake(
            "results in another order",
            tuple,
            "What you return is right, but not in the order that is asked for. Look at the return statement.",
        ),
        _in_another_order,
    ),
    (
        Mistake(
            "what is hidden gets weight",
            torch.softmax,
            "The weights of what may be seen are right among themselves, but something that may not be seen "
            "takes a share. Either the mask lets it through: is it every row's own mask, and its edge in the "
            "right place? Or a finite score stands where -inf should: that leaves little beside low scores, "
            "and all of it beside high ones.",
        ),
        _sees_what_is_hidden,
    ),
    (
        Mistake(
            "NaN where nothing may be seen",
            torch.log,
            "All is right but the rows that see nothing. With every score -inf, softmax divides 0 by 0: give "
            "such a row scores to work with first, and its result afterwards.",
        ),
        _nan_where_nothing_is,
    ),
    (
        Mistake(
            "exponentials out of range",
            torch.exp,
            "All is right but where scores are far above or far below 0: there exponentials are infinite, or "
            "all that count are 0, and their quotient is NaN. Only differences of scores count: from each "
            "row its largest is subtracted first, and if some may not be seen, the largest of the others.",
        ),
        _nan_where_scores_are_large,
    ),
    (
        Mistake(
            "transposed",
            torch.transpose,
            "The numbers are right, and the last two axes are the wrong way round.",
        ),
        _each(_transposed),
    ),
    (
        Mistake(
            "the other way round",
            torch.neg,
            "Every number has the other sign, or every entry of a mask the other truth. Which of two is "
            "subtracted, or is a ~ missing or too many?",
        ),
        _each(_negated),
    ),
    (
        Mistake(
            "one factor too many or too few",
            torch.mul,
            "Every number is the right one times the same factor. Look at what is multiplied, divided or "
            "averaged once for all: a root, a number of things, a scale.",
        ),
        _each(_multiplied),
    ),
    (
        Mistake(
            "one term too many or too few",
            torch.add,
            "Every number differs from the right one by the same amount. Which term is left out or added "
            "twice?",
        ),
        _each(_raised_by_one_number),
    ),
    (
        Mistake(
            "off by one place",
            torch.roll,
            "The right numbers stand one place from where they belong. Look at where your indices begin.",
        ),
        _each(_moved),
    ),
    (
        Mistake(
            "back to front",
            torch.flip,
            "The right numbers stand in the opposite order along one axis.",
        ),
        _each(_turned_round),
    ),
    (
        Mistake(
            "float64 computed in float32",
            torch.Tensor.float,
            "The inputs are float64, and your numbers have float32's digits: somewhere there is .float(), "
            "dtype=torch.float32 or a tensor made without a dtype. Scores far from 0 lose what tells them "
            "apart. Stay in the dtype of the inputs.",
        ),
        _each(_in_float32),
    ),
    (
        Mistake(
            "an axis of length 1 too many",
            torch.squeeze,
            "The numbers are right, and an axis of length 1 is left among theirs. Look at keepdim and "
            "unsqueeze.",
        ),
        _each(_one_axis_more),
    ),
    (
        Mistake(
            "normalised along the other axis",
            torch.softmax,
            "The columns sum to 1, not the rows. Each row is one query's weights: look at dim.",
        ),
        _columns_sum_to_1,
    ),
)
#: those that say nothing of large scores
_OF_ANY_SIZE = tuple(one for one in _RELATIONS if one[1] is not _nan_where_scores_are_large)

"""Exercise 3: rotary positions."""

from collections.abc import Callable

import torch
from torch import Tensor

from attention_course.checks.engine.drawing import integer, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.positions import shared
from attention_course.checks.positions.shared import NAME


def _turned(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos - second * sin, first * sin + second * cos


def _turned_back(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos + second * sin, second * cos - first * sin


def _both_plus(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos + second * sin, first * sin + second * cos


def _both_minus(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos - second * sin, second * cos - first * sin


def _first_too_early(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    first = first * cos - second * sin
    return first, first * sin + second * cos


def _rotated(
    *,
    frequencies: Callable[[int], Tensor] = shared.frequencies_for,
    take: shared.Join = shared.neighbours,
    join: shared.Join = shared.neighbours,
    turn: Callable[..., tuple[Tensor, Tensor]] = _turned,
    positions: Callable[[Tensor, Tensor], Tensor] = lambda x, start: start + torch.arange(x.shape[-2]),
) -> Callable[[Tensor, Tensor], Tensor]:
    def rotate(x: Tensor, start: Tensor) -> Tensor:
        angles = positions(x, start).double()[..., None] * frequencies(x.shape[-1])
        return join(*turn(*shared.TAKEN[take](x), angles.sin().to(x.dtype), angles.cos().to(x.dtype)))

    return rotate


def _rotate(x: Tensor, start: Tensor) -> Tensor:
    positions = start + torch.arange(x.shape[-2])
    angles = positions.double()[:, None] * shared.frequencies_for(x.shape[-1])
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    first, second = x[..., 0::2], x[..., 1::2]
    return shared.neighbours(first * cos - second * sin, first * sin + second * cos)


def _rotated_mixed(pairs: shared.Join, angles_laid: shared.Join) -> Callable[[Tensor, Tensor], Tensor]:
    """x·cos + (x with its pairs turned by 90°)·sin, where the angles are laid out in another way."""

    def rotate(x: Tensor, start: Tensor) -> Tensor:
        angles = (start + torch.arange(x.shape[-2])).double()[:, None] * shared.frequencies_for(x.shape[-1])
        laid = angles_laid(angles, angles)
        first, second = shared.TAKEN[pairs](x)
        return x * laid.cos().to(x.dtype) + pairs(-second, first) * laid.sin().to(x.dtype)

    return rotate


def _heads_counted(x: Tensor, start: Tensor) -> Tensor:
    """[h, 1] where there are heads, and [T] where x has two axes."""
    places = start + torch.arange(x.shape[-3 if x.dim() > 2 else -2])
    return places[:, None] if x.dim() > 2 else places


def _rotary_added(x: Tensor, start: Tensor) -> Tensor:
    return x + shared.encoding(start + torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype)


def _rotate_in_place(x: Tensor, start: Tensor) -> Tensor:
    return x.copy_(_rotate(x, start))


ROTATE = Exercise(
    name=f"{NAME}.rotate",
    title="Rotary positions",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_rotate,
    returns=("rotated",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 3, 4), torch.tensor(0))),
        Case("batch and heads", lambda g: (normal(g, 2, 3, 5, 8), torch.tensor(0))),
        Case("as many heads as tokens", lambda g: (normal(g, 2, 4, 4, 6), torch.tensor(0))),
        Case("one new token", lambda g: (normal(g, 2, 3, 1, 8), integer(g, 3, 9))),
        Case(
            "three new tokens, float64",
            lambda g: (normal(g, 2, 2, 3, 16, dtype=torch.float64), integer(g, 3, 9)),
        ),
        Case("gradient", lambda g: (normal(g, 2, 3, 6), integer(g, 3, 9)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "exponent i/d",
            _rotated(frequencies=lambda width: shared.frequencies_for(width).sqrt()),
            "The exponent is half of what it should be: pair i has the frequency 10000 to the power -2i/d, "
            "and the 2 is missing.",
        ),
        Mistake(
            "exponent not divided by d",
            _rotated(
                frequencies=lambda width: shared.BASE ** -torch.arange(0.0, width, 2, dtype=torch.float64)
            ),
            "The exponent is not divided by d, so that all but the first pairs hardly turn. The last "
            "frequency is about 1/10000, whatever the width.",
        ),
        Mistake(
            "exponent 4i/d",
            _rotated(frequencies=lambda width: shared.frequencies_for(width).square()),
            "The exponent is twice what it should be, -4i/d for pair i: a 2 too many, or half the width in "
            "the place of d. The last frequency is about 1/10000.",
        ),
        Mistake(
            "halves paired",
            _rotated(take=shared.halves, join=shared.halves),
            "Column i is turned together with column i + d_k/2. That is the other layout, the one of "
            "Llama in Hugging Face's library. Here neighbours make a pair: columns 2i and 2i + 1.",
        ),
        Mistake(
            "turned backwards",
            _rotated(turn=_turned_back),
            "Every pair turns the other way round. Among themselves, queries and keys turned so have "
            "the right scores; with keys that other code has turned they have not. The minus sign "
            "belongs to the first of a pair.",
        ),
        Mistake(
            "one angle for all pairs",
            _rotated(frequencies=shared.same_for_all),
            "All pairs of a token are turned by the same angle, its position. Pair i has the "
            "frequency ω_i: fast hands and slow ones.",
        ),
        Mistake(
            "start ignored",
            _rotated(positions=lambda x, start: torch.arange(x.shape[-2])),
            "Positions always begin at 0. While decoding, x holds only the new tokens, and the first "
            "of them stands at start.",
        ),
        Mistake(
            "all tokens at one position",
            _rotated(positions=lambda x, start: start.expand(x.shape[-2])),
            "Every token is turned as if it stood at start. That is right for one new token only: the "
            "next one stands at start + 1.",
        ),
        Mistake(
            "positions along the heads",
            _rotated(positions=lambda x, start: (start + torch.arange(x.shape[-3]))[:, None]),
            "All tokens of a head are turned alike, and every head differently: you count along "
            "axis -3. Heads stand in front of tokens, so the tokens are axis -2.",
        ),
        Mistake(
            "heads counted",
            _rotated(positions=_heads_counted),
            "Where x has heads you count these: all tokens of a head are turned alike. Tokens are axis -2, "
            "with heads or without.",
        ),
        Mistake(
            "place times start",
            _rotated(positions=lambda x, start: start * torch.arange(x.shape[-2])),
            "The token in place t is turned as if it stood at t · start, and the first one always at 0. "
            "Positions go on from start in steps of 1.",
        ),
        Mistake(
            "minus sign missing",
            _rotated(turn=_both_plus),
            "Both sums have a plus. That is no rotation: vectors change their length. A turn by the "
            "angle a takes (x, y) to (x cos a - y sin a, x sin a + y cos a).",
        ),
        Mistake(
            "two minus signs",
            _rotated(turn=_both_minus),
            "Both sums have a minus. That is no rotation: vectors change their length. The first of a pair "
            "is right; look at the second line of the formula.",
        ),
        Mistake(
            "first overwritten too early",
            _rotated(turn=_first_too_early),
            "The second of each pair is made from the first as it is after the turn. Keep the old "
            "first until both are computed; a slice of a tensor you write into is not a copy.",
        ),
        Mistake(
            "halves paired, angles of neighbours",
            _rotated_mixed(shared.halves, shared.neighbours),
            "The angles are laid out a, a, b, b for neighbours, and the pairs are i and i + d_k/2. The "
            "two of a pair are then turned by different angles. Take both from the same layout.",
        ),
        Mistake(
            "neighbours paired, angles of halves",
            _rotated_mixed(shared.neighbours, shared.halves),
            "The pairs are neighbours, and the angles are laid out a, b, a, b for halves. The two of "
            "a pair are then turned by different angles. Take both from the same layout.",
        ),
        Mistake(
            "joined as halves",
            _rotated(join=shared.halves),
            "The numbers are right and stand in other columns: all firsts on the left, all seconds "
            "on the right. Put each pair back where it came from, side by side.",
        ),
        Mistake(
            "taken as halves",
            _rotated(take=shared.halves),
            "You turn columns i and i + d_k/2 together and put the two side by side. The pairs are "
            "neighbours in x already: columns 2i and 2i + 1. Look at how you take x apart.",
        ),
        Mistake(
            "counted from 1",
            _rotated(positions=lambda x, start: start + torch.arange(x.shape[-2]) + 1),
            "Every token is turned one step too far. The first one stands at start.",
        ),
        Mistake(
            "added instead of turned",
            _rotary_added,
            "The sinusoids of exercise 1 are added to x. A rotary encoding adds nothing: it multiplies "
            "each pair by a rotation, and the length of a vector stays.",
        ),
        Mistake(
            "x changed in place",
            _rotate_in_place,
            "The result is right, but it is written into x itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Write the shapes: positions [T], frequencies [d_k / 2], angles [T, d_k / 2]. Which columns "
        "of x belong to angle i?",
        "The first numbers of all pairs are every second column from 0 on, the second ones every second "
        "column from 1 on: [..., T, d_k / 2], as the angles are. Turn them by the two lines of the "
        "rotation matrix.",
        "Stack the two on a new last axis and flatten it, and pairs lie side by side again. The "
        "positions count from start, one for each token.",
    ),
)

"""Exercise 2: the shift by k."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import integer, normal
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.positions import shared
from attention_course.checks.positions.shared import NAME


def _shifted(
    frequencies: Callable[[int], Tensor] = shared.frequencies_for,
    take: shared.Join = shared.neighbours,
    join: shared.Join = shared.neighbours,
    turn: Callable[..., tuple[Tensor, Tensor]] = lambda sine, cosine, sin, cos: (
        sine * cos + cosine * sin,
        cosine * cos - sine * sin,
    ),
) -> Callable[[Tensor, Tensor], Tensor]:
    def shift(table: Tensor, k: Tensor) -> Tensor:
        angles = k.double() * frequencies(table.shape[-1])
        sine, cosine = shared.TAKEN[take](table)
        return join(*turn(sine, cosine, angles.sin().to(table.dtype), angles.cos().to(table.dtype)))

    return shift


def _shift(table: Tensor, k: Tensor) -> Tensor:
    angles = k.double() * shared.frequencies_for(table.shape[-1])
    sin, cos = angles.sin().to(table.dtype), angles.cos().to(table.dtype)
    sine, cosine = table[..., 0::2], table[..., 1::2]
    return shared.neighbours(sine * cos + cosine * sin, cosine * cos - sine * sin)


def _shift_overwritten(table: Tensor, k: Tensor) -> Tensor:
    angles = k.double() * shared.frequencies_for(table.shape[-1])
    sin, cos = angles.sin().to(table.dtype), angles.cos().to(table.dtype)
    result = table.clone()
    sine, cosine = result[..., 0::2], result[..., 1::2]  # views: they follow result
    result[..., 0::2] = sine * cos + cosine * sin
    result[..., 1::2] = cosine * cos - sine * sin
    return result


def _shift_in_place(table: Tensor, k: Tensor) -> Tensor:
    return table.copy_(_shift(table, k))


def _shift_by_row_times_k(table: Tensor, k: Tensor) -> Tensor:
    return _shift(table, torch.arange(table.shape[-2])[:, None] * k)


def _made_anew(table: Tensor, k: Tensor) -> Tensor:
    positions = torch.arange(table.shape[-2]) + k
    return shared.encoding(positions, table.shape[-1]).to(table.dtype).expand_as(table)


def _cosines_first(sine: Tensor, cosine: Tensor) -> Tensor:
    return shared.neighbours(cosine, sine)


def _shift_by_row(table: Tensor, k: Tensor) -> Tensor:
    return _shift(table, torch.arange(table.shape[-2])[:, None])


def _sinusoids(generator: Generator, *shape: int) -> Tensor:
    """[..., T, width]: the encodings of T positions in a row; where they start is drawn."""
    *leading, length, width = shape
    start = torch.randint(0, 30, (*leading, 1), generator=generator)
    return shared.encoding(start + torch.arange(length), width).float()


SHIFT = Exercise(
    name=f"{NAME}.shift",
    title="A shift is a rotation",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_shift,
    returns=("shifted",),
    cases=(
        Case("one pair, one step", lambda g: (_sinusoids(g, 3, 2), torch.tensor(1))),
        Case("batch", lambda g: (_sinusoids(g, 2, 5, 8), integer(g, 2, 6))),
        Case("backwards", lambda g: (_sinusoids(g, 4, 6), -integer(g, 2, 6))),
        Case("half a step", lambda g: (_sinusoids(g, 3, 8), torch.tensor(0.5))),
        Case(
            "no sinusoids, float64",
            lambda g: (normal(g, 2, 3, 4, 6, dtype=torch.float64), integer(g, 2, 6)),
        ),
        Case("gradient", lambda g: (normal(g, 3, 8), integer(g, 2, 6)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "exponent i/d",
            _shifted(frequencies=lambda width: shared.frequencies_for(width).sqrt()),
            "The exponent is half of what it should be: pair i has the frequency 10000 to the power -2i/d, "
            "and the 2 is missing.",
        ),
        Mistake(
            "exponent not divided by d",
            _shifted(
                frequencies=lambda width: shared.BASE ** -torch.arange(0.0, width, 2, dtype=torch.float64)
            ),
            "The exponent is not divided by d, so that all but the first pairs hardly turn. The last "
            "frequency is about 1/10000, whatever the width.",
        ),
        Mistake(
            "wrong direction",
            _shifted(
                turn=lambda sine, cosine, sin, cos: (sine * cos - cosine * sin, cosine * cos + sine * sin)
            ),
            "Every row moves back by k. You turn by the matrix for a pair (cosine, sine); here the "
            "sine comes first, and the minus sign changes its place. Or your R is transposed: a row "
            "vector times R is not R times a column.",
        ),
        Mistake(
            "same angle for every pair",
            _shifted(shared.same_for_all),
            "Every pair is turned by the angle k. Pair i has its own hand of the clock: it turns by k · ω_i.",
        ),
        Mistake(
            "rows moved",
            lambda table, k: table.roll(-int(k), -2),
            "The rows change places, and those that fall out come in at the other end. The row of "
            "position p has to become the one of position p + k, which the table may not hold.",
        ),
        Mistake(
            "encoding of k added",
            lambda table, k: table + shared.encoding(k, table.shape[-1]).to(table.dtype),
            "The encoding of position k is added. Positions add up as angles do: the sine of a sum is "
            "not the sum of two sines.",
        ),
        Mistake(
            "multiplied by the encoding of k",
            lambda table, k: table * shared.encoding(k, table.shape[-1]).to(table.dtype),
            "Each column is multiplied by its own number: the sine by a sine, the cosine by a cosine. "
            "In a rotation both of a pair go into each: sin(a + b) = sin a cos b + cos a sin b.",
        ),
        Mistake(
            "halves instead of neighbours",
            _shifted(take=shared.halves, join=shared.halves),
            "Column i is paired with column i + d_model/2. In this table the sine and the cosine of "
            "one frequency are neighbours: columns 2i and 2i + 1.",
        ),
        Mistake(
            "turned by the row's own number",
            _shift_by_row,
            "Row r is turned by r · ω_i, and k has no part in it. Every row moves by the same k, "
            "wherever it stands.",
        ),
        Mistake(
            "turned by the row's number times k",
            _shift_by_row_times_k,
            "Row r is turned by r · k · ω_i, so the first row stays. Every row moves by the same k, wherever "
            "it stands.",
        ),
        Mistake(
            "table made anew",
            _made_anew,
            "You make the encodings of positions k, k + 1, ... and do not use what the rows hold. The rows "
            "may begin at any position, which you are not told: turn what is there.",
        ),
        Mistake(
            "k cut to a whole number",
            lambda table, k: _shift(table, torch.tensor(int(k))),
            "Half a step does nothing: k is made a whole number on its way. k may be a fraction.",
        ),
        Mistake(
            "joined as halves",
            _shifted(join=shared.halves),
            "The numbers are right and stand in other columns: all sines on the left, all cosines on the "
            "right. Put each pair back where it came from, side by side.",
        ),
        Mistake(
            "cosines written first",
            _shifted(join=_cosines_first),
            "The numbers are right, and the two of each pair have changed places. Sines stand in even "
            "columns, in what you return as well.",
        ),
        Mistake(
            "wrong sign in the sine",
            _shifted(
                turn=lambda sine, cosine, sin, cos: (sine * cos - cosine * sin, cosine * cos - sine * sin)
            ),
            "The cosines are right and the sines have a minus where a plus belongs: "
            "sin(a + b) = sin a cos b + cos a sin b.",
        ),
        Mistake(
            "wrong sign in the cosine",
            _shifted(
                turn=lambda sine, cosine, sin, cos: (sine * cos + cosine * sin, cosine * cos + sine * sin)
            ),
            "The sines are right and the cosines have a plus where a minus belongs: "
            "cos(a + b) = cos a cos b - sin a sin b.",
        ),
        Mistake(
            "sine overwritten too early",
            _shift_overwritten,
            "The new sines are written into the tensor before the cosines have used the old ones. A "
            "slice is a view: it changes with its tensor. Compute both, then put them together.",
        ),
        Mistake(
            "table changed in place",
            _shift_in_place,
            "The result is right, but it is written into table itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Write the row as sin a, cos a with a = p · ω. What are sin(a + b) and cos(a + b) with "
        "b = k · ω? Position p itself must not turn up in what you multiply with.",
        "Take the columns apart: every second one from the first on is a sine, every second one from the "
        "second on a cosine. The angles k · ω_i are one number per pair.",
        "The addition theorems give the new sine and the new cosine of a pair out of four products. "
        "Stack the two on a new last axis and flatten it: they lie side by side again.",
    ),
)

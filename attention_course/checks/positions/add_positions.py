"""Exercise 1: sinusoids."""

from collections.abc import Callable

import torch
from torch import Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.positions import shared
from attention_course.checks.positions.shared import NAME


def _exponent_halved(width: int) -> Tensor:
    return shared.frequencies_for(width).sqrt()


def _exponent_doubled(width: int) -> Tensor:
    return shared.frequencies_for(width).square()


def _exponent_to_minus_1(width: int) -> Tensor:
    pairs = torch.arange(width // 2, dtype=torch.float64)
    return shared.BASE ** (-pairs / max(width // 2 - 1, 1))


def _base_missing(width: int) -> Tensor:
    return torch.exp(-torch.arange(0, width, 2, dtype=torch.float64) / width)


def _swapped(first: Tensor, second: Tensor) -> Tensor:
    return shared.neighbours(second, first)


def _added(
    frequencies: Callable[[int], Tensor] = shared.frequencies_for,
    join: shared.Join = shared.neighbours,
    start: int = 0,
    axis: int = -2,
) -> Callable[[Tensor], Tensor]:
    def add_positions(x: Tensor) -> Tensor:
        positions = torch.arange(start, start + x.shape[axis])
        return x + shared.encoding(positions, x.shape[-1], frequencies, join).to(x.dtype)

    return add_positions


def _add_positions(x: Tensor) -> Tensor:
    return x + shared.encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype)


def _added_per_sentence(x: Tensor) -> Tensor:
    return x + shared.encoding(torch.arange(x.shape[0]), x.shape[-1]).to(x.dtype)[:, None]


def _added_by_column(factor: int) -> Callable[[Tensor], Tensor]:
    """Every column c has a frequency of its own, base^(-factor·c/d)."""

    def add_positions(x: Tensor) -> Tensor:
        length, width = x.shape[-2:]
        columns = torch.arange(width, dtype=torch.float64)
        angles = torch.arange(length)[:, None] * shared.BASE ** (-factor * columns / width)
        table = torch.where(columns % 2 == 0, angles.sin(), angles.cos())
        return x + table.to(x.dtype)

    return add_positions


def _added_fast(dtype: torch.dtype | None = None) -> Callable[[Tensor], Tensor]:
    """The exponent is positive. Such angles are so large that the dtype shows in their sines: that of x, or
    ``dtype``."""

    def add_positions(x: Tensor) -> Tensor:
        length, width = x.shape[-2:]
        used = dtype or x.dtype
        frequencies = shared.BASE ** (torch.arange(0, width, 2, dtype=used) / width)
        angles = torch.arange(length, dtype=used)[:, None] * frequencies
        return x + shared.neighbours(angles.sin(), angles.cos()).to(x.dtype)

    return add_positions


def _added_to_scaled(x: Tensor) -> Tensor:
    return _add_positions(x * x.shape[-1] ** 0.5)


def _added_in_place(x: Tensor) -> Tensor:
    x += shared.encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype)
    return x


ADD_POSITIONS = Exercise(
    name=f"{NAME}.add_positions",
    title="Sines and cosines",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_add_positions,
    returns=("encoded",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 1, 3, 4),)),
        Case("batch", lambda g: (normal(g, 2, 5, 8),)),
        Case("as many sentences as tokens", lambda g: (normal(g, 4, 4, 6),)),
        Case("one token", lambda g: (normal(g, 3, 1, 6),)),
        Case("wide, float64", lambda g: (normal(g, 2, 9, 32, dtype=torch.float64),)),
        Case("gradient", lambda g: (normal(g, 2, 3, 6),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "positions along the batch",
            _added_per_sentence,
            "All tokens of a sentence get the same vector, and each sentence another one: you count "
            "along the first axis. Here the batch comes first and the tokens stand on axis -2.",
        ),
        Mistake(
            "length read from the first axis",
            _added(axis=0),
            "The table has as many rows as there are sentences. It needs one row per token: read T "
            "from axis -2.",
        ),
        Mistake(
            "sines and cosines swapped",
            _added(join=_swapped),
            "Even columns hold cosines and odd ones sines. Position 0 gets 0, 1, 0, 1, ...: sines "
            "come first.",
        ),
        Mistake(
            "halves instead of neighbours",
            _added(join=shared.halves),
            "All sines stand on the left and all cosines on the right. The authors' own library does "
            "that; their formula puts the sine and the cosine of one frequency side by side, in "
            "columns 2i and 2i + 1.",
        ),
        Mistake(
            "exponent i/d",
            _added(_exponent_halved),
            "The exponent is i/d_model, half of what it should be, so the slowest hand turns with "
            "about 1/100 and not 1/10000. Here i counts the pairs: the factor 2 is missing.",
        ),
        Mistake(
            "exponent doubled",
            _added(_exponent_doubled),
            "The exponent is 4i/d_model. If you count columns in steps of 2, the count is 2i already; "
            "do not multiply it by 2 again.",
        ),
        Mistake(
            "another frequency for the cosine",
            _added_by_column(1),
            "The sines are right. Each cosine uses its own column, 2i + 1, in the exponent. The two "
            "of a pair share one frequency, else they are no hand of a clock. Use 2i for both.",
        ),
        Mistake(
            "column number doubled in the exponent",
            _added_by_column(2),
            "The exponent is 2c/d_model with the column c, for sines and cosines alike. The i of the "
            "formula counts pairs, not columns: columns 2i and 2i + 1 both have the exponent "
            "2i/d_model.",
        ),
        Mistake(
            "multiplied instead of divided",
            _added_fast(),
            "Later pairs turn faster: the positions are multiplied by 10000^(2i/d_model). Look at the "
            "sign of the exponent.",
        ),
        Mistake(
            "sign of the exponent",
            _added_fast(torch.float32),
            "Later pairs turn faster, up to almost 10000 radians a step. The frequencies fall from 1 towards "
            "1/10000. Look at the sign of the exponent.",
        ),
        Mistake(
            "last frequency exactly 1/10000",
            _added(_exponent_to_minus_1),
            "The exponent is i / (d_model/2 - 1), so the last frequency is exactly 1/10000. The authors' own "
            "library does that; in their formula the exponent is 2i/d_model, which stays below 1.",
        ),
        Mistake(
            "one frequency for all pairs",
            _added(shared.same_for_all),
            "Every pair turns by 1 a step. Is the exponent a whole number, made by // or by an integer "
            "dtype? Each pair has a frequency of its own.",
        ),
        Mistake(
            "base missing",
            _added(_base_missing),
            "The frequencies are e^(-2i/d_model), from 1 to about 1/e. If you write a power by exp, "
            "the exponent needs the factor log(10000).",
        ),
        Mistake(
            "counted from 1",
            _added(start=1),
            "The first token gets the vector of position 1. Positions are counted from 0.",
        ),
        Mistake(
            "x scaled as well",
            _added_to_scaled,
            "x is multiplied by √d_model before the positions are added. The Transformer does that "
            "to its embeddings, before it calls this function: here x comes ready.",
        ),
        Mistake(
            "multiplied by the table",
            lambda x: x * shared.encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype),
            "x is multiplied by the table. The first token then loses every even column, since sin 0 is 0. "
            "The table is added.",
        ),
        Mistake(
            "x forgotten",
            lambda x: shared.encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype),
            "You return the table alone. Add it to x.",
        ),
        Mistake(
            "x changed in place",
            _added_in_place,
            "The table is added into x itself, as x += ... does. Whoever called your function now "
            "holds other embeddings. Make a new tensor.",
        ),
    ),
    hints=(
        "Make the table [T, d_model] first and add it at the end: it broadcasts over the batch. How "
        "many frequencies are there, and which columns does each serve?",
        "The even numbers below d_model are 2i, one for every pair. Positions as a column times "
        "frequencies as a row is [T, d_model / 2]: one angle for each token and pair.",
        "Stack sines and cosines on a new last axis and flatten it into the one before: they lie side by "
        "side. Give the table the dtype of x before you add.",
    ),
)

"""Chapter 6: sinusoids, their shift by k, rotary positions, the two layouts, ALiBi.

Inputs are drawn so that the usual mistakes show. Sentences, heads and tokens differ in number, and
agree in a case of their own where a wrong axis would otherwise raise. Positions stay below 50: there
a table made in float32 and one made in float64 are the same.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.drawing import integer, normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake

NAME = "06_positions"

BASE = 10000.0
#: in the exercise that cannot read the number of heads from a shape; the notebook says so
NUM_HEADS = 2


# Drawing inputs -------------------------------------------------------------------------------


# Frequencies and layouts, right and wrong -----------------------------------------------------


def _frequencies(width: int) -> Tensor:
    return BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def _exponent_halved(width: int) -> Tensor:
    return _frequencies(width).sqrt()


def _exponent_doubled(width: int) -> Tensor:
    return _frequencies(width).square()


def _exponent_positive(width: int) -> Tensor:
    return 1 / _frequencies(width)


def _base_missing(width: int) -> Tensor:
    return torch.exp(-torch.arange(0, width, 2, dtype=torch.float64) / width)


def _all_one(width: int) -> Tensor:
    return torch.ones(width // 2, dtype=torch.float64)


def _neighbours(first: Tensor, second: Tensor) -> Tensor:
    """Pair i in columns 2i and 2i + 1."""
    return torch.stack((first, second), dim=-1).flatten(-2)


def _halves(first: Tensor, second: Tensor) -> Tensor:
    """Pair i in columns i and i + d/2."""
    return torch.cat((first, second), dim=-1)


def _swapped(first: Tensor, second: Tensor) -> Tensor:
    return _neighbours(second, first)


Join = Callable[[Tensor, Tensor], Tensor]
#: how to take apart what a join has put together
_TAKEN = {
    _neighbours: lambda x: (x[..., 0::2], x[..., 1::2]),
    _halves: lambda x: x.chunk(2, dim=-1),
}


def _encoding(
    positions: Tensor,
    width: int,
    frequencies: Callable[[int], Tensor] = _frequencies,
    join: Join = _neighbours,
) -> Tensor:
    """[...] -> [..., width], in float64."""
    angles = positions.double()[..., None] * frequencies(width)
    return join(angles.sin(), angles.cos())


# 1. Sinusoids ---------------------------------------------------------------------------------


def _added(
    frequencies: Callable[[int], Tensor] = _frequencies,
    join: Join = _neighbours,
    start: int = 0,
    axis: int = -2,
) -> Callable[[Tensor], Tensor]:
    def add_positions(x: Tensor) -> Tensor:
        positions = torch.arange(start, start + x.shape[axis])
        return x + _encoding(positions, x.shape[-1], frequencies, join).to(x.dtype)

    return add_positions


def _add_positions(x: Tensor) -> Tensor:
    return x + _encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype)


def _added_per_sentence(x: Tensor) -> Tensor:
    return x + _encoding(torch.arange(x.shape[0]), x.shape[-1]).to(x.dtype)[:, None]


def _added_by_column(factor: int) -> Callable[[Tensor], Tensor]:
    """Every column c has a frequency of its own, base^(-factor·c/d)."""

    def add_positions(x: Tensor) -> Tensor:
        length, width = x.shape[-2:]
        columns = torch.arange(width, dtype=torch.float64)
        angles = torch.arange(length)[:, None] * BASE ** (-factor * columns / width)
        table = torch.where(columns % 2 == 0, angles.sin(), angles.cos())
        return x + table.to(x.dtype)

    return add_positions


def _added_to_scaled(x: Tensor) -> Tensor:
    return _add_positions(x * x.shape[-1] ** 0.5)


def _added_in_place(x: Tensor) -> Tensor:
    x += _encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype)
    return x


ADD_POSITIONS = Exercise(
    name=f"{NAME}.add_positions",
    title="Sines and cosines",
    points=2,
    difficulty=1,
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
            _added(join=_halves),
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
            _added(_exponent_positive),
            "Later pairs turn faster: the positions are multiplied by 10000^(2i/d_model). Look at the "
            "sign of the exponent.",
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
            "x forgotten",
            lambda x: _encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype),
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
        "torch.arange(0, d_model, 2) is 2i for every pair. positions[:, None] * frequencies is "
        "[T, d_model / 2]: one angle for each token and pair.",
        "torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2) lays the two side by side. "
        "Give it the dtype of x before you add.",
    ),
)


# 2. The shift by k ----------------------------------------------------------------------------


def _shifted(
    frequencies: Callable[[int], Tensor] = _frequencies,
    join: Join = _neighbours,
    turn: Callable[..., tuple[Tensor, Tensor]] = lambda sine, cosine, sin, cos: (
        sine * cos + cosine * sin,
        cosine * cos - sine * sin,
    ),
) -> Callable[[Tensor, Tensor], Tensor]:
    def shift(table: Tensor, k: Tensor) -> Tensor:
        angles = k.double() * frequencies(table.shape[-1])
        sine, cosine = _TAKEN[join](table)
        return join(*turn(sine, cosine, angles.sin().to(table.dtype), angles.cos().to(table.dtype)))

    return shift


def _shift(table: Tensor, k: Tensor) -> Tensor:
    angles = k.double() * _frequencies(table.shape[-1])
    sin, cos = angles.sin().to(table.dtype), angles.cos().to(table.dtype)
    sine, cosine = table[..., 0::2], table[..., 1::2]
    return _neighbours(sine * cos + cosine * sin, cosine * cos - sine * sin)


def _shift_overwritten(table: Tensor, k: Tensor) -> Tensor:
    angles = k.double() * _frequencies(table.shape[-1])
    sin, cos = angles.sin().to(table.dtype), angles.cos().to(table.dtype)
    result = table.clone()
    sine, cosine = result[..., 0::2], result[..., 1::2]  # views: they follow result
    result[..., 0::2] = sine * cos + cosine * sin
    result[..., 1::2] = cosine * cos - sine * sin
    return result


def _shift_in_place(table: Tensor, k: Tensor) -> Tensor:
    return table.copy_(_shift(table, k))


def _shift_by_row(table: Tensor, k: Tensor) -> Tensor:
    return _shift(table, torch.arange(table.shape[-2])[:, None])


def _sinusoids(generator: Generator, *shape: int) -> Tensor:
    """[..., T, width]: the encodings of T positions in a row; where they start is drawn."""
    *leading, length, width = shape
    start = torch.randint(0, 30, (*leading, 1), generator=generator)
    return _encoding(start + torch.arange(length), width).float()


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
            _shifted(_all_one),
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
            lambda table, k: table + _encoding(k, table.shape[-1]).to(table.dtype),
            "The encoding of position k is added. Positions add up as angles do: the sine of a sum is "
            "not the sum of two sines.",
        ),
        Mistake(
            "multiplied by the encoding of k",
            lambda table, k: table * _encoding(k, table.shape[-1]).to(table.dtype),
            "Each column is multiplied by its own number: the sine by a sine, the cosine by a cosine. "
            "In a rotation both of a pair go into each: sin(a + b) = sin a cos b + cos a sin b.",
        ),
        Mistake(
            "halves instead of neighbours",
            _shifted(join=_halves),
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
        "Take the columns apart: sine = table[..., 0::2], cosine = table[..., 1::2]. The angles "
        "k · ω_i are one number per pair.",
        "The new sines are sine * cos + cosine * sin, the new cosines cosine * cos - sine * sin. "
        "torch.stack and flatten lay them side by side again.",
    ),
)


# 3. Rotary positions --------------------------------------------------------------------------


def _turned(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos - second * sin, first * sin + second * cos


def _turned_back(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos + second * sin, second * cos - first * sin


def _both_plus(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos + second * sin, first * sin + second * cos


def _first_too_early(first: Tensor, second: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    first = first * cos - second * sin
    return first, first * sin + second * cos


def _rotated(
    *,
    frequencies: Callable[[int], Tensor] = _frequencies,
    take: Join = _neighbours,
    join: Join = _neighbours,
    turn: Callable[..., tuple[Tensor, Tensor]] = _turned,
    positions: Callable[[Tensor, Tensor], Tensor] = lambda x, start: start + torch.arange(x.shape[-2]),
) -> Callable[[Tensor, Tensor], Tensor]:
    def rotate(x: Tensor, start: Tensor) -> Tensor:
        angles = positions(x, start).double()[..., None] * frequencies(x.shape[-1])
        return join(*turn(*_TAKEN[take](x), angles.sin().to(x.dtype), angles.cos().to(x.dtype)))

    return rotate


def _rotate(x: Tensor, start: Tensor) -> Tensor:
    positions = start + torch.arange(x.shape[-2])
    angles = positions.double()[:, None] * _frequencies(x.shape[-1])
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    first, second = x[..., 0::2], x[..., 1::2]
    return _neighbours(first * cos - second * sin, first * sin + second * cos)


def _rotated_mixed(pairs: Join, angles_laid: Join) -> Callable[[Tensor, Tensor], Tensor]:
    """x·cos + (x with its pairs turned by 90°)·sin, where the angles are laid out in another way."""

    def rotate(x: Tensor, start: Tensor) -> Tensor:
        angles = (start + torch.arange(x.shape[-2])).double()[:, None] * _frequencies(x.shape[-1])
        laid = angles_laid(angles, angles)
        first, second = _TAKEN[pairs](x)
        return x * laid.cos().to(x.dtype) + pairs(-second, first) * laid.sin().to(x.dtype)

    return rotate


def _rotary_added(x: Tensor, start: Tensor) -> Tensor:
    return x + _encoding(start + torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype)


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
            "halves paired",
            _rotated(take=_halves, join=_halves),
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
            _rotated(frequencies=_all_one),
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
            "minus sign missing",
            _rotated(turn=_both_plus),
            "Both sums have a plus. That is no rotation: vectors change their length. A turn by the "
            "angle a takes (x, y) to (x cos a - y sin a, x sin a + y cos a).",
        ),
        Mistake(
            "first overwritten too early",
            _rotated(turn=_first_too_early),
            "The second of each pair is made from the first as it is after the turn. Keep the old "
            "first until both are computed; a slice of a tensor you write into is not a copy.",
        ),
        Mistake(
            "halves paired, angles of neighbours",
            _rotated_mixed(_halves, _neighbours),
            "The angles are laid out a, a, b, b for neighbours, and the pairs are i and i + d_k/2. The "
            "two of a pair are then turned by different angles. Take both from the same layout.",
        ),
        Mistake(
            "neighbours paired, angles of halves",
            _rotated_mixed(_neighbours, _halves),
            "The pairs are neighbours, and the angles are laid out a, b, a, b for halves. The two of "
            "a pair are then turned by different angles. Take both from the same layout.",
        ),
        Mistake(
            "joined as halves",
            _rotated(join=_halves),
            "The numbers are right and stand in other columns: all firsts on the left, all seconds "
            "on the right. Put each pair back where it came from, side by side.",
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
        "first = x[..., 0::2] and second = x[..., 1::2] are [..., T, d_k / 2], as the angles are. "
        "Turn them: first * cos - second * sin, and first * sin + second * cos.",
        "torch.stack((..., ...), dim=-1).flatten(-2) puts pairs side by side again. The positions "
        "are start + torch.arange(T).",
    ),
)


# 4. From one layout to the other --------------------------------------------------------------


def _to_half(w: Tensor) -> Tensor:
    return w.unflatten(-1, (NUM_HEADS, -1, 2)).mT.flatten(-3)


def _to_half_across_heads(w: Tensor) -> Tensor:
    return _halves(w[..., 0::2], w[..., 1::2])


def _to_half_backwards(w: Tensor) -> Tensor:
    return w.unflatten(-1, (NUM_HEADS, 2, -1)).mT.flatten(-3)


def _to_half_odd_first(w: Tensor) -> Tensor:
    return w.unflatten(-1, (NUM_HEADS, -1, 2)).flip(-1).mT.flatten(-3)


def _to_half_strided_heads(w: Tensor) -> Tensor:
    pairs = w.unflatten(-1, (-1, 2, NUM_HEADS))  # every other column to a head
    return pairs.movedim(-1, -3).mT.flatten(-3)


def _to_half_in_place(w: Tensor) -> Tensor:
    return w.copy_(_to_half(w))


TO_HALF = Exercise(
    name=f"{NAME}.to_half",
    title="Somebody else's weights",
    points=2,
    difficulty=3,
    minutes=15,
    reference=_to_half,
    returns=("converted",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 12),)),
        Case("square", lambda g: (normal(g, 16, 16),)),
        Case("query and key, float64", lambda g: (normal(g, 2, 8, 24, dtype=torch.float64),)),
        Case("gradient", lambda g: (normal(g, 4, 12),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "across heads",
            _to_half_across_heads,
            "All even columns of the matrix come first, then all odd ones, so columns leave their "
            "head. Every head is turned by itself: rearrange the columns within each.",
        ),
        Mistake(
            "the way back",
            _to_half_backwards,
            "You lay halves out as neighbours: that takes a matrix from the half layout to the "
            "interleaved one. Pair i comes from columns 2i and 2i + 1 and goes to i and i + d_k/2.",
        ),
        Mistake(
            "rows instead of columns",
            lambda w: _to_half(w.mT).mT,
            "The rows change places. That is right for the weight of nn.Linear, which is transposed. "
            "Here a weight stands on the right of x, and queries are its columns.",
        ),
        Mistake(
            "odd columns first",
            _to_half_odd_first,
            "The odd columns form the first half. The first of a pair must stay the first, else the "
            "pair turns the other way round.",
        ),
        Mistake(
            "every other column to a head",
            _to_half_strided_heads,
            "You take columns 0, h, 2h, ... for head 0. A head is d_k columns side by side: look at "
            "the order of the sizes when you split the last axis.",
        ),
        Mistake(
            "w changed in place",
            _to_half_in_place,
            "The result is right, but it is written into w itself, which whoever loaded it may still "
            "need. Make a new tensor.",
        ),
    ),
    hints=(
        "Write for one head of width 6 which old column has to stand in each of the new columns 0 to 5.",
        "It is 0, 2, 4, 1, 3, 5: the firsts of all pairs, then the seconds. Do that within each head.",
        "w.unflatten(-1, (NUM_HEADS, -1, 2)) is [..., h, d_k / 2, 2]: head, pair, first or second. "
        "Swap the last two axes and join all three again.",
    ),
)


# 5. ALiBi -------------------------------------------------------------------------------------


def _slopes(num_heads: int) -> Tensor:
    return 2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads)


def _behind(T_q: int, T_k: int) -> Tensor:
    """How far each key lies behind each query, last query at last key; negative: in front."""
    return torch.arange(T_k - T_q, T_k)[:, None] - torch.arange(T_k)


def _behind_from_the_first(T_q: int, T_k: int) -> Tensor:
    return torch.arange(T_q)[:, None] - torch.arange(T_k)


def _alibi(
    slopes: Callable[[int], Tensor] = _slopes,
    distance: Callable[[int, int], Tensor] = lambda T_q, T_k: _behind(T_q, T_k).abs(),
    finish: Callable[[Tensor, Tensor], Tensor] = lambda scores, bias: (scores + bias).softmax(-1),
) -> Callable[[Tensor], Tensor]:
    def alibi_weights(scores: Tensor) -> Tensor:
        heads, T_q, T_k = scores.shape[-3:]
        bias = -slopes(heads)[:, None, None] * distance(T_q, T_k)
        return finish(scores, bias.to(scores.dtype))

    return alibi_weights


def _alibi_scores(scores: Tensor) -> Tensor:
    heads, T_q, T_k = scores.shape[-3:]
    bias = -_slopes(heads)[:, None, None] * _behind(T_q, T_k).abs()
    return scores + bias.to(scores.dtype)


def _alibi_weights(scores: Tensor) -> Tensor:
    return _alibi_scores(scores).softmax(-1)


def _alibi_slopes_along_queries(scores: Tensor) -> Tensor:
    heads, T_q, T_k = scores.shape[-3:]
    bias = -_slopes(heads)[:, None] * _behind(T_q, T_k).abs()
    return (scores + bias.to(scores.dtype)).softmax(-1)


def _alibi_in_place(scores: Tensor) -> Tensor:
    return scores.copy_(_alibi_scores(scores)).softmax(-1)


ALIBI_WEIGHTS = Exercise(
    name=f"{NAME}.alibi_weights",
    title="A price for distance",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_alibi_weights,
    returns=("weights",),
    distributions=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3, 3),)),
        Case("eight heads", lambda g: (normal(g, 2, 8, 5, 5),)),
        Case("as many heads as queries", lambda g: (normal(g, 2, 4, 4, 4),)),
        Case("two new queries, float64", lambda g: (normal(g, 3, 4, 2, 6, dtype=torch.float64),)),
        Case("one head", lambda g: (normal(g, 1, 3, 7),)),
        Case("gradient", lambda g: (normal(g, 4, 3, 5),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "distance rewarded",
            _alibi(lambda heads: -_slopes(heads)),
            "Far keys gain. Distance has a price: the bias is 0 at the query itself and falls from "
            "there. Look at the sign.",
        ),
        Mistake(
            "slopes in reverse order",
            _alibi(lambda heads: _slopes(heads).flip(0)),
            "The last head has the steepest slope. Head 0 is the most short-sighted one: 2^(-8/h).",
        ),
        Mistake(
            "slopes counted from 0",
            _alibi(lambda heads: 2.0 ** (-8.0 * torch.arange(heads) / heads)),
            "Head 0 has the slope 2^0 = 1. The exponent of the first head is -8/h: count from 1.",
        ),
        Mistake(
            "slopes of eight heads",
            _alibi(lambda heads: 2.0 ** -torch.arange(1.0, heads + 1)),
            "The slopes are 1/2, 1/4, 1/8, ... however many heads there are. That is right for eight; "
            "in general the exponent goes from -8/h to -8 in equal steps.",
        ),
        Mistake(
            "the 8 missing",
            _alibi(lambda heads: 2.0 ** (-torch.arange(1, heads + 1) / heads)),
            "The slopes end at 1/2. The last head should have 2^-8: the factor 8 is missing from the "
            "exponent.",
        ),
        Mistake(
            "no slopes",
            _alibi(lambda heads: torch.ones(heads)),
            "Every head pays 1 per step. Each head has a slope of its own, and with it a range of its own.",
        ),
        Mistake(
            "slopes along the queries",
            _alibi_slopes_along_queries,
            "The slopes are laid along the queries. With as many heads as queries nothing raises. "
            "Where do they need axes of length 1, to stand in front of [T_q, T_k]?",
        ),
        Mistake(
            "future rewarded",
            _alibi(distance=_behind),
            "The bias is -slope · (i - j), which is positive for keys in front: they gain. Here "
            "distance counts in both directions. (Adding slope · j to key j does the same, since "
            "softmax ignores what all keys of a query share; under a causal mask it would be right.)",
        ),
        Mistake(
            "future free of charge",
            _alibi(distance=lambda T_q, T_k: _behind(T_q, T_k).clamp_min(0)),
            "Keys in front of the query pay nothing. Under a causal mask nobody would see them; here "
            "nothing is masked, and distance counts in both directions.",
        ),
        Mistake(
            "first query at first key",
            _alibi(distance=lambda T_q, T_k: _behind_from_the_first(T_q, T_k).abs()),
            "With fewer queries than keys, your queries stand at positions 0, 1, ... They are the last "
            "ones: the last query stands at the last key.",
        ),
        Mistake(
            "bias after softmax",
            _alibi(finish=lambda scores, bias: scores.softmax(-1) + bias),
            "The bias is added to the weights, which no longer sum to 1 and may be negative. It "
            "belongs to the scores: look at what comes first.",
        ),
        Mistake(
            "scores changed in place",
            _alibi_in_place,
            "The bias is added into scores itself, as scores += ... does. Make a new tensor.",
        ),
    ),
    hints=(
        "Three small pieces: the positions of the queries and of the keys, the distances [T_q, T_k], "
        "the slopes [h]. What shape must the slopes have to multiply the distances?",
        "The queries stand at T_k - T_q, ..., T_k - 1. (query[:, None] - key).abs() is the table of "
        "distances; slopes[:, None, None] makes one table per head of it.",
        "The slopes are 2.0 ** (-8 * torch.arange(1, h + 1) / h). Then (scores - slopes · distance), "
        "and softmax over the last axis.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="6. Positional encoding",
    exercises=(ADD_POSITIONS, SHIFT, ROTATE, TO_HALF, ALIBI_WEIGHTS),
)

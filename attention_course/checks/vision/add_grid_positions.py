"""Exercise 2: where a patch stands."""

from collections.abc import Callable

import torch
from torch import Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.vision.shared import BASE, NAME, number, side

#: (row, column) of every patch, from how many there are and the number of columns
Places = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def _row_by_row(n: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    return n // columns, n % columns


def _encoding(places: Tensor, width: int, of: int | None = None) -> Tensor:
    """Sinusoids, side by side; the frequencies are those of a width ``of``."""
    frequencies = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / (of or width))
    angles = places.double()[..., None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


def _first_half(row: Tensor, column: Tensor, d: int) -> Tensor:
    return torch.cat((_encoding(row, d // 2), _encoding(column, d // 2)), -1)


def _sine_and_cosine(row: Tensor, column: Tensor, d: int) -> Tensor:
    """The sines of the row in one half, the cosines of the column in the other."""
    frequencies = BASE ** (-torch.arange(d // 2, dtype=torch.float64) / (d // 2))
    angles = [place.double()[..., None] * frequencies for place in (row, column)]
    return torch.cat((angles[0].sin(), angles[1].cos()), -1)


def _blocks(encoded: Tensor) -> Tensor:
    """Neighbouring pairs -> all sines, then all cosines."""
    return torch.cat((encoded[..., 0::2], encoded[..., 1::2]), -1)


def _swapped(encoded: Tensor) -> Tensor:
    return encoded.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def _each_half(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, int], Tensor]:
    def table(row: Tensor, column: Tensor, d: int) -> Tensor:
        return torch.cat([change(_encoding(place, d // 2)) for place in (row, column)], -1)

    return table


def _added(
    places: Places = _row_by_row,
    table: Callable[[Tensor, Tensor, int], Tensor] = _first_half,
    join: Callable[[Tensor, Tensor], Tensor] = torch.add,
) -> Callable[[Tensor, Tensor], Tensor]:
    def add_grid_positions(x: Tensor, columns: Tensor) -> Tensor:
        N, d_model = x.shape[-2:]
        row, column = places(torch.arange(N), int(columns))
        return join(x, table(row, column, d_model).to(x.dtype))

    return add_grid_positions


_add_grid_positions = _added()


def _in_place(x: Tensor, columns: Tensor) -> Tensor:
    return x.copy_(_add_grid_positions(x, columns))


ADD_GRID_POSITIONS = Exercise(
    name=f"{NAME}.add_grid_positions",
    title="Where a patch stands",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_add_grid_positions,
    returns=("placed",),
    cases=(
        Case("two rows of three", lambda g: (tenths(g, 6, 4), number(3))),
        Case("three rows of two", lambda g: (normal(g, 2, 6, 8), number(2))),
        Case("a square", lambda g: (normal(g, 2, 3, 9, 8), number(3))),
        Case("as many patches as numbers in one", lambda g: (normal(g, 3, 8, 8), number(4))),
        Case("one row, float64", lambda g: (normal(g, 2, 5, 16, dtype=torch.float64), number(5))),
        Case("a tall grid", lambda g: (normal(g, 1, 21, 12), number(3))),
        Case("gradient", lambda g: (normal(g, 2, 8, 12), number(2)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "the column in front of the row",
            _added(table=lambda row, column, d: _first_half(column, row, d)),
            "The column stands in the first half and the row in the second. It is the other way round.",
        ),
        Mistake(
            "one number for the whole grid",
            _added(
                places=lambda n, columns: (n, n),
                table=lambda row, column, d: _encoding(row, d),
            ),
            "You count patches from 0 to N - 1, as words of a sentence. The patch below another one is then "
            "as far away as any that follows a row later: encode row and column, each in its half.",
        ),
        Mistake(
            "the running number in both halves",
            _added(places=lambda n, columns: (n, n)),
            "Both halves hold the patch's number n. The first is asked for its row, the second for its "
            "column: divide n by the number of columns.",
        ),
        Mistake(
            "counted column by column",
            _added(places=lambda n, columns: (n % (len(n) // columns), n // (len(n) // columns))),
            "You count patches column by column. Patch 1 is the right neighbour of patch 0: its row is 0.",
        ),
        Mistake(
            "divided by the number of rows",
            _added(places=lambda n, columns: _row_by_row(n, len(n) // columns)),
            "A row is full after as many patches as there are columns. You divide by the number of rows, "
            "which is the same only where the grid is square.",
        ),
        Mistake(
            "a square taken for granted",
            _added(places=lambda n, columns: _row_by_row(n, side(len(n)))),
            "You take the grid to be square. columns says how wide it is.",
        ),
        Mistake(
            "frequencies of the whole width",
            _added(
                table=lambda row, column, d: torch.cat(
                    (_encoding(row, d // 2, of=d), _encoding(column, d // 2, of=d)), -1
                )
            ),
            "The exponent is -2i / d_model. Each half is an encoding of its own, of width d_model / 2: that "
            "is what 2i is divided by.",
        ),
        Mistake(
            "the exponent doubled twice",
            _added(
                table=lambda row, column, d: torch.cat(
                    (_encoding(row, d // 2, of=d // 4), _encoding(column, d // 2, of=d // 4)), -1
                )
            ),
            "The frequencies fall twice as fast as they should. arange with steps of 2 gives 2i already; is "
            "it multiplied by 2 once more, or divided by half of w?",
        ),
        Mistake(
            "sines of the row, cosines of the column",
            _added(table=_sine_and_cosine),
            "The first half holds sines of the row alone, and the second cosines of the column alone. Each "
            "half has both, side by side.",
        ),
        Mistake(
            "one encoding cut in two",
            _added(
                table=lambda row, column, d: torch.cat(
                    (_encoding(row, d)[..., : d // 2], _encoding(column, d)[..., d // 2 :]), -1
                )
            ),
            "The row has the fast half of a wide encoding and the column its slow half. Each gets a whole "
            "encoding of width d_model / 2, fast and slow.",
        ),
        Mistake(
            "row and column added up",
            _added(table=lambda row, column, d: _encoding(row, d) + _encoding(column, d)),
            "Row and column are both encoded in the whole width, and added. Then nobody can tell row 1, "
            "column 2 from row 2, column 1. Each has its own half.",
        ),
        Mistake(
            "row and column in turns",
            _added(
                table=lambda row, column, d: torch.stack(
                    (_encoding(row, d // 2), _encoding(column, d // 2)), -1
                ).flatten(-2)
            ),
            "Numbers of the row and numbers of the column take turns. The first half is the row's, the "
            "second the column's.",
        ),
        Mistake(
            "all sines before all cosines",
            _added(table=_each_half(_blocks)),
            "In each half the sines come first and the cosines behind them. A sine and its cosine stand side "
            "by side, in columns 2i and 2i + 1.",
        ),
        Mistake(
            "cosine before sine",
            _added(table=_each_half(_swapped)),
            "Sine and cosine are exchanged: the sine stands in the even columns.",
        ),
        Mistake(
            "counted from 1",
            _added(places=lambda n, columns: (n // columns + 1, n % columns + 1)),
            "Rows and columns are counted from 1. The first of each is 0.",
        ),
        Mistake(
            "places from 0 to 1",
            _added(places=lambda n, columns: (n // columns / (len(n) // columns), n % columns / columns)),
            "Places are given as a share of the height and width. Here they are whole numbers: row 0, row 1.",
        ),
        Mistake(
            "the row alone",
            _added(places=lambda n, columns: (n // columns, n // columns)),
            "Both halves hold the row. The second is the column's: what is left over when n is divided?",
        ),
        Mistake(
            "the column alone",
            _added(places=lambda n, columns: (n % columns, n % columns)),
            "Both halves hold the column. The first is the row's: how many full rows come before patch n?",
        ),
        Mistake(
            "the table alone",
            _added(join=lambda x, table: table.expand(x.shape).clone()),
            "You return the table. It is added to x.",
        ),
        Mistake(
            "x times √d_model first",
            _added(join=lambda x, table: x * x.shape[-1] ** 0.5 + table),
            "x is multiplied by √d_model first, as the Transformer of 2017 does with its words. Here the "
            "table is added to x as it is.",
        ),
        Mistake(
            "multiplied",
            _added(join=torch.mul),
            "x is multiplied by the table. It is added.",
        ),
        Mistake(
            "x changed in place",
            _in_place,
            "The result is right, but it is written into x itself, as x += ... does. Make a new tensor.",
        ),
    ),
    hints=(
        "How many full rows come before patch n, and how many patches of its own row?",
        "Two tables of width d_model / 2, one made of the rows and one of the columns. In each, angle i is "
        "place times 10000 to the power of -2i / (d_model / 2).",
        "A patch's number divided by columns, without a rest, is its row; the rest is its column. A "
        "table's sine and cosine are stacked on a new last axis and flattened; the two tables are put "
        "side by side and added to x.",
    ),
)

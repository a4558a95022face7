"""Scenes: handwritten digits on a grid of cells, with a caption or with a question about them.

Scenes are drawn anew for every batch, but from given images: what is tested on images that never
trained cannot have been learned by heart.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_course.beyond.vision import from_patches
from attention_course.lab.data.digits import SIDE, Images

#: the grid is not square, so that rows and columns cannot be exchanged unnoticed
ROWS, COLUMNS = 3, 4
CELLS = ROWS * COLUMNS
#: stands for a cell without a digit, and for a word that no digit belongs to
NONE = -1

WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("left", "of", "above", ".", "<start>"),
)
LEFT, OF, ABOVE, STOP, START = range(10, 15)
#: words of the longest caption, with its full stop
LENGTH = 5


class Captioned(NamedTuple):
    """Scenes of two digits, what stands on them, and the cell that each word of the caption means."""

    pixels: Float[Tensor, "n 1 24 32"]
    caption: Int[Tensor, "n 5"]
    cell: Int[Tensor, "n 5"]


class Asked(NamedTuple):
    """Scenes of several digits, a digit asked for, and which one stands on its left."""

    pixels: Float[Tensor, "n 1 24 32"]
    question: Int[Tensor, " n"]
    answer: Int[Tensor, " n"]


def captioned(images: Images, size: int, generator: torch.Generator) -> Captioned:
    """Draw ``size`` scenes such as "three left of seven." or "three above seven." (half of them each).

    The two digits stand in one row or one column, not always side by side, and the caption begins with
    the left or the upper one. The shorter caption has a second full stop. "left", "of" and "above" mean
    no cell.
    """
    beside = torch.rand(size, generator=generator) < 0.5
    row, column = _two(ROWS, size, generator), _two(COLUMNS, size, generator)
    row[:, 1] = row[:, 1].where(~beside, row[:, 0])
    column[:, 1] = column[:, 1].where(beside, column[:, 0])
    cell = row * COLUMNS + column  # [n, 2], the left or upper one first
    pair = torch.randint(10, (size, 2), generator=generator)
    digit = torch.full((size, CELLS), NONE).scatter(1, cell, pair)

    (first, second), (one, two) = pair.T, cell.T
    fixed = {word: torch.full((size,), word) for word in (LEFT, OF, ABOVE, STOP)}
    none = torch.full((size,), NONE)
    caption = torch.where(
        beside[:, None],
        torch.stack((first, fixed[LEFT], fixed[OF], second, fixed[STOP]), 1),
        torch.stack((first, fixed[ABOVE], second, fixed[STOP], fixed[STOP]), 1),
    )
    meant = torch.where(
        beside[:, None],
        torch.stack((one, none, none, two, none), 1),
        torch.stack((one, none, two, none, none), 1),
    )
    return Captioned(_drawn(images, digit, generator), caption, meant)


def asked(images: Images, size: int, generator: torch.Generator, *, digits: int = 4) -> Asked:
    """Draw ``size`` scenes of different digits with the question what stands directly left of one.

    There always is something. Raises a ``ValueError`` unless there are 2 to 10 ``digits``.
    """
    if not 2 <= digits <= 10:
        raise ValueError(f"digits must lie between 2 and 10, got {digits}")
    cell = torch.randint(ROWS, (size,), generator=generator) * COLUMNS
    cell += torch.randint(1, COLUMNS, (size,), generator=generator)
    pair = torch.stack((cell, cell - 1), 1)
    # Those two cells come first, all others behind them in random order.
    order = torch.rand(size, CELLS, generator=generator)
    order = order.scatter(1, pair, torch.tensor([[3.0, 2.0]]).expand(size, 2))
    where = order.argsort(1, descending=True)[:, :digits]
    which = torch.rand(size, 10, generator=generator).argsort(1)[:, :digits]
    digit = torch.full((size, CELLS), NONE).scatter(1, where, which)
    return Asked(_drawn(images, digit, generator), which[:, 0], which[:, 1])


def words(caption: Int[Tensor, " T"] | Sequence[int]) -> list[str]:
    """Return a caption's words, without what stands behind its first full stop."""
    numbers = [int(number) for number in caption]
    end = numbers.index(STOP) if STOP in numbers else len(numbers)
    return [WORDS[number] for number in numbers[:end]]


def _two(most: int, size: int, generator: torch.Generator) -> Int[Tensor, "n 2"]:
    """Two different numbers below ``most``, the smaller one first."""
    return torch.rand(size, most, generator=generator).argsort(1)[:, :2].sort(1).values


def _drawn(
    images: Images, digit: Int[Tensor, "n cells"], generator: torch.Generator
) -> Float[Tensor, "n 1 24 32"]:
    """An image of each cell's digit, chosen anew each time, and black where none is."""
    order = images.digit.argsort()
    number = images.digit.bincount(minlength=10)
    first = number.cumsum(0) - number
    known = digit.clamp_min(0)
    place = first[known] + (torch.rand(digit.shape, generator=generator) * number[known]).long()
    cells = images.pixels[order[place]].flatten(-2) * (digit != NONE)[..., None]  # [n, cells, 64]
    return from_patches(cells, ROWS * SIDE, COLUMNS * SIDE, SIDE)

"""Running text that comes with the package, letter by letter.

Nothing has to be fetched, and ``manual.txt`` is the same everywhere.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

#: What may occur in the text: the line break and the printable part of ASCII.
SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))


class Sample(NamedTuple):
    """Tokens, and what should be said at the last of them; -1 where nothing is asked."""

    tokens: Int[Tensor, "B T"]
    target: Int[Tensor, "B last"]


class Text(NamedTuple):
    """The characters of one text, as indices into ``SYMBOLS``, in three pieces that follow one another."""

    train: Int[Tensor, " n"]
    validation: Int[Tensor, " m"]
    test: Int[Tensor, " k"]


def documentation() -> Text:
    """Return the topics of Python 3.11.7's manual in pieces of 80, 10 and 10 per cent.

    That is its ``pydoc_data.topics``, of which only ``SYMBOLS`` are left and, as many sections stand
    under several topics, the first of equal paragraphs. It is kept in a file, for each version of
    Python has a text of its own. © Python Software Foundation; licence in ``manual.LICENSE.txt``.
    """
    text = Path(__file__).with_name("manual.txt").read_text(encoding="ascii").removesuffix("\n")
    numbers = torch.tensor([SYMBOLS.index(letter) for letter in text])
    tenth = len(numbers) // 10
    return Text(numbers[: 8 * tenth], numbers[8 * tenth : 9 * tenth], numbers[9 * tenth :])


def text_batches(text: Int[Tensor, " n"], size: int, seed: int, *, length: int) -> Iterator[Sample]:
    """Return an endless stream of ``size`` pieces of ``length`` characters, each with what comes next.

    Raises a ``ValueError`` for a text that is too short for one piece.
    """
    if len(text) <= length:
        raise ValueError(f"text must be longer than length={length}, got {len(text)} characters")
    return _pieces(text, size, seed, length)


def _pieces(text: Int[Tensor, " n"], size: int, seed: int, length: int) -> Iterator[Sample]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(len(text) - length, (size, 1), generator=generator)
        piece = text[start + torch.arange(length + 1)]
        yield Sample(piece[:, :-1], piece[:, 1:])

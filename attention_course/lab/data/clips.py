"""Digits that move through time, and digits that somebody describes.

A clip is a row of frames, of which a few are clear and the others drown in snow. A described image is a
digit in one corner of a larger picture, and four words that say which, how bright and where: 120 kinds.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_course.inputs import check_at_least, check_range
from attention_course.lab.data.digits import SIDE, Images

#: how much of a frame's brightness is snow: of a clear one, and of all others
CLEAR, SNOWY = 0.1, 0.85
#: frames to be added up in a clip
RIGHT = 2

SHADES = ("faint", "grey", "bright")
BRIGHTNESS = (0.35, 0.65, 1.0)
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ROWS, COLUMNS = ("top", "bottom"), ("left", "right")
#: what a description is written with; the first one only says that it begins
WORDS = ("<begin>", *SHADES, *NAMES, *ROWS, *COLUMNS)
#: how many different descriptions there are
KINDS = len(SHADES) * len(NAMES) * len(ROWS) * len(COLUMNS)
#: words of a description; and the height and width of the image that it describes, in pixels
LENGTH, CANVAS = 4, 2 * SIDE


class Clips(NamedTuple):
    """Clips of T frames, where the clear ones are, and what their digits add up to."""

    frames: Float[Tensor, "B T 8 8"]
    clear: Bool[Tensor, "B T"]
    total: Int[Tensor, " B"]


class Described(NamedTuple):
    """Images of one digit each, the words that describe them, and the number of that description."""

    pixels: Float[Tensor, "B 16 16"]
    words: Int[Tensor, "B 4"]
    kind: Int[Tensor, " B"]


def clips(images: Images, size: int, length: int, generator: torch.Generator) -> Clips:
    """Return ``size`` clips of ``length`` frames, in each of which two are clear: their sum is asked for.

    Every frame shows one of ``images``; in all but two, most of the brightness is snow. Raises a
    ``ValueError`` for clips of fewer than two frames.
    """
    check_at_least(RIGHT, length=length)
    drawn = torch.randint(len(images.digit), (size, length), generator=generator)
    clear = torch.zeros(size, length, dtype=torch.bool)
    clear.scatter_(1, torch.rand(size, length, generator=generator).topk(RIGHT).indices, True)
    share = torch.where(clear, CLEAR, SNOWY)[..., None, None]
    snow = torch.rand(size, length, SIDE, SIDE, generator=generator)
    frames = (1 - share) * images.pixels[drawn] + share * snow
    return Clips(frames, clear, (images.digit[drawn] * clear).sum(1))


def clip_batches(images: Images, size: int, length: int, seed: int) -> Iterator[Clips]:
    """Return an endless stream of fresh clips, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield clips(images, size, length, generator)


def describe(kind: Int[Tensor, " B"]) -> Int[Tensor, "B 4"]:
    """Return the four words of each kind: shade, digit, row, column, as places in ``WORDS``.

    Raises a ``ValueError`` for a kind that is not one of the 120.
    """
    check_range("kind", kind, 0, KINDS - 1)
    sizes = (len(SHADES), len(NAMES), len(ROWS), len(COLUMNS))
    words, first = [], 1
    for place, size in enumerate(sizes):
        after = KINDS
        for each in sizes[: place + 1]:
            after //= each
        words.append(first + kind // after % size)
        first += size
    return torch.stack(words, -1)


def said(words: Int[Tensor, " T"]) -> str:
    """Return the words themselves."""
    return " ".join(WORDS[word] for word in words.tolist())


def paint(images: Images, kind: Int[Tensor, " B"], generator: torch.Generator) -> Described:
    """Return for each kind an image that its words describe, with one of ``images`` as its digit.

    A little snow lies on all of it. Raises a ``ValueError`` for a kind that is not one of the 120, or a
    digit of which ``images`` has none.
    """
    words = describe(kind)
    shade, digit, row, column = (words - torch.tensor([1, 4, 14, 16])).unbind(-1)
    order, number = images.digit.argsort(), images.digit.bincount(minlength=len(NAMES))
    if not number[digit].all():
        raise ValueError(f"images must hold every digit asked for, got {sorted(set(images.digit.tolist()))}")
    place = (torch.rand(len(kind), generator=generator) * number[digit]).long()  # among those of that digit
    drawn = images.pixels[order[number.cumsum(0)[digit] - number[digit] + place]]  # [B, 8, 8]
    bright = drawn * torch.tensor(BRIGHTNESS)[shade][:, None, None]
    at = F.one_hot(2 * row + column, 4).view(-1, 2, 1, 2, 1)  # one of the four quarters
    pixels = (at * bright[:, None, :, None, :]).reshape(-1, CANVAS, CANVAS)
    pixels = pixels + 0.05 * torch.randn(pixels.shape, generator=generator)
    return Described(pixels, words, kind)


def withheld(seed: int) -> Bool[Tensor, " kinds"]:
    """Return which 20 of the 120 kinds are kept back: of each digit two of its twelve."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.zeros(KINDS, dtype=torch.bool)
    digit = describe(torch.arange(KINDS))[:, 1]
    for name in digit.unique():
        places = (digit == name).nonzero().flatten()
        kept[places[torch.randperm(len(places), generator=generator)[:2]]] = True
    return kept


def described_batches(images: Images, kinds: Int[Tensor, " n"], size: int, seed: int) -> Iterator[Described]:
    """Return an endless stream of fresh images of different ``kinds``: no two in a batch say the same.

    Raises a ``ValueError`` for batches that are larger than the number of kinds.
    """
    if size > len(kinds):
        raise ValueError(f"size must be at most the number of kinds, {len(kinds)}, got {size}")
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(kinds), generator=generator)[:size]
        yield paint(images, kinds[order], generator)

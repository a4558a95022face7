"""Exercise 1: an image as a row of patches."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.vision.shared import NAME, number

Cut = Callable[[Tensor, Tensor], Tensor]


def _cut(images: Tensor, size: Tensor) -> Tensor:
    """[..., C, H, W] -> [..., C, rows, s, columns, s]."""
    s = int(size)
    *leading, C, H, W = images.shape
    return images.reshape(*leading, C, H // s, s, W // s, s)


def _in_order(*order: int) -> Cut:
    """Patches whose axes are those of ``_cut`` in another order: the first two count patches."""

    def patches(images: Tensor, size: Tensor) -> Tensor:
        cut = _cut(images, size)
        n = cut.dim() - 5
        moved = cut.permute(*range(n), *(n + axis for axis in order))
        return moved.flatten(n + 2).flatten(n, n + 1)

    return patches


_patches = _in_order(1, 3, 0, 2, 4)


def _reshaped(images: Tensor, size: Tensor) -> Tensor:
    right = _patches(images, size)
    return images.reshape(right.shape)


def _exchanged(images: Tensor, size: Tensor) -> Tensor:
    """Height is read as width and width as height, and nothing is moved."""
    *leading, H, W = images.shape
    return _patches(images.reshape(*leading, W, H), size)


def _channels_apart(images: Tensor, size: Tensor) -> Tensor:
    cut = _cut(images, size).transpose(-3, -2)  # [..., C, rows, columns, s, s]
    return cut.flatten(-2).flatten(-4, -2)


def _uncrossed(images: Tensor, size: Tensor) -> Tensor:
    """Height and width are split into all rows and columns of patches, and then all pixels."""
    s = int(size)
    *leading, C, H, W = images.shape
    cut = images.reshape(*leading, C, H // s, W // s, s, s)
    return cut.movedim(-5, -3).flatten(-3).flatten(-3, -2)


def _channels_in_front(images: Tensor, size: Tensor) -> Tensor:
    """The right axes, but for the channels: they stay where they were."""
    return _cut(images, size).transpose(-3, -2).reshape(_patches(images, size).shape)


def _overlapping(images: Tensor, size: Tensor) -> Tensor:
    s = int(size)
    windows = images.unfold(-2, s, 1).unfold(-2, s, 1)  # [..., C, places, places, s, s]
    moved = windows.movedim(-5, -3).flatten(-3)
    return moved.flatten(-3, -2)


def _grid_kept(images: Tensor, size: Tensor) -> Tensor:
    rows = images.shape[-2] // int(size)
    return _patches(images, size).unflatten(-2, (rows, -1))


def _patch_kept(images: Tensor, size: Tensor) -> Tensor:
    s = int(size)
    return _patches(images, size).unflatten(-1, (-1, s, s))


def _first_channel(images: Tensor, size: Tensor) -> Tensor:
    return _patches(images[..., :1, :, :], size)


def _channels_averaged(images: Tensor, size: Tensor) -> Tensor:
    return _patches(images.mean(-3, keepdim=True), size)


def _in_place(images: Tensor, size: Tensor) -> Tensor:
    right = _patches(images, size).clone()
    images.clamp_(min=0)
    return right


def _elsewhere_in_memory(g: Generator) -> Inputs:
    """As an image file has it: a pixel's channels side by side."""
    return normal(g, 2, 4, 6, 3).permute(0, 3, 1, 2), number(2)


PATCHES = Exercise(
    name=f"{NAME}.patches",
    title="An image as a row of patches",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_patches,
    returns=("patches",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 1, 4, 6), number(2))),
        Case("three channels, upright", lambda g: (normal(g, 2, 3, 6, 4), number(2))),
        Case("as many patches as numbers in one", lambda g: (normal(g, 3, 1, 4, 4), number(2))),
        Case("patches of 3 by 3, float64", lambda g: (normal(g, 3, 2, 6, 9, dtype=torch.float64), number(3))),
        Case("two leading axes", lambda g: (normal(g, 2, 3, 2, 4, 8), number(4))),
        Case("a patch is a pixel", lambda g: (normal(g, 3, 3, 2), number(1))),
        Case("channels side by side in memory", _elsewhere_in_memory),
        Case("gradient", lambda g: (normal(g, 2, 2, 4, 6), number(2)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "reshaped without moving an axis",
            _reshaped,
            "You cut memory into equal pieces. Row by row is how an image lies there, so a piece holds parts "
            "of image rows that stand beside each other, and no square. reshape never moves a number: give "
            "each patch's row and column axes of their own, move them, and flatten last.",
        ),
        Mistake(
            "height and width not split by themselves",
            _uncrossed,
            "You read memory as rows of patches, columns of patches, rows and columns of pixels. It lies "
            "there in another order: split height into two axes and width into two, [..., rows, size, "
            "columns, size], and move one of them.",
        ),
        Mistake(
            "channels left in front",
            _channels_in_front,
            "The channels stand before the axes that count patches when you flatten, so that a row holds one "
            "channel of several patches. Rows and columns of patches come first, then the channel.",
        ),
        Mistake(
            "patches column by column",
            _in_order(3, 1, 0, 2, 4),
            "The patches are right, and counted column by column. Patch 1 is the right neighbour of patch 0: "
            "the axis of the rows stands before the axis of the columns.",
        ),
        Mistake(
            "each patch transposed",
            _in_order(1, 3, 0, 4, 2),
            "Within a patch the pixels are listed column by column. A patch holds channel, row, column, in "
            "this order.",
        ),
        Mistake(
            "the image transposed",
            _in_order(3, 1, 0, 4, 2),
            "The whole image is transposed: patches are counted column by column, and so are their pixels. "
            "Height is the axis before the last, width the last one.",
        ),
        Mistake(
            "channels last in a patch",
            _in_order(1, 3, 2, 4, 0),
            "A pixel's channels stand side by side, as they do in image files. Here a patch holds all of its "
            "first channel, then all of its second: channel, row, column.",
        ),
        Mistake(
            "channels between row and column",
            _in_order(1, 3, 2, 0, 4),
            "A patch holds its first row in all channels, then its second row. The channel comes first: "
            "channel, row, column.",
        ),
        Mistake(
            "pixels far apart put together",
            _in_order(2, 4, 0, 1, 3),
            "Every patch holds pixels from all over the image, each size apart. Of the two axes that height "
            "is split into, the first counts patches and the second the pixels of one.",
        ),
        Mistake(
            "patches and numbers exchanged",
            lambda images, size: _patches(images, size).mT,
            "A column is a patch, as F.unfold has it. One row for each patch is asked for.",
        ),
        Mistake(
            "height and width exchanged",
            _exchanged,
            "Height is taken for width, and width for height, which nobody notices while images are square. "
            "The shape ends with C, H, W.",
        ),
        Mistake(
            "a patch for each channel",
            _channels_apart,
            "Each channel is cut for itself, so that there are C times as many patches. A patch holds all "
            "channels of its place.",
        ),
        Mistake(
            "overlapping patches",
            _overlapping,
            "A patch begins at every pixel. They do not overlap: the next one begins size pixels further on.",
        ),
        Mistake(
            "the grid not flattened",
            _grid_kept,
            "Rows and columns of patches are two axes still. Attention knows tokens in a row: flatten them "
            "into one axis.",
        ),
        Mistake(
            "a patch not flattened",
            _patch_kept,
            "Every patch is a small image still, with three axes. A token is a vector: flatten them into "
            "one.",
        ),
        Mistake(
            "the first channel alone",
            _first_channel,
            "Only the first channel is there. A patch holds all of them, one after the other.",
        ),
        Mistake(
            "channels averaged",
            _channels_averaged,
            "The channels are averaged. A patch holds all of them, one after the other.",
        ),
        Mistake(
            "images changed in place",
            _in_place,
            "The patches are right, but images is not what it was.",
        ),
    ),
    hints=(
        "Pixel row y lies in row y // size of patches and is row y % size there. So the axis of length H is "
        "two axes: which of the two counts patches?",
        "reshape(..., C, H // s, s, W // s, s) moves nothing and splits both. Of these five axes, two count "
        "patches and three lie within one. In which order are the five asked for?",
        "Bring the two that count patches to the front of the five, with permute or movedim, counted from "
        "the end; then flatten the last three into one axis, and the two before it into one.",
    ),
)

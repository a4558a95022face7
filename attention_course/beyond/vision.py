"""An image as a sequence: patches and their positions, and where in the image a head or a word looks.

Patches and cells are counted as one reads: row by row, from the left.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from attention_course.inputs import check_at_least
from attention_course.positions import sinusoidal


def patches(images: Shaped[Tensor, "... C H W"], size: int) -> Shaped[Tensor, "... N patch"]:
    """Cut images into squares of ``size`` pixels, row by row, each laid out as one vector.

    Shapes: [..., C, H, W] -> [..., N, C·size·size] with N = (H/size)·(W/size); a patch holds channel,
    row, column in that order (Dosovitskiy et al. 2021, section 3.1). Raises a ``ValueError`` unless a
    whole number of patches fills the image.
    """
    if images.dim() < 3:
        raise ValueError(f"images must have shape [..., C, H, W], got {tuple(images.shape)}")
    _check_size(*images.shape[-2:], size)
    cut = images.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))  # [..., C, rows, size, columns, size]
    # The two axes that count patches come to the front; without this a "patch" is a strip of a row.
    cut = cut.movedim((-4, -2), (-5, -4))  # [..., rows, columns, C, size, size]
    return cut.flatten(-3).flatten(-3, -2)


def from_patches(
    patches: Shaped[Tensor, "... N patch"], height: int, width: int, size: int
) -> Shaped[Tensor, "... C H W"]:
    """Put patches together again: the way back from ``patches``, for images of ``height`` × ``width`` pixels.

    Shapes: [..., N, C·size·size] -> [..., C, height, width]. Raises a ``ValueError`` where the patches
    are not as many, or not as long, as such images have.
    """
    _check_size(height, width, size)
    rows, columns = height // size, width // size
    shape = tuple(patches.shape)
    if len(shape) < 2 or shape[-2] != rows * columns or shape[-1] % size**2:
        raise ValueError(
            f"patches must have shape [..., {rows * columns}, C·{size**2}] for {height} × {width} pixels, "
            f"got {shape}"
        )
    cut = patches.unflatten(-2, (rows, columns)).unflatten(-1, (-1, size, size))
    cut = cut.movedim((-5, -4), (-4, -2))  # [..., C, rows, size, columns, size]
    return cut.flatten(-2).flatten(-3, -2)


def grid_positions(
    rows: int, columns: int, d_model: int, *, device: torch.device | str | None = None
) -> Float[Tensor, "N d_model"]:
    """Return one vector for each place of a grid: sinusoids of its row, then sinusoids of its column.

    Shape [rows·columns, d_model], row by row, each half of the vector as in ``positions.sinusoidal``.
    Raises a ``ValueError`` for a d_model that is no multiple of 4, or a grid without places.
    """
    check_at_least(1, rows=rows, columns=columns)
    if d_model < 4 or d_model % 4:
        raise ValueError(f"d_model must be a multiple of 4 (pairs for row and column), got {d_model}")
    down = sinusoidal(rows, d_model // 2, device=device).repeat_interleave(columns, dim=0)
    across = sinusoidal(columns, d_model // 2, device=device).repeat(rows, 1)
    return torch.cat((down, across), dim=-1)


def attention_distance(
    weights: Float[Tensor, "... h N N"], columns: int, size: float = 1.0
) -> Float[Tensor, "... h"]:
    """Return how far each head looks: the distance from query's to key's patch, weighted and averaged.

    Weights [..., h, N, N] among the patches of a grid with ``columns`` columns, without class token ->
    [..., h], in pixels where a patch has ``size`` of them (Dosovitskiy et al. 2021, figure 7). Raises a
    ``ValueError`` where N patches do not fill such a grid.
    """
    check_at_least(1, columns=columns)
    if weights.dim() < 3 or weights.shape[-1] != weights.shape[-2] or weights.shape[-1] % columns:
        raise ValueError(
            f"weights must have shape [..., h, N, N], N a multiple of {columns} columns and without class "
            f"token, got {tuple(weights.shape)}"
        )
    place = torch.arange(weights.shape[-1], device=weights.device)
    row, column = place // columns, place % columns
    distance = torch.hypot(*((axis[:, None] - axis).to(weights.dtype) for axis in (row, column)))
    return (weights * distance).sum(-1).mean(-1) * size


def pointing(weights: Float[Tensor, "... T N"], target: Int[Tensor, "... T"]) -> Bool[Tensor, "... T"]:
    """Return for each word whether its largest weight lies on its ``target`` cell.

    Shapes: weights [..., T, N], target [..., T] -> [..., T]. A target of -1 is not asked and gives
    False, and so does a tie for the largest weight: nobody points at two cells. Raises a ``ValueError``
    where there is not one target for each word.
    """
    if weights.dim() < 2 or weights.shape[:-1] != target.shape:
        raise ValueError(
            f"target must have one cell for each word, {tuple(weights.shape[:-1])}, got {tuple(target.shape)}"
        )
    largest = weights == weights.amax(-1, keepdim=True)
    alone = largest.sum(-1) == 1
    return alone & (weights.argmax(-1) == target)


def _check_size(height: int, width: int, size: int) -> None:
    check_at_least(1, size=size)
    if height < size or width < size or height % size or width % size:
        raise ValueError(f"size must divide the image's {height} × {width} pixels, got {size}")

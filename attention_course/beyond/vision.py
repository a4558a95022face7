"""An image as a sequence: patches and their positions, and where in the image a head or a word looks.

Patches and cells are counted as one reads: row by row, from the left.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from attention_course.inputs import check_at_least
from attention_course.positions import sinusoidal
from attention_course.transformer import Decoder, DecoderWeights, Embedding, Encoder, LayerConfig


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


class PatchEmbedding(nn.Module):
    """From an image to a sequence: each patch through ``encode``, plus a learned vector for its place.

    ``encode`` turns vectors of C·size² numbers into d_model of them; without one it is a linear map
    (Dosovitskiy et al. 2021, equation 1). The places' vectors start as ``positions`` [N, d_model], or as
    ``grid_positions``. Raises a ``ValueError`` for positions of another shape.
    """

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        size: int,
        d_model: int,
        *,
        encode: nn.Module | None = None,
        positions: Float[Tensor, "N d_model"] | None = None,
    ) -> None:
        super().__init__()
        check_at_least(1, channels=channels)
        _check_size(height, width, size)
        rows, columns = height // size, width // size
        if positions is None:
            positions = grid_positions(rows, columns, d_model)
        if tuple(positions.shape) != (rows * columns, d_model):
            raise ValueError(
                f"positions must have shape {(rows * columns, d_model)} for {rows} × {columns} patches, "
                f"got {tuple(positions.shape)}"
            )
        self.image, self.size = (channels, height, width), size
        self.encode = nn.Linear(channels * size**2, d_model) if encode is None else encode
        self.positions = nn.Parameter(positions.clone())

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N d_model"]:
        """Return one vector for each patch, row by row.

        Raises a ``ValueError`` for images of another shape than those this was built for.
        """
        if tuple(images.shape[1:]) != self.image:
            raise ValueError(
                f"images must have shape [B, {', '.join(map(str, self.image))}], got {tuple(images.shape)}"
            )
        return self.encode(patches(images, self.size)) + self.positions


class PatchTransformer(nn.Module):
    """An encoder that reads an image's patches behind a class token, from which the answer is read.

    The class token is a learned vector that belongs to no patch: what the layers gather in it is all
    that the output sees (Dosovitskiy et al. 2021, section 3.1: ViT). Raises a ``ValueError`` for fewer
    than one output or layer.
    """

    def __init__(
        self, embedding: PatchEmbedding, num_outputs: int, num_layers: int, config: LayerConfig
    ) -> None:
        super().__init__()
        check_at_least(1, num_outputs=num_outputs)
        self.embedding = embedding
        self.class_token = nn.Parameter(torch.randn(config.d_model) * 0.02)
        self.stack = Encoder(num_layers, config)
        self.output = nn.Linear(config.d_model, num_outputs)

    def forward(
        self,
        images: Float[Tensor, "B C H W"],
        *,
        question: Float[Tensor, "B d_model"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B outputs"], list[Float[Tensor, "B h T T"]] | None]:
        """Return ``(logits, weights)``, if asked for one entry of weights per layer, T = 1 + N.

        Row and column 0 of the weights are the class token's, to which a ``question`` is added: what is
        gathered then depends on what was asked.
        """
        cells = self.embedding(images)
        first = self.class_token.expand(len(cells), 1, -1)
        if question is not None:
            first = first + question[:, None]
        # The places are in the cells by now; the class token stands at none of them.
        states, weights = self.stack(torch.cat((first, cells), dim=1), need_weights=need_weights)
        return self.output(states[:, 0]), weights


class Captioner(nn.Module):
    """A decoder that writes about an image: each word's query looks at all cells (Xu et al. 2015).

    ``cells`` makes the memory, ``words`` the stream; the decoder's layers are those of a
    ``Transformer``, whose source is now an image.
    """

    def __init__(self, cells: PatchEmbedding, words: Embedding, num_layers: int, config: LayerConfig) -> None:
        super().__init__()
        self.cells, self.words = cells, words
        self.stack = Decoder(num_layers, config)
        self.output = nn.Linear(config.d_model, words.table.num_embeddings)

    def forward(
        self, images: Float[Tensor, "B C H W"], previous: Int[Tensor, "B T"], *, need_weights: bool = False
    ) -> tuple[Float[Tensor, "B T vocabulary"], list[DecoderWeights] | None]:
        """Return ``(logits, weights)`` of the word behind each of the ``previous`` ones.

        Row t of the weights "source" [B, h, T, N] is where the model looks while it chooses the word
        that comes after ``previous[:, t]``.
        """
        states, weights = self.stack(self.words(previous), self.cells(images), need_weights=need_weights)
        return self.output(states), weights

    @torch.no_grad()
    def write(
        self, images: Float[Tensor, "B C H W"], start: int, length: int
    ) -> tuple[Int[Tensor, "B length"], Float[Tensor, "B h length N"]]:
        """Return the likeliest words, one after the other, and the last layer's weights of each.

        Row t of the weights is where the model looked when it chose word t. Raises a ``ValueError``
        for a length below 1.
        """
        check_at_least(1, length=length)
        tokens = torch.full((len(images), 1), start, device=images.device)
        for _ in range(length):
            logits, weights = self(images, tokens, need_weights=True)
            tokens = torch.cat((tokens, logits[:, -1:].argmax(-1)), dim=1)
        return tokens[:, 1:], weights[-1].source


def _check_size(height: int, width: int, size: int) -> None:
    check_at_least(1, size=size)
    if height < size or width < size or height % size or width % size:
        raise ValueError(f"size must divide the image's {height} × {width} pixels, got {size}")

"""Patches, pixels and filters: digits read in three ways, and scenes with a question about them.

Chapter 14 compares models of equal size: on single digits, with few and with many images, with their
pixels in order and in disorder; and on scenes in which the answer depends on where digits stand.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.beyond.vision import PatchEmbedding, PatchTransformer, attention_distance
from attention_course.inputs import check_choice
from attention_course.lab.data import scenes
from attention_course.lab.data.digits import SIDE, Digits, Images, digits
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.transformer import LayerConfig

Reader = Literal["patches", "pixels", "filters"]
Answerer = Literal["two layers", "one layer", "side by side"]

#: pixels along the edge of a digit's patch, and patches along the image's
PATCH = 2
PATCHES = SIDE // PATCH
#: digits in a scene with a question
IN_SCENE = 4


class Logits(nn.Module):
    """A patch Transformer of which only the answer is wanted."""

    def __init__(self, model: PatchTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B outputs"]:
        """Return the logits."""
        return self.model(images)[0]


def reader(kind: Reader) -> nn.Module:
    """Return an untrained classifier [B, 1, 8, 8] -> [B, 10] of about 39,000 parameters.

    "patches" is a patch Transformer, "pixels" an MLP of all 64, "filters" a small convolution. Raises a
    ``ValueError`` for another kind.
    """
    check_choice("kind", kind, get_args(Reader))
    if kind == "patches":
        config = LayerConfig(d_model=48, num_heads=4, d_ff=96, norm="pre")
        return Logits(PatchTransformer(PatchEmbedding(1, SIDE, SIDE, PATCH, 48), 10, 2, config))
    if kind == "pixels":
        return nn.Sequential(nn.Flatten(), *_network(SIDE**2, 164, 164), nn.ReLU(), nn.Linear(164, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 66),
        nn.ReLU(),
        nn.Linear(66, 10),
    )


def in_disorder(data: Digits, seed: int) -> Digits:
    """Return the same images with their pixels in a random order, one and the same for all of them."""
    order = torch.randperm(SIDE**2, generator=torch.Generator().manual_seed(seed))
    return Digits(*(Images(pixels.flatten(1)[:, order].view_as(pixels), digit) for pixels, digit in data))


def batches(images: Images, size: int, seed: int) -> Iterator[Images]:
    """Return an endless stream of batches, each image once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        for chosen in torch.randperm(len(images.digit), generator=generator).split(size):
            yield Images(images.pixels[chosen], images.digit[chosen])


def reading_loss(model: nn.Module, batch: Images) -> Float[Tensor, ""]:
    """Return the cross-entropy of a batch's digits."""
    return F.cross_entropy(model(batch.pixels[:, None]), batch.digit)


@torch.no_grad()
def read_right(model: nn.Module, images: Images) -> float:
    """Return the share of digits that are read right."""
    return (model(images.pixels[:, None]).argmax(-1) == images.digit).float().mean().item()


def reading(
    kind: Reader, seed: int, *, images: int = 1097, disorder: bool = False, steps: int = 200
) -> dict[str, Any]:
    """Train one classifier on so many ``images``; return how well it reads, and how far its heads look.

    "validation" and "test" are shares read right; "distance" [layers, h] is a patch Transformer's, in
    pixels. Besides: "parameters" and "seconds". With ``disorder``, all images have their pixels in
    another order.
    """
    data = digits(seed)
    if disorder:
        data = in_disorder(data, seed)
    few = Images(data.train.pixels[:images], data.train.digit[:images])
    torch.manual_seed(seed)
    model = reader(kind)
    history = train(model, batches(few, 64, seed), reading_loss, steps=steps, learning_rate=0.003, seed=seed)
    found = {name: read_right(model, getattr(data, name)) for name in ("validation", "test")}
    if kind == "patches":
        found["distance"] = distances(model.model, data.test)
    return {**found, "parameters": count_parameters(model), "seconds": history.seconds}


@torch.no_grad()
def distances(model: PatchTransformer, images: Images) -> Float[Tensor, "layers h"]:
    """Return every head's attention distance in pixels, averaged over images.

    The class token has no place: its row and column are left out, and the other rows sum to 1 again.
    """
    _, weights = model(images.pixels[:, None], need_weights=True)
    among = torch.stack(weights)[..., 1:, 1:]  # [layers, B, h, N, N]
    among = among / among.sum(-1, keepdim=True)
    return attention_distance(among, PATCHES, float(PATCH)).mean(1)


class AskedTransformer(nn.Module):
    """A patch Transformer over a scene's cells, whose class token carries the question."""

    def __init__(self, num_layers: int, d_ff: int, *, d_model: int = 48) -> None:
        super().__init__()
        # The places of 3 x 4 cells are random at first: the slow waves of so small a grid hardly differ.
        cells = _cells(d_model, positions=torch.randn(scenes.CELLS, d_model))
        config = LayerConfig(d_model=d_model, num_heads=2, d_ff=d_ff, norm="pre")
        self.question = nn.Embedding(10, d_model)
        self.model = PatchTransformer(cells, 10, num_layers, config)

    def forward(
        self, pixels: Float[Tensor, "B 1 24 32"], question: Int[Tensor, " B"]
    ) -> Float[Tensor, "B 10"]:
        """Return the logits of the digit that is asked for."""
        return self.model(pixels, question=self.question(question))[0]


class AskedSideBySide(nn.Module):
    """The same cells and question side by side, as one long vector, and an MLP."""

    def __init__(self, hidden: int, *, d_model: int = 48) -> None:
        super().__init__()
        self.question = nn.Embedding(10, d_model)
        # Each cell has weights of its own here, so that no vector need tell its place.
        self.cells = _cells(d_model, positions=torch.zeros(scenes.CELLS, d_model))
        self.output = nn.Sequential(
            nn.Linear((scenes.CELLS + 1) * d_model, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )

    def forward(
        self, pixels: Float[Tensor, "B 1 24 32"], question: Int[Tensor, " B"]
    ) -> Float[Tensor, "B 10"]:
        """Return the logits of the digit that is asked for."""
        together = torch.cat((self.cells(pixels).flatten(1), self.question(question)), dim=1)
        return self.output(together)


ANSWERERS: dict[Answerer, Callable[[], nn.Module]] = {
    "two layers": lambda: AskedTransformer(2, 96),
    "one layer": lambda: AskedTransformer(1, 289),
    "side by side": lambda: AskedSideBySide(60),
}
#: each chosen on validation images
LEARNING_RATES: dict[Answerer, float] = {"two layers": 0.004, "one layer": 0.004, "side by side": 0.003}


def answering_loss(model: nn.Module, batch: scenes.Asked) -> Float[Tensor, ""]:
    """Return the cross-entropy of a batch's answers."""
    return F.cross_entropy(model(batch.pixels, batch.question), batch.answer)


def questions(images: Images, size: int, seed: int) -> Iterator[scenes.Asked]:
    """Return an endless stream of fresh scenes with questions, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield scenes.asked(images, size, generator, digits=IN_SCENE)


def answering(kind: Answerer, seed: int, *, steps: int = 600) -> dict[str, Any]:
    """Train one model to answer questions about scenes; return how often it does so on unseen digits.

    "validation" and "test" are shares of 2,000 questions answered right; besides: "parameters" and
    "seconds". Raises a ``ValueError`` for another kind.
    """
    check_choice("kind", kind, ANSWERERS)
    data = digits(seed)
    torch.manual_seed(seed)
    model = ANSWERERS[kind]()
    history = train(
        model,
        questions(data.train, 64, seed),
        answering_loss,
        steps=steps,
        learning_rate=LEARNING_RATES[kind],
        seed=seed,
    )
    found = {
        name: answered_right(model, next(questions(getattr(data, name), 2000, seed + 1000)))
        for name in ("validation", "test")
    }
    return {**found, "parameters": count_parameters(model), "seconds": history.seconds}


@torch.no_grad()
def answered_right(model: nn.Module, batch: scenes.Asked) -> float:
    """Return the share of questions answered right."""
    return (model(batch.pixels, batch.question).argmax(-1) == batch.answer).float().mean().item()


def _cells(d_model: int, *, positions: Tensor) -> PatchEmbedding:
    """One vector for each cell of a scene, by the same small network everywhere."""
    height, width = scenes.ROWS * SIDE, scenes.COLUMNS * SIDE
    encode = _network(SIDE**2, 96, d_model)
    return PatchEmbedding(1, height, width, SIDE, d_model, encode=encode, positions=positions)


def _network(d_in: int, hidden: int, d_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d_in, hidden), nn.ReLU(), nn.Linear(hidden, d_out))

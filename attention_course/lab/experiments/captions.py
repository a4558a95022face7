"""A captioner for scenes of two digits: which words it writes, and where it looks for each of them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_course.beyond.vision import Captioner, PatchEmbedding, pointing
from attention_course.lab.data import scenes
from attention_course.lab.data.digits import SIDE, Images, digits
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.positions import Learned
from attention_course.transformer import Embedding, LayerConfig

#: test scenes that a trial hands back: another seed's test images may have trained its model
SHOWN = 40


class Described(NamedTuple):
    """What a captioner wrote about scenes, and where it looked when it chose each word."""

    words: Int[Tensor, "n T"]
    weights: Float[Tensor, "n T cells"]


def captioner(num_layers: int = 1, *, d_model: int = 64) -> Captioner:
    """Return an untrained captioner with one head, whose cells are all read by one small network."""
    encode = nn.Sequential(nn.Linear(SIDE**2, 128), nn.ReLU(), nn.Linear(128, d_model))
    height, width = scenes.ROWS * SIDE, scenes.COLUMNS * SIDE
    places = torch.randn(scenes.CELLS, d_model) / 2
    cells = PatchEmbedding(1, height, width, SIDE, d_model, encode=encode, positions=places)
    words = Embedding(len(scenes.WORDS), d_model, Learned(scenes.LENGTH, d_model))
    for table in (words.table.weight, words.positions.table):
        nn.init.normal_(table, std=0.5)  # word, place in the caption and place in the scene weigh the same
    config = LayerConfig(d_model=d_model, num_heads=1, d_ff=2 * d_model, norm="pre")
    return Captioner(cells, words, num_layers, config)


def previous(caption: Int[Tensor, "n T"]) -> Int[Tensor, "n T"]:
    """Return what stands before each word: the start, then the caption without its last word."""
    return F.pad(caption[:, :-1], (1, 0), value=scenes.START)


def loss(model: Captioner, batch: scenes.Captioned) -> Float[Tensor, ""]:
    """Return the cross-entropy of a batch's words, each one after the right ones before it."""
    logits, _ = model(batch.pixels, previous(batch.caption))
    return F.cross_entropy(logits.flatten(0, 1), batch.caption.flatten())


def batches(images: Images, size: int, seed: int) -> Iterator[scenes.Captioned]:
    """Return an endless stream of fresh scenes, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield scenes.captioned(images, size, generator)


def describe(model: Captioner, pixels: Float[Tensor, "n 1 24 32"]) -> Described:
    """Return the captions that the model writes by itself, and its weights [n, T, cells], heads averaged."""
    words, weights = model.write(pixels, scenes.START, scenes.LENGTH)
    return Described(words, weights.mean(1))


def points(
    weights: Float[Tensor, "n T cells"], batch: scenes.Captioned, *, asked: Bool[Tensor, "n T"] | None = None
) -> float:
    """Return the share of digits' words whose largest weight lies on their digit's cell.

    ``asked`` leaves out words beside those that mean no cell.
    """
    meant = batch.cell != scenes.NONE
    meant = meant if asked is None else meant & asked
    return pointing(weights, batch.cell)[meant].float().mean().item()


def trial(seed: int, *, num_layers: int = 1, steps: int = 500, held_out: int = 1000) -> dict[str, Any]:
    """Train one captioner; return it, and what it wrote about ``held_out`` scenes of unseen digits.

    "validation" and "test" hold the shares of ``judged``, "scenes" the first 40 of those that it was
    tested on. Besides: "model", "parameters" and "seconds".
    """
    data = digits(seed)
    torch.manual_seed(seed)
    model = captioner(num_layers)
    history = train(model, batches(data.train, 64, seed), loss, steps=steps, learning_rate=0.003, seed=seed)
    asked = {
        name: next(batches(getattr(data, name), held_out, seed + 1000)) for name in ("validation", "test")
    }
    return {
        **{name: judged(model, batch) for name, batch in asked.items()},
        "scenes": scenes.Captioned(*(part[:SHOWN] for part in asked["test"])),
        "model": model,
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }


def judged(model: Captioner, batch: scenes.Captioned) -> dict[str, float]:
    """Return the shares of scenes whose "caption" has no fault, and of those whose "relation" is right.

    The others are of digits' words where the relation is right (else the second digit would be said at
    another step): the right "word", "pointing" at its cell, and pointing there "late", with the weights
    of the step that reads the word.
    """
    said, weights = describe(model, batch.pixels)
    right = said == batch.caption
    related = right[:, 1:2].expand_as(right)
    return {
        "caption": right.all(1).float().mean().item(),
        "relation": right[:, 1].float().mean().item(),
        "word": right[related & (batch.cell != scenes.NONE)].float().mean().item(),
        "pointing": points(weights, batch, asked=related),
        # The last word is never read; it means no cell, so that its row plays no part here.
        "late": points(weights.roll(-1, 1), batch, asked=related),
    }

"""Two senses, one set of pictures: matching images with descriptions, then three ways to describe them.

Chapter 16 first trains an image encoder and a text encoder to match (as CLIP does). Then the image
encoder is frozen, and a text model that never saw an image learns to look at what it says of one.
"""

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.beyond.senses import (
    TextWithCrossAttention,
    TextWithPrefix,
    contrastive_loss,
    own_is_nearest,
)
from attention_course.beyond.vision import patches
from attention_course.inputs import check_choice
from attention_course.lab.data import clips
from attention_course.lab.data.clips import CANVAS, KINDS, LENGTH, WORDS, Described
from attention_course.lab.data.digits import Images, digits
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.positions import Learned
from attention_course.transformer import Embedding, Encoder, FeedForward, LanguageModel, LayerConfig

#: height and width of a patch; width of all models, and of the vectors that are compared
PATCH, WIDTH, SHARED = 4, 48, 32
#: nats of whoever knows how descriptions are made, and has no image
GUESSING = math.log(KINDS)

CONFIG = LayerConfig(
    d_model=WIDTH,
    num_heads=4,
    d_ff=2 * WIDTH,
    norm="pre",
    feed_forward=partial(FeedForward, activation=F.gelu),
)

Way = Literal["gated", "ungated", "prefix"]


class ImageEncoder(nn.Module):
    """Patches, their positions, one layer of self-attention: an image becomes 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(PATCH * PATCH, WIDTH)
        # Where a patch lies has to weigh as much at first as what it shows.
        self.positions = nn.Parameter(0.5 * torch.randn((CANVAS // PATCH) ** 2, WIDTH))
        self.stack = Encoder(1, CONFIG)

    def forward(self, pixels: Float[Tensor, "B 16 16"]) -> Float[Tensor, "B 16 d_model"]:
        """Return one vector for each patch."""
        states, _ = self.stack(self.first(patches(pixels[:, None], PATCH)) + self.positions)
        return states


class Pair(nn.Module):
    """Two encoders that never look at each other; only their last vectors are compared."""

    def __init__(self, temperature: float = 0.1, *, learned: bool = True) -> None:
        super().__init__()
        self.image = ImageEncoder()
        self.embedding = Embedding(len(WORDS), WIDTH, Learned(LENGTH, WIDTH))
        self.text = Encoder(1, CONFIG)
        self.image_head, self.text_head = nn.Linear(WIDTH, SHARED), nn.Linear(WIDTH, SHARED)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)), requires_grad=learned)

    def see(self, pixels: Float[Tensor, "B 16 16"]) -> Float[Tensor, "B shared"]:
        """Return one vector for each image."""
        return self.image_head(self.image(pixels).mean(1))

    def read(self, words: Int[Tensor, "B 4"]) -> Float[Tensor, "B shared"]:
        """Return one vector for each description."""
        states, _ = self.text(self.embedding(words))
        return self.text_head(states.mean(1))

    @property
    def temperature(self) -> Float[Tensor, ""]:
        """What cosines are divided by: never below 0, whatever is learned."""
        return self.log_temperature.exp()


def pair_loss(pair: Pair, batch: Described) -> Float[Tensor, ""]:
    """Return the contrastive loss of a batch."""
    return contrastive_loss(pair.see(batch.pixels), pair.read(batch.words), pair.temperature)


class Retrieval(NamedTuple):
    """How often the right one of 100 was found, both ways; and of 120, for kinds never trained on."""

    text: float
    image: float
    withheld: float


@torch.no_grad()
def retrieval(pair: Pair, images: Images, seed: int, *, rounds: int = 10) -> Retrieval:
    """Return retrieval@1 on fresh images, each time one of every kind, over several ``rounds``.

    ``seed`` says which kinds were kept back, and draws the images.
    """
    kept, generator = clips.withheld(seed), torch.Generator().manual_seed(seed + 1000)
    text, image, new = [], [], []
    for _ in range(rounds):
        drawn = clips.paint(images, torch.arange(KINDS), generator)
        seen, read = pair.see(drawn.pixels), pair.read(drawn.words)
        text.append(own_is_nearest(seen[~kept], read[~kept]))
        image.append(own_is_nearest(read[~kept], seen[~kept]))
        new.append(own_is_nearest(seen, read)[kept])
    return Retrieval(*(torch.cat(found).double().mean().item() for found in (text, image, new)))


def match(
    seed: int,
    *,
    batch_size: int = 64,
    pairs: int = 16_000,
    temperature: float = 0.1,
    learned: bool = True,
    learning_rate: float = 0.005,
    part: str = "test",
) -> dict[str, Any]:
    """Train a pair on ``pairs`` images with their descriptions; return it and what it finds.

    "pair", "retrieval" on the digits of ``part``, "temperature" and "loss" at the end (mean of the last
    tenth of all steps), "parameters", "steps", "seconds". 20 of the 120 kinds are kept back, by ``seed``.
    """
    data = digits(seed)
    kinds = (~clips.withheld(seed)).nonzero().flatten()
    torch.manual_seed(seed)
    pair = Pair(temperature, learned=learned)
    steps = pairs // batch_size
    stream = clips.described_batches(data.train, kinds, batch_size, seed)
    history = train(pair, stream, pair_loss, steps=steps, learning_rate=learning_rate, seed=seed)
    last = history.losses[-steps // 10 :]
    return {
        "pair": pair,
        "retrieval": retrieval(pair, getattr(data, part), seed),
        "temperature": pair.temperature.item(),
        "loss": sum(last) / len(last),
        "parameters": count_parameters(pair),
        "steps": steps,
        "seconds": history.seconds,
    }


class Told(NamedTuple):
    """Descriptions with the tokens of their images, or with none."""

    words: Int[Tensor, "B 4"]
    image: Float[Tensor, "B I d_image"] | None


def text_model() -> LanguageModel:
    """Return an untrained causal text model of two layers."""
    return LanguageModel(
        Embedding(len(WORDS), WIDTH, Learned(LENGTH, WIDTH)), 2, CONFIG, is_causal=True, tied=False
    )


def nats(model: nn.Module, told: Told) -> Float[Tensor, "B 4"]:
    """Return the cross-entropy of each word, given the ones before it and the image, if there is one."""
    logits = logits_of(model, told)
    return F.cross_entropy(logits.mT, told.words, reduction="none")


def logits_of(model: nn.Module, told: Told) -> Float[Tensor, "B 4 vocabulary"]:
    """Return the logits of each of the four words, the first of which follows "<begin>"."""
    before = F.pad(told.words[:, :-1], (1, 0))  # "<begin>" is word 0
    return model(before) if told.image is None else model(before, told.image)


def caption_loss(model: nn.Module, told: Told) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of a whole description."""
    return nats(model, told).sum(-1).mean()


@torch.no_grad()
def right(model: nn.Module, told: Told) -> float:
    """Return how often all four words are right when each is the likeliest one.

    As long as all words before are right, it makes no difference whether they were written or given.
    """
    return (logits_of(model, told).argmax(-1) == told.words).all(-1).double().mean().item()


def texts(size: int, seed: int) -> Iterator[Told]:
    """Return an endless stream of descriptions of all 120 kinds, without images."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield Told(clips.describe(torch.randint(KINDS, (size,), generator=generator)), None)


def told(encoder: nn.Module, described: Described) -> Told:
    """Return descriptions with what a frozen encoder makes of their images."""
    with torch.no_grad():
        return Told(described.words, encoder(described.pixels))


def joined(text: LanguageModel, way: Way) -> nn.Module:
    """Return a copy of a text model that can look at images in one of three ways.

    "gated" and "ungated" add cross-attention below each layer and leave the text model as it is: it is
    frozen. "prefix" adds a linear map, and lets the text model learn. Raises a ``ValueError`` for others.
    """
    check_choice("way", way, get_args(Way))
    text = copy.deepcopy(text)
    if way == "prefix":
        return TextWithPrefix(text, WIDTH)
    return TextWithCrossAttention(text.requires_grad_(False), CONFIG, WIDTH, gated=way == "gated")


def join(
    pair: Pair,
    way: Way,
    seed: int,
    *,
    steps: int = 300,
    batch_size: int = 32,
    text_steps: int = 200,
    learning_rate: float = 0.005,
    part: str = "test",
) -> dict[str, Any]:
    """Teach a text model to describe images in one of three ways; return what it does before and after.

    The text model is trained on descriptions alone first, for ``text_steps``; the image encoder is the
    ``pair``'s and stays as it is. "before" and "after" are nats of a description without an image, "first"
    those with images before the first step; "losses" of every step; "right" on kinds trained on and
    "withheld"; "trained" parameters; "gates" [2 layers, 2] after tanh, or None; "seconds".
    """
    data, kept = digits(seed), clips.withheld(seed)
    torch.manual_seed(seed)
    text = text_model()
    train(text, texts(64, seed), caption_loss, steps=text_steps, learning_rate=0.005, seed=seed)
    torch.manual_seed(seed)
    model, encoder = joined(text, way), pair.image.eval()
    every = Told(clips.describe(torch.arange(KINDS)), None)
    drawn = clips.described_batches(data.train, (~kept).nonzero().flatten(), batch_size, seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    unseen = [clips.paint(getattr(data, part), torch.arange(KINDS), generator) for _ in range(10)]
    unseen = [Described(*map(torch.cat, zip(*unseen, strict=True)))]
    test = told(encoder, unseen[0])
    new = kept[unseen[0].kind]
    with torch.no_grad():
        before, first = caption_loss(model, every).item(), caption_loss(model, test).item()
    stream = (told(encoder, batch) for batch in drawn)
    history = train(model, stream, caption_loss, steps=steps, learning_rate=learning_rate, seed=seed)
    with torch.no_grad():
        after = caption_loss(model, every).item()
    return {
        "before": before,
        "first": first,
        "after": after,
        "losses": torch.tensor(history.losses),
        "right": right(model, Told(test.words[~new], test.image[~new])),
        "withheld": right(model, Told(test.words[new], test.image[new])),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "gates": gates(model),
        "seconds": history.seconds,
    }


def gates(model: nn.Module) -> Float[Tensor, "layers 2"] | None:
    """Return how far each gate is open, tanh of its number: attention's and the network's; None without."""
    if not isinstance(model, TextWithCrossAttention) or model.looks[0].around_feed_forward.gate is None:
        return None
    pairs = ((look.around_cross_attention.gate, look.around_feed_forward.gate) for look in model.looks)
    return torch.stack([torch.stack(pair) for pair in pairs]).detach().tanh()

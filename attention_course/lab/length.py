"""A small language model whose positions can be exchanged, and its loss at every length of context.

Chapter 6 trains it on 64 tokens at a time and tests it on up to 512. The text, ``manual.txt``, comes with
the package: nothing has to be fetched, and it is the same everywhere. A second task asks for the token a
fixed number of places back.
"""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.attention import scaled_dot_product_attention
from attention_course.lab.measuring import count_parameters
from attention_course.lab.training import train
from attention_course.positions import Learned, Rotary, Sinusoidal, alibi_bias

#: What may occur in the text: the line break and the printable part of ASCII.
SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))
SCHEMES = ("none", "learned", "sinusoidal", "rotary", "alibi")
#: Tokens that a model sees at a time in training, and in the test.
TRAINED, LENGTHS = 64, (64, 96, 128, 256, 512)
#: Only the last tokens of each window are judged: none of them has less than half the context.
JUDGED = 32


class Positions(nn.Module):
    """The three places where positions can enter a model. Here they enter nowhere."""

    def add(self, x: Float[Tensor, "... T d_model"]) -> Float[Tensor, "... T d_model"]:
        """Return the embeddings, with what says where they stand."""
        return x

    def turn(self, x: Float[Tensor, "... T d_k"]) -> Float[Tensor, "... T d_k"]:
        """Return the queries or the keys, turned."""
        return x

    def bias(self, T: int, device: torch.device) -> Float[Tensor, "num_heads T T"] | None:
        """Return what is added to the scores, or None for nothing."""
        return None


class Added(Positions):
    """Positions that are added to the embeddings."""

    def __init__(self, encode: Learned | Sinusoidal) -> None:
        super().__init__()
        self.encode = encode

    def add(self, x: Float[Tensor, "... T d_model"]) -> Float[Tensor, "... T d_model"]:
        """Return x with a vector for each position added."""
        return self.encode(x)


class Turned(Positions):
    """Positions that turn queries and keys."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary

    def turn(self, x: Float[Tensor, "... T d_k"]) -> Float[Tensor, "... T d_k"]:
        """Return x with each pair of entries turned by an angle for each position."""
        return self.rotary(x)


class Biased(Positions):
    """Positions that are added to the scores, as ALiBi does it."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def bias(self, T: int, device: torch.device) -> Float[Tensor, "num_heads T T"]:
        """Return minus slope times distance, for each head."""
        return alibi_bias(self.num_heads, T, device=device)


def positions_for(scheme: str, *, d_model: int, num_heads: int, longest: int = LENGTHS[-1]) -> Positions:
    """Return the positions that one of ``SCHEMES`` stands for.

    Learned ones have ``longest`` vectors, however few of them training will reach. Raises a
    ``ValueError`` for an unknown scheme.
    """
    if scheme == "none":
        return Positions()
    if scheme == "learned":
        learned = Learned(longest, d_model)
        nn.init.normal_(learned.table, std=math.sqrt(0.5))  # as large as sines and cosines are
        return Added(learned)
    if scheme == "sinusoidal":
        return Added(Sinusoidal(d_model))
    if scheme == "rotary":
        return Turned(Rotary(d_model // num_heads))
    if scheme == "alibi":
        return Biased(num_heads)
    raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")


class Block(nn.Module):
    """Causal attention, then a feed-forward layer; each behind a normalisation and beside a skip."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model, got d_model={d_model}, num_heads={num_heads}")
        self.num_heads = num_heads
        self.before_attention, self.before_feed = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.query, self.key, self.value, self.output = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )
        self.feed = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.ReLU(), nn.Linear(2 * d_model, d_model))

    def forward(
        self, x: Float[Tensor, "B T d_model"], positions: Positions, window: int | None
    ) -> Float[Tensor, "B T d_model"]:
        """Return x after one block; with ``window`` no query looks at keys that far back or further."""
        normed = self.before_attention(x)
        query, key, value = (
            layer(normed).unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
            for layer in (self.query, self.key, self.value)
        )  # [B, h, T, d_k]
        bias = positions.bias(x.shape[1], x.device)
        context = scaled_dot_product_attention(
            positions.turn(query),
            positions.turn(key),
            value,  # what is handed over is not turned
            None if bias is None else bias[None],  # torch's fast path wants all four dimensions
            is_causal=True,
            window=window,
        )
        x = x + self.output(context.transpose(-2, -3).flatten(-2))
        return x + self.feed(self.before_feed(x))


class LanguageModel(nn.Module):
    """Embeds tokens, passes them through ``layers`` blocks, and gives logits for what comes next."""

    def __init__(
        self,
        positions: Positions,
        *,
        symbols: int = len(SYMBOLS),
        d_model: int = 64,
        num_heads: int = 4,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.positions = positions
        self.embedding = nn.Embedding(symbols, d_model)
        self.blocks = nn.ModuleList(Block(d_model, num_heads) for _ in range(layers))
        self.norm, self.readout = nn.LayerNorm(d_model), nn.Linear(d_model, symbols)

    def forward(
        self, tokens: Int[Tensor, "B T"], *, window: int | None = None
    ) -> Float[Tensor, "B T symbols"]:
        """Return logits [B, T, symbols]; with ``window`` each query sees its last ``window`` keys only."""
        x = self.positions.add(self.embedding(tokens))
        for block in self.blocks:
            x = block(x, self.positions, window)
        return self.readout(self.norm(x))


class Sample(NamedTuple):
    """Tokens, and what should be said at the last of them; -1 where nothing is asked."""

    tokens: Int[Tensor, "B T"]
    target: Int[Tensor, "B last"]


def loss(model: LanguageModel, sample: Sample, *, window: int | None = None) -> Float[Tensor, ""]:
    """Return the mean cross-entropy in nats per target."""
    logits = model(sample.tokens, window=window)[:, -sample.target.shape[1] :]
    return F.cross_entropy(logits.flatten(0, 1), sample.target.flatten(), ignore_index=-1)


@torch.no_grad()
def accuracy(model: LanguageModel, sample: Sample, *, window: int | None = None) -> float:
    """Return the share of targets to which the model gives the largest logit."""
    best = model(sample.tokens, window=window)[:, -sample.target.shape[1] :].argmax(-1)
    asked = sample.target >= 0
    return (best == sample.target)[asked].float().mean().item()


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


def text_batches(text: Int[Tensor, " n"], size: int, seed: int, *, length: int = TRAINED) -> Iterator[Sample]:
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


def windows(text: Int[Tensor, " n"], length: int, *, longest: int = LENGTHS[-1]) -> Sample:
    """Return windows of ``length`` characters whose targets are the same for every length.

    A window ends before every ``longest``-th character; ``length`` decides only how far back it
    begins. The targets are what follows its last ``JUDGED`` characters. Raises a ``ValueError`` for a
    length outside ``JUDGED`` to ``longest``, or a text without a window.
    """
    if not JUDGED <= length <= longest:
        raise ValueError(f"length must lie between {JUDGED} and longest={longest}, got {length}")
    if len(text) <= longest:
        raise ValueError(f"text must be longer than longest={longest}, got {len(text)} characters")
    end = torch.arange(longest, len(text), longest)[:, None]
    return Sample(text[end + torch.arange(-length, 0)], text[end + torch.arange(1 - JUDGED, 1)])


def recall_batches(
    size: int, seed: int, *, back: int, symbols: int, length: int = TRAINED
) -> Iterator[Sample]:
    """Return an endless stream of random tokens; asked for, at each, is the token ``back`` places earlier.

    The first ``back`` places have none: -1. Raises a ``ValueError`` for a ``back`` below 1, or not
    below ``length``.
    """
    if not 0 < back < length:
        raise ValueError(f"back must be at least 1 and below length={length}, got {back}")
    return _recalls(size, seed, back, symbols, length)


def _recalls(size: int, seed: int, back: int, symbols: int, length: int) -> Iterator[Sample]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(symbols, (size, length), generator=generator)
        yield Sample(tokens, F.pad(tokens[:, :-back], (back, 0), value=-1))


def stretched(model: LanguageModel, length: int, *, trained: int = TRAINED) -> LanguageModel:
    """Return a copy whose first ``trained`` learned positions are spread over ``length`` positions.

    Vectors in between are interpolated on a straight line. Raises a ``TypeError`` for a model
    without learned positions.
    """
    encode = getattr(model.positions, "encode", None)
    if not isinstance(encode, Learned):
        raise TypeError(
            f"only learned positions can be stretched, got {type(encode or model.positions).__name__}"
        )
    result = copy.deepcopy(model)
    table = encode.table.detach()[:trained].T  # [d_model, trained]
    wide = F.interpolate(table[None], size=length, mode="linear", align_corners=True)[0].T
    result.positions.encode.table = nn.Parameter(wide.contiguous())
    return result


@torch.no_grad()
def nats(model: LanguageModel, text: Int[Tensor, " n"], length: int, *, window: int | None = None) -> float:
    """Return the loss per character behind ``length`` characters; the same ones for each length."""
    return loss(model, windows(text, length), window=window).item()


def trial(
    scheme: str,
    seed: int,
    *,
    steps: int = 400,
    learning_rate: float = 0.008,
    length: int = TRAINED,
    judged_on: str = "test",
) -> dict[str, Any]:
    """Train one model on the documentation; return it, its nats, parameters of one model and seconds.

    Each step sees 768 characters, in pieces of ``length``. The nats stand under "plain", for each of
    ``LENGTHS``; under "window", for the longest of them, with no query looking further back than in
    training; under "stretched", for models with learned positions. ``judged_on`` names the piece
    of the text.
    """
    text = documentation()
    torch.manual_seed(seed)
    model = LanguageModel(positions_for(scheme, d_model=64, num_heads=4))
    stream = text_batches(text.train, 768 // length, seed, length=length)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, seed=seed)
    judged = getattr(text, judged_on)
    result = {
        "model": model,
        "plain": [nats(model, judged, n) for n in LENGTHS],
        "window": nats(model, judged, LENGTHS[-1], window=length),
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }
    if scheme == "learned":
        result["stretched"] = [nats(stretched(model, n), judged, n) for n in LENGTHS]
    return result


def recall_trial(
    scheme: str,
    seed: int,
    *,
    steps: int = 200,
    learning_rate: float = 0.008,
    back: int = 5,
    symbols: int = 16,
) -> dict[str, Any]:
    """Train one layer to name the token ``back`` places earlier; return accuracies, parameters and seconds.

    At each of ``LENGTHS``, the last ``JUDGED`` places of 100 fresh sequences count; under "window", at
    the longest of them, with no query looking further back than in training.
    """
    torch.manual_seed(seed)
    model = LanguageModel(
        positions_for(scheme, d_model=32, num_heads=4), symbols=symbols, d_model=32, layers=1
    )
    stream = recall_batches(16, seed, back=back, symbols=symbols)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, seed=seed)
    samples = []
    for n in LENGTHS:
        fresh = next(recall_batches(100, 1000 + n, back=back, symbols=symbols, length=n))
        samples.append(Sample(fresh.tokens, fresh.target[:, -JUDGED:]))
    return {
        "accuracy": [accuracy(model, sample) for sample in samples],
        "window": accuracy(model, samples[-1], window=TRAINED),
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }

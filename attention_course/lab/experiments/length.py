"""A small language model whose positions can be exchanged, and its loss at every length of context.

Chapter 6 trains it on 64 tokens at a time and tests it on up to 512. A second task asks for the token a
fixed number of places back.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.lab.data.text import SYMBOLS, Sample, documentation, text_batches
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.positions import ALiBi, Learned, Rotary, Sinusoidal
from attention_course.transformer import Embedding, LanguageModel, LayerConfig

SCHEMES = ("none", "learned", "sinusoidal", "rotary", "alibi")
#: Tokens that a model sees at a time in training, and in the test.
TRAINED, LENGTHS = 64, (64, 96, 128, 256, 512)
#: Only the last tokens of each window are judged: none of them has less than half the context.
JUDGED = 32


def model_for(
    scheme: str,
    *,
    num_tokens: int = len(SYMBOLS),
    num_layers: int = 2,
    d_model: int = 64,
    num_heads: int = 4,
    longest: int = LENGTHS[-1],
) -> LanguageModel:
    """Return an untrained causal model whose positions are what one of ``SCHEMES`` stands for.

    Learned ones have ``longest`` vectors, however few of them training will reach. Raises a
    ``ValueError`` for an unknown scheme.
    """
    added, rotation, score_bias = None, None, None
    if scheme == "learned":
        added = Learned(longest, d_model)
        nn.init.normal_(added.table, std=math.sqrt(0.5))  # as large as sines and cosines are
    elif scheme == "sinusoidal":
        added = Sinusoidal(d_model)
    elif scheme == "rotary":
        rotation = Rotary(d_model // num_heads)
    elif scheme == "alibi":
        score_bias = ALiBi(num_heads)
    elif scheme != "none":
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    config = LayerConfig(
        d_model=d_model,
        num_heads=num_heads,
        d_ff=2 * d_model,
        norm="pre",
        bias=False,
        rotation=rotation,
        score_bias=score_bias,
    )
    embedding = Embedding(num_tokens, d_model, added)
    model = LanguageModel(embedding, num_layers, config, is_causal=True, tied=False)
    nn.init.normal_(embedding.table.weight)  # rows of their own, as large as what is added to them
    return model


def narrowed(model: LanguageModel, window: int | None) -> LanguageModel:
    """Return a copy in which each query of each layer sees its last ``window`` keys only, or all of them."""
    result = copy.deepcopy(model)
    for layer in result.stack.layers:
        layer.window = window
    return result


def loss(model: LanguageModel, sample: Sample) -> Float[Tensor, ""]:
    """Return the mean cross-entropy in nats per target."""
    logits = model(sample.tokens)[:, -sample.target.shape[1] :]
    return F.cross_entropy(logits.flatten(0, 1), sample.target.flatten(), ignore_index=-1)


@torch.no_grad()
def accuracy(model: LanguageModel, sample: Sample) -> float:
    """Return the share of targets to which the model gives the largest logit."""
    best = model(sample.tokens)[:, -sample.target.shape[1] :].argmax(-1)
    asked = sample.target >= 0
    return (best == sample.target)[asked].float().mean().item()


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
    learned = model.embedding.positions
    if not isinstance(learned, Learned):
        raise TypeError(f"only learned positions can be stretched, got {type(learned).__name__}")
    result = copy.deepcopy(model)
    table = learned.table.detach()[:trained].T  # [d_model, trained]
    wide = F.interpolate(table[None], size=length, mode="linear", align_corners=True)[0].T
    result.embedding.positions.table = nn.Parameter(wide.contiguous())
    return result


@torch.no_grad()
def nats(model: LanguageModel, text: Int[Tensor, " n"], length: int) -> float:
    """Return the loss per character behind ``length`` characters; the same ones for each length."""
    return loss(model, windows(text, length)).item()


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
    model = model_for(scheme)
    stream = text_batches(text.train, 768 // length, seed, length=length)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, seed=seed)
    judged = getattr(text, judged_on)
    result = {
        "model": model,
        "plain": [nats(model, judged, n) for n in LENGTHS],
        "window": nats(narrowed(model, length), judged, LENGTHS[-1]),
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
    model = model_for(scheme, num_tokens=symbols, num_layers=1, d_model=32)
    stream = recall_batches(16, seed, back=back, symbols=symbols)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, seed=seed)
    samples = []
    for n in LENGTHS:
        fresh = next(recall_batches(100, 1000 + n, back=back, symbols=symbols, length=n))
        samples.append(Sample(fresh.tokens, fresh.target[:, -JUDGED:]))
    return {
        "accuracy": [accuracy(model, sample) for sample in samples],
        "window": accuracy(narrowed(model, TRAINED), samples[-1]),
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }

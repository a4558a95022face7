"""A small model that writes characters, and what it costs to share keys and values between its heads.

Chapter 9 trains it on a part of Python's manual (see ``documentation``), with as many key heads
as query heads, with two, and with one. What fewer key heads save in parameters goes into the
feed-forward network, so that all models are of one size.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attention_course.decoding import bytes_per_token
from attention_course.lab.data.text import SYMBOLS, Sample, documentation, text_batches
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.positions import Sinusoidal
from attention_course.transformer import Embedding, FeedForward, LanguageModel, LayerConfig

#: the model's size; its positions are as many as it sees tokens at a time
LAYERS, D_MODEL, HEADS, D_FF, LENGTH = 2, 64, 4, 192, 64
#: pieces of the text in a training step
PIECES = 12


def model_with(num_kv_heads: int) -> LanguageModel:
    """Return an untrained model with ``num_kv_heads`` and as many parameters as with all ``HEADS``.

    Equal to within what one unit of a feed-forward network takes in every layer.
    """
    saved = 2 * (HEADS - num_kv_heads) * (D_MODEL // HEADS) * (D_MODEL + 1)
    config = LayerConfig(
        d_model=D_MODEL,
        num_heads=HEADS,
        d_ff=D_FF + round(saved / (2 * D_MODEL + 1)),
        norm="pre",
        feed_forward=partial(FeedForward, activation=partial(F.gelu, approximate="tanh")),
        num_kv_heads=num_kv_heads,
    )
    # Few steps: sinusoids need not be learned first. Words are scaled up to be as large as they are.
    embedding = Embedding(len(SYMBOLS), D_MODEL, Sinusoidal(D_MODEL), scale=math.sqrt(D_MODEL))
    return LanguageModel(embedding, LAYERS, config, is_causal=True)


def loss(model: LanguageModel, sample: Sample) -> Float[Tensor, ""]:
    """Return the mean cross-entropy in nats per character."""
    return F.cross_entropy(model(sample.tokens).flatten(0, 1), sample.target.flatten())


@torch.no_grad()
def nats(model: LanguageModel, text: Int[Tensor, " n"]) -> float:
    """Return the loss per character over ``text``, each with half of ``LENGTH`` or more before it."""
    half = LENGTH // 2
    start = torch.arange(0, len(text) - LENGTH, half)[:, None]
    piece = text[start + torch.arange(LENGTH + 1)]
    logits = model(piece[:, :-1])[:, half:]
    return F.cross_entropy(logits.flatten(0, 1), piece[:, half + 1 :].flatten()).item()


def encode(text: str) -> Int[Tensor, "1 T"]:
    """Return a text as one row of tokens. Raises a ``ValueError`` for a character outside ``SYMBOLS``."""
    unknown = sorted(set(text) - set(SYMBOLS))
    if unknown:
        raise ValueError(f"text must consist of SYMBOLS, got {unknown}")
    return torch.tensor([[SYMBOLS.index(letter) for letter in text]])


def decode(tokens: Int[Tensor, " T"]) -> str:
    """Return the text that a row of tokens stands for."""
    return "".join(SYMBOLS[token] for token in tokens.tolist())


def repeated(text: str, n: int = 12) -> float:
    """Return the share of the pieces of ``n`` characters that occur earlier in the same text."""
    pieces = [text[i : i + n] for i in range(len(text) - n + 1)]
    return 1 - len(set(pieces)) / len(pieces)


def trial(
    num_kv_heads: int,
    seed: int,
    *,
    steps: int = 400,
    learning_rate: float = 0.008,
    judged_on: str = "test",
) -> dict[str, Any]:
    """Train one model on the documentation; return it, its nats, its parameters, bytes and seconds.

    Each step sees ``PIECES`` pieces of ``LENGTH`` characters. ``judged_on`` names the piece of the text; the
    bytes are those that a cache in float32 keeps of each token.
    """
    text = documentation()
    torch.manual_seed(seed)
    model = model_with(num_kv_heads)
    stream = text_batches(text.train, PIECES, seed, length=LENGTH)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, seed=seed)
    return {
        "model": model,
        "nats": nats(model, getattr(text, judged_on)),
        "parameters": count_parameters(model),
        "bytes": bytes_per_token(
            num_layers=LAYERS, num_kv_heads=num_kv_heads, d_k=D_MODEL // HEADS, dtype=torch.float32
        ),
        "seconds": history.seconds,
    }

"""From GPT-2's block to Llama 2's, one change at a time, at equal parameters.

Chapter 7c trains each of the blocks on the book's text and compares it with GPT-2's from the same seed.
What a change saves or costs in parameters goes into the width of the feed-forward network or comes out
of it.
"""

import math
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.lab.data.text import SYMBOLS, Sample, documentation, text_batches
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.positions import Learned, Rotary
from attention_course.transformer import (
    Embedding,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    LanguageModel,
    LayerConfig,
)

LAYERS, D_MODEL, HEADS, LENGTH = 2, 48, 4, 64
#: pieces of the text in a training step
PIECES = 6
#: which windows of the text a trained model is judged on: one in so many
EVERY = 5
#: the changes in the order of the page; "Llama 2" is the first five of them
CHANGES = ("RMSNorm", "no biases", "SwiGLU", "rotary", "grouped heads", "QK-norm")
BLOCKS = ("GPT-2", *CHANGES, "Llama 2", "Llama 2, QK-norm")

_text = cache(documentation)  # read once for all the trials of a process


def changes_of(block: str) -> tuple[str, ...]:
    """Return which of ``CHANGES`` a block has. Raises a ``ValueError`` for an unknown block."""
    if block not in BLOCKS:
        raise ValueError(f"block must be one of {', '.join(BLOCKS)}, got {block!r}")
    several = {"GPT-2": (), "Llama 2": CHANGES[:5], "Llama 2, QK-norm": CHANGES}
    return several.get(block, (block,))


def model_of(block: str) -> LanguageModel:
    """Return an untrained model of a block's layers, of the size that GPT-2's has with d_ff = 4 d_model.

    Equal to within what one unit of a feed-forward network takes in every layer.
    """
    size = count_parameters(_built((), 4 * D_MODEL))
    changes = changes_of(block)
    least = count_parameters(_built(changes, 1))
    unit = count_parameters(_built(changes, 2)) - least
    return _built(changes, 1 + round((size - least) / unit))


def _built(changes: tuple[str, ...], d_ff: int) -> LanguageModel:
    bias = "no biases" not in changes
    if "SwiGLU" in changes:
        network = partial(GatedFeedForward, bias=bias)
    else:
        network = partial(FeedForward, activation=partial(F.gelu, approximate="tanh"), bias=bias)
    rotary = "rotary" in changes
    config = LayerConfig(
        d_model=D_MODEL,
        num_heads=HEADS,
        d_ff=d_ff,
        norm="pre",
        norm_layer=nn.RMSNorm if "RMSNorm" in changes else partial(nn.LayerNorm, bias=bias),
        feed_forward=network,
        num_kv_heads=2 if "grouped heads" in changes else None,
        bias=bias,
        qk_norm=nn.RMSNorm if "QK-norm" in changes else None,
        rotation=Rotary(D_MODEL // HEADS) if rotary else None,
    )
    learned = None if rotary else Learned(LENGTH, D_MODEL)
    if learned is not None:
        nn.init.normal_(learned.table, std=1 / math.sqrt(D_MODEL))  # as large as the words
    return LanguageModel(Embedding(len(SYMBOLS), D_MODEL, learned), LAYERS, config, is_causal=True)


def loss(model: LanguageModel, sample: Sample) -> Float[Tensor, ""]:
    """Return the mean cross-entropy in nats per character."""
    return F.cross_entropy(model(sample.tokens).flatten(0, 1), sample.target.flatten())


def _windows(text: Int[Tensor, " n"]) -> Sample:
    start = torch.arange(0, len(text) - LENGTH, EVERY * LENGTH)[:, None]
    piece = text[start + torch.arange(LENGTH + 1)]
    return Sample(piece[:, :-1], piece[:, 1:])


@torch.no_grad()
def nats(model: LanguageModel, text: Int[Tensor, " n"]) -> float:
    """Return the loss per character over one in ``EVERY`` windows of ``text``."""
    return loss(model, _windows(text)).item()


def scores(layer: EncoderLayer, x: Float[Tensor, "B T d_model"]) -> Float[Tensor, "B h T T"]:
    """Return q·k / √d_k of a layer that finds the stream x: for all pairs, the later keys too."""
    heads, read = layer.attention, layer.around_attention.read(x)

    def rows(projection: nn.Linear, norm: nn.Module) -> Float[Tensor, "B heads T d_k"]:
        each = norm(projection(read).unflatten(-1, (-1, D_MODEL // HEADS)).transpose(1, 2))
        return each if heads.rotation is None else heads.rotation(each, start=0)

    query, key = rows(heads.query_projection, heads.query_norm), rows(heads.key_projection, heads.key_norm)
    key = key.repeat_interleave(heads.num_heads // heads.num_kv_heads, 1)
    return query @ key.mT / math.sqrt(D_MODEL // HEADS)


@torch.no_grad()
def largest_score(model: LanguageModel, text: Int[Tensor, " n"]) -> float:
    """Return the largest |q·k| / √d_k of any layer, head, query and earlier key in these windows."""
    states = model.trace(_windows(text).tokens).states[:-1]
    past = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return max(
        scores(layer, x)[..., past].abs().max().item()
        for layer, x in zip(model.stack.layers, states, strict=True)
    )


def trial(
    block: str, seed: int, *, steps: int = 150, learning_rate: float = 0.01, judged_on: str = "test"
) -> dict[str, Any]:
    """Train one model on the documentation; return its nats, largest score, parameters and seconds.

    Each step sees ``PIECES`` pieces of ``LENGTH`` characters, the same ones for every block of a seed.
    ``judged_on`` names the piece of the text, of which one in ``EVERY`` windows counts.
    """
    text = _text()
    torch.manual_seed(seed)
    model = model_of(block)
    stream = text_batches(text.train, PIECES, seed, length=LENGTH)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, seed=seed)
    judged = getattr(text, judged_on)
    return {
        "nats": nats(model, judged),
        "score": largest_score(model, judged),
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }

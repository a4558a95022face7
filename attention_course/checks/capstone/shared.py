"""What the milestones share: the model's state and sizes, and how both are drawn."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.drawing import normal

NAME = "19_capstone"

#: layers of every model whose state is given; the names say so
LAYERS = 2
_OF_A_LAYER = (
    "norm_1.weight", "norm_1.bias",
    "query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias",
    "output.weight", "output.bias",
    "norm_2.weight", "norm_2.bias",
    "inner.weight", "inner.bias", "outer.weight", "outer.bias",
)  # fmt: skip
#: the given state, by the names that the notebook documents
STATE = (
    "token.weight",
    "position.weight",
    *(f"layers.{layer}.{name}" for layer in range(LAYERS) for name in _OF_A_LAYER),
    "norm.weight",
    "norm.bias",
)
#: how a model is built, for messages
BUILT = "GPT(vocabulary, length, d_model, num_heads, num_layers, dropout)"


def sizes(
    vocabulary: int, length: int, d_model: int, num_heads: int, dropout: float = 0.0
) -> dict[str, int | float]:
    """What a GPT is built with, by name."""
    return {
        "vocabulary": vocabulary, "length": length, "d_model": d_model, "num_heads": num_heads,
        "num_layers": LAYERS, "dropout": dropout,
    }  # fmt: skip


def state(
    generator: Generator, sizes: dict[str, int | float], *, sharp: float = 1.0, spread: float = 1.0
) -> Inputs:
    """A state in which every part is heard: gains are not 1, shifts and biases not 0.

    ``sharp`` multiplies queries and keys, so that scores get large; ``spread`` what the last norm gives, and
    with it the logits.
    """
    d_model = sizes["d_model"]
    shapes = {
        "token.weight": (sizes["vocabulary"], d_model), "position.weight": (sizes["length"], d_model),
        "inner.weight": (4 * d_model, d_model), "inner.bias": (4 * d_model,),
        "outer.weight": (d_model, 4 * d_model),
    }  # fmt: skip
    drawn = []
    for name in STATE:
        part, _, kind = name.rpartition(".")
        short = name if name in shapes else name.split(".", 2)[-1]
        default = (d_model,) if kind == "bias" or "norm" in part else (d_model, d_model)
        drawn.append(_drawn(generator, part.split(".")[-1], kind, shapes.get(short, default), sharp, spread))
    return tuple(drawn)


def _drawn(generator: Generator, part: str, kind: str, shape: tuple, sharp: float, spread: float) -> Tensor:
    numbers = normal(generator, *shape)
    if "norm" in part:
        scale = spread if part == "norm" else 1.0
        return scale * (1 + 0.3 * numbers if kind == "weight" else 0.3 * numbers)
    if kind == "bias":
        return 0.3 * numbers
    if part in ("token", "position"):
        return 0.7 * numbers
    scale = sharp if part in ("query", "key") else 1.0
    return scale * numbers / shape[-1] ** 0.5


def tokens(generator: Generator, vocabulary: int, *shape: int) -> Tensor:
    """Random tokens."""
    return torch.randint(vocabulary, shape, generator=generator)

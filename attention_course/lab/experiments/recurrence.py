"""One layer of attention against one layer of GRU: seconds, bytes and influence as the text grows longer.

Both map [B, T, d] to [B, T, d] and return it first of two things. Chapter 7 asks how time and memory
grow with T, how much the first token moves the last output before training, and whether a layer can be
taught to carry the first token to the end.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.heads import MultiHeadAttention
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.positions import Sinusoidal
from attention_course.transformer import Embedding

Kind = Literal["GRU", "GRU, gates open", "attention"]
KINDS: tuple[Kind, ...] = ("GRU", "GRU, gates open", "attention")
SYMBOLS = 8


def layer(kind: Kind, d: int, *, openness: float = 5.0) -> nn.GRU | MultiHeadAttention:
    """Return a layer of width ``d``: a GRU, or self-attention with one head.

    With open gates, ``openness`` is added to the bias of the GRU's update gate, which then lets nearly
    all of the old state through: each step keeps about the share sigmoid(openness). Raises a
    ``ValueError`` for another kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {'; '.join(KINDS)}, got {kind!r}")
    if kind == "attention":
        return MultiHeadAttention(d, 1)
    gru = nn.GRU(d, d, batch_first=True)
    if kind == "GRU, gates open":
        with torch.no_grad():
            gru.bias_ih_l0[d : 2 * d] += openness  # reset, update, new: torch's order of the gates
    return gru


def kept(function: Callable[[], Tensor]) -> int:
    """Return the bytes that ``function`` keeps for the backward pass, each piece of memory counted once."""
    pieces: dict[int, Tensor] = {}  # holds them, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        pieces[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    total = sum(tensor.untyped_storage().nbytes() for tensor in pieces.values())
    del result
    return total


def influence(kind: Kind, T: int, *, d: int = 32, draws: int = 4, seed: int = 0) -> float:
    """Return how much the first token moves the last output of an untrained layer.

    It is the norm of the Jacobian ∂ output[T - 1] / ∂ input[0], averaged over random inputs, in float64.
    """
    torch.manual_seed(seed)
    untrained, total = layer(kind, d).double(), 0.0
    for _ in range(draws):
        x = torch.randn(1, T, d, dtype=torch.float64, requires_grad=True)
        last = untrained(x)[0][0, -1]
        rows = [torch.autograd.grad(entry, x, retain_graph=True)[0][0, 0] for entry in last]
        total += torch.stack(rows).norm().item()
    return total / draws


class Sequences(NamedTuple):
    """Random symbols, and the first of each."""

    tokens: Int[Tensor, "B T"]
    first: Int[Tensor, " B"]


def sequences(T: int, size: int, seed: int) -> Iterator[Sequences]:
    """Return an endless stream of batches, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(SYMBOLS, (size, T), generator=generator)
        yield Sequences(tokens, tokens[:, 0])


class Recall(nn.Module):
    """One layer that reads T symbols and must name the first from what it has at the last.

    Both kinds have the last token's own embedding beside the layer's answer; attention gets sinusoidal
    positions, which a GRU does not need.
    """

    def __init__(self, kind: Kind, *, d: int = 32) -> None:
        super().__init__()
        positions = Sinusoidal(d) if kind == "attention" else nn.Identity()
        self.embedding = Embedding(SYMBOLS, d, positions, scale=math.sqrt(d))
        self.layer = layer(kind, d)
        self.output = nn.Linear(d, SYMBOLS)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B symbols"]:
        """Return logits [B, 8] for the first of tokens [B, T]."""
        x = self.embedding(tokens)
        last = x[:, -1:]
        # Attention needs no other query than the last; a GRU has to go through all its states.
        answer = self.layer(last, x)[0] if isinstance(self.layer, MultiHeadAttention) else self.layer(x)[0]
        return self.output(last[:, 0] + answer[:, -1])


def loss(model: Recall, batch: Sequences) -> Float[Tensor, ""]:
    """Return the cross-entropy of the first symbol."""
    return F.cross_entropy(model(batch.tokens), batch.first)


@torch.no_grad()
def accuracy(model: Recall, batch: Sequences) -> float:
    """Return how often the first symbol is named."""
    return (model(batch.tokens).argmax(-1) == batch.first).float().mean().item()


def trial(
    kind: Kind, T: int, *, seed: int, steps: int = 200, learning_rate: float = 0.01, longer: int | None = None
) -> dict[str, Any]:
    """Train a layer to name the first of T symbols and return accuracy, learned_at, parameters, seconds.

    ``learned_at`` is the first step from which ten losses in a row have a mean below 0.5, or ``None``.
    Accuracy is measured on 500 sequences that it was not trained on; ``beyond``, if ``longer`` is given,
    on 500 of that length. Guessing gets 1 in 8.
    """
    torch.manual_seed(seed)
    model = Recall(kind)
    history = train(
        model, sequences(T, 64, seed), loss, steps=steps, learning_rate=learning_rate, seed=seed, warmup=20
    )
    windows = (sum(history.losses[i : i + 10]) / 10 for i in range(steps - 9))
    unseen = next(sequences(T, 500, seed + 1000))
    return {
        "accuracy": accuracy(model, unseen),
        "beyond": None if longer is None else accuracy(model, next(sequences(longer, 500, seed + 1000))),
        "learned_at": next((i for i, mean in enumerate(windows) if mean < 0.5), None),
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }

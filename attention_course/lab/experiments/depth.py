"""What residual connections and norms are for: the same deep stack with and without them.

Chapter 7 asks of each, before training, how large the first layer's gradient is, how much of the input
is left at the top and how alike the tokens have become; then whether each token can learn to name itself.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.lab.train.loop import train
from attention_course.transformer import Encoder, LayerConfig

Kind = Literal["post", "pre", "norm alone", "neither"]
#: post: norm(x + f(x)); pre: x + f(norm(x)); norm alone: norm(f(x)); neither: f(x)
KINDS: tuple[Kind, ...] = ("post", "pre", "norm alone", "neither")
WIDTH, CLASSES = 64, 16


class Stack(nn.Module):
    """``depth`` encoder layers in one of the four ``KINDS``, their matrices drawn as ``nn.Transformer`` does.

    That is Glorot's way, with variances that fit a matrix's height and width. Raises a ``ValueError``
    for another kind.
    """

    def __init__(self, depth: int, kind: Kind, *, d_model: int = WIDTH) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        self.kind = kind
        norm = "pre" if kind == "pre" else "post"
        self.encoder = Encoder(depth, LayerConfig(d_model=d_model, num_heads=4, d_ff=2 * d_model, norm=norm))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x: Float[Tensor, "B T d_model"]) -> Float[Tensor, "B T d_model"]:
        """Return the top of the stack: [B, T, d_model] -> [B, T, d_model]."""
        if self.kind in ("post", "pre"):
            return self.encoder(x)[0]
        for layer in self.encoder.layers:
            x = self._replace(layer.attention(x)[0], layer.around_attention.norm)
            x = self._replace(layer.feed_forward(x), layer.around_feed_forward.norm)
        return x

    def _replace(self, answer: Tensor, norm: nn.LayerNorm) -> Tensor:
        """What a sub-layer says takes the stream's place, where it would have been added to it."""
        return norm(answer) if self.kind == "norm alone" else answer


def gradients(depth: int, kind: Kind, *, seed: int) -> list[float]:
    """Return the norm of each layer's gradient before training, first layer first.

    The loss is the cross-entropy of random classes; inputs are random vectors. In float64, where
    even 1e-30 is not 0.
    """
    torch.manual_seed(seed)
    stack, output = Stack(depth, kind).double(), nn.Linear(WIDTH, CLASSES).double()
    x = torch.randn(8, 16, WIDTH, dtype=torch.float64)
    classes = torch.randint(CLASSES, (8 * 16,))
    F.cross_entropy(output(stack(x)).flatten(0, 1), classes).backward()
    return [
        math.sqrt(sum(p.grad.square().sum().item() for p in layer.parameters() if p.grad is not None))
        for layer in stack.encoder.layers
    ]


@torch.no_grad()
def likeness(depth: int, kind: Kind, *, seed: int) -> float:
    """Return the mean cosine between two tokens of a sequence at the top, before training.

    1 means that they have all become the same vector; random inputs have 0.
    """
    torch.manual_seed(seed)
    stack = Stack(depth, kind).double()
    top = F.normalize(stack(torch.randn(8, 16, WIDTH, dtype=torch.float64)), dim=-1, eps=0.0)
    cosines = top @ top.mT  # [8, 16, 16]
    return cosines[:, ~torch.eye(16, dtype=torch.bool)].mean().item()


@torch.no_grad()
def share(depth: int, kind: Kind, *, seed: int) -> float:
    """Return the mean cosine between a token at the top and the same token as it went in, before training.

    It is the share of the input in what comes out, where 1 is nothing else.
    """
    torch.manual_seed(seed)
    stack = Stack(depth, kind).double()
    x = torch.randn(8, 16, WIDTH, dtype=torch.float64)
    return F.cosine_similarity(stack(x), x, dim=-1).mean().item()


@torch.no_grad()
def answer_variance(depth: int, *, seed: int) -> float:
    """Return the mean variance of what the sub-layers of a pre-norm stack add to its stream."""
    torch.manual_seed(seed)
    stack = Stack(depth, "pre").double()
    x, variances = torch.randn(8, 16, WIDTH, dtype=torch.float64), []
    for layer in stack.encoder.layers:
        for function, around in (
            (lambda read, layer=layer: layer.attention(read)[0], layer.around_attention),
            (layer.feed_forward, layer.around_feed_forward),
        ):
            answer = function(around.read(x))
            variances.append(answer.var().item())
            x = around.write(x, answer)
    return sum(variances) / len(variances)


def symbols(T: int, size: int, seed: int) -> Iterator[Int[Tensor, "B T"]]:
    """Return an endless stream of random symbols [size, T], the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(CLASSES, (size, T), generator=generator)


def name_yourself(
    depth: int, kind: Kind, *, seed: int, steps: int = 100, learning_rate: float = 0.001, d_model: int = 32
) -> dict[str, Any]:
    """Train every token to name itself and return accuracy, losses and seconds.

    Nothing could be easier: a stack that hands its input through has solved it. Guessing gets 1/16.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(CLASSES, d_model), Stack(depth, kind, d_model=d_model), nn.Linear(d_model, CLASSES)
    )

    def loss(model: nn.Module, tokens: Tensor) -> Float[Tensor, ""]:
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    history = train(model, symbols(8, 32, seed), loss, steps=steps, learning_rate=learning_rate, warmup=20)
    with torch.no_grad():
        unseen = next(symbols(8, 500, seed + 1000))
        right = (model(unseen).argmax(-1) == unseen).float().mean().item()
    return {"accuracy": right, "losses": history.losses, "seconds": history.seconds}

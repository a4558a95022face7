"""Induction heads: what a small model learns from sequences that repeat themselves, and when.

Chapter 13 trains models of attention alone on random symbols that come round again. The next symbol is
anybody's guess in the first round and known afterwards to whoever finds the last time that the present
one was seen, and copies what followed (Elhage et al. 2021; Olsson et al. 2022). How well the models do,
and where their heads look, is measured during the training; at its end, heads and looks are taken out.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_course import masks
from attention_course.inputs import check_at_least, check_choice
from attention_course.inside.recording import record, weights_of
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.positions import Learned
from attention_course.transformer import Embedding, LanguageModel, LayerConfig

SYMBOLS, LENGTH = 32, 48
#: Rounds have 16 to 24 symbols: were it always the same number, looking back that far would do.
PERIODS = (16, 24)
#: the loss of whoever knows no more than how many symbols there are
GUESSING = math.log(SYMBOLS)

Rounds = Literal["same order", "any order", "new symbols"]
Item = TypeVar("Item")


class Sequences(NamedTuple):
    """A batch of random symbols, and after how many of them each sequence begins its second round."""

    tokens: Int[Tensor, "B T"]
    period: Int[Tensor, " B"]


class Places(NamedTuple):
    """Which targets, the second to last tokens, lie in the first round, and which ones can be known."""

    new: Bool[Tensor, "B T"]
    repeated: Bool[Tensor, "B T"]


def draw(
    size: int,
    generator: torch.Generator,
    *,
    periods: tuple[int, int] = PERIODS,
    rounds: Rounds = "same order",
) -> Sequences:
    """Return ``size`` sequences of 48 symbols, each with a period of its own between ``periods``.

    Later rounds bring the first one's symbols in the "same order" or in "any order", drawn with
    replacement, or "new symbols". Raises a ``ValueError`` for other rounds, or for periods that leave
    nothing to repeat.
    """
    check_choice("rounds", rounds, get_args(Rounds))
    low, high = periods
    if not 1 <= low <= high < LENGTH - 1:
        raise ValueError(f"periods must be in order and lie between 1 and {LENGTH - 2}, got {periods}")
    period = torch.randint(low, high + 1, (size,), generator=generator)
    symbols = torch.randint(SYMBOLS, (size, LENGTH), generator=generator)
    time = torch.arange(LENGTH).expand(size, LENGTH)
    if rounds == "same order":
        place = time % period[:, None]
    elif rounds == "any order":
        drawn = (torch.rand(size, LENGTH, generator=generator) * period[:, None]).long()
        place = time.where(time < period[:, None], drawn)
    else:
        place = time
    return Sequences(symbols.gather(1, place), period)


def batches(size: int, seed: int) -> Iterator[Sequences]:
    """Return an endless stream of fresh batches, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield draw(size, generator)


def places(sequences: Sequences) -> Places:
    """Return which of the T - 1 targets are new and which are repeated.

    The first symbol of the second round is neither: nothing tells that the first one is over.
    """
    target = torch.arange(1, sequences.tokens.shape[1], device=sequences.tokens.device)
    period = sequences.period[:, None]
    return Places(target < period, target > period)


class NoNetwork(nn.Module):
    """A feed-forward network that has nothing to say, for models of attention alone."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "... T d_model"]) -> Float[Tensor, "... T d_model"]:
        """Return zeros of the shape of x."""
        return torch.zeros_like(x)


def model_for(num_layers: int, *, d_model: int = 64, num_heads: int = 2) -> LanguageModel:
    """Return an untrained causal model of attention alone, with learned positions.

    Its only parameters are the embedding's, the output's and four matrices per layer.
    """
    config = LayerConfig(
        d_model=d_model,
        num_heads=num_heads,
        d_ff=1,
        norm="pre",
        norm_layer=partial(nn.LayerNorm, elementwise_affine=False),
        feed_forward=NoNetwork,
        bias=False,
    )
    embedding = Embedding(SYMBOLS, d_model, Learned(LENGTH, d_model))
    for table in (embedding.table.weight, embedding.positions.table):
        nn.init.normal_(table, std=0.3)  # what a symbol is and where it stands weigh the same at first
    return LanguageModel(embedding, num_layers, config, is_causal=True, tied=False)


def nats(model: nn.Module, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B targets"]:
    """Return the cross-entropy of each of the T - 1 targets."""
    return _nats(model(tokens), tokens)


def loss(model: nn.Module, sequences: Sequences) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of all targets, new ones too, as a language model is trained."""
    return nats(model, sequences.tokens).mean()


@torch.no_grad()
def repeated_loss(model: nn.Module, sequences: Sequences) -> float:
    """Return the mean cross-entropy of the targets that can be known."""
    return nats(model, sequences.tokens)[places(sequences).repeated].mean().item()


def after_a_match(tokens: Int[Tensor, "B T"], after: int = 1) -> Bool[Tensor, "B T T"]:
    """Return, for query t and key j ≤ t, whether x[j - after] = x[t] for an earlier token, j - after < t.

    With 1 these are the tokens that followed the present one, with 0 its own earlier appearances.
    """
    check_at_least(0, after=after)
    T = tokens.shape[1]
    same = F.pad(tokens[:, :, None] == tokens[:, None, : T - after], (after, 0))  # of query t and key j
    time = torch.arange(T, device=tokens.device)
    return same & (time - after < time[:, None]) & (time <= time[:, None])


def induction_score(
    weights: Float[Tensor, "... B h T T"], sequences: Sequences, *, after: int = 1
) -> Float[Tensor, "... h"]:
    """Return the weight on all tokens that followed the present one before, summed over them.

    It is averaged over the queries of later rounds, where there is at least one such token.
    ``after`` asks for other tokens, as in ``after_a_match``.
    """
    tokens, period = sequences
    found = (weights * after_a_match(tokens, after)[:, None]).sum(-1)  # [..., B, h, T]
    later = torch.arange(tokens.shape[1], device=tokens.device) >= period[:, None]  # [B, T]
    return (found * later[:, None]).sum((-3, -1)) / later.sum()


def previous_score(weights: Float[Tensor, "... B h T T"], *, back: int = 1) -> Float[Tensor, "... h"]:
    """Return the weight on the token ``back`` places earlier, averaged over the queries that have one."""
    check_at_least(0, back=back)
    return weights.diagonal(-back, -2, -1).mean((-3, -1))


def uniform(length: int = LENGTH) -> Float[Tensor, "1 1 T T"]:
    """Return the weights of a head that looks at everything before it alike: what scores compare with."""
    seen = masks.causal(length).float()
    return (seen / seen.sum(-1, keepdim=True))[None, None]


def hiding(
    model: LanguageModel, tokens: Int[Tensor, "B T"], back: int, *, layer: int = 0
) -> tuple[Float[Tensor, "B T symbols"], list[Float[Tensor, "B h T T"]]]:
    """Return logits and every layer's weights if no query of one ``layer`` may look ``back`` tokens back.

    The weight that would have gone there goes to the other tokens in the same proportions. Raises a
    ``ValueError`` for a ``back`` below 1 or a layer that is not there.
    """
    check_at_least(1, back=back)
    if not 0 <= layer < len(model.stack.layers):
        raise ValueError(f"layer must lie between 0 and {len(model.stack.layers) - 1}, got {layer}")
    place = torch.arange(tokens.shape[1], device=tokens.device)
    seen = place[:, None] - place != back  # True = may look
    x, weights = model.embedding(tokens), []
    for number, part in enumerate(model.stack.layers):
        mask = seen if number == layer else None
        x, looks = part(x, attn_mask=mask, is_causal=model.is_causal, need_weights=True)
        weights.append(looks)
    return model.output(model.stack.final_norm(x)), weights


@torch.no_grad()
def hidden_loss(model: LanguageModel, sequences: Sequences, back: int, *, layer: int = 0) -> float:
    """Return the loss on repeats if no query of one ``layer`` may look ``back`` tokens back."""
    logits, _ = hiding(model, sequences.tokens, back, layer=layer)
    return _nats(logits, sequences.tokens)[places(sequences).repeated].mean().item()


def halfway(steps: Sequence[int], values: Float[Tensor, " n"]) -> float:
    """Return the step at which ``values`` first are halfway from the first to the last of them.

    Between two steps it is where the straight line crosses. Raises a ``ValueError`` for fewer than two
    steps, or unless there are as many values.
    """
    if len(steps) < 2 or len(steps) != len(values):
        raise ValueError(f"need at least two steps and as many values, got {len(steps)} and {len(values)}")
    share = (values - values[0]) / (values[-1] - values[0])
    after = int((share >= 0.5).nonzero()[0])
    before = after - 1
    part = (0.5 - share[before]) / (share[after] - share[before])
    return steps[before] + part.item() * (steps[after] - steps[before])


def trial(
    num_layers: int,
    seed: int,
    *,
    d_model: int = 64,
    num_heads: int = 2,
    steps: int = 400,
    learning_rate: float = 0.003,
    every: int = 10,
    held_out: int = 128,
) -> dict[str, Any]:
    """Train one model; return it and what was measured before every ``every``-th step and at the end.

    "new" and "repeated" [n] are losses in nats, "induction" and "previous" [n, layers, h] the scores of
    its heads, all on ``held_out`` sequences that it is never trained on, and "steps" says when. Besides:
    "parameters", "seconds" and the "held_out" sequences themselves.
    """
    torch.manual_seed(seed)
    model = model_for(num_layers, d_model=d_model, num_heads=num_heads)
    unseen = draw(held_out, torch.Generator().manual_seed(seed + 1000))
    when, measured = [], []

    def look(step: int) -> None:
        when.append(step)
        measured.append(measure(model, unseen))

    stream = watched(batches(32, seed), every, look)
    history = train(model, stream, loss, steps=steps, learning_rate=learning_rate, seed=seed)
    look(steps)
    series = {name: torch.stack([found[name] for found in measured]) for name in measured[0]}
    return {
        "model": model,
        "held_out": unseen,
        "steps": when,
        **series,
        "parameters": count_parameters(model),
        "seconds": history.seconds,
    }


@torch.no_grad()
def measure(model: LanguageModel, sequences: Sequences) -> dict[str, Tensor]:
    """Return losses, "new" and "repeated", and the scores [layers, h], "induction" and "previous"."""
    logits, layers = record(model, sequences.tokens)
    found, (new, repeated) = _nats(logits, sequences.tokens), places(sequences)
    weights = weights_of(layers)  # [layers, B, h, T, T]
    return {
        "new": found[new].mean(),
        "repeated": found[repeated].mean(),
        "induction": induction_score(weights, sequences),
        "previous": previous_score(weights),
    }


def watched(items: Iterable[Item], every: int, look: Callable[[int], None]) -> Iterator[Item]:
    """Return ``items``, and call ``look`` with the number of those gone before each ``every``-th of them.

    In the place of a training's batches, it sees the model as it is before that step.
    """
    check_at_least(1, every=every)
    for step, item in enumerate(items):
        if step % every == 0:
            look(step)
        yield item


def _nats(logits: Float[Tensor, "B T symbols"], tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B targets"]:
    return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")

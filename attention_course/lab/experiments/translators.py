"""Chapter 2's translators, one for each way to score, and where their largest weights lie.

Source and target of the running task are aligned by its grammar (``Pair.alignment``), so a model's
weights can be held against the truth. The words before are fed in as they should be, as Luong et
al. (2015, section 5.4) do when they measure alignments: one wrong word then spoils no other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from attention_course import local, scores
from attention_course.lab.data import translation
from attention_course.lab.data.pairs import Pair, Task, collate
from attention_course.lab.measure.translations import exact_match, forced_choices, translate
from attention_course.lab.train.translators import Run, learn
from attention_course.seq2seq import BahdanauDecoder, EncoderDecoder, LocalDecoder, LuongDecoder, recurrent

EMBEDDING = 32

#: How far a local window reaches to either side. Luong et al. (2015, section 4.1) took 10 for at most
#: 50 words; chapter 2's sentences have at most 20.
REACH = 4

#: The name of a way to attend -> its decoder, for states of ``d`` numbers.
DECODERS: dict[str, Callable[[int], Callable[..., nn.Module]]] = {
    "dot": lambda d: partial(LuongDecoder, score=scores.Dot()),
    "general": lambda d: partial(LuongDecoder, score=scores.General(d, d)),
    "additive": lambda d: partial(LuongDecoder, score=scores.Additive(d, d, d)),
    "additive, before the update": lambda d: BahdanauDecoder,
    "cosine": lambda d: partial(LuongDecoder, score=scores.Cosine()),
    "bare cosine": lambda d: partial(LuongDecoder, score=scores.Cosine().requires_grad_(False)),
    "location": lambda d: partial(LuongDecoder, score=scores.Location(d, translation.LONGEST)),
    "local-m": lambda d: partial(LocalDecoder, score=scores.Dot(), where=local.Monotonic(REACH)),
    "local-p": lambda d: partial(LocalDecoder, score=scores.Dot(), where=local.Predictive(d, d, REACH)),
}


def build(kind: str, hidden_size: int, num_source: int, num_target: int) -> EncoderDecoder:
    """Return a fresh translator that attends in the way ``kind`` names, with ``hidden_size`` numbers a state.

    Raises a ``ValueError`` for a ``kind`` that is not in ``DECODERS``.
    """
    if kind not in DECODERS:
        raise ValueError(f"kind must be one of {', '.join(DECODERS)}, got {kind}")
    decoder = DECODERS[kind](hidden_size)
    return recurrent(decoder, num_source, num_target, embedding_dim=EMBEDDING, hidden_size=hidden_size)


def up_to(task: Task, longest: int) -> Task:
    """Return ``task`` without the sources of more than ``longest`` tokens, in every split."""

    def short(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        return tuple(pair for pair in pairs if len(pair.source) <= longest)

    splits = ("train", "validation", "test", "beyond")
    return replace(task, **{name: short(getattr(task, name)) for name in splits})


@dataclass(frozen=True)
class Aim:
    """Where the largest weight lies, in shares of the words that have a source word: they sum to 1."""

    on_gold: float
    one_left: float
    one_right: float
    elsewhere: float


def aim(offsets: Sequence[int]) -> Aim:
    """Return how ``offsets``, largest weight minus gold position, are spread.

    Raises a ``ValueError`` for none.
    """
    if not offsets:
        raise ValueError("offsets must hold at least one number, got none")
    near = [offsets.count(offset) / len(offsets) for offset in (0, -1, 1)]
    return Aim(*near, elsewhere=1 - sum(near))


def forced_offsets(model: EncoderDecoder, pairs: Sequence[Pair], task: Task) -> list[tuple[str, int]]:
    """Return every aligned target word, with largest weight minus gold position; right or wrong."""
    return [
        (pair.target[t], choice.weights[t].argmax().item() - gold)
        for choice, pair in zip(forced_choices(model, pairs, task), pairs, strict=True)
        for t, gold in enumerate(pair.alignment)
        if gold >= 0
    ]


@torch.no_grad()
def predicted_distances(model: EncoderDecoder, pairs: Sequence[Pair], task: Task) -> list[float]:
    """Return, for every aligned word, how far local-p's predicted centre lies from its gold position."""
    batch = collate(pairs, task)
    decoder = model.decoder
    queries = decoder.advance(batch.previous, model.read(batch.source, batch.lengths), None)
    centres = decoder.where.centres(queries, batch.lengths)  # [B, T_q]
    return [
        abs(centres[b, t].item() - gold)
        for b, pair in enumerate(pairs)
        for t, gold in enumerate(pair.alignment)
        if gold >= 0
    ]


@dataclass(frozen=True)
class Trial:
    """A trained translator, its exact match in each group of sentences, and where it looks in all of them."""

    run: Run
    exact: tuple[float, ...]
    offsets: tuple[tuple[str, int], ...]


def trial(
    kind: str,
    hidden_size: int,
    task: Task,
    groups: Sequence[Sequence[Pair]],
    *,
    seed: int,
    steps: int,
    learning_rate: float,
) -> Trial:
    """Train the translator ``kind`` on ``task`` in batches of 32, and test it on ``groups`` of sentences."""
    make = partial(build, kind, hidden_size, len(task.source), len(task.target))
    run = learn(make, task, seed=seed, steps=steps, learning_rate=learning_rate, batch_size=32)
    exact = tuple(exact_match(translate(run.model, pairs, task), pairs) for pairs in groups)
    every = [pair for pairs in groups for pair in pairs]
    return Trial(run, exact, tuple(forced_offsets(run.model, every, task)))

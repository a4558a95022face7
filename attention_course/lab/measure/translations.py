"""What the book measures: parameters, exact matches, alignments, and their spread over seeds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attention_course.lab.data.pairs import BOS, EOS, Pair, Task, collate
from attention_course.seq2seq import EncoderDecoder, greedy


@dataclass(frozen=True)
class Translation:
    """What a model made of one source: its words, and its weights [T_q, T_k] if it attends."""

    words: tuple[str, ...]
    weights: Float[Tensor, "T_q T_k"] | None


def translate(model: EncoderDecoder, pairs: Sequence[Pair], task: Task) -> list[Translation]:
    """Return greedy translations of the pairs' sources, written without sight of their targets."""
    if not pairs:
        return []
    batch = collate(pairs, task)
    longest = 2 * batch.target.shape[1]  # room for a model that does not stop in time
    numbers, weights = greedy(model, batch.source, batch.lengths, bos=BOS, eos=EOS, max_length=longest)
    words = [task.target.decode(row) for row in numbers.tolist()]
    if weights is None:
        return [Translation(row, None) for row in words]
    return [
        Translation(row, weight[: len(row) + 1, : len(pair.source)])  # + 1: <eos> has weights too
        for row, weight, pair in zip(words, weights, pairs, strict=True)
    ]


@torch.no_grad()
def forced_choices(model: EncoderDecoder, pairs: Sequence[Pair], task: Task) -> list[Translation]:
    """Return, for every target word, the model's choice when all words before it are right.

    The same batch as in training, so that a wrong word cannot derail those after it.
    """
    if not pairs:
        return []
    batch = collate(pairs, task)
    logits, weights = model(batch.source, batch.lengths, batch.previous)
    return [
        Translation(
            tuple(task.target.words[number] for number in row[: len(pair.target)]),
            None if weights is None else weights[i, : len(pair.target) + 1, : len(pair.source)],
        )
        for i, (row, pair) in enumerate(zip(logits.argmax(-1).tolist(), pairs, strict=True))
    ]


def exact_match(translations: Sequence[Translation], pairs: Sequence[Pair]) -> float:
    """Return the share of translations that are right from the first word to the last (exact match)."""
    right = [t.words == pair.target for t, pair in zip(translations, pairs, strict=True)]
    return statistics.fmean(right)


def position_match(translations: Sequence[Translation], pairs: Sequence[Pair], source_position: int) -> float:
    """Return how often the target word that comes from ``source_position`` stands where it should.

    ``source_position`` may count from the end, as -1. Pairs without such a target word are left out.
    """
    right = []
    for translation, pair in zip(translations, pairs, strict=True):
        wanted = source_position % len(pair.source)
        if wanted in pair.alignment:
            t = pair.alignment.index(wanted)
            right.append(translation.words[t : t + 1] == pair.target[t : t + 1])
    return statistics.fmean(right)


def alignment_offsets(translations: Sequence[Translation], pairs: Sequence[Pair]) -> list[int]:
    """Return, for every aligned word of a right translation, largest weight minus gold position.

    0 means that the largest weight lies on the source word the target word comes from; -1, one to
    its left.
    """
    return [
        translation.weights[t].argmax().item() - gold
        for translation, pair in zip(translations, pairs, strict=True)
        if translation.words == pair.target
        for t, gold in enumerate(pair.alignment)
        if gold >= 0
    ]

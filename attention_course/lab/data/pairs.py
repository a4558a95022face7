"""Pairs of sequences: what a translation task is made of, and how it is served in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

PAD, BOS, EOS = 0, 1, 2
_SPECIAL = ("<pad>", "<bos>", "<eos>")


@dataclass(frozen=True)
class Pair:
    """A source sequence, its target, and the gold alignment between them.

    ``alignment[t]`` is the source position that target word ``t`` comes from, or -1 where no source
    word stands for it (an English article).
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    alignment: tuple[int, ...]


class Vocabulary:
    """A list of words with <pad>, <bos> and <eos> in front; a word's number is its place in the list."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*_SPECIAL, *words)
        self._number = {word: number for number, word in enumerate(self.words)}
        if len(self._number) != len(self.words):
            raise ValueError("words must be distinct, and none of them <pad>, <bos> or <eos>")

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> list[int]:
        """Return the words' numbers; a ``ValueError`` names the words that are not in the list."""
        unknown = [word for word in words if word not in self._number]
        if unknown:
            raise ValueError(f"words must be in the vocabulary, got {unknown}")
        return [self._number[word] for word in words]

    def decode(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the words up to the first <eos>, without <bos> and <pad>."""
        numbers = list(numbers)
        if EOS in numbers:
            numbers = numbers[: numbers.index(EOS)]
        return tuple(self.words[number] for number in numbers if number not in (PAD, BOS))


@dataclass(frozen=True)
class Task:
    """A translation task: two vocabularies and disjoint splits.

    ``beyond`` holds sources longer than any in ``train``, to see what happens outside it.
    """

    source: Vocabulary
    target: Vocabulary
    train: tuple[Pair, ...]
    validation: tuple[Pair, ...]
    test: tuple[Pair, ...]
    beyond: tuple[Pair, ...]


class Batch(NamedTuple):
    """Padded numbers, ready for a model: ``previous`` is ``target`` shifted right behind <bos>."""

    source: Int[Tensor, "B T_k"]
    lengths: Int[Tensor, " B"]
    previous: Int[Tensor, "B T_q"]
    target: Int[Tensor, "B T_q"]


def collate(pairs: Sequence[Pair], task: Task) -> Batch:
    """Return ``pairs`` as one batch, padded to its longest source and its longest target."""
    sources = [task.source.encode(pair.source) for pair in pairs]
    targets = [[*task.target.encode(pair.target), EOS] for pair in pairs]
    return Batch(
        source=_padded(sources),
        lengths=torch.tensor([len(numbers) for numbers in sources]),
        previous=_padded([[BOS, *numbers[:-1]] for numbers in targets]),
        target=_padded(targets),
    )


def batches(pairs: Sequence[Pair], task: Task, *, batch_size: int, seed: int) -> Iterator[Batch]:
    """Yield batches for ever: each epoch in a new order, sources of like length together.

    A batch costs as many steps as its longest source and target, so mixing lengths would spend
    about half the time on padding. Raises a ``ValueError`` for no pairs or a batch size below 1.
    """
    if not pairs or batch_size < 1:
        raise ValueError(f"need pairs and batch_size >= 1, got {len(pairs)} and {batch_size}")
    generator = torch.Generator().manual_seed(seed)
    whole = collate(pairs, task)
    target_lengths = (whole.target != PAD).sum(-1)
    while True:
        shuffled = torch.randperm(len(pairs), generator=generator)
        # A stable sort keeps the shuffled order among sources of one length.
        by_length = shuffled[whole.lengths[shuffled].argsort(stable=True)]
        groups = by_length.split(batch_size)
        for group in torch.randperm(len(groups), generator=generator).tolist():
            rows = groups[group]
            T_k, T_q = whole.lengths[rows].max(), target_lengths[rows].max()
            yield Batch(
                whole.source[rows, :T_k],
                whole.lengths[rows],
                whole.previous[rows, :T_q],
                whole.target[rows, :T_q],
            )


def by_length(pairs: Sequence[Pair], buckets: Sequence[tuple[int, int]]) -> list[list[Pair]]:
    """Return ``pairs`` sorted into ``buckets`` of source length, first and last length included."""
    return [[pair for pair in pairs if low <= len(pair.source) <= high] for low, high in buckets]


def _padded(rows: Sequence[Sequence[int]]) -> Int[Tensor, "B T"]:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])

"""Reversing random symbols, or copying them: two tasks that differ in what is written last.

Reversing writes the first symbol read at the very end; copying writes it at once.
"""

import random
from collections.abc import Callable

from attention_course.lab.data.pairs import Pair, Task, Vocabulary

SYMBOLS = tuple("ABCDEFGHIJKLMNOPQRST")
BUCKETS = ((2, 4), (5, 7), (8, 10), (11, 13), (14, 16))
BEYOND = (20, 24)


def reversed_pair(source: tuple[str, ...]) -> Pair:
    """Return ``source`` with its reversal; target position t comes from source position n - 1 - t."""
    return Pair(source, source[::-1], tuple(reversed(range(len(source)))))


def copied_pair(source: tuple[str, ...]) -> Pair:
    """Return ``source`` with a copy of itself; target position t comes from source position t."""
    return Pair(source, source, tuple(range(len(source))))


def task(
    seed: int = 0,
    make: Callable[[tuple[str, ...]], Pair] = reversed_pair,
    *,
    train: int = 20_000,
    per_bucket: int = 100,
) -> Task:
    """Return the task ``make`` sets: random symbols, 2 to 16 of them, every length equally often.

    No source occurs in two splits. Chance is one in ``len(SYMBOLS)`` for each symbol. Validation and
    test hold ``per_bucket`` sequences from each of ``BUCKETS``; ``beyond`` as many of 20 to 24.
    """
    rng = random.Random(seed)
    vocabulary = Vocabulary(SYMBOLS)
    seen: set[tuple[str, ...]] = set()

    def fresh(low: int, high: int) -> Pair:
        while True:
            source = tuple(rng.choices(SYMBOLS, k=rng.randint(low, high)))
            if source not in seen:
                seen.add(source)
                return make(source)

    def quota(buckets: tuple[tuple[int, int], ...]) -> tuple[Pair, ...]:
        return tuple(fresh(*bucket) for bucket in buckets for _ in range(per_bucket))

    validation, test, beyond = quota(BUCKETS), quota(BUCKETS), quota((BEYOND,))
    shortest, longest = BUCKETS[0][0], BUCKETS[-1][1]
    pairs = []
    while len(pairs) < train:  # training sequences may repeat one another, never a held-out one
        source = tuple(rng.choices(SYMBOLS, k=rng.randint(shortest, longest)))
        if source not in seen:
            pairs.append(make(source))
    return Task(vocabulary, vocabulary, tuple(pairs), validation, test, beyond)

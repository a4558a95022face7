"""The book's running task: small sentences in the order of Japanese, translated into English.

The grammar is synchronous: every rule writes the Japanese and the English side at once and keeps
track of which English word comes from which Japanese one. The words are real, romanised Japanese;
the grammar is a toy (no politeness, no dropped subjects, past tense throughout but for *desu*).
The verb moves from the end of its clause to the middle, and "A kara B" becomes "B because A", so
that whole clauses swap.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate

from attention_course.lab.data.pairs import Pair, Task, Vocabulary, by_length

ANIMALS_AND_PEOPLE = {
    "neko": "cat", "inu": "dog", "tori": "bird", "uma": "horse", "kitsune": "fox", "usagi": "rabbit",
    "kuma": "bear", "saru": "monkey", "sensei": "teacher", "gakusei": "student", "isha": "doctor",
    "tomodachi": "friend", "kodomo": "child", "ryoushi": "fisherman", "ousama": "king", "dorobou": "thief",
}  # fmt: skip
THINGS = {
    "hon": "book", "ringo": "apple", "sakana": "fish", "boushi": "hat", "isu": "chair",
    "tegami": "letter", "kagi": "key", "tokei": "clock", "kasa": "umbrella", "hana": "flower",
}  # fmt: skip
PLACES = {
    "niwa": "garden", "mori": "forest", "gakkou": "school", "mise": "shop", "eki": "station", "ie": "house",
}  # fmt: skip
ADJECTIVES = {
    "ookii": "big", "chiisai": "small", "shiroi": "white", "kuroi": "black", "akai": "red",
    "furui": "old", "kireina": "pretty", "hen-na": "strange", "yuumeina": "famous", "omoi": "heavy",
}  # fmt: skip
VERBS = {
    "mita": "saw", "mitsuketa": "found", "katta": "bought", "utta": "sold", "nusunda": "stole",
    "kakushita": "hid", "aratta": "washed", "hakonda": "carried", "eranda": "chose", "wasureta": "forgot",
    "egaita": "drew", "sagashita": "sought",
}  # fmt: skip
JOINERS = {"soshite": "and", "demo": "but"}

SOURCE = Vocabulary(
    [
        *("watashi", "wa", "o", "de", "desu", "kara"),
        *JOINERS, *ANIMALS_AND_PEOPLE, *THINGS, *PLACES, *ADJECTIVES, *VERBS,
    ]
)  # fmt: skip
TARGET = Vocabulary(
    [
        *("I", "am", "is", "the", "a", "in", "because"),
        *(english for words in (JOINERS, ANIMALS_AND_PEOPLE, THINGS, PLACES, ADJECTIVES, VERBS)
          for english in words.values()),
    ]
)  # fmt: skip

#: Sources of more tokens than this are never trained on.
LONGEST = 30
BEYOND = (34, 40)
BUCKETS = ((4, 5), (6, 10), (11, 15), (16, 20), (21, 25), (26, 30))


def word(japanese: str, english: str) -> Pair:
    """Return a pair of one word each; either may be empty, for a word the other language lacks."""
    return Pair(
        (japanese,) if japanese else (),
        (english,) if english else (),
        (0 if japanese else -1,) if english else (),
    )


def compose(parts: Sequence[Pair], order: Sequence[int]) -> Pair:
    """Return one pair of ``parts``: the Japanese as listed, the English in ``order`` of indices."""
    starts = list(accumulate((len(part.source) for part in parts), initial=0))
    return Pair(
        tuple(japanese for part in parts for japanese in part.source),
        tuple(english for index in order for english in parts[index].target),
        tuple(
            starts[index] + position if position >= 0 else -1
            for index in order
            for position in parts[index].alignment
        ),
    )


def _words(lexicon: dict[str, str]) -> tuple[Pair, ...]:
    return tuple(word(*entry) for entry in lexicon.items())


_LIVING, _PLACES, _ADJECTIVES, _VERBS, _JOINERS = map(
    _words, (ANIMALS_AND_PEOPLE, PLACES, ADJECTIVES, VERBS, JOINERS)
)
_ANYTHING = _LIVING + _words(THINGS)


def noun_phrase(noun: Pair, adjective: Pair | None = None) -> Pair:
    """Return "[adjective] noun", in English behind "the"."""
    parts = [word("", "the"), *([adjective] if adjective else []), noun]
    return compose(parts, range(len(parts)))


def being(subject: Pair, noun: Pair) -> Pair:
    """Return the clause "subject wa noun desu", "the subject is a noun"; *watashi* takes "am"."""
    copula = word("desu", "am" if subject.target == ("I",) else "is")
    return compose([subject, word("wa", ""), word("", "a"), noun, copula], (0, 4, 2, 3))


def doing(subject: Pair, thing: Pair, verb: Pair, place: Pair | None = None) -> Pair:
    """Return "subject wa [place de] thing o verb", "subject verb thing [in place]"."""
    if place is None:
        return compose([subject, word("wa", ""), thing, word("o", ""), verb], (0, 4, 2))
    parts = [subject, word("wa", ""), place, word("de", "in"), thing, word("o", ""), verb]
    return compose(parts, (0, 6, 4, 3, 2))


def because(reason: Pair, result: Pair) -> Pair:
    """Return "reason kara result", "result because reason": the clauses swap."""
    return compose([reason, word("kara", "because"), result], (2, 1, 0))


def clause(rng: random.Random) -> Pair:
    """Return a clause drawn by chance: one in five says what the subject is, the others what it did."""
    subject = word("watashi", "I") if rng.random() < 0.1 else _described(rng, rng.choice(_LIVING))
    if rng.random() < 0.2:
        return being(subject, rng.choice(_LIVING))
    thing = _described(rng, rng.choice(_ANYTHING))
    place = noun_phrase(rng.choice(_PLACES)) if rng.random() < 0.3 else None
    return doing(subject, thing, rng.choice(_VERBS), place)


def sentence(rng: random.Random, clauses: int) -> Pair:
    """Return ``clauses`` clauses: two in five times *kara* joins a pair, else *soshite* or *demo* follows."""
    result, left = None, clauses
    while left:
        if left >= 2 and rng.random() < 0.4:
            unit, left = because(clause(rng), clause(rng)), left - 2
        else:
            unit, left = clause(rng), left - 1
        result = unit if result is None else compose([result, rng.choice(_JOINERS), unit], (0, 1, 2))
    return result


def task(seed: int = 0, *, train: int = 20_000, per_bucket: int = 100) -> Task:
    """Return the translation task, the same for the same ``seed``; no source occurs in two splits.

    Sources have 4 to 30 tokens (``LONGEST``), from one to five clauses. Validation and test hold
    ``per_bucket`` sentences from each of ``BUCKETS``; ``beyond`` as many of 34 to 40 tokens.
    """
    rng = random.Random(seed)
    stream = _distinct(rng)
    validation = _quota(stream, BUCKETS, per_bucket)
    test = _quota(stream, BUCKETS, per_bucket)
    beyond = _quota(stream, (BEYOND,), per_bucket)
    held_out = {pair.source for pair in (*validation, *test)}
    seen: list[Pair] = []
    while len(seen) < train:  # training sentences repeat as the grammar repeats them: short ones do
        pair = sentence(rng, rng.randint(1, 5))
        if len(pair.source) <= LONGEST and pair.source not in held_out:
            seen.append(pair)
    return Task(SOURCE, TARGET, tuple(seen), validation, test, beyond)


def _distinct(rng: random.Random) -> Iterator[Pair]:
    """Sentences for ever, none twice; six clauses are there for ``BEYOND`` alone."""
    seen = set()
    while True:
        pair = sentence(rng, rng.randint(1, 6))
        if pair.source not in seen:
            seen.add(pair.source)
            yield pair


def _quota(stream: Iterator[Pair], buckets: Sequence[tuple[int, int]], size: int) -> tuple[Pair, ...]:
    """The first ``size`` pairs of the stream for each bucket, in the buckets' order."""
    taken: list[list[Pair]] = [[] for _ in buckets]
    while any(len(bucket) < size for bucket in taken):
        for bucket, found in zip(taken, by_length([next(stream)], buckets), strict=True):
            if len(bucket) < size:
                bucket.extend(found)
    return tuple(pair for bucket in taken for pair in bucket)


def _described(rng: random.Random, noun: Pair) -> Pair:
    return noun_phrase(noun, rng.choice(_ADJECTIVES) if rng.random() < 0.5 else None)

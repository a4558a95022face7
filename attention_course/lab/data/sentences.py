"""Sentences for asking heads what they look at: generated ones whose structure is known, and running text.

Each generated sentence names one word that asks and the one that it should find. How far they are apart
is drawn so that every distance occurs equally often: no fixed step is right more often than one in as
many. Sentences at even places and those at odd ones share no noun, adjective or verb: a head that was
chosen on one half cannot owe its score on the other half to words it happens to like. Words are lower
case and stand alone, so that they can be taken apart, shuffled and joined again.
"""

import random
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

from attention_course.inputs import check_at_least


class Sentence(NamedTuple):
    """Words, the index of the one that asks, of the one it should find, and of all nouns."""

    words: tuple[str, ...]
    source: int
    target: int
    nouns: tuple[int, ...]

    @property
    def text(self) -> str:
        """The words in one line."""
        return " ".join(self.words)


NOUNS = (
    "cat", "dog", "horse", "farmer", "teacher", "doctor", "sailor", "baker", "tree", "river", "table", "lamp",
    "painter", "child", "neighbour", "bird", "wagon", "bridge", "tower", "garden", "lawyer", "student",
    "hedgehog", "tortoise", "gardener", "blacksmith", "wheelbarrow", "accordion", "letter", "window",
)  # fmt: skip
ADJECTIVES = (
    "old", "small", "grey", "quiet", "heavy", "strange", "famous", "tired", "bright", "young", "narrow",
    "lonely", "dusty", "crooked", "cheerful", "enormous",
)  # fmt: skip
VERBS = (
    "watched", "followed", "remembered", "painted", "found", "described", "carried", "hid", "admired",
    "forgot", "moved", "liked", "praised", "ignored",
)  # fmt: skip
DETERMINERS = ("the", "a", "this", "every")
PREPOSITIONS = ("near", "behind", "beside", "under", "above", "against")
ADVERBS = ("often", "slowly", "rarely", "quietly", "always", "never")
#: of one pair, a man and a woman
PEOPLE = (
    ("king", "queen"), ("man", "woman"), ("boy", "girl"), ("father", "mother"), ("uncle", "aunt"),
    ("brother", "sister"), ("prince", "princess"), ("husband", "wife"), ("son", "daughter"),
    ("waiter", "waitress"), ("monk", "nun"), ("actor", "actress"), ("grandfather", "grandmother"),
    ("nephew", "niece"), ("lord", "lady"), ("groom", "bride"),
)  # fmt: skip
REASONS = ("because", "when", "after", "before", "although", "while")
OPENINGS = (
    (), ("sometimes",), ("today",), ("once",), ("last", "week"), ("that", "evening"), ("at", "noon"),
    ("on", "that", "day"), ("in", "the", "end"), ("not", "long", "ago"),
)  # fmt: skip
TIMES = (
    (),
    ("yesterday",),
    ("again",),
    ("twice",),
    ("last", "night"),
    ("very", "often"),
    ("this", "morning"),
)


class _Lexicon(NamedTuple):
    """The words of one half of the sentences."""

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]
    people: tuple[tuple[str, str], ...]


_SHORTEST = 8  # words of a sentence of running text


def determiners(number: int, seed: int) -> list[Sentence]:
    """Return sentences in which a determiner asks for its noun, 1 to 4 words on, adjectives in between.

    There are three noun phrases; which of them asks is drawn.
    """
    return _drawn(_determiner, [(distance,) for distance in (1, 2, 3, 4)], number, seed)


def subjects(number: int, seed: int) -> list[Sentence]:
    """Return sentences in which a verb asks for its subject, 4 to 7 words back, another noun in between.

    The other noun stands in a clause of its own, or behind a preposition. In every second sentence a
    third one opens the sentence, so that the subject is the first noun only half of the time, and 0 to 3
    words without a noun before all of it, so that it stands at no place of its own.
    """
    return _drawn(_subject, list(product((4, 5, 6, 7), (False, True), range(4))), number, seed)


def pronouns(number: int, seed: int, *, opened: bool = True) -> list[Sentence]:
    """Return sentences in which "he" or "she" asks for the man or the woman meant, 2 to 7 words back.

    Each sentence has one of both. Whether the first or the second is meant, and which of them is the
    woman, is balanced. 0 to 3 words open the sentence, unless ``opened`` is False: then the first person is
    always the second word, and whoever always looks there is right half of the time.
    """
    openings = range(4) if opened else (0,)
    kinds = product((0, 1, 2), (False, True), (False, True), openings)
    return _drawn(_pronoun, list(kinds), number, seed)


def shuffled(sentences: list[Sentence], seed: int) -> list[Sentence]:
    """Return the same sentences with their words in random order; asker and answer keep their words."""
    draw = random.Random(seed)
    return [_shuffle(sentence, draw) for sentence in sentences]


def running_text(number: int, seed: int, *, longest: int = 40) -> list[str]:
    """Return ``number`` different sentences of 8 to ``longest`` words out of ``manual.txt``.

    Only prose is cut: paragraphs that are not indented, sentences that start with a capital, end with a
    full stop and hold no more than letters, digits and common punctuation. Raises a ``ValueError`` for
    more sentences than there are.
    """
    check_at_least(1, number=number)
    sentences = [sentence for sentence in _prose() if len(sentence.split()) <= longest]
    if number > len(sentences):
        raise ValueError(f"number must be at most the {len(sentences)} sentences there are, got {number}")
    return random.Random(seed).sample(sentences, number)


def _drawn(write: Callable[..., Sentence], kinds: list[tuple], number: int, seed: int) -> list[Sentence]:
    """``number`` sentences, in each half every kind as often as can be, in random order."""
    check_at_least(1, number=number)
    draw = random.Random(seed)
    words = _lexicons(draw)
    halves = []
    for half in (0, 1):
        mixed = draw.sample(kinds, len(kinds))
        order = [mixed[i % len(kinds)] for i in range(len(range(half, number, 2)))]
        draw.shuffle(order)
        halves.append([write(*kind, words[half], draw) for kind in order])
    return [halves[i % 2][i // 2] for i in range(number)]


def _lexicons(draw: random.Random) -> tuple[_Lexicon, ...]:
    mixed = [draw.sample(words, len(words)) for words in (NOUNS, ADJECTIVES, VERBS, PEOPLE)]
    return tuple(_Lexicon(*(tuple(words[half::2]) for words in mixed)) for half in (0, 1))


def _determiner(distance: int, lexicon: _Lexicon, draw: random.Random) -> Sentence:
    asking, nouns = draw.randrange(3), draw.sample(lexicon.nouns, 3)
    adjectives = [draw.randrange(4) for _ in range(3)]
    adjectives[asking] = distance - 1
    between = ((draw.choice(lexicon.verbs),), (draw.choice(PREPOSITIONS),), ())
    words, starts, ends = [], [], []
    for noun, count, after in zip(nouns, adjectives, between, strict=True):
        starts.append(len(words))
        words += [draw.choice(DETERMINERS), *draw.sample(lexicon.adjectives, count), noun]
        ends.append(len(words) - 1)
        words += after
    return Sentence(tuple(words), starts[asking], ends[asking], tuple(ends))


def _subject(distance: int, third: bool, opening: int, lexicon: _Lexicon, draw: random.Random) -> Sentence:
    first, subject, other, last = draw.sample(lexicon.nouns, 4)
    before = (draw.choice(PREPOSITIONS), "the", first, ",") if third else ()
    verb, inner = draw.sample(lexicon.verbs, 2)
    clause = {
        4: (draw.choice(PREPOSITIONS), "the", other),
        5: ("that", "the", other, inner),
        6: ("that", "the", draw.choice(lexicon.adjectives), other, inner),
        7: ("that", "the", draw.choice(lexicon.adjectives), other, draw.choice(ADVERBS), inner),
    }[distance]
    words = (*_of_length(OPENINGS, opening, draw), *before, "the", subject, *clause, verb, "the", last)
    nouns = tuple(i for i, word in enumerate(words) if word in (first, subject, other, last))
    return Sentence(words, words.index(verb), words.index(subject), nouns)


def _pronoun(
    fill: int, first: bool, she: bool, opening: int, lexicon: _Lexicon, draw: random.Random
) -> Sentence:
    (man, _), (_, woman) = draw.sample(lexicon.people, 2)
    meant, other = (woman, man) if she else (man, woman)
    people = (meant, other) if first else (other, meant)
    verb, then = draw.sample(lexicon.verbs, 2)
    words = (
        *_of_length(OPENINGS, opening, draw),
        *("the", people[0], verb, "the", people[1], *_of_length(TIMES, fill, draw), draw.choice(REASONS)),
        *("she" if she else "he", then, "the", draw.choice(lexicon.nouns)),
    )
    nouns = (opening + 1, opening + 4, len(words) - 1)
    return Sentence(words, len(words) - 4, words.index(meant), nouns)


def _of_length(phrases: tuple[tuple[str, ...], ...], length: int, draw: random.Random) -> tuple[str, ...]:
    return draw.choice([words for words in phrases if len(words) == length])


def _shuffle(sentence: Sentence, draw: random.Random) -> Sentence:
    order = list(range(len(sentence.words)))
    draw.shuffle(order)
    return Sentence(
        tuple(sentence.words[i] for i in order),
        order.index(sentence.source),
        order.index(sentence.target),
        tuple(sorted(order.index(noun) for noun in sentence.nouns)),
    )


def _prose() -> list[str]:
    text = Path(__file__).with_name("manual.txt").read_text(encoding="ascii")
    paragraphs = (part for part in text.split("\n\n") if part[:1].isupper() and "\n " not in part)
    pieces = (piece for part in paragraphs for piece in re.split(r"(?<=\.)\s+(?=[A-Z])", part))
    sentences = (" ".join(piece.split()) for piece in pieces)
    # In the order of the text, each once.
    return [s for s in dict.fromkeys(sentences) if len(s.split()) >= _SHORTEST and _is_prose(s)]


def _is_prose(sentence: str) -> bool:
    return re.fullmatch(r"[A-Z][A-Za-z0-9 ,;:'\"()-]*\.", sentence) is not None

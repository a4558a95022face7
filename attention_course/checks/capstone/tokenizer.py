"""Milestone 1: text to tokens and back."""

import torch
from torch import Generator, Tensor

from attention_course.checks.capstone.shared import NAME
from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.scenes import Scene


class Tokenizer:
    """The reference; each of its mistakes replaces a part."""

    def __init__(self, text: str) -> None:
        self.characters = self.known(text)
        self.number = {character: token for token, character in enumerate(self.characters)}
        self.size = len(self.characters)

    def known(self, text: str) -> list[str]:
        return sorted(set(text))

    def encode(self, text: str) -> Tensor:
        return torch.tensor([self.number[character] for character in text])

    def decode(self, tokens: Tensor) -> str:
        return "".join(self.characters[token] for token in tokens.tolist())


def _with(**parts) -> type[Tokenizer]:
    return type("Tokenizer", (Tokenizer,), parts)


class _FromOne(Tokenizer):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.characters = ["", *self.characters]
        self.number = {character: token + 1 for character, token in self.number.items()}


_LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ\n.,:;äöüß中文🙂0123456789"


def _codes(text: str) -> Tensor:
    return torch.tensor([ord(character) for character in text])


def _drawn(generator: Generator, letters: str, number: int, sample: int, end: str = "") -> Inputs:
    """A text, not all of whose letters stand in order, and a sample of other order from the same letters.
    Both have the same ``end``."""
    text = [letters[index] for index in torch.randint(len(letters), (number,), generator=generator).tolist()]
    order = torch.randint(number, (sample,), generator=generator).tolist()
    return _codes("".join(text) + end), _codes("".join(text[index] for index in order) + end)


TOKENIZER = Exercise(
    name=f"{NAME}.tokenizer",
    title="Text to tokens and back",
    points=1,
    difficulty=1,
    minutes=10,
    reference=Tokenizer,
    asks=Scene(
        "tokenized",
        given=("text", "sample"),
        called="Tokenizer(text)",
        noun="tokenizer",
    ),
    returns=("size", "tokens", "characters that come back"),
    cases=(
        Case("five letters", lambda g: _drawn(g, "hello, you", 14, 6)),
        Case("letters, breaks and other scripts", lambda g: _drawn(g, _LETTERS, 400, 60, " \n")),
        Case("one character", lambda g: _drawn(g, _LETTERS[int(torch.randint(60, (), generator=g))], 3, 1)),
    ),
    mistakes=(
        Mistake(
            "not sorted",
            _with(known=lambda self, text: list(dict.fromkeys(text))),
            "A set has no order that lasts, and a text begins in many ways. Sorted, the characters have the "
            "same numbers every time.",
        ),
        Mistake(
            "joined with something between",
            _with(decode=lambda self, tokens: " ".join(self.characters[one] for one in tokens.tolist())),
            "Spaces stand between the characters that come back. They belong side by side.",
        ),
        Mistake(
            "stripped",
            _with(encode=lambda self, text: Tokenizer.encode(self, text.strip())),
            "The white space at the ends of a text is lost. It is text like all other: spaces and line "
            "breaks have tokens.",
        ),
        Mistake(
            "counted from 1",
            _FromOne,
            "Your tokens begin with 1. They are rows of an embedding, which begin with 0: the last one would "
            "have none.",
        ),
        Mistake(
            "code points",
            _with(
                encode=lambda self, text: torch.tensor([ord(one) for one in text]),
                decode=lambda self, tokens: "".join(map(chr, tokens.tolist())),
            ),
            "Your tokens are the characters' code points. An embedding would need a row for each that "
            "Unicode knows. Number the characters of the text from 0.",
        ),
    ),
    hints=(
        "A set knows each character once, but in no order that lasts. What gives it one?",
        "Two tables: from a character to its number for encode, and from a number to its character for "
        "decode. sorted(set(text)) is the second.",
        "enumerate gives the first from the second. A token may come back as an element of a tensor: "
        "tolist makes integers of them all.",
    ),
)

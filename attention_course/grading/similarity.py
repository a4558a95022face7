"""Which submissions are nearly the same, by the fingerprints of what students wrote themselves.

Winnowing, as in Schleimer, Wilkerson and Aiken, "Winnowing: local algorithms for document
fingerprinting", SIGMOD 2003. Names, comments and layout do not count, so that a renamed copy is found.
A pair is a reason to lay two notebooks side by side, and never a verdict.
"""

import builtins
import hashlib
import keyword
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

#: tokens under one hash
K = 12
#: of so many neighbouring hashes one is kept: what is alike over K + WINDOW - 1 tokens is always found
WINDOW = 8
#: characters of one submission that are looked at, twenty times what an answer needs
MAX_CHARACTERS = 200_000
#: with fewer fingerprints of their own, honest answers to short exercises are alike
MIN_FINGERPRINTS = 8

# Every repetition is possessive: no text makes this go back, or take more than linear time.
_TOKEN = re.compile(
    r"""
      (?P<string>[rRbBuUfF]{0,2}(?:
          \"\"\"(?:[^\\"]|\\.|"(?!""))*+(?:\"\"\")?
        | '''(?:[^\\']|\\.|'(?!''))*+(?:''')?
        | "(?:[^\\"\n]|\\.)*+"?
        | '(?:[^\\'\n]|\\.)*+'?))
    | (?P<blank>\#[^\n]*+|[^\S\n]++|\\\n)
    | (?P<newline>\n)
    | (?P<number>\.?\d[\w.]*+)
    | (?P<name>\w++)
    | (?P<operator>\*\*=?|//=?|<<=?|>>=?|->|:=|\.\.\.|[-+*/%@&|^=<>!]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = frozenset(keyword.kwlist) | frozenset(name for name in dir(builtins) if name.islower())
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_NAME, _STRING, _NEWLINE = "name", '"', "\n"


@dataclass(frozen=True)
class Pair:
    """Two students, what they have in common, and its share of the shorter of their answers."""

    first: str
    second: str
    share: float
    common: int


def fingerprints(cells_sources: Sequence[str]) -> frozenset[int]:
    """The fingerprints of some code cells; the same on every machine.

    They see neither names, comments, docstrings and layout, nor the order of functions and cells.
    """
    tokens, left = [], MAX_CHARACTERS
    for source in cells_sources:
        tokens.append(_tokens(source[:left]))
        left = max(0, left - len(source))
    own = {name for cell in tokens for name in _defined(cell)}
    return frozenset(
        fingerprint
        for cell in tokens
        for body in _bodies(cell)
        for fingerprint in _winnowed(_neutral(body, own))
    )


def pairs(
    by_student: Mapping[str, frozenset[int]], starter: frozenset[int], threshold: float = 0.8
) -> list[Pair]:
    """Every two students whose answers share at least ``threshold``, the most alike first.

    What the starter has, or more than a third of the different answers (and more than three), is nobody's
    own.
    The share is of the smaller answer, so that neither what a copy adds nor what it leaves out hides
    it; answers with fewer than ``MIN_FINGERPRINTS`` of their own are not compared.
    """
    # an answer that several hand in unchanged counts once, or a leaked one would pass for common usage
    # on both sides of the comparison: else, the more hand it in, the less of it would be common
    different = set(by_student.values())
    usage = Counter(fingerprint for answer in different for fingerprint in answer)
    most = max(3, len(different) / 3)
    common = starter | {fingerprint for fingerprint, times in usage.items() if times > most}
    own = {student: answer - common for student, answer in by_student.items()}
    long = sorted(student for student, answer in own.items() if len(answer) >= MIN_FINGERPRINTS)
    alike = []
    for first, second in combinations(long, 2):
        shared = len(own[first] & own[second])
        share = shared / min(len(own[first]), len(own[second]))
        if share >= threshold:
            alike.append(Pair(first, second, share, shared))
    return sorted(alike, key=lambda pair: (-pair.share, -pair.common, pair.first, pair.second))


# From text to tokens --------------------------------------------------------------------------


def _tokens(source: str) -> list[str]:
    """Its tokens; a newline only where a statement ends, brackets only where they call, index or make
    a list: formatters and copiers put others around anything."""
    tokens, open_brackets = [], []
    for match in _TOKEN.finditer(source):
        kind, text = match.lastgroup, match.group()
        if kind == "blank" or (kind == "newline" and open_brackets):
            continue
        before = tokens[-1] if tokens else _NEWLINE
        if kind == "string":
            text = _STRING
            if before == text:  # one string in two parts
                continue
        if text in _OPENING:
            open_brackets.append(text != "(" or _is_value(before))
            if not open_brackets[-1]:
                continue
        if text in _CLOSING:
            if before == ",":  # formatters add it
                tokens.pop()
            if open_brackets and not open_brackets.pop():
                continue
        tokens.append(text)
    return tokens


def _is_value(token: str) -> bool:
    """Whether a bracket right after ``token`` belongs to it."""
    return token in _CLOSING or (token.isidentifier() and not keyword.iskeyword(token))


def _defined(tokens: list[str]) -> Iterator[str]:
    """Names a student gave to functions, classes and attributes."""
    for before, (name, after) in zip(["", *tokens], pairwise([*tokens, ""]), strict=False):
        if before in ("def", "class") or (before == "." and after == "="):
            yield name


def _bodies(tokens: list[str]) -> Iterator[list[str]]:
    """Runs of statements: without docstrings and the headers of functions, which end a run."""
    body, depth, header = [], 0, False
    padded = [_NEWLINE, *tokens, _NEWLINE]
    for before, token, after in zip(padded, tokens, padded[2:], strict=False):
        depth += (token in _OPENING) - (token in _CLOSING)
        if token == "def":
            yield body
            body, depth, header = [], 0, True
        alone = token == _STRING and before == after == _NEWLINE
        if not header and not alone and token != _NEWLINE:
            body.append(token)
        if header and token == ":" and not depth:
            header = False
    yield body


def _neutral(tokens: list[str], own: set[str]) -> list[str]:
    """Tokens with every name the student chose replaced by one; what comes after a dot is mostly
    torch's, and stays."""
    return [
        _NAME if token.isidentifier() and token not in _WORDS and (before != "." or token in own) else token
        for before, token in zip(["", *tokens], tokens, strict=False)
    ]


def _winnowed(tokens: list[str]) -> Iterator[int]:
    hashes = [_hash(tokens[index : index + K]) for index in range(len(tokens) - K + 1)]
    for index in range(max(1, len(hashes) - WINDOW + 1)):
        yield from sorted(hashes[index : index + WINDOW])[:1]


def _hash(tokens: list[str]) -> int:
    text = "\0".join(tokens).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")

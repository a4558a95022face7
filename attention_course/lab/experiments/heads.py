"""The lab of heads: a sentence somebody typed, and what every head of a real model does with it.

Everything here is a function of a sentence and a model; the inputs and buttons are in ``heads_widget``.
The model is all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019).
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attention_course.inside.pretrained import Pretrained

#: Longer sentences are not read: more tokens than this fill no screen.
LONGEST = 64
#: Nor is more text than this handed to the tokenizer, whose time grows with it.
MOST_CHARACTERS = 2000

#: sentence -> the noun of each of its determiners, in order. The last one is the first one's words, shuffled.
RECORDED = {
    "The old dog chased a small cat across the quiet garden.": ("dog", "cat", "garden"),
    "Dogs chase cats, cats chase mice, and mice chase nothing.": (),
    "The bank lends money while the other bank holds back the river.": ("bank", "bank", "river"),
    "A very big and rather friendly dog slept in the warm kitchen.": ("dog", "kitchen"),
    "Anna told her brother that he had won because he worked.": ("brother",),
    "The keys that hang beside the cupboard are rusty.": ("keys", "cupboard"),
    "The zoologist photographed a quokka unhurriedly.": (),
    "Garden the cat small quiet dog a the chased across old.": (),
}
_DETERMINERS = ("the", "a", "her")

#: What a sentence is for a model: its tokens, and the weights of all heads.
Seen = tuple[list[str], Float[Tensor, "L h _T _T"]]
#: From tokens to pairs: a query's place, and the places of the keys that are meant.
Kind = Callable[[Sequence[str]], list[tuple[int, list[int]]]]


class Unreadable(ValueError):
    """A sentence that the lab does not show; the message is for whoever typed it."""


@torch.no_grad()
def look(pretrained: Pretrained, text: str) -> Seen:
    """Return a sentence's tokens and the weights of all heads: ``(tokens, weights [L, h, T, T])``.

    Raises ``Unreadable`` for an empty sentence, and for one of more than ``LONGEST`` tokens.
    """
    if not text.strip():
        raise Unreadable("Type a sentence, such as: The old dog chased a small cat.")
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(f"The sentence has {len(text):,} characters; the lab takes up to {LONGEST} tokens.")
    batch = pretrained.tokens([text])
    (tokens,) = batch.words
    if len(tokens) > LONGEST:
        raise Unreadable(
            f"The sentence has {len(tokens)} tokens with [CLS] and [SEP]; the lab takes up to {LONGEST}."
        )
    weights = pretrained.model.trace(batch.tokens, batch.lengths).weights
    return tokens, torch.stack(list(weights))[:, 0]


def kinds(nouns: dict[tuple[str, ...], tuple[str, ...]]) -> dict[str, Kind]:
    """Return what a head may look for, by name; ``nouns`` holds those of each tuple of tokens.

    [CLS] and [SEP] are asked about nothing.
    """

    def each(keys: Callable[[Sequence[str], int], list[int]]) -> Kind:
        def pairs(tokens: Sequence[str]) -> list[tuple[int, list[int]]]:
            found = [(i, keys(tokens, i)) for i in range(1, len(tokens) - 1)]
            return [(i, places) for i, places in found if places]

        return pairs

    def of_determiners(tokens: Sequence[str]) -> list[tuple[int, list[int]]]:
        wanted = nouns.get(tuple(tokens), ())
        places = [i for i, token in enumerate(tokens) if token in _DETERMINERS]
        return [(i, [list(tokens).index(noun, i)]) for i, noun in zip(places, wanted, strict=False)]

    return {
        "the token before": each(lambda tokens, i: [i - 1]),
        "the token after": each(lambda tokens, i: [i + 1]),
        "[CLS]": each(lambda tokens, i: [0]),
        "the same word elsewhere": each(
            lambda tokens, i: [j for j, token in enumerate(tokens) if token == tokens[i] and j != i]
        ),
        "from a determiner to its noun": of_determiners,
    }


def shares(seen: Sequence[Seen], kind: Kind) -> Float[Tensor, "L h"]:
    """Return the mean weight that each head gives to the keys of a kind, over all queries that have some.

    Raises a ``ValueError`` where no query has any.
    """
    found = [weights[:, :, i, keys].sum(-1) for tokens, weights in seen for i, keys in kind(tokens)]
    if not found:
        raise ValueError(f"seen must hold a query with a key of this kind, got {len(seen)} sentences without")
    return torch.stack(found).mean(0)

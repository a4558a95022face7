"""The lab of heads: a sentence somebody typed, and what every head of a real model does with it.

Everything here is a function of a sentence and a model; the inputs and buttons are in ``heads_widget``.
The model is all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_course.inside import probes
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
#: what the lab asks for, as ``probes.patterns`` calls it
_PATTERNS = {
    "the token before": "previous",
    "the token after": "next",
    "[CLS]": "first",
    "the same word elsewhere": "same word",
}

#: What a sentence is for a model: its tokens, and the weights of all heads.
Seen = tuple[list[str], Float[Tensor, "L h _T _T"]]


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


@torch.no_grad()
def shares(pretrained: Pretrained) -> dict[str, Float[Tensor, "L h"]]:
    """Return how much weight each head puts where the lab asks for it, on the mean of its sentences."""
    batch = pretrained.tokens(list(RECORDED))
    _, weights = pretrained.model(batch.tokens, batch.lengths, need_weights=True)
    patterns = probes.patterns(batch.tokens, batch.lengths)
    looked = {name: patterns[pattern] for name, pattern in _PATTERNS.items()}
    nouns = determiners(batch.words, list(RECORDED.values()))
    looked["from a determiner to its noun"] = nouns.to(batch.tokens.device)
    return {name: probes.share(torch.stack(weights), table).mean(-1) for name, table in looked.items()}


def determiners(tokens: Sequence[Sequence[str]], nouns: Sequence[Sequence[str]]) -> Bool[Tensor, "B T T"]:
    """Return who ought to look at whom if determiners look for the nouns that are named, in their order.

    Sentences without named nouns have empty tables; T is the longest sentence's.
    """
    T = max(map(len, tokens))
    looked = torch.zeros(len(tokens), T, T, dtype=torch.bool)
    for table, sentence, named in zip(looked, tokens, nouns, strict=True):
        places = [i for i, token in enumerate(sentence) if token in _DETERMINERS]
        for i, noun in zip(places, named, strict=False):
            table[i, list(sentence).index(noun, i)] = True
    return looked

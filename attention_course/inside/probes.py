"""What does a head look at? Probes: questions to weights whose right answer is known beforehand.

A *pattern* says for every pair of tokens whether the first ought to look at the second; its score is the
share of its weight that a head puts there. A *relation* has one right word in each sentence; its score is
how often a head's largest weight lies on it. Sentences are laid out as BERT does: [CLS], pieces of words,
[SEP], padding. A probe is chosen on one half of the sentences and reported on the other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_course.inputs import check_range

Weights = Float[Tensor, "layers B h T T"]
Looked = Bool[Tensor, "B T T"]


def ordinary(lengths: Int[Tensor, " B"], T: int) -> Bool[Tensor, "B T"]:
    """Return which tokens are neither [CLS], the first, nor [SEP], the last, nor padding."""
    place = torch.arange(T, device=lengths.device)
    return (place > 0) & (place < lengths[:, None] - 1)


def patterns(tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> dict[str, Looked]:
    """Return who ought to look at whom, [B, T, T], queries down, for a head of each kind.

    "previous", "next", "self", "first" ([CLS]), "separator" ([SEP]), "same word" (the same token
    elsewhere) and "rarest" (the token with the highest number, in a vocabulary that is sorted by how
    frequent its pieces are, such as BERT's). Only ordinary tokens ask, and nobody but "first" and
    "separator" points to a special one. A query whose pattern is nowhere has an empty row. Raises a
    ``ValueError`` for a sentence shorter than its two special tokens or longer than ``tokens``.
    """
    T = tokens.shape[1]
    check_range("lengths", lengths, 2, T, f"T={T}")
    word = ordinary(lengths, T)
    query, key = torch.meshgrid(*[torch.arange(T, device=tokens.device)] * 2, indexing="ij")
    number = tokens.masked_fill(~word, -1)
    rarest = number == number.amax(1, keepdim=True)
    pairs = word[:, :, None] & word[:, None, :]  # between ordinary tokens
    asked = word[:, :, None]
    return {
        "previous": pairs & (key == query - 1),
        "next": pairs & (key == query + 1),
        "self": pairs & (key == query),
        "first": asked & (key == 0),
        "separator": asked & (key == lengths[:, None, None] - 1),
        "same word": pairs & (tokens[:, :, None] == tokens[:, None, :]) & (key != query),
        "rarest": pairs & rarest[:, None, :] & ~rarest[:, :, None],
    }


def share(weights: Weights, looked: Looked) -> Float[Tensor, "layers h sentences"]:
    """Return how much of its weight each head puts where ``looked`` is True, in each sentence.

    The mean over the queries that have such a key; sentences without one are left out. Raises a
    ``ValueError`` where all are.
    """
    on_keys = (weights * looked[:, None]).sum(-1)  # [layers, B, h, T]
    return _mean_over_queries(on_keys, looked)


def largest(
    weights: Weights, looked: Looked, lengths: Int[Tensor, " B"]
) -> Float[Tensor, "layers h sentences"]:
    """Return how often each head's largest weight among ordinary tokens lies where ``looked`` is True.

    Sentences and queries as in ``share``. Special tokens do not compete: Voita et al. (2019, section 5)
    leave out the end of the sentence in the same way.
    """
    word = ordinary(lengths, weights.shape[-1])
    found = weights.masked_fill(~word[:, None, None, :], -1).argmax(-1, keepdim=True)
    right = looked[:, None].expand(weights.shape).gather(-1, found).squeeze(-1)
    return _mean_over_queries(right.to(weights.dtype), looked)


def uniform(looked: Looked, lengths: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """Return what ``share`` gives a head that looks at all tokens alike: the baseline of a pattern."""
    even = (torch.arange(looked.shape[-1], device=lengths.device) < lengths[:, None]) / lengths[:, None]
    return share(even[None, :, None, None, :].expand(1, -1, 1, looked.shape[1], -1), looked).mean()


def above(score: Tensor | float, baseline: Tensor | float) -> Tensor | float:
    """Return how much of the way from its baseline to 1 a score has gone; 0 for the baseline itself."""
    return (score - baseline) / (1 - baseline)


def words_of(pieces: Sequence[Sequence[str]]) -> Int[Tensor, "B T"]:
    """Return the index of the word that each piece belongs to, -1 for [CLS], [SEP] and padding.

    A piece that starts with ## goes on with the word before it, as in BERT's vocabulary.
    """
    longest = max(map(len, pieces), default=0)
    words = torch.full((len(pieces), longest), -1)
    for row, sentence in zip(words, pieces, strict=True):
        index = -1
        for place, piece in enumerate(sentence):
            if piece in ("[CLS]", "[SEP]", "[PAD]"):
                continue
            index += not piece.startswith("##")
            row[place] = index
    return words


def from_word(
    weights: Weights, words: Int[Tensor, "B T"], source: Int[Tensor, " B"]
) -> Float[Tensor, "layers h B words"]:
    """Return what each head gives, from the first piece of one word, to every word: the sum over its pieces.

    ``words`` as ``words_of`` returns them, ``source`` the word that asks in each sentence. Special tokens
    are no words: a row sums to less than 1. Raises a ``ValueError`` for a source that is no word.
    """
    missing = ~(words == source[:, None]).any(1)
    if missing.any():
        b = int(missing.nonzero()[0])
        raise ValueError(f"source must be a word of its sentence, got {int(source[b])} for sentence {b}")
    first = (words == source[:, None]).int().argmax(1)
    each = torch.arange(len(source), device=weights.device)
    row = weights[:, each, :, first]  # [B, layers, h, T]: an index on either side puts its axis in front
    count = int(words.max()) + 1
    belongs = words[:, :, None] == torch.arange(count, device=words.device)  # [B, T, words]
    return torch.einsum("blht,btw->lhbw", row, belongs.to(row.dtype))


def hits(
    given: Float[Tensor, "layers h B words"],
    source: Int[Tensor, " B"],
    target: Int[Tensor, " B"],
    candidates: Bool[Tensor, "B words"],
) -> Bool[Tensor, "layers h B"]:
    """Return whether the word that gets most is the right one, of ``candidates`` without the asker."""
    index = torch.arange(given.shape[-1], device=given.device)
    allowed = candidates & (index != source[:, None])
    return given.masked_fill(~allowed, -1).argmax(-1) == target


def best_offset(
    source: Int[Tensor, " B"], target: Int[Tensor, " B"], chosen: Sequence[int]
) -> Bool[Tensor, " B"]:
    """Return where "always so many words on" is right: the commonest number of the ``chosen`` sentences.

    This is the baseline of a relation: what a head can score that only counts places.
    """
    offset = target - source
    return offset == offset[torch.as_tensor(chosen)].mode().values


class Probe(NamedTuple):
    """A head, counted from 1, its score where it was chosen and elsewhere, and the latter's interval."""

    layer: int
    head: int
    chosen: float
    reported: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """The head as layer.head."""
        return f"{self.layer}.{self.head}"


def halves(number: int) -> tuple[list[int], list[int]]:
    """Return the even and the odd indices: sentences to choose on, and sentences to report."""
    return list(range(0, number, 2)), list(range(1, number, 2))


def best_head(
    scores: Bool[Tensor, "layers h sentences"] | Float[Tensor, "layers h sentences"], *, seed: int = 0
) -> Probe:
    """Return the head with the best mean score on even sentences, and what it scores on the odd ones.

    ``scores`` as ``share``, ``largest`` and ``hits`` return them; the interval is ``interval`` of the odd
    sentences. Raises a ``ValueError`` for fewer than two sentences, which have no halves.
    """
    if scores.shape[-1] < 2:
        raise ValueError(f"scores must have at least two sentences to halve, got {scores.shape[-1]}")
    even, odd = halves(scores.shape[-1])
    means = scores[..., even].float().mean(-1)
    layer, head = divmod(int(means.argmax()), means.shape[1])
    elsewhere = scores[layer, head, odd].float()
    low, high = interval(elsewhere, seed=seed)
    return Probe(layer + 1, head + 1, means[layer, head].item(), elsewhere.mean().item(), low, high)


def interval(values: Float[Tensor, " n"], *, seed: int = 0, draws: int = 2000) -> tuple[float, float]:
    """Return the bootstrap's 95 % interval of the mean of ``values``, one value a sentence.

    Raises a ``ValueError`` for no values.
    """
    if not len(values):
        raise ValueError("values must hold at least one, got none")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (draws, len(values)), generator=generator).to(values.device)
    means = values[drawn].mean(1).sort().values
    return means[int(0.025 * draws)].item(), means[int(0.975 * draws) - 1].item()


def order(importance: Float[Tensor, "layers h"]) -> list[tuple[int, int]]:
    """Return (layer, head) of all heads, counted from 0, the least important first."""
    heads = importance.shape[1]
    return [divmod(int(i), heads) for i in importance.flatten().argsort(stable=True)]


def gates_without(out: Sequence[tuple[int, int]], layers: int, heads: int) -> Float[Tensor, "layers h"]:
    """Return gates of 1, and of 0 for the heads (layer, head), counted from 0, that are to be taken out."""
    gates = torch.ones(layers, heads)
    for layer, head in out:
        gates[layer, head] = 0
    return gates


def _mean_over_queries(
    values: Float[Tensor, "layers B h T"], looked: Looked
) -> Float[Tensor, "layers h sentences"]:
    """The mean of each sentence's queries that have a key to look at, of sentences that have such a query."""
    asks = looked.any(-1)  # [B, T]
    asked = asks.any(-1)
    if not asked.any():
        raise ValueError("looked must have a key for at least one query, got none")
    sums = values.masked_fill(~asks[:, None], 0).sum(-1)  # [layers, B, h]
    return (sums[:, asked] / asks.sum(-1)[asked][:, None]).transpose(1, 2)

"""Exercise 1: how much weight goes to the token before."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.probing import shared
from attention_course.checks.probing.shared import NAME

Score = Callable[[Tensor, Tensor], Tensor]


def _previous_token_score(weights: Tensor, lengths: Tensor) -> Tensor:
    before = weights.diagonal(-1, -2, -1)  # [B, h, T - 1], queries 1, 2, ...
    counted = (_query(weights) < lengths[:, None]).unsqueeze(1)
    return before.masked_fill(~counted, 0.0).sum((0, -1)) / counted.sum()


def _query(weights: Tensor) -> Tensor:
    """The places of all queries but the first."""
    return torch.arange(1, weights.shape[-1])


def _mean(of: Tensor, counted: Tensor) -> Tensor:
    """[B, h, n] and [B, n] -> [h]."""
    counted = counted.unsqueeze(1).to(of.dtype)
    return (of * counted).sum((0, -1)) / counted.sum()


def _before(weights: Tensor) -> Tensor:
    return weights.diagonal(-1, -2, -1)


def _of_queries(first: int, less: int = 0) -> Score:
    """The right mean, but of the queries from ``first`` to ``less`` before the end."""

    def score(weights: Tensor, lengths: Tensor) -> Tensor:
        query = _query(weights)
        return _mean(_before(weights), (query >= first) & (query < lengths[:, None] - less))

    return score


def _divided(by: Callable[[Tensor, Tensor], Tensor | int]) -> Score:
    """The right sum, divided by something else."""

    def score(weights: Tensor, lengths: Tensor) -> Tensor:
        total = (lengths - 1).clamp_min(0).sum()
        return _previous_token_score(weights, lengths) * total / by(weights, lengths)

    return score


def _next(weights: Tensor, lengths: Tensor) -> Tensor:
    return _mean(weights.diagonal(1, -2, -1), _query(weights) < lengths[:, None])


def _next_too_far(weights: Tensor, lengths: Tensor) -> Tensor:
    """The last word's next token is padding, and counted."""
    return _mean(weights.diagonal(1, -2, -1), _query(weights) - 1 < lengths[:, None])


def _itself(weights: Tensor, lengths: Tensor) -> Tensor:
    return _mean(weights.diagonal(0, -2, -1)[..., 1:], _query(weights) < lengths[:, None])


def _itself_from_the_first(weights: Tensor, lengths: Tensor) -> Tensor:
    return _mean(weights.diagonal(0, -2, -1), shared.real(weights.shape[-1], lengths))


def _two_before(weights: Tensor, lengths: Tensor) -> Tensor:
    return _mean(weights.diagonal(-2, -2, -1), _query(weights)[1:] < lengths[:, None])


def _rolled_round(weights: Tensor, lengths: Tensor) -> Tensor:
    """weights[..., t, t - 1] for every t: before the first token stands the last."""
    place = torch.arange(weights.shape[-1])
    return _mean(weights[..., place, place - 1], shared.real(len(place), lengths))


def _all_as_long_as(length: Callable[[Tensor], Tensor]) -> Score:
    return lambda weights, lengths: _before(weights)[..., : int(length(lengths)) - 1].mean((0, -1))


def _of_last_words(weights: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([one[:, n - 1, n - 2] for one, n in zip(weights, lengths, strict=True)]).mean(0)


def _of_sentences(weights: Tensor, lengths: Tensor) -> Tensor:
    counted = (_query(weights) < lengths[:, None]).unsqueeze(1).to(weights.dtype)
    return ((_before(weights) * counted).sum(-1) / counted.sum(-1)).mean(0)


def _of_sentences_or_0(weights: Tensor, lengths: Tensor) -> Tensor:
    """A sentence of one token has a mean of 0."""
    return _of_long_sentences(weights, lengths) * (lengths > 1).sum() / len(lengths)


def _too_far(weights: Tensor, lengths: Tensor) -> Tensor:
    """The first padding's weight is added, and not counted."""
    counted = (_query(weights) <= lengths[:, None]).unsqueeze(1)
    return _before(weights).masked_fill(~counted, 0.0).sum((0, -1)) / (lengths - 1).sum()


def _two_before_of_all(weights: Tensor, lengths: Tensor) -> Tensor:
    """As many are counted as have one token before them."""
    counted = (_query(weights)[1:] < lengths[:, None]).sum()
    return _two_before(weights, lengths) * counted / (lengths - 1).sum()


def _of_long_sentences(weights: Tensor, lengths: Tensor) -> Tensor:
    long = lengths > 1
    return _of_sentences(weights[long], lengths[long])


def _one_a_sentence(weights: Tensor, lengths: Tensor) -> Tensor:
    counted = (_query(weights) < lengths[:, None]).unsqueeze(1)
    return (_before(weights) * counted).sum((1, -1)) / counted.sum()


def _often_the_largest(weights: Tensor, lengths: Tensor) -> Tensor:
    is_largest = weights.argmax(-1)[..., 1:] == _query(weights) - 1
    return _mean(is_largest.to(weights.dtype), _query(weights) < lengths[:, None])


def _all_before(weights: Tensor, lengths: Tensor) -> Tensor:
    return _mean(weights.tril(-1).sum(-1)[..., 1:], _query(weights) < lengths[:, None])


def _in_place(weights: Tensor, lengths: Tensor) -> Tensor:
    right = _previous_token_score(weights, lengths)
    weights *= shared.real(weights.shape[-1], lengths)[:, None, :, None]
    return right


def _drawn(g: Generator, h: int, T: int, *lengths: int, dtype=torch.float32) -> tuple[Tensor, Tensor]:
    """Padding is hidden from every query; its own rows hold numbers, as they do in a model."""
    of = torch.tensor(lengths)
    seen = shared.real(T, of)[:, None, None, :]
    return shared.weights(g, len(lengths), h, T, seen=seen, dtype=dtype), of


PREVIOUS_TOKEN_SCORE = Exercise(
    name=f"{NAME}.previous_token_score",
    title="The token before",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_previous_token_score,
    returns=("score",),
    cases=(
        Case("one sentence", lambda g: _drawn(g, 2, 4, 4)),
        Case("three lengths", lambda g: _drawn(g, 4, 7, 5, 2, 6)),
        Case("a sentence of one token", lambda g: _drawn(g, 3, 6, 4, 1, 6, 3, 3)),
        Case("as many sentences as heads", lambda g: _drawn(g, 3, 5, 2, 5, 4)),
        Case("float64", lambda g: _drawn(g, 3, 8, 3, 8, 4, 6, dtype=torch.float64)),
        Case("gradient", lambda g: _drawn(g, 2, 5, 5, 2, 4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "the token after",
            _next,
            "This is the weight on the token after the query, or the two axes are exchanged: "
            "weights[b, head, query, key] has queries down and keys across, so the token before lies below "
            "the diagonal.",
        ),
        Mistake(
            "the token after, padding too",
            _next_too_far,
            "This is the weight on the token after the query, and after the last word that is padding. The "
            "token before the query lies below the diagonal.",
        ),
        Mistake(
            "the query itself",
            _itself,
            "This is the diagonal: how much weight each query gives to its own place. The token before "
            "is one column to the left.",
        ),
        Mistake(
            "the query itself, the first one too",
            _itself_from_the_first,
            "This is the diagonal, over all words: how much weight each query gives to its own place. The "
            "token before is one column to the left, and the first query has none.",
        ),
        Mistake(
            "two tokens before",
            _two_before,
            "This is the weight on the token before the one before. The diagonal you want is the first one "
            "below the main one.",
        ),
        Mistake(
            "two tokens before, divided by all queries but the first",
            _two_before_of_all,
            "This is the weight on the token before the one before, divided by the number of queries that "
            "have one token before them. The diagonal you want is the first one below the main one.",
        ),
        Mistake(
            "the first query rolled round",
            _rolled_round,
            "At the first query t - 1 is -1, which Python takes as the last key. The first query has no "
            "token before it: leave it out.",
        ),
        Mistake(
            "the first query counted",
            _divided(lambda weights, lengths: lengths.sum()),
            "The sum is right, but you divide by the number of all words. The first word of each sentence "
            "has no token before it: it adds nothing and is not counted.",
        ),
        Mistake(
            "padding counted",
            lambda weights, lengths: _before(weights).mean((0, -1)),
            "The rows of padding are in the mean. They hold numbers, but nobody reads what comes of them: "
            "count query t only where t < lengths[b].",
        ),
        Mistake(
            "all as long as the longest",
            _all_as_long_as(lambda lengths: lengths.max()),
            "Every sentence is read up to the end of the longest one, padding and all. Count query t only "
            "where t < lengths[b].",
        ),
        Mistake(
            "all as long as the first",
            _all_as_long_as(lambda lengths: lengths[0]),
            "Every sentence is taken to be as long as the first one. Each has a length of its own: "
            "lengths[b].",
        ),
        Mistake(
            "only the last word of each sentence",
            _of_last_words,
            "Only the last word of each sentence is looked at. Every word but the first counts.",
        ),
        Mistake(
            "divided by all places",
            _divided(lambda weights, lengths: len(lengths) * (weights.shape[-1] - 1)),
            "Padding adds 0 to the sum and still counts in the number you divide by, so short sentences make "
            "the score small. Divide by the number of queries that were counted.",
        ),
        Mistake(
            "one query too many",
            _of_queries(1, -1),
            "The query at place lengths[b] is counted. It is the first padding: the token before it is a "
            "word, but itself it is none. The mask belongs to the queries, not to the keys.",
        ),
        Mistake(
            "one weight too many",
            _too_far,
            "You divide by the right number, but one weight more of each sentence is added: that of the "
            "query at place lengths[b], which is padding. Entry 0 of the diagonal belongs to query 1.",
        ),
        Mistake(
            "the last word left out",
            _of_queries(1, 1),
            "The last word of every sentence is left out. It is a query like any other: t runs up to "
            "lengths[b] - 1.",
        ),
        Mistake(
            "the second query left out",
            _of_queries(2),
            "You leave out two queries of each sentence. Only the first one has no token before it.",
        ),
        Mistake(
            "mean of the sentences' means",
            _of_sentences,
            "You take the mean of each sentence and then the mean of those, so the few words of a short "
            "sentence weigh more than the others. (And with a single token there is nothing to divide by.) "
            "Add up all queries of all sentences, and divide once.",
        ),
        Mistake(
            "mean of the longer sentences' means",
            _of_long_sentences,
            "You take the mean of each sentence that has one and then the mean of those, so the few words of "
            "a short sentence weigh more than the others. Add up all queries, and divide once.",
        ),
        Mistake(
            "mean of the sentences' means, 0 for a single token",
            _of_sentences_or_0,
            "You take the mean of each sentence, 0 where it has a single token, and then the mean of those, "
            "so the few words of a short sentence weigh more than the others. Add up all queries of all "
            "sentences, and divide once.",
        ),
        Mistake(
            "divided by the sentences",
            _divided(lambda weights, lengths: len(lengths)),
            "You divide by the number of sentences. Each has several queries: divide by the number of those.",
        ),
        Mistake(
            "sum instead of mean",
            _divided(lambda weights, lengths: 1),
            "The weights are added up and not divided. With more words the number grows: divide by the "
            "number of queries that were counted.",
        ),
        Mistake(
            "one number a sentence",
            _one_a_sentence,
            "There is a number for every sentence, and the heads are added up. Axis 0 are the sentences, "
            "axis 1 the heads: keep the heads.",
        ),
        Mistake(
            "how often it is the largest",
            _often_the_largest,
            "You count how often the token before gets the largest weight. What is asked for is the weight "
            "itself, on average.",
        ),
        Mistake(
            "all earlier tokens",
            _all_before,
            "All tokens before the query are added up. Only the one right before it is meant.",
        ),
        Mistake(
            "weights changed in place",
            _in_place,
            "The result is right, but weights itself is changed. Make a new tensor.",
        ),
    ),
    hints=(
        "Draw a 4 × 4 table, queries down and keys across, and mark the cells that hold what is asked for. "
        "How many are there, and which line do they form?",
        "weights.diagonal(offset, -2, -1) takes such a line out of every head of every sentence: "
        "[B, h, T - 1]. Entry 0 belongs to query 1. Which entries belong to words of sentence b?",
        "A mask [B, 1, T - 1] tells which entries count. One sum over the sentences and the queries, of the "
        "entries that count; one count of them, the same for every head.",
    ),
)

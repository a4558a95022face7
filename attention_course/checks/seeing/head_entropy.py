"""Exercise 1: how widely a head looks."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.seeing import shared
from attention_course.checks.seeing.shared import NAME

Count = Callable[[Tensor, Tensor], Tensor]


def _mean_over(of_rows: Tensor, counted: Tensor) -> Tensor:
    """[B, h, T], and [B, T] of those that count -> [B, h]."""
    sums = of_rows.masked_fill(~counted[:, None], 0.0).sum(-1)
    return sums / counted.sum(-1, keepdim=True)


def _head_entropy(weights: Tensor, lengths: Tensor) -> Tensor:
    return _mean_over(torch.special.entr(weights).sum(-1), shared.real(weights.shape[-1], lengths))


def _of_rows(of_rows: Callable[[Tensor], Tensor]) -> Count:
    """The right mean of another number for each row, ``of_rows(weights)`` [B, h, T]."""
    return lambda weights, lengths: _mean_over(of_rows(weights), shared.real(weights.shape[-1], lengths))


def _after(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Count:
    """``change(entropies, weights, lengths)`` of the right entropies."""
    return lambda weights, lengths: change(_head_entropy(weights, lengths), weights, lengths)


def _over(counted: Callable[[Tensor, Tensor], Tensor]) -> Count:
    """The mean over other queries, ``counted(lengths, positions)``."""

    def head_entropy(weights: Tensor, lengths: Tensor) -> Tensor:
        T = weights.shape[-1]
        queries = counted(lengths[:, None], torch.arange(T)).expand(len(weights), T)
        return _mean_over(torch.special.entr(weights).sum(-1), queries)

    return head_entropy


def _heads_first(weights: Tensor, lengths: Tensor) -> Tensor:
    return _head_entropy(weights.mean(1, keepdim=True).expand_as(weights), lengths)


def _queries_first(weights: Tensor, lengths: Tensor) -> Tensor:
    counted = shared.real(weights.shape[-1], lengths)[:, None, :, None]
    mean_row = weights.masked_fill(~counted, 0.0).sum(-2) / lengths[:, None, None]
    return torch.special.entr(mean_row).sum(-1)


def _mean_length(weights: Tensor, lengths: Tensor) -> Tensor:
    return _head_entropy(weights, lengths) * lengths[:, None] / lengths.to(weights.dtype).mean()


def _share_of_the_largest(entropy: Tensor, weights: Tensor, lengths: Tensor) -> Tensor:
    """0 for a sentence of one token, in which there is nothing to share."""
    most = lengths.log()[:, None]
    return torch.where(most > 0, entropy / most.where(most > 0, 1.0), 0.0).to(weights.dtype)


def _lengths_along_heads(weights: Tensor, lengths: Tensor) -> Tensor:
    counted = shared.real(weights.shape[-1], lengths)
    return torch.special.entr(weights).sum(-1).masked_fill(~counted, 0.0).sum(-1) / lengths


def _in_place(weights: Tensor, lengths: Tensor) -> Tensor:
    weights[weights == 0] = 1.0
    return _head_entropy(weights, lengths)


def _sentences(
    generator: Generator, h: int, T: int, *lengths: int, causal: bool = False, dtype=torch.float32
) -> Inputs:
    shape = len(lengths), h, T, T
    return shared.rows(generator, *shape, lengths=lengths, causal=causal, dtype=dtype), torch.tensor(lengths)


def _by_hand(generator: Generator) -> Inputs:
    """Two sentences, one head, and a padded token behind the second."""
    sentences = [shared.tenths_of_1(generator, 1, 3, 3, keys=keys) for keys in (3, 2)]
    return torch.stack(sentences), torch.tensor([3, 2])


HEAD_ENTROPY = Exercise(
    name=f"{NAME}.head_entropy",
    title="How widely does a head look?",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_head_entropy,
    given_distributions=("weights",),
    returns=("entropy",),
    cases=(
        Case("one decimal", _by_hand),
        Case("no padding", lambda g: _sentences(g, 3, 4, 4, 4)),
        Case("three lengths", lambda g: _sentences(g, 2, 6, 4, 6, 1)),
        Case("as many sentences as heads", lambda g: _sentences(g, 3, 5, 2, 5, 3)),
        Case("room behind every sentence, float64", lambda g: _sentences(g, 3, 7, 5, 2, dtype=torch.float64)),
        Case("causal", lambda g: _sentences(g, 2, 5, 5, 3, 4, causal=True)),
        # where a weight is 0, the derivative is infinite
        Case("gradient", lambda g: _sentences(g, 3, 4, 4, 4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "padded queries counted",
            _over(lambda lengths, i: i >= 0),
            "The mean runs over all T queries. Those behind the end of a sentence are padding: their rows "
            "hold numbers, and mean nothing. Only the first lengths[b] queries of sentence b count.",
        ),
        Mistake(
            "divided by T",
            lambda weights, lengths: _head_entropy(weights, lengths) * lengths[:, None] / weights.shape[-1],
            "Padded queries add nothing to the sum, but are counted in what you divide by. The mean runs "
            "over lengths[b] queries, not over T. (Or you sum over the queries, and take the mean over the T "
            "keys.)",
        ),
        Mistake(
            "only the padding counted",
            _over(lambda lengths, i: i >= lengths),
            "The mean runs over the padded queries, and where there are none it is 0/0. Is your mask True "
            "at tokens or at padding?",
        ),
        Mistake(
            "one padded query too many",
            _over(lambda lengths, i: i <= lengths),
            "One query behind the last token is counted. Positions count from 0, so the last token stands at "
            "lengths - 1: look at < and <=.",
        ),
        Mistake(
            "last query missing",
            _over(lambda lengths, i: i < lengths - 1),
            "The last token of every sentence is left out; of a sentence of one token nothing is left. "
            "Positions count from 0 and lengths do not.",
        ),
        Mistake(
            "first sentence's length for all",
            _over(lambda lengths, i: i < lengths[:1]),
            "Every sentence is taken to be as long as the first. Look for an index 0, or an axis that was "
            "lost.",
        ),
        Mistake(
            "longest sentence's length for all",
            _over(lambda lengths, i: i < lengths.amax()),
            "Every sentence is taken to be as long as the longest. The shorter ones end before, and what "
            "follows is padding: each has a length of its own.",
        ),
        Mistake(
            "lengths laid along the heads",
            _lengths_along_heads,
            "The lengths meet the axis of the heads: with as many sentences as heads nothing raises. "
            "Sentences are the first axis of weights. Where does an axis of length 1 belong?",
        ),
        Mistake(
            "heads averaged first",
            _heads_first,
            "You average the heads and take the entropy of that. Two heads that look each at one token, but "
            "at different ones, would count as one head that looks at two. First the entropy, then means.",
        ),
        Mistake(
            "heads averaged first, their axis lost",
            lambda weights, lengths: _heads_first(weights, lengths)[:, 0],
            "You average the weights over the heads before the entropy. Each head has an entropy of its own: "
            "[B, h].",
        ),
        Mistake(
            "heads averaged afterwards",
            _after(lambda entropy, weights, lengths: entropy.mean(-1)),
            "The entropies are right, and then you average them over the heads. Keep that axis: [B, h].",
        ),
        Mistake(
            "queries averaged first",
            _queries_first,
            "You average the rows and take the entropy of that. A head that looks at one token, another one "
            "from every query, would seem to look everywhere. First each row's entropy, then the mean.",
        ),
        Mistake(
            "columns instead of rows",
            _of_rows(lambda weights: torch.special.entr(weights).sum(-2)),
            "You add up all rows, the padding's among them, and divide by lengths[b]. Do you sum over the "
            "queries first, axis -2, or does your mask lie along the keys? Keys that are padding weigh "
            "nothing anyway. It is the queries that are to be masked, after the sum over the keys.",
        ),
        Mistake(
            "decimal logarithm",
            _after(lambda entropy, weights, lengths: entropy / math.log(10)),
            "You take log10. Nats are asked for, which the natural logarithm gives.",
        ),
        Mistake(
            "bits",
            _after(lambda entropy, weights, lengths: entropy / math.log(2)),
            "That is the entropy in bits: log2. Nats are asked for, which the natural logarithm gives.",
        ),
        Mistake(
            "NaN at weights of 0",
            _of_rows(lambda weights: -(weights * weights.log()).sum(-1)),
            "Every weight of exactly 0 gives 0 · log 0 = 0 · -inf, which is NaN. Such a weight has no share "
            "in the entropy: see to it that 0 comes out there.",
        ),
        Mistake(
            "0 for a row with a weight of 0",
            _of_rows(lambda weights: -(weights * weights.log()).sum(-1).nan_to_num()),
            "A row in which one weight is 0 counts as 0: its sum is NaN, and that you replace. Only the one "
            "term has no share: it has to be 0 before the terms are added.",
        ),
        Mistake(
            "sum over the queries",
            _after(lambda entropy, weights, lengths: entropy * lengths[:, None]),
            "You add the queries' entropies. A longer sentence then has the larger number: take their mean.",
        ),
        Mistake(
            "mean over the keys",
            _after(lambda entropy, weights, lengths: entropy / weights.shape[-1]),
            "The terms of a row are averaged. An entropy is their sum: only the queries are averaged.",
        ),
        Mistake(
            "divided by log T",
            _after(lambda entropy, weights, lengths: entropy / torch.tensor(weights.shape[-1]).log()),
            "You divide by log T, the entropy of looking at all T keys alike. That gives a share from 0 to "
            "1; nats are asked for, undivided.",
        ),
        Mistake(
            "divided by the logarithm of the length",
            _after(lambda entropy, weights, lengths: entropy / lengths[:, None].log()),
            "You divide by the entropy of looking at all tokens of the sentence alike. That gives a share "
            "(0/0 for a sentence of one token); nats are asked for, undivided.",
        ),
        Mistake(
            "divided by the logarithm of the length, 0 for a single token",
            _after(_share_of_the_largest),
            "You divide by the entropy of looking at all tokens of the sentence alike. That gives a share "
            "from 0 to 1; nats are asked for, undivided.",
        ),
        Mistake(
            "divided by the mean length",
            _mean_length,
            "Every sentence's sum is divided by the same number, the mean of the lengths. Each is divided by "
            "its own: lengths[b].",
        ),
        Mistake(
            "sign forgotten",
            _after(lambda entropy, weights, lengths: -entropy),
            "The entropies are negative. The logarithm of a weight is at most 0: put a minus in front of the "
            "sum.",
        ),
        Mistake(
            "number of keys",
            _of_rows(lambda weights: torch.special.entr(weights).sum(-1).exp()),
            "You average exp(entropy), the number of keys among which a row seems to choose. The entropy "
            "itself is asked for.",
        ),
        Mistake(
            "exponential of the mean",
            _after(lambda entropy, weights, lengths: entropy.exp()),
            "You return exp(entropy), as if to count the keys among which a head chooses. The mean entropy "
            "itself is asked for.",
        ),
        Mistake(
            "log_softmax of the weights",
            _of_rows(lambda weights: -(weights * weights.log_softmax(-1)).sum(-1)),
            "The logarithm is that of a second softmax: log_softmax takes scores. The weights are the result "
            "of a softmax: take their logarithm.",
        ),
        Mistake(
            "softmax of the weights",
            _of_rows(lambda weights: torch.special.entr(weights.softmax(-1)).sum(-1)),
            "The weights go through a softmax. They are the result of one: each row sums to 1 already.",
        ),
        Mistake(
            "weights changed in place",
            _in_place,
            "The result is right, but weights itself is overwritten, as an assignment to weights[...] and "
            "clamp_ do. Make a new tensor.",
        ),
    ),
    hints=(
        "Work from the inside out: a number for each weight, one for each row, then the mean over the rows "
        "that belong to tokens. Which of these steps is the first to need lengths?",
        "torch.special.entr(weights) is -p log p, and 0 where p is 0. Its sum over the keys is [B, h, T]. "
        "torch.arange(T) < lengths[:, None] is True at tokens: [B, T], without the axis of the heads.",
        "Give that mask an axis of length 1 for the heads, put 0 where it is False, sum over the queries, "
        "and divide by the lengths, which need an axis for the heads as well.",
    ),
)

"""Exercise 2: how unlike two heads are."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.seeing import shared
from attention_course.checks.seeing.shared import NAME

#: rows p and q [..., T] of two heads -> one number each
Pairwise = Callable[[Tensor, Tensor], Tensor]


def _entropy(rows: Tensor) -> Tensor:
    return torch.special.entr(rows).sum(-1)


def _js(p: Tensor, q: Tensor) -> Tensor:
    return _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Σ p log(p / q): 0 where p is 0, infinite where only q is."""
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(-1)


def _pairs(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Head a's rows down, head b's across: [h, 1, T, T] and [1, h, T, T]."""
    return weights[:, None], weights[None]


def _between(of_rows: Pairwise) -> Callable[[Tensor], Tensor]:
    """The mean over the queries of ``of_rows``."""
    return lambda weights: of_rows(*_pairs(weights)).mean(-1)


def _head_divergence(weights: Tensor) -> Tensor:
    p, q = _pairs(weights)
    return (_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2).mean(-1)


def _after(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda weights: change(_head_divergence(weights), weights)


def _plain_logarithms(p: Tensor, q: Tensor) -> Tensor:
    m = (p + q) / 2
    return ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2


def _torchs_own(p: Tensor, q: Tensor) -> Tensor:
    m = ((p + q) / 2).log()
    return (F.kl_div(m, p + 0 * q, reduction="none") + F.kl_div(m, q + 0 * p, reduction="none")).sum(-1) / 2


def _geometric(p: Tensor, q: Tensor) -> Tensor:
    m = (p * q).sqrt()
    return (_kl(p, m) + _kl(q, m)) / 2


def _queries_first(weights: Tensor) -> Tensor:
    return _js(*_pairs(weights.mean(-2)))


def _mean_of_all_heads(weights: Tensor) -> Tensor:
    p, q = _pairs(weights)
    m = weights.mean(0)
    return ((_kl(p, m) + _kl(q, m)) / 2).mean(-1)


def _in_place(weights: Tensor) -> Tensor:
    weights.clamp_(min=1e-12)
    return _head_divergence(weights)


def _apart(generator: Generator) -> tuple[Tensor]:
    """Three heads: one looks at the token itself, one at the token before, one at both and all others."""
    itself = torch.eye(4)
    return (torch.stack((itself, itself.roll(1, 0), shared.rows(generator, 4, 4))),)


HEAD_DIVERGENCE = Exercise(
    name=f"{NAME}.head_divergence",
    title="How unlike are two heads?",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_head_divergence,
    given_distributions=("weights",),
    returns=("divergence",),
    cases=(
        Case("one decimal", lambda g: (shared.tenths_of_1(g, 2, 3, 3),)),
        Case("four heads", lambda g: (shared.rows(g, 4, 5, 5),)),
        Case("as many heads as tokens", lambda g: (shared.rows(g, 4, 4, 4),)),
        Case("heads that share nothing", _apart),
        Case("causal, float64", lambda g: (shared.rows(g, 3, 6, 6, causal=True, dtype=torch.float64),)),
        # where a weight is 0, the derivative is infinite
        Case("gradient", lambda g: (shared.rows(g, 3, 4, 4),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "Kullback-Leibler divergence",
            _between(_kl),
            "That is KL(p‖q): another number than KL(q‖p), and infinite where only q is 0. Here both rows "
            "are compared with their mean.",
        ),
        Mistake(
            "Kullback-Leibler divergence of the second from the first",
            _between(lambda p, q: _kl(q, p)),
            "That is KL(q‖p), with the heads the other way round: another number than KL(p‖q), and infinite "
            "where only p is 0. Here both rows are compared with their mean.",
        ),
        Mistake(
            "Kullback-Leibler divergence both ways, averaged",
            _between(lambda p, q: (_kl(p, q) + _kl(q, p)) / 2),
            "The mean of KL(p‖q) and KL(q‖p) is symmetric, but it is infinite as soon as one row is 0 where "
            "the other is not. Compare each with the mean of both rows, not with the other.",
        ),
        Mistake(
            "Kullback-Leibler divergence both ways, added",
            _between(lambda p, q: _kl(p, q) + _kl(q, p)),
            "The sum of KL(p‖q) and KL(q‖p) is symmetric, but it is infinite as soon as one row is 0 where "
            "the other is not. Compare each with the mean of both rows, not with the other.",
        ),
        Mistake(
            "one half only",
            _between(lambda p, q: _kl(p, (p + q) / 2)),
            "Only the first row is compared with the mean: KL(p‖m). The second is to be compared as well, "
            "and the two numbers averaged.",
        ),
        Mistake(
            "half of one half",
            _between(lambda p, q: _kl(p, (p + q) / 2) / 2),
            "One of the two parts is missing: there is ½ KL(p‖m), but no ½ KL(q‖m).",
        ),
        Mistake(
            "twice as much",
            _between(lambda p, q: 2 * _js(p, q)),
            "KL(p‖m) and KL(q‖m) are added. Take half of each: then no divergence is above log 2.",
        ),
        Mistake(
            "half as much",
            _between(lambda p, q: _js(p, q) / 2),
            "That is half of the divergence. Two heads that share nothing reach log 2; is there a half too "
            "many, or a divergence from the mean added up over half of the rows?",
        ),
        Mistake(
            "the mean's divergence from the heads",
            _between(lambda p, q: (_kl((p + q) / 2, p) + _kl((p + q) / 2, q)) / 2),
            "That is KL(m‖p) and KL(m‖q), which is infinite where a head is 0 and the other is not: the mean "
            "stands on the right, KL(p‖m). F.kl_div(a, b) takes a logarithm first and is KL(b‖exp a).",
        ),
        Mistake(
            "mean not halved",
            _between(lambda p, q: (_kl(p, p + q) + _kl(q, p + q)) / 2),
            "Each row is compared with p + q, which sums to 2, so everything is too small by log 2. The mean "
            "is (p + q) / 2.",
        ),
        Mistake(
            "mean of all heads",
            _mean_of_all_heads,
            "Both rows are compared with the mean of all heads. It is the mean of these two that they are "
            "compared with, another one for each pair.",
        ),
        Mistake(
            "entropy of the mean alone",
            _between(lambda p, q: _entropy((p + q) / 2)),
            "That is the entropy of the mean of both rows. A head beside itself should have 0: take off "
            "the mean of the two heads' own entropies.",
        ),
        Mistake(
            "entropies not halved",
            _between(lambda p, q: _entropy((p + q) / 2) - _entropy(p) - _entropy(q)),
            "From the entropy of the mean you take off both entropies. Take off their mean.",
        ),
        Mistake(
            "sign",
            _after(lambda divergence, weights: -divergence),
            "The divergences are negative. Either the entropies are the wrong way round, or a minus is "
            "missing: -p log p is an entropy, p log p is none.",
        ),
        Mistake(
            "square root",
            _between(lambda p, q: _js(p, q).clamp(min=0.0).sqrt()),
            "You take the square root for each query. That is the Jensen-Shannon distance; the divergence "
            "itself is asked for.",
        ),
        Mistake(
            "square root of the mean",
            _after(lambda divergence, weights: divergence.clamp(min=0.0).sqrt()),
            "You take the square root of the mean. A root makes a distance of the divergence; the divergence "
            "itself is asked for.",
        ),
        Mistake(
            "softmax of the weights",
            lambda weights: _head_divergence(weights.softmax(-1)),
            "The weights go through a softmax. They are the result of one: each row sums to 1 already, and a "
            "second softmax makes all heads nearly alike.",
        ),
        Mistake(
            "half of the absolute differences",
            _between(lambda p, q: (p - q).abs().sum(-1) / 2),
            "That is the total variation, half of the sum of the absolute differences. It is a distance as "
            "well, and no divergence: there is no logarithm in it.",
        ),
        Mistake(
            "queries averaged first",
            _queries_first,
            "You average the rows of a head and compare these. One head that looks at the next token and one "
            "that looks at the last would then be nearly alike. Compare row by row, and average afterwards.",
        ),
        Mistake(
            "bits",
            _after(lambda divergence, weights: divergence / math.log(2)),
            "These are bits: log2, or divided by log 2. Nats are asked for, of which there are at most log "
            "2.",
        ),
        Mistake(
            "NaN at weights of 0",
            _between(_plain_logarithms),
            "Where a weight is exactly 0, so is 0 · log 0 = 0 · -inf, or 0/0 where both are, and that is "
            "NaN. Such a weight has no share in the sum: see to it that 0 comes out there.",
        ),
        Mistake(
            "NaN where both weights are 0",
            _between(_torchs_own),
            "Where both weights are 0 so is their mean, and its logarithm is -inf: F.kl_div multiplies that "
            "by 0, which is NaN. Such a key has no share in the sum: give the logarithm a harmless number "
            "there.",
        ),
        Mistake(
            "0 for a row with a weight of 0",
            _between(lambda p, q: _plain_logarithms(p, q).nan_to_num()),
            "A row in which one weight is 0 counts as 0: its sum is NaN, and that you replace. Only the one "
            "term has no share: it has to be 0 before the terms are added.",
        ),
        Mistake(
            "geometric mean",
            _between(_geometric),
            "m is the root of p · q. The rows are compared with their plain mean, (p + q) / 2, which sums to "
            "1.",
        ),
        Mistake(
            "sum over the queries",
            _after(lambda divergence, weights: divergence * weights.shape[-1]),
            "You add the queries' divergences. Take their mean: then no number is above log 2, however long "
            "the sentence.",
        ),
        Mistake(
            "mean over the keys",
            _after(lambda divergence, weights: divergence / weights.shape[-1]),
            "The terms of a row are averaged, too. A divergence is their sum: only the queries are averaged.",
        ),
        Mistake(
            "half of the matrix empty",
            _after(lambda divergence, weights: divergence.triu()),
            "Below the diagonal stands nothing. The matrix is symmetric: fill in both halves.",
        ),
        Mistake(
            "weights changed in place",
            _in_place,
            "The result is right, but weights itself is overwritten, as an assignment to weights[...] and "
            "clamp_ do. Make a new tensor.",
        ),
    ),
    hints=(
        "Write KL(p‖m) as a difference of two logarithms and add up both halves. Which three entropies are "
        "left?",
        "JS = H(m) - ½ (H(p) + H(q)), with m = ½ (p + q): no quotient, and 0 · log 0 is the only trouble. "
        "torch.special.entr(p) is -p log p, and 0 where p is 0.",
        "With an axis of length 1 behind the heads, and with one in front of them, the same rows are "
        "head a's and head b's, [h, 1, T, T] and [1, h, T, T]: their mean is [h, h, T, T]. Sum over the "
        "keys, average over the queries.",
    ),
)

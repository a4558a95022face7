"""Exercise 4: both masks in a decoder."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import lifted, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.masks import shared
from attention_course.checks.masks.shared import NAME


def _zeros_where_blind(scores: Tensor, mask: Tensor) -> Tensor:
    return shared.safe_softmax(scores.masked_fill(~mask, -torch.inf))


def _over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    return _zeros_where_blind(scores.mT, mask.mT).mT


def _decoder(
    may_look: Callable[[Tensor, Tensor], Tensor] = lambda scores, real: (
        (shared.later(scores) <= 0) & shared.keys(real)
    ),
    softmax: Callable[[Tensor, Tensor], Tensor] = _zeros_where_blind,
    scale: Callable[[Tensor, Tensor], float] = lambda query, value: query.shape[-1] ** 0.5,
) -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def attention(query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        scores = query @ key.mT / scale(query, value)
        weights = softmax(scores, may_look(scores, real))
        return weights @ value, weights

    return attention


def _loud(generator: Generator) -> tuple[Tensor, ...]:
    """Each word scores 2e9 more than the one before it, padding more than all of them."""
    query, key, value = (normal(generator, 2, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    real = shared.real_keys(5, 5, 3).flip(-1)
    heights = 2e9 * (torch.arange(5) - 5) + 2e10 * (1 - real)
    return *lifted(query, key, heights[:, None]), value, real


DECODER_ATTENTION = Exercise(
    name=f"{NAME}.decoder_attention",
    title="Both masks at once",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_decoder(),
    returns=("context", "weights"),
    unseen=("key",),
    hidden=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                *(tenths(g, 1, 1, 3, 4) for _ in range(2)),
                tenths(g, 1, 1, 3, 2),
                shared.real_keys(3, 2),
            ),
        ),
        Case(
            "padding behind",
            lambda g: (
                *(normal(g, 3, 2, 5, 8) for _ in range(2)),
                normal(g, 3, 2, 5, 4),
                shared.real_keys(5, 5, 3, 1),
            ),
        ),
        Case(
            "padding in front, float64",
            lambda g: (
                *(normal(g, 2, 3, 5, 8, dtype=torch.float64) for _ in range(2)),
                normal(g, 2, 3, 5, 4, dtype=torch.float64),
                shared.real_keys(5, 3, 4).flip(-1).long(),
            ),
        ),
        Case(
            "two new words after four",
            lambda g: (
                normal(g, 2, 3, 2, 8),
                normal(g, 2, 3, 6, 8),
                normal(g, 2, 3, 6, 4),
                shared.real_keys(6, 6, 4).flip(-1),
            ),
        ),
        Case(
            "as many sentences as heads",
            lambda g: (
                *(normal(g, 3, 3, 4, 8) for _ in range(2)),
                normal(g, 3, 3, 4, 5),
                shared.real_keys(4, 4, 2, 3).flip(-1),
            ),
        ),
        Case("what is hidden scores high, float64", _loud),
        Case(
            "gradient",
            lambda g: (
                *(normal(g, 2, 2, 4, 6) for _ in range(2)),
                normal(g, 2, 2, 4, 3),
                shared.real_keys(4, 2, 3).flip(-1).long(),
            ),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "only the causal mask",
            _decoder(lambda scores, real: shared.later(scores) <= 0),
            "Padding is seen wherever it lies in the past. Look for real: is it used?",
        ),
        Mistake(
            "only the padding mask",
            _decoder(lambda scores, real: shared.keys(real)),
            "The future is seen. Look for the causal mask: is it used?",
        ),
        Mistake(
            "or instead of and",
            _decoder(lambda scores, real: (shared.later(scores) <= 0) | shared.keys(real)),
            "A key is seen if one of the two masks allows it. It must be allowed by both: look at "
            "the sign between them.",
        ),
        Mistake(
            "NaN rows",
            _decoder(softmax=shared.by_infinity),
            "With padding in front, the first queries see only themselves, and they are padding: "
            "nothing is left, hence NaN. Exercise 3 has the cure.",
        ),
        Mistake(
            "-1e9 as a score",
            _decoder(softmax=shared.filled(-1e9)),
            "Queries that see nothing spread their attention over all keys, future and padding "
            "alike: with one finite score everywhere, such as -1e9, all are equal. Fill with -inf, and treat "
            "such rows as in exercise 3.",
        ),
        Mistake(
            "-1e9 added to the scores",
            _decoder(softmax=shared.lowered(1e9)),
            "Queries that see nothing get weights all the same: a number such as -1e9 is added to all their "
            "scores, and softmax ignores a common shift. Fill with -inf, and treat such rows as in exercise "
            "3.",
        ),
        Mistake(
            "zero as a score",
            _decoder(softmax=shared.filled(0.0)),
            "Hidden keys have the score 0, and exp(0) = 1. Which score has the exponential 0?",
        ),
        Mistake(
            "mask after softmax",
            _decoder(softmax=shared.zeroed_after),
            "Hidden keys get no weight, but the rest no longer sums to 1: softmax has already shared "
            "out to them. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "one softmax for each mask",
            _decoder(
                lambda scores, real: shared.keys(real),
                lambda scores, mask: shared.by_infinity(
                    shared.by_infinity(scores, shared.later(scores) <= 0), mask
                ),
            ),
            "The causal weights go through a second softmax, with the padding. They are no scores: where the "
            "future has the weight 0, exp(0) = 1 brings it back. Join the masks, and take softmax once.",
        ),
        Mistake(
            "softmax over the queries",
            _decoder(softmax=_over_queries),
            "The columns of the weights sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "inverted mask",
            _decoder(lambda scores, real: ~((shared.later(scores) <= 0) & shared.keys(real))),
            "What may be seen is hidden, and the rest is seen. masked_fill fills where its mask is "
            "True: look for a missing ~.",
        ),
        Mistake(
            "upper instead of lower triangle",
            _decoder(lambda scores, real: (shared.later(scores) >= 0) & shared.keys(real)),
            "Each query sees itself and what comes after it. Queries go down and keys go across: "
            "look at triu and tril.",
        ),
        Mistake(
            "off by one: the present is hidden",
            _decoder(lambda scores, real: (shared.later(scores) < 0) & shared.keys(real)),
            "A query does not see its own position. Look at the diagonal.",
        ),
        Mistake(
            "off by one: one key of the future is seen",
            _decoder(lambda scores, real: (shared.later(scores) <= 1) & shared.keys(real)),
            "Each query sees the next word, the one to predict. Look at the diagonal.",
        ),
        Mistake(
            "first query at first key",
            _decoder(lambda scores, real: (shared.later_from_the_first(scores) <= 0) & shared.keys(real)),
            "With two new words after four, the two queries are treated as the first two words. They "
            "are the last two: how far does the diagonal move?",
        ),
        Mistake(
            "padding over queries instead of keys",
            _decoder(
                lambda scores, real: (
                    (shared.later(scores) <= 0) & real.bool()[:, None, -scores.shape[-2] :, None]
                )
            ),
            "Rows of padded queries are hidden, and columns of padded keys are not. A key that is "
            "padding must be hidden whoever asks: look at the axis real is laid along.",
        ),
        Mistake(
            "padded queries look nowhere",
            _decoder(
                lambda scores, real: (
                    (shared.later(scores) <= 0)
                    & shared.keys(real)
                    & real.bool()[:, None, -scores.shape[-2] :, None]
                )
            ),
            "The padded keys are hidden, and the rows of the padded queries are 0 as well. The task hides "
            "keys only: nobody reads a padded query's row, so leave it alone.",
        ),
        Mistake(
            "sentences laid along the heads",
            _decoder(lambda scores, real: (shared.later(scores) <= 0) & real.bool()[None, :, None, :]),
            "Broadcasting lays the sentences along the heads. With as many sentences as heads "
            "nothing raises. Where does real need its axes of length 1?",
        ),
        Mistake(
            "no scale",
            _decoder(scale=lambda query, value: 1.0),
            "The softmax sees plain dot products. Divide them by √d_k first.",
        ),
        Mistake(
            "divided by d_k",
            _decoder(scale=lambda query, value: query.shape[-1]),
            "The scores are divided by d_k in all. Look at the power of d_k.",
        ),
        Mistake(
            "scaled with √d_v",
            _decoder(scale=lambda query, value: value.shape[-1] ** 0.5),
            "The scale is the root of the values' width. A score sums over d_k products, the width of "
            "queries and keys.",
        ),
    ),
    hints=(
        "Make both masks boolean with True for “may look”. A key is seen if both allow it: &.",
        "The causal one is [T_q, T_k], as in exercise 1, aligned at the last query and key. The one "
        "for padding is [batch, 1, 1, T_k]. They broadcast.",
        "Fill the scores with -inf where the mask is False, and hand them to your safe_softmax.",
    ),
)

"""Exercise 1: the causal mask."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import loud, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.masks import shared
from attention_course.checks.masks.shared import NAME


def _infinity_after(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.softmax(-1).masked_fill(~mask, -torch.inf)


def _causal(
    may_look: Callable[[Tensor], Tensor] = lambda scores: shared.later(scores) <= 0,
    softmax: Callable[[Tensor, Tensor], Tensor] = shared.by_infinity,
) -> Callable[[Tensor], Tensor]:
    return lambda scores: softmax(scores, may_look(scores))


def _causal_weights(scores: Tensor) -> Tensor:
    return scores.masked_fill(shared.later(scores) > 0, -torch.inf).softmax(-1)


def _causal_in_place(scores: Tensor) -> Tensor:
    return scores.masked_fill_(shared.later(scores) > 0, -torch.inf).softmax(-1)


def _softmax_twice(scores: Tensor, mask: Tensor) -> Tensor:
    return shared.by_infinity(shared.by_infinity(scores, mask), mask)


def _far_below(generator: Generator) -> Tensor:
    scores = tenths(generator, 4, 4)
    return shared.far_below(scores, shared.later(scores) <= 0)


def _loud(generator: Generator) -> Tensor:
    scores = normal(generator, 2, 3, 5)
    return loud(scores, shared.later(scores) <= 0)


CAUSAL_WEIGHTS = Exercise(
    name=f"{NAME}.causal_weights",
    title="Nobody reads the future",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_causal_weights,
    returns=("weights",),
    distributions=("weights",),
    hidden=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 3, 3),)),
        Case("batch and heads", lambda g: (normal(g, 2, 3, 5, 5),)),
        Case("fewer queries than keys", lambda g: (normal(g, 2, 3, 6),)),
        Case("one query", lambda g: (normal(g, 1, 5),)),
        Case("scores below -1e9, float64", lambda g: (_far_below(g),)),
        Case("the future scores high", lambda g: (_loud(g),)),
        Case("gradient", lambda g: (normal(g, 3, 4, 4),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no mask",
            lambda scores: scores.softmax(-1),
            "Every query sees every key, also those after it. Look for the mask: is it made, and is it used?",
        ),
        Mistake(
            "inverted mask",
            _causal(lambda scores: shared.later(scores) > 0),
            "Each query sees the future and nothing else; the last one sees nothing at all, hence "
            "the NaN. Your mask is turned round: masked_fill fills where its mask is True.",
        ),
        Mistake(
            "upper instead of lower triangle",
            _causal(lambda scores: shared.later(scores) >= 0),
            "Each query sees itself and what comes after it. Queries go down and keys go across, so "
            "the past lies below the diagonal: look at triu and tril, or at a transpose.",
        ),
        Mistake(
            "off by one: the present is hidden",
            _causal(lambda scores: shared.later(scores) < 0),
            "A query does not see its own position. Where there are as many queries as keys, the first one "
            "then sees nothing, and its row is NaN. Look at the diagonal.",
        ),
        Mistake(
            "off by one: one key of the future is seen",
            _causal(lambda scores: shared.later(scores) <= 1),
            "Each query sees one key too many: the next one, which is the word to predict. Look at "
            "the diagonal.",
        ),
        Mistake(
            "first query at first key",
            _causal(lambda scores: shared.later_from_the_first(scores) <= 0),
            "With fewer queries than keys your mask starts in the upper left corner. The queries are "
            "the last ones: the last query sees every key. How far does the diagonal move?",
        ),
        Mistake(
            "diagonal moved to the left",
            _causal(lambda scores: shared.later(scores) <= 2 * (scores.shape[-2] - scores.shape[-1])),
            "With fewer queries than keys your diagonal moves to the left, and the first query sees nothing: "
            "its row is NaN. The last query has to see every key. Look at the sign.",
        ),
        Mistake(
            "mask after softmax",
            _causal(softmax=shared.zeroed_after),
            "The future gets no weight, but the rows no longer sum to 1: softmax has already shared "
            "out to it. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "minus infinity after softmax",
            _causal(softmax=_infinity_after),
            "The weights themselves are -inf. A mask changes scores; softmax turns a score of -inf "
            "into a weight of 0. Look at what comes first.",
        ),
        Mistake(
            "zero as a score",
            _causal(softmax=shared.filled(0.0)),
            "The future has the score 0, which is a score like any other: exp(0) = 1. Which score "
            "has the exponential 0?",
        ),
        Mistake(
            "-1e9 as a score",
            _causal(softmax=shared.filled(-1e9)),
            "The future has a finite score, such as -1e9. In one case the past scores lower than that, and "
            "there the future wins. Which score is lower than all others?",
        ),
        Mistake(
            "-1e9 added to the scores",
            _causal(softmax=shared.lowered(1e9)),
            "A number such as 1e9 is taken off the scores of the future. In one case they are higher by more "
            "than that, and there the future wins. What has to be added so that they lose to any score?",
        ),
        Mistake(
            "zero times infinity",
            _causal(softmax=shared.zero_times_infinity),
            "A mask of zeros and ones is multiplied by -inf, and 0 · -inf is NaN. Use masked_fill or "
            "torch.where, which choose and do not multiply.",
        ),
        Mistake(
            "mask added as a number",
            _causal(softmax=shared.added_as_number),
            "The mask is added as zeros and ones: what a query may see gains one point and nothing "
            "is hidden. A mask to be added holds 0 and -inf.",
        ),
        Mistake(
            "softmax twice",
            _causal(softmax=_softmax_twice),
            "The weights go through softmax a second time. They are no scores: all lie between 0 and 1, so "
            "the second softmax makes them nearly equal.",
        ),
        Mistake(
            "softmax over the queries",
            _causal(softmax=shared.over_queries),
            "The columns sum to 1, not the rows. Each query shares its attention out among the "
            "keys, the last axis. Look at dim.",
        ),
        Mistake(
            "scores changed in place",
            _causal_in_place,
            "-inf is written into scores itself, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "Write down the 3 × 3 table of who may look at whom. Row i is query i: which columns may it see?",
        "tril of a table of ones is True on and below a diagonal, which its argument moves to the right "
        "of the corner. For T_q = T_k it lies at 0. Where must it lie so that the last row is all True?",
        "As far to the right as there are more keys than queries. Fill the scores with -inf where the "
        "mask is not True, then softmax over the last axis.",
    ),
)

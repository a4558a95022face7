"""Exercise 2: softmax."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.scaled_dot_product import shared
from attention_course.checks.scaled_dot_product.shared import NAME


def _softmax_everywhere(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.max())
    return powers / powers.sum()


def _softmax_one_maximum(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.max())
    return powers / powers.sum(-1, keepdim=True)


def _softmax_one_sum(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum()


def _softmax_by_max(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.amax(-1, keepdim=True)


def _softmax_no_keepdim(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum(-1)


def _softmax_in_place(scores: Tensor) -> Tensor:
    scores -= scores.amax(-1, keepdim=True)
    powers = torch.exp(scores)
    return powers / powers.sum(-1, keepdim=True)


def _softmax_log(scores: Tensor) -> Tensor:
    return scores - scores.logsumexp(-1, keepdim=True)


def _less_by(height: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def softmax(scores: Tensor) -> Tensor:
        powers = torch.exp(scores - height(scores))
        return powers / powers.sum(-1, keepdim=True)

    return softmax


def _large(generator: Generator) -> tuple[Tensor]:
    """Rows near +10000 and near -10000, with a few units between the scores of a row. In float64: the
    logarithm of the sum of powers has too few digits left in float32, and who takes it is right."""
    height = torch.tensor([[1e4], [-1e4], [0.0]], dtype=torch.float64)
    return (height + tenths(generator, 3, 5),)


def _one_far_above(generator: Generator) -> tuple[Tensor]:
    """Only a row's maximum keeps every power finite. Its mean would do in the last two rows, and the first
    score in one of them."""
    scores = tenths(generator, 4, 5)
    scores[0, 3] += 400.0
    scores[1, :4] -= 400.0
    scores[2, 1] -= 150.0
    scores[3, 0] -= 150.0
    return (scores,)


SOFTMAX = Exercise(
    name=f"{NAME}.softmax",
    title="A softmax that does not overflow",
    points=2,
    difficulty=2,
    minutes=10,
    reference=shared.softmax,
    returns=("weights",),
    distributions=("weights",),
    forbidden=("softmax", "log_softmax", "softmin"),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3),)),
        Case("one row", lambda g: (normal(g, 5),)),
        Case(
            "batch and heads, float64",
            lambda g: (normal(g, 2, 3, 4, 6, dtype=torch.float64),),
        ),
        Case("gradient", lambda g: (normal(g, 3, 5),), gradient=True),
        Case("large scores, float64", _large),
        Case("one score far above the others", _one_far_above),
    ),
    mistakes=(
        Mistake(
            "softmax over the queries",
            shared.softmax_over(-2),
            "The columns sum to 1, not the rows. Each query shares its attention out among the "
            "keys, and the keys are the last axis. Look at dim.",
        ),
        Mistake(
            "softmax over axis 1",
            shared.softmax_over(1),
            "The sum runs over axis 1. That is the last axis of a matrix only: with a batch and "
            "heads in front it is another one. Count from the end.",
        ),
        Mistake(
            "softmax over the first axis",
            shared.softmax_over(0),
            "The sum runs over axis 0. Each query shares its attention out among the keys, and the "
            "keys are the last axis. Look at dim.",
        ),
        Mistake(
            "one softmax over the whole tensor",
            _softmax_everywhere,
            "All entries together sum to 1, as if there were one query. Every row must sum to 1 by "
            "itself: look at the axis of your sum.",
        ),
        Mistake(
            "one sum for the whole tensor",
            _softmax_one_sum,
            "The maximum is each row's own, but all rows are divided by one sum, so that they sum to 1 "
            "together. Every row must do so by itself: look at the axis of your sum.",
        ),
        Mistake(
            "overflow",
            shared.softmax_unstable,
            "exp(10000) is infinite and exp(-10000) is 0, so the division gives NaN. Softmax does "
            "not change when the same number is taken from every score of a row: which number "
            "keeps exp within bounds?",
        ),
        Mistake(
            "one maximum for the whole tensor",
            _softmax_one_maximum,
            "The largest score of the whole tensor is taken from every row. A row that lies far "
            "below it becomes 0/0. Take each row's own maximum.",
        ),
        Mistake(
            "rows of zeros",
            lambda scores: _softmax_one_maximum(scores).nan_to_num(),
            "The largest score of the whole tensor is taken from every row. The powers of a row that lies "
            "far below are all 0 then; a small number in the divisor, or replacing the NaN afterwards, makes "
            "a row of zeros of them. Take each row's own maximum.",
        ),
        Mistake(
            "the row's mean instead of its maximum",
            _less_by(lambda scores: scores.mean(-1, keepdim=True)),
            "The mean of the row is subtracted. A score far above it still overflows: subtract the largest.",
        ),
        Mistake(
            "the row's minimum instead of its maximum",
            _less_by(lambda scores: scores.amin(-1, keepdim=True)),
            "The smallest score of the row is subtracted, and the powers of the others grow. Subtract the "
            "largest, so that no power is above 1.",
        ),
        Mistake(
            "the row's first score instead of its maximum",
            _less_by(lambda scores: scores[..., :1]),
            "The first score of each row is subtracted. Where another one lies far above it, its power still "
            "overflows: subtract the largest.",
        ),
        Mistake(
            "no exponential",
            lambda scores: scores / scores.sum(-1, keepdim=True),
            "The scores themselves are divided by their sum, so weights can be negative and the "
            "sum can be 0. Look for the exponential.",
        ),
        Mistake(
            "not divided by the sum",
            _softmax_by_max,
            "The largest weight of each row is 1: the exponentials are divided by the largest of them, or "
            "by nothing once the largest score is taken away. Divide by their sum.",
        ),
        Mistake(
            "keepdim missing",
            _softmax_no_keepdim,
            "The sum or the maximum of each row has lost its axis, so it meets the scores on the "
            "wrong one. Look at keepdim.",
        ),
        Mistake(
            "scores changed in place",
            _softmax_in_place,
            "The maximum is taken away from scores itself, as scores -= ... does. Whoever called "
            "your function now holds other scores. Make a new tensor.",
        ),
        Mistake(
            "sign turned",
            lambda scores: shared.softmax(-scores),
            "The lowest score gets the largest weight. Look at the sign in the exponent.",
        ),
        Mistake(
            "logarithms instead of weights",
            _softmax_log,
            "These are the logarithms of the weights. They are at most 0; weights lie between 0 and 1.",
        ),
        Mistake(
            "sigmoid instead of softmax",
            torch.sigmoid,
            "Each score is squeezed between 0 and 1 by itself. In a softmax the scores of a row "
            "compete: look at what you divide by.",
        ),
        Mistake(
            "powers of 2",
            lambda scores: shared.softmax(scores * 0.6931471805599453),
            "The base is 2 instead of e. Look at the function that raises to a power.",
        ),
    ),
    hints=(
        "Softmax of a row is exp(score) over the sum of exp(score) along that row. Which axis holds "
        "the scores of one query?",
        "Sum over dim=-1 and keep that axis (keepdim=True), so that each row is divided by its own "
        "sum. Then try torch.tensor([10000.0, 9999.0]).",
        "Before exp, take from each row its own maximum (amax over the last axis, which is kept), and "
        "put the difference into a new tensor. The largest exponent is then 0.",
    ),
)

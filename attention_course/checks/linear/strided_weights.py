"""Exercise 3: a strided mask."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import loud, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.linear.shared import NAME


def _behind(scores: Tensor) -> Tensor:
    """How far each key stands behind each query; negative: in front."""
    positions = torch.arange(scores.shape[-1])
    return positions[:, None] - positions


def _strided(
    may_look: Callable[[Tensor, Tensor], Tensor],
    softmax: Callable[[Tensor, Tensor], Tensor] = lambda scores, mask: scores.masked_fill(
        ~mask, -torch.inf
    ).softmax(-1),
) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, stride: softmax(scores, may_look(_behind(scores), stride))


def _right_mask(behind: Tensor, stride: Tensor) -> Tensor:
    return (behind >= 0) & (behind % stride == 0)


def _strided_weights(scores: Tensor, stride: Tensor) -> Tensor:
    return scores.masked_fill(~_right_mask(_behind(scores), stride), -torch.inf).softmax(-1)


def _renormed(scores: Tensor, mask: Tensor) -> Tensor:
    weights = scores.softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True)


def _without_maximum(scores: Tensor, mask: Tensor) -> Tensor:
    powers = scores.exp() * mask
    return powers / powers.sum(-1, keepdim=True)


def _strided_in_place(scores: Tensor, stride: Tensor) -> Tensor:
    return scores.masked_fill_(~_right_mask(_behind(scores), stride), -torch.inf).softmax(-1)


def _grid(behind: Tensor, stride: Tensor) -> Tensor:
    return (behind >= 0) & (torch.arange(len(behind)) % stride == 0).expand_as(behind)


def _rows(behind: Tensor, stride: Tensor) -> Tensor:
    return (behind >= 0) & (torch.arange(len(behind)) % stride == 0)[:, None]


def _blocks(behind: Tensor, stride: Tensor) -> Tensor:
    block = torch.arange(len(behind)) // stride
    return (behind >= 0) & (block[:, None] == block)


def _strided_inputs(
    generator: Generator, *leading: int, T: int, stride: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    return normal(generator, *leading, T, T, dtype=dtype), torch.tensor(stride)


def _one_row_far_below(generator: Generator) -> tuple[Tensor, Tensor]:
    """One query's scores lie so far below all others that their exponentials beside those are 0."""
    scores, stride = _strided_inputs(generator, 2, T=5, stride=2, dtype=torch.float64)
    scores[..., 3, :] -= 900.0
    return scores, stride


def _loud(generator: Generator) -> tuple[Tensor, Tensor]:
    scores, stride = _strided_inputs(generator, 2, T=7, stride=3)
    return loud(scores, _right_mask(_behind(scores), stride)), stride


STRIDED_WEIGHTS = Exercise(
    name=f"{NAME}.strided_weights",
    title="Every so many words",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_strided_weights,
    returns=("weights",),
    distributions=("weights",),
    hidden=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 5, 5), torch.tensor(2))),
        Case("batch and heads", lambda g: _strided_inputs(g, 2, 3, T=8, stride=3)),
        Case("stride of 1", lambda g: _strided_inputs(g, 4, T=4, stride=1)),
        Case("stride longer than the text", lambda g: _strided_inputs(g, 2, T=4, stride=6)),
        Case("float64", lambda g: _strided_inputs(g, 2, T=9, stride=4, dtype=torch.float64)),
        Case("what is hidden scores high", _loud),
        Case("one query's scores far below all others, float64", _one_row_far_below),
        Case("gradient", lambda g: _strided_inputs(g, 2, T=6, stride=2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "future seen",
            _strided(lambda behind, stride: behind % stride == 0),
            "Keys in front of the query are seen as well. The pattern is causal: only keys up to the "
            "query, every stride-th of them.",
        ),
        Mistake(
            "keys on a fixed grid",
            _strided(lambda behind, stride: _grid(behind, stride) | (behind == 0)),
            "Every query sees the keys 0, stride, 2·stride, ... and itself. The steps are counted from "
            "the query: look at i - j, not at j.",
        ),
        Mistake(
            "window",
            _strided(lambda behind, stride: (behind >= 0) & (behind < stride)),
            "Each query sees the last few keys, one after the other. That is a window. The stride is the "
            "step from one visible key to the next.",
        ),
        Mistake(
            "window as well",
            _strided(lambda behind, stride: (behind >= 0) & ((behind < stride) | (behind % stride == 0))),
            "The keys near the query are visible too. That is the merged head, which sees both halves of "
            "the pattern; here only the strided half is asked for.",
        ),
        Mistake(
            "blocks",
            _strided(_blocks),
            "Each query sees the keys of its own block. That is half of the fixed pattern. Look at the "
            "remainder of i - j, not at the quotients.",
        ),
        Mistake(
            "step too long by one",
            _strided(lambda behind, stride: (behind >= 0) & (behind % (stride + 1) == 0)),
            "The step is stride + 1: that many keys lie between two visible ones. With a stride of 1 "
            "every earlier key is visible.",
        ),
        Mistake(
            "query itself hidden",
            _strided(lambda behind, stride: (behind > 0) & (behind % stride == 0)),
            "A query does not see itself, and the first ones see nothing, hence the NaN. Zero strides "
            "back is a whole number of strides.",
        ),
        Mistake(
            "query itself hidden, NaN replaced",
            _strided(
                lambda behind, stride: (behind > 0) & (behind % stride == 0),
                lambda scores, mask: scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(),
            ),
            "A query does not see itself, and the first ones, which see nothing, get 0. Every row has to sum "
            "to 1: zero strides back is a whole number of strides.",
        ),
        Mistake(
            "one stride back alone",
            _strided(lambda behind, stride: (behind == 0) | (behind == stride)),
            "A query sees itself and the key one stride before it. It goes on so, stride by stride, to the "
            "beginning of the text.",
        ),
        Mistake(
            "counted off by one",
            _strided(lambda behind, stride: (behind >= 0) & ((behind + 1) % stride == 0)),
            "A query sees the key stride - 1 places before it, and then every stride-th one. Zero strides "
            "back is the query itself: count distances from 0.",
        ),
        Mistake(
            "every stride-th query",
            _strided(_rows),
            "Some queries see all of their past, and the others see nothing, hence the NaN. The remainder is "
            "that of the distance i - j, not of i.",
        ),
        Mistake(
            "upper triangle",
            _strided(lambda behind, stride: (behind <= 0) & (behind % stride == 0)),
            "Each query sees itself and keys after it. Queries go down and keys across, so the past lies "
            "below the diagonal.",
        ),
        Mistake(
            "inverted mask",
            _strided(lambda behind, stride: ~_right_mask(behind, stride)),
            "What should be visible is hidden and the other way round: masked_fill fills where its mask "
            "is True.",
        ),
        Mistake(
            "no stride",
            _strided(lambda behind, stride: behind >= 0),
            "That is the causal mask alone. Keep of each row only every stride-th key, counted back "
            "from the query.",
        ),
        Mistake(
            "mask after softmax",
            _strided(_right_mask, lambda scores, mask: scores.softmax(-1).masked_fill(~mask, 0.0)),
            "Hidden keys get no weight, but the rows no longer sum to 1. Look at what comes first, mask "
            "or softmax.",
        ),
        Mistake(
            "renormed after softmax",
            _strided(_right_mask, _renormed),
            "Hidden keys are taken out after the exponential, and the row is divided by what is left. Where "
            "hidden scores are far larger nothing is left, and 0 is divided by 0. Hide scores, before the "
            "softmax; a largest score that you subtract is that of those that may be seen.",
        ),
        Mistake(
            "one largest score for all rows, or none",
            _strided(_right_mask, _without_maximum),
            "All is right but where a row's scores are far from 0, or far below those of other rows: there "
            "exponentials are infinite, or all that count are 0. From each row its largest is subtracted "
            "first, and it is that of the keys that may be seen.",
        ),
        Mistake(
            "zero as a score",
            _strided(_right_mask, lambda scores, mask: scores.masked_fill(~mask, 0.0).softmax(-1)),
            "Hidden keys have the score 0, which is a score like any other: exp(0) = 1.",
        ),
        Mistake(
            "softmax over the queries",
            _strided(_right_mask, lambda scores, mask: scores.masked_fill(~mask, -torch.inf).softmax(-2)),
            "The columns sum to 1 and the rows do not. Softmax runs over the keys, the last axis.",
        ),
        Mistake(
            "scores changed in place",
            _strided_in_place,
            "The result is right, but -inf is written into scores itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Write down the keys that query 7 sees with a stride of 3: 7, 4, 1. What have 7 - j in common?",
        "The queries' places as a column and the keys' places as a row broadcast to [T, T]. Of their "
        "difference, the remainder by stride tells whether a key is seen.",
        "And no key lies ahead of its query: join both conditions by &. Where they do not hold the "
        "scores become -inf; then softmax over the keys.",
    ),
)

"""Exercise 2: two partial answers."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.kernels.shared import NAME


def _shares(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(lse_a, lse_b)
    return (lse_a - lse).exp(), (lse_b - lse).exp()


def _raw_shares(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = lse_a.exp(), lse_b.exp()
    return a / (a + b), b / (a + b)


def _powers_from_the_maximum(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    m = torch.maximum(lse_a, lse_b)
    return (lse_a - m).exp(), (lse_b - m).exp()


def _logarithms_as_shares(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return lse_a / (lse_a + lse_b), lse_b / (lse_a + lse_b)


def _winner(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    first = (lse_a >= lse_b).to(lse_a.dtype)
    return first, 1 - first


def _relative_to_a(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    ratio = (lse_b - lse_a).exp()
    return 1 / (1 + ratio), ratio / (1 + ratio)


def _from_one_maximum(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.maximum(lse_a.max(), lse_b.max())
    return m, (lse_a - m).exp(), (lse_b - m).exp()


def _shares_from_one_maximum(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    _, a, b = _from_one_maximum(lse_a, lse_b)
    return a / (a + b), b / (a + b)


def _lse_from_one_maximum(lse_a: Tensor, lse_b: Tensor) -> Tensor:
    m, a, b = _from_one_maximum(lse_a, lse_b)
    return m + (a + b).log()


def _shares_without_weights(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = _powers_from_the_maximum(lse_a, lse_b)
    return 1 / (a + b), 1 / (a + b)


def _shares_over_queries(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return lse_a.softmax(-1), lse_b.softmax(-1)


def _without_the_maximum_added(lse_a: Tensor, lse_b: Tensor) -> Tensor:
    a, b = _powers_from_the_maximum(lse_a, lse_b)
    return (a + b).log()


def _merging(
    shares: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = _shares,
    together: Callable[[Tensor, Tensor], Tensor] = torch.logaddexp,
) -> Callable[..., tuple[Tensor, Tensor]]:
    def merge(context_a: Tensor, lse_a: Tensor, context_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = shares(lse_a, lse_b)
        return a[..., None] * context_a + b[..., None] * context_b, together(lse_a, lse_b)

    return merge


def _merge(context_a: Tensor, lse_a: Tensor, context_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(lse_a, lse_b)
    return (lse_a - lse).exp()[..., None] * context_a + (lse_b - lse).exp()[..., None] * context_b, lse


def _parts(
    generator: Generator, *shape: int, d_v: int, around: float = 0.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Two contexts with their log-sum-exps, which lie about 1 apart."""
    return tuple(
        tensor
        for _ in range(2)
        for tensor in (
            normal(generator, *shape, d_v, dtype=dtype),
            around + normal(generator, *shape, dtype=dtype),
        )
    )


def _one_saw_nothing(generator: Generator) -> tuple[Tensor, ...]:
    """The first half in one row, the second in two others."""
    context_a, lse_a, context_b, lse_b = _parts(generator, 4, d_v=3)
    first, second = torch.tensor([[False, True, False, False], [True, False, True, False]])
    context_a, lse_a = context_a.masked_fill(first[:, None], 0.0), lse_a.masked_fill(first, -torch.inf)
    context_b, lse_b = context_b.masked_fill(second[:, None], 0.0), lse_b.masked_fill(second, -torch.inf)
    return context_a, lse_a, context_b, lse_b


def _far_apart(generator: Generator) -> tuple[Tensor, ...]:
    """Either half far above the other, then both high and both low."""
    context_a, lse_a, context_b, lse_b = _parts(generator, 4, d_v=3, dtype=torch.float64)
    signs = torch.tensor([[-1, 1, 1, -1], [1, -1, 1, -1]])
    return context_a, lse_a + 450 * signs[0], context_b, lse_b + 450 * signs[1]


MERGE = Exercise(
    name=f"{NAME}.merge",
    title="Two halves of the keys",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_merge,
    returns=("context", "lse"),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 2, 2), 3 + tenths(g, 2), tenths(g, 2, 2), 3 + tenths(g, 2)),
        ),
        Case("batch and heads", lambda g: _parts(g, 2, 3, 4, d_v=5)),
        Case("as many queries as values are wide", lambda g: _parts(g, 4, d_v=4)),
        Case("one of them saw nothing", _one_saw_nothing),
        Case("log-sum-exps in the hundreds", lambda g: _parts(g, 3, d_v=2, around=400.0)),
        Case("far below zero, float64", lambda g: _parts(g, 3, d_v=2, around=-900.0, dtype=torch.float64)),
        Case("log-sum-exps 900 apart, float64", _far_apart),
        Case("gradient", lambda g: _parts(g, 2, 3, d_v=4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "plain average",
            _merging(lambda a, b: (torch.full_like(a, 0.5), torch.full_like(b, 0.5))),
            "Both halves count the same. The half whose keys match better must count more: its share is "
            "exp(its lse), divided by the sum of both.",
        ),
        Mistake(
            "contexts added",
            _merging(lambda a, b: (torch.ones_like(a), torch.ones_like(b))),
            "The contexts are simply added. Each is an average already; the two shares must sum to 1.",
        ),
        Mistake(
            "shares exchanged",
            _merging(lambda a, b: _shares(b, a)),
            "Each context gets the other one's share. Look at which lse goes with which context.",
        ),
        Mistake(
            "logarithms as shares",
            _merging(_logarithms_as_shares),
            "The shares are lse_a / (lse_a + lse_b). An lse is a logarithm and may be negative: shares "
            "are made of the exponentials.",
        ),
        Mistake(
            "not divided by both",
            _merging(_powers_from_the_maximum),
            "The shares are exp(lse - larger lse), which sum to more than 1. Divide by the sum of both.",
        ),
        Mistake(
            "the larger one takes all",
            _merging(_winner),
            "The context of the half with the larger lse is returned. The other half has weight, too.",
        ),
        Mistake(
            "exponentials that overflow",
            _merging(_raw_shares, lambda a, b: (a.exp() + b.exp()).log()),
            "exp(lse) overflows when scores are in the hundreds, and is 0 far below. Only differences may "
            "be exponentiated: subtract something first, such as the larger of the two.",
        ),
        Mistake(
            "shares that overflow",
            _merging(_raw_shares),
            "lse is right, but the shares are made of exp(lse), which overflows when scores are in the "
            "hundreds. exp(lse_a - lse) cannot.",
        ),
        Mistake(
            "relative to the first half alone",
            _merging(_relative_to_a, lambda a, b: a + (1 + (b - a).exp()).log()),
            "Everything is counted relative to lse_a. Where that is far below the other one, or -∞, the "
            "exponential of the difference is infinite. Which of the two is safe to subtract, row by row?",
        ),
        Mistake(
            "one maximum for all queries",
            _merging(_shares_from_one_maximum, _lse_from_one_maximum),
            "The largest lse of all queries is subtracted from each. Where both of a query's own lie far "
            "below it, 0 is divided by 0. Each query needs the larger of its own two.",
        ),
        Mistake(
            "softmax over the queries",
            _merging(_shares_over_queries),
            "The shares are a softmax over the queries. A query's two halves share 1 between them: look at "
            "the axis along which the two lse are stacked, and at dim.",
        ),
        Mistake(
            "contexts added without their powers",
            _merging(_shares_without_weights),
            "The contexts are added as they are, and divided by the sum of both powers. Each has to be "
            "multiplied by its own power first.",
        ),
        Mistake(
            "lse added",
            _merging(together=torch.add),
            "The two lse are added. Sums of exponentials add up, not their logarithms.",
        ),
        Mistake(
            "larger lse kept",
            _merging(together=torch.maximum),
            "The larger of the two lse is returned. It lacks what the other half adds: up to log 2.",
        ),
        Mistake(
            "maximum not added back",
            _merging(together=_without_the_maximum_added),
            "lse is the logarithm of the sum of exp(lse - larger lse). The larger lse, which was "
            "subtracted inside, has to be added again outside.",
        ),
        Mistake(
            "mean of the exponentials",
            _merging(together=lambda a, b: torch.logaddexp(a, b) - math.log(2)),
            "lse is too small by log 2: you take the mean of the two exponentials, not their sum.",
        ),
    ),
    hints=(
        "If l_a and l_b were the two sums of exponentials, o_a = l_a · context_a would be the undivided "
        "answer. Add numerators, add denominators, divide.",
        "exp(lse) is that sum, but it may overflow. torch.logaddexp(lse_a, lse_b) is the logarithm of the "
        "sum of both, and never leaves the safe range.",
        "The share of a half is exp of its own lse minus the common one. Give it an axis for d_v.",
    ),
)

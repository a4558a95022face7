"""Exercise 2: two parts become one."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.ring import shared
from attention_course.checks.ring.shared import NAME


def _merge_by_sums(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = lse_a.exp(), lse_b.exp()
    return (a[..., None] * out_a + b[..., None] * out_b) / (a + b)[..., None], (a + b).log()


def _one_maximum(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """One maximum for all queries; where both weights are 0 beside it, so is out."""
    top = torch.maximum(lse_a, lse_b).max()
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    total = a + b
    out = (a[..., None] * out_a + b[..., None] * out_b) / total.masked_fill(total == 0, 1.0)[..., None]
    return out, top + total.log()


def _stand_in(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Some low number in the place of -inf, lower than most."""
    a, b = (lse.masked_fill(lse == -shared.INF, -100.0) for lse in (lse_a, lse_b))
    share = (a - b).sigmoid()[..., None]
    return share * out_a + (1 - share) * out_b, torch.logaddexp(lse_a, lse_b)


def _lse_with_an_axis_too_many(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    out, lse = shared.merge(out_a, lse_a, out_b, lse_b)
    return out, lse[..., None]


def _merged_in_place(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = shared.merge(out_a, lse_a, out_b, lse_b)
    return out_a.copy_(out), lse


def _parts(
    generator: Generator, *leading: int, T_q: int = 4, d_v: int = 3, dtype: torch.dtype = torch.float32
) -> Inputs:
    shapes = ((T_q, d_v), (T_q,), (T_q, d_v), (T_q,))
    return tuple(normal(generator, *leading, *shape, dtype=dtype) for shape in shapes)


def _tenth_parts(generator: Generator) -> Inputs:
    shapes = ((3, 2), (3,), (3, 2), (3,))
    return tuple(tenths(generator, *shape) for shape in shapes)


def _shifted(generator: Generator, by: float) -> Inputs:
    out_a, lse_a, out_b, lse_b = _parts(generator, 2)
    return out_a, lse_a + by, out_b, lse_b + by


def _unequal(generator: Generator) -> Inputs:
    """One part weighs e^200 times as much as the other, once this way, once that."""
    out_a, lse_a, out_b, lse_b = _parts(generator, T_q=2)
    return out_a, lse_a + torch.tensor([100.0, -100.0]), out_b, lse_b - torch.tensor([100.0, -100.0])


def _rows_far_apart(generator: Generator) -> Inputs:
    """Around 1000, 0 and -1000: beside the first, exp of the others is 0 in float64, too."""
    out_a, lse_a, out_b, lse_b = _parts(generator, 2, T_q=3, dtype=torch.float64)
    level = torch.tensor([1000.0, 0.0, -1000.0], dtype=torch.float64)
    return out_a, lse_a + level, out_b, lse_b + level


def _nothing_to_see(
    generator: Generator, *blind: tuple[bool, bool], by: float = 0.0, dtype: torch.dtype = torch.float32
) -> Inputs:
    """One row for each pair: is the query blind in the first part, and in the second?"""
    out_a, lse_a, out_b, lse_b = _parts(generator, 2, T_q=len(blind), dtype=dtype)
    lse_a, lse_b = lse_a + by, lse_b + by
    in_a, in_b = (torch.tensor(column) for column in zip(*blind, strict=True))
    return (
        out_a.masked_fill(in_a[:, None], 0.0),
        lse_a.masked_fill(in_a, -shared.INF),
        out_b.masked_fill(in_b[:, None], 0.0),
        lse_b.masked_fill(in_b, -shared.INF),
    )


MERGE = Exercise(
    name=f"{NAME}.merge",
    title="Two parts become one",
    points=3,
    difficulty=3,
    minutes=20,
    reference=shared.merge,
    returns=("out", "lse"),
    cases=(
        Case("one decimal", _tenth_parts),
        Case("sentences and heads", lambda g: _parts(g, 2, 3)),
        Case("as many queries as columns", lambda g: _parts(g, 2, T_q=3, d_v=3)),
        Case("large scores", lambda g: _shifted(g, 200.0)),
        Case("small scores", lambda g: _shifted(g, -200.0)),
        Case("one part outweighs the other", _unequal),
        Case(
            "a query that sees nothing in one part",
            lambda g: _nothing_to_see(g, (False, False), (True, False), (False, True)),
        ),
        Case(
            "a query that sees nothing at all",
            lambda g: _nothing_to_see(g, (False, False), (True, True), (False, True)),
        ),
        # lower than whatever number somebody puts in the place of -inf
        Case(
            "a query that sees nothing in one part, small scores",
            lambda g: _nothing_to_see(g, (True, False), (False, True), by=-20_000.0, dtype=torch.float64),
        ),
        Case("rows far apart, float64", _rows_far_apart),
        Case("float64", lambda g: _parts(g, 2, dtype=torch.float64)),
        Case("gradient", lambda g: _parts(g, 2), gradient=True),
        # out of what is blind in both parts has whatever derivative one's way to 0 has
        Case(
            "gradient where nothing is seen",
            lambda g: _nothing_to_see(g, (False, False), (True, False), (False, True), (True, True)),
            finite=True,
        ),
    ),
    mistakes=(
        Mistake(
            "plain mean",
            shared.merged(share=lambda a, b: torch.full_like(a, 0.5)),
            "out is the mean of the two outs. It would be right if both parts weighed the same. How "
            "much each weighs is what lse says.",
        ),
        Mistake(
            "outs added",
            shared.merged(share=lambda a, b: torch.ones_like(a)),
            "The two outs are added. Each is a mixture whose weights sum to 1; together they would sum to 2.",
        ),
        Mistake(
            "lse as shares",
            shared.merged(share=lambda a, b: a / (a + b)),
            "The shares are lse_a / (lse_a + lse_b). These are logarithms, and may be negative: "
            "exponentiate before you compare.",
        ),
        Mistake(
            "shares exchanged",
            shared.merged(share=lambda a, b: (b - torch.logaddexp(a, b)).exp()),
            "Each out gets the share of the other part. The part with the larger lse gets more.",
        ),
        Mistake(
            "shares not divided",
            shared.merged(share=lambda a, b: (a - torch.maximum(a, b)).exp()),
            "out is weighted by exp(lse - m), but not divided by the sum of both weights. They have to "
            "add up to 1.",
        ),
        Mistake(
            "scores exponentiated twice",
            shared.merged(share=lambda a, b: a.exp().exp() / (a.exp().exp() + b.exp().exp())),
            "The shares are a softmax of the sums. The sums themselves are in proportion: exp(lse_a) to "
            "exp(lse_b).",
        ),
        Mistake(
            "sums without a maximum",
            _merge_by_sums,
            "Right for small numbers. exp(lse) overflows from 89 on, and is 0 below about -104: work "
            "with differences, exp(lse_a - lse), or take the larger one away first.",
        ),
        Mistake(
            "one maximum for all queries",
            _one_maximum,
            "You take away the largest lse of all queries. A query whose own two lie far below it has only "
            "zeros left. Every query needs its own maximum, that of its two parts.",
        ),
        Mistake(
            "maximum not added again",
            shared.merged(lse=lambda a, b: torch.logaddexp(a, b) - torch.maximum(a, b)),
            "out is right. You take the larger lse away before exp, as you should, but the result lacks it: "
            "after the logarithm it has to come back.",
        ),
        Mistake(
            "an axis too many",
            _lse_with_an_axis_too_many,
            "lse has an axis of length 1 behind the queries. For the product with out it is needed, in the "
            "result it is not: one number for each query.",
        ),
        Mistake(
            "a low number in the place of -inf",
            _stand_in,
            "For the shares you put a low number in the place of -inf. Where the other part's lse is lower "
            "still, the part that has seen nothing wins. An lse may be any number: only -inf lies below all.",
        ),
        Mistake(
            "-inf made finite",
            shared.said_as_finite,
            "A query that sees nothing in either part gets the smallest number there is for its lse, as "
            "nan_to_num makes of -inf. Its lse stays -inf.",
        ),
        Mistake(
            "lse added",
            shared.merged(lse=lambda a, b: a + b),
            "lse is lse_a + lse_b. The sums of exponentials add up, not their logarithms: adding those "
            "would multiply the sums.",
        ),
        Mistake(
            "larger lse",
            shared.merged(lse=torch.maximum),
            "lse is the larger of the two. With two parts that weigh the same it should be larger by log 2.",
        ),
        Mistake(
            "mean of the lse",
            shared.merged(lse=lambda a, b: torch.logaddexp(a, b) - torch.tensor(2.0).log()),
            "lse is that of the mean of both sums. They are to be added: the next merge needs to know "
            "how much both parts weigh together.",
        ),
        Mistake(
            "nothing minus nothing",
            shared.no_guard,
            "A query that sees nothing in either part has lse = -inf twice, and -inf minus -inf is NaN. "
            "Its out is 0 and its lse stays -inf: put some finite number in its place before you "
            "subtract.",
        ),
        Mistake(
            "nothing minus nothing, by the maximum",
            shared.by_the_maximum,
            "A query that sees nothing in either part has a maximum of -inf, and -inf minus -inf is NaN, in "
            "out and in lse. Put some finite number in its place before you subtract; its out is 0 and its "
            "lse stays -inf.",
        ),
        Mistake(
            "state changed in place",
            _merged_in_place,
            "The result is written into out_a. Make a new tensor.",
        ),
    ),
    hints=(
        "Undo the divisions first: exp(lse_a) · out_a is the part's sum of exponentials times values. "
        "These sums may be added. Then divide by the sum of both.",
        "So out = exp(lse_a - lse) · out_a + exp(lse_b - lse) · out_b, with lse the logarithm of "
        "exp(lse_a) + exp(lse_b): torch.logaddexp. A factor for each query needs [..., None].",
        "Where both are -inf, masked_fill lse_a and lse_b with 0 first: the outs are 0 whatever "
        "their factors. At the end masked_fill lse with -inf there.",
    ),
)

"""Exercise 3: a query that may look nowhere."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.masks import shared
from attention_course.checks.masks.shared import NAME


def _zeros_where_anything_is_hidden(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).any(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _blind_keys(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(-2, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _over_queries(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-2).masked_fill(blind, 0.0)


def _hidden_as_zero(scores: Tensor) -> Tensor:
    hidden = scores == -torch.inf
    return scores.masked_fill(hidden, 0.0).softmax(-1).masked_fill(hidden, 0.0)


def _zeros_if_anyone_is_blind(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(-1).any()
    return torch.zeros_like(scores) if blind else scores.softmax(-1)


def _blind_together(scores: Tensor) -> Tensor:
    """A row is blind in all matrices of the batch or in none."""
    blind = (scores == -torch.inf).reshape(-1, *scores.shape[-2:]).all(0).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _one_maximum(scores: Tensor) -> Tensor:
    powers = (scores - scores.max()).exp()
    return powers / powers.sum(-1, keepdim=True).clamp_min(1e-9)


def _powers_over_sum(scores: Tensor) -> Tensor:
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True).clamp_min(1e-9)


def _safe_in_place(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill_(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _with_blind_rows(scores: Tensor, *visible: int) -> Tensor:
    """Hide all but the first ``visible[i]`` keys of row i; 0 hides the whole row. From one matrix of a batch
    to the next these numbers move on by a row."""
    leading, (T_q, T_k) = scores.shape[:-2], scores.shape[-2:]
    first = torch.arange(T_q) - torch.arange(leading.numel())[:, None]
    seen = torch.arange(T_k) < torch.tensor(visible)[first % T_q].view(*leading, T_q, 1)
    return scores.masked_fill(~seen, -torch.inf)


def _steps_down(generator: Generator) -> Tensor:
    """Scores of which each row, and each batch member, lies 200 below the one before."""
    return normal(generator, 2, 4, 4) - 200.0 * torch.arange(8).view(2, 4, 1)


SAFE_SOFTMAX = Exercise(
    name=f"{NAME}.safe_softmax",
    title="A query that may look nowhere",
    points=3,
    difficulty=3,
    minutes=15,
    reference=shared.safe_softmax,
    returns=("weights",),
    hidden=("weights",),
    cases=(
        Case("one decimal", lambda g: (_with_blind_rows(tenths(g, 3, 3), 2, 0, 3),)),
        Case("nobody is blind", lambda g: (normal(g, 4, 5),)),
        Case(
            "batch and heads, float64",
            lambda g: (_with_blind_rows(normal(g, 2, 3, 4, 6, dtype=torch.float64), 0, 1, 6, 0),),
        ),
        Case("keys nobody sees", lambda g: (_with_blind_rows(normal(g, 3, 4), 2, 0, 1),)),
        Case("large scores, float64", lambda g: (_with_blind_rows(tenths(g, 3, 4).double() + 1e4, 4, 0, 2),)),
        Case("a row far below the others", lambda g: (_with_blind_rows(_steps_down(g), 4, 0, 2, 3),)),
        Case(
            "gradient",
            lambda g: (_with_blind_rows(normal(g, 4, 5), 3, 0, 5, 1),),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "NaN rows",
            lambda scores: scores.softmax(-1),
            "A row of nothing but -inf is 0/0 in softmax, hence NaN. Such a row needs a score to "
            "work with first, and a weight of 0 afterwards.",
        ),
        Mistake(
            "NaN replaced afterwards",
            lambda scores: scores.softmax(-1).nan_to_num(0.0),
            "The weights are right, and training would break: nan_to_num hides a NaN that has arisen, and "
            "the softmax's derivative is taken at it. Give blind rows a harmless score before it.",
        ),
        Mistake(
            "uniform rows",
            lambda scores: scores.clamp_min(-1e9).softmax(-1),
            "A blind query spreads its attention evenly over what it must not see. That is what a "
            "large negative number in the place of -inf does: all masked scores are equal again.",
        ),
        Mistake(
            "zeros wherever anything is hidden",
            _zeros_where_anything_is_hidden,
            "Every row with a hidden key becomes 0. Only rows in which all keys are hidden may: look "
            "at any and all.",
        ),
        Mistake(
            "looking for hidden keys, not blind queries",
            _blind_keys,
            "You look for columns of -inf: keys nobody sees. A query that sees nothing is a row. "
            "Look at the axis.",
        ),
        Mistake(
            "zeros for everybody",
            _zeros_if_anyone_is_blind,
            "As soon as one query is blind, all weights become 0. Only its own row may: which axis does your "
            "question run over?",
        ),
        Mistake(
            "one answer for all sentences",
            _blind_together,
            "A row counts as blind only if it is so in every sentence and head, and stays NaN elsewhere. "
            "Each has its own blind rows: keep the axes in front.",
        ),
        Mistake(
            "hidden scores made 0 in every row",
            _hidden_as_zero,
            "Every -inf becomes 0 before softmax, also in rows that see something. There the hidden keys "
            "take their share, exp(0) = 1 each, and the rest sums to less than 1. Only blind rows need "
            "another score.",
        ),
        Mistake(
            "not the row's own maximum",
            _one_maximum,
            "Where a row lies far below 0, or below the other rows, all its exponentials are 0, and it is "
            "taken for blind. What is subtracted must be the row's own largest score.",
        ),
        Mistake(
            "softmax over the queries",
            lambda scores: shared.safe_softmax(scores.mT).mT,
            "The columns sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "softmax over the queries, zeros in blind rows",
            _over_queries,
            "The blind rows are found, but softmax runs down the columns: the queries compete for a key. "
            "Look at its dim.",
        ),
        Mistake(
            "overflow",
            _powers_over_sum,
            "A small number under the fraction saves the blind rows, but without the row's maximum "
            "the exponential overflows. Use softmax, on rows that have something to work with.",
        ),
        Mistake(
            "scores changed in place",
            _safe_in_place,
            "scores itself is overwritten, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "First find the blind rows, those whose scores are -inf for all keys. Keep the keys' axis, with "
        "length 1, and the mask broadcasts over the row.",
        "Replacing NaN by 0 after softmax gives the right weights and NaN gradients: the derivative "
        "of softmax is taken at its own result, and that is NaN. The NaN must never arise.",
        "Give the blind rows a harmless score, such as 0, before softmax, and weights of 0 after it. "
        "masked_fill does both, with the same mask.",
    ),
)

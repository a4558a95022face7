"""Exercise 2: padding."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import loud, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.masks import shared
from attention_course.checks.masks.shared import NAME


def _padding(
    may_look: Callable[[Tensor], Tensor] = shared.keys,
    softmax: Callable[[Tensor, Tensor], Tensor] = shared.by_infinity,
) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, real: softmax(scores, may_look(real))


def _padding_weights(scores: Tensor, real: Tensor) -> Tensor:
    return shared.by_infinity(scores, shared.keys(real))


def _padding_in_place(scores: Tensor, real: Tensor) -> Tensor:
    return scores.masked_fill_(~shared.keys(real), -torch.inf).softmax(-1)


def _far_below(generator: Generator) -> tuple[Tensor, Tensor]:
    real = shared.real_keys(4, 2, 3)
    return shared.far_below(tenths(generator, 2, 3, 4, 4), shared.keys(real)), real


def _loud(generator: Generator) -> tuple[Tensor, Tensor]:
    real = shared.real_keys(5, 4, 2)
    return loud(normal(generator, 2, 3, 4, 5), shared.keys(real)), real


PADDING_WEIGHTS = Exercise(
    name=f"{NAME}.padding_weights",
    title="Nobody reads the padding",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_padding_weights,
    returns=("weights",),
    distributions=("weights",),
    hidden=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 1, 1, 3, 3), shared.real_keys(3, 2))),
        Case("as many queries as keys", lambda g: (normal(g, 3, 2, 5, 5), shared.real_keys(5, 5, 3, 1))),
        Case("cross-attention", lambda g: (normal(g, 2, 3, 4, 7), shared.real_keys(7, 6, 2))),
        Case("as many sentences as heads", lambda g: (normal(g, 3, 3, 4, 4), shared.real_keys(4, 4, 1, 2))),
        Case(
            "padding in front",
            lambda g: (normal(g, 2, 3, 5, 5), shared.real_keys(5, 3, 4).flip(-1).long()),
        ),
        Case("scores below -1e9, float64", _far_below),
        Case("padding scores high", _loud),
        Case("gradient", lambda g: (normal(g, 2, 3, 4, 6), shared.real_keys(6, 4, 6).long()), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no mask",
            lambda scores, real: scores.softmax(-1),
            "Padding gets weight like any word. Look for real: is it used?",
        ),
        Mistake(
            "inverted mask",
            _padding(lambda real: ~shared.keys(real)),
            "The words are hidden and the padding is seen. masked_fill fills where its mask is True: "
            "is yours True at words or at padding?",
        ),
        Mistake(
            "padding over queries instead of keys",
            _padding(lambda real: real.bool()[:, None, :, None]),
            "Whole rows are hidden: those of the padded queries, which become NaN. What has to be "
            "hidden is a column, whoever asks. Look at which of the last two axes real is laid along.",
        ),
        Mistake(
            "padding over queries and keys",
            _padding(lambda real: real.bool()[:, None, :, None] & shared.keys(real)),
            "The padded keys are hidden, and the rows of the padded queries as well; those have "
            "nothing left and become NaN. Nobody reads a padded query's row: leave it alone.",
        ),
        Mistake(
            "sentences laid along the heads",
            _padding(lambda real: real.bool()[None, :, None, :]),
            "real has no axis for the heads, or has it at the wrong place, so broadcasting lays the "
            "sentences along the heads. With as many sentences as heads nothing raises. Where does "
            "the axis of length 1 belong?",
        ),
        Mistake(
            "the first sentence's padding for all",
            _padding(lambda real: shared.keys(real[:1])),
            "Every sentence is masked as the first one is. Look for an index 0 or a batch axis that "
            "was lost.",
        ),
        Mistake(
            "mask after softmax",
            _padding(softmax=shared.zeroed_after),
            "Padding gets no weight, but the rows no longer sum to 1: softmax has already shared "
            "out to it. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "zero as a score",
            _padding(softmax=shared.filled(0.0)),
            "Padding has the score 0, by filling or by multiplying, and exp(0) = 1. Which score has "
            "the exponential 0?",
        ),
        Mistake(
            "-1e9 as a score",
            _padding(softmax=shared.filled(-1e9)),
            "Padding has a finite score, such as -1e9. In one case words score lower than that, and there "
            "padding gets all the weight. Which score is lower than all others?",
        ),
        Mistake(
            "-1e9 added to the scores",
            _padding(softmax=shared.lowered(1e9)),
            "A number such as 1e9 is taken off the scores of padding. In one case they are higher by more "
            "than that, and there padding gets all the weight. What has to be added so that they lose to any "
            "score?",
        ),
        Mistake(
            "everything is NaN",
            _padding(softmax=shared.zero_times_infinity),
            "Every number is NaN. Are zeros and ones multiplied by -inf? 0 · -inf is NaN: choose, with "
            "masked_fill or torch.where. Or is ~ taken of integers? It turns their bits: ~1 is -2 and ~0 is "
            "-1, both of them True, and so every key is hidden. Make real boolean first.",
        ),
        Mistake(
            "padding only behind",
            lambda scores, real: shared.by_infinity(
                scores, shared.keys(torch.arange(real.shape[-1]) < real.sum(-1, keepdim=True))
            ),
            "You count the words of a sentence and hide the keys behind that many. Padding may stand in "
            "front: hide where real is 0.",
        ),
        Mistake(
            "mask added as a number",
            _padding(softmax=shared.added_as_number),
            "real is added to the scores: words gain one point and padding is still seen. A mask to "
            "be added holds 0 and -inf.",
        ),
        Mistake(
            "softmax over the queries",
            _padding(softmax=shared.over_queries),
            "The columns sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "scores changed in place",
            _padding_in_place,
            "-inf is written into scores itself, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "scores is [batch, heads, T_q, T_k] and real is [batch, T_k]. Which two axes does real lack?",
        "real, as booleans, with two axes of length 1 in its middle has the shape [batch, 1, 1, T_k]: "
        "the same keys are hidden for every head and every query.",
        "Where that mask is not True the scores become -inf; then softmax over the last axis.",
    ),
)

"""Exercise 4: one look back."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.bottleneck import shared
from attention_course.checks.bottleneck.shared import NAME
from attention_course.checks.engine.drawing import loud, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake


def _real(T: int, lengths: Tensor) -> Tensor:
    """[batch, T]: True for a word, False for the padding behind it."""
    return torch.arange(T) < lengths[:, None]


def _hidden(scores: Tensor, real: Tensor) -> Tensor:
    return scores.masked_fill(~real, -torch.inf).softmax(-1)


def _look_back(scores: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    weights = _hidden(scores, _real(scores.shape[-1], lengths))
    return shared.mixed(weights, states), weights


def _weighing(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The right mixture with the weights ``weigh(scores, lengths)``."""

    def look_back(scores: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        weights = weigh(scores, lengths)
        return shared.mixed(weights, states), weights

    return look_back


def _mixing(mix: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The right weights, mixed by ``mix(weights, states)``."""

    def look_back(scores: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        _, weights = _look_back(scores, states, lengths)
        return mix(weights, states), weights

    return look_back


def _hidden_too_late(scores: Tensor, lengths: Tensor) -> Tensor:
    weights = scores.softmax(-1) * _real(scores.shape[-1], lengths)
    return weights / weights.sum(-1, keepdim=True)


def _no_maximum(scores: Tensor, lengths: Tensor) -> Tensor:
    powers = scores.exp() * _real(scores.shape[-1], lengths)
    return powers / powers.sum(-1, keepdim=True)


def _look_back_in_place(scores: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    scores[~_real(scores.shape[-1], lengths)] = -torch.inf
    return _look_back(scores, states, lengths)


def _scores_states(
    generator: Generator, T: int, d: int, *lengths: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    scores = normal(generator, len(lengths), T, dtype=dtype)
    return scores, normal(generator, len(lengths), T, d, dtype=dtype), torch.tensor(lengths)


def _far_below(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Scores below -1e9, in float64, where they still differ."""
    scores, states, lengths = _scores_states(generator, 5, 3, 2, 4, dtype=torch.float64)
    return scores - 2e9, states, lengths


def _loud(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    scores, states, lengths = _scores_states(generator, 6, 3, 3, 5, 1)
    return loud(scores, _real(6, lengths)), states, lengths


LOOK_BACK = Exercise(
    name=f"{NAME}.look_back",
    title="One look back",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_look_back,
    returns=("context", "weights"),
    distributions=("weights",),
    hidden=("weights",),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 2, 3), tenths(g, 2, 3, 2), torch.tensor([2, 3])),
        ),
        Case("batch", lambda g: _scores_states(g, 6, 5, 3, 6, 1, 5)),
        Case(
            "room behind every sentence, float64",
            lambda g: _scores_states(g, 7, 4, 4, 2, 5, dtype=torch.float64),
        ),
        Case("as many sentences as words", lambda g: _scores_states(g, 4, 3, 2, 4, 1, 3)),
        Case("padding scores high", _loud),
        Case("scores below -1e9, float64", _far_below),
        Case("gradient", lambda g: _scores_states(g, 5, 4, 5, 2, 4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no mask",
            _weighing(lambda scores, lengths: scores.softmax(-1)),
            "Padding gets weight like any word. A sentence alone and the same sentence beside a "
            "longer one would get two contexts. Look for lengths: is it used?",
        ),
        Mistake(
            "inverted mask",
            _weighing(lambda scores, lengths: _hidden(scores, ~_real(scores.shape[-1], lengths))),
            "The words are hidden and the padding is seen; where there is no padding, nothing is "
            "left, hence NaN. masked_fill fills where its mask is True: look for a missing ~.",
        ),
        Mistake(
            "off by one: some padding is seen",
            _weighing(lambda scores, lengths: _hidden(scores, _real(scores.shape[-1], lengths + 1))),
            "One place behind the last word is seen as well. Positions count from 0, so the last "
            "word stands at lengths - 1: look at < and <=.",
        ),
        Mistake(
            "off by one: the last word is hidden",
            _weighing(lambda scores, lengths: _hidden(scores, _real(scores.shape[-1], lengths - 1))),
            "The last word of every sentence is hidden; a sentence of one word has nothing left, "
            "hence NaN. Positions count from 0 and lengths do not.",
        ),
        Mistake(
            "mask after softmax",
            _weighing(lambda scores, lengths: scores.softmax(-1) * _real(scores.shape[-1], lengths)),
            "Padding gets no weight, but the weights of the words no longer sum to 1: softmax has "
            "already shared out to padding. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "zero as a score",
            _weighing(lambda scores, lengths: (scores * _real(scores.shape[-1], lengths)).softmax(-1)),
            "Padding has the score 0, and exp(0) = 1: it still gets weight. Which score has the "
            "exponential 0?",
        ),
        Mistake(
            "a finite score for padding",
            _weighing(
                lambda scores, lengths: scores.masked_fill(~_real(scores.shape[-1], lengths), -1e9).softmax(
                    -1
                )
            ),
            "Padding has a finite score, such as -1e4 or -1e9. One case has scores lower than that, and "
            "there padding gets all the weight. Which score is lower than all others?",
        ),
        Mistake(
            "padding hidden too late",
            _weighing(_hidden_too_late),
            "Padding is taken out too late. Where it scores far higher than the words, the maximum is its "
            "own, the words' exponentials are 0 beside it, and dividing by their sum is 0 / 0. Hide it "
            "before a maximum is looked for, as softmax does inside.",
        ),
        Mistake(
            "overflow",
            _weighing(_no_maximum),
            "exp of a score far above 0 is infinite, and far below 0 it is 0, so the division gives NaN. "
            "Only differences of scores count: which number can be taken from every score of a row first?",
        ),
        Mistake(
            "the longest sentence's length for all",
            _weighing(lambda scores, lengths: _hidden(scores, _real(scores.shape[-1], lengths.max()[None]))),
            "Every sentence is cut where the longest one ends, so the padding of the others is seen. Look "
            "for a max: each sentence has its own length.",
        ),
        Mistake(
            "scores divided by √d",
            lambda scores, states, lengths: _look_back(scores / states.shape[-1] ** 0.5, states, lengths),
            "The scores are divided by √d_k. That is chapter 3's scale for dot products. These scores are "
            "ready: nobody says that they are dot products.",
        ),
        Mistake(
            "the first sentence's length for all",
            _weighing(lambda scores, lengths: _hidden(scores, _real(scores.shape[-1], lengths[:1]))),
            "Every sentence is cut where the first one ends. Look for an index 0, or for a batch "
            "axis that was lost.",
        ),
        Mistake(
            "softmax over the sentences",
            _weighing(
                lambda scores, lengths: scores.masked_fill(
                    ~_real(scores.shape[-1], lengths), -torch.inf
                ).softmax(0)
            ),
            "The weights sum to 1 over the batch: the sentences compete for a position. The words "
            "of one sentence should. They are the last axis: look at dim.",
        ),
        Mistake(
            "states not summed",
            _mixing(lambda weights, states: weights.unsqueeze(-1) * states),
            "Every state is multiplied by its weight, and there it ends: one vector per word. The "
            "context is their sum.",
        ),
        Mistake(
            "mean instead of sum",
            _mixing(lambda weights, states: (weights.unsqueeze(-1) * states).mean(-2)),
            "The weighted states are averaged, which divides by T_k once more. The weights sum to 1 "
            "already, so a sum is the mean.",
        ),
        Mistake(
            "an axis too many",
            _mixing(lambda weights, states: weights.unsqueeze(-2) @ states),
            "The numbers are right, but an axis of length 1 is left over from the product. There is "
            "one query per sentence: [B, d_k]. squeeze it, by name of the axis.",
        ),
        Mistake(
            "weights returned first",
            lambda scores, states, lengths: _look_back(scores, states, lengths)[::-1],
            "The two results are the wrong way round. Return (context, weights), in this order, as "
            "the whole course does.",
        ),
        Mistake(
            "scores changed in place",
            _look_back_in_place,
            "-inf is written into scores itself, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "Three steps: hide the padding, turn the scores into weights, mix the states.",
        "torch.arange(T_k) < lengths[:, None] is [B, T_k] and True for words. Scores where it is "
        "False become -inf before the softmax.",
        "weights is [B, T_k] and states [B, T_k, d_k]. With an axis of length 1 in the middle of "
        "weights, a matrix product sums over the words and gives [B, 1, d_k]. torch.einsum needs no such "
        "axis.",
    ),
)

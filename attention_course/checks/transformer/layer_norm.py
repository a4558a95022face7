"""Exercise 1: layer norm."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME


def _normed(
    axis: int | tuple[int, ...] | None = -1,
    *,
    centre: bool = True,
    spread: Callable[[Tensor, int | tuple[int, ...] | None], Tensor] = lambda x, axis: (
        x.var(axis, correction=0, keepdim=True) + shared.EPSILON
    ).sqrt(),
    finish: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda x, gain, shift: x * gain + shift,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The reference with one of its parts replaced."""

    def layer_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        mean = x.mean(axis, keepdim=True) if centre else 0.0
        return finish((x - mean) / spread(x, axis), gain, shift)

    return layer_norm


def _normed_without_keepdim(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return (x - x.mean(-1)) / (x.var(-1, correction=0) + shared.EPSILON).sqrt() * gain + shift


def _length(x: Tensor, axis: int) -> Tensor:
    return (x - x.mean(axis, keepdim=True)).norm(dim=axis, keepdim=True).clamp_min(shared.EPSILON)


def _norm_in_place(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return x.copy_(shared.layer_norm(x, gain, shift))


def _with_constant_token(generator: Generator, length: int, width: int) -> Tensor:
    """The second token has eight times the same number, and no variance."""
    x = normal(generator, length, width)
    return torch.cat((x[:1], torch.full((1, width), 0.5), x[1:]))


def _far_from_0(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Eighths beside ten million: their mean is exact, the squares are not."""
    x = torch.randint(-16, 17, (2, 3, 8), generator=generator).double() / 8 + 1e7
    return x, shared.gains(generator, 8, dtype=torch.float64), normal(generator, 8, dtype=torch.float64)


LAYER_NORM = Exercise(
    name=f"{NAME}.layer_norm",
    title="Layer norm",
    points=1,
    difficulty=1,
    minutes=10,
    reference=shared.layer_norm,
    returns=("normed",),
    forbidden=("layer_norm", "native_layer_norm"),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 4), tenths(g, 4), tenths(g, 4))),
        Case("batch", lambda g: (3 * normal(g, 2, 5, 8) + 2, shared.gains(g, 8), normal(g, 8))),
        Case("as many tokens as columns", lambda g: (normal(g, 6, 6), shared.gains(g, 6), normal(g, 6))),
        Case("small numbers", lambda g: (1e-3 * normal(g, 3, 8), shared.gains(g, 8), normal(g, 8))),
        Case("a constant token", lambda g: (_with_constant_token(g, 2, 8), shared.gains(g, 8), normal(g, 8))),
        Case(
            "two leading axes, float64",
            lambda g: tuple(
                one.double() for one in (2 * normal(g, 2, 3, 4, 6) - 1, shared.gains(g, 6), normal(g, 6))
            ),
        ),
        Case("a large mean, float64", _far_from_0),
        Case("gradient", lambda g: (normal(g, 2, 3, 5), shared.gains(g, 5), normal(g, 5)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "a difference of large squares",
            _normed(
                spread=lambda x, axis: (
                    x.square().mean(axis, keepdim=True) - x.mean(axis, keepdim=True).square() + shared.EPSILON
                ).sqrt()
            ),
            "The variance is computed as the mean of the squares less the square of the mean. Beside a large "
            "mean both are large, and nothing but rounding is left of their difference. Subtract first, then "
            "square.",
        ),
        Mistake(
            "unbiased, and ε outside the root",
            _normed(spread=lambda x, axis: x.std(axis, keepdim=True) + shared.EPSILON),
            "You divide by x.std() + ε. torch's std divides by one less than the width, and ε belongs under "
            "the root.",
        ),
        Mistake(
            "over the tokens",
            _normed(-2),
            "Mean and variance run over the tokens of a sentence, column by column. Layer norm takes "
            "them over the columns of one token: the last axis.",
        ),
        Mistake(
            "over the batch",
            _normed(0),
            "Mean and variance run over the sentences of the batch, as in batch norm. A token must "
            "come out the same whatever else is in the batch: use the last axis.",
        ),
        Mistake(
            "over the whole sentence",
            _normed((-1, -2)),
            "One mean and one variance serve all tokens of a sentence, so each token depends on all "
            "others. Every token has its own: use the last axis alone.",
        ),
        Mistake(
            "unbiased variance",
            _normed(spread=lambda x, axis: (x.var(axis, keepdim=True) + shared.EPSILON).sqrt()),
            "The variance is divided by d_model - 1, as torch's var and std do unless told otherwise. "
            "Layer norm divides by d_model: correction=0, or the mean of the squares.",
        ),
        Mistake(
            "ε outside the root",
            _normed(spread=lambda x, axis: x.std(axis, correction=0, keepdim=True) + shared.EPSILON),
            "ε is added to the standard deviation. It is added to the variance, under the root: for "
            "small numbers that makes a difference.",
        ),
        Mistake(
            "ε missing",
            _normed(spread=lambda x, axis: x.std(axis, correction=0, keepdim=True)),
            "Without ε a token whose columns are all equal is 0/0, hence NaN; and small numbers are "
            "blown up. Add ε to the variance, under the root.",
        ),
        Mistake(
            "mean not subtracted",
            _normed(centre=False),
            "Tokens are divided by their standard deviation, but their mean is still there. Subtract "
            "it first.",
        ),
        Mistake(
            "RMS norm",
            _normed(
                centre=False,
                spread=lambda x, axis: (x.square().mean(axis, keepdim=True) + shared.EPSILON).sqrt(),
            ),
            "You divide by the root of the mean square and subtract no mean. That is RMS norm, which "
            "Llama uses; layer norm takes the mean out first.",
        ),
        Mistake(
            "divided by the variance",
            _normed(spread=lambda x, axis: x.var(axis, correction=0, keepdim=True) + shared.EPSILON),
            "Tokens are divided by their variance. Its root is missing.",
        ),
        Mistake(
            "gain after shift",
            _normed(finish=lambda x, gain, shift: (x + shift) * gain),
            "The shift is multiplied by the gain as well. First the gain, then the shift.",
        ),
        Mistake(
            "gain and shift unused",
            _normed(finish=lambda x, gain, shift: x),
            "The tokens have mean 0 and variance 1, and are returned like that. Multiply by gain and "
            "add shift.",
        ),
        Mistake(
            "keepdim missing",
            _normed_without_keepdim,
            "The mean has lost its last axis. With as many tokens as columns nothing raises: the "
            "means are then laid along the columns. Use keepdim=True.",
        ),
        Mistake(
            "x changed in place",
            _norm_in_place,
            "x itself is overwritten. In a Transformer the residual still needs it. Make a new tensor.",
        ),
        Mistake(
            "axis 1",
            _normed(1),
            "Mean and variance run over axis 1. In one sentence these are the columns, in a batch the "
            "tokens. Count from the end: the last axis.",
        ),
        Mistake(
            "over everything",
            _normed(None),
            "One mean and one variance serve the whole tensor, so each token depends on all others. Every "
            "token has its own: use the last axis alone.",
        ),
        Mistake(
            "sum in the place of the variance",
            _normed(
                spread=lambda x, axis: (
                    x.var(axis, correction=0, keepdim=True) * x.shape[axis] + shared.EPSILON
                ).sqrt()
            ),
            "The squared differences are added up, and not divided by their number. The variance is their "
            "mean.",
        ),
        Mistake(
            "brought to length 1",
            _normed(spread=_length),
            "Each token is brought to length 1, as F.normalize does. Layer norm brings it to variance 1: "
            "what stands under the root is a mean of squares, not their sum, and ε stands there, too.",
        ),
    ),
    hints=(
        "Take one token, a row of d_model numbers. Which numbers does its mean run over?",
        "x.mean(-1, keepdim=True) is [..., T, 1] and broadcasts against x. The variance is the mean "
        "of the squared differences from it.",
        "What is left of the mean, divided by the square root of variance and EPSILON together, then "
        "times gain, plus shift.",
    ),
)

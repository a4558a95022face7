"""Exercise 3: one residual block."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME


def _pre_norm_block(
    x: Tensor, gain: Tensor, shift: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
) -> Tensor:
    return x + shared.feed_forward(shared.layer_norm(x, gain, shift), w_in, b_in, w_out, b_out)


def _block(
    wire: Callable[[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], Tensor] = (
        lambda x, norm, f: x + f(norm(x))
    ),
    norm: Callable[[Tensor, Tensor, Tensor], Tensor] = shared.layer_norm,
    feed: Callable[..., Tensor] = shared.feed_forward,
) -> Callable[..., Tensor]:
    """A block of one norm and one feed-forward layer, put together by ``wire(x, norm, f)``."""

    def block(
        x: Tensor, gain: Tensor, shift: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
    ) -> Tensor:
        return wire(
            x,
            lambda x: norm(x, gain, shift),
            lambda x: feed(x, w_in, b_in, w_out, b_out),
        )

    return block


def _block_in_place(x: Tensor, *weights: Tensor) -> Tensor:
    return x.copy_(_pre_norm_block(x, *weights))


def _block_inputs(generator: Generator, *shape: int, hidden: int, dtype=torch.float32) -> Inputs:
    width = shape[-1]
    return (
        2 * normal(generator, *shape, dtype=dtype) + 1,
        shared.gains(generator, width, dtype=dtype),
        normal(generator, width, dtype=dtype),
        *shared.two_layers(generator, width, hidden, dtype),
    )


PRE_NORM_BLOCK = Exercise(
    name=f"{NAME}.pre_norm_block",
    title="One residual block",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_pre_norm_block,
    returns=("output",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 2, 4),
                shared.gains(g, 4),
                tenths(g, 4),
                halves(g, 4, 3),
                halves(g, 3),
                halves(g, 3, 4),
                tenths(g, 4),
            ),
        ),
        Case("batch", lambda g: _block_inputs(g, 2, 5, 6, hidden=24)),
        Case(
            "two leading axes, float64",
            lambda g: _block_inputs(g, 2, 3, 4, 6, hidden=12, dtype=torch.float64),
        ),
        Case("gradient", lambda g: _block_inputs(g, 2, 3, 5, hidden=7), gradient=True),
    ),
    mistakes=(
        Mistake(
            "post-norm",
            _block(lambda x, norm, f: norm(x + f(x))),
            "The norm comes after the sum. That is post-norm, the order of 2017, and exercise 6. In "
            "pre-norm the layer reads normed tokens, and the sum is left alone.",
        ),
        Mistake(
            "residual forgotten",
            _block(lambda x, norm, f: f(norm(x))),
            "The tokens that came in are gone: only what the layer says is left. Add x.",
        ),
        Mistake(
            "residual from the normed tokens",
            _block(lambda x, norm, f: norm(x) + f(norm(x))),
            "The normed tokens are carried on, not x. The norm stands inside the branch; the residual "
            "goes around both. Look for an x = ... that overwrites x.",
        ),
        Mistake(
            "norm missing",
            _block(lambda x, norm, f: x + f(x)),
            "The layer reads x as it is. Norm it first.",
        ),
        Mistake(
            "norm behind the layer",
            _block(lambda x, norm, f: x + norm(f(x))),
            "The norm is applied to what the layer says. In pre-norm it is applied to what the layer reads.",
        ),
        Mistake(
            "norm at both ends",
            _block(lambda x, norm, f: norm(x + f(norm(x)))),
            "The sum is normed once more. In pre-norm nothing touches the sum: that is the road on "
            "which gradients travel back through all blocks.",
        ),
        Mistake(
            "x changed in place",
            _block_in_place,
            "The result is right, but it is written into x itself, as x += ... does. Make a new tensor.",
        ),
        Mistake(
            "no activation",
            _block(feed=lambda x, w_in, b_in, w_out, b_out: (x @ w_in + b_in) @ w_out + b_out),
            "There is no ReLU in the feed-forward layer. It is that of exercise 2: call your own.",
        ),
        Mistake(
            "norm without gain and shift",
            _block(norm=lambda x, gain, shift: shared.layer_norm(x, 1.0, 0.0)),
            "The layer reads tokens with mean 0 and variance 1, but gain and shift are left out. The norm is "
            "that of exercise 1: call your own.",
        ),
        Mistake(
            "the normed tokens added as well",
            _block(lambda x, norm, f: x + norm(x) + f(x + norm(x))),
            "There are two sums: the norm has become a layer of its own that is added to x. It stands on the "
            "branch, in front of the feed-forward layer, and only what that says is added.",
        ),
    ),
    hints=(
        "Draw it: a straight road from x to the output, and a branch that leaves the road and comes "
        "back. What stands on the branch, in which order, and what on the road?",
        "Two of your own functions stand on the branch, one inside the other. x itself comes in once "
        "more, behind both.",
    ),
)

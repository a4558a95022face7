"""Exercise 6: a whole encoder layer."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME


def _attended(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    query, key = x @ w_query, x @ w_key
    return (query @ key.mT / key.shape[-1] ** 0.5).softmax(-1) @ (x @ w_value)


def _attended_unscaled(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    return (x @ w_query @ (x @ w_key).mT).softmax(-1) @ (x @ w_value)


Step = Callable[[Tensor], Tensor]


def _wire(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(x + attend(x))
    return norm_2(middle + feed(middle))


def _wire_pre_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + attend(norm_1(x))
    return middle + feed(norm_2(middle))


def _wire_no_first_residual(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(attend(x))
    return norm_2(middle + feed(middle))


def _wire_no_second_residual(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    return norm_2(feed(norm_1(x + attend(x))))


def _wire_second_residual_from_x(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    return norm_2(x + feed(norm_1(x + attend(x))))


def _wire_no_first_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + attend(x)
    return norm_2(middle + feed(middle))


def _wire_no_second_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(x + attend(x))
    return middle + feed(middle)


def _wire_one_norm_twice(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    return _wire(x, attend, norm_1, feed, norm_1)


def _wire_norm_inside(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + norm_1(attend(x))
    return middle + norm_2(feed(middle))


def _encoder(
    wire: Callable[..., Tensor] = _wire,
    attended: Callable[..., Tensor] = _attended,
    project: Callable[[Tensor, Tensor], Tensor] = lambda context, w_output: context @ w_output,
) -> Callable[..., Tensor]:
    def encoder_layer(
        x: Tensor,
        w_query: Tensor,
        w_key: Tensor,
        w_value: Tensor,
        w_output: Tensor,
        w_in: Tensor,
        b_in: Tensor,
        w_out: Tensor,
        b_out: Tensor,
        gains: Tensor,
        shifts: Tensor,
    ) -> Tensor:
        return wire(
            x,
            lambda x: project(attended(x, w_query, w_key, w_value), w_output),
            lambda x: shared.layer_norm(x, gains[0], shifts[0]),
            lambda x: shared.feed_forward(x, w_in, b_in, w_out, b_out),
            lambda x: shared.layer_norm(x, gains[1], shifts[1]),
        )

    return encoder_layer


def _layer_inputs(generator: Generator, *shape: int, hidden: int, dtype=torch.float32) -> Inputs:
    width = shape[-1]
    return (
        normal(generator, *shape, dtype=dtype),
        *(shared.weight(generator, width, width, dtype) for _ in range(4)),
        *shared.two_layers(generator, width, hidden, dtype),
        shared.gains(generator, 2, width, dtype=dtype),
        normal(generator, 2, width, dtype=dtype),
    )


ENCODER_LAYER = Exercise(
    name=f"{NAME}.encoder_layer",
    title="A whole layer",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_encoder(),
    returns=("output",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 3, 4),
                *(halves(g, 4, 4) for _ in range(4)),
                halves(g, 4, 6),
                halves(g, 6),
                halves(g, 6, 4),
                tenths(g, 4),
                shared.gains(g, 2, 4),
                tenths(g, 2, 4),
            ),
        ),
        Case("batch", lambda g: _layer_inputs(g, 2, 5, 8, hidden=24)),
        Case("one token", lambda g: _layer_inputs(g, 3, 1, 6, hidden=12)),
        Case(
            "two leading axes, float64",
            lambda g: _layer_inputs(g, 2, 3, 4, 8, hidden=16, dtype=torch.float64),
        ),
        Case("gradient", lambda g: _layer_inputs(g, 2, 4, 6, hidden=9), gradient=True),
    ),
    mistakes=(
        Mistake(
            "pre-norm",
            _encoder(_wire_pre_norm),
            "Both layers read normed tokens, and the sums are not normed. That is pre-norm, as in "
            "exercise 3. The encoder of 2017 norms after each sum.",
        ),
        Mistake(
            "residual missing around attention",
            _encoder(_wire_no_first_residual),
            "After the first half a token knows what it gathered and no longer what it was. Add x "
            "before the first norm.",
        ),
        Mistake(
            "residual missing around feed-forward",
            _encoder(_wire_no_second_residual),
            "The second half returns what the feed-forward layer says, alone. Add what it has read "
            "before the second norm.",
        ),
        Mistake(
            "second residual from x",
            _encoder(_wire_second_residual_from_x),
            "The second sum takes x, the tokens from before the attention. It takes what the "
            "feed-forward layer reads: the result of the first half.",
        ),
        Mistake(
            "first norm missing",
            _encoder(_wire_no_first_norm),
            "The first sum goes on without a norm. There is one after each of the two sums.",
        ),
        Mistake(
            "second norm missing",
            _encoder(_wire_no_second_norm),
            "The second sum is returned without a norm. There is one after each of the two sums.",
        ),
        Mistake(
            "one norm used twice",
            _encoder(_wire_one_norm_twice),
            "Both norms use gains[0] and shifts[0]. The second has its own: gains[1] and shifts[1].",
        ),
        Mistake(
            "norm before the sum",
            _encoder(_wire_norm_inside),
            "Each norm is applied to what a layer says, and x is added after it. Add first, then norm.",
        ),
        Mistake(
            "W_O missing",
            _encoder(project=lambda context, w_output: context),
            "The context goes straight into the sum. It passes through w_output first.",
        ),
        Mistake(
            "no scale",
            _encoder(attended=_attended_unscaled),
            "The scores are plain dot products. Divide them by √d_k.",
        ),
    ),
    hints=(
        "Two halves of the same form: norm(something + layer(something)). What is “something” in the "
        "first half, and what in the second?",
        "First half: attention of x with itself, times w_output; add x; layer_norm with gains[0] and "
        "shifts[0].",
        "Second half: feed_forward of that result; add that result, not x; layer_norm with gains[1] "
        "and shifts[1].",
    ),
)

"""Exercise 2: feed-forward."""

import torch
import torch.nn.functional as F

from attention_course.checks.engine.drawing import halves, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME

FEED_FORWARD = Exercise(
    name=f"{NAME}.feed_forward",
    title="Feed-forward",
    points=1,
    difficulty=1,
    minutes=5,
    reference=shared.feed_forward,
    returns=("output",),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 2, 3), halves(g, 3, 4), halves(g, 4), halves(g, 4, 3), tenths(g, 3)),
        ),
        Case("batch", lambda g: (normal(g, 2, 5, 6), *shared.two_layers(g, 6, 24))),
        Case("narrow in the middle", lambda g: (normal(g, 3, 8), *shared.two_layers(g, 8, 5))),
        Case(
            "two leading axes, float64",
            lambda g: (
                normal(g, 2, 3, 4, 6, dtype=torch.float64),
                *shared.two_layers(g, 6, 12, torch.float64),
            ),
        ),
        Case("gradient", lambda g: (normal(g, 2, 3, 4), *shared.two_layers(g, 4, 8)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no activation",
            lambda x, w_in, b_in, w_out, b_out: (x @ w_in + b_in) @ w_out + b_out,
            "Two matrices in a row are one matrix: without an activation between them the second "
            "adds nothing. Where does the ReLU go?",
        ),
        Mistake(
            "activation at the end",
            lambda x, w_in, b_in, w_out, b_out: ((x @ w_in + b_in) @ w_out + b_out).relu(),
            "The ReLU comes last, so nothing negative is ever added to a token, and between the two "
            "matrices there is none. It stands between them.",
        ),
        Mistake(
            "activation twice",
            lambda x, w_in, b_in, w_out, b_out: shared.feed_forward(x, w_in, b_in, w_out, b_out).relu(),
            "There is a second ReLU behind the second matrix. What leaves may be negative: leave it "
            "as it is.",
        ),
        Mistake(
            "first bias missing",
            lambda x, w_in, b_in, w_out, b_out: (x @ w_in).relu() @ w_out + b_out,
            "b_in is never used.",
        ),
        Mistake(
            "second bias missing",
            lambda x, w_in, b_in, w_out, b_out: (x @ w_in + b_in).relu() @ w_out,
            "b_out is never used.",
        ),
        Mistake(
            "GELU instead of ReLU",
            lambda x, w_in, b_in, w_out, b_out: F.gelu(x @ w_in + b_in) @ w_out + b_out,
            "The activation is GELU, as in BERT and GPT-2. This exercise is the layer of 2017: ReLU.",
        ),
        Mistake(
            "residual added",
            lambda x, *weights: x + shared.feed_forward(x, *weights),
            "x is added at the end. That is the work of the block around this layer, in the next exercise.",
        ),
        Mistake(
            "bias after the activation",
            lambda x, w_in, b_in, w_out, b_out: ((x @ w_in).relu() + b_in) @ w_out + b_out,
            "The ReLU comes before b_in is added. The first layer is a matrix and its bias: what sets "
            "numbers to 0 comes behind both.",
        ),
        Mistake(
            "activation on the tokens",
            lambda x, w_in, b_in, w_out, b_out: (x.relu() @ w_in + b_in) @ w_out + b_out,
            "The ReLU is applied to x, and between the two matrices there is none. It stands between them.",
        ),
    ),
    hints=(
        "Two linear layers, each a matrix and a bias, and one activation. How many places are there "
        "where the activation makes a difference, and which of them is between the layers?",
        "A negative number becomes 0 under ReLU: torch.relu, or clamp(min=0). Apply it to [..., T, d_ff].",
    ),
)

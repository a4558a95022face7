"""Exercise 4: what each head adds."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.multi_head import shared
from attention_course.checks.multi_head.shared import NAME


def _contributions(context: Tensor, w_output: Tensor) -> Tensor:
    return context @ w_output.unflatten(0, (context.shape[-3], -1))


def _contributions_strided(context: Tensor, w_output: Tensor) -> Tensor:
    return context @ w_output.unflatten(0, (-1, context.shape[-3])).transpose(0, 1)


def _contributions_columns(context: Tensor, w_output: Tensor) -> Tensor:
    return context @ w_output.mT.unflatten(0, (context.shape[-3], -1))


def _contributions_whole(context: Tensor, w_output: Tensor) -> Tensor:
    output = (shared.merge(context) @ w_output).unsqueeze(-3)
    return output.expand(*output.shape[:-3], context.shape[-3], *output.shape[-2:])


def _contributions_of_the_others(context: Tensor, w_output: Tensor) -> Tensor:
    return (shared.merge(context) @ w_output).unsqueeze(-3) - _contributions(context, w_output)


def _output_weight(generator: Generator, rows: int, columns: int, dtype=torch.float32) -> Tensor:
    return (normal(generator, rows, columns, dtype=torch.float64) / rows**0.5).to(dtype)


HEAD_CONTRIBUTIONS = Exercise(
    name=f"{NAME}.head_contributions",
    title="What each head adds",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_contributions,
    returns=("contributions",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3, 2), halves(g, 4, 5))),
        Case("batch", lambda g: (shared.normal_heads(g, 2, 3, 5, 4), _output_weight(g, 12, 7))),
        Case("square W_O", lambda g: (shared.normal_heads(g, 2, 3, 5, 4), _output_weight(g, 12, 12))),
        Case(
            "two leading axes, float64",
            lambda g: (
                shared.normal_heads(g, 2, 3, 4, 5, 6, dtype=torch.float64),
                _output_weight(g, 24, 7, torch.float64),
            ),
        ),
        Case(
            "gradient",
            lambda g: (shared.normal_heads(g, 2, 4, 5, 3), _output_weight(g, 12, 7)),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "first rows of W_O for every head",
            lambda context, w_output: context @ w_output[: context.shape[-1]],
            "Every head goes through the first d_v rows of W_O. These belong to head 0; head i has "
            "the i-th slice of rows.",
        ),
        Mistake(
            "every h-th row",
            _contributions_strided,
            "Head 0 gets rows 0, h, 2h, ... of W_O. Its columns stand first in the concatenation, so "
            "its rows are the first d_v. Look at the order of the two sizes.",
        ),
        Mistake(
            "heads in reverse order",
            lambda context, w_output: _contributions(
                context, w_output.unflatten(0, (context.shape[-3], -1)).flip(0).flatten(0, 1)
            ),
            "The last slice of W_O's rows meets the first head. Head 0 has the first d_v rows.",
        ),
        Mistake(
            "already added up",
            lambda context, w_output: shared.merge(context) @ w_output,
            "This is the whole output, all heads together. Keep the axis of the heads: one "
            "[T, d_model] for each.",
        ),
        Mistake(
            "whole output for every head",
            _contributions_whole,
            "Every head is given the output of all heads together. Added up, that is h times the output.",
        ),
        Mistake(
            "what the others add",
            _contributions_of_the_others,
            "This is the output without the head: what all others add to it. The head's own share is the "
            "other part.",
        ),
        Mistake(
            "divided by h",
            lambda context, w_output: _contributions(context, w_output) / context.shape[-3],
            "Every share is divided by h. W_O adds the heads; it does not average them.",
        ),
        Mistake(
            "columns of W_O instead of rows",
            _contributions_columns,
            "Each head meets a slice of W_O's columns, transposed. Columns belong to the output; the "
            "concatenated heads meet its rows.",
        ),
        Mistake(
            "heads behind tokens",
            lambda context, w_output: _contributions(context, w_output).transpose(-2, -3),
            "Tokens stand in front of heads. The heads keep their place: [..., h, T, d_model].",
        ),
    ),
    hints=(
        "Write the concatenation as a row [c_1, c_2, ..., c_h] and W_O as a column of h blocks. What "
        "does a row times a column of blocks give?",
        "Block i is rows i · d_v to (i + 1) · d_v of W_O. unflatten(0, (h, -1)) makes the blocks an axis: "
        "[h, d_v, d_model].",
        "A matrix product works on the last two axes and pairs up those in front. The heads stand in "
        "front in both, so one product does all of them.",
    ),
)

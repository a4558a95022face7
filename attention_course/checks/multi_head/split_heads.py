"""Exercise 1: splitting."""

import torch

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.multi_head import shared
from attention_course.checks.multi_head.shared import NAME

SPLIT_HEADS = Exercise(
    name=f"{NAME}.split_heads",
    title="Split",
    points=1,
    difficulty=1,
    minutes=5,
    reference=shared.split,
    returns=("heads",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 6),)),
        Case("batch", lambda g: (normal(g, 2, 5, 12),)),
        Case("two leading axes, float64", lambda g: (normal(g, 2, 4, 5, 21, dtype=torch.float64),)),
        Case("gradient", lambda g: (normal(g, 2, 4, 15),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "view without transpose",
            shared.split_by_view,
            "The shape is right and the numbers sit in the wrong places: a head holds whole tokens, "
            "not some columns of every token. reshape reads numbers in the order in which they lie "
            "in memory. First split the last axis in two, then swap heads and tokens.",
        ),
        Mistake(
            "tokens and heads not swapped",
            lambda x: x.unflatten(-1, (shared.NUM_HEADS, -1)),
            "The columns are split well, but tokens still stand in front of heads: [..., T, h, d_k]. "
            "Attention multiplies the last two axes; heads must stand in front of them.",
        ),
        Mistake(
            "every third column",
            shared.split_every_third,
            "Head 0 got columns 0, h, 2h, ...; it should get the first d_k columns side by side. "
            "Look at the order of the two sizes when you split the last axis.",
        ),
        Mistake(
            "h taken for d_k",
            lambda x: x.unflatten(-1, (-1, shared.NUM_HEADS)).transpose(-2, -3),
            "There are d_k heads of width h. Look at the order of the two sizes when you split an axis.",
        ),
        Mistake(
            "axes counted from the front",
            lambda x: x.unflatten(-1, (shared.NUM_HEADS, -1)).transpose(1, 2),
            "transpose(1, 2) is right for [B, T, d_model] only. Without a batch, or with one more "
            "axis, these are other axes. Count from the end.",
        ),
        Mistake(
            "heads in front of the batch",
            lambda x: torch.stack(x.chunk(shared.NUM_HEADS, dim=-1)),
            "The heads are the very first axis, in front of the batch. They belong just in front of "
            "the tokens. Look at the axis along which you stack.",
        ),
        Mistake(
            "same slice for all heads",
            shared.split_same,
            "Every head holds the first d_k columns. Head i should hold the i-th slice of d_k columns.",
        ),
        Mistake(
            "heads transposed",
            lambda x: shared.split(x).mT,
            "Each head is [d_k, T]. One row per token, please: look at your last two axes.",
        ),
    ),
    hints=(
        "Write the shape after each step: [..., T, d_model], then [..., T, h, d_k], then [..., h, T, d_k].",
        "The first step splits one axis in two, and no number moves: unflatten, on the last axis, into h "
        "and d_k.",
        "The second swaps the axis of the tokens and the one of the heads. Count both from the end, "
        "because there may be any number in front.",
    ),
)

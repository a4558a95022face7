"""Exercise 2: merging."""

import torch

from attention_course.checks.engine.drawing import tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.multi_head import shared
from attention_course.checks.multi_head.shared import NAME

MERGE_HEADS = Exercise(
    name=f"{NAME}.merge_heads",
    title="Merge",
    points=1,
    difficulty=1,
    minutes=5,
    reference=shared.merge,
    returns=("merged",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3, 4),)),
        Case("batch", lambda g: (shared.normal_heads(g, 2, 3, 5, 4),)),
        Case(
            "two leading axes, float64",
            lambda g: (shared.normal_heads(g, 2, 3, 4, 5, 6, dtype=torch.float64),),
        ),
        Case("gradient", lambda g: (shared.normal_heads(g, 2, 4, 5, 3),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "reshape without transposing back",
            shared.merge_by_view,
            "The shape is right, but a row holds several tokens of one head, not all heads of one "
            "token. Swap heads and tokens back before you join the last two axes.",
        ),
        Mistake(
            "columns of the heads interleaved",
            shared.merge_interleaved,
            "A row goes head 0, head 1, head 2, ... one number each. It should hold all of head 0, "
            "then all of head 1. Look at which axis is last when you join them.",
        ),
        Mistake(
            "heads in reverse order",
            lambda context: shared.merge(context.flip(-3)),
            "The last head comes first. Head 0 belongs at the left.",
        ),
        Mistake(
            "heads added",
            lambda context: context.sum(-3),
            "The heads are added up. That mixes them before W_O can tell them apart. Put them side by side.",
        ),
        Mistake(
            "heads averaged",
            lambda context: context.mean(-3),
            "The heads are averaged. One mean is what a single head could have done. Put them side by side.",
        ),
        Mistake(
            "heads one below the other",
            lambda context: context.flatten(-3, -2),
            "The heads stand one below the other: h · T rows. There is one row per token, and the "
            "heads stand side by side in it.",
        ),
        Mistake(
            "axes counted from the front",
            lambda context: context.transpose(1, 2).flatten(-2),
            "transpose(1, 2) is right for [B, h, T, d_v] only. Without a batch, or with one more "
            "axis, these are other axes. Count from the end.",
        ),
    ),
    hints=(
        "Walk the way of split_heads back: which two axes did it swap, and which one did it split?",
        "Swap heads and tokens first: [..., T, h, d_v]. Only now do the numbers of a token lie together.",
        "Then join the last two axes, with flatten or reshape. (view refuses here: after the swap the "
        "numbers do not lie in order in memory. The other two copy.)",
    ),
)

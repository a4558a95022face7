"""Exercise 4: from one layout to the other."""

import torch
from torch import Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.positions import shared
from attention_course.checks.positions.shared import NAME

#: in the exercise that cannot read the number of heads from a shape; the notebook says so
NUM_HEADS = 2


def _to_half(w: Tensor) -> Tensor:
    return w.unflatten(-1, (NUM_HEADS, -1, 2)).mT.flatten(-3)


def _to_half_across_heads(w: Tensor) -> Tensor:
    return shared.halves(w[..., 0::2], w[..., 1::2])


def _to_half_backwards(w: Tensor) -> Tensor:
    return w.unflatten(-1, (NUM_HEADS, 2, -1)).mT.flatten(-3)


def _to_half_odd_first(w: Tensor) -> Tensor:
    return w.unflatten(-1, (NUM_HEADS, -1, 2)).flip(-1).mT.flatten(-3)


def _to_half_strided_heads(w: Tensor) -> Tensor:
    pairs = w.unflatten(-1, (-1, 2, NUM_HEADS))  # every other column to a head
    return pairs.movedim(-1, -3).mT.flatten(-3)


def _to_half_head_runs_fastest(w: Tensor) -> Tensor:
    return w.unflatten(-1, (-1, 2, NUM_HEADS)).transpose(-2, -3).flatten(-3)


def _to_half_first_head(w: Tensor) -> Tensor:
    width = w.shape[-1] // NUM_HEADS
    return torch.cat((_to_half(w)[..., :width], w[..., width:]), dim=-1)


def _to_half_back_across_heads(w: Tensor) -> Tensor:
    return shared.neighbours(*w.chunk(2, dim=-1))


def _to_half_second_reversed(w: Tensor) -> Tensor:
    first, second = _to_half(w).unflatten(-1, (NUM_HEADS, 2, -1)).unbind(-2)
    return shared.halves(first, second.flip(-1)).flatten(-2)


def _to_half_in_place(w: Tensor) -> Tensor:
    return w.copy_(_to_half(w))


TO_HALF = Exercise(
    name=f"{NAME}.to_half",
    title="Somebody else's weights",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_to_half,
    returns=("converted",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 12),)),
        Case("square", lambda g: (normal(g, 16, 16),)),
        Case("query and key, float64", lambda g: (normal(g, 2, 8, 24, dtype=torch.float64),)),
        Case("gradient", lambda g: (normal(g, 4, 12),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "across heads",
            _to_half_across_heads,
            "All even columns of the matrix come first, then all odd ones, so columns leave their "
            "head. Every head is turned by itself: rearrange the columns within each.",
        ),
        Mistake(
            "the way back",
            _to_half_backwards,
            "You lay halves out as neighbours: that takes a matrix from the half layout to the "
            "interleaved one. Pair i comes from columns 2i and 2i + 1 and goes to i and i + d_k/2.",
        ),
        Mistake(
            "the way back, across heads",
            _to_half_back_across_heads,
            "Columns of the left half of the matrix and of the right one take turns. That is the other "
            "direction, and it mixes heads. Pair i comes from columns 2i and 2i + 1 of its own head.",
        ),
        Mistake(
            "nothing moved",
            lambda w: w.clone(),
            "The columns stand where they stood. If you split the last axis and join it again, nothing moves "
            "unless two axes change places in between.",
        ),
        Mistake(
            "first head alone",
            _to_half_first_head,
            "Head 0 is right, and the columns behind it stand where they stood. Every head is turned by "
            "itself.",
        ),
        Mistake(
            "second half reversed",
            _to_half_second_reversed,
            "The seconds of the pairs stand in the opposite order. Pair i goes to columns i and i + d_k/2: "
            "both halves begin with pair 0.",
        ),
        Mistake(
            "rows instead of columns",
            lambda w: _to_half(w.mT).mT,
            "The rows change places. That is right for the weight of nn.Linear, which is transposed. "
            "Here a weight stands on the right of x, and queries are its columns.",
        ),
        Mistake(
            "axis 1 rearranged",
            lambda w: _to_half(w.movedim(1, -1)).movedim(-1, 1),
            "A single matrix comes out right. Of several in a batch axis 1 are the rows, and these change "
            "places: columns are the last axis, however many stand in front.",
        ),
        Mistake(
            "odd columns first",
            _to_half_odd_first,
            "The odd columns form the first half. The first of a pair must stay the first, else the "
            "pair turns the other way round.",
        ),
        Mistake(
            "every other column to a head",
            _to_half_strided_heads,
            "You take columns 0, h, 2h, ... for head 0. A head is d_k columns side by side: look at "
            "the order of the sizes when you split the last axis.",
        ),
        Mistake(
            "heads column by column",
            _to_half_head_runs_fastest,
            "Columns are read and written as if every other one belonged to the other head. A head is d_k "
            "columns side by side: heads come first when you split the last axis.",
        ),
        Mistake(
            "w changed in place",
            _to_half_in_place,
            "The result is right, but it is written into w itself, which whoever loaded it may still "
            "need. Make a new tensor.",
        ),
    ),
    hints=(
        "Write for one head of width 6 which old column has to stand in each of the new columns 0 to 5.",
        "It is 0, 2, 4, 1, 3, 5: the firsts of all pairs, then the seconds. Do that within each head.",
        "Split the last axis in three, [..., h, d_k / 2, 2]: head, pair, first or second. Swap the last "
        "two of them and join all three again.",
    ),
)

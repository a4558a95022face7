"""Exercise 5: as if a token were not there."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.seeing import shared
from attention_course.checks.seeing.shared import NAME


def _gone(weights: Tensor, position: Tensor) -> Tensor:
    """[T]: True at the token that nobody may look at."""
    return torch.arange(weights.shape[-1]) == position


def _kept(weights: Tensor, position: Tensor) -> Tensor:
    return weights.masked_fill(_gone(weights, position), 0.0)


def _to_1(kept: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """Divided by its sum; nothing stays nothing."""
    rest = kept.sum(dim, keepdim=True)
    return kept / rest.where(rest > 0, 1.0)


def _without_key(weights: Tensor, value: Tensor, position: Tensor) -> Tensor:
    kept = weights.masked_fill(torch.arange(weights.shape[-1]) == position, 0.0)
    rest = kept.sum(-1, keepdim=True)
    return kept @ value / rest.where(rest > 0, 1.0)


def _weighing(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The right mixture with the weights ``weigh(weights, position)``."""
    return lambda weights, value, position: weigh(weights, position) @ value


def _row_gone(weights: Tensor, position: Tensor) -> Tensor:
    return weights.masked_fill(_gone(weights, position)[:, None], 0.0)


def _evenly(weights: Tensor, position: Tensor) -> Tensor:
    """What lay on the key, in equal parts on all others."""
    gone = _gone(weights, position)
    return (weights + weights[..., gone] / (len(gone) - 1)).masked_fill(gone, 0.0)


def _blind_as_before(weights: Tensor, position: Tensor) -> Tensor:
    kept = _kept(weights, position)
    return torch.where(kept.sum(-1, keepdim=True) > 0, _to_1(kept), weights)


def _blind_evenly(weights: Tensor, position: Tensor) -> Tensor:
    kept, gone = _kept(weights, position), _gone(weights, position)
    even = (~gone).to(weights.dtype) / (len(gone) - 1)
    return torch.where(kept.sum(-1, keepdim=True) > 0, _to_1(kept), even)


def _blind_alike(weights: Tensor, position: Tensor) -> Tensor:
    kept = _kept(weights, position)
    even = torch.full_like(weights, 1 / weights.shape[-1])
    return torch.where(kept.sum(-1, keepdim=True) > 0, _to_1(kept), even)


def _own_row_as_before(weights: Tensor, position: Tensor) -> Tensor:
    return torch.where(_gone(weights, position)[:, None], weights, _to_1(_kept(weights, position)))


def _all_from_there(weights: Tensor, position: Tensor) -> Tensor:
    return _to_1(weights.masked_fill(torch.arange(weights.shape[-1]) >= position, 0.0))


def _with_a_small_number(small: float) -> Callable[[Tensor, Tensor], Tensor]:
    def weigh(weights: Tensor, position: Tensor) -> Tensor:
        kept = _kept(weights, position)
        return kept / (kept.sum(-1, keepdim=True) + small)

    return weigh


_SMALL = (
    "{} is added to what each row is divided by. Where little of a row is left, that number is "
    "not small beside it, and the row sums to less than 1. Only where nothing at all is left does the "
    "division need help."
)


def _heads_gone(weights: Tensor, value: Tensor, position: Tensor) -> Tensor:
    head = (torch.arange(len(weights)) == position)[:, None, None]
    return (weights @ value).masked_fill(head, 0.0)


def _key_of_values(weights: Tensor, value: Tensor, position: Tensor) -> Tensor:
    """What the key alone brought."""
    gone = _gone(weights, position)
    return weights[..., gone] * value[:, gone]


def _in_place(weights: Tensor, value: Tensor, position: Tensor) -> Tensor:
    weights[..., position] = 0.0
    return _without_key(weights, value, position)


def _heads(
    generator: Generator,
    h: int,
    T: int,
    d_k: int,
    position: int,
    causal: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    weights = shared.rows(generator, h, T, T, causal=causal, dtype=dtype)
    return weights, normal(generator, h, T, d_k, dtype=dtype), torch.tensor(position)


def _little_left(generator: Generator) -> Inputs:
    """From everywhere nearly all weight lies on one token: what is left of a row is about 1e-7.

    In float64, where 1 less the token's weight is as good as the sum of the others.
    """
    scores = 0.5 * normal(generator, 2, 4, 4, dtype=torch.float64) + 17.0 * (torch.arange(4) == 1)
    return scores.softmax(-1), normal(generator, 2, 4, 3, dtype=torch.float64), torch.tensor(1)


def _sink(generator: Generator) -> Inputs:
    """Two heads: the second looks at one token and nowhere else, from everywhere."""
    weights, value, position = _heads(generator, 2, 4, 3, 2)
    return torch.stack((weights[0], (torch.arange(4) == position).float().expand(4, 4))), value, position


WITHOUT_KEY = Exercise(
    name=f"{NAME}.without_key",
    title="As if a token were not there",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_without_key,
    given_distributions=("weights",),
    returns=("contexts",),
    cases=(
        Case(
            "one decimal",
            lambda g: (shared.tenths_of_1(g, 2, 3, 3), tenths(g, 2, 3, 2), torch.tensor(1)),
        ),
        Case("three heads", lambda g: _heads(g, 3, 5, 2, 3)),
        Case("as many of everything", lambda g: _heads(g, 4, 4, 4, 2)),
        Case("the last token", lambda g: _heads(g, 2, 6, 3, 5)),
        Case("a head that looks nowhere else", _sink),
        Case("little is left, float64", _little_left),
        Case(
            "the first token of a causal text, float64",
            lambda g: _heads(g, 3, 5, 4, 0, causal=True, dtype=torch.float64),
        ),
        Case("gradient", lambda g: _heads(g, 3, 5, 2, 3), gradient=True),
        # where nothing is left, zeros have whatever derivative one's way to them has
        Case("gradient where nothing is left", lambda g: _heads(g, 3, 5, 2, 0, causal=True), finite=True),
    ),
    mistakes=(
        Mistake(
            "not made to sum to 1",
            _weighing(_kept),
            "The token's weight is taken away (or its value, which is the same), and the rest is left as it "
            "was: the rows no longer sum to 1. Divide each row by what is left of it.",
        ),
        Mistake(
            "NaN where nothing is left",
            _weighing(
                lambda weights, position: (lambda kept: kept / kept.sum(-1, keepdim=True))(
                    _kept(weights, position)
                )
            ),
            "A row that had all its weight on this token has nothing left, and 0/0 is NaN. Such a row gets "
            "zeros: see to it that nothing is divided by 0.",
        ),
        Mistake(
            "row instead of column",
            _weighing(_row_gone),
            "Row number position is taken out: that token looks at nobody, and everybody looks at it as "
            "before. What nobody may look at is a key: a column, the last axis.",
        ),
        Mistake(
            "row and column",
            _weighing(lambda weights, position: _row_gone(_to_1(_kept(weights, position)), position)),
            "The column is right, and the row of the same number is taken out as well. That token still "
            "looks at the others; only, nobody looks at it.",
        ),
        Mistake(
            "the token's own row as before",
            _weighing(_own_row_as_before),
            "The token's own row is left as it was, with its weight on itself. It may look at the others; at "
            "itself it may look no more than they may.",
        ),
        Mistake(
            "all from that token on",
            _weighing(_all_from_there),
            "That token is taken out and all behind it, as a slice does. Only one key is gone.",
        ),
        Mistake(
            "the token is still there",
            _weighing(lambda weights, position: weights.clone()),
            "Nothing is taken out: that is weights @ value as it was. Look for position: is it used?",
        ),
        Mistake(
            "softmax of the weights",
            _weighing(
                lambda weights, position: weights.masked_fill(_gone(weights, position), -torch.inf).softmax(
                    -1
                )
            ),
            "The weights that are left go through a softmax. They come from one already: a second one makes "
            "them nearly equal, and gives weight to what had none. Divide by their sum.",
        ),
        Mistake(
            "softmax of the weights, zero in the place of the token",
            _weighing(lambda weights, position: _kept(weights, position).softmax(-1)),
            "The weights, with a 0 for the token, go through a softmax. exp(0) is 1, so it gets weight "
            "again, and all the others become nearly equal. Divide by the sum of what is left.",
        ),
        Mistake(
            "shared out evenly",
            _weighing(_evenly),
            "What lay on the token is shared out in equal parts, also to keys that had no weight, such as "
            "the future's. Divide by what is left: then the others keep their proportions.",
        ),
        Mistake(
            "a row with nothing left looks on as before",
            _weighing(_blind_as_before),
            "A row that had all its weight on this token keeps it there. Nobody may look at it: such a row "
            "gets zeros.",
        ),
        Mistake(
            "a row with nothing left looks everywhere",
            _weighing(_blind_evenly),
            "A row that had all its weight on this token shares it out over all the others, to which it gave "
            "nothing. Such a row gets zeros.",
        ),
        Mistake(
            "a row with nothing left looks at all alike",
            _weighing(_blind_alike),
            "A row that had all its weight on this token gives equal weights to all, that token among them. "
            "Such a row gets zeros.",
        ),
        Mistake("1e-6 added to what is left", _weighing(_with_a_small_number(1e-6)), _SMALL.format("1e-6")),
        Mistake("1e-8 added to what is left", _weighing(_with_a_small_number(1e-8)), _SMALL.format("1e-8")),
        Mistake(
            "what is left kept above a small number",
            _weighing(
                lambda weights, position: (lambda kept: kept / kept.sum(-1, keepdim=True).clamp(min=1e-6))(
                    _kept(weights, position)
                )
            ),
            "What a row is divided by is kept above a small number. Where less than that is left, the row "
            "sums to less than 1. Only where nothing at all is left does the division need help.",
        ),
        Mistake(
            "columns made to sum to 1",
            _weighing(lambda weights, position: _to_1(_kept(weights, position), -2)),
            "Each column is divided by its sum. Rows are what sums to 1: dim=-1, with keepdim=True.",
        ),
        Mistake(
            "one divisor for all rows",
            _weighing(
                lambda weights, position: (
                    _kept(weights, position)
                    / _kept(weights, position).sum((-2, -1), keepdim=True)
                    * weights.shape[-1]
                )
            ),
            "All rows of a head are divided by the same number. Each row has lost another share: divide "
            "it by what is left of it.",
        ),
        Mistake(
            "all rows together made to sum to 1",
            _weighing(lambda weights, position: _to_1(_kept(weights, position), (-2, -1))),
            "You divide by the sum of all that is left of a head, so that all its rows together sum to 1. "
            "Each row is to sum to 1: divide it by what is left of it.",
        ),
        Mistake(
            "divided by what is gone",
            _weighing(
                lambda weights, position: _kept(weights, position) / weights[..., _gone(weights, position)]
            ),
            "You divide by the weight that is taken away. Divide by what is left: 1 less that.",
        ),
        Mistake(
            "times what is left",
            _weighing(
                lambda weights, position: (lambda kept: kept * kept.sum(-1, keepdim=True))(
                    _kept(weights, position)
                )
            ),
            "You multiply by what is left. Then the rows sum to even less: divide.",
        ),
        Mistake(
            "only the token",
            _key_of_values,
            "That is what the token brings: its weight times its value. What the others bring without it is "
            "asked for.",
        ),
        Mistake(
            "counted from 1",
            lambda weights, value, position: _without_key(weights, value, (position - 1) % weights.shape[-1]),
            "The token before is taken out. position counts from 0, as torch does.",
        ),
        Mistake(
            "counted from 1, and none at 0",
            lambda weights, value, position: _without_key(weights, value, position - 1),
            "The token before is taken out, and none at all where position is 0. position counts from 0, as "
            "torch does.",
        ),
        Mistake(
            "a head instead of a token",
            _heads_gone,
            "Head number position is taken out. The first axis is the heads; the keys are the last axis of "
            "weights.",
        ),
        Mistake(
            "weights transposed",
            _weighing(lambda weights, position: _to_1(_kept(weights, position)).mT),
            "The weights meet the values transposed. Rows are queries: weights @ value.",
        ),
        Mistake(
            "values averaged",
            _weighing(
                lambda weights, position: (
                    (~_gone(weights, position)).to(weights.dtype) / (weights.shape[-1] - 1)
                ).expand_as(weights)
            ),
            "That is the mean of the other values: the weights are not used.",
        ),
        Mistake(
            "weights changed in place",
            _in_place,
            "The result is right, but the column of weights itself is overwritten. Make a new tensor: "
            "masked_fill, torch.where, or a clone().",
        ),
    ),
    hints=(
        "Two steps: take a column out, and make each row sum to 1 again. What is left of a row that had 0.4 "
        "on the token, and by what has it to be divided?",
        "torch.arange(T) == position is True at the token; weights.masked_fill(that, 0.0) is new. Its sum "
        "over the keys, with keepdim=True, is what is left of each row.",
        "Where nothing is left, the row is all zeros: divided by 1 it stays so. torch.where with 1 in "
        "the place of a sum of 0 keeps 0/0 from arising at all.",
    ),
)

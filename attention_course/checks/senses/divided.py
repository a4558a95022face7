"""Exercise 1: first over the frames, then over the places."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.senses.shared import NAME

Look = Callable[[Tensor, Tensor], Tensor]


def _attend(x: Tensor, w: Tensor) -> Tensor:
    """Tokens on axis -2."""
    scores = x @ w @ x.mT / x.shape[-1] ** 0.5
    return scores.softmax(-1) @ x


def _over_all(x: Tensor, w: Tensor) -> Tensor:
    return _attend(x.flatten(1, 2), w).view_as(x)


def _by(attend: Look) -> tuple[Look, Look]:
    """The same attention over frames and over places."""
    return (lambda x, w: attend(x.transpose(1, 2), w).transpose(1, 2)), attend


_over_frames, _over_places = _by(_attend)


def _two(
    first: Look = _over_frames,
    second: Look = _over_places,
    add: Callable[[Tensor, Tensor], Tensor] = torch.add,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def divided(x: Tensor, w_time: Tensor, w_space: Tensor) -> Tensor:
        y = add(x, first(x, w_time))
        return add(y, second(y, w_space))

    return divided


def _places_first(x: Tensor, w_time: Tensor, w_space: Tensor) -> Tensor:
    y = x + _over_places(x, w_space)
    return y + _over_frames(y, w_time)


def _side_by_side(x: Tensor, w_time: Tensor, w_space: Tensor) -> Tensor:
    return x + _over_frames(x, w_time) + _over_places(x, w_space)


def _second_from_x(x: Tensor, w_time: Tensor, w_space: Tensor) -> Tensor:
    y = x + _over_frames(x, w_time)
    return x + _over_places(y, w_space)


def _joint(x: Tensor, w_time: Tensor, w_space: Tensor) -> Tensor:
    return x + _over_all(x, w_time)


def _time_alone(x: Tensor, w_time: Tensor, w_space: Tensor) -> Tensor:
    return x + _over_frames(x, w_time)


def _space_alone(x: Tensor, w_time: Tensor, w_space: Tensor) -> Tensor:
    return x + _over_places(x, w_space)


def _reshaped(x: Tensor, w: Tensor) -> Tensor:
    """Frames and places change their names, and nothing is moved."""
    B, T, N, d = x.shape
    return _attend(x.reshape(B, N, T, d), w).reshape(B, T, N, d)


def _not_back(x: Tensor, w: Tensor) -> Tensor:
    """Moved to the back, and reshaped on the way home."""
    return _attend(x.transpose(1, 2), w).reshape(x.shape)


def _over_clips(x: Tensor, w: Tensor) -> Tensor:
    return _attend(x.transpose(0, 2), w).transpose(0, 2)


def _mean_first(x: Tensor, w: Tensor) -> Tensor:
    """Frames attend as wholes: the mean of their places."""
    return _attend(x.mean(2), w)[:, :, None].expand(x.shape)


def _causal(x: Tensor, w: Tensor) -> Tensor:
    scores = x @ w @ x.mT / x.shape[-1] ** 0.5
    T = x.shape[-2]
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ x


def _unscaled(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w @ x.mT).softmax(-1) @ x


def _by_number(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w @ x.mT / x.shape[-2] ** 0.5).softmax(-1) @ x


def _columns(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w @ x.mT / x.shape[-1] ** 0.5).softmax(-2) @ x


def _projected(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w @ x.mT / x.shape[-1] ** 0.5).softmax(-1) @ (x @ w)


def _in_place(x: Tensor, w_time: Tensor, w_space: Tensor) -> Tensor:
    x += _over_frames(x, w_time)
    return x + _over_places(x, w_space)


def _drawn(g: Generator, B: int, T: int, N: int, d: int, dtype: torch.dtype = torch.float32) -> Inputs:
    return normal(g, B, T, N, d, dtype=dtype), weight(g, d, d, dtype), weight(g, d, d, dtype)


def _far_below(g: Generator) -> Inputs:
    """Every score is near -800, twice: it comes from what all tokens have in common."""
    x, *weights = _drawn(g, 2, 3, 4, 4, torch.float64)
    x[..., 0] = 1.0
    for w, common in zip(weights, (-1600.0, -400.0), strict=True):
        w[0], w[:, 0] = 0.0, 0.0
        w[0, 0] = common
    return x, *weights


def _places_first_in_memory(g: Generator) -> Inputs:
    """As a list of places has it, each with its frames."""
    _, w_time, w_space = _drawn(g, 1, 1, 1, 4)
    return normal(g, 2, 3, 5, 4).transpose(1, 2), w_time, w_space


DIVIDED = Exercise(
    name=f"{NAME}.divided",
    title="First over the frames, then over the places",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_two(),
    returns=("clip",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 1, 2, 3, 2, most=9), halves(g, 2, 2), halves(g, 2, 2))),
        Case("more frames than places", lambda g: _drawn(g, 2, 5, 3, 4)),
        Case("as many frames as places", lambda g: _drawn(g, 3, 4, 4, 6)),
        Case("as many of everything", lambda g: _drawn(g, 4, 4, 4, 4)),
        Case("one frame", lambda g: _drawn(g, 2, 1, 6, 4)),
        Case("one place, float64", lambda g: _drawn(g, 2, 5, 1, 6, torch.float64)),
        Case("places before frames in memory", _places_first_in_memory),
        Case("scores far below 0, float64", _far_below),
        Case("gradient", lambda g: _drawn(g, 2, 3, 4, 5), gradient=True),
    ),
    mistakes=(
        Mistake(
            "over the places first",
            _places_first,
            "You look over the places of a frame first, and over the frames afterwards. It is the other way "
            "round: time, then space.",
        ),
        Mistake(
            "frames and places exchanged",
            _two(_over_places, _over_frames),
            "w_time serves the places of one frame, and w_space the frames. For the first look a place's "
            "frames have to be the tokens: which axis must stand before the last?",
        ),
        Mistake(
            "over everything at once",
            _joint,
            "All frames and places of a clip are one row of tokens: that is joint attention, with T·N times "
            "T·N scores. Divided attention looks twice, and each time at few.",
        ),
        Mistake(
            "over everything, twice",
            _two(_over_all, _over_all),
            "You look twice, and both times over all frames and places. The first look goes over the frames "
            "at one place, the second over the places of one frame.",
        ),
        Mistake(
            "over everything first",
            _two(_over_all),
            "The first look goes over all frames and places. It goes over the frames at one place.",
        ),
        Mistake(
            "over the places, twice",
            _two(_over_places, _over_places),
            "Both looks go over the places of one frame. For the first, a place's frames have to be the "
            "tokens: which axis must stand before the last?",
        ),
        Mistake(
            "over the frames, twice",
            _two(_over_frames, _over_frames),
            "Both looks go over the frames at one place. The second goes over the places of one frame.",
        ),
        Mistake(
            "reshaped instead of moved",
            _two(_reshaped),
            "[B, T, N, d] is reshaped to [B, N, T, d], which moves no number: a row then holds some places "
            "of some frames. transpose exchanges axes.",
        ),
        Mistake(
            "reshaped on the way back",
            _two(_not_back),
            "What comes from the first look is [B, N, T, d], and you reshape it to [B, T, N, d], which moves "
            "no number. transpose back, as you did before.",
        ),
        Mistake(
            "over the clips",
            _two(_over_clips),
            "Clips look at each other: the axis that you moved is the batch. Frames are axis 1.",
        ),
        Mistake(
            "places averaged in the first look",
            _two(_mean_first),
            "The first look averages the places of a frame, and every place gets the same. Each place looks "
            "at its own past and future.",
        ),
        Mistake(
            "both look at x",
            _side_by_side,
            "Both looks read x, side by side. The second reads what the first has made: only so can a place "
            "learn of another place in another frame.",
        ),
        Mistake(
            "the second sum takes x",
            _second_from_x,
            "The second sum takes x, the clip from before the first look. It takes the result of the first.",
        ),
        Mistake(
            "the first look alone",
            _time_alone,
            "Frames are looked over, places are not: the second look lacks.",
        ),
        Mistake(
            "the second look alone",
            _space_alone,
            "Places are looked over, frames are not: the first look lacks.",
        ),
        Mistake(
            "nothing added",
            _two(add=lambda x, said: said),
            "What a look gathers replaces the tokens. It is added to them, both times.",
        ),
        Mistake(
            "causal over the frames",
            _two(first=_by(_causal)[0]),
            "No frame sees a later one. The clip is there as a whole: nothing is hidden.",
        ),
        Mistake(
            "no scale",
            _two(*_by(_unscaled)),
            "The scores are not divided by √d.",
        ),
        Mistake(
            "divided by the number of tokens",
            _two(*_by(_by_number)),
            "The scores are divided by the root of the number of tokens. Divide by √d, the width of a token.",
        ),
        Mistake(
            "softmax over the queries",
            _two(*_by(_columns)),
            "The columns of the weights sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "values projected",
            _two(*_by(_projected)),
            "The values went through the matrix as well. It stands in the score alone: mix the tokens "
            "themselves.",
        ),
        Mistake(
            "matrices transposed",
            lambda x, w_time, w_space: _two()(x, w_time.mT, w_space.mT),
            "The matrices are transposed: key and query have changed places. The query stands on the left.",
        ),
        Mistake(
            "x changed in place",
            _in_place,
            "The result is right, but the first sum is written into x itself, as += does. Make a new tensor.",
        ),
    ),
    hints=(
        "A function attend(x, w) for tokens on the axis before the last serves for both looks. Which axis is "
        "that in x as it comes, and so for which look?",
        "transpose(1, 2) exchanges frames and places: [B, N, T, d] is a batch of B·N rows of T tokens. Never "
        "reshape for that, and come back the way you went.",
        "y is x plus what the frames tell; the result is y plus what the places of y tell. @, .mT and "
        "softmax(-1) work on the last two axes and leave all others alone.",
    ),
)

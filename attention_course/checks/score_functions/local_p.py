"""Exercise 6: a window that moves."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import loud, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.score_functions import shared
from attention_course.checks.score_functions.shared import NAME

#: D of the last exercise; the notebook says so
REACH = 3


def _local(
    *,
    centres: Callable[[Tensor, Tensor, int], Tensor] = lambda place, lengths, T_k: (
        lengths[:, None] * place.sigmoid()
    ),
    seen: Callable[[Tensor, Tensor], Tensor] = lambda offsets, real: (offsets.abs() <= REACH) & real,
    twice_variance: float = 2 * (REACH / 2) ** 2,
    weigh: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda scores, seen, bell: (
        shared.softmax_where(scores, seen) * bell
    ),
    first: int = 0,
    distance: Callable[[Tensor], Tensor] = lambda offsets: offsets**2,
    words: Callable[[Tensor], Tensor] = lambda lengths: lengths,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """local-p with one of its parts exchanged; offsets are how far each key lies behind the centre."""

    def local_p(scores: Tensor, place: Tensor, lengths: Tensor) -> Tensor:
        T_k = scores.shape[-1]
        positions = torch.arange(first, first + T_k)
        offsets = positions - centres(place, lengths, T_k).unsqueeze(-1)  # [B, T_q, T_k]
        bell = torch.exp(-distance(offsets) / twice_variance)
        return weigh(scores, seen(offsets, shared.real(T_k, words(lengths))), bell)

    return local_p


def _softmax_over_all_words(scores: Tensor, place: Tensor, lengths: Tensor) -> Tensor:
    """The window cuts after the softmax."""
    in_window = _local(weigh=lambda scores, seen, bell: seen * bell)(scores, place, lengths)
    return shared.softmax_where(scores, shared.real(scores.shape[-1], lengths)) * in_window


def _renormalised(scores: Tensor, seen: Tensor, bell: Tensor) -> Tensor:
    weights = shared.softmax_where(scores, seen) * bell
    return weights / weights.sum(-1, keepdim=True)


def _finite_outside(scores: Tensor, seen: Tensor, bell: Tensor) -> Tensor:
    return scores.masked_fill(~seen, -1e4).softmax(-1) * bell


def _local_inputs(
    generator: Generator, T_q: int, T_k: int, *lengths: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Places all over the sentence, also near its two ends."""
    return (
        normal(generator, len(lengths), T_q, T_k, dtype=dtype),
        1.5 * normal(generator, len(lengths), T_q, dtype=dtype),
        torch.tensor(lengths),
    )


def _loud(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    scores, place, lengths = _local_inputs(generator, 4, 12, 10, 12)
    return loud(scores, _local()(scores, place, lengths) > 0), place, lengths


def _far_below(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Scores near -12000, in float64, where they still differ."""
    scores, place, lengths = _local_inputs(generator, 4, 11, 11, 7, dtype=torch.float64)
    return scores - 12_000, place, lengths


LOCAL_P = Exercise(
    name=f"{NAME}.local_p",
    title="A window that says itself where it lies",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_local(),
    returns=("weights",),
    hidden=("weights",),
    cases=(
        # sigmoid(0) = 1/2: the window reaches from position 1 to 7, both included
        Case(
            "centre on a word",
            lambda g: (tenths(g, 1, 1, 9), torch.zeros(1, 1), torch.tensor([8])),
        ),
        Case("batch", lambda g: _local_inputs(g, 4, 12, 7, 12, 9)),
        Case("short sentences", lambda g: _local_inputs(g, 5, 10, 1, 2, 4)),
        Case("no padding, float64", lambda g: _local_inputs(g, 6, 11, 11, 11, dtype=torch.float64)),
        Case("high outside of the window", _loud),
        Case("scores far below 0, float64", _far_below),
        Case("gradient", lambda g: _local_inputs(g, 4, 10, 8, 10), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no window",
            _local(seen=lambda offsets, real: real.expand_as(offsets)),
            "The softmax runs over the whole sentence; the Gaussian makes far words small, but they "
            "have taken their share. Hide what lies more than D from p before the softmax.",
        ),
        Mistake(
            "window after the softmax",
            _softmax_over_all_words,
            "The softmax runs over the whole sentence, and only then the far words are cut off. The "
            "window comes first: the softmax shares out among its words only.",
        ),
        Mistake(
            "both masks after the softmax",
            _local(weigh=lambda scores, seen, bell: scores.softmax(-1) * seen * bell),
            "The softmax runs over everything, padding too, and only then window and sentence are cut out. "
            "What is hidden has taken its share by then. Look at what comes first.",
        ),
        Mistake(
            "a finite score outside of the window",
            _local(weigh=_finite_outside),
            "What is hidden has a finite score, such as -1e4. One case has scores lower than that, and there "
            "it takes all the weight from the window. Which score is lower than all others?",
        ),
        Mistake(
            "0 as the score outside of the window",
            _local(weigh=lambda scores, seen, bell: (scores * seen).softmax(-1) * bell),
            "What is hidden has the score 0, and exp(0) = 1: it still gets weight. Which score has the "
            "exponential 0?",
        ),
        Mistake(
            "no Gaussian",
            _local(weigh=lambda scores, seen, bell: shared.softmax_where(scores, seen)),
            "These are the weights within the window, as in local-m. The Gaussian is missing: by "
            "it words near p count more, and only through it does a gradient reach p.",
        ),
        Mistake(
            "Gaussian times the scores",
            _local(weigh=lambda scores, seen, bell: shared.softmax_where(scores * bell, seen)),
            "The Gaussian multiplies the scores, before the softmax. A score near 0 is not a small "
            "one: a far word with a bad score would gain. It multiplies the weights, afterwards.",
        ),
        Mistake(
            "rows made to sum to 1 again",
            _local(weigh=_renormalised),
            "The rows sum to 1, because you divide once more, or because the Gaussian's exponent is "
            "added to the scores, which comes to the same. In equation 10 the Gaussian multiplies "
            "the finished weights: the rows sum to less.",
        ),
        Mistake(
            "σ = D",
            _local(twice_variance=2.0 * REACH**2),
            "The bell is twice as wide: σ is D. Luong takes D / 2, so that the window's rim lies at 2σ.",
        ),
        Mistake(
            "σ not squared",
            _local(twice_variance=2 * (REACH / 2)),
            "The squared distance is divided by 2σ instead of 2σ².",
        ),
        Mistake(
            "2 left out of 2σ²",
            _local(twice_variance=(REACH / 2) ** 2),
            "The squared distance is divided by σ², so the bell is too narrow. Look in front of σ².",
        ),
        Mistake(
            "multiplied by σ²",
            _local(twice_variance=2 / (REACH / 2) ** 2),
            "The squared distance is halved and multiplied by σ². In Python a / 2 * b is (a / 2) * b: what "
            "stands under the line?",
        ),
        Mistake(
            "sign of the exponent",
            _local(twice_variance=-2 * (REACH / 2) ** 2),
            "The bell is upside down: it grows with the distance from p, and weights are above 1. Look at "
            "the sign in front of the fraction.",
        ),
        Mistake(
            "distance not squared",
            _local(distance=torch.abs),
            "The exponent holds the distance from p, not its square. Words near p lose too much.",
        ),
        Mistake(
            "window without its rim",
            _local(seen=lambda offsets, real: (offsets.abs() < REACH) & real),
            "A word exactly D away from p is hidden. The window [p - D, p + D] has its rim: <=, not <.",
        ),
        Mistake(
            "padding counted in p",
            _local(centres=lambda place, lengths, T_k: T_k * place.sigmoid()),
            "p is T_k · sigmoid(place): the padded width. The same sentence in a wider batch would "
            "look elsewhere. S is each sentence's own length.",
        ),
        Mistake(
            "S - 1 for S",
            _local(centres=lambda place, lengths, T_k: (lengths[:, None] - 1) * place.sigmoid()),
            "p is a share of S - 1, the place of the last word. In equation 9 it is a share of S, the number "
            "of words, so that p can lie behind the last.",
        ),
        Mistake(
            "no sigmoid",
            _local(centres=lambda place, lengths, T_k: lengths[:, None] * place),
            "p is S · place, which may lie far outside of the sentence: some windows hold no word at all, "
            "and their rows come to nothing. What makes a share between 0 and 1 of any number?",
        ),
        Mistake(
            "padding behind the last word seen",
            _local(words=lambda lengths: lengths + 1),
            "Where the window sticks out of the sentence, one place of padding is seen. Positions count from "
            "0, so the last word stands at lengths - 1: look at < and <=.",
        ),
        Mistake(
            "padding in the window",
            _local(seen=lambda offsets, real: offsets.abs() <= REACH),
            "Near a sentence's end the window sticks out into the padding, and padding gets weight "
            "there. A word is seen if it lies in the window and in the sentence.",
        ),
        Mistake(
            "positions counted from 1",
            _local(first=1),
            "Your first word stands at position 1, so everything lies one place too far to the "
            "right of p. Positions count from 0 here, as in torch.arange(T_k).",
        ),
        Mistake(
            "centre rounded down",
            _local(centres=lambda place, lengths, T_k: (lengths[:, None] * place.sigmoid()).floor()),
            "p is cut down to a whole number, as floor and long() do. It is a real number: the window moves "
            "by up to a place, and no gradient gets through.",
        ),
        Mistake(
            "centre rounded",
            _local(centres=lambda place, lengths, T_k: (lengths[:, None] * place.sigmoid()).round()),
            "p is rounded to a position. It is a real number: rounding moves the window by up to half "
            "a place, and no gradient gets through it.",
        ),
    ),
    hints=(
        "First p, [B, T_q], from lengths[:, None] and the sigmoid. Then the distance of every "
        "position from every p, [B, T_q, T_k]: all else is made from it.",
        "offsets = torch.arange(T_k) - p.unsqueeze(-1). Seen is what has abs() <= D and is no "
        "padding; padding is [B, 1, T_k], the same for every query.",
        "weights = softmax of the scores filled with -inf where they are not seen; then times "
        "exp(-offsets² / (2σ²)) with σ = D / 2, and no division after that.",
    ),
)

"""Exercise 5: ALiBi."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.positions.shared import NAME


def _slopes(num_heads: int) -> Tensor:
    return 2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads)


def _behind(T_q: int, T_k: int) -> Tensor:
    """How far each key lies behind each query, last query at last key; negative: in front."""
    return torch.arange(T_k - T_q, T_k)[:, None] - torch.arange(T_k)


def _behind_from_the_first(T_q: int, T_k: int) -> Tensor:
    return torch.arange(T_q)[:, None] - torch.arange(T_k)


def _behind_the_other_way(T_q: int, T_k: int) -> Tensor:
    return _behind_from_the_first(T_q, T_k) - (T_k - T_q)


def _alibi(
    slopes: Callable[[int], Tensor] = _slopes,
    distance: Callable[[int, int], Tensor] = lambda T_q, T_k: _behind(T_q, T_k).abs(),
    finish: Callable[[Tensor, Tensor], Tensor] = lambda scores, bias: (scores + bias).softmax(-1),
) -> Callable[[Tensor], Tensor]:
    def alibi_weights(scores: Tensor) -> Tensor:
        heads, T_q, T_k = scores.shape[-3:]
        bias = -slopes(heads)[:, None, None] * distance(T_q, T_k)
        return finish(scores, bias.to(scores.dtype))

    return alibi_weights


def _alibi_scores(scores: Tensor) -> Tensor:
    heads, T_q, T_k = scores.shape[-3:]
    bias = -_slopes(heads)[:, None, None] * _behind(T_q, T_k).abs()
    return scores + bias.to(scores.dtype)


def _alibi_weights(scores: Tensor) -> Tensor:
    return _alibi_scores(scores).softmax(-1)


def _alibi_slopes_along_queries(scores: Tensor) -> Tensor:
    heads, T_q, T_k = scores.shape[-3:]
    bias = -_slopes(heads)[:, None] * _behind(T_q, T_k).abs()
    return (scores + bias.to(scores.dtype)).softmax(-1)


def _alibi_slope_of_each_query(scores: Tensor) -> Tensor:
    T_q, T_k = scores.shape[-2:]
    bias = -_slopes(T_q)[:, None] * _behind(T_q, T_k).abs()
    return (scores + bias.to(scores.dtype)).softmax(-1)


def _alibi_in_place(scores: Tensor) -> Tensor:
    return scores.copy_(_alibi_scores(scores)).softmax(-1)


def _with_causal_mask(scores: Tensor) -> Tensor:
    return scores.masked_fill(_behind(*scores.shape[-2:]) < 0, -torch.inf).softmax(-1)


def _one_row_far_below(generator: Generator) -> tuple[Tensor]:
    """One query's scores lie so far below all others that their exponentials beside those are 0."""
    scores = normal(generator, 2, 4, 3, 5, dtype=torch.float64)
    scores[..., 1, :] -= 900.0
    return (scores,)


ALIBI_WEIGHTS = Exercise(
    name=f"{NAME}.alibi_weights",
    title="A price for distance",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_alibi_weights,
    returns=("weights",),
    distributions=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3, 3),)),
        Case("eight heads", lambda g: (normal(g, 2, 8, 5, 5),)),
        Case("sixteen heads", lambda g: (normal(g, 16, 3, 4),)),
        Case("as many heads as queries", lambda g: (normal(g, 2, 4, 4, 4),)),
        Case("two new queries, float64", lambda g: (normal(g, 3, 4, 2, 6, dtype=torch.float64),)),
        Case("one head", lambda g: (normal(g, 1, 3, 7),)),
        Case("one query's scores far below all others, float64", _one_row_far_below),
        Case("gradient", lambda g: (normal(g, 4, 3, 5),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no price at all",
            lambda scores: scores.softmax(-1),
            "Nothing is subtracted from the scores. Look for the slopes and the distances: are they used?",
        ),
        Mistake(
            "no softmax",
            _alibi_scores,
            "You return scores, with their price taken. The weights are asked for: softmax over the keys.",
        ),
        Mistake(
            "the future masked as well",
            _alibi(finish=lambda scores, bias: _with_causal_mask(scores + bias)),
            "You hide the future. This exercise has no mask: a key in front of the query pays for its "
            "distance like one behind it.",
        ),
        Mistake(
            "slopes not divided by the number of heads",
            _alibi(slopes=lambda heads: 2.0 ** (-8.0 * torch.arange(1, heads + 1))),
            "The exponents of the slopes are not divided by the number of heads: the last of them is -8, "
            "however many there are.",
        ),
        Mistake(
            "distance rewarded",
            _alibi(lambda heads: -_slopes(heads)),
            "Far keys gain. Distance has a price: the bias is 0 at the query itself and falls from "
            "there. Look at the sign.",
        ),
        Mistake(
            "slopes in reverse order",
            _alibi(lambda heads: _slopes(heads).flip(0)),
            "The last head has the steepest slope. Head 0 is the most short-sighted one: 2^(-8/h).",
        ),
        Mistake(
            "slopes counted from 0",
            _alibi(lambda heads: 2.0 ** (-8.0 * torch.arange(heads) / heads)),
            "Head 0 has the slope 2^0 = 1. The exponent of the first head is -8/h: count from 1.",
        ),
        Mistake(
            "slopes of eight heads",
            _alibi(lambda heads: 2.0 ** -torch.arange(1.0, heads + 1)),
            "The slopes are 1/2, 1/4, 1/8, ... however many heads there are. That is right for eight; "
            "in general the exponent goes from -8/h to -8 in equal steps.",
        ),
        Mistake(
            "8 // h",
            _alibi(lambda heads: 2.0 ** -(8 // heads * torch.arange(1.0, heads + 1))),
            "8 // h is a whole number: right up to eight heads, and 0 beyond, where every slope becomes 1. "
            "Divide by /.",
        ),
        Mistake(
            "the 8 missing",
            _alibi(lambda heads: 2.0 ** (-torch.arange(1, heads + 1) / heads)),
            "The slopes end at 1/2. The last head should have 2^-8: the factor 8 is missing from the "
            "exponent.",
        ),
        Mistake(
            "no slopes",
            _alibi(lambda heads: torch.ones(heads)),
            "Every head pays 1 per step. Each head has a slope of its own, and with it a range of its own.",
        ),
        Mistake(
            "the first slope for all heads",
            _alibi(lambda heads: _slopes(heads)[:1].expand(heads)),
            "Every head pays the price of the first. Each has a slope of its own, down to 2^-8 in the last.",
        ),
        Mistake(
            "a slope for each query",
            _alibi_slope_of_each_query,
            "There are as many slopes as queries, and each query pays its own price. Slopes belong to heads: "
            "h is the size of axis -3.",
        ),
        Mistake(
            "slopes along the queries",
            _alibi_slopes_along_queries,
            "The slopes are laid along the queries. With as many heads as queries nothing raises. "
            "Where do they need axes of length 1, to stand in front of [T_q, T_k]?",
        ),
        Mistake(
            "future rewarded",
            _alibi(distance=_behind),
            "The bias is -slope · (i - j), which is positive for keys in front: they gain. Here "
            "distance counts in both directions. (Adding slope · j to key j does the same, since "
            "softmax ignores what all keys of a query share; under a causal mask it would be right.)",
        ),
        Mistake(
            "past rewarded",
            _alibi(distance=lambda T_q, T_k: -_behind(T_q, T_k)),
            "The price is slope · (j - i), which is negative for keys behind the query: they gain. Here "
            "distance counts in both directions, and has no sign.",
        ),
        Mistake(
            "future free of charge",
            _alibi(distance=lambda T_q, T_k: _behind(T_q, T_k).clamp_min(0)),
            "Keys in front of the query pay nothing. Under a causal mask nobody would see them; here "
            "nothing is masked, and distance counts in both directions.",
        ),
        Mistake(
            "first query at first key",
            _alibi(distance=lambda T_q, T_k: _behind_from_the_first(T_q, T_k).abs()),
            "With fewer queries than keys, your queries stand at positions 0, 1, ... They are the last "
            "ones: the last query stands at the last key.",
        ),
        Mistake(
            "queries moved the other way",
            _alibi(distance=lambda T_q, T_k: _behind_the_other_way(T_q, T_k).abs()),
            "With fewer queries than keys, yours begin T_k - T_q places in front of the first key. Where "
            "does the last query stand, and so the first one?",
        ),
        Mistake(
            "queries one place too far",
            _alibi(distance=lambda T_q, T_k: (_behind(T_q, T_k) + 1).abs()),
            "Each query stands one place too far to the right: it pays for its own key, and the key in front "
            "of it costs nothing. The last query stands at the last key, which is T_k - 1.",
        ),
        Mistake(
            "bias after softmax",
            _alibi(finish=lambda scores, bias: scores.softmax(-1) + bias),
            "The bias is added to the weights, which no longer sum to 1 and may be negative. It "
            "belongs to the scores: look at what comes first.",
        ),
        Mistake(
            "scores changed in place",
            _alibi_in_place,
            "The bias is added into scores itself, as scores += ... does. Make a new tensor.",
        ),
    ),
    hints=(
        "Three small pieces: the positions of the queries and of the keys, the distances [T_q, T_k], "
        "the slopes [h]. What shape must the slopes have to multiply the distances?",
        "The queries stand at T_k - T_q, ..., T_k - 1. (query[:, None] - key).abs() is the table of "
        "distances; slopes[:, None, None] makes one table per head of it.",
        "The exponents of the h slopes go in equal steps from -8 / h to -8. Subtract each head's slope "
        "times the distances from its scores, then softmax over the last axis.",
    ),
)

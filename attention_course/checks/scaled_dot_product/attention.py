"""Exercise 3: attention."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.scaled_dot_product import shared
from attention_course.checks.scaled_dot_product.shared import NAME


def _mixed(weights_of):
    """An attention whose weights are ``weights_of(query, key)``."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        weights = weights_of(query, key)
        return weights @ value, weights

    return attention


def _attention_swapped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    context, weights = shared.attention(query, key, value)
    return weights, context


def _attention_mixes_keys(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = shared.softmax(shared.scaled_scores(query, key))
    return weights @ key, weights


def _attention_in_place(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    query /= query.shape[-1] ** 0.5
    weights = shared.softmax(query @ key.mT)
    return weights @ value, weights


def _attention_gives_scores(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = shared.scaled_scores(query, key)
    return shared.softmax(scores) @ value, scores


def _attention_late_scale(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = shared.softmax(query @ key.mT) / query.shape[-1] ** 0.5
    return weights @ value, weights


def _attention_by_the_values_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = shared.softmax(query @ key.mT / value.shape[-1] ** 0.5)
    return weights @ value, weights


def _softmax_everywhere(scores: Tensor) -> Tensor:
    return shared.softmax(scores.flatten(-2)).view_as(scores)


def _attention_context_scaled(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = shared.softmax(query @ key.mT)
    return weights @ value / query.shape[-1] ** 0.5, weights


def _qkv(generator: Generator, queries: int, keys: int, d_k: int, d_v: int, dtype=torch.float32):
    return (
        normal(generator, queries, d_k, dtype=dtype),
        normal(generator, keys, d_k, dtype=dtype),
        normal(generator, keys, d_v, dtype=dtype),
    )


def _extreme(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Scores in the thousands: each query has one key that wins by far."""
    query, key, value = _qkv(generator, 3, 5, 4, 2)
    return 100 * query.sign() + query, 100 * key.sign() + key, value


ATTENTION = Exercise(
    name=f"{NAME}.attention",
    title="Score, softmax, mix",
    points=2,
    difficulty=2,
    minutes=10,
    reference=shared.attention,
    returns=("context", "weights"),
    distributions=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 4), tenths(g, 3, 4), tenths(g, 3, 5))),
        Case("wide head", lambda g: _qkv(g, 3, 5, 256, 4)),
        Case(
            "batch and heads, float64",
            lambda g: tuple(
                tensor.double()
                for tensor in (
                    shared.split_heads(g, 2, 5, 3, 8),
                    shared.split_heads(g, 2, 7, 3, 8),
                    shared.split_heads(g, 2, 7, 3, 6),
                )
            ),
        ),
        Case("values as wide as keys", lambda g: _qkv(g, 5, 6, 3, 3)),
        Case("gradient", lambda g: _qkv(g, 4, 6, 7, 3), gradient=True),
        Case("large scores", _extreme),
    ),
    mistakes=(
        Mistake(
            "no scale",
            _mixed(lambda query, key: shared.softmax(query @ key.mT)),
            "The softmax sees plain dot products. Look at what has to happen to the scores before "
            "the softmax.",
        ),
        Mistake(
            "divided by d_k",
            _mixed(lambda query, key: shared.softmax(query @ key.mT / query.shape[-1])),
            "The scores are divided by d_k in all, so the weights are almost equal when d_k is "
            "large. Look at the power of d_k; and if your scores(query, key) scales already, "
            "attention must not do so again.",
        ),
        Mistake(
            "scaled by the number of keys",
            _mixed(lambda query, key: shared.softmax(query @ key.mT / key.shape[-2] ** 0.5)),
            "The scale is √T_k, the number of keys, where √d_k belongs. Look at which axis you take "
            "the length of.",
        ),
        Mistake(
            "d_k read from the first axis",
            _mixed(lambda query, key: shared.softmax(query @ key.mT / len(key) ** 0.5)),
            "The scale is √len(key). len counts along the first axis: that is the number of keys, or with a "
            "batch in front the number of sentences. d_k is the width of a key. Count from the end.",
        ),
        Mistake(
            "scaled by the values' width",
            _attention_by_the_values_width,
            "The scale is √d_v, the width of a value. The values have no part in a score: it is a sum over "
            "the d_k products of query and key.",
        ),
        Mistake(
            "later keys hidden",
            _mixed(lambda query, key: shared.softmax(shared.causal(shared.scaled_scores(query, key)))),
            "Some keys get the weight 0 that should be seen. Nothing is hidden in this exercise: look for a "
            "mask.",
        ),
        Mistake(
            "one softmax over the whole table",
            _mixed(lambda query, key: _softmax_everywhere(shared.scaled_scores(query, key))),
            "All weights of a table sum to 1 together, as if there were one query. Every row must sum to 1 "
            "by itself.",
        ),
        Mistake(
            "softmax twice",
            _mixed(lambda query, key: shared.softmax(shared.softmax(shared.scaled_scores(query, key)))),
            "The weights go through softmax a second time, which evens them out. Look for a "
            "softmax of something that already sums to 1.",
        ),
        Mistake(
            "softmax over the queries",
            _mixed(lambda query, key: shared.softmax_over(-2)(shared.scaled_scores(query, key))),
            "The columns of the weights sum to 1, not the rows. Each query shares its attention "
            "out among the keys, the last axis. Look at dim.",
        ),
        Mistake(
            "softmax over axis 1",
            _mixed(lambda query, key: shared.softmax_over(1)(shared.scaled_scores(query, key))),
            "The softmax runs over axis 1, which is the axis of the keys only without a batch and "
            "heads in front. Count from the end.",
        ),
        Mistake(
            "no softmax",
            _mixed(shared.scaled_scores),
            "The values are mixed with the scores themselves. Scores can be negative and sum to "
            "anything: look for the step that turns them into shares.",
        ),
        Mistake(
            "scale after the softmax",
            _attention_late_scale,
            "The weights are divided by √d_k after the softmax, so their rows sum to 1/√d_k. The "
            "scale belongs to the scores: divide before the softmax.",
        ),
        Mistake(
            "context scaled instead of scores",
            _attention_context_scaled,
            "The weights come from unscaled scores, and the context is divided by √d_k instead. "
            "Divide the scores before the softmax.",
        ),
        Mistake(
            "keys mixed instead of values",
            _attention_mixes_keys,
            "The context is a mixture of keys. Keys decide how much, values are what is mixed: "
            "look at the right factor of the last product.",
        ),
        Mistake(
            "weights returned first",
            _attention_swapped,
            "The two results are the wrong way round. Return (context, weights), in this order, as "
            "the whole course does.",
        ),
        Mistake(
            "scores returned as weights",
            _attention_gives_scores,
            "The context is right, but what is returned beside it are the scores before the "
            "softmax. Return what you mixed the values with.",
        ),
        Mistake(
            "weights not returned",
            lambda query, key, value: shared.attention(query, key, value)[0],
            "The context alone is returned. The weights are asked for too: return (context, weights).",
        ),
        Mistake(
            "query changed in place",
            _attention_in_place,
            "The scale is written into query itself, as query /= ... does. Make a new tensor.",
        ),
        Mistake(
            "overflow",
            _mixed(lambda query, key: shared.softmax_unstable(shared.scaled_scores(query, key))),
            "exp of a large score is infinite, and the division gives NaN. Use a softmax that "
            "takes each row's maximum away first: your own from the exercise before will do.",
        ),
    ),
    hints=(
        "Three steps: score every query against every key, turn each row of scores into weights, "
        "mix the values with them. You wrote the first two already.",
        "weights is [..., T_q, T_k] and value is [..., T_k, d_v]. Which product sums over the keys?",
        "What your softmax makes of your scores is the left factor of a matrix product, value the right "
        "one. Return both, context first.",
    ),
)

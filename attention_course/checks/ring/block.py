"""Exercise 1: one block of keys."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.ring import shared
from attention_course.checks.ring.shared import NAME


def _block(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp() @ value, lse


def _blockwise(
    lse: Callable[[Tensor], Tensor] = lambda scores: scores.logsumexp(-1),
    score: Callable[[Tensor, Tensor], Tensor] = shared.scaled,
    weights: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(-1),
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def block(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        scores = score(query, key)
        return weights(scores) @ value, lse(scores)

    return block


def _plain_exponentials(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    powers = shared.scaled(query, key).exp()
    total = powers.sum(-1)
    return powers @ value / total[..., None], total.log()


def _maximum_not_added(scores: Tensor) -> Tensor:
    return (scores - scores.amax(-1, keepdim=True)).exp().sum(-1).log()


def _one_maximum(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """One maximum for all queries: where it is far above a query's own scores, all powers are 0."""
    scores = shared.scaled(query, key)
    top = scores.max()
    powers = (scores - top).exp()
    total = powers.sum(-1)
    return powers @ value / total[..., None], top + total.log()


def _out_scaled_again(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """As by scaled_dot_product_attention of a query that is scaled already."""
    scores = shared.scaled(query, key)
    return (scores / query.shape[-1] ** 0.5).softmax(-1) @ value, scores.logsumexp(-1)


def _by_d_v(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT / value.shape[-1] ** 0.5
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _lse_with_an_axis_too_many(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = shared.scaled(query, key)
    return scores.softmax(-1) @ value, scores.logsumexp(-1, keepdim=True)


def _far_apart(generator: Generator) -> Inputs:
    """Scores around 150, around 0 and around -150: exp of the first is no float32, of the last it is 0."""
    query, key, value = shared.qkv(generator, 2, d_k=4)
    level = torch.tensor([150.0, 0.0, -150.0])[:, None]
    query = torch.cat((query[..., :3], 2 * level.expand(2, 3, 1)), -1)  # / √4
    key = torch.cat((key[..., :3], torch.ones(2, 5, 1)), -1)
    return query, key, value


BLOCK = Exercise(
    name=f"{NAME}.block",
    title="One block of keys",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_block,
    returns=("out", "lse"),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 3, 2), tenths(g, 4, 2), tenths(g, 4, 1))),
        Case("sentences and heads", lambda g: shared.qkv(g, 2, 3)),
        Case("as many queries as keys", lambda g: shared.qkv(g, 2, T_q=4, T_k=4)),
        Case("a single key", lambda g: shared.qkv(g, T_k=1)),
        Case("scores far apart", _far_apart),
        Case("wide, float64", lambda g: shared.qkv(g, 2, d_k=64, dtype=torch.float64)),
        Case("gradient", lambda g: shared.qkv(g, 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "sum without the logarithm",
            _blockwise(lambda scores: scores.exp().sum(-1)),
            "lse is the sum of the exponentials itself. It has to be its logarithm: the sum is no "
            "float32 any more once a score passes 88.",
        ),
        Mistake(
            "exponentials of the scores as they are",
            _plain_exponentials,
            "Right as long as the scores are small. exp(89) is infinite in float32 and exp(-110) is 0: "
            "take each query's largest score away first, and add it again after the logarithm, or "
            "let torch.logsumexp do both.",
        ),
        Mistake(
            "maximum not added again",
            _blockwise(_maximum_not_added),
            "You take the largest score away before exp, as you should, but lse lacks it afterwards: "
            "log Σ exp(s) = m + log Σ exp(s - m).",
        ),
        Mistake(
            "one maximum for all queries",
            _one_maximum,
            "You take away the largest score of the whole table. A query whose scores all lie far "
            "below it has nothing but zeros left. Every query needs its own maximum.",
        ),
        Mistake(
            "largest score instead of lse",
            _blockwise(lambda scores: scores.amax(-1)),
            "lse is the largest score. That is only the first part of it: the other keys count, too.",
        ),
        Mistake(
            "lse of the weights",
            _blockwise(lambda scores: scores.softmax(-1).sum(-1).log()),
            "lse is 0 everywhere: you add up the weights, after the softmax. What you need is what the "
            "softmax divided by.",
        ),
        Mistake(
            "lse as a mean",
            _blockwise(lambda scores: scores.logsumexp(-1) - torch.tensor(scores.shape[-1]).log()),
            "lse is that of the mean of the exponentials, not of their sum. A block of many keys would "
            "then weigh no more than one of few.",
        ),
        Mistake(
            "lse of scores without the scale",
            lambda query, key, value: (
                shared.scaled(query, key).softmax(-1) @ value,
                (query @ key.mT).logsumexp(-1),
            ),
            "out is right, lse is that of the scores before they are divided by √d_k. Both have to be "
            "made from the same scores.",
        ),
        Mistake(
            "scale forgotten",
            _blockwise(score=lambda query, key: query @ key.mT),
            "The scores are not divided by √d_k.",
        ),
        Mistake(
            "divided by d_k",
            _blockwise(score=lambda query, key: query @ key.mT / query.shape[-1]),
            "The scores are divided by d_k, not by its root.",
        ),
        Mistake(
            "divided by the root of d_v",
            _by_d_v,
            "The scores are divided by √d_v, the width of the values. Which two vectors is a score made of, "
            "and how long are they?",
        ),
        Mistake(
            "divided by the root of T_k",
            _blockwise(score=lambda query, key: query @ key.mT / key.shape[-2] ** 0.5),
            "The scores are divided by the root of the number of keys. It is the width of a key that counts, "
            "√d_k: look at the axis.",
        ),
        Mistake(
            "out scaled twice",
            _out_scaled_again,
            "lse is right, but the scores from which out is made are divided by √d_k twice. "
            "scaled_dot_product_attention scales by itself.",
        ),
        Mistake(
            "out not divided, the maximum taken off",
            _blockwise(weights=lambda scores: (scores - scores.amax(-1, keepdim=True)).exp()),
            "lse is right. For out the maximum is taken away and the values are weighed by exp, but these "
            "weights do not sum to 1: by what does the softmax divide?",
        ),
        Mistake(
            "logarithm to base 2",
            _blockwise(lambda scores: scores.logsumexp(-1) / torch.tensor(2.0).log()),
            "lse is a logarithm to base 2. Kernels like that, but then they exponentiate with base 2 as "
            "well. Here exp comes next: take the natural one.",
        ),
        Mistake(
            "lse over the queries",
            _blockwise(lambda scores: scores.logsumexp(-2)),
            "out is right, but the sum in lse runs over the queries: it has one number for each key. One for "
            "each query is asked for, of a sum over the keys.",
        ),
        Mistake(
            "over the queries",
            _blockwise(lambda scores: scores.logsumexp(-2), weights=lambda scores: scores.softmax(-2)),
            "Softmax and sum run over the queries, axis -2. They run over the keys, which is axis -1.",
        ),
        Mistake(
            "an axis too many",
            _lse_with_an_axis_too_many,
            "lse has an axis of length 1 at the end. It is one number for each query: leave keepdim "
            "away, or squeeze.",
        ),
        Mistake(
            "out not divided",
            _blockwise(weights=lambda scores: scores.exp()),
            "out is the sum of exponentials times values. Divide by the sum of the exponentials: out "
            "is what attention over this block alone would return.",
        ),
    ),
    hints=(
        "Compute the scores once and use them twice: for the softmax that mixes the values, and for "
        "the logarithm of the sum of their exponentials.",
        "logsumexp over the keys has one number for each query and does not overflow.",
        "The weights are exp of the scores minus that number, which needs an axis for the keys. softmax "
        "over the keys is the same thing.",
    ),
)

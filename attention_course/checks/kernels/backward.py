"""Exercise 4: backward without the weights."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import lifted, normal
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.kernels.shared import NAME


def _backward(
    scale: Callable[[int, int], float] = lambda d_k, d_v: d_k**-0.5,
    after: Callable[[int, int], float] = lambda d_k, d_v: d_k**-0.5,
    weights: Callable[[Tensor, Tensor], Tensor] = lambda scores, lse: (scores - lse[..., None]).exp(),
    total: Callable[..., Tensor] = lambda slope, context, slope_weights, p: (slope * context).sum(-1, True),
    slope_of_scores: Callable[..., Tensor] = lambda p, dp, d: p * (dp - d),
) -> Callable[..., tuple[Tensor, Tensor]]:
    def backward(
        query: Tensor, key: Tensor, value: Tensor, context: Tensor, lse: Tensor, d_context: Tensor
    ) -> tuple[Tensor, Tensor]:
        widths = query.shape[-1], value.shape[-1]
        p = weights(query @ key.mT * scale(*widths), lse)
        dp = d_context @ value.mT
        ds = slope_of_scores(p, dp, total(d_context, context, dp, p))
        return ds, ds @ key * after(*widths)

    return backward


def _query_from_the_weights(
    query: Tensor, key: Tensor, value: Tensor, context: Tensor, lse: Tensor, d_context: Tensor
) -> tuple[Tensor, Tensor]:
    scale = query.shape[-1] ** -0.5
    p = (query @ key.mT * scale - lse[..., None]).exp()
    return _backward_reference(query, key, value, context, lse, d_context)[0], p @ key * scale


def _powers_over_sum(scores: Tensor) -> Tensor:
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def _backward_reference(
    query: Tensor, key: Tensor, value: Tensor, context: Tensor, lse: Tensor, d_context: Tensor
) -> tuple[Tensor, Tensor]:
    scale = query.shape[-1] ** -0.5
    p = (query @ key.mT * scale - lse[..., None]).exp()
    d_scores = p * (d_context @ value.mT - (d_context * context).sum(-1, keepdim=True))
    return d_scores, d_scores @ key * scale


def _after_forward(
    g: Generator,
    T_q: int,
    n: int,
    d_v: int,
    *leading: int,
    size: float = 1.0,
    heights: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """What a forward pass over n + 3 keys leaves behind, a slope from above, and n of the keys; ``heights``
    are added to the scores."""
    query = size * normal(g, *leading, T_q, 6, dtype=dtype)
    key, value = (normal(g, *leading, n + 3, width, dtype=dtype) for width in (6, d_v))
    if heights is not None:
        query, key = lifted(query, key, heights)
    scores = query @ key.mT / math.sqrt(6)
    context, lse = scores.softmax(-1) @ value, scores.logsumexp(-1)
    slope = normal(g, *leading, T_q, d_v, dtype=dtype)
    return query, key[..., 1 : n + 1, :], value[..., 1 : n + 1, :], context, lse, slope


BACKWARD = Exercise(
    name=f"{NAME}.backward",
    title="Backward from one number per query",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_backward_reference,
    returns=("d_scores", "d_query"),
    forbidden=("softmax", "scaled_dot_product_attention", "grad", "backward"),
    cases=(
        Case("three queries, five keys", lambda g: _after_forward(g, 3, 5, 2)),
        Case("as many queries as keys", lambda g: _after_forward(g, 4, 4, 4)),
        Case("batch and heads", lambda g: _after_forward(g, 4, 7, 3, 2, 3)),
        Case("one query", lambda g: _after_forward(g, 1, 6, 3)),
        Case(
            "scores in the hundreds, float64",
            lambda g: _after_forward(g, 3, 5, 2, size=300.0, dtype=torch.float64),
        ),
        Case(
            "scores near 1000 and -1000, float64",
            lambda g: _after_forward(
                g, 3, 5, 2, 2, heights=torch.tensor([[1000.0], [-1000.0]]), dtype=torch.float64
            ),
        ),
        Case("gradient", lambda g: _after_forward(g, 3, 4, 2, 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "D left out",
            _backward(slope_of_scores=lambda p, dp, d: p * dp),
            "dS is P ∘ dP. Softmax shares out a total of 1: if one weight rises, the others fall. That is "
            "what D is for.",
        ),
        Mistake(
            "D added",
            _backward(slope_of_scores=lambda p, dp, d: p * (dp + d)),
            "dS is P ∘ (dP + D). Look at the sign: when one score rises, the other weights fall.",
        ),
        Mistake(
            "D outside the bracket",
            _backward(slope_of_scores=lambda p, dp, d: p * dp - d),
            "dS is P ∘ dP - D. Each key pays its share of D: it stands in the bracket that P multiplies.",
        ),
        Mistake(
            "D from this block alone",
            _backward(total=lambda slope, context, dp, p: (p * dp).sum(-1, True)),
            "D is the sum of P ∘ dP over the keys you were given. They are one block of many; D belongs to "
            "all keys. What was kept for each query tells it: dO · O.",
        ),
        Mistake(
            "weights made to sum to 1 in this block",
            _backward(weights=lambda scores, lse: _powers_over_sum(scores)),
            "The weights sum to 1 over the keys you were given. They are one block of many: divide by the "
            "sum over all keys, whose logarithm is lse.",
        ),
        Mistake(
            "D is the sum of dP",
            _backward(total=lambda slope, context, dp, p: dp.sum(-1, True)),
            "D is the plain sum of dP over this block's keys. It is the sum of P ∘ dP over all keys, which "
            "you get from dO and O.",
        ),
        Mistake(
            "D is the mean of dP",
            _backward(total=lambda slope, context, dp, p: dp.mean(-1, True)),
            "D is the plain mean of dP over this block's keys. It is the weighted mean over all keys, which "
            "you get from dO and O.",
        ),
        Mistake(
            "D from the slope alone",
            _backward(total=lambda slope, context, dp, p: slope.sum(-1, True)),
            "D is the sum of dO. It is the sum of dO ∘ O: multiply by the context first.",
        ),
        Mistake(
            "one D for all queries",
            _backward(total=lambda slope, context, dp, p: (slope * context).sum((-2, -1), True)),
            "D is summed over the queries as well. Every query has its own: one number per row.",
        ),
        Mistake(
            "lse forgotten",
            _backward(weights=lambda scores, lse: scores.exp()),
            "The weights are exp(scores), not divided by their sum. The logarithm of that sum is lse.",
        ),
        Mistake(
            "lse added",
            _backward(weights=lambda scores, lse: (scores + lse[..., None]).exp()),
            "The weights are exp(scores + lse). To divide by the sum, subtract its logarithm.",
        ),
        Mistake(
            "divided by lse",
            _backward(weights=lambda scores, lse: scores.exp() / lse[..., None]),
            "The powers are divided by lse. That is the logarithm of the sum, not the sum: subtract it "
            "before you exponentiate.",
        ),
        Mistake(
            "quotient of exponentials",
            _backward(weights=lambda scores, lse: scores.exp() / lse.exp()[..., None]),
            "The weights are exp(scores) / exp(lse). Where scores are large both are infinite, and far below "
            "0 both are 0. Subtract first: only the difference may be exponentiated.",
        ),
        Mistake(
            "each weight by itself",
            _backward(slope_of_scores=lambda p, dp, d: p * (1 - p) * dp),
            "dS is P ∘ (1 - P) ∘ dP: what a score does to its own weight. It moves all the others, too, and "
            "D is what they say together.",
        ),
        Mistake(
            "D is the mean over the columns",
            _backward(total=lambda slope, context, dp, p: (slope * context).mean(-1, True)),
            "D is the mean of dO ∘ O over the columns. It is their product, summed.",
        ),
        Mistake(
            "d_query from the weights",
            _query_from_the_weights,
            "d_scores is right. d_query is made of P, not of dS.",
        ),
        Mistake(
            "no scale anywhere",
            _backward(scale=lambda d_k, d_v: 1.0, after=lambda d_k, d_v: 1.0),
            "1/√d_k is in neither place. The forward pass divided the scores by √d_k: lse belongs to them, "
            "and the gradient of the query gets the same factor.",
        ),
        Mistake(
            "scaled with √d_v",
            _backward(scale=lambda d_k, d_v: d_v**-0.5, after=lambda d_k, d_v: d_v**-0.5),
            "The scale is the root of the values' width. A score sums over d_k products, the width of "
            "queries and keys.",
        ),
        Mistake(
            "no scale",
            _backward(scale=lambda d_k, d_v: 1.0),
            "The scores are made without 1/√d_k, but lse belongs to the scaled ones.",
        ),
        Mistake(
            "scale forgotten in the gradient of the query",
            _backward(after=lambda d_k, d_v: 1.0),
            "d_scores is right. The query was multiplied by the keys and by 1/√d_k, so its gradient needs "
            "1/√d_k, too.",
        ),
        Mistake(
            "scale in the slope of the scores",
            lambda *inputs: (
                _backward_reference(*inputs)[0] * inputs[0].shape[-1] ** -0.5,
                _backward_reference(*inputs)[1],
            ),
            "d_query is right. d_scores is the slope in the scaled scores, those that go into softmax: "
            "1/√d_k comes after it.",
        ),
    ),
    hints=(
        "Make the weights again: P = exp(S - lse), with the scaled scores S = Q Kᵀ/√d_k. In this block they "
        "sum to less than 1.",
        "dP is the product of d_context with the values. And D = Σ_j P_j dP_j = Σ_j P_j (dO · v_j) = dO "
        "· Σ_j P_j v_j over all keys j, which is dO · O: a sum over the last axis of d_context and "
        "context, kept as a column.",
        "The gradient of the scores is P times what is left of dP without D. A product with key takes it "
        "to the queries; the scale of the scores, 1/√d_k, comes with it once.",
    ),
)

"""Exercise 5: the Jacobian of softmax."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.scaled_dot_product import shared
from attention_course.checks.scaled_dot_product.shared import NAME


def _softmax_jacobian(weights: Tensor) -> Tensor:
    return torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]


def _outer(weights: Tensor) -> Tensor:
    return weights[..., :, None] * weights[..., None, :]


def _identity(weights: Tensor) -> Tensor:
    return torch.eye(weights.shape[-1], dtype=weights.dtype)


def _jacobian_shared_outer(weights: Tensor) -> Tensor:
    rows = weights.reshape(-1, weights.shape[-1])
    return torch.diag_embed(weights) - rows.mT @ rows


def _jacobian_flat_outer(weights: Tensor) -> Tensor:
    flat = weights.reshape(-1)
    return torch.diag(flat) - torch.outer(flat, flat)


def _jacobian_in_place(weights: Tensor) -> Tensor:
    outer = _outer(weights)
    weights *= 1 - weights
    off = 1 - torch.eye(weights.shape[-1], dtype=weights.dtype)
    return torch.diag_embed(weights) - outer * off


def _weights(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return shared.softmax(normal(generator, *shape, dtype=dtype))


def _shares(generator: Generator) -> tuple[Tensor]:
    """Four weights with one decimal that sum to 1: ten tenths, cut in three places."""
    cuts = (torch.randperm(9, generator=generator)[:3] + 1).sort().values.tolist()
    parts = [right - left for left, right in zip([0, *cuts], [*cuts, 10], strict=True)]
    return (torch.tensor(parts, dtype=torch.float32) / 10,)


def _nearly_certain(generator: Generator) -> tuple[Tensor]:
    """Almost all weight on one key: what an unscaled softmax gives at d_k = 256."""
    scores = normal(generator, 2, 5)
    scores[0, 3] += 20
    scores[1, 1] += 20
    return (shared.softmax(scores),)


SOFTMAX_JACOBIAN = Exercise(
    name=f"{NAME}.softmax_jacobian",
    title="What a saturated softmax lets through",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_softmax_jacobian,
    returns=("jacobian",),
    cases=(
        Case("one decimal", _shares),
        Case("several queries", lambda g: (_weights(g, 2, 4),)),
        Case("batch and heads, float64", lambda g: (_weights(g, 2, 3, 4, 6, dtype=torch.float64),)),
        Case("nearly certain", _nearly_certain),
        Case("gradient", lambda g: (_weights(g, 3, 5),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "diagonal only",
            lambda weights: torch.diag_embed(weights * (1 - weights)),
            "Off the diagonal there is nothing. Raising one score also lowers the weights of all "
            "the others: look at what depends on i and on j.",
        ),
        Mistake(
            "vector instead of matrix",
            lambda weights: weights * (1 - weights),
            "These are the diagonal entries, as for a sigmoid. Every weight depends on every score: "
            "the derivative is a matrix, [..., T, T].",
        ),
        Mistake(
            "plus instead of minus",
            lambda weights: torch.diag_embed(weights) + _outer(weights),
            "The outer product is added. When one score rises, the other weights fall: look at the sign.",
        ),
        Mistake(
            "sign turned",
            lambda weights: _outer(weights) - torch.diag_embed(weights),
            "Every sign is turned. When a score rises its own weight rises: the diagonal must be positive.",
        ),
        Mistake(
            "outer product missing",
            torch.diag_embed,
            "This is diag(w) alone. The rows of the Jacobian must sum to 0, because the weights "
            "always sum to 1: what has to be taken away?",
        ),
        Mistake(
            "diagonal term missing",
            lambda weights: -_outer(weights),
            "This is -wwᵀ alone. The rows of the Jacobian must sum to 0: what is missing on the diagonal?",
        ),
        Mistake(
            "identity instead of diag(w)",
            lambda weights: _identity(weights) - _outer(weights),
            "The diagonal starts from 1 instead of w. Look at what δ is multiplied with.",
        ),
        Mistake(
            "1 instead of δ",
            lambda weights: weights[..., :, None] * (1 - weights[..., None, :]),
            "This is w_i (1 - w_j) everywhere. That holds on the diagonal only: 1 must be δ_ij, "
            "which is 0 elsewhere.",
        ),
        Mistake(
            "w_i for w_j inside",
            lambda weights: weights[..., :, None] * (_identity(weights) - weights[..., :, None]),
            "This is w_i (δ_ij - w_i): off the diagonal every entry of a row is the same. How far weight i "
            "falls depends on j, whose score rises: look at the index inside the brackets.",
        ),
        Mistake(
            "softmax of the weights",
            lambda weights: _softmax_jacobian(weights.softmax(-1)),
            "The weights go through softmax once more. They come out of it already: w stands in the formula "
            "as it is.",
        ),
        Mistake(
            "derivative of the logarithm",
            lambda weights: (
                _identity(weights) - weights[..., None, :].expand(*weights.shape, weights.shape[-1])
            ),
            "This is δ_ij - w_j, which says how the logarithm of weight i moves. One factor of the formula "
            "is left out.",
        ),
        Mistake(
            "one outer product for all queries",
            _jacobian_shared_outer,
            "The outer product sums over all queries, as weights.mT @ weights does. Every row of "
            "weights needs its own T × T matrix: look for a product that keeps the leading axes.",
        ),
        Mistake(
            "queries flattened together",
            _jacobian_flat_outer,
            "All queries are treated as one long row, as torch.outer(weights.flatten(), ...) does. "
            "Every row of weights needs its own T × T matrix.",
        ),
        Mistake(
            "outer product is only a square",
            lambda weights: torch.diag_embed(weights) - (weights * weights)[..., None, :],
            "weights * weights multiplies entry by entry, w_j · w_j in every row. The outer product "
            "has w_i · w_j: give one factor an axis of its own.",
        ),
        Mistake(
            "weights changed in place",
            _jacobian_in_place,
            "weights itself is overwritten. Make a new tensor.",
        ),
    ),
    hints=(
        "Entry (i, j) says how weight i moves when score j moves: ∂w_i/∂s_j = w_i (δ_ij - w_j). "
        "Write down the 3 × 3 matrix for w = [0.2, 0.4, 0.4].",
        "Split it in two: w_i δ_ij is a diagonal matrix (torch.diag_embed keeps leading axes), and "
        "w_i w_j is an outer product.",
        "An outer product is each row as a column times the same row as a row: one factor gets an axis "
        "of length 1 behind its last, the other before its last, and broadcasting does the rest.",
    ),
)

"""Exercise 4: cross-attention."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME


def _softmax_masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


def _masked_over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-2)


def _cross(
    *,
    sources: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = lambda x, memory: (
        x,
        memory,
        memory,
    ),
    mask: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda scores, x_real, memory_real: memory_real[
        :, None
    ],
    scale: Callable[[Tensor, Tensor], float] = lambda x, key: key.shape[-1] ** 0.5,
    softmax: Callable[[Tensor, Tensor], Tensor] = _softmax_masked,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Cross-attention with one of its parts replaced; ``mask`` gets boolean x_real and memory_real."""

    def cross_attention(
        x: Tensor,
        memory: Tensor,
        x_real: Tensor,
        memory_real: Tensor,
        w_query: Tensor,
        w_key: Tensor,
        w_value: Tensor,
    ) -> tuple[Tensor, Tensor]:
        for_query, for_key, for_value = sources(x, memory)
        query, key, value = for_query @ w_query, for_key @ w_key, for_value @ w_value
        scores = query @ key.mT / scale(x, key)
        weights = softmax(scores, mask(scores, x_real.bool(), memory_real.bool()))
        return weights @ value, weights

    return cross_attention


def _masked_afterwards(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.softmax(-1) * mask


def _padding_silenced(x: Tensor, memory: Tensor, x_real: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    context, weights = _cross()(x, memory, x_real, *others)
    return context * x_real[..., None], weights


def _lower_triangle(scores: Tensor) -> Tensor:
    T_q, T_k = scores.shape[-2:]
    return torch.ones(T_q, T_k, dtype=torch.bool).tril()


def _sentences(
    generator: Generator,
    x_real: Tensor,
    memory_real: Tensor,
    width: int,
    d_k: int,
    d_v: int,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    return (
        normal(generator, *x_real.shape, width, dtype=dtype),
        normal(generator, *memory_real.shape, width, dtype=dtype),
        x_real,
        memory_real,
        *(weight(generator, width, columns, dtype) for columns in (d_k, d_k, d_v)),
    )


def _loud(generator: Generator) -> Inputs:
    """The first number of a token of memory says whether it is padding, and the first of its key shows it:
    padding scores 24000, and words -24000."""
    memory_real = shared.real(5, 3, 5)
    x, memory, *real, w_query, w_key, w_value = _sentences(
        generator, shared.real(4, 2, 4), memory_real, 6, 4, 3, torch.float64
    )
    x[..., 0] = 1.0
    memory[..., 0] = 1.0 - 2.0 * memory_real
    for projection, common in ((w_query, 1.0), (w_key, 48_000.0)):
        projection[:, 0] = 0.0
        projection[0, 0] = common
    return x, memory, *real, w_query, w_key, w_value


CROSS_ATTENTION = Exercise(
    name=f"{NAME}.cross_attention",
    title="Where each comes from",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_cross(),
    returns=("context", "weights"),
    unseen=("memory",),
    distributions=("weights",),
    hidden=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 1, 2, 4),
                tenths(g, 1, 3, 4),
                shared.real(2, 2),
                shared.real(3, 2),
                *(halves(g, 4, columns) for columns in (2, 2, 3)),
            ),
        ),
        Case(
            "longer source",
            lambda g: _sentences(g, shared.real(5, 4, 5), shared.real(7, 7, 3).long(), 12, 8, 6),
        ),
        Case(
            "both of one length",
            lambda g: _sentences(g, shared.real(5, 5, 3, 2), shared.real(5, 2, 5, 4), 12, 8, 6),
        ),
        Case(
            "as many sentences as target tokens",
            lambda g: _sentences(g, shared.real(3, 3, 2, 3), shared.real(6, 6, 2, 4).long(), 8, 4, 5),
        ),
        Case(
            "shorter source, float64",
            lambda g: _sentences(g, shared.real(6, 3, 6), shared.real(4, 4, 3), 8, 4, 5, torch.float64),
        ),
        Case("padding scores high, float64", _loud),
        Case(
            "gradient",
            lambda g: _sentences(g, shared.real(3, 3, 2).long(), shared.real(4, 2, 4).long(), 6, 5, 4),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "memory never read",
            _cross(
                sources=lambda x, memory: (x, x, x),
                mask=lambda scores, x_real, memory_real: x_real[:, None],
            ),
            "Queries, keys and values all come from x: that is self-attention. Without memory the "
            "decoder knows nothing of the source. Keys and values come from memory.",
        ),
        Mistake(
            "roles exchanged",
            _cross(
                sources=lambda x, memory: (memory, x, x),
                mask=lambda scores, x_real, memory_real: x_real[:, None],
            ),
            "The source asks and the target answers: one row comes out per source token. The decoder "
            "asks: queries come from x, keys and values from memory.",
        ),
        Mistake(
            "values from x",
            _cross(sources=lambda x, memory: (x, memory, x)),
            "Keys come from memory, but values from x. A value is handed over by whoever was found "
            "by its key, so both come from the same tokens.",
        ),
        Mistake(
            "the target's padding",
            _cross(mask=lambda scores, x_real, memory_real: x_real[:, None]),
            "Keys are masked by the padding of the target. Keys are source tokens: it is their "
            "padding that nobody may read. With both of one length nothing raises.",
        ),
        Mistake(
            "padded queries hidden as well",
            _cross(mask=lambda scores, x_real, memory_real: x_real[:, :, None] & memory_real[:, None]),
            "The rows of padded target tokens see nothing and become NaN. Nobody reads such a row, "
            "and the loss leaves it out: mask keys only.",
        ),
        Mistake(
            "no mask",
            _cross(mask=lambda scores, x_real, memory_real: torch.ones_like(scores, dtype=torch.bool)),
            "Padding of the source gets weight like any word. Look for memory_real: is it used?",
        ),
        Mistake(
            "inverted mask",
            _cross(mask=lambda scores, x_real, memory_real: ~memory_real[:, None]),
            "The words are hidden and the padding is seen. masked_fill fills where its mask is True: "
            "is yours True at words or at padding?",
        ),
        Mistake(
            "causal mask in cross-attention",
            _cross(mask=lambda scores, x_real, memory_real: memory_real[:, None] & _lower_triangle(scores)),
            "Target token i sees source tokens up to i only. The source was read to its end before "
            "the first word is written, so nothing of it lies in the future. The causal mask belongs "
            "to the decoder's self-attention.",
        ),
        Mistake(
            "sentences laid along the queries",
            _cross(mask=lambda scores, x_real, memory_real: memory_real),
            "memory_real [B, T_k] lacks the axis of the queries, so broadcasting lays the sentences "
            "along them. With as many sentences as target tokens nothing raises. Where does the axis "
            "of length 1 belong?",
        ),
        Mistake(
            "no scale",
            _cross(scale=lambda x, key: 1.0),
            "The scores are plain dot products. Divide them by √d_k.",
        ),
        Mistake(
            "scaled with √d_model",
            _cross(scale=lambda x, key: x.shape[-1] ** 0.5),
            "The scale is √d_model, the width of the tokens. A score sums over d_k products: take the "
            "width of the keys.",
        ),
        Mistake(
            "softmax over the queries",
            _cross(softmax=_masked_over_queries),
            "The columns of the weights sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "mask after softmax",
            _cross(softmax=_masked_afterwards),
            "Weights of padding are set to 0 after the softmax, and rows no longer sum to 1. Hide scores, "
            "with -inf, before it.",
        ),
        Mistake(
            "contexts of the target's padding set to 0",
            _padding_silenced,
            "The contexts of padded target tokens are 0. They are computed like any other: nobody reads "
            "them, and the loss leaves them out.",
        ),
    ),
    hints=(
        "The decoder is writing. Who asks, who is asked, and who hands something over? One row of "
        "weights belongs to one target token.",
        "scores is [B, T_q, T_k], T_q tokens of x and T_k tokens of memory. Which of the two paddings "
        "is about keys, and which axis does it lack?",
        "The mask is [B, T_k] and needs an axis of length 1 for the queries. Fill with -inf where it is "
        "False, then softmax over the last axis. A padded query is computed like any other, so x_real is "
        "not needed.",
    ),
)

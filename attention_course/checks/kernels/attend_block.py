"""Exercise 3: one block of queries."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.asks import Effort, Function
from attention_course.checks.engine.drawing import lifted, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.kernels.shared import NAME

#: keys per block in the exercise that walks over them; the notebook says so
BLOCK = 4
#: several times what a walk that stops takes in the longest case, and a fraction of one that does not
WORK = 300_000
USUAL = (
    (
        WORK,
        "So much it takes to visit every block: stop behind the last one of which somebody sees something.",
    ),
)


def _walk(
    blocks: Callable[[int, int, int], Any] = lambda T_q, T_k, start: range(0, min(T_k, start + T_q), BLOCK),
    seen: Callable[[Tensor, Tensor], Tensor] = lambda position, at: position >= at,
    first: Callable[[int], int] = lambda start: start,
    first_key: Callable[[int], int] = lambda begin: begin,
    divide: bool = True,
    hide: float = -torch.inf,
    rescale: bool = True,
    rescale_sum: bool = True,
    after: Callable[[Tensor, Tensor], Tensor] = lambda o, l: o,
    scale: Callable[[Tensor, Tensor], float] = lambda k, v: k.shape[-1] ** 0.5,
    lse: Callable[[Tensor, Tensor], Tensor] = lambda m, l: m + l.log(),
) -> Callable[..., tuple[Tensor, Tensor]]:
    def attend_block(query: Tensor, key: Tensor, value: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        T_q, T_k = query.shape[-2], key.shape[-2]
        position = first(int(start)) + torch.arange(T_q)
        m = query.new_full(query.shape[:-1], -torch.inf)
        l = torch.zeros_like(m)
        o = query.new_zeros(*query.shape[:-1], value.shape[-1])
        for begin in blocks(T_q, T_k, int(start)):
            k, v = key[..., begin : begin + BLOCK, :], value[..., begin : begin + BLOCK, :]
            at = first_key(begin) + torch.arange(k.shape[-2])
            scores = query @ k.mT / scale(k, v)
            scores = scores.masked_fill(~seen(position[:, None], at), hide)
            larger = torch.maximum(m, scores.amax(-1))
            p, factor = (scores - larger[..., None]).exp(), (m - larger).exp()
            l = (l * factor if rescale_sum else l) + p.sum(-1)
            o = (o * factor[..., None] if rescale else o) + p @ v
            o, m = after(o, l), larger
        return o / l[..., None] if divide else o, lse(m, l)

    return attend_block


def _divided(o: Tensor, l: Tensor) -> Tensor:
    return o / l[..., None]


def _merged(query: Tensor, key: Tensor, value: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Whole answers of the blocks, merged; where a row sees nothing of a block, softmax gives NaN."""
    T_q, end = query.shape[-2], int(start) + query.shape[-2]
    context = query.new_zeros(*query.shape[:-1], value.shape[-1])
    lse = query.new_full(query.shape[:-1], -torch.inf)
    for begin in range(0, end, BLOCK):
        k, v = key[..., begin : begin + BLOCK, :], value[..., begin : begin + BLOCK, :]
        hidden = begin + torch.arange(k.shape[-2]) > int(start) + torch.arange(T_q)[:, None]
        scores = (query @ k.mT / query.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        old, new = lse, scores.logsumexp(-1)
        lse = torch.logaddexp(old, new)
        found = scores.softmax(-1) @ v
        context = (old - lse).exp()[..., None] * context + (new - lse).exp()[..., None] * found
    return context, lse


def _block_of_queries(
    g: Generator,
    T_q: int,
    T_k: int,
    start: int,
    *leading: int,
    size: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    query, key = size * normal(g, *leading, T_q, 6, dtype=dtype), normal(g, *leading, T_k, 6, dtype=dtype)
    return query, key, normal(g, *leading, T_k, 3, dtype=dtype), torch.tensor(start)


def _loud(g: Generator) -> tuple[Tensor, ...]:
    """Each key scores 800 more than the one before it, and all of them are far below 0."""
    query, key, value, start = _block_of_queries(g, 3, 10, 4, dtype=torch.float64)
    return *lifted(query, key, 800.0 * (torch.arange(10) - 10)), value, start


def _narrow(g: Generator, T_q: int, T_k: int) -> tuple[Tensor, ...]:
    """The first queries, one number wide: the keys as they are stay below what a table of all pairs has."""
    return (*(normal(g, T, 1) for T in (T_q, T_k, T_k)), torch.tensor(0))


def _rows_blocks(T_q: int, T_k: int, start: int) -> range:
    return range(0, min(T_k, start + T_q) // BLOCK * BLOCK, BLOCK)


ATTEND_BLOCK = Exercise(
    name=f"{NAME}.attend_block",
    title="One block of queries",
    points=3,
    difficulty=3,
    minutes=25,
    reference=_walk(),
    asks=Function(effort=Effort(entries=4_000, operations=100_000, work=WORK, known=USUAL)),
    returns=("context", "lse"),
    unseen=("key",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 2, 4), tenths(g, 6, 4), tenths(g, 6, 2), torch.tensor(4)),
        ),
        Case("the first queries", lambda g: _block_of_queries(g, 3, 12, 0)),
        Case("across the edge of a block", lambda g: _block_of_queries(g, 4, 12, 2)),
        Case("the last queries, a short last block", lambda g: _block_of_queries(g, 4, 10, 6)),
        Case("one query", lambda g: _block_of_queries(g, 1, 9, 8)),
        Case("batch and heads", lambda g: _block_of_queries(g, 4, 11, 5, 2, 3)),
        Case(
            "scores in the hundreds, float64",
            lambda g: _block_of_queries(g, 3, 9, 5, size=400.0, dtype=torch.float64),
        ),
        Case("the future scores high, float64", _loud),
        Case("64 queries, 64 keys", lambda g: _narrow(g, 64, 64)),
        Case("the first 40 queries, 3,600 keys", lambda g: _narrow(g, 40, 3_600)),
        Case("gradient", lambda g: _block_of_queries(g, 3, 10, 4, 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "final division forgotten",
            _walk(divide=False),
            "context is the sum of the values times their powers, never divided by l. The division "
            "comes once, behind the loop.",
        ),
        Mistake(
            "divided in every block",
            _walk(divide=False, after=_divided),
            "o is divided by l in every block, and the next one cannot add to it: l and o are sums of the "
            "same powers. The division comes once, behind the loop.",
        ),
        Mistake(
            "divided in every block and behind the loop",
            _walk(after=_divided),
            "o is divided by l in every block, and once more at the end. l and o are sums of the same "
            "powers: the division comes once, behind the loop.",
        ),
        Mistake(
            "merged with what is 0/0",
            _merged,
            "Some rows see nothing of a block that others see. There its softmax is 0/0: the context is NaN, "
            "and NaN times a share of 0 stays NaN. What did exercise 2 say such a half answers with?",
        ),
        Mistake(
            "zero as a score",
            _walk(hide=0.0),
            "Hidden keys have the score 0, and exp(0) = 1. Which score has the exponential 0?",
        ),
        Mistake(
            "old answer not rescaled",
            _walk(rescale=False),
            "When the maximum rises, the old o keeps its old powers. It needs the factor "
            "exp(old m - new m), as in exercise 1.",
        ),
        Mistake(
            "old sum not rescaled",
            _walk(rescale_sum=False),
            "When the maximum rises, the old l keeps its old powers. It needs the factor "
            "exp(old m - new m), as in exercise 1.",
        ),
        Mistake(
            "neither rescaled",
            _walk(rescale=False, rescale_sum=False),
            "When the maximum rises, the old l and o keep their old powers. Both need the factor "
            "exp(old m - new m), as in exercise 1.",
        ),
        Mistake(
            "no causal mask",
            _walk(seen=lambda position, at: position >= -at),
            "Queries see all keys of the blocks you visit. Some blocks lie across the diagonal, and "
            "there each row needs its mask.",
        ),
        Mistake(
            "no causal mask, all blocks visited",
            _walk(lambda T_q, T_k, start: range(0, T_k, BLOCK), seen=lambda position, at: position >= -at),
            "Every query sees every key. Query i of the block stands at position start + i and sees the "
            "keys up to there.",
        ),
        Mistake(
            "start forgotten in the mask",
            _walk(first=lambda start: 0),
            "The mask is made as if the block's first query stood at position 0. It stands at start.",
        ),
        Mistake(
            "place of the block's keys forgotten in the mask",
            _walk(first_key=lambda begin: 0),
            "The mask is made as if every block's first key stood at position 0. Key j of a block stands at "
            "begin + j.",
        ),
        Mistake(
            "off by one: the present is hidden",
            _walk(seen=lambda position, at: position > at),
            "A query does not see its own position. The query at position 0 then sees nothing.",
        ),
        Mistake(
            "off by one: one key of the future is seen",
            _walk(seen=lambda position, at: position + 1 >= at),
            "Each query sees the key after it. Look at the comparison in the mask.",
        ),
        Mistake(
            "diagonal block left out",
            _walk(lambda T_q, T_k, start: range(0, max(start // BLOCK * BLOCK, 1), BLOCK)),
            "The walk ends before the block in which the first query itself stands (or visits only the "
            "first block). Keys up to start + T_q - 1 are seen by somebody: go on to there.",
        ),
        Mistake(
            "stops where the first query stands",
            _walk(lambda T_q, T_k, start: range(0, start, BLOCK)),
            "The walk stops at start. The later queries of the block see further, up to start + T_q - 1: "
            "go on to there.",
        ),
        Mistake(
            "last key left out",
            _walk(lambda T_q, T_k, start: range(0, max(start + T_q - 1, 1), BLOCK)),
            "Where the last query's own key is the first of a block, that block is not visited. The key "
            "stands at start + T_q - 1, and range leaves its end out.",
        ),
        Mistake(
            "short last block left out",
            _walk(lambda T_q, T_k, start: _rows_blocks(T_q, T_k, start) or range(1)),
            "Only whole blocks are visited. The last one that anybody sees may be shorter, or seen in "
            "part: range(0, end, BLOCK) includes it.",
        ),
        Mistake(
            "no scale",
            _walk(scale=lambda k, v: 1.0),
            "The softmax sees plain dot products. Divide them by √d_k first.",
        ),
        Mistake(
            "divided by d_k",
            _walk(scale=lambda k, v: k.shape[-1]),
            "The scores are divided by d_k. It is its root.",
        ),
        Mistake(
            "scaled with √d_v",
            _walk(scale=lambda k, v: v.shape[-1] ** 0.5),
            "The scale is the root of the values' width. A score sums over d_k products, the width of "
            "queries and keys.",
        ),
        Mistake(
            "the maximum as lse",
            _walk(lse=lambda m, l: m),
            "context is right; lse is the largest score. It lacks what the sum adds: log l.",
        ),
        Mistake(
            "the sum as lse",
            _walk(lse=lambda m, l: l),
            "context is right; lse is l, the sum of the powers relative to m. lse is a logarithm, and m "
            "comes back in.",
        ),
        Mistake(
            "lse without the maximum",
            _walk(lse=lambda m, l: l.log()),
            "context is right; lse is log l. The maximum was subtracted in every power: add m.",
        ),
        Mistake(
            "lse without the logarithm",
            _walk(lse=lambda m, l: m + l),
            "context is right; lse is m + l. It is a logarithm: m + log l.",
        ),
    ),
    hints=(
        "Start with m = -∞, l = 0, o = 0, each in the dtype of query: new_full and new_zeros make them. "
        "Then one step of exercise 1 for each block.",
        "for begin in range(0, start + T_q, BLOCK): the last key anybody sees is start + T_q - 1. A slice "
        "that goes beyond the end of key is cut off there by itself.",
        "In a block, the n keys stand at begin and after, the queries at start and after. Compare the "
        "two rows of places as a table [T_q, n]: a score becomes -∞ where the key's is greater. Every "
        "row sees something in the first block.",
    ),
)

"""Chapter 8: the online softmax, two partial answers made one, the tile loop, the slope of a block of scores.

Inputs are drawn so that the usual mistakes show. The maximum rises in some rows of a block and not in
others; scores reach a few hundreds, where an exponential taken without a maximum overflows; key blocks
end with a shorter one, and the queries' block stands anywhere among them.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from attention_course.checks.drawing import normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake

NAME = "08_kernels"

#: keys per block in the exercise that walks over them; the notebook says so
BLOCK = 4


# Drawing inputs -------------------------------------------------------------------------------


def _state(
    generator: Generator, *shape: int, d_v: int, around: float = 0.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """A running maximum [...], a sum of at least 1, as it must be, and an answer [..., d_v]."""
    m = around + normal(generator, *shape, dtype=dtype)
    l = 1 + normal(generator, *shape, dtype=dtype).abs()
    return m, l, normal(generator, *shape, d_v, dtype=dtype)


def _nothing_yet(*shape: int, d_v: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.full(shape, -torch.inf), torch.zeros(shape), torch.zeros(*shape, d_v)


def _some_hidden(scores: Tensor) -> Tensor:
    """Every other score is -inf; every query still sees something."""
    hidden = torch.arange(scores.shape[-1]) % 2 == 1
    return scores.masked_fill(hidden, -torch.inf)


# 1. One step of the online softmax --------------------------------------------------------------


def _stepping(
    larger: Callable[[Tensor, Tensor], Tensor] = lambda m, scores: torch.maximum(m, scores.amax(-1)),
    powers: Callable[[Tensor, Tensor], Tensor] = lambda scores, m: (scores - m[..., None]).exp(),
    worth: Callable[[Tensor, Tensor], Tensor] = lambda old, new: (old - new).exp(),
    old_sum: Callable[[Tensor, Tensor], Tensor] = lambda l, factor: l * factor,
    old_answer: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda o, factor, l: o * factor[..., None],
    divide: bool = False,
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def step(m: Tensor, l: Tensor, o: Tensor, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        new = larger(m, scores)
        p, factor = powers(scores, new), worth(m, new)
        total = old_sum(l, factor) + p.sum(-1)
        answer = old_answer(o, factor, l) + p @ value
        return new, total, answer / total[..., None] if divide else answer

    return step


def _step(m: Tensor, l: Tensor, o: Tensor, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    larger = torch.maximum(m, scores.amax(-1))
    p, factor = (scores - larger[..., None]).exp(), (m - larger).exp()
    return larger, l * factor + p.sum(-1), o * factor[..., None] + p @ value


def _step_keeping_the_maximum(
    m: Tensor, l: Tensor, o: Tensor, scores: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    _, total, answer = _step(m, l, o, scores, value)
    return m.clone(), total, answer


def _step_in_place(
    m: Tensor, l: Tensor, o: Tensor, scores: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    new = _step(m, l, o, scores, value)
    for old, one in zip((m, l, o), new, strict=True):
        old.copy_(one)
    return m, l, o


STEP = Exercise(
    name=f"{NAME}.step",
    title="One more block",
    points=3,
    difficulty=2,
    minutes=15,
    reference=_step,
    returns=("m", "l", "o"),
    forbidden=("softmax", "logsumexp"),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 2),
                1 + tenths(g, 2).abs(),
                tenths(g, 2, 2),
                tenths(g, 2, 3),
                tenths(g, 3, 2),
            ),
        ),
        Case(
            "the first block",
            lambda g: (*_nothing_yet(3, d_v=2), normal(g, 3, 4), normal(g, 4, 2)),
        ),
        Case(
            "a louder block",
            lambda g: (*_state(g, 3, d_v=2), 4 + normal(g, 3, 5), normal(g, 5, 2)),
        ),
        Case(
            "a quieter block",
            lambda g: (*_state(g, 3, d_v=2, around=4.0), normal(g, 3, 5), normal(g, 5, 2)),
        ),
        Case(
            "batch and heads",
            lambda g: (*_state(g, 2, 3, 4, d_v=5), normal(g, 2, 3, 4, 6), normal(g, 2, 3, 6, 5)),
        ),
        Case(
            "some keys hidden",
            lambda g: (*_state(g, 4, d_v=2), _some_hidden(normal(g, 4, 6)), normal(g, 6, 2)),
        ),
        Case(
            "scores in the hundreds, float64",
            lambda g: (
                *_state(g, 2, 3, d_v=2, around=900.0, dtype=torch.float64),
                900 + normal(g, 2, 3, 4, dtype=torch.float64),
                normal(g, 2, 4, 2, dtype=torch.float64),
            ),
        ),
        Case(
            "gradient",
            lambda g: (*_state(g, 2, 3, d_v=2), normal(g, 2, 3, 4), normal(g, 2, 4, 2)),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "maximum not updated",
            _stepping(larger=lambda m, scores: m.clone()),
            "m stays what it was, and all exponentials are taken against the old maximum. In the first "
            "block that is -∞. Take the larger of m and the block's own maximum, row by row.",
        ),
        Mistake(
            "new maximum used but not returned",
            _step_keeping_the_maximum,
            "l and o are right, but you return the old m. The next step would rescale by the wrong "
            "factor: return the maximum that l and o were made with.",
        ),
        Mistake(
            "maximum of the block alone",
            _stepping(larger=lambda m, scores: scores.amax(-1)),
            "The new m is the maximum of this block. When the block is quieter than what came before, "
            "the maximum falls, and the factor for the old sum can overflow. It must never fall.",
        ),
        Mistake(
            "one maximum for all queries",
            _stepping(
                larger=lambda m, scores: torch.maximum(m, scores.amax(-1)).amax(-1, keepdim=True).expand_as(m)
            ),
            "All queries of the block share the largest maximum of them all. Each query is a softmax of "
            "its own: look at the axes over which you take the maximum.",
        ),
        Mistake(
            "largest score of the whole block for all queries",
            _stepping(larger=lambda m, scores: torch.maximum(m, scores.max())),
            "The largest score of the whole block counts for every query: scores.max() knows no axis. Each "
            "query is a softmax of its own: take the maximum of its row, scores.amax(-1).",
        ),
        Mistake(
            "the block's powers relative to its own maximum",
            _stepping(powers=lambda scores, m: (scores - scores.amax(-1, keepdim=True)).exp()),
            "The block's powers are taken against the block's own maximum, and then added to a sum that is "
            "relative to the new m. Subtract the new m in both.",
        ),
        Mistake(
            "old sum not rescaled",
            _stepping(old_sum=lambda l, factor: l),
            "The old sum is added as it is. It counts powers of e relative to the old maximum; relative "
            "to the new one it is worth exp(old m - new m) times as much.",
        ),
        Mistake(
            "old answer not rescaled",
            _stepping(old_answer=lambda o, factor, l: o),
            "The old answer is added as it is. It is a sum with the same powers as l, so it needs the "
            "same factor.",
        ),
        Mistake(
            "neither rescaled",
            _stepping(old_sum=lambda l, factor: l, old_answer=lambda o, factor, l: o),
            "Neither the old sum nor the old answer is rescaled, as if the maximum had been the same "
            "from the beginning. Where does exp(old m - new m) belong?",
        ),
        Mistake(
            "rescaled the wrong way round",
            _stepping(worth=lambda old, new: (new - old).exp()),
            "The factor is exp(new m - old m). The maximum rises, so old powers become worth less, "
            "never more: the factor is at most 1.",
        ),
        Mistake(
            "old sum forgotten",
            _stepping(old_sum=lambda l, factor: torch.zeros_like(l)),
            "l is the sum of this block alone: += became =.",
        ),
        Mistake(
            "old answer forgotten",
            _stepping(old_answer=lambda o, factor, l: torch.zeros_like(o)),
            "o is the answer of this block alone: += became =.",
        ),
        Mistake(
            "divided in every step",
            _stepping(divide=True),
            "o is divided by l. Here the division waits until the last block: a divided o is no sum, "
            "and the next step cannot add to it.",
        ),
        Mistake(
            "old answer taken for divided",
            _stepping(old_answer=lambda o, factor, l: o * (l * factor)[..., None], divide=True),
            "You multiply the old o by l, and divide the new one. That is right for an o that was "
            "divided before (the first FlashAttention keeps it so); here it never is.",
        ),
        Mistake(
            "exponentials without the maximum",
            _stepping(powers=lambda scores, m: scores.exp()),
            "The block's powers are exp(scores), not exp(scores - m). They overflow, and they do not fit "
            "the old sum, which is counted relative to m.",
        ),
        Mistake(
            "inputs changed in place",
            _step_in_place,
            "m, l and o are overwritten, as *= and += do. Make new tensors.",
        ),
    ),
    hints=(
        "Write down what l is a sum of: exp(s - m) over all scores s so far. What is exp(s - new m), "
        "expressed by exp(s - m)?",
        "new = torch.maximum(m, scores.amax(-1)), and factor = (m - new).exp(). In the first block m is "
        "-∞, so the factor is 0: nothing special to do.",
        "p = (scores - new[..., None]).exp(). Then l * factor + p.sum(-1), and the same for o with "
        "p @ value. Give factor an axis for d_v.",
    ),
)


# 2. Two partial answers ------------------------------------------------------------------------


def _shares(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(lse_a, lse_b)
    return (lse_a - lse).exp(), (lse_b - lse).exp()


def _raw_shares(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = lse_a.exp(), lse_b.exp()
    return a / (a + b), b / (a + b)


def _powers_from_the_maximum(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    m = torch.maximum(lse_a, lse_b)
    return (lse_a - m).exp(), (lse_b - m).exp()


def _logarithms_as_shares(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return lse_a / (lse_a + lse_b), lse_b / (lse_a + lse_b)


def _winner(lse_a: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    first = (lse_a >= lse_b).to(lse_a.dtype)
    return first, 1 - first


def _without_the_maximum_added(lse_a: Tensor, lse_b: Tensor) -> Tensor:
    a, b = _powers_from_the_maximum(lse_a, lse_b)
    return (a + b).log()


def _merging(
    shares: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = _shares,
    together: Callable[[Tensor, Tensor], Tensor] = torch.logaddexp,
) -> Callable[..., tuple[Tensor, Tensor]]:
    def merge(context_a: Tensor, lse_a: Tensor, context_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = shares(lse_a, lse_b)
        return a[..., None] * context_a + b[..., None] * context_b, together(lse_a, lse_b)

    return merge


def _merge(context_a: Tensor, lse_a: Tensor, context_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(lse_a, lse_b)
    return (lse_a - lse).exp()[..., None] * context_a + (lse_b - lse).exp()[..., None] * context_b, lse


def _parts(
    generator: Generator, *shape: int, d_v: int, around: float = 0.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Two contexts with their log-sum-exps, which lie about 1 apart."""
    return tuple(
        tensor
        for _ in range(2)
        for tensor in (
            normal(generator, *shape, d_v, dtype=dtype),
            around + normal(generator, *shape, dtype=dtype),
        )
    )


def _one_saw_nothing(generator: Generator) -> tuple[Tensor, ...]:
    context_a, lse_a, context_b, lse_b = _parts(generator, 4, d_v=3)
    blind = torch.tensor([True, False, True, False])
    context_b, lse_b = context_b.masked_fill(blind[:, None], 0.0), lse_b.masked_fill(blind, -torch.inf)
    return context_a, lse_a, context_b, lse_b


MERGE = Exercise(
    name=f"{NAME}.merge",
    title="Two halves of the keys",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_merge,
    returns=("context", "lse"),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 2, 2), 3 + tenths(g, 2), tenths(g, 2, 2), 3 + tenths(g, 2)),
        ),
        Case("batch and heads", lambda g: _parts(g, 2, 3, 4, d_v=5)),
        Case("as many queries as values are wide", lambda g: _parts(g, 4, d_v=4)),
        Case("one of them saw nothing", _one_saw_nothing),
        Case("log-sum-exps in the hundreds", lambda g: _parts(g, 3, d_v=2, around=400.0)),
        Case("far below zero, float64", lambda g: _parts(g, 3, d_v=2, around=-900.0, dtype=torch.float64)),
        Case("gradient", lambda g: _parts(g, 2, 3, d_v=4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "plain average",
            _merging(lambda a, b: (torch.full_like(a, 0.5), torch.full_like(b, 0.5))),
            "Both halves count the same. The half whose keys match better must count more: its share is "
            "exp(its lse), divided by the sum of both.",
        ),
        Mistake(
            "contexts added",
            _merging(lambda a, b: (torch.ones_like(a), torch.ones_like(b))),
            "The contexts are simply added. Each is an average already; the two shares must sum to 1.",
        ),
        Mistake(
            "shares exchanged",
            _merging(lambda a, b: _shares(b, a)),
            "Each context gets the other one's share. Look at which lse goes with which context.",
        ),
        Mistake(
            "logarithms as shares",
            _merging(_logarithms_as_shares),
            "The shares are lse_a / (lse_a + lse_b). An lse is a logarithm and may be negative: shares "
            "are made of the exponentials.",
        ),
        Mistake(
            "not divided by both",
            _merging(_powers_from_the_maximum),
            "The shares are exp(lse - larger lse), which sum to more than 1. Divide by the sum of both.",
        ),
        Mistake(
            "the larger one takes all",
            _merging(_winner),
            "The context of the half with the larger lse is returned. The other half has weight, too.",
        ),
        Mistake(
            "exponentials that overflow",
            _merging(_raw_shares, lambda a, b: (a.exp() + b.exp()).log()),
            "exp(lse) overflows when scores are in the hundreds, and is 0 far below. Only differences may "
            "be exponentiated: subtract something first, such as the larger of the two.",
        ),
        Mistake(
            "shares that overflow",
            _merging(_raw_shares),
            "lse is right, but the shares are made of exp(lse), which overflows when scores are in the "
            "hundreds. exp(lse_a - lse) cannot.",
        ),
        Mistake(
            "lse added",
            _merging(together=torch.add),
            "The two lse are added. Sums of exponentials add up, not their logarithms.",
        ),
        Mistake(
            "larger lse kept",
            _merging(together=torch.maximum),
            "The larger of the two lse is returned. It lacks what the other half adds: up to log 2.",
        ),
        Mistake(
            "maximum not added back",
            _merging(together=_without_the_maximum_added),
            "lse is the logarithm of the sum of exp(lse - larger lse). The larger lse, which was "
            "subtracted inside, has to be added again outside.",
        ),
        Mistake(
            "mean of the exponentials",
            _merging(together=lambda a, b: torch.logaddexp(a, b) - math.log(2)),
            "lse is too small by log 2: you take the mean of the two exponentials, not their sum.",
        ),
    ),
    hints=(
        "If l_a and l_b were the two sums of exponentials, o_a = l_a · context_a would be the undivided "
        "answer. Add numerators, add denominators, divide.",
        "exp(lse) is that sum, but it may overflow. torch.logaddexp(lse_a, lse_b) is the logarithm of the "
        "sum of both, and never leaves the safe range.",
        "The share of half a is (lse_a - lse).exp(). Give it an axis for d_v.",
    ),
)


# 3. One block of queries -----------------------------------------------------------------------


def _walk(
    blocks: Callable[[int, int, int], Any] = lambda T_q, T_k, start: range(0, min(T_k, start + T_q), BLOCK),
    seen: Callable[[Tensor, Tensor], Tensor] = lambda position, at: position >= at,
    first: Callable[[int], int] = lambda start: start,
    first_key: Callable[[int], int] = lambda begin: begin,
    divide: bool = True,
    rescale: bool = True,
    rescale_sum: bool = True,
    scale: float = 0.5,
    lse: Callable[[Tensor, Tensor], Tensor] = lambda m, l: m + l.log(),
) -> Callable[..., tuple[Tensor, Tensor]]:
    def attend_block(query: Tensor, key: Tensor, value: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        (T_q, d_k), T_k = query.shape[-2:], key.shape[-2]
        position = first(int(start)) + torch.arange(T_q)
        m = query.new_full(query.shape[:-1], -torch.inf)
        l = torch.zeros_like(m)
        o = query.new_zeros(*query.shape[:-1], value.shape[-1])
        for begin in blocks(T_q, T_k, int(start)):
            k, v = key[..., begin : begin + BLOCK, :], value[..., begin : begin + BLOCK, :]
            at = first_key(begin) + torch.arange(k.shape[-2])
            scores = query @ k.mT / d_k**scale
            scores = scores.masked_fill(~seen(position[:, None], at), -torch.inf)
            larger = torch.maximum(m, scores.amax(-1))
            p, factor = (scores - larger[..., None]).exp(), (m - larger).exp()
            l = (l * factor if rescale_sum else l) + p.sum(-1)
            o = (o * factor[..., None] if rescale else o) + p @ v
            m = larger
        return o / l[..., None] if divide else o, lse(m, l)

    return attend_block


def _attend_block(query: Tensor, key: Tensor, value: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """All at once: what the walk has to find."""
    T_q, T_k = query.shape[-2], key.shape[-2]
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    position = start + torch.arange(T_q)
    scores = scores.masked_fill(torch.arange(T_k) > position[:, None], -torch.inf)
    m = scores.amax(-1, keepdim=True)
    powers = (scores - m).exp()
    l = powers.sum(-1, keepdim=True)
    return powers @ value / l, (m + l.log()).squeeze(-1)


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


def _rows_blocks(T_q: int, T_k: int, start: int) -> range:
    return range(0, min(T_k, start + T_q) // BLOCK * BLOCK, BLOCK)


ATTEND_BLOCK = Exercise(
    name=f"{NAME}.attend_block",
    title="One block of queries",
    points=3,
    difficulty=3,
    minutes=25,
    reference=_attend_block,
    returns=("context", "lse"),
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
            _walk(
                lambda T_q, T_k, start: range(0, min(T_k, start + T_q + 1), BLOCK),
                lambda position, at: position + 1 >= at,
            ),
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
            "short last block left out",
            _walk(lambda T_q, T_k, start: _rows_blocks(T_q, T_k, start) or range(1)),
            "Only whole blocks are visited. The last one that anybody sees may be shorter, or seen in "
            "part: range(0, end, BLOCK) includes it.",
        ),
        Mistake(
            "no scale",
            _walk(scale=0.0),
            "The softmax sees plain dot products. Divide them by √d_k first.",
        ),
        Mistake(
            "divided by d_k",
            _walk(scale=1.0),
            "The scores are divided by d_k. It is its root.",
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
        "Start with m = -∞, l = 0, o = 0: query.new_full(query.shape[:-1], -torch.inf) is a start for m. "
        "Then one step of exercise 1 for each block.",
        "for begin in range(0, start + T_q, BLOCK): the last key anybody sees is start + T_q - 1. A slice "
        "that goes beyond the end of key is cut off there by itself.",
        "The mask of a block: (begin + torch.arange(n)) > (start + torch.arange(T_q))[:, None] is True "
        "where a score must become -∞. Every row sees something in the first block.",
    ),
)


# 4. Backward without the weights ---------------------------------------------------------------


def _backward(
    scale: Callable[[int], float] = lambda d_k: d_k**-0.5,
    after: Callable[[int], float] = lambda d_k: d_k**-0.5,
    weights: Callable[[Tensor, Tensor], Tensor] = lambda scores, lse: (scores - lse[..., None]).exp(),
    total: Callable[..., Tensor] = lambda slope, context, slope_weights, p: (slope * context).sum(-1, True),
    slope_of_scores: Callable[..., Tensor] = lambda p, dp, d: p * (dp - d),
) -> Callable[..., tuple[Tensor, Tensor]]:
    def backward(
        query: Tensor, key: Tensor, value: Tensor, context: Tensor, lse: Tensor, d_context: Tensor
    ) -> tuple[Tensor, Tensor]:
        d_k = query.shape[-1]
        p = weights(query @ key.mT * scale(d_k), lse)
        dp = d_context @ value.mT
        ds = slope_of_scores(p, dp, total(d_context, context, dp, p))
        return ds, ds @ key * after(d_k)

    return backward


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
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """What a forward pass over n + 3 keys leaves behind, a slope from above, and n of the keys."""
    query = size * normal(g, *leading, T_q, 6, dtype=dtype)
    key, value = (normal(g, *leading, n + 3, width, dtype=dtype) for width in (6, d_v))
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
            "no scale",
            _backward(scale=lambda d_k: 1.0),
            "The scores are made without 1/√d_k, but lse belongs to the scaled ones.",
        ),
        Mistake(
            "scale forgotten in the gradient of the query",
            _backward(after=lambda d_k: 1.0),
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
        "dP = d_context @ value.mT. And D = Σ_j P_j dP_j = Σ_j P_j (dO · v_j) = dO · Σ_j P_j v_j over all "
        "keys j, which is dO · O: (d_context * context).sum(-1, keepdim=True).",
        "d_scores = P * (dP - D), and d_query = d_scores @ key / √d_k.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="8. The cost of attention",
    exercises=(STEP, MERGE, ATTEND_BLOCK, BACKWARD),
)

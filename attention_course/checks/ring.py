"""Chapter 11: attention over one block of keys, two partial answers merged, a step of the ring, zigzag.

Inputs are drawn so that the usual mistakes show. Queries, keys and columns differ in number, and agree
in a case of their own where a wrong axis would otherwise raise. The parts weigh differently, so that a
plain mean is wrong; some scores overflow when they are exponentiated as they are; some queries may
look at nothing, in one part or in both.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.drawing import normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Inputs, Mistake

NAME = "11_ring"

INF = torch.inf


# Drawing inputs -------------------------------------------------------------------------------


# 1. One block of keys -------------------------------------------------------------------------


def _scaled(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / query.shape[-1] ** 0.5


def _block(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp() @ value, lse


def _blockwise(
    lse: Callable[[Tensor], Tensor] = lambda scores: scores.logsumexp(-1),
    score: Callable[[Tensor, Tensor], Tensor] = _scaled,
    weights: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(-1),
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def block(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        scores = score(query, key)
        return weights(scores) @ value, lse(scores)

    return block


def _plain_exponentials(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    powers = _scaled(query, key).exp()
    total = powers.sum(-1)
    return powers @ value / total[..., None], total.log()


def _maximum_not_added(scores: Tensor) -> Tensor:
    return (scores - scores.amax(-1, keepdim=True)).exp().sum(-1).log()


def _one_maximum(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """One maximum for all queries: where it is far above a query's own scores, all powers are 0."""
    scores = _scaled(query, key)
    top = scores.max()
    powers = (scores - top).exp()
    total = powers.sum(-1)
    return powers @ value / total[..., None], top + total.log()


def _keys_as_wide_as_values(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = _scaled(query, key)
    return scores.softmax(-1) @ value, scores.logsumexp(-1, keepdim=True)


def _qkv(
    generator: Generator,
    *leading: int,
    T_q: int = 3,
    T_k: int = 5,
    d_k: int = 4,
    d_v: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    return (
        normal(generator, *leading, T_q, d_k, dtype=dtype),
        normal(generator, *leading, T_k, d_k, dtype=dtype),
        normal(generator, *leading, T_k, d_v, dtype=dtype),
    )


def _far_apart(generator: Generator) -> Inputs:
    """Scores around 150, around 0 and around -150: exp of the first is no float32, of the last it is 0."""
    query, key, value = _qkv(generator, 2, d_k=4)
    level = torch.tensor([150.0, 0.0, -150.0])[:, None]
    query = torch.cat((query[..., :3], 2 * level.expand(2, 3, 1)), -1)  # / √4
    key = torch.cat((key[..., :3], torch.ones(2, 5, 1)), -1)
    return query, key, value


BLOCK = Exercise(
    name=f"{NAME}.block",
    title="One block of keys",
    points=2,
    difficulty=1,
    minutes=10,
    reference=_block,
    returns=("out", "lse"),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 3, 2), tenths(g, 4, 2), tenths(g, 4, 1))),
        Case("sentences and heads", lambda g: _qkv(g, 2, 3)),
        Case("as many queries as keys", lambda g: _qkv(g, 2, T_q=4, T_k=4)),
        Case("a single key", lambda g: _qkv(g, T_k=1)),
        Case("scores far apart", _far_apart),
        Case("wide, float64", lambda g: _qkv(g, 2, d_k=64, dtype=torch.float64)),
        Case("gradient", lambda g: _qkv(g, 2), gradient=True),
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
            _blockwise(lambda scores: scores.exp().mean(-1).log()),
            "You take the mean of the exponentials instead of their sum. A block of many keys would "
            "then weigh no more than one of few.",
        ),
        Mistake(
            "lse of scores without the scale",
            lambda query, key, value: (
                _scaled(query, key).softmax(-1) @ value,
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
            "logarithm to base 2",
            _blockwise(lambda scores: scores.logsumexp(-1) / torch.tensor(2.0).log()),
            "lse is a logarithm to base 2. Kernels like that, but then they exponentiate with base 2 as "
            "well. Here exp comes next: take the natural one.",
        ),
        Mistake(
            "over the queries",
            _blockwise(lambda scores: scores.logsumexp(-2), weights=lambda scores: scores.softmax(-2)),
            "Softmax and sum run over the queries, axis -2. They run over the keys, which is axis -1.",
        ),
        Mistake(
            "an axis too many",
            _keys_as_wide_as_values,
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
        "scores.logsumexp(dim=-1) has one number for each query and does not overflow.",
        "The weights are (scores - lse[..., None]).exp(), or scores.softmax(dim=-1): the same thing.",
    ),
)


# 2. Two parts become one ----------------------------------------------------------------------


def _merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.maximum(lse_a, lse_b)
    top = top.masked_fill(top == -INF, 0.0)
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    total = a + b
    share = 1 / total.masked_fill(total == 0, 1.0)
    out = (a * share)[..., None] * out_a + (b * share)[..., None] * out_b
    return out, top + total.log()


Merge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _merged(
    share: Callable[[Tensor, Tensor], Tensor] = lambda a, b: (a - torch.logaddexp(a, b)).exp(),
    lse: Callable[[Tensor, Tensor], Tensor] = torch.logaddexp,
) -> Merge:
    """``share(a, b)`` is what the part with lse a gets; parts that are both empty stay empty."""

    def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
        blind = (lse_a == -INF) & (lse_b == -INF)
        a, b = lse_a.masked_fill(blind, 0.0), lse_b.masked_fill(blind, 0.0)
        out = share(a, b)[..., None] * out_a + share(b, a)[..., None] * out_b
        return out, lse(a, b).masked_fill(blind, -INF)

    return merge


def _no_guard(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(lse_a, lse_b)
    return (lse_a - lse).exp()[..., None] * out_a + (lse_b - lse).exp()[..., None] * out_b, lse


def _by_the_maximum(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.maximum(lse_a, lse_b)
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    return (a[..., None] * out_a + b[..., None] * out_b) / (a + b)[..., None], top + (a + b).log()


def _merge_by_sums(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = lse_a.exp(), lse_b.exp()
    return (a[..., None] * out_a + b[..., None] * out_b) / (a + b)[..., None], (a + b).log()


def _merged_in_place(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = _merge(out_a, lse_a, out_b, lse_b)
    return out_a.copy_(out), lse


def _parts(
    generator: Generator, *leading: int, T_q: int = 4, d_v: int = 3, dtype: torch.dtype = torch.float32
) -> Inputs:
    shapes = ((T_q, d_v), (T_q,), (T_q, d_v), (T_q,))
    return tuple(normal(generator, *leading, *shape, dtype=dtype) for shape in shapes)


def _tenth_parts(generator: Generator) -> Inputs:
    shapes = ((3, 2), (3,), (3, 2), (3,))
    return tuple(tenths(generator, *shape) for shape in shapes)


def _shifted(generator: Generator, by: float) -> Inputs:
    out_a, lse_a, out_b, lse_b = _parts(generator, 2)
    return out_a, lse_a + by, out_b, lse_b + by


def _unequal(generator: Generator) -> Inputs:
    """One part weighs e^200 times as much as the other, once this way, once that."""
    out_a, lse_a, out_b, lse_b = _parts(generator, T_q=2)
    return out_a, lse_a + torch.tensor([100.0, -100.0]), out_b, lse_b - torch.tensor([100.0, -100.0])


def _nothing_to_see(generator: Generator, *blind: tuple[bool, bool]) -> Inputs:
    """One row for each pair: is the query blind in the first part, and in the second?"""
    out_a, lse_a, out_b, lse_b = _parts(generator, 2, T_q=len(blind))
    in_a, in_b = (torch.tensor(column) for column in zip(*blind, strict=True))
    return (
        out_a.masked_fill(in_a[:, None], 0.0),
        lse_a.masked_fill(in_a, -INF),
        out_b.masked_fill(in_b[:, None], 0.0),
        lse_b.masked_fill(in_b, -INF),
    )


MERGE = Exercise(
    name=f"{NAME}.merge",
    title="Two parts become one",
    points=3,
    difficulty=2,
    minutes=20,
    reference=_merge,
    returns=("out", "lse"),
    cases=(
        Case("one decimal", _tenth_parts),
        Case("sentences and heads", lambda g: _parts(g, 2, 3)),
        Case("as many queries as columns", lambda g: _parts(g, 2, T_q=3, d_v=3)),
        Case("large scores", lambda g: _shifted(g, 200.0)),
        Case("small scores", lambda g: _shifted(g, -200.0)),
        Case("one part outweighs the other", _unequal),
        Case(
            "a query that sees nothing in one part",
            lambda g: _nothing_to_see(g, (False, False), (True, False), (False, True)),
        ),
        Case(
            "a query that sees nothing at all",
            lambda g: _nothing_to_see(g, (False, False), (True, True), (False, True)),
        ),
        Case("float64", lambda g: _parts(g, 2, dtype=torch.float64)),
        Case("gradient", lambda g: _parts(g, 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "plain mean",
            _merged(share=lambda a, b: torch.full_like(a, 0.5)),
            "out is the mean of the two outs. It would be right if both parts weighed the same. How "
            "much each weighs is what lse says.",
        ),
        Mistake(
            "outs added",
            _merged(share=lambda a, b: torch.ones_like(a)),
            "The two outs are added. Each is a mixture whose weights sum to 1; together they would sum to 2.",
        ),
        Mistake(
            "lse as shares",
            _merged(share=lambda a, b: a / (a + b)),
            "The shares are lse_a / (lse_a + lse_b). These are logarithms, and may be negative: "
            "exponentiate before you compare.",
        ),
        Mistake(
            "shares exchanged",
            _merged(share=lambda a, b: (b - torch.logaddexp(a, b)).exp()),
            "Each out gets the share of the other part. The part with the larger lse gets more.",
        ),
        Mistake(
            "shares not divided",
            _merged(share=lambda a, b: (a - torch.maximum(a, b)).exp()),
            "out is weighted by exp(lse - m), but not divided by the sum of both weights. They have to "
            "add up to 1.",
        ),
        Mistake(
            "scores exponentiated twice",
            _merged(share=lambda a, b: a.exp().exp() / (a.exp().exp() + b.exp().exp())),
            "The shares are a softmax of the sums. The sums themselves are in proportion: exp(lse_a) to "
            "exp(lse_b).",
        ),
        Mistake(
            "sums without a maximum",
            _merge_by_sums,
            "Right for small numbers. exp(lse) overflows from 89 on, and is 0 below about -104: work "
            "with differences, exp(lse_a - lse), or take the larger one away first.",
        ),
        Mistake(
            "lse added",
            _merged(lse=lambda a, b: a + b),
            "lse is lse_a + lse_b. The sums of exponentials add up, not their logarithms: adding those "
            "would multiply the sums.",
        ),
        Mistake(
            "larger lse",
            _merged(lse=torch.maximum),
            "lse is the larger of the two. With two parts that weigh the same it should be larger by log 2.",
        ),
        Mistake(
            "mean of the lse",
            _merged(lse=lambda a, b: torch.logaddexp(a, b) - torch.tensor(2.0).log()),
            "lse is that of the mean of both sums. They are to be added: the next merge needs to know "
            "how much both parts weigh together.",
        ),
        Mistake(
            "nothing minus nothing",
            _no_guard,
            "A query that sees nothing in either part has lse = -inf twice, and -inf minus -inf is NaN. "
            "Its out is 0 and its lse stays -inf: put some finite number in its place before you "
            "subtract.",
        ),
        Mistake(
            "nothing minus nothing, by the maximum",
            _by_the_maximum,
            "A query that sees nothing in either part has a maximum of -inf, and -inf minus -inf is NaN, in "
            "out and in lse. Put some finite number in its place before you subtract; its out is 0 and its "
            "lse stays -inf.",
        ),
        Mistake(
            "state changed in place",
            _merged_in_place,
            "The result is written into out_a. Make a new tensor.",
        ),
    ),
    hints=(
        "Undo the divisions first: exp(lse_a) · out_a is the part's sum of exponentials times values. "
        "These sums may be added. Then divide by the sum of both.",
        "So out = exp(lse_a - lse) · out_a + exp(lse_b - lse) · out_b, with lse the logarithm of "
        "exp(lse_a) + exp(lse_b): torch.logaddexp. A factor for each query needs [..., None].",
        "Where both are -inf, masked_fill lse_a and lse_b with 0 first: the outs are 0 whatever "
        "their factors. At the end masked_fill lse with -inf there.",
    ),
)


# 3. One step of the ring ----------------------------------------------------------------------


Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _before(query_at: Tensor, key_at: Tensor) -> Tensor:
    return key_at <= query_at[:, None]


def _masked_block(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.masked_fill(~may_look, -INF)
    lse = scores.logsumexp(-1)
    return (scores - lse.masked_fill(lse == -INF, 0.0)[..., None]).exp() @ value, lse


def _ring_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_at: Tensor,
    key_at: Tensor,
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    found = _masked_block(scores, value, key_at <= query_at[:, None])
    return _merge(out, lse, *found)


def _step(
    may_look: Callable[[Tensor, Tensor], Tensor] = _before,
    score: Callable[[Tensor, Tensor], Tensor] = _scaled,
    block: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = _masked_block,
    merge: Merge = _merge,
) -> Step:
    def ring_step(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_at: Tensor,
        key_at: Tensor,
        out: Tensor,
        lse: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return merge(out, lse, *block(score(query, key), value, may_look(query_at, key_at)))

    return ring_step


def _by_index(query_at: Tensor, key_at: Tensor) -> Tensor:
    return torch.ones(len(query_at), len(key_at), dtype=torch.bool).tril()


def _by_first(query_at: Tensor, key_at: Tensor) -> Tensor:
    """All or nothing: may the first query look at the first key?"""
    return (key_at[0] <= query_at[0]).expand(len(query_at), len(key_at))


def _filled(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.masked_fill(~may_look, -1e9)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _unguarded(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.masked_fill(~may_look, -INF)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _zeroed(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    return scores.softmax(-1).masked_fill(~may_look, 0.0) @ value, scores.logsumexp(-1)


def _unmasked_lse(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    return _masked_block(scores, value, may_look)[0], scores.logsumexp(-1)


def _old_not_rescaled(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    merged, total = _merge(torch.zeros_like(out), lse, out_b, lse_b)
    return out + merged, total


def _new_not_rescaled(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    merged, total = _merge(out, lse, torch.zeros_like(out), lse_b)
    return merged + out_b, total


def _lse_of_block(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return _merge(out, lse, out_b, lse_b)[0], lse_b


def _lse_as_it_was(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return _merge(out, lse, out_b, lse_b)[0], lse


def _step_in_place(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_at: Tensor,
    key_at: Tensor,
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor]:
    new, total = _ring_step(query, key, value, query_at, key_at, out, lse)
    return out.copy_(new), lse.copy_(total)


def _state(
    generator: Generator,
    query_at: list[int],
    key_at: list[int],
    *leading: int,
    started: bool = True,
    lift: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    """A block of keys, and what the queries have found so far: nothing unless ``started``."""
    T_q, T_k = len(query_at), len(key_at)
    query, key, value = _qkv(generator, *leading, T_q=T_q, T_k=T_k, d_k=4, d_v=2, dtype=dtype)
    if lift:  # every score is about ``lift`` higher
        query = torch.cat((query[..., :3], torch.full_like(query[..., :1], 2 * lift)), -1)
        key = torch.cat((key[..., :3], torch.ones_like(key[..., :1])), -1)
    out = normal(generator, *leading, T_q, 2, dtype=dtype)
    lse = 1 + normal(generator, *leading, T_q, dtype=dtype) + lift
    if not started:
        out, lse = torch.zeros_like(out), torch.full_like(lse, -INF)
    return query, key, value, torch.tensor(query_at), torch.tensor(key_at), out, lse


RING_STEP = Exercise(
    name=f"{NAME}.ring_step",
    title="One step of the ring",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_ring_step,
    returns=("out", "lse"),
    cases=(
        Case("all keys earlier", lambda g: _state(g, [8, 9, 10], [0, 1, 2, 3, 4], 2)),
        Case("all keys later", lambda g: _state(g, [0, 1, 2], [5, 6, 7, 8], 2)),
        Case("its own block, first step", lambda g: _state(g, [3, 4, 5], [3, 4, 5], 2, started=False)),
        Case("its own block, later", lambda g: _state(g, [3, 4, 5], [3, 4, 5], 2)),
        Case("later keys, first step", lambda g: _state(g, [0, 1, 2], [4, 5, 6], 2, started=False)),
        Case("zigzag", lambda g: _state(g, [2, 3, 12, 13], [0, 1, 14, 15], 2, 3)),
        Case("zigzag, own block", lambda g: _state(g, [2, 3, 8, 9], [2, 3, 8, 9])),
        Case("large scores", lambda g: _state(g, [4, 5, 6], [3, 4, 5, 6], 2, lift=150.0)),
        Case("float64", lambda g: _state(g, [4, 6, 7], [2, 3, 6, 8], 2, dtype=torch.float64)),
        Case("gradient", lambda g: _state(g, [4, 6, 7], [2, 3, 6, 8], 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "mask by the row's number",
            _step(_by_index),
            "The mask compares the numbers of rows and columns, as torch.tril does. The keys that came "
            "by may be those of another process: compare their positions in the whole sequence, "
            "key_at and query_at.",
        ),
        Mistake(
            "no mask",
            _step(lambda query_at, key_at: torch.ones(len(query_at), len(key_at), dtype=torch.bool)),
            "Every query sees every key, also later ones. A query sees keys that stand at its own "
            "position or before.",
        ),
        Mistake(
            "the future instead of the past",
            _step(lambda query_at, key_at: key_at >= query_at[:, None]),
            "Queries see the keys behind them in the sequence and not those before. Turn the "
            "comparison round. (In this book True means: may look.)",
        ),
        Mistake(
            "own position hidden",
            _step(lambda query_at, key_at: key_at < query_at[:, None]),
            "A query does not see the key of its own position. Under a causal mask it does: ≤, not <.",
        ),
        Mistake(
            "all or nothing",
            _step(_by_first),
            "You decide once for the whole block, by its first query and key. Some blocks are cut by the "
            "mask: the own one; and in zigzag order half of every other one is hidden, chunk by chunk.",
        ),
        Mistake(
            "filled with -1e9",
            _step(block=_filled),
            "Hidden scores are set to -1e9. For a query that sees nothing of the block and has seen "
            "nothing before, the mean of the hidden values comes out. Use -inf.",
        ),
        Mistake(
            "nothing to see is NaN",
            _step(block=_unguarded),
            "A query that sees nothing of this block gets NaN: all its scores are -inf, and softmax "
            "divides 0 by 0. Its out from this block is 0, its lse -inf.",
        ),
        Mistake(
            "nothing so far and nothing here",
            _step(merge=_no_guard),
            "A query that has seen nothing before and sees nothing of this block gets NaN: its old lse and "
            "the block's are -inf both, and -inf minus -inf is NaN. Its out stays 0, its lse -inf.",
        ),
        Mistake(
            "nothing so far and nothing here, by the maximum",
            _step(merge=_by_the_maximum),
            "A query that has seen nothing before and sees nothing of this block gets NaN, in out and in "
            "lse: the larger of two -inf is -inf, and -inf minus -inf is NaN. Its out stays 0, its lse -inf.",
        ),
        Mistake(
            "masked after the softmax",
            _step(block=_zeroed),
            "Hidden weights are set to 0 after the softmax, and lse counts hidden keys. Mask the "
            "scores before: exp(-inf) is 0 in both.",
        ),
        Mistake(
            "lse of all keys",
            _step(block=_unmasked_lse),
            "The weights are masked, but lse sums over hidden keys, too. The block then counts for more "
            "than what the query has seen of it.",
        ),
        Mistake(
            "scale forgotten",
            _step(score=lambda query, key: query @ key.mT),
            "The scores are not divided by √d_k.",
        ),
        Mistake(
            "state forgotten",
            _step(merge=lambda out, lse, out_b, lse_b: (out_b, lse_b)),
            "You return what this block gives. What the queries had found before, out and lse, has to "
            "be merged with it.",
        ),
        Mistake(
            "plain mean with the state",
            _step(merge=_merged(share=lambda a, b: torch.full_like(a, 0.5))),
            "out is the mean of the state and of the block. The state may stand for many blocks: weigh "
            "both by exp(lse).",
        ),
        Mistake(
            "old out not rescaled",
            _step(merge=_old_not_rescaled),
            "The old out is added as it is. Its weights summed to 1; now they have to make room for those "
            "of the block: multiply it by exp(lse - new lse).",
        ),
        Mistake(
            "block not rescaled",
            _step(merge=_new_not_rescaled),
            "What the block gives is added as it is. Its weights sum to 1 by themselves: multiply by "
            "exp(block's lse - new lse).",
        ),
        Mistake(
            "lse of the block returned",
            _step(merge=_lse_of_block),
            "out is right, lse is that of the block. The next step needs the sum over all keys so far.",
        ),
        Mistake(
            "lse not brought up to date",
            _step(merge=_lse_as_it_was),
            "out is right, but lse is what it was before. The next step needs the sum over all keys so far.",
        ),
        Mistake(
            "lse added",
            _step(merge=_merged(lse=lambda a, b: a + b)),
            "lse is the sum of two logarithms. The sums of exponentials add up: torch.logaddexp.",
        ),
        Mistake(
            "state changed in place",
            _step_in_place,
            "out or lse is overwritten. Make new tensors.",
        ),
    ),
    hints=(
        "Two steps that you have written already: attention over the block with its lse, this time "
        "with a mask, and a merge with the state.",
        "The mask is key_at <= query_at[:, None], shape [T_q, T_k]. Set hidden scores to -inf.",
        "A row of nothing but -inf: its lse is -inf. Subtract 0 there instead of lse, and its "
        "weights are exp(-inf) = 0.",
    ),
)


# 4. Zigzag ------------------------------------------------------------------------------------


def _deal(x: Tensor, world: Tensor) -> Tensor:
    pieces = x.chunk(2 * int(world), dim=-2)
    return torch.stack(
        [torch.cat((pieces[r], pieces[2 * int(world) - 1 - r]), dim=-2) for r in range(int(world))]
    )


def _dealt(
    numbers: Callable[[int, int], tuple[int, ...]], parts: int = 2, axis: int = -2
) -> Callable[[Tensor, Tensor], Tensor]:
    """``numbers(rank, world)`` are the chunks, of ``parts`` times world, that a process gets."""

    def deal(x: Tensor, world: Tensor) -> Tensor:
        P = int(world)
        pieces = x.chunk(parts * P, dim=axis)
        return torch.stack([torch.cat([pieces[n] for n in numbers(r, P)], axis) for r in range(P)])

    return deal


def _striped(x: Tensor, world: Tensor) -> Tensor:
    P = int(world)
    return torch.stack([x[..., r::P, :] for r in range(P)])


def _second_turned(x: Tensor, world: Tensor) -> Tensor:
    early, late = _deal(x, world).chunk(2, dim=-2)
    return torch.cat((early, late.flip(-2)), dim=-2)


def _token_by_token(x: Tensor, world: Tensor) -> Tensor:
    """As one deals cards: 0 1 2 3 3 2 1 0 0 1 2 3 ..."""
    P = int(world)
    turn = torch.arange(x.shape[-2]) % (2 * P)
    owner = torch.minimum(turn, 2 * P - 1 - turn)
    return torch.stack([x[..., owner == r, :] for r in range(P)])


def _processes_last(x: Tensor, world: Tensor) -> Tensor:
    return _deal(x, world).movedim(0, -3)


def _sequence(generator: Generator, world: int, *shape: int, dtype: torch.dtype = torch.float32) -> Inputs:
    return normal(generator, *shape, dtype=dtype), torch.tensor(world)


DEAL = Exercise(
    name=f"{NAME}.deal",
    title="Zigzag",
    points=2,
    difficulty=1,
    minutes=10,
    reference=_deal,
    returns=("shards",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 8, 1), torch.tensor(2))),
        Case("three processes", lambda g: _sequence(g, 3, 2, 12, 4)),
        Case("as many columns as tokens", lambda g: _sequence(g, 2, 3, 8, 8)),
        Case("a single process", lambda g: _sequence(g, 1, 2, 6, 3)),
        Case("heads, float64", lambda g: _sequence(g, 4, 2, 3, 24, 5, dtype=torch.float64)),
        Case("gradient", lambda g: _sequence(g, 3, 2, 12, 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "contiguous",
            _dealt(lambda r, P: (r,), parts=1),
            "Process r gets T / P neighbours (one piece, or chunks 2r and 2r + 1: the same). Under a causal "
            "mask the last process then has the most to do. Cut into 2 P chunks and take one from either "
            "end.",
        ),
        Mistake(
            "P chunks further on",
            _dealt(lambda r, P: (r, P + r)),
            "The second chunk of process r is number P + r. The last process then has the latest "
            "chunk of either half. Count from the end: 2 P - 1 - r.",
        ),
        Mistake(
            "one too far",
            _dealt(lambda r, P: (r, -r)),
            "The second chunk is number -r, so process 0 starts again at the beginning. Counted from the "
            "end, the last chunk is number -1: for process r it is -1 - r.",
        ),
        Mistake(
            "beyond the last chunk",
            _dealt(lambda r, P: (r, 2 * P - r)),
            "The second chunk is number 2 P - r: for process 0 that is 2 P, which does not exist. The last "
            "chunk is number 2 P - 1.",
        ),
        Mistake(
            "late chunk first",
            _dealt(lambda r, P: (2 * P - 1 - r, r)),
            "The right chunks in the wrong order: the late one stands first. Tokens stay in the order "
            "of their positions.",
        ),
        Mistake(
            "late chunk turned round",
            _second_turned,
            "The tokens of the second chunk are in reverse order. Only the chunks are dealt from the "
            "end; within a chunk nothing moves.",
        ),
        Mistake(
            "striped",
            _striped,
            "Process r gets every P-th token. That is another remedy, called striped: nearly as well "
            "balanced, but every block is cut by the causal mask. Here chunks are asked for.",
        ),
        Mistake(
            "token by token",
            _token_by_token,
            "The tokens are dealt like cards, back and forth. Deal chunks of T / 2P neighbours.",
        ),
        Mistake(
            "ranks from the other end",
            _dealt(lambda r, P: (P - 1 - r, P + r)),
            "Each shard is one that belongs to somebody: process 0 has the two chunks in the middle. "
            "It should have the first and the last.",
        ),
        Mistake(
            "columns instead of tokens",
            _dealt(lambda r, P: (r, 2 * P - 1 - r), axis=-1),
            "The columns are dealt. Tokens are rows: axis -2.",
        ),
        Mistake(
            "processes not in front",
            _processes_last,
            "The axis of the processes stands behind the leading axes of x. It should be the very "
            "first: shards[r] is what process r gets. Use torch.stack with dim=0.",
        ),
    ),
    hints=(
        "x.chunk(n, dim=-2) cuts the tokens into n equal pieces. Into how many?",
        "Process r takes chunks r and 2 P - 1 - r, and joins them with torch.cat along the tokens.",
        "torch.stack of the P shards makes the new first axis.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="11. Many machines",
    exercises=(BLOCK, MERGE, RING_STEP, DEAL),
)

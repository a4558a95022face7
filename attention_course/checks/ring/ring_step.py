"""Exercise 3: one step of the ring."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.ring import shared
from attention_course.checks.ring.shared import NAME

Pair = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Pair]


def _before(query_at: Tensor, key_at: Tensor) -> Tensor:
    return key_at <= query_at[:, None]


def _masked_block(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.masked_fill(~may_look, -shared.INF)
    lse = scores.logsumexp(-1)
    return (scores - lse.masked_fill(lse == -shared.INF, 0.0)[..., None]).exp() @ value, lse


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
    return shared.merge(out, lse, *found)


def _step(
    may_look: Callable[[Tensor, Tensor], Tensor] = _before,
    score: Callable[[Tensor, Tensor], Tensor] = shared.scaled,
    block: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = _masked_block,
    merge: shared.Merge = shared.merge,
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


def _skipped(*given: Tensor) -> Pair:
    """Right where positions rise."""
    *_, query_at, key_at, out, lse = given
    if key_at[0] > query_at[-1]:
        return out.clone(), lse.clone()
    return _ring_step(*given)


def _filled_with(number: Callable[[torch.dtype], float]) -> Callable[[Tensor, Tensor, Tensor], Pair]:
    def filled(scores: Tensor, value: Tensor, may_look: Tensor) -> Pair:
        scores = scores.masked_fill(~may_look, number(scores.dtype))
        return scores.softmax(-1) @ value, scores.logsumexp(-1)

    return filled


def _unguarded(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.masked_fill(~may_look, -shared.INF)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _zeroed(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    return scores.softmax(-1).masked_fill(~may_look, 0.0) @ value, scores.logsumexp(-1)


def _unmasked_lse(scores: Tensor, value: Tensor, may_look: Tensor) -> tuple[Tensor, Tensor]:
    return _masked_block(scores, value, may_look)[0], scores.logsumexp(-1)


def _old_not_rescaled(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    merged, total = shared.merge(torch.zeros_like(out), lse, out_b, lse_b)
    return out + merged, total


def _new_not_rescaled(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    merged, total = shared.merge(out, lse, torch.zeros_like(out), lse_b)
    return merged + out_b, total


def _lse_of_block(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return shared.merge(out, lse, out_b, lse_b)[0], lse_b


def _lse_as_it_was(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return shared.merge(out, lse, out_b, lse_b)[0], lse


def _plain_exponentials(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_at: Tensor,
    key_at: Tensor,
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor]:
    powers = shared.scaled(query, key).exp() * _before(query_at, key_at)
    before = lse.exp()
    total = before + powers.sum(-1)
    share = 1 / total.masked_fill(total == 0, 1.0)
    return share[..., None] * (before[..., None] * out + powers @ value), total.log()


def _reset(*given: Tensor) -> Pair:
    """What sees nothing of the block loses what it had found before."""
    _, _, _, query_at, key_at, *_ = given
    new, total = _ring_step(*given)
    blind = ~_before(query_at, key_at).any(-1)
    return new.masked_fill(blind[:, None], 0.0), total.masked_fill(blind, -shared.INF)


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
    query, key, value = shared.qkv(generator, *leading, T_q=T_q, T_k=T_k, d_k=4, d_v=2, dtype=dtype)
    if lift:  # every score is about ``lift`` higher
        query = torch.cat((query[..., :3], torch.full_like(query[..., :1], 2 * lift)), -1)
        key = torch.cat((key[..., :3], torch.ones_like(key[..., :1])), -1)
    out = normal(generator, *leading, T_q, 2, dtype=dtype)
    lse = 1 + normal(generator, *leading, T_q, dtype=dtype) + lift
    if not started:
        out, lse = torch.zeros_like(out), torch.full_like(lse, -shared.INF)
    return query, key, value, torch.tensor(query_at), torch.tensor(key_at), out, lse


RING_STEP = Exercise(
    name=f"{NAME}.ring_step",
    title="One step of the ring",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_ring_step,
    returns=("out", "lse"),
    unseen=("key",),
    cases=(
        Case("all keys earlier", lambda g: _state(g, [8, 9, 10], [0, 1, 2, 3, 4], 2)),
        Case("all keys later", lambda g: _state(g, [0, 1, 2], [5, 6, 7, 8], 2)),
        Case("its own block, first step", lambda g: _state(g, [3, 4, 5], [3, 4, 5], 2, started=False)),
        Case("its own block, later", lambda g: _state(g, [3, 4, 5], [3, 4, 5], 2)),
        Case("later keys, first step", lambda g: _state(g, [0, 1, 2], [4, 5, 6], 2, started=False)),
        Case("zigzag", lambda g: _state(g, [2, 3, 12, 13], [0, 1, 14, 15], 2, 3)),
        Case("zigzag, own block", lambda g: _state(g, [2, 3, 8, 9], [2, 3, 8, 9])),
        Case("positions in no order", lambda g: _state(g, [12, 4, 9, 2], [10, 3, 0, 7, 13], 2)),
        Case("large scores", lambda g: _state(g, [4, 5, 6], [3, 4, 5, 6], 2, lift=150.0)),
        Case("float64", lambda g: _state(g, [4, 6, 7], [2, 3, 6, 8], 2, dtype=torch.float64)),
        Case("gradient", lambda g: _state(g, [4, 6, 7], [2, 3, 6, 8], 2), gradient=True),
        # zeros have whatever derivative one's way to them has
        Case(
            "gradient where nothing is seen",
            lambda g: _state(g, [0, 4, 6], [2, 3, 6], 2, started=False),
            finite=True,
        ),
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
            _step(block=_filled_with(lambda dtype: -1e9)),
            "Hidden scores are set to -1e9. For a query that sees nothing of the block and has seen "
            "nothing before, the mean of the hidden values comes out. Use -inf.",
        ),
        Mistake(
            "filled with -1e4",
            _step(block=_filled_with(lambda dtype: -1e4)),
            "Hidden scores are set to -10000. For a query that sees nothing of the block and has seen "
            "nothing before, the mean of the hidden values comes out. Use -inf.",
        ),
        Mistake(
            "filled with the smallest number",
            _step(block=_filled_with(lambda dtype: torch.finfo(dtype).min)),
            "Hidden scores are set to the smallest number of their dtype. For a query that sees nothing of "
            "the block and has seen nothing before, the mean of the hidden values comes out. Use -inf.",
        ),
        Mistake(
            "a block skipped by its first key",
            _skipped,
            "You skip the block where its first key stands after the last query. Positions need not rise: "
            "other keys of it may stand before.",
        ),
        Mistake(
            "what sees nothing set back",
            _reset,
            "A query that sees nothing of this block gets out 0 and lse -inf in the end, whatever it had "
            "found before. That is what the block gives it: the state stays as it was.",
        ),
        Mistake(
            "-inf made finite",
            _step(merge=shared.said_as_finite),
            "A query that has seen nothing before and sees nothing of this block gets the smallest number "
            "there is for its lse, as nan_to_num makes of -inf. Its lse stays -inf.",
        ),
        Mistake(
            "nothing to see is NaN",
            _step(block=_unguarded),
            "A query that sees nothing of this block gets NaN: all its scores are -inf, and softmax "
            "divides 0 by 0. Its out from this block is 0, its lse -inf.",
        ),
        Mistake(
            "nothing so far and nothing here",
            _step(merge=shared.no_guard),
            "A query that has seen nothing before and sees nothing of this block gets NaN: its old lse and "
            "the block's are -inf both, and -inf minus -inf is NaN. Its out stays 0, its lse -inf.",
        ),
        Mistake(
            "nothing so far and nothing here, by the maximum",
            _step(merge=shared.by_the_maximum),
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
            "exponentials as they are",
            _plain_exponentials,
            "Right as long as scores and lse are small. exp(89) is infinite in float32: let exp see "
            "differences alone, of the scores and of both lse.",
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
            _step(merge=shared.merged(share=lambda a, b: torch.full_like(a, 0.5))),
            "out is the mean of the state and of the block. The state may stand for many blocks: weigh "
            "both by exp(lse).",
        ),
        Mistake(
            "outs added",
            _step(merge=shared.merged(share=lambda a, b: torch.ones_like(a))),
            "The block's out is added to the old one. Each is a mixture whose weights sum to 1; together "
            "they would sum to 2. Weigh both by exp(lse).",
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
            _step(merge=shared.merged(lse=lambda a, b: a + b)),
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

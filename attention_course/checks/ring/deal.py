"""Exercise 4: zigzag."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.ring.shared import NAME


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
    points=1,
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
            "one too few",
            _dealt(lambda r, P: (r, 2 * P - 2 - r)),
            "The second chunk is number 2 P - 2 - r, so nobody gets the last one, and the last process gets "
            "one twice. Chunks are counted from 0: which number has the last of 2 P?",
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
        "chunk cuts the axis of the tokens into equal pieces. Into how many?",
        "Process r takes chunks r and 2 P - 1 - r, and joins them with torch.cat along the tokens.",
        "torch.stack of the P shards makes the new first axis.",
    ),
)

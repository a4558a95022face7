"""The same sum over several processes: each holds a part of the sequence, keys and values go round.

A process keeps its own queries. In P steps the keys and values of all P processes pass by, one block
at a time, on a ring: each process works on the block it has while the next is on its way, and merges
what it finds. From five processes on nobody ever holds all keys. Source: Liu, Zaharia and Abbeel
2023, with the backward pass of Dao et al. 2022 (FlashAttention, appendix B) block by block.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_course.device import without_autocast
from attention_course.inputs import check_at_least, check_attention
from attention_course.kernels.once import once
from attention_course.kernels.online import Partial, merge

#: so many queries and keys are scored at a time within a block
TILE = 256

# Who holds which part of the sequence -------------------------------------------------------------


def chunks(rank: int, world: int, *, zigzag: bool = False) -> tuple[int, ...]:
    """Return which chunks of the sequence process ``rank`` of ``world`` holds.

    Contiguous, the sequence is cut into ``world`` chunks and process r holds chunk r. In zigzag order
    it is cut into 2 ``world`` and r holds chunks r and 2 ``world`` - 1 - r: one from either end, so
    that under a causal mask all processes have the same work. Raises a ``ValueError`` for a rank
    outside 0 to ``world`` - 1.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank must lie between 0 and world - 1 = {world - 1}, got {rank}")
    return (rank, 2 * world - 1 - rank) if zigzag else (rank,)


def positions(rank: int, world: int, T: int, *, zigzag: bool = False) -> Int[Tensor, " T_P"]:
    """Return where in the sequence of ``T`` tokens those of process ``rank`` stand, in increasing order.

    Shapes: [T / ``world``]. Raises a ``ValueError`` when ``T`` is no positive multiple of ``world``,
    or of 2 ``world`` for zigzag order.
    """
    size = _chunk_size(T, world, zigzag)
    return torch.cat([torch.arange(c * size, (c + 1) * size) for c in chunks(rank, world, zigzag=zigzag)])


def shard(
    x: Float[Tensor, "..."] | Int[Tensor, "..."],
    rank: int,
    world: int,
    *,
    zigzag: bool = False,
    dim: int = -2,
) -> Float[Tensor, "..."] | Int[Tensor, "..."]:
    """Return a copy of the tokens of ``x`` that process ``rank`` of ``world`` holds.

    Shapes: [..., T, d] -> [..., T / ``world``, d], or tokens along any other ``dim``. Raises a
    ``ValueError`` for a T that cannot be divided, as ``positions`` does.
    """
    size = _chunk_size(x.shape[dim], world, zigzag)
    return torch.cat([x.narrow(dim, c * size, size) for c in chunks(rank, world, zigzag=zigzag)], dim)


def unshard(
    shards: Sequence[Float[Tensor, "..."] | Int[Tensor, "..."]], *, zigzag: bool = False, dim: int = -2
) -> Float[Tensor, "..."] | Int[Tensor, "..."]:
    """Return the whole sequence, given what each process holds, in the order of their ranks.

    Undoes ``shard``. Raises a ``ValueError`` for no shards, or shards of different lengths.
    """
    lengths = [part.shape[dim] for part in shards]
    if not shards or len(set(lengths)) > 1:
        raise ValueError(f"shards must be at least one, all of the same length, got lengths {lengths}")
    world = len(shards)
    size = _chunk_size(world * lengths[0], world, zigzag)
    found = {
        number: part
        for rank, own in enumerate(shards)
        for number, part in zip(chunks(rank, world, zigzag=zigzag), own.split(size, dim), strict=True)
    }
    return torch.cat([found[number] for number in sorted(found)], dim)


def work(
    world: int, T: int, *, is_causal: bool, zigzag: bool = False, tile: int = TILE
) -> Int[Tensor, "P steps"]:
    """Return how many pairs of query and key each process scores at each step of the ring.

    Shapes: [``world``, ``world``], a row for each process, a column for each step. Counted with the
    very loop that ``ring_attention`` runs: tiles that the causal mask hides altogether are skipped,
    those that it cuts are scored in full. ``tile=1`` therefore counts what may be looked at. Raises
    a ``ValueError`` for a ``T`` that cannot be divided, as ``positions`` does.
    """
    _chunk_size(T, world, zigzag)
    plan = _Plan(is_causal, zigzag, tile)
    return torch.tensor(
        [
            [
                sum(
                    (rows.stop - rows.start) * (columns.stop - columns.start)
                    for rows, columns, _ in _scored(plan, rank, (rank - step) % world, world, T)
                )
                for step in range(world)
            ]
            for rank in range(world)
        ]
    )


def _chunk_size(T: int, world: int, zigzag: bool) -> int:
    parts = 2 * world if zigzag else world
    if T < 1 or T % parts:
        needs = "2 x world for zigzag order" if zigzag else "world"
        raise ValueError(f"T must be a positive multiple of {needs} = {parts}, got {T}")
    return T // parts


# One block of keys --------------------------------------------------------------------------------


def block(
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    *,
    scale: float,
    attn_mask: Bool[Tensor, "T_q T_k"] | None = None,
) -> Partial:
    """Return the attention over these keys alone, with the logarithm of its sum of exponentials.

    Shapes: query [..., T_q, d_k], key [..., T_k, d_k], value [..., T_k, d_v], attn_mask [T_q, T_k]
    (True = may look) -> out [..., T_q, d_v], lse [..., T_q], in float32 at least.
    """
    scores = _scores(query, key, scale, attn_mask)
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)  # a query that may look nowhere: -inf minus -inf is NaN
    powers = (scores - top).exp()
    total = powers.sum(-1, keepdim=True)
    out = powers @ value.to(scores.dtype) / total.masked_fill(total == 0, 1.0)
    return Partial(out, (top + total.log())[..., 0])


def block_backward(
    d_out: Float[Tensor, "... T_q d_v"],
    query: Float[Tensor, "... T_q d_k"],
    key: Float[Tensor, "... T_k d_k"],
    value: Float[Tensor, "... T_k d_v"],
    out: Float[Tensor, "... T_q d_v"],
    lse: Float[Tensor, "... T_q"],
    *,
    scale: float,
    attn_mask: Bool[Tensor, "T_q T_k"] | None = None,
) -> tuple[Float[Tensor, "... T_q d_k"], Float[Tensor, "... T_k d_k"], Float[Tensor, "... T_k d_v"]]:
    """Return what this block of keys adds to the gradients of query, key and value.

    ``out`` and ``lse`` are those over *all* keys: exp(score - lse) is then the weight that the whole
    softmax gave, so the blocks' shares add up. Shapes as in ``block``; in float32 at least. Source:
    Dao et al. 2022, appendix B.2.
    """
    scores = _scores(query, key, scale, attn_mask)
    wide = scores.dtype
    weights = (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
    d_out = d_out.to(wide)
    d_weights = d_out @ value.to(wide).mT
    d_scores = scale * weights * (d_weights - (d_out * out).sum(-1, keepdim=True))
    return (
        d_scores @ key.to(wide),
        (d_scores.mT @ query.to(wide)).sum_to_size(key.shape),  # heads that share a key add up
        (weights.mT @ d_out).sum_to_size(value.shape),
    )


def _scores(query: Tensor, key: Tensor, scale: float, attn_mask: Tensor | None) -> Tensor:
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (scale * query.to(wide)) @ key.to(wide).mT
    return scores if attn_mask is None else scores.masked_fill(~attn_mask, -torch.inf)


# Which tiles of a block are scored ----------------------------------------------------------------


class _Plan(NamedTuple):
    """What all processes have to agree on."""

    is_causal: bool
    zigzag: bool
    tile: int
    scale: float = 1.0
    group: dist.ProcessGroup | None = None


class _Tile(NamedTuple):
    """Neighbouring tokens of one process: where in its shard, and at which position the first stands."""

    rows: slice
    first: int

    @property
    def last(self) -> int:
        return self.first + self.rows.stop - self.rows.start - 1

    def positions(self, device: torch.device | None) -> Tensor:
        return torch.arange(self.first, self.last + 1, device=device)


def _tiles(plan: _Plan, rank: int, world: int, T: int) -> Iterator[_Tile]:
    """A process's tokens, tile by tile; no tile reaches over the end of a chunk."""
    size = _chunk_size(T, world, plan.zigzag)
    for place, number in enumerate(chunks(rank, world, zigzag=plan.zigzag)):
        for start in range(0, size, plan.tile):
            length = min(plan.tile, size - start)
            begin = place * size + start
            yield _Tile(slice(begin, begin + length), number * size + start)


def _scored(
    plan: _Plan, rank: int, source: int, world: int, T: int, device: torch.device | None = None
) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """The tiles that process ``rank`` scores of the keys of ``source``: rows, columns and mask."""
    for queries in _tiles(plan, rank, world, T):
        for keys in _tiles(plan, source, world, T):
            if plan.is_causal and keys.first > queries.last:
                continue
            mask = None
            if plan.is_causal and keys.last > queries.first:
                mask = keys.positions(device) <= queries.positions(device)[:, None]
            yield queries.rows, keys.rows, mask


# The ring -----------------------------------------------------------------------------------------


def ring_attention(
    query: Float[Tensor, "... T_P d_k"],
    key: Float[Tensor, "... T_P d_k"],
    value: Float[Tensor, "... T_P d_v"],
    *,
    is_causal: bool = False,
    zigzag: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    tile: int = TILE,
    group: dist.ProcessGroup | None = None,
) -> Float[Tensor, "... T_P d_v"]:
    """Return this process's part of softmax(query keyᵀ · scale) value over the keys of all processes.

    Every process of ``group`` (all processes, unless given) calls this with its own shard, as ``shard``
    cuts it, of T / P tokens; ``zigzag`` says in which order. The result is exact up to rounding, and so
    are the gradients: query, key and value of each process get theirs. Keys and values travel in their
    own dtype, their gradients in float32 at least.

    Shapes: query and key [..., H, T_P, d_k], value [..., H, T_P, d_v] -> [..., H, T_P, d_v]; with
    ``enable_gqa`` key and value may have fewer heads. ``scale`` is 1/√d_k unless given. At most
    ``tile`` x ``tile`` scores exist at a time for each head. Memory is proportional to T / P.

    Raises a ``ValueError`` or ``TypeError`` for shapes and dtypes that do not fit, for processes that
    do not agree on them, and when ``torch.distributed`` is not initialised. Source: Liu et al. 2023,
    algorithm 1; the zigzag order as for Llama 3 (Grattafiori et al. 2024).
    """
    rank, world = _place(group)
    _check_inputs(query, key, value, zigzag, enable_gqa, tile)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    plan = _Plan(is_causal, zigzag, tile, scale, group or dist.group.WORLD)
    _check_others(query, key, value, plan, rank, world)
    if not enable_gqa:
        return _Ring.apply(query, key, value, plan)
    # One more axis, over which the query heads of a group share their key by broadcasting.
    grouped = query.unflatten(-3, (key.shape[-3], -1))
    return _Ring.apply(grouped, key.unsqueeze(-3), value.unsqueeze(-3), plan).flatten(-4, -3)


class _Ring(torch.autograd.Function):
    """The ring forward and backward; of all that was computed only out and lse are kept."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, plan: _Plan) -> Tensor:
        with without_autocast(query.device):
            out, lse = _forward(query, key, value, plan)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        with without_autocast(d_out.device):
            return *_backward(d_out, *ctx.saved_tensors, ctx.plan), None


def _forward(query: Tensor, key: Tensor, value: Tensor, plan: _Plan) -> Partial:
    rank, world = _place(plan.group)
    wide = torch.promote_types(query.dtype, torch.float32)
    out = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=wide)
    lse = query.new_full(query.shape[:-1], -torch.inf, dtype=wide)
    for source, keys, values in _passing_by(key, value, plan.group):
        for rows, columns, mask in _scored(plan, rank, source, world, world * query.shape[-2], query.device):
            found = block(
                query[..., rows, :], keys[..., columns, :], values[..., columns, :],
                scale=plan.scale, attn_mask=mask,
            )  # fmt: skip
            merged = merge(Partial(out[..., rows, :], lse[..., rows]), found)
            out[..., rows, :], lse[..., rows] = merged
    return Partial(out, lse)


def _backward(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, plan: _Plan
) -> tuple[Tensor, Tensor, Tensor]:
    rank, world = _place(plan.group)
    wide = lse.dtype
    d_query, under_way = torch.zeros_like(query, dtype=wide), None
    for source, keys, values in _passing_by(key, value, plan.group):
        d_keys, d_values = torch.zeros_like(keys, dtype=wide), torch.zeros_like(values, dtype=wide)
        for rows, columns, mask in _scored(plan, rank, source, world, world * query.shape[-2], query.device):
            parts = block_backward(
                d_out[..., rows, :], query[..., rows, :], keys[..., columns, :], values[..., columns, :],
                out[..., rows, :], lse[..., rows], scale=plan.scale, attn_mask=mask,
            )  # fmt: skip
            d_query[..., rows, :] += parts[0]
            d_keys[..., columns, :] += parts[1]
            d_values[..., columns, :] += parts[2]
        if under_way is not None:  # what the processes before this one have found for the same keys
            found, under_way = under_way(), None
            d_keys += found[0]
            d_values += found[1]
            del found  # before the next message takes its memory
        under_way = pass_on((d_keys, d_values), plan.group, tag=2)
    d_key, d_value = under_way()  # after P steps they are home
    return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)


def _passing_by(key: Tensor, value: Tensor, group: dist.ProcessGroup) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (whose, keys, values) of every process, the own first; the next are fetched meanwhile."""
    rank, world = _place(group)
    pair = (key.contiguous(), value.contiguous())
    for step in range(world):
        under_way = pass_on(pair, group, tag=0) if step < world - 1 else None
        yield (rank - step) % world, *pair
        if under_way is not None:
            pair = under_way()


def pass_on(
    tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None, tag: int = 0
) -> Callable[[], tuple[Tensor, ...]]:
    """Start sending to the next process and receiving from the one before; call the result to wait.

    The tensors must be contiguous, of the same shapes and dtypes everywhere, and stay as they are until
    that call. Different values of ``tag`` keep apart what is under way at the same time. A single
    process gets its own back.
    """
    rank, world = _place(group)
    if world == 1:
        return lambda: tuple(tensors)
    group = group or dist.group.WORLD
    after, before = (dist.get_global_rank(group, (rank + step) % world) for step in (1, -1))
    coming = tuple(map(torch.empty_like, tensors))
    operations = [dist.P2POp(dist.isend, tensor, after, group, tag + i) for i, tensor in enumerate(tensors)]
    operations += [dist.P2POp(dist.irecv, tensor, before, group, tag + i) for i, tensor in enumerate(coming)]
    waiting = dist.batch_isend_irecv(operations)

    def arrived() -> tuple[Tensor, ...]:
        for request in waiting:
            request.wait()
        operations.clear()  # until here they keep alive what is being sent
        return coming

    return arrived


def _place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """This process's rank in the group, and the number of processes."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "torch.distributed must be initialised: call torch.distributed.init_process_group, "
            "in a program started by torchrun"
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError("group must contain the process that calls, got a group without it")
    return rank, dist.get_world_size(group)


# Checks -------------------------------------------------------------------------------------------


def _check_inputs(
    query: Tensor, key: Tensor, value: Tensor, zigzag: bool, enable_gqa: bool, tile: int
) -> None:
    check_at_least(1, tile=tile)
    check_attention(query, key, value, enable_gqa=enable_gqa, same_width=True)
    shapes = ", ".join(
        f"{name} {tuple(x.shape)}" for name, x in (("query", query), ("key", key), ("value", value))
    )
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(f"query, key and value must have the same length, got {shapes}")
    if zigzag and query.shape[-2] % 2:
        raise ValueError(f"in zigzag order a shard's length T / P must be even, got {query.shape[-2]}")
    batch = -3 if enable_gqa else -2
    if not query.shape[:batch] == key.shape[:batch] == value.shape[:batch]:
        raise ValueError(f"query, key and value must have the same leading dimensions, got {shapes}")


def _check_others(query: Tensor, key: Tensor, value: Tensor, plan: _Plan, rank: int, world: int) -> None:
    """Compare a line of text between all processes: a mismatch would hang, or mix up other memory."""
    shapes = ", ".join(
        f"{name} {tuple(x.shape)}" for name, x in (("query", query), ("key", key), ("value", value))
    )
    options = ", ".join(f"{name} {getattr(plan, name)}" for name in ("is_causal", "zigzag", "scale"))
    text = f"{query.dtype}, {shapes}, {options}".encode().ljust(400)[:400]
    mine = torch.tensor(list(text), dtype=torch.uint8, device=query.device)
    every = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(every, mine, plan.group)
    lines = [bytes(line.tolist()).decode().rstrip() for line in every]
    if len(set(lines)) > 1:
        other = next(r for r in range(world) if lines[r] != lines[rank])
        raise ValueError(
            f"all processes must agree, got rank {rank}: {lines[rank]}; rank {other}: {lines[other]}"
        )

"""Ring attention in processes of its own: cut, sent out, computed, measured, put together again."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from attention_course import ring
from attention_course.lab.measure.memory import LiveBytes
from attention_course.lab.measure.processes import together


class Case(NamedTuple):
    """One attention to compute: whole tensors [..., T, d], the gradient of the context, and options."""

    query: Tensor
    key: Tensor
    value: Tensor
    d_out: Tensor
    #: ``is_causal``, ``zigzag``, ``scale``, ``enable_gqa``, ``tile``
    options: dict[str, Any]


class Result(NamedTuple):
    """What the processes found, put together; seconds, bytes and peaks are one number for each process."""

    out: Tensor
    d_query: Tensor
    d_key: Tensor
    d_value: Tensor
    #: forward and backward by the clock, from a moment when all were ready
    seconds: list[float]
    #: the same by the process's own processor time: waiting does not count
    processor_seconds: list[float]
    #: of forward and backward, without the check that all agree
    bytes_sent: list[int]
    #: of tensors, with the process's own parts of the case
    peak_bytes: list[int]


def run(world: int, cases: Sequence[Case], *, count: bool = False, timeout: float = 60.0) -> list[Result]:
    """Return the results of all ``cases``, computed by ``world`` processes that are started once.

    With ``count`` the live bytes of tensors are counted, which makes everything slower; without, the
    peaks are 0.
    """
    per_process = []
    for rank in range(world):
        mine = []
        for case in cases:
            zigzag = case.options.get("zigzag", False)
            parts = [ring.shard(tensor, rank, world, zigzag=zigzag) for tensor in case[:4]]
            mine.append(Case(*parts, case.options))
        per_process.append((mine, count))
    answers = together(_compute, per_process, timeout=timeout)
    return [
        _joined([answer[number] for answer in answers], case.options.get("zigzag", False))
        for number, case in enumerate(cases)
    ]


def _joined(parts: list[tuple[Any, ...]], zigzag: bool) -> Result:
    tensors, *measured = zip(*parts, strict=True)
    whole = (ring.unshard(same, zigzag=zigzag) for same in zip(*tensors, strict=True))
    return Result(*whole, *map(list, measured))


def _compute(cases: Sequence[Case], count: bool) -> list[tuple[Any, ...]]:
    """One process's part in every case."""
    if not count:
        return [_one(case, lambda: 0) for case in cases]
    results = []
    for case in cases:
        with LiveBytes() as live:
            copied = Case(*(tensor.clone() for tensor in case[:4]), case.options)
            results.append(_one(copied, lambda live=live: live.peak))
    return results


def _one(case: Case, peak: Callable[[], int]) -> tuple[Any, ...]:
    leaves = [tensor.requires_grad_() for tensor in case[:3]]
    dist.barrier()
    with SentBytes() as sent:
        clock, processor = time.perf_counter(), time.thread_time()
        out = ring.ring_attention(*leaves, **case.options)
        out.backward(case.d_out)
        seconds = time.perf_counter() - clock, time.thread_time() - processor
    return (out.detach(), *(leaf.grad for leaf in leaves)), *seconds, sent.bytes, peak()


class SentBytes:
    """Counts what this process hands over to be sent, by standing in for ``dist.batch_isend_irecv``."""

    def __enter__(self) -> "SentBytes":
        self.bytes, self._send = 0, dist.batch_isend_irecv
        dist.batch_isend_irecv = self._counted
        return self

    def __exit__(self, *_: object) -> None:
        dist.batch_isend_irecv = self._send

    def _counted(self, operations: list[dist.P2POp]) -> Any:
        self.bytes += sum(operation.tensor.nbytes for operation in operations if operation.op is dist.isend)
        return self._send(operations)


class Rate(NamedTuple):
    """How long a block of ``size`` tokens takes to be worked on, and to be passed on; seconds."""

    size: int
    compute: float
    pass_on: float


def rates(sizes: Sequence[int], width: int, repeats: int = 7) -> list[Rate]:
    """Return the quickest of ``repeats`` for each size: one head, float32. All processes call it together."""
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    return [
        Rate(
            size,
            _quickest(repeats, lambda qkv=qkv: ring.ring_attention(*qkv, group=alone)),  # a ring of one
            _quickest(repeats, lambda kv=qkv[1:]: ring.pass_on(kv)()),
        )
        for size in sizes
        for qkv in [torch.randn(3, size, width).unbind()]
    ]


def _quickest(repeats: int, call: Callable[[], Any]) -> float:
    tried = []
    for _ in range(repeats):
        dist.barrier()
        began = time.perf_counter()
        call()
        tried.append(time.perf_counter() - began)
    return min(tried)


def context_parallel(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor | str:
    """Return the context by torch's own context parallelism, or what it says where it does not run.

    To be called by every process with the whole tensors [B, H, T, d], T divisible by 2 P.
    """
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import context_parallel_unshard
    except ImportError:  # torch 2.5 has none
        return f"ImportError: torch {torch.__version__} offers no context_parallel"
    mesh = init_device_mesh(query.device.type, (dist.get_world_size(),))
    buffers = [tensor.clone() for tensor in (query, key, value)]
    try:
        with torch.no_grad(), context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
            out = F.scaled_dot_product_attention(*buffers, is_causal=is_causal)
            return context_parallel_unshard(mesh, [out], [2])[0]
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"

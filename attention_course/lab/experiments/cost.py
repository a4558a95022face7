"""What attention costs: operations and bytes counted, memory and page faults watched, a machine's two speeds.

Chapter 8 counts what the plain formula and the tiled one do, measures what they take, and asks which of
a machine's limits each of them meets.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from attention_course.lab.measure.seconds import seconds


def peak_bytes(function: Callable[[], Any]) -> int:
    """Return how many bytes torch held at most for what ``function`` made, on the CPU.

    Every allocation of torch's counts, also those inside a kernel; what existed before does not.
    """
    options = {"activities": [ProfilerActivity.CPU], "profile_memory": True, "acc_events": True}
    with _silent(), profile(**options) as watched:
        result = function()
    del result
    moves = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = highest = 0
    for move in sorted(moves, key=lambda event: event.start_ns()):
        held += move.nbytes()  # negative when memory is given back
        highest = max(highest, held)
    return highest


@contextmanager
def _silent() -> Iterator[None]:
    """The profiler's library announces each start and stop on the process's own stderr, past Python."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def page_faults(function: Callable[[], Any]) -> int | None:
    """Return how often ``function`` touched memory that the system had still to provide; None on Windows.

    Those are this process's minor page faults: for each, the system finds a page and fills it with zeros.
    """
    if sys.platform == "win32":
        return None
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    function()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def plain(
    query: Float[Tensor, "... T d"],
    key: Float[Tensor, "... T d"],
    value: Float[Tensor, "... T d"],
    *,
    is_causal: bool = False,
) -> Float[Tensor, "... T d"]:
    """Return attention as its formula is written, each step a new tensor: the baseline of chapter 8.

    The query is scaled, not the scores: that is one table less.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if is_causal:
        T = scores.shape[-1]
        later = torch.ones(T, T, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    weights = scores.softmax(-1)
    return weights @ value


def plain_in(
    buffer: Float[Tensor, "... T T"],
    query: Float[Tensor, "... T d"],
    key: Float[Tensor, "... T d"],
    value: Float[Tensor, "... T d"],
) -> Float[Tensor, "... T d"]:
    """Return the same, with scores and weights one after the other in a ``buffer`` that the caller keeps."""
    torch.matmul(query * query.shape[-1] ** -0.5, key.mT, out=buffer)
    torch.softmax(buffer, -1, out=buffer)
    return buffer @ value


class Machine(NamedTuple):
    """Two limits of a machine: what it computes, and what it moves between memory and processor."""

    operations: float  # per second, in float32 matrix products
    bytes: float  # per second, read or written
    exponentials: float  # per second

    def reachable(self, intensity: float) -> float:
        """Return the operations per second that ``intensity`` operations per byte allow at most."""
        return min(self.operations, intensity * self.bytes)


def machine(side: int = 1024, megabytes: int = 128) -> Machine:
    """Measure one core of this machine: matrix products, copies and exponentials in float32.

    Set torch to one thread before: processor seconds are what is counted.
    """
    a, b = torch.randn(2, side, side)
    product = torch.empty(side, side)
    large = torch.randn(megabytes * 2**20 // 4)
    copy = torch.zeros_like(large)  # written once, so that all of its pages are there
    small = torch.randn(2**17)  # stays in the cache
    return Machine(
        operations=2 * side**3 / seconds(lambda: torch.matmul(a, b, out=product), repeats=10),
        bytes=2 * large.nbytes / seconds(lambda: copy.copy_(large), repeats=5),
        exponentials=small.numel() / seconds(lambda: torch.exp(small, out=copy[: len(small)]), repeats=50),
    )

"""How much an answer does: the largest tensor it makes, and how often it calls torch.

Some tasks are about just that: attention along the edges of a graph is no table of all pairs of nodes, and
no loop over them. Seconds would say so too, but those of another machine; these two numbers are the same
on every one.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_course.checks.engine.observe import Unfit


def within(answer: Callable[..., Any], noun: str, entries: int, operations: int) -> Callable[..., Any]:
    """``answer``, which is a ``noun``, that ends in :class:`Unfit` where it has done more than that: made a
    tensor of more than ``entries`` numbers, called more than ``operations`` operations of torch."""

    def bounded(*tensors: Tensor) -> Any:
        done = _Done()
        with done:
            result = answer(*tensors)
        if done.largest.numel() > entries:
            raise Unfit(
                f"Your {noun} makes a tensor of {list(done.largest)}: {done.largest.numel():,} numbers, "
                f"where {entries:,} are more than enough. Is something made for all pairs, of which few are "
                "needed?"
            )
        if done.operations > operations:
            raise Unfit(
                f"Your {noun} calls torch {done.operations:,} times, where {operations:,} are more than "
                "enough. Is there a loop? Let one call do it for all."
            )
        return result

    return bounded


class _Done(TorchDispatchMode):
    """Inside: counts the operations, and keeps the size of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.operations = torch.Size((0,)), 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch's compiler leaves this alone; it is not imported to be asked for that."""
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, Tensor) and one.numel() > self.largest.numel():
                self.largest = one.shape
        return result

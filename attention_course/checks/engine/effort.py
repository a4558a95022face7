"""How much an answer does: the largest tensor it makes, how often it calls torch, how much is computed.

Some tasks are about just that: attention along the edges of a graph is no table of all pairs of nodes, and
no loop over them; who writes with a cache computes nothing twice. Seconds would say so too, but those of
another machine; these numbers are the same on every one.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_course.checks.engine.observe import Unfit


def within(
    answer: Callable[..., Any],
    noun: str,
    entries: int,
    operations: int,
    work: int | None = None,
    known: Sequence[tuple[int, str]] = (),
) -> Callable[..., Any]:
    """``answer``, which is a ``noun``, that ends in :class:`Unfit` where it has done more than that: made a
    tensor of more than ``entries`` numbers, called more than ``operations`` operations of torch, computed
    more than ``work`` products and numbers; ``known`` are (so much work and more, what usually takes it)."""

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
        if work is not None and done.work > work:
            asked = "What is computed that was computed before, or that nobody reads?"
            usual = [words for least, words in known if done.work >= least]
            raise Unfit(
                f"Your {noun} computes {done.work:,} products and numbers, where {work:,} are allowed. "
                f"{usual[-1] if usual else asked}"
            )
        return result

    return bounded


#: matrix products, after torch has led all others back to them -> where their left factor stands
_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "addbmm": 1}


class _Done(TorchDispatchMode):
    """Inside: counts the operations and their work, and keeps the size of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.operations, self.work = torch.Size((0,)), 0, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch's compiler leaves this alone; it is not imported to be asked for that."""
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        self.work += _work(func, args, result)
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, Tensor) and one.numel() > self.largest.numel():
                self.largest = one.shape
        return result


def _work(func: Any, args: tuple, result: Any) -> int:
    """Products taken by a matrix product, numbers made by anything else; a view makes none."""
    name = func.__name__.partition(".")[0]
    results = result if isinstance(result, (tuple, list)) else (result,)
    made = sum(one.numel() for one in results if isinstance(one, Tensor))
    if name in _PRODUCTS:
        return made * args[_PRODUCTS[name]].shape[-1]
    if func.is_view:
        return 0
    return made

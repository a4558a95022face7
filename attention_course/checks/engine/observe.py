"""Run a learner's function once, on copies, and write down what happened.

An :class:`Outcome` is values only. Whoever runs the function elsewhere (in another process, on
another machine) can make one and hand it to :mod:`attention_course.checks.engine.judge`.
"""

import linecache
import sysconfig
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.surroundings import undisturbed
from attention_course.checks.engine.watch import Watch
from attention_course.checks.engine.words import printable

#: how much longer than its processor seconds anything may take on the clock, for a machine may be busy
SLACK = 5.0


class Unfit(Exception):
    """What was handed over cannot be used as the exercise asks; the text is all that is to be told."""


@dataclass(frozen=True)
class Raised:
    """An exception: its type, its words, and the learner's own line it came from, if known."""

    type: str
    text: str
    line: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one call did: returned or raised, which inputs it changed, what it called."""

    result: Any = None
    raised: Raised | None = None
    #: positions of the inputs that are not what they were
    changed: tuple[int, ...] = ()
    #: the watched torch functions that were called
    called: frozenset[str] = field(default_factory=frozenset)
    #: one per input, None where no gradient arrived; None as a whole when none were asked for
    gradients: tuple[Tensor | None, ...] | None = None
    #: what it took: of the processor, or on the clock after its slack, whichever is more
    seconds: float = 0.0


def is_plain(value: Any) -> bool:
    """Whether ``value`` is an ordinary dense tensor on the CPU: the kind that can be compared."""
    return (
        type(value) is Tensor
        and not value.is_nested
        and value.layout == torch.strided
        and value.device.type == "cpu"
    )


def all_plain(result: Any) -> bool:
    """Whether ``result`` is one plain tensor, or a tuple of them."""
    return all(map(is_plain, result)) if type(result) is tuple else is_plain(result)


def observe(
    function: Callable[..., Any],
    inputs: Inputs,
    *,
    cotangents: tuple[Tensor, ...] | None = None,
    watched: tuple[str, ...] = (),
) -> Outcome:
    """Call ``function`` on copies of ``inputs``; with ``cotangents`` also take the gradients of
    the sum of (output · cotangent) with respect to every input of floating type.

    Only KeyboardInterrupt gets out. The notebook's random states, default dtype, default device,
    gradient mode and warning filters are the same afterwards.
    """
    with undisturbed():
        arguments = tuple(tensor.detach().clone() for tensor in inputs)
        if cotangents is not None:
            arguments = tuple(tensor.requires_grad_(tensor.is_floating_point()) for tensor in arguments)
        watch = Watch(watched) if watched else nullcontext()
        start = _clocks()
        try:
            with watch:
                result = function(*arguments)
            gradients = cotangents and _gradients(result, arguments, cotangents)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: one exit() must not end the notebook
            return Outcome(raised=describe(error))
        seconds = max(end - begin for begin, end in zip(start, _clocks(), strict=True))
        changed = tuple(
            index
            for index, (before, after) in enumerate(zip(inputs, arguments, strict=True))
            if not identical(before, after)
        )
        called = watch.seen if watched else frozenset()
        return Outcome(_copy(result), None, changed, called, gradients, seconds)


def _clocks() -> tuple[float, float]:
    return time.process_time(), time.perf_counter() / SLACK


def identical(before: Tensor, after: Tensor) -> bool:
    """Same shape, same dtype, same numbers; NaN is the same as NaN."""
    return (
        before.shape == after.shape
        and before.dtype == after.dtype
        and torch.allclose(before.detach(), after.detach(), rtol=0, atol=0, equal_nan=True)
    )


def _copy(result: Any) -> Any:
    """A snapshot, so that a function that reuses one buffer cannot change it later."""
    if is_plain(result):
        return result.detach().clone()
    if type(result) is tuple:
        return tuple(map(_copy, result))
    return result


def _gradients(result: Any, arguments: Inputs, cotangents: Inputs) -> tuple[Tensor | None, ...]:
    outputs = result if isinstance(result, tuple) else (result,)
    loss = sum((out * cot).sum() for out, cot in zip(outputs, cotangents, strict=True))
    wanted = [argument for argument in arguments if argument.requires_grad]
    if not loss.requires_grad:
        return tuple(None for _ in arguments)
    found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
    return tuple(next(found) if argument.requires_grad else None for argument in arguments)


_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")}
)
_ENGINE = str(Path(__file__).resolve().parent)


def describe(error: BaseException) -> Raised:
    """The exception's type and words, and the deepest line that is the learner's own.

    An answer that calls a function of which only the starter is there has words for it: it is not the
    answer that is not written.
    """
    own, inside = "", []
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not _is_library(file):
            inside.append(trace.tb_frame.f_code.co_name)
            text = linecache.getline(file, trace.tb_lineno).strip()
            own = f"line {trace.tb_lineno}: {text}" if text else f"line {trace.tb_lineno}"
        trace = trace.tb_next
    words = printable(error)
    if type(error) is NotImplementedError and not words and len(inside) > 1:
        words = f"{inside[-1]} is not written yet"
    return Raised(type(error).__name__, words, printable(own))


def _is_library(file: str) -> bool:
    if file.startswith("<frozen"):
        return True
    path = str(Path(file).resolve())
    return path.startswith((*_LIBRARIES, _ENGINE)) or "site-packages" in path or "dist-packages" in path

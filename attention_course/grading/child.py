"""Inside the sandbox: run a notebook's cells and call its functions, and answer with values.

Nothing here is believed by whoever asks. This process holds no test, no reference, no seed and no
other submission; the notebook's code may change whatever it finds.
"""

import __future__

import ast
import asyncio
import builtins
import functools
import inspect
import linecache
import os
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import IPython.core.getipython
from IPython.core.inputtransformer2 import TransformerManager

from attention_course.checks.engine.observe import Outcome, describe, observe
from attention_course.checks.engine.use import applied, presented
from attention_course.grading import wire

#: long enough for any answer, short enough not to outlive a grader that has gone away
_PATIENCE = 600.0


class TookTooLong(BaseException):
    """A cell or a call was stopped for its time; a BaseException, so that `except Exception` lets it by."""


def serve(channel) -> None:
    """Answer requests until the channel closes.

    Raises:
        OSError: this process cannot see what Python needs.
    """
    namespace = _namespace()
    for module in ("json", "torch", "IPython"):
        os.stat(sys.modules[module].__file__)
    wire.send(channel, {"ready": True}, [], _PATIENCE)  # whatever goes wrong from here on is the notebook's
    while True:
        try:
            request, tensors = wire.receive(channel, _PATIENCE, bounds=wire.FROM_GRADER)
        except wire.WireError:
            return
        try:
            answer, results = _answer(namespace, request, tensors)
            wire.send(channel, answer, results, _PATIENCE)
        except wire.TooLarge as error:
            text = f"it returned {error}, more than a check can take"
            wire.send(channel, {"raised": ["TooLarge", text, ""]}, [], _PATIENCE)
        except Exception as error:  # a result so strange that it cannot even be described
            wire.send(channel, {"raised": _told(error)}, [], _PATIENCE)


def _answer(namespace: dict, request: dict, tensors: list) -> tuple[dict, list]:
    match request["do"]:
        case "cell":
            return _run(namespace, request["number"], request["source"], request["seconds"]), []
        case "inputs":
            _public_inputs(request["cases"], tensors)
            return {}, []
        case "call":
            return _call(namespace, request, tensors)
    raise ValueError(request["do"])


# Cells ----------------------------------------------------------------------------------------


def _namespace() -> dict[str, Any]:
    """The notebook's global names, with what IPython would have put there."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    IPython.get_ipython = IPython.core.getipython.get_ipython = Shell
    main.__dict__.update(get_ipython=Shell, display=lambda *values, **settings: None, __builtins__=builtins)
    sys.modules["attention_course.checks"].__dict__.update(
        CheckFailed=type("CheckFailed", (AssertionError,), {}),
        check=_check,
        hint=lambda name, level=1: None,
        progress=lambda chapter=None: None,
    )
    return main.__dict__


#: the number of the cell that runs, or ran last
_cell = 0
#: exercise -> the cell in which the notebook's own check was last called, and what with
_HANDED_OVER: dict[str, tuple[int, Any]] = {}


def _check(name: str, function: Any) -> None:
    """In place of the notebook's own check: the grader asks for itself."""
    _HANDED_OVER[name] = _cell, function


def _answer_to(request: dict, namespace: dict) -> tuple[bool, Any]:
    """Whether there is an answer, and which: a check judges what it is handed, whatever else bears the
    exercise's name; what was written after it counts again."""
    cell, handed = _HANDED_OVER.get(request["exercise"], (-1, None))
    name = request["name"]
    if name in namespace and cell < request["written"]:
        return True, namespace[name]
    return (True, handed) if cell >= 0 else (name in namespace, namespace.get(name))


def _public_inputs(cases: dict[str, dict[str, tuple[dict, list[int]]]], tensors: list) -> None:
    """What ``inputs(exercise, case)`` gives on a learner's own machine, for cells that look at it."""

    def inputs(name: str, case: str):
        use, places = cases[name][case]
        return presented(use, [tensors[place].clone() for place in places])

    sys.modules["attention_course.checks"].inputs = inputs


class Shell:
    """What a cell's magics call. Commands of the system are not run, a timed cell's body is."""

    def run_line_magic(self, name: str, line: str, *rest: Any) -> None:
        if name == "time" and line.strip():
            _execute(line, "<magic>", sys.modules["__main__"].__dict__)

    def run_cell_magic(self, name: str, line: str, body: str) -> None:
        if name in ("time", "capture", "prun"):
            _execute(_python(body), "<magic>", sys.modules["__main__"].__dict__)

    def system(self, command: str) -> None: ...

    def getoutput(self, command: str) -> list[str]:
        return []

    def __getattr__(self, name: str) -> "_Nothing":
        return _Nothing()


class _Nothing:
    """Whatever else there is of a shell, such as the events with which matplotlib registers."""

    def __call__(self, *values: Any, **settings: Any) -> None: ...

    def __getattr__(self, name: str) -> "_Nothing":
        return self


def _run(namespace: dict, number: int, source: str, seconds: float) -> dict:
    global _cell
    _cell = number
    file = f"<cell {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        with _at_most(seconds):
            _execute(_python(source), file, namespace)
    except TookTooLong:
        return {"slow": True}
    except BaseException as error:
        return {"raised": _told(error)}
    return {}


def _execute(source: str, file: str, namespace: dict) -> None:
    """Run a cell's Python as a notebook does: with await, and with the __future__ of earlier cells."""
    global _flags
    code = compile(source, file, "exec", _flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    _flags |= code.co_flags & _FUTURES
    awaited = eval(code, namespace)
    if inspect.iscoroutine(awaited):
        asyncio.run(awaited)


_FUTURES = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0
)
_flags = 0


def _python(source: str) -> str:
    """The cell as Python: magics become calls, as in a notebook."""
    return TransformerManager().transform_cell(source)


def _told(error: BaseException) -> list[str]:
    raised = describe(error)
    line = raised.line
    if isinstance(error, SyntaxError) and error.lineno:
        line = f"line {error.lineno}: {str(error.text or '').strip()}"[:300]
        return ["SyntaxError", str(error.msg)[:300], line]
    return [raised.type, raised.text, line]


@contextmanager
def _at_most(seconds: float, processor: float | None = None) -> Iterator[None]:
    """Stop what is inside after so many seconds on the clock, or of the processor."""

    def ring(number, frame):
        raise TookTooLong

    timers = {signal.ITIMER_REAL: (signal.SIGALRM, seconds)}
    if processor:
        timers[signal.ITIMER_PROF] = signal.SIGPROF, processor
    previous = {number: signal.signal(number, ring) for number, _ in timers.values()}
    for timer, (_, most) in timers.items():
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


# Calls ----------------------------------------------------------------------------------------

#: what one call leaves for the next
_KEPT: dict[str, Any] = {}


def _call(namespace: dict, request: dict, tensors: list) -> tuple[dict, list]:
    there, function = _answer_to(request, namespace)
    if not there:
        return {"missing": True}, []
    if not callable(function):
        return {"not_callable": type(function).__name__[:60], "none": function is None}, []
    split = request["inputs"]
    cotangents = tuple(tensors[split:]) if request["gradient"] else None
    inputs = tuple(tensors[:split])
    try:
        with _at_most(request["seconds"], request["processor"]):
            function = applied(function, request["use"], _KEPT)
            outcome = observe(function, inputs, cotangents=cotangents, watched=tuple(request["watched"]))
    except KeyboardInterrupt:
        outcome = Outcome(raised=describe(KeyboardInterrupt()))
    except TookTooLong:  # it rang between two steps of our own
        return {"slow": True}, []
    if outcome.raised:
        if outcome.raised.type == TookTooLong.__name__:
            return {"slow": True}, []
        return {"raised": [outcome.raised.type, outcome.raised.text, outcome.raised.line]}, []
    results: list = []
    answer = {
        "result": wire.encode(outcome.result, results),
        "changed": list(outcome.changed),
        "called": sorted(outcome.called),
    }
    if outcome.gradients is not None:
        answer["gradients"] = [wire.encode(gradient, results) for gradient in outcome.gradients]
    return answer, results

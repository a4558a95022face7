"""What one outcome shows: an error, another type or shape, an input that was changed, other values."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_course.checks.engine.exercise import Case, Exercise
from attention_course.checks.engine.observe import Outcome, Raised, Unfit
from attention_course.checks.engine.verdict import Finding, Table

#: float noise of another order of operations stays far below, every usual mistake far above
RTOL, ATOL = 1e-4, 1e-5
WIDTH = 6


def examine(exercise: Exercise, case: Case, outcome: Outcome, expected: tuple[Tensor, ...]) -> list[Finding]:
    """Everything that is wrong with an outcome of ``case``, beside the ``expected`` results."""
    found = failed(exercise, case, outcome, exercise.call) or formed(exercise, case, outcome, expected)
    if any(each.stage in ("unfit", "unwritten", "raised", "type") for each in found):
        return found
    found += changed(exercise, case, outcome)
    if any(each.stage in ("shape", "dtype") for each in found):
        return found
    find = partial(finding, case)
    for name, got, want in zip(exercise.returns, tensors(outcome.result), expected, strict=True):
        apart = values(find, name, got, want)
        if not apart and name in exercise.hidden:
            apart = _leaks(find, name, got, want)
        found += apart
        if name in exercise.distributions:
            found += _rows(find, name, got)
    return found + forbidden(exercise, case, outcome)


def failed(exercise: Exercise, case: Case, outcome: Outcome, call: str) -> list[Finding]:
    """The error that ``call`` ended in, if it did."""
    raised = outcome.raised
    if not raised:
        return []
    if raised.type == Unfit.__name__:
        return [finding(case, "unfit", raised.text)]
    if _is_starter(raised):
        return [finding(case, "unwritten", in_words(raised, call, exercise.call))]
    return [finding(case, "raised", in_words(raised, call, exercise.call))]


def formed(exercise: Exercise, case: Case, outcome: Outcome, expected: tuple[Tensor, ...]) -> list[Finding]:
    """What is wrong with the result before any number is looked at: its type, its shape, its dtype."""
    find = partial(finding, case)
    wrong = _type(exercise, outcome.result)
    if wrong:
        return [find("type", wrong)]
    found = []
    for name, got, want in zip(exercise.returns, tensors(outcome.result), expected, strict=True):
        if got.shape != want.shape:
            found.append(find("shape", _shape(name, got, want)))
        elif got.dtype != want.dtype:
            text = f"{name} has dtype {_dtype(got)}; expected {_dtype(want)}"
            given = {each.dtype for each in case.inputs()}
            text += ", as the inputs have." if want.dtype in given else "."
            found.append(find("dtype", text))
    return found


def changed(exercise: Exercise, case: Case, outcome: Outcome) -> Iterator[Finding]:
    """The inputs that are not what they were."""
    for position in outcome.changed:
        name = exercise.parameters[position]
        text = (
            f"{name} is no longer what it was: your {exercise.asks.noun} changed its input in place. Whoever "
            f"called it still needs {name}. Look for +=, -=, *=, /=, an assignment to {name}[...] "
            "and methods that end in an underscore."
        )
        yield finding(case, "inputs", text)


def forbidden(exercise: Exercise, case: Case, outcome: Outcome) -> list[Finding]:
    """The functions that were called and would be the answer."""
    if not outcome.called:
        return []
    names = " and ".join(sorted(outcome.called))
    text = f"The task is to write this yourself, but your {exercise.asks.noun} calls torch's own {names}."
    return [finding(case, "forbidden", text)]


def finding(case: Case, stage: str, text: str, table: Table | None = None) -> Finding:
    return Finding(stage, case.name, text, table)


def in_words(raised: Raised, call: str, right_call: str) -> str:
    """What ``call`` raised; ``right_call`` is told to whoever takes other arguments."""
    if _is_starter(raised):
        return "Nothing is written here yet: put your code where it says raise NotImplementedError()."
    if raised.type == "SystemExit":
        return f"{call} called exit(); a function ends with return."
    text = f"{call} raised {raised.type}" + (f": {raised.text}" if raised.text else "")
    if not raised.line and raised.type == "TypeError":
        text += f". It is called as {right_call}, with tensors by position"
    return f"{text}\n  at {raised.line}" if raised.line else f"{text}."


def without_gradient(raised: Raised, call: str) -> str:
    """Why ``call`` has no gradient: what torch says of a tensor that was written into is hard to read."""
    if "modified by an inplace operation" not in raised.text and "in-place operation" not in raised.text:
        return in_words(raised, call, call)
    text = (
        "a tensor is written into that an earlier step has read, and the way back needs it as it was. Look "
        "for x[...] = ..., +=, copy_ and other methods that end in an underscore, and make a new tensor "
        "there: torch.cat, torch.stack of a list, torch.where."
    )
    return f"{text}\n  at {raised.line}" if raised.line else text


def _is_starter(raised: Raised) -> bool:
    return raised.type == "NotImplementedError" and not raised.text


def _kind(value: Any) -> str:
    return "None" if value is None else with_article(type(value).__name__)


def with_article(kind: str) -> str:
    if kind == "None":
        return kind
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _type(exercise: Exercise, result: Any) -> str:
    names = exercise.returns
    if len(names) == 1:
        if isinstance(result, (tuple, list)) and type(result) is not torch.Size:
            kind = f"{_kind(result)} of {len(result)}"
            return f"It returned {kind}; expected one tensor: {names[0]}."
        return _one_type("It returned", result)
    both = f"({', '.join(names)})"
    if type(result) is Tensor:
        return f"It returned one tensor; expected {len(names)}: return {both}."
    if isinstance(result, list):
        return f"It returned a list of {len(result)}; expected a tuple of {len(names)}: return {both}."
    if not isinstance(result, tuple):
        start = _one_type("It returned", result)
        return f"{start} Expected a tuple: return {both}." if start else ""
    if len(result) != len(names):
        return f"It returned a tuple of {len(result)}; expected {len(names)}: return {both}."
    wrong = (_one_type(f"{name} is", value) for name, value in zip(names, result, strict=True))
    return next(filter(None, wrong), "")


def _one_type(start: str, value: Any) -> str:
    """What is wrong with ``value`` as a tensor; empty when nothing is."""
    if value is None:
        return f"{start} None. Is there a return statement, and does every path reach it?"
    if type(value).__module__.partition(".")[0] == "numpy":
        kind = "a NumPy array" if type(value).__name__ == "ndarray" else "a NumPy number"
        return f"{start} {kind}; expected a torch.Tensor. Stay in torch, so that gradients can flow."
    if not issubclass(type(value), Tensor):
        return f"{start} {_kind(value)}; expected a torch.Tensor."
    if type(value) is not Tensor:
        return f"{start} {_kind(value)}, a kind of its own; expected a plain torch.Tensor."
    if value.is_nested or value.layout != torch.strided:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        return f"{start} a {kind} tensor; expected an ordinary dense one."
    if value.device.type != "cpu":
        return f"{start} a tensor on device {value.device}; expected cpu, where the inputs are."
    return ""


def tensors(result: Any) -> tuple[Tensor, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _size(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _shape(name: str, got: Tensor, want: Tensor) -> str:
    text = f"{name} has shape {_size(got)}; expected {_size(want)}."
    if got.dim() >= 2 and got.shape[:-2] + got.shape[:-3:-1] == want.shape:
        text += " The last two axes are the wrong way round."
    return text


def values(find: Callable[..., Finding], name: str, got: Tensor, want: Tensor) -> list[Finding]:
    got, want = got.double(), want.double()
    strange = ~got.isfinite() & want.isfinite()
    if strange.any():
        nan, inf = int(got.isnan().sum()), int(got.isinf().sum())
        what = " and ".join(f"{n} {kind}" for n, kind in ((nan, "NaN"), (inf, "infinite")) if n)
        text = (
            f"{name}: of {got.numel()} entries, {what}, where the right answer is finite. "
            "Follow that row of the input through your steps: does a large number overflow, is -inf "
            "subtracted from -inf, as where nothing may be seen, or is 0 divided by 0?"
        )
        where = tuple(strange.nonzero()[0].tolist())
        return [find("stability", text, _table(got, want, where))]
    close = torch.isclose(got, want, rtol=RTOL, atol=ATOL)
    if close.all():
        return []
    error = (got - want).abs().masked_fill(close, 0.0)  # where both are -inf, the difference is NaN
    where = tuple(torch.unravel_index(error.argmax(), error.shape))
    where = tuple(int(index) for index in where)
    many = f"{name}: {int((~close).sum())} of {got.numel()} entries differ from what is expected; "
    if not where:
        text = f"{name} is off by {float(error):.3g}."
    elif want[where].isinf():
        text = f"{many}at {list(where)}, {got[where]:.3g} stands where {want[where]:.3g} is expected."
    else:
        text = f"{many}the largest difference, {float(error.max()):.3g}, is at {list(where)}."
    return [find("values", text, _table(got, want, where))]


def _leaks(find: Callable[..., Finding], name: str, got: Tensor, want: Tensor) -> list[Finding]:
    """Weights of what may not be seen that are too small to count as other values, and are not 0."""
    # a number below the smallest normal one is what an exponential leaves that another order rounds to 0
    seen = (want == 0) & (got.abs() > torch.finfo(got.dtype).tiny)
    if not seen.any():
        return []
    where = tuple(seen.nonzero()[0].tolist())
    text = (
        f"{name}: {int(seen.sum())} of {got.numel()} entries are not 0 where nothing may be seen: up to "
        f"{float(got[seen].abs().max()):.2g}. That is little here, and much where what is hidden scores "
        "high. A weight is exactly 0 when its score is -inf."
    )
    return [find("leak", text, _table(got, want, where))]


def _table(got: Tensor, want: Tensor, where: tuple[int, ...]) -> Table:
    """The row through ``where``, at most ``WIDTH`` entries of it."""
    if not where:  # a single number
        got, want, where = got[None], want[None], (0,)
    row, column = where[:-1], where[-1]
    start = min(max(0, column - WIDTH // 2), max(0, got.shape[-1] - WIDTH))
    entries = slice(start, start + WIDTH)
    numbers = [tensor[row][entries].tolist() for tensor in (got, want)]
    shown = [tuple(f"{number:.4g}" for number in line) for line in numbers]
    if shown[0] == shown[1]:  # too close for four digits
        shown = [tuple(f"{number:.8g}" for number in line) for line in numbers]
    columns = tuple(str(index) for index in range(start, start + len(numbers[0])))
    corner = f"[{', '.join((*map(str, row), ':'))}]"
    return Table(corner, columns, (("got", shown[0]), ("expected", shown[1])))


def _rows(find: Callable[..., Finding], name: str, got: Tensor) -> list[Finding]:
    sums = got.double().sum(-1)
    if not sums.isfinite().all() or (sums - 1).abs().max() < 1e-3:
        return []
    low, high = float(sums.min()), float(sums.max())
    reached = f"{low:.3g}" if high - low < 1e-3 else f"between {low:.3g} and {high:.3g}"
    return [find("rows", f"The rows of {name} do not sum to 1: they sum to {reached}.")]

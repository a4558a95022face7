"""Compare what a function did with what the reference does, and recognise the usual mistakes.

Everything here is a pure function of outcomes; nothing here calls a learner's code.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.engine.observe import Outcome, is_plain, observe
from attention_course.checks.engine.surroundings import undisturbed

#: what can be wrong, in the order in which it is told
STAGES = (
    "callable", "raised", "type", "shape", "dtype", "inputs",
    "values", "rows", "gradient", "stability", "forbidden",
)  # fmt: skip
#: those that comparing with a mistake cannot explain
_APART = ("callable", "gradient", "forbidden")

#: float noise of another order of operations stays far below, every usual mistake far above
RTOL, ATOL = 1e-4, 1e-5
WIDTH = 6

#: (inputs, cotangents or None) -> what the function did with them
Run = Callable[[Inputs, tuple[Tensor, ...] | None], Outcome]


@dataclass(frozen=True)
class Table:
    """One row of an output beside the row that was expected."""

    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: at which stage, in which case, in words, with a table if it helps."""

    stage: str
    case: str
    text: str
    table: Table | None = None


@dataclass(frozen=True)
class Verdict:
    """Everything found wrong, first things first, and the mistake it looks like."""

    exercise: Exercise
    findings: tuple[Finding, ...]
    mistake: Mistake | None = None

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def points(self) -> int:
        return self.exercise.points if self.passed else 0


def local(function: Callable[..., Any], exercise: Exercise) -> Run:
    """Run ``function`` here, in this process."""
    return lambda inputs, cotangents: observe(
        function, inputs, cotangents=cotangents, watched=exercise.forbidden
    )


@undisturbed()
def judge(exercise: Exercise, run: Run, seed: int = 0) -> Verdict:
    """Try every case of ``exercise``, drawn from ``seed``."""
    inputs, expected = _demanded(exercise, seed)
    outcomes = [run(drawn, None) for drawn in inputs]
    findings = [
        _examine(exercise, *tried) for tried in zip(exercise.cases, inputs, outcomes, expected, strict=True)
    ]
    for index, case in enumerate(exercise.cases):
        if case.gradient and not findings[index]:
            findings[index] = _gradient(exercise, case, index, run, seed)
    ordered = sorted(
        (finding for found in findings for finding in found),
        key=lambda finding: STAGES.index(finding.stage),  # sorted() keeps the order of the cases
    )
    mistake = _recognise(exercise, seed, outcomes, findings) if ordered else None
    return Verdict(exercise, tuple(ordered), mistake)


# The same for everybody who is judged with one seed: made once, and never changed.


@lru_cache(maxsize=128)
def _demanded(exercise: Exercise, seed: int) -> tuple[tuple[Inputs, ...], tuple[tuple[Tensor, ...], ...]]:
    """The inputs of every case, and what the reference makes of them."""
    inputs = tuple(case.inputs(seed) for case in exercise.cases)
    return inputs, tuple(_tensors(observe(exercise.reference, drawn).result) for drawn in inputs)


@lru_cache(maxsize=1024)
def _right_gradients(exercise: Exercise, seed: int, index: int) -> Outcome:
    inputs, expected = _demanded(exercise, seed)
    return observe(exercise.reference, inputs[index], cotangents=_cotangents(expected[index], seed))


@lru_cache(maxsize=8192)
def _mistaken(exercise: Exercise, seed: int, mistake: Mistake, index: int) -> tuple[Outcome, bool]:
    """What a usual mistake makes of a case, and whether that is wrong."""
    inputs, expected = _demanded(exercise, seed)
    outcome = observe(mistake.function, inputs[index])
    return outcome, bool(_examine(exercise, exercise.cases[index], inputs[index], outcome, expected[index]))


def judge_function(exercise: Exercise, function: Any, seed: int = 0) -> Verdict:
    """Judge whatever a learner calls a function, here and now."""
    if not callable(function):
        return not_a_function(exercise, "None" if function is None else type(function).__name__)
    return judge(exercise, local(function, exercise), seed)


def not_a_function(exercise: Exercise, kind: str) -> Verdict:
    """The verdict on something of type ``kind`` that cannot be called."""
    text = (
        f"{exercise.call} must be a function, but it is {_with_article(kind)}. Hand over the "
        f"function itself, without calling it: check({exercise.name!r}, "
        f"{exercise.call.partition('(')[0]})."
    )
    return Verdict(exercise, (Finding("callable", "", text),))


# What one outcome shows -----------------------------------------------------------------------


def _examine(
    exercise: Exercise, case: Case, inputs: Inputs, outcome: Outcome, expected: tuple[Tensor, ...]
) -> list[Finding]:
    find = partial(_finding, case)
    if outcome.raised:
        return [find("raised", _raised(exercise, outcome))]
    wrong = _type(exercise, outcome.result)
    if wrong:
        return [find("type", wrong)]
    results = _tensors(outcome.result)
    found = []
    for name, got, want in zip(exercise.returns, results, expected, strict=True):
        if got.shape != want.shape:
            found.append(find("shape", _shape(name, got, want)))
        elif got.dtype != want.dtype:
            text = f"{name} has dtype {_dtype(got)}; expected {_dtype(want)}, as the inputs have."
            found.append(find("dtype", text))
    for position in outcome.changed:
        name = exercise.parameters[position]
        text = (
            f"{name} is no longer what it was: your function changed its input in place. Whoever "
            f"called it still needs {name}. Look for +=, -=, *=, /=, an assignment to {name}[...] "
            "and methods that end in an underscore."
        )
        found.append(find("inputs", text))
    if any(finding.stage in ("shape", "dtype") for finding in found):
        return found
    for name, got, want in zip(exercise.returns, results, expected, strict=True):
        found += _values(find, name, got, want)
        if name in exercise.distributions:
            found += _rows(find, name, got)
    if outcome.called:
        names = " and ".join(sorted(outcome.called))
        text = f"The task is to write this yourself, but your function calls torch's own {names}."
        found.append(find("forbidden", text))
    return found


def _finding(case: Case, stage: str, text: str, table: Table | None = None) -> Finding:
    return Finding(stage, case.name, text, table)


def _raised(exercise: Exercise, outcome: Outcome) -> str:
    raised = outcome.raised
    if raised.type == "NotImplementedError" and not raised.text:
        return "Nothing is written here yet: put your code where it says raise NotImplementedError()."
    if raised.type == "SystemExit":
        return f"{exercise.call} called exit(); a function ends with return."
    text = f"{exercise.call} raised {raised.type}" + (f": {raised.text}" if raised.text else "")
    if not raised.line and raised.type == "TypeError":
        text += f". It is called as {exercise.call}, with tensors by position"
    return f"{text}\n  at {raised.line}" if raised.line else f"{text}."


def _kind(value: Any) -> str:
    return "None" if value is None else _with_article(type(value).__name__)


def _with_article(kind: str) -> str:
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


def _tensors(result: Any) -> tuple[Tensor, ...]:
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


def _values(find: Callable[..., Finding], name: str, got: Tensor, want: Tensor) -> list[Finding]:
    got, want = got.double(), want.double()
    strange = ~got.isfinite() & want.isfinite()
    if strange.any():
        nan, inf = int(got.isnan().sum()), int(got.isinf().sum())
        what = " and ".join(f"{n} {kind}" for n, kind in ((nan, "NaN"), (inf, "infinite")) if n)
        text = (
            f"{name}: of {got.numel()} entries, {what}, where the right answer is finite. "
            "Follow the largest number of the input through your steps: where does it overflow, where is "
            "-inf subtracted from -inf, or 0 divided by 0?"
        )
        where = tuple(strange.nonzero()[0].tolist())
        return [find("stability", text, _table(got, want, where))]
    close = torch.isclose(got, want, rtol=RTOL, atol=ATOL)
    if close.all():
        return []
    error = (got - want).abs().masked_fill(close, 0.0)  # where both are -inf, the difference is NaN
    where = tuple(torch.unravel_index(error.argmax(), error.shape))
    where = tuple(int(index) for index in where)
    text = (
        f"{name}: {int((~close).sum())} of {got.numel()} entries differ from what is expected; "
        f"the largest difference, {float(error.max()):.3g}, is at {list(where)}."
        if where
        else f"{name} is off by {float(error):.3g}."
    )
    return [find("values", text, _table(got, want, where))]


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


# Gradients ------------------------------------------------------------------------------------


def _gradient(exercise: Exercise, case: Case, index: int, run: Run, seed: int) -> list[Finding]:
    find = partial(_finding, case, "gradient")
    inputs, expected = _demanded(exercise, seed)
    outcome = run(inputs[index], _cotangents(expected[index], seed))
    if outcome.raised:
        return [find(f"Right values, but with gradients: {_raised(exercise, outcome)}")]
    right = _right_gradients(exercise, seed, index)
    for name, got, want in zip(exercise.parameters, outcome.gradients, right.gradients, strict=True):
        if got is None and want is not None:
            text = (
                f"Right values, but no gradient reaches {name}. The path from {name} to the result "
                "is cut by .detach(), .data, .item(), .tolist(), NumPy, torch.no_grad() or by "
                "making a new torch.tensor(...)."
            )
            return [find(text)]
        # A solution may pass a gradient where the reference has none: there is nothing to compare.
        if got is None or want is None:
            continue
        if not torch.allclose(got, want, rtol=10 * RTOL, atol=10 * ATOL):
            text = f"Right values, but the gradient with respect to {name} differs: part of the path is cut."
            return [find(text, _values(partial(_finding, case), name, got, want)[0].table)]
    return []


def _cotangents(expected: tuple[Tensor, ...], seed: int) -> tuple[Tensor, ...]:
    # a digest: who sees these numbers must not learn the seed from them
    digest = hashlib.sha256(f"{seed}:cotangents".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
    return tuple(
        torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device="cpu")
        for tensor in expected
    )


# Usual mistakes -------------------------------------------------------------------------------


def _recognise(
    exercise: Exercise, seed: int, outcomes: list[Outcome], findings: list[list[Finding]]
) -> Mistake | None:
    """The mistake that does exactly what the learner's function did wherever either goes wrong.

    A function can have a usual mistake and overflow as well: if nothing fits all cases, the cases
    that fail for NaN or infinity alone are left out.
    """
    stages = [{finding.stage for finding in found} - set(_APART) for found in findings]
    everything = range(len(outcomes))
    calm = [index for index in everything if stages[index] != {"stability"}]

    for considered in (everything, calm):
        failing = [index for index in considered if stages[index]]
        for mistake in exercise.mistakes if failing else ():
            does = partial(_mistaken, exercise, seed, mistake)
            # one case after the other: most mistakes already differ in the first
            alike = _alike((outcomes[index], does(index)[0]) for index in failing)
            # whoever passes a case that the mistake fails has not made this mistake
            if alike and not any(does(index)[1] for index in considered if not stages[index]):
                return mistake
    return None


def _alike(pairs: Iterable[tuple[Outcome, Outcome]]) -> bool:
    """The same outcomes. Two errors of one type say little alone: then their words must agree too,
    unless another case shows the same wrong result."""
    shown, worded = False, True
    for mine, theirs in pairs:
        if mine.raised and theirs.raised:
            if mine.raised.type != theirs.raised.type:
                return False
            worded = worded and mine.raised.text == theirs.raised.text
        elif mine.raised or theirs.raised or not _did_the_same(mine, theirs):
            return False
        else:
            shown = True
    return shown or worded


def _did_the_same(mine: Outcome, theirs: Outcome) -> bool:
    return mine.changed == theirs.changed and _same(mine.result, theirs.result)


def _same(mine: Any, theirs: Any) -> bool:
    if type(mine) is tuple and type(theirs) is tuple:
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    return (
        is_plain(mine)
        and is_plain(theirs)
        and mine.shape == theirs.shape
        and mine.dtype == theirs.dtype
        and torch.allclose(mine, theirs, rtol=RTOL, atol=ATOL, equal_nan=True)
    )

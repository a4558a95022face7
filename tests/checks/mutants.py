"""Mechanical mutants of every exercise's reference: each must be rejected by the exercise's own check.

A mutant changes one expression of a reference, or of a helper that it calls: an intermediate result is
detached, an axis is another one, a mask is turned round, a score of -inf is -100. Run this file to make them
all and to see the table of the chapters; with ``--sample``, a seeded few of each exercise.

A mutant that is accepted is either a hole in the cases or no mistake at all. The second kind stands in
``equivalents.py``, with the reason.
"""

import argparse
import ast
import hashlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from equivalents import EQUIVALENT
from torch import Tensor

from attention_course import checks
from attention_course.checks.engine.asks import Function, Module, Step
from attention_course.checks.engine.exercise import Exercise
from attention_course.checks.engine.judge import judge, local
from attention_course.checks.engine.observe import Outcome
from attention_course.checks.engine.verdict import Verdict

PACKAGE, ENGINE = "attention_course.checks.", "attention_course.checks.engine."

#: operator -> whether a learner makes this mistake; the others only try how closely the cases look
PLAUSIBLE = {
    "detached": True,
    "argument changed in place": True,
    "float32 kept": True,
    "another axis": True,
    "transposition left out": True,
    "transposition added": True,
    "operands swapped": True,
    "arguments swapped": True,
    "results swapped": True,
    "mask turned round": True,
    "and for or": True,
    "comparison": True,
    "off by one": True,
    "leak": True,
    "factor left out": True,
    "divided for multiplied": True,
    "plus for minus": True,
    "term left out": True,
    "power": True,
    "float16 and back": False,
    "epsilon": False,
    "no maximum": True,
    "clamped": False,
    "sign": False,
    "constant": False,
}

#: calls whose first two arguments may be swapped, or are of different kinds
_EITHER_WAY = ("where", "masked_fill", "maximum", "minimum", "logaddexp", "add", "mul")

#: what a learner would write in the place of minus infinity, and what adds up to it
LEAKS = (-10.0, -15.0, -20.0, -30.0, -100.0, -1e4, -1e9)
#: calls whose numbers are axes
REDUCTIONS = {
    "sum", "mean", "softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "max", "min", "amax",
    "amin", "all", "any", "argmax", "argmin", "prod", "norm", "std", "var", "flip", "roll", "sort",
    "topk", "cat", "stack", "unsqueeze", "vector_norm", "normalize", "diff", "gather",
    "index_select", "chunk", "unbind", "split", "scatter_add", "index_add", "movedim", "transpose",
    "size", "squeeze", "flatten", "unflatten", "select", "narrow",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One expression of one function, changed."""

    exercise: Exercise
    operator: str
    #: what was there, and what is there now
    before: str
    after: str
    function: FunctionType
    code: CodeType

    @property
    def name(self) -> str:
        return f"{self.operator}: {self.before} -> {self.after}"

    @property
    def place(self) -> str:
        return f"{Path(self.function.__code__.co_filename).stem}.{self.function.__qualname__}"


# What a reference is made of ------------------------------------------------------------------


def functions_of(exercise: Exercise) -> list[FunctionType]:
    """The functions that a call of the reference runs, and that belong to an exercise."""
    found: dict[int, FunctionType] = {}
    waiting: list[Any] = [exercise.reference]
    while waiting:
        one = waiting.pop()
        if isinstance(one, partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif inspect.isclass(one) and one.__module__.startswith(PACKAGE):
            waiting += [member for member in vars(one).values() if isinstance(member, FunctionType)]
        elif isinstance(one, FunctionType) and id(one) not in found:
            if not one.__module__.startswith(PACKAGE) or one.__module__.startswith(ENGINE):
                continue
            found[id(one)] = one
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
            waiting += [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
            waiting += _globals_of(one)
    return list(found.values())


def _globals_of(function: FunctionType) -> Iterator[Any]:
    names = {name for code in _nested(function.__code__) for name in code.co_names}
    for name in sorted(names):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if value.__name__.startswith(PACKAGE):
                yield from (getattr(value, attribute, None) for attribute in sorted(names))
        else:
            yield value


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def executed(exercise: Exercise, functions: list[FunctionType]) -> set[tuple[str, int]]:
    """The lines of ``functions`` that run when the cases are tried."""
    codes = {code for one in functions for code in _nested(one.__code__)}
    seen: set[tuple[str, int]] = set()

    def trace(frame, event, _):
        if frame.f_code not in codes:
            return None
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for case in exercise.cases:
            for step in exercise.steps(case, case.inputs()):
                local(exercise.reference)(step, None)
    finally:
        sys.settrace(before)
    return seen


# Source and code ------------------------------------------------------------------------------


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def _node_of(function: FunctionType) -> tuple[ast.stmt, ast.AST] | None:
    """The statement of the file in which ``function`` is defined, and its definition."""
    code = function.__code__
    spots = {(line, column) for line, _, column, _ in code.co_positions() if line and column}
    found = []
    for statement in _tree(code.co_filename).body:
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef) and (node.name, node.lineno) == (
                code.co_name,
                code.co_firstlineno,
            ):
                return statement, node
            if isinstance(node, ast.Lambda) and (code.co_name, node.lineno) == (
                "<lambda>",
                code.co_firstlineno,
            ):
                start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
                if all(start <= spot <= end for spot in spots):
                    found.append((end, statement, node))
    return min(found, key=lambda one: one[0])[1:] if found else None


def _code_of(statement: ast.stmt, node: ast.AST, function: FunctionType) -> CodeType | None:
    """``function``'s code, compiled anew from its changed statement."""
    whole = compile(ast.Module([statement], []), function.__code__.co_filename, "exec")
    wanted = function.__code__
    order = [code for code in _nested(whole) if code.co_firstlineno == wanted.co_firstlineno]
    alike = [code for code in order if code.co_qualname == wanted.co_qualname]
    if isinstance(node, ast.Lambda) and len(alike) > 1:
        lambdas = [
            one for one in ast.walk(statement) if isinstance(one, ast.Lambda) and one.lineno == node.lineno
        ]
        lambdas.sort(key=lambda one: one.col_offset)
        alike = [alike[lambdas.index(node)]] if len(lambdas) == len(alike) else []
    same = [code for code in alike if code.co_freevars == wanted.co_freevars]
    return same[0] if len(same) == 1 else None


# Operators ------------------------------------------------------------------------------------

#: whether the mutant now running has changed anything at all
_applied = Counter()


def _mutate(operator: str, *values: Any) -> Any:
    """What a changed expression evaluates to, of the values that stand in it."""
    first = values[0]
    new = _CHANGES[operator](*values)
    if new is not first:
        _applied[operator] += 1
    return new


def _of_floats(change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda x: change(x) if isinstance(x, Tensor) and x.is_floating_point() else x


def _copied(argument: Any, result: Any) -> Any:
    fits = isinstance(result, Tensor) and isinstance(argument, Tensor) and result.shape == argument.shape
    if fits and not torch.equal(result.to(argument.dtype), argument):
        _applied["argument changed in place"] += 1
        return argument.copy_(result)
    return result


def _exponentials(scores: Tensor, dim: int) -> Tensor:
    powers = scores.exp()
    return powers / powers.sum(dim, keepdim=True)


_CHANGES: dict[str, Callable[..., Any]] = {
    "detached": lambda x: x.detach() if isinstance(x, Tensor) and x.requires_grad else x,
    "float32 kept": lambda x: x.float() if isinstance(x, Tensor) and x.dtype == torch.float64 else x,
    "float16 and back": _of_floats(lambda x: x.half().to(x.dtype)),
    "epsilon": _of_floats(lambda x: x + 1e-2),
    "leak": lambda scores, hidden, leak: torch.where(hidden, scores + leak, scores),
    "no maximum": lambda result, scores, dim=-1: _exponentials(scores, dim),
    "clamped": _of_floats(lambda x: x.clamp_min(0.0) if bool((x < 0).any()) else x),
    "sign": _of_floats(lambda x: -x),
    "transposition added": lambda x: x.mT if isinstance(x, Tensor) and x.dim() > 1 else x,
    "argument changed in place": lambda result, argument: _copied(argument, result),
    "mask turned round": lambda x: ~x if isinstance(x, Tensor) and x.dtype == torch.bool else x,
}
_VALUES = ("detached", "float32 kept", "float16 and back", "clamped", "sign")
_COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
             ast.NotEq: ast.Eq}  # fmt: skip


def _call(operator: str, *expressions: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("__mutate__", ast.Load()), [ast.Constant(operator), *expressions], [])


def _kept(new: ast.expr, *unused: ast.expr) -> ast.expr:
    """``new``, with what it no longer uses evaluated beside it: a function keeps its free variables."""
    return ast.Subscript(ast.Tuple([new, *unused], ast.Load()), ast.Constant(0), ast.Load())


def _is_infinite(node: ast.AST) -> bool:
    """Whether it is -torch.inf, -math.inf or float("-inf")."""
    text = ast.unparse(node) if isinstance(node, (ast.UnaryOp, ast.Call)) else ""
    return text in ("-torch.inf", "-math.inf", "-inf", "float('-inf')")


def changes(
    node: ast.expr, context: str, parameters: tuple[str, ...], infinite: tuple[str, ...], outermost: bool
) -> Iterator[tuple[str, ast.expr]]:
    """Every (operator, expression in the place of ``node``).

    ``context`` says what kind of place that is, ``infinite`` which free variables are minus infinity,
    ``outermost`` whether the function is the one that is called.
    """
    if isinstance(node, (ast.Call, ast.BinOp, ast.Subscript)) and context != "index":
        for operator in _VALUES if outermost and context == "return" else ("detached",):
            yield operator, _call(operator, node)
        receiver = node.func if isinstance(node, ast.Call) else node
        first = getattr(receiver, "value", getattr(receiver, "left", None))
        if isinstance(first, ast.Name) and first.id in parameters:
            yield "argument changed in place", _call("argument changed in place", node, first)
    if _is_infinite(node) or (isinstance(node, ast.Name) and node.id in infinite):
        for leak in LEAKS:
            yield "leak", _kept(ast.Constant(leak), node)
    elif isinstance(node, ast.BinOp):
        yield from _of_operation(node)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        other = _COMPARED[type(node.ops[0])]()
        yield "comparison", ast.Compare(node.left, [other], node.comparators)
        if not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            yield "mask turned round", ast.Compare(node.comparators[0], [node.ops[0]], [node.left])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield "mask turned round", node.operand
    elif isinstance(node, ast.Attribute) and node.attr in ("mT", "T"):
        yield "transposition left out", node.value
    elif isinstance(node, ast.Call):
        yield from _of_call(node, infinite)
    elif isinstance(node, ast.Tuple) and context == "return":
        for i in range(len(node.elts) - 1):
            if ast.dump(node.elts[i]) == ast.dump(node.elts[i + 1]):
                continue
            swapped = list(node.elts)
            swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
            yield "results swapped", ast.Tuple(swapped, ast.Load())
    if (number := _number(node)) is not None:
        yield from _of_number(number, context)


def _of_operation(node: ast.BinOp) -> Iterator[tuple[str, ast.expr]]:
    left, right = node.left, node.right

    def with_(operator: ast.operator, one: ast.expr = left, other: ast.expr = right) -> ast.expr:
        return ast.BinOp(one, operator, other)

    match node.op:
        case ast.MatMult():
            yield "operands swapped", with_(node.op, right, left)
            for one, other in ((_call("transposition added", left), right),
                               (left, _call("transposition added", right))):  # fmt: skip
                yield "transposition added", with_(node.op, one, other)
        case ast.Mult():
            yield "factor left out", _kept(left, right)
            yield "factor left out", _kept(right, left)
        case ast.Div():
            yield "factor left out", _kept(left, right)
            yield "epsilon", with_(ast.Div(), left, _call("epsilon", right))
            yield "divided for multiplied", with_(ast.Mult())
        case ast.Add():
            yield "plus for minus", with_(ast.Sub())
            yield "term left out", _kept(left, right)
            yield "term left out", _kept(right, left)
        case ast.Sub():
            yield "plus for minus", with_(ast.Add())
            yield "term left out", _kept(left, right)
            yield "operands swapped", with_(ast.Sub(), right, left)
        case ast.BitAnd():
            yield "and for or", with_(ast.BitOr())
            yield "term left out", _kept(left, right)
            yield "term left out", _kept(right, left)
        case ast.BitOr():
            yield "and for or", with_(ast.BitAnd())
        case ast.Pow():
            yield "power", _kept(left, right)
            yield "power", _kept(ast.Constant(1.0), left, right)


def _of_call(node: ast.Call, infinite: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if name in ("transpose", "permute", "movedim", "swapaxes", "flip"):
        yield "transposition left out", node.func.value
    if name in ("sqrt", "rsqrt", "log"):
        receiver = ast.Attribute(_call("epsilon", node.func.value), name, ast.Load())
        yield "epsilon", ast.Call(receiver, node.args, node.keywords)
    if name == "softmax":
        yield "no maximum", _call("no maximum", node, node.func.value, *(one for one in node.args[:1]))
    if (
        name == "masked_fill"
        and len(node.args) == 2
        and (_is_infinite(node.args[1]) or getattr(node.args[1], "id", None) in infinite)
    ):
        for leak in LEAKS:
            values = (node.func.value, node.args[0], ast.Constant(leak))
            yield "leak", _kept(_call("leak", *values), node.args[1])
    if name == "masked_fill" and node.args:
        yield "mask turned round", _call_with(node, 0, _call("mask turned round", node.args[0]))
    if name == "where" and len(node.args) == 3:
        yield "mask turned round", _call_with(node, 0, _call("mask turned round", node.args[0]))
    names = [place for place, one in enumerate(node.args) if isinstance(one, ast.Name)]
    for one, other in pairwise(names):
        same = ast.dump(node.args[one]) == ast.dump(node.args[other])
        if other == one + 1 and not same and name not in _EITHER_WAY:
            swapped = list(node.args)
            swapped[one], swapped[other] = swapped[other], swapped[one]
            yield "arguments swapped", ast.Call(node.func, swapped, node.keywords)


def _call_with(node: ast.Call, place: int, new: ast.expr) -> ast.expr:
    return ast.Call(node.func, [*node.args[:place], new, *node.args[place + 1 :]], node.keywords)


def _number(node: ast.AST) -> int | float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    return None


def _of_number(number: int | float, context: str) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(number, float):
        if number not in (float("inf"), float("-inf")):
            yield ("power" if context == "power" else "constant"), ast.Constant(2 * number or 0.1)
    elif context == "axis":
        # counted from the same side: from the other one it may be the same axis
        other = {-1: -2, 0: 1}.get(number, number + 1 if number < 0 else number - 1)
        yield "another axis", ast.Constant(other)
    elif context == "power":
        yield "power", ast.Constant(number + 1)
    else:
        for other in (number - 1, number + 1):
            yield "off by one", ast.Constant(other)


def _places(node: ast.AST, context: str = "") -> Iterator[tuple[ast.AST, str, int | None, str]]:
    """Every expression below ``node``: its parent, its field there, its index in it, its kind of place."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "args") and isinstance(
            node, (ast.FunctionDef, ast.Lambda, ast.arg, ast.AnnAssign)
        ):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST):
                continue
            inner = context
            if isinstance(node, ast.Call) and (field in ("args", "keywords")):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                inner = "axis" if name in REDUCTIONS else "argument"
            elif isinstance(node, ast.keyword):
                inner = "axis" if node.arg in ("dim", "axis", "dims") else "argument"
            elif isinstance(node, ast.Return) or (isinstance(node, ast.Lambda) and field == "body"):
                inner = "return"
            elif isinstance(node, ast.Subscript) and field == "slice":
                inner = "index"
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and field == "right":
                inner = "power"
            elif not isinstance(node, (ast.Tuple, ast.UnaryOp)):
                inner = ""
            unary = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
            loads = not isinstance(getattr(child, "ctx", None), ast.Store)
            if isinstance(child, ast.expr) and loads and not unary:
                yield node, field, index, inner
            if loads:
                yield from _places(child, inner)


def mutants_of(exercise: Exercise) -> Iterator[Mutant]:
    """All mutants of the reference, in the order of its functions and expressions."""
    functions = functions_of(exercise)
    lines = executed(exercise, functions)
    for function in functions:
        file = function.__code__.co_filename
        found = _node_of(function)
        if found is None:
            raise ValueError(f"{exercise.name}: the source of {function.__qualname__} was not found")
        statement, definition = found
        parameters = exercise.parameters if function is exercise.reference else ()
        outermost = function is exercise.reference or function.__name__ == "forward"
        infinite = tuple(
            name
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            if isinstance(cell.cell_contents, float) and cell.cell_contents == -torch.inf
        )
        body = definition.body if isinstance(definition.body, list) else [definition]
        for top in body:
            for parent, field, index, context in list(_places(top)):
                holder = getattr(parent, field)
                node = holder if index is None else holder[index]
                if not any((file, line) in lines for line in range(node.lineno, node.end_lineno + 1)):
                    continue
                for operator, new in changes(node, context, parameters, infinite, outermost):
                    new = ast.fix_missing_locations(ast.copy_location(new, node))
                    _put(parent, field, index, new)
                    try:
                        code = _code_of(statement, definition, function)
                    finally:
                        _put(parent, field, index, node)
                    if code is not None:
                        yield Mutant(exercise, operator, _text(node), _text(new), function, code)


def _put(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> None:
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


# Judging --------------------------------------------------------------------------------------


@contextmanager
def _living(mutant: Mutant) -> Iterator[None]:
    before = mutant.function.__code__
    mutant.function.__globals__["__mutate__"] = _mutate
    mutant.function.__code__ = mutant.code
    try:
        yield
    finally:
        mutant.function.__code__ = before
        del mutant.function.__globals__["__mutate__"]


def judged(mutant: Mutant) -> Verdict | None:
    """The verdict of the exercise's own check; None where the change never changed a value."""
    _applied.clear()
    here = local(mutant.exercise.reference, mutant.exercise)

    def run(step: Step, cotangents: tuple[Tensor, ...] | None) -> Outcome:
        with _living(mutant):  # what is right is computed outside
            return here(step, cotangents)

    verdict = judge(mutant.exercise, run)
    waits = any(mutant.after.startswith(f"__mutate__('{operator}'") for operator in _CHANGES)
    waits = waits or "__mutate__(" in mutant.after.replace(mutant.before, "")
    return None if waits and not _applied else verdict


def is_named(mutant: Mutant, verdict: Verdict) -> bool:
    """Whether the check says what was done, and not only that numbers differ: a mistake's name, or a
    sentence that is there for this operator."""
    stage = {"detached": "gradient", "argument changed in place": "inputs", "float32 kept": "dtype"}
    said = stage.get(mutant.operator)
    return verdict.mistake is not None or verdict.findings[0].stage == said


def is_plausible(mutant: Mutant, verdict: Verdict) -> bool:
    """Whether a learner would hand it in: the operator is a usual slip, and it runs. Where an error of
    Python's or torch's ends it, that names the line by itself."""
    raised = any(each.stage in ("raised", "unfit") for each in verdict.findings)
    return PLAUSIBLE[mutant.operator] and not raised


def reason(mutant: Mutant) -> int | None:
    """The place in the list of what says why this mutant is no mistake."""
    for place, (name, operator, part, _) in enumerate(EQUIVALENT):
        fits = mutant.exercise.name.startswith(name) and mutant.operator == operator
        if fits and part in f"{mutant.before} -> {mutant.after}":
            return place
    return None


def sampled(mutants: list[Mutant], number: int) -> list[Mutant]:
    """A seeded few: those whose names have the smallest digests."""
    return sorted(mutants, key=lambda one: hashlib.sha256(f"{one.place} {one.name}".encode()).digest())[
        :number
    ]


@dataclass
class Row:
    """What came of some mutants."""

    made: int = 0
    equivalent: int = 0
    rejected: int = 0
    plausible: int = 0
    named: int = 0

    def count(self, mutant: Mutant, verdict: Verdict) -> None:
        self.made += 1
        if verdict.passed:
            self.equivalent += reason(mutant) is not None
            return
        self.rejected += 1
        if is_plausible(mutant, verdict):
            self.plausible += 1
            self.named += is_named(mutant, verdict)

    @property
    def share(self) -> float:
        return self.named / self.plausible if self.plausible else 1.0


def tried(number: int | None = None, only: str = "") -> Iterator[tuple[Mutant, Verdict]]:
    """Every mutant of every exercise whose name begins with ``only``, or ``number`` of each, and its verdict.

    Neither a training run is among them, which takes seconds, nor the capstone: they are asked for numbers
    and for behaviour, not for one formula.
    """
    for chapter in checks.chapters():
        for exercise in chapter.exercises:
            if type(exercise.asks) not in (Function, Module) or not exercise.name.startswith(only):
                continue
            mutants = list(mutants_of(exercise))
            for mutant in mutants if number is None else sampled(mutants, number):
                if verdict := judged(mutant):
                    yield mutant, verdict


def table(rows: dict[str, Row]) -> str:
    """The rows in columns, and their sum."""
    lines = [f"{'':28}{'made':>7}{'equivalent':>12}{'rejected':>10}{'plausible':>11}{'named':>7}{'share':>7}"]
    whole = Row(*(sum(getattr(row, one.name) for row in rows.values()) for one in fields(Row)))
    for name, row in [*rows.items(), ("all", whole)]:
        lines.append(
            f"{name:28}{row.made:7}{row.equivalent:12}{row.rejected:10}{row.plausible:11}{row.named:7}"
            f"{row.share:7.0%}"
        )
    return "\n".join(lines)


def main() -> int:
    """Make the mutants, print the tables, and those that were accepted without a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("only", nargs="?", default="", help="what the exercises' names begin with")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants of each exercise")
    parser.add_argument("--unnamed", action="store_true", help="list the plausible ones that are not named")
    arguments = parser.parse_args()
    chapters: dict[str, Row] = {}
    operators: dict[str, Row] = {}
    wrong, used = 0, set()
    for mutant, verdict in tried(arguments.sample, arguments.only):
        chapters.setdefault(mutant.exercise.chapter, Row()).count(mutant, verdict)
        operators.setdefault(mutant.operator, Row()).count(mutant, verdict)
        if verdict.passed:
            used.add(reason(mutant))
            if reason(mutant) is None:
                wrong += 1
                print(f"accepted: {mutant.exercise.name}, {mutant.place}: {mutant.name}")
        elif arguments.unnamed and is_plausible(mutant, verdict) and not is_named(mutant, verdict):
            first = verdict.findings[0]
            print(f"unnamed: {mutant.exercise.name}: {mutant.name} | {first.stage} {first.text[:100]}")
    if arguments.sample is None and not arguments.only:
        for place, (name, operator, part, _) in enumerate(EQUIVALENT):
            if place not in used:
                wrong += 1
                print(f"no mutant is accepted for this reason: {name}, {operator}, {part}")
    print(table(chapters), table(operators), sep="\n\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())

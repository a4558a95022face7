"""Compare what an answer did with what the reference does, and recognise the usual mistakes.

Everything here is a pure function of outcomes; nothing here calls a learner's code but :func:`local`.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from attention_course.checks.engine import score
from attention_course.checks.engine.asks import Played, Step, Training
from attention_course.checks.engine.examine import (
    ATOL,
    RTOL,
    examine,
    finding,
    tensors,
    values,
    with_article,
    without_gradient,
)
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.flow import moved_by
from attention_course.checks.engine.observe import Outcome, all_plain, is_plain, observe
from attention_course.checks.engine.otherwise import changes
from attention_course.checks.engine.resemble import resembled
from attention_course.checks.engine.surroundings import undisturbed
from attention_course.checks.engine.use import applied
from attention_course.checks.engine.verdict import STAGES, Finding, Verdict

#: those that comparing with a mistake cannot explain
_APART = ("callable", "gradient", "forbidden")
#: cases in which it is tried with what an answer moves
_TRIED = 3
#: wrong numbers in common that are no coincidence
_ENOUGH = 4

#: (step, cotangents or None) -> what the answer did
Run = Callable[[Step, tuple[Tensor, ...] | None], Outcome]


def local(answer: Any, exercise: Exercise | None = None) -> Run:
    """Run ``answer`` here, in this process, and watch for what its ``exercise`` forbids."""
    kept: dict[str, Any] = {}
    watched = exercise.forbidden if exercise else ()

    def run(step: Step, cotangents: tuple[Tensor, ...] | None) -> Outcome:
        function = applied(answer, step.use, kept)
        return observe(function, step.inputs, cotangents=cotangents, watched=watched)

    return run


@undisturbed()
def judge(exercise: Exercise, run: Run, seed: int = 0) -> Verdict:
    """Try every case of ``exercise``, drawn from ``seed``."""
    judged = score.trained if isinstance(exercise.asks, Training) else _compared
    found, mistake = judged(exercise, run, seed)
    # sorted() keeps the order of the cases
    return Verdict(exercise, tuple(sorted(found, key=lambda each: STAGES.index(each.stage))), mistake)


def _compared(exercise: Exercise, run: Run, seed: int) -> tuple[list[Finding], Mistake | None]:
    """What differs from the reference."""
    steps, expected = _demanded(exercise, seed)
    outcomes = [run(step, None) for step in steps]
    findings = [examine(exercise, *tried) for tried in zip(exercise.cases, outcomes, expected, strict=True)]
    for index, case in enumerate(exercise.cases):
        if (case.gradient or case.finite) and not findings[index]:
            findings[index] = _gradient(exercise, case, index, run, seed)
    found = [each for of_case in findings for each in of_case]
    tried = any(each.stage != "unwritten" for each in found)  # a starter is no mistake, and mutants take time
    return found, _recognise(exercise, run, seed, outcomes, findings) if tried else None


# The same for everybody who is judged with one seed: made once, and never changed.


@lru_cache(maxsize=128)
def _demanded(exercise: Exercise, seed: int) -> tuple[tuple[Step, ...], tuple[tuple[Tensor, ...], ...]]:
    """The call by which each case is tried, and what the reference makes of it."""
    steps = tuple(step for case in exercise.cases for step in exercise.steps(case, case.inputs(seed)))
    run = local(exercise.reference)
    return steps, tuple(tensors(run(step, None).result) for step in steps)


@lru_cache(maxsize=1024)
def _right_gradients(exercise: Exercise, seed: int, index: int) -> Outcome:
    steps, expected = _demanded(exercise, seed)
    return local(exercise.reference)(steps[index], _cotangents(expected[index], seed))


@lru_cache(maxsize=8192)
def _mistaken(exercise: Exercise, seed: int, mistake: Mistake, index: int) -> tuple[Outcome, bool]:
    """What a usual mistake makes of a case, and whether that is wrong."""
    steps, expected = _demanded(exercise, seed)
    outcome = local(mistake.function)(steps[index], None)
    return outcome, bool(examine(exercise, exercise.cases[index], outcome, expected[index]))


def judge_function(exercise: Exercise, function: Any, seed: int = 0) -> Verdict:
    """Judge whatever a learner hands over, here and now."""
    if not callable(function):
        return not_a_function(exercise, "None" if function is None else type(function).__name__)
    return judge(exercise, local(function, exercise), seed)


def not_a_function(exercise: Exercise, kind: str) -> Verdict:
    """The verdict on something of type ``kind`` that cannot be called."""
    wanted = exercise.asks.handed_over
    text = (
        f"{exercise.call} must be a {wanted}, but it is {with_article(kind)}. Hand over the "
        f"{wanted} itself, without calling it: check({exercise.name!r}, {exercise.answer})."
    )
    return Verdict(exercise, (Finding("callable", "", text),))


# Gradients ------------------------------------------------------------------------------------


def _gradient(exercise: Exercise, case: Case, index: int, run: Run, seed: int) -> list[Finding]:
    find = partial(finding, case, "gradient")
    steps, expected = _demanded(exercise, seed)
    outcome = run(steps[index], _cotangents(expected[index], seed))
    if outcome.raised:
        return [find(f"Right values, but with gradients: {without_gradient(outcome.raised, exercise.call)}")]
    right = _right_gradients(exercise, seed, index)
    for name, got, want in zip(exercise.parameters, outcome.gradients, right.gradients, strict=True):
        if name in exercise.settings:
            continue
        if name in exercise.constants:
            if got is not None and bool((got != 0).any()):
                return [
                    find(
                        f"Right values, but a gradient reaches {name}, which counts as a constant here: "
                        f"training would change what made {name} as well. .detach() cuts the path."
                    )
                ]
            continue
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
        strange = int((~got.isfinite() & want.isfinite()).sum())
        if strange:
            text = (
                f"Right values, but the gradient with respect to {name} is NaN or infinite in {strange} of "
                f"{got.numel()} entries. Where is 0 divided by 0, or a root or a logarithm taken of 0? What "
                "torch.where or nan_to_num replaces afterwards still has its derivative: the NaN must never "
                "arise, so give that step a harmless number first."
            )
            return [find(text, values(partial(finding, case), name, got, want)[0].table)]
        if name in exercise.given_distributions:
            got, want = (gradient - gradient.mean(-1, keepdim=True) for gradient in (got, want))
        if case.gradient and not torch.allclose(got, want, rtol=10 * RTOL, atol=10 * ATOL):
            text = f"Right values, but the gradient with respect to {name} differs: part of the path is cut."
            return [find(text, values(partial(finding, case), name, got, want)[0].table)]
    return []


def _cotangents(expected: tuple[Tensor, ...], seed: int) -> tuple[Tensor, ...]:
    # a digest: who sees these numbers must not learn the seed from them
    digest = hashlib.sha256(f"{seed}:cotangents".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
    return tuple(
        torch.randn(tensor.shape, generator=generator, dtype=_floating(tensor.dtype), device="cpu")
        for tensor in expected
    )


def _floating(dtype: torch.dtype) -> torch.dtype:
    """A result of integers, such as lengths beside states, has no gradient, and takes any number."""
    return dtype if dtype.is_floating_point else torch.float32


# Usual mistakes -------------------------------------------------------------------------------


def _recognise(
    exercise: Exercise, run: Run, seed: int, outcomes: list[Outcome], findings: list[list[Finding]]
) -> Mistake | None:
    """The mistake that does exactly what the learner's function did wherever either goes wrong.

    A function can have a usual mistake and overflow as well: if nothing fits all cases, the cases
    that fail for NaN or infinity alone are left out.
    """
    stages = [{each.stage for each in found} - set(_APART) for found in findings]
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
    if isinstance(exercise.asks, Played):  # whose many tensors could be exchanged in too many ways
        return None
    if all(each.stage == "gradient" for found in findings for each in found):
        return _in_gradients_alone(exercise, seed, findings)
    steps, expected = _demanded(exercise, seed)
    failing = [index for index in everything if stages[index]]
    found = _but_for_nan(exercise, seed, outcomes)
    found = found or resembled(
        exercise, [(steps[index].inputs, outcomes[index], expected[index]) for index in failing]
    )
    found = found or _answers_to_others(exercise, seed, outcomes, failing)
    if found or not exercise.unseen or any(each.raised for each in outcomes):
        return found
    return _moves(exercise, run, seed, [index for index in failing if stages[index] == {"values"}])


def _moves(exercise: Exercise, run: Run, seed: int, failing: list[int]) -> Mistake | None:
    """Whether an answer moves with what it may not see, in one of the smaller cases in which it is wrong."""
    steps, _ = _demanded(exercise, seed)
    wrong = [(exercise.cases[index], steps[index]) for index in failing]
    wrong.sort(key=lambda tried: sum(x.numel() for x in tried[1].inputs))
    right = local(exercise.reference)
    return moved_by(exercise, partial(run, cotangents=None), partial(right, cotangents=None), wrong[:_TRIED])


def _but_for_nan(exercise: Exercise, seed: int, outcomes: list[Outcome]) -> Mistake | None:
    """The mistake that does what the answer did wherever its own numbers are finite.

    Who replaces its NaN afterwards, or has -1e9 for -inf, or stable exponentials, has made it all the same.
    """
    for mistake in exercise.mistakes:
        wrong, strange = 0, False
        for index in range(len(outcomes)):
            told = _told_where_finite(exercise, seed, mistake, index, outcomes[index])
            if told is None:
                break
            wrong, strange = wrong + told[0], strange or told[1]
        else:
            if strange and wrong >= _ENOUGH:
                return mistake
    return None


def _told_where_finite(
    exercise: Exercise, seed: int, mistake: Mistake, index: int, outcome: Outcome
) -> tuple[int, bool] | None:
    """(wrong numbers that are those of the mistake, whether it has numbers that are not finite); None where
    another finite number came out."""
    made, _ = _mistaken(exercise, seed, mistake, index)
    if made.raised or outcome.raised or made.changed != outcome.changed:
        return None
    if not (all_plain(outcome.result) and all_plain(made.result)):
        return None
    trios = (tensors(outcome.result), tensors(made.result), _demanded(exercise, seed)[1][index])
    if len({len(each) for each in trios}) > 1:
        return None
    wrong, strange = 0, False
    for got, mistaken, want in zip(*trios, strict=True):
        if not got.shape == mistaken.shape == want.shape:
            return None
        if not got.dtype == mistaken.dtype == want.dtype:
            return None
        told = mistaken.isfinite() | (mistaken == want)
        if not torch.allclose(got[told], mistaken[told], rtol=RTOL, atol=ATOL):
            return None
        strange |= not bool(told.all())
        wrong += int((~torch.isclose(got, want, rtol=RTOL, atol=ATOL, equal_nan=True) & told).sum())
    return wrong, strange


def _in_gradients_alone(exercise: Exercise, seed: int, findings: list[list[Finding]]) -> Mistake | None:
    """The mistake whose values are all right, and whose gradients are told the same."""
    failing = [index for index, found in enumerate(findings) if found]
    for mistake in exercise.mistakes if failing else ():
        if any(_mistaken(exercise, seed, mistake, index)[1] for index in range(len(findings))):
            continue
        run = local(mistake.function)
        if all(
            _gradient(exercise, exercise.cases[index], index, run, seed) == findings[index]
            for index in failing
        ):
            return mistake
    return None


def _answers_to_others(
    exercise: Exercise, seed: int, outcomes: list[Outcome], failing: list[int]
) -> Mistake | None:
    """The change of the inputs to which every outcome, right or wrong, is the right answer."""
    if any(outcome.raised or outcome.changed for outcome in outcomes):
        return None
    # those that fail first: most changes already differ in the first of them
    order = failing + [index for index in range(len(outcomes)) if index not in failing]
    for place, (mistake, _) in enumerate(changes(exercise) if failing else ()):
        if all(
            _same(outcomes[index].result, _made_of_others(exercise, seed, place, index)) for index in order
        ):
            return mistake
    return None


@lru_cache(maxsize=8192)
def _made_of_others(exercise: Exercise, seed: int, place: int, index: int) -> Any:
    """What the reference makes of a case whose inputs are changed; None where it ends in an error."""
    steps, _ = _demanded(exercise, seed)
    changed = changes(exercise)[place][1](steps[index].inputs)
    if changed is None:  # it does not concern this case
        changed = steps[index].inputs
    return local(exercise.reference)(replace(steps[index], inputs=changed), None).result


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

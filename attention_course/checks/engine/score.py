"""A training run: what was trained is asked, and what it says is measured."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from attention_course.checks.engine.asks import Step, Training
from attention_course.checks.engine.examine import changed, failed, forbidden, formed
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.observe import Outcome
from attention_course.checks.engine.verdict import Finding

#: what is measured lies no further than this from what guessing gives: nothing was learned
_NEAR_GUESS = 0.05


def trained(
    exercise: Exercise, run: Callable[[Step, None], Outcome], seed: int
) -> tuple[list[Finding], Mistake | None]:
    """What is wrong with the training runs, one for each case, and the mistake that shows in all of them."""
    tried = [_tried(exercise, case, run, seed) for case in exercise.cases]
    found = [finding for of_case, _ in tried for finding in of_case]
    shown = [mistakes for of_case, mistakes in tried if of_case]
    common = (mistake for mistake in exercise.mistakes if all(mistake in mistakes for mistakes in shown))
    return found, next(common, None) if found else None


def _tried(
    exercise: Exercise, case: Case, run: Callable[[Step, None], Outcome], seed: int
) -> tuple[list[Finding], list[Mistake]]:
    inputs = case.inputs(seed)
    questions, right = inputs[-2:]
    train, ask = exercise.steps(case, inputs)
    outcome = run(train, None)
    found = failed(exercise, case, outcome, exercise.call)
    if found:
        return found, []
    found = [*changed(exercise, case, outcome), *forbidden(exercise, case, outcome)]
    found += _late(exercise, case, outcome)
    outcome = run(ask, None)
    wrong = failed(exercise, case, outcome, ask.subject) or formed(exercise, case, outcome, (right,))
    if wrong:
        return found + wrong, []
    said = outcome.result[0] if isinstance(outcome.result, tuple) else outcome.result
    wrong = _measured(exercise.asks, case, said, right)
    shows = [
        mistake
        for mistake in exercise.mistakes
        if wrong and mistake.shows and mistake.shows(said, questions, right)
    ]
    return found + wrong, shows


def _late(exercise: Exercise, case: Case, outcome: Outcome) -> list[Finding]:
    # in the grader nobody believes this number; there the call is stopped
    if outcome.seconds <= exercise.asks.seconds:
        return []
    text = f"{exercise.call} took {outcome.seconds:.1f} s; {exercise.asks.seconds:g} s are allowed."
    return [Finding("time", case.name, text)]


def _measured(asks: Training, case: Case, said: Tensor, right: Tensor) -> list[Finding]:
    find = partial(Finding, "score", case.name)
    number = float(asks.measure(said, right))
    # a NaN is within no bound
    if asks.at_least is not None and not number >= asks.at_least:
        bound = f"at least {asks.at_least:g}"
    elif asks.at_most is not None and not number <= asks.at_most:
        bound = f"at most {asks.at_most:g}"
    else:
        return []
    text = f"{asks.number} is {number:.3g}; {bound} is asked for."
    if len(said) > 1 and bool((said == said[:1]).all()):
        text += " What your function returned says the same to every question."
    elif asks.guess is not None and abs(number - asks.guess) <= _NEAR_GUESS:
        text += f" Guessing gives {asks.guess:g}: nothing of this was learned."
    return [find(text)]

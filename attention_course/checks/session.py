"""What a notebook calls: check, hint, progress, inputs."""

import sys
from typing import Any

from torch import Tensor

from attention_course.checks import registry, report
from attention_course.checks.judge import judge_function

#: exercise -> whether its latest check in this session passed
_LATEST: dict[str, bool] = {}


class CheckFailed(AssertionError):
    """An exercise's check did not pass. Its traceback is one line: the card above says the rest."""

    def _render_traceback_(self) -> list[str]:
        return [f"CheckFailed: {self}"]


def check(name: str, function: Any) -> None:
    """Try ``function`` on the cases of the exercise ``name`` and show what came out.

    Args:
        name: chapter and exercise, as in ``"03_scaled_dot_product.scores"``.
        function: the learner's function itself, not called.

    Raises:
        CheckFailed: something is not right yet; what, is shown before.
        ValueError: there is no such exercise.
    """
    verdict = judge_function(registry.find_exercise(name), function)
    _LATEST[name] = verdict.passed
    so_far = report.so_far(registry.find_chapter(verdict.exercise.chapter), _passed())
    _show(
        report.plain(verdict, so_far),
        report.html(verdict, so_far),
        {report.MIMETYPE: report.payload(verdict)},
    )
    if not verdict.passed:
        raise CheckFailed(report.brief(verdict))


def hint(name: str, level: int = 1) -> None:
    """Show one hint of the exercise ``name``: level 1 says least.

    Raises:
        ValueError: there is no such exercise, or no such level.
    """
    exercise = registry.find_exercise(name)
    if not isinstance(level, int) or not 1 <= level <= len(exercise.hints):
        raise ValueError(f"level is {level!r}; {name} has hints 1 to {len(exercise.hints)}")
    print(f"Hint {level} of {len(exercise.hints)}: {exercise.hints[level - 1]}")


def inputs(name: str, case: str) -> tuple[Tensor, ...]:
    """The tensors of one case, named as the check names it, to try a function on by hand.

    Raises:
        ValueError: there is no such exercise, or no such case.
    """
    cases = {one.name: one for one in registry.find_exercise(name).cases}
    if case not in cases:
        raise ValueError(f"no case of {name} is called {case!r}; there are: {', '.join(cases)}")
    return cases[case].inputs()


def progress(chapter: str) -> None:
    """Show which exercises of ``chapter`` passed their latest check in this session."""
    one = registry.find_chapter(chapter)
    _show(
        report.plain_progress(one, _passed(), tuple(_LATEST)),
        report.html_progress(one, _passed(), tuple(_LATEST)),
        {},
    )


def _passed() -> tuple[str, ...]:
    return tuple(name for name, passed in _LATEST.items() if passed)


def _show(plain: str, html: str, values: dict) -> None:
    shell = _shell()
    if shell is None:
        try:
            print(plain)
        except UnicodeEncodeError:  # a terminal that cannot print √
            encoding = sys.stdout.encoding or "ascii"
            print(plain.encode(encoding, "replace").decode(encoding))
        return
    from IPython.display import display

    display({"text/plain": plain, "text/html": html, **values}, raw=True)


def _shell():
    """The running IPython, or None in plain Python; IPython is not imported to find out."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None

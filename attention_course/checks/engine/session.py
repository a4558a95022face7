"""What a notebook calls: check, hint, progress, inputs."""

import sys
from typing import Any

from attention_course.checks.engine import record, registry, report
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.use import presented

#: exercise -> its latest verdict in this session, recorded or not
_LATEST: dict[str, record.Entry] = {}


class CheckFailed(AssertionError):
    """An exercise's check did not pass. Its traceback is one line: the card above says the rest."""

    def _render_traceback_(self) -> list[str]:
        return [f"CheckFailed: {self}"]


def check(name: str, function: Any) -> None:
    """Try ``function`` on the cases of the exercise ``name`` and show what came out.

    In a notebook, cells that wait are run all the same when a check, or any other cell, ends with an error:
    "Run all" goes on past an unfinished exercise.

    Args:
        name: chapter and exercise, as in ``"03_scaled_dot_product.scores"``.
        function: the learner's function itself, not called; or the class, where a module is asked for.

    Raises:
        CheckFailed: something is not right yet; what, is shown before.
        ValueError: there is no such exercise.
    """
    verdict = judge_function(registry.find_exercise(name), function)
    trouble = ""
    if verdict.started:  # an untouched starter tells nothing of its learner
        _LATEST[name] = record.now(name, verdict.passed)
        trouble = record.write([_LATEST[name]])
    passed = [exercise for exercise, entry in _LATEST.items() if entry.passed]
    so_far = report.so_far(registry.find_chapter(verdict.exercise.chapter), passed)
    so_far = f"{so_far} {trouble}" if trouble else so_far
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
    print(report.hint(registry.find_exercise(name), level))


def inputs(name: str, case: str) -> tuple:
    """What one case draws, named as the check names it, to try an answer on by hand.

    That is what a function is called with; for a module its state, by name, and what it is called with; for
    a training run what it is given, the questions, and their right answers.

    Raises:
        ValueError: there is no such exercise, or no such case.
    """
    exercise = registry.find_exercise(name)
    cases = {known.name: known for known in exercise.cases}
    if case not in cases:
        raise ValueError(f"no case of {name} is called {case!r}; there are: {', '.join(cases)}")
    shown = exercise.shown(cases[case])
    return presented(shown.use, shown.inputs)


def progress(chapter: str | None = None) -> None:
    """Show which exercises have ever passed, the points, and what is next.

    Args:
        chapter: its name, as in ``"03_scaled_dot_product"``; all chapters unless given.

    Raises:
        ValueError: there is no such chapter.
    """
    chosen = registry.chapters() if chapter is None else (registry.find_chapter(chapter),)
    entries, trouble = record.read()
    unrecorded = [entry for entry in _LATEST.values() if entry not in entries]
    standings = record.standings(chosen, (*entries, *unrecorded))
    notes = [*filter(None, (trouble, record.place()))]
    _show(report.plain_progress(chosen, standings, notes), report.html_progress(chosen, standings, notes), {})


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


# "Run all" ------------------------------------------------------------------------------------


def _go_on(result: Any) -> None:
    """After each cell of a notebook with checks: its error is shown, but clears no cell that waits.

    A kernel drops what waits when a reply says "error". The output stays what it was, so whoever reads it,
    nbgrader among them, still finds the error. An interrupt stops everything, as ever.
    """
    if isinstance(result.error_in_exec, Exception):
        result.error_in_exec = None
    if isinstance(result.error_before_exec, Exception):
        result.error_before_exec = None


if hasattr(_shell(), "kernel"):
    _shell().events.register("post_run_cell", _go_on)

"""The command ``attention-course``: look at exercises and at progress, write what learners get.

Exit codes: 0 all is well, 1 something is not right, 2 the command was called wrongly.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; returns the exit code."""
    options = parser().parse_args(arguments)
    return options.run(options)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="attention-course", description="Exercises on attention.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_check(commands)
    _add_progress(commands)
    _add_release(commands)
    return top


def _wrong_call(error: Exception) -> int:
    print(f"attention-course: {error}", file=sys.stderr)
    return 2


# check ----------------------------------------------------------------------------------------


def _add_check(commands) -> None:
    command = commands.add_parser(
        "check",
        help="run notebooks and tell which exercises pass",
        description="Run each notebook in a fresh kernel on this machine, and tell which of its "
        "exercises pass. A self-check, not a grade.",
    )
    command.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    command.add_argument("--json", action="store_true", help="print a list of objects, not a table")
    command.add_argument(
        "--timeout", type=_seconds, default=120.0, metavar="S", help="seconds for one cell (default: 120)"
    )
    command.set_defaults(run=_check)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _check(options: argparse.Namespace) -> int:
    from attention_course.checks import notebook as runner
    from attention_course.checks import record

    try:
        read = [(path, runner.read(path)) for path in options.notebooks]
        known = [(path, notebook, runner.chapter_of(notebook, path)) for path, notebook in read]
        results = []
        for path, notebook, chapter in known:
            unfinished = runner.execute(notebook, path.resolve().parent, options.timeout)
            results += runner.results(str(path), notebook, chapter, unfinished)
    except runner.NotebookError as error:
        return _wrong_call(error)
    verdicts = [one for one in results if one.status in ("passed", "failed")]
    trouble = record.write([record.now(one.exercise, one.status == "passed") for one in verdicts])
    if trouble:
        print(f"attention-course: {trouble}", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(one) for one in results], indent=1))
    else:
        _print_results([asdict(one) for one in results])
    return 0 if all(one.status == "passed" for one in results) else 1


def _print_results(results: list[dict]) -> None:
    columns = ("notebook", "exercise", "status", "points")
    rows = [columns]
    rows += [
        (one["notebook"], one["exercise"], one["status"], f"{one['points']}/{one['max_points']}")
        for one in results
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    reached, of = (sum(one[key] for one in results) for key in ("points", "max_points"))
    lines += ["", f"{reached} of {of} points. This is a self-check on your own machine, not a grade."]
    for one in results:
        if one["status"] != "passed":
            lines += ["", f"{one['exercise']}: {one['status']}", f"  {one['message']}"]
    _print("\n".join(line.rstrip() for line in lines))


def _print(text: str) -> None:
    """Print, also to a terminal that lacks a character."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


# progress -------------------------------------------------------------------------------------


def _add_progress(commands) -> None:
    command = commands.add_parser(
        "progress",
        help="tell which exercises have passed so far, over all chapters",
        description="Tell which exercises have ever passed a check on this machine, in a notebook or by "
        "attention-course check, the points, and what is next. A self-check, not a grade.",
    )
    command.add_argument("--json", action="store_true", help="print a list of objects, not a table")
    command.set_defaults(run=_progress)


def _progress(options: argparse.Namespace) -> int:
    from attention_course.checks import chapters, record, report

    every = chapters()
    entries, trouble = record.read()
    standings = record.standings(every, entries)
    if options.json:
        print(json.dumps(report.progress_values(standings), indent=1))
    else:
        _print(report.plain_progress(every, standings, [record.place()]))
    if trouble:
        print(f"attention-course: {trouble}", file=sys.stderr)
    return 1 if trouble else 0


# release --------------------------------------------------------------------------------------


def _add_release(commands) -> None:
    command = commands.add_parser(
        "release",
        help="write the notebooks learners get",
        description="Write exercises/release from exercises/source: no solutions, no outputs.",
    )
    command.add_argument("--check", action="store_true", help="write nothing; tell what does not agree")
    command.add_argument(
        "--exercises",
        type=Path,
        default=Path("exercises"),
        metavar="DIR",
        help="the folder that holds source and release (default: exercises)",
    )
    command.set_defaults(run=_release)


def _release(options: argparse.Namespace) -> int:
    from attention_course.grading import release

    try:
        if not options.check:
            for path in release.write(options.exercises):
                print(f"wrote {path}")
            return 0
        wrong = list(release.stale(options.exercises))
    except release.ReleaseError as error:
        return _wrong_call(error)
    for path, what in wrong:
        print(f"{path} {what}: run attention-course release")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

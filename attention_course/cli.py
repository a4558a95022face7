"""The command ``attention-course``: check exercises, give hints, tell progress; hand out and grade them.

Exit codes: 0 all is well, 1 something is not right, 2 the command was called wrongly.

torch is loaded as late as can be: what can be said without it is said at once.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        code = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has read enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def parser() -> argparse.ArgumentParser:
    groups = {
        "for learners": {
            "check": (_add_check, "run notebooks and tell which exercises pass"),
            "hint": (_add_hint, "show a hint of an exercise"),
            "progress": (_add_progress, "tell how far you have come"),
        },
        "for instructors": {
            "release": (_add_release, "write the notebooks learners get"),
            "grade": (_add_grade, "grade a class's notebooks, each in a sandbox"),
            "merge": (_add_merge, "put the parts of a class together that were graded with --shard"),
            "doctor": (_add_doctor, "tell whether this machine can grade a class, and what to do if not"),
        },
    }
    lines = []
    for group, own in groups.items():
        lines += [f"{group}:", *(f"  {name:10} {what}" for name, (_, what) in own.items()), ""]
    top = argparse.ArgumentParser(
        prog="attention-course",
        usage="attention-course COMMAND ...",
        description="Exercises on attention.\n\n" + "\n".join(lines)
        + "\nattention-course COMMAND --help tells more of one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = top.add_subparsers(
        prog="attention-course", required=True, metavar="COMMAND", help=argparse.SUPPRESS
    )
    for own in groups.values():
        for name, (add, _) in own.items():
            add(commands, name)
    return top


def _wrong_call(error: Exception) -> int:
    print(f"attention-course: {error}", file=sys.stderr)
    return 2


# check ----------------------------------------------------------------------------------------


def _add_check(commands, name: str) -> None:
    command = commands.add_parser(
        name,
        description="Run each notebook in a fresh kernel on this machine, and tell which of its "
        "exercises pass; a file of Python, such as gpt.py, is checked as the capstone. A self-check, not "
        "a grade. Exit code 0 when all pass, 1 when one does not, 2 when a file could not be checked; the "
        "others are all the same.",
    )
    command.add_argument("notebooks", nargs="+", type=Path, metavar="FILE")
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
    from attention_course.checks.engine import notebook as reader
    from attention_course.checks.engine import record

    notebooks, wrong = {}, 0
    for path in options.notebooks:
        try:
            notebooks[path] = reader.read(path)
        except reader.NotebookError as error:  # told before the others run, which takes seconds
            wrong = _wrong_call(error)
    results = {}
    for path, notebook in notebooks.items():
        try:
            results[path] = _checked(path, notebook, options.timeout)
        except reader.NotebookError as error:
            wrong = _wrong_call(error)
    every = [result for own in results.values() for result in own]
    verdicts = [result for result in every if result.status in ("passed", "failed")]
    trouble = record.write([record.now(verdict.exercise, verdict.status == "passed") for verdict in verdicts])
    if trouble:
        print(f"attention-course: {trouble}", file=sys.stderr)
    if results and options.json:
        print(json.dumps([asdict(result) for result in every], indent=1))
    elif results:
        _print("\n\n".join([*(_told(path, own) for path, own in results.items()), _sum(every)]))
    return wrong or int(any(result.status != "passed" for result in every))


def _checked(path: Path, notebook, seconds: float) -> list:
    from attention_course.checks.engine import kernel, plain
    from attention_course.checks.engine import notebook as reader

    with _progress_bar(len(notebook.cells), "cell", path.name) as bar:
        exercises, unfinished = kernel.execute(notebook, path.resolve().parent, seconds, bar.update)
    why = path.suffix == ".py" and plain.not_imported(notebook.cells[0].raised, unfinished)
    if why:
        raise reader.NotebookError(f"{path}: {why}")
    return reader.results(str(path), notebook, exercises, unfinished)


def _told(path: Path, results: list) -> str:
    """One notebook: a line for each exercise, then all that is said of those that do not pass."""
    from attention_course.checks.engine.report import points

    rows = [
        (result.exercise.partition(".")[2], result.status, points(result.points, result.max_points))
        for result in results
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [str(path)]
    for row in rows:
        entries = (entry.ljust(width) for entry, width in zip(row, widths, strict=True))
        lines.append(f"  {'  '.join(entries)}".rstrip())
    for result in results:
        if result.status not in ("passed", "not started"):  # of those the table says all
            said = (f"  {line}".rstrip() for line in result.report.split("\n"))
            lines += ["", f"{result.exercise}: {result.status}", *said]
    return "\n".join(lines)


def _sum(results: list) -> str:
    from attention_course.checks.engine.report import SELF_CHECK, points

    reached, of = sum(result.points for result in results), sum(result.max_points for result in results)
    return f"{points(reached, of)}. {SELF_CHECK}"


def _print(text: str) -> None:
    """Print, also to a terminal that lacks a character."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


@contextmanager
def _progress_bar(total: int, unit: str, name: str | None = None):
    """A bar on a terminal, gone when all is done; nothing elsewhere."""
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, desc=name, leave=False, file=sys.stderr, disable=None) as bar:
        yield bar


# hint -----------------------------------------------------------------------------------------


def _add_hint(commands, name: str) -> None:
    command = commands.add_parser(
        name,
        description="Show a hint of an exercise: the first says least. "
        "As in: attention-course hint 03_scaled_dot_product scores 1",
    )
    command.add_argument("chapter", metavar="CHAPTER", help="as in 03_scaled_dot_product")
    command.add_argument("exercise", metavar="EXERCISE", help="as in scores")
    command.add_argument("level", metavar="LEVEL", type=int, nargs="?", default=1, help="1, unless given")
    command.set_defaults(run=_hint)


def _hint(options: argparse.Namespace) -> int:
    from attention_course.checks.engine import registry, report

    try:
        registry.find_chapter(options.chapter)
        exercise = registry.find_exercise(f"{options.chapter}.{options.exercise}")
        text = report.hint(exercise, options.level)
    except ValueError as error:
        return _wrong_call(error)
    _print(text)
    return 0


# progress -------------------------------------------------------------------------------------


def _add_progress(commands, name: str) -> None:
    command = commands.add_parser(
        name,
        description="Tell which exercises have ever passed a check on this machine, in a notebook or by "
        "attention-course check, the points, and what is next: a line for each chapter, or, of the chapter "
        "that is named, one for each exercise. A self-check, not a grade.",
    )
    command.add_argument("chapter", metavar="CHAPTER", nargs="?", help="as in 03_scaled_dot_product")
    command.add_argument("--json", action="store_true", help="print a list of exercises, not a table")
    command.set_defaults(run=_progress)


def _progress(options: argparse.Namespace) -> int:
    from attention_course.checks.engine import record, registry, report

    try:
        some = (registry.find_chapter(options.chapter),) if options.chapter else registry.chapters()
    except ValueError as error:
        return _wrong_call(error)
    entries, trouble = record.read()
    standings = record.standings(some, entries)
    if options.json:
        print(json.dumps(report.progress_values(standings), indent=1))
    else:
        table = report.plain_progress if options.chapter else report.short_progress
        _print(table(some, standings, [record.place()]))
    if trouble:
        print(f"attention-course: {trouble}", file=sys.stderr)
    return 1 if trouble else 0


# release --------------------------------------------------------------------------------------


def _add_release(commands, name: str) -> None:
    command = commands.add_parser(
        name,
        description="Write exercises/release from exercises/source: no solutions, no outputs.",
    )
    command.add_argument("--check", action="store_true", help="write nothing; tell what does not agree")
    _add_exercises(command)
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


# grade ----------------------------------------------------------------------------------------


def _add_grade(commands, name: str) -> None:
    command = commands.add_parser(
        name,
        description="Grade every notebook of SUBMISSIONS on inputs drawn from the seed, each in a sandbox of "
        "its own. The official solution is graded first: unless it gets all points without a flag, nobody's "
        "is. What is already in DIR stays: called again, it goes on where it was. Exit code 0 when "
        "every submission has a verdict, 1 when the grader failed on any, or on the official solution, 2 for "
        "a wrong call.",
    )
    command.add_argument(
        "submissions", type=Path, metavar="SUBMISSIONS",
        help="a folder or a zip of STUDENT.ipynb, STUDENT/*.ipynb or STUDENT/ASSIGNMENT/*.ipynb",
    )  # fmt: skip
    command.add_argument("--assignment", required=True, metavar="NAME", help="as in 03_scaled_dot_product")
    command.add_argument(
        "--seed",
        required=True,
        type=int,
        metavar="N",
        help="a number; keep it from the class, and take a long one: a short one can be found by trying",
    )
    command.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the results go")
    command.add_argument("--jobs", type=_count, default=1, metavar="N", help="grade N at a time (default: 1)")
    command.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="i/N", help="only the i-th of N parts of the class"
    )
    command.add_argument("--scheduler", metavar="ADDRESS", help="grade on the workers of a Dask scheduler")
    command.add_argument(
        "--unsafe-no-sandbox", action="store_true", dest="unsafe",
        help="grade without a sandbox: the notebooks can then do all that you can",
    )  # fmt: skip
    _add_exercises(command)
    command.set_defaults(run=_grade)


def _add_exercises(command) -> None:
    command.add_argument(
        "--exercises",
        type=Path,
        default=Path("exercises"),
        metavar="DIR",
        help="the folder that holds source and release (default: exercises)",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 1024")
    return int(text)


def _shard(text: str) -> tuple[int, int]:
    first, _, of = text.partition("/")
    if not (first.isdecimal() and of.isdecimal() and 1 <= int(first) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 1/4, the first of four")
    return int(first), int(of)


def _grade(options: argparse.Namespace) -> int:
    from attention_course.grading import run

    if not options.scheduler:
        run.warm_up()
    from attention_course.grading import doctor, export
    from attention_course.grading.assignment import AssignmentError, load
    from attention_course.grading.results import RecordError
    from attention_course.grading.sandbox import SandboxError
    from attention_course.grading.submissions import SubmissionsError, open_source

    try:
        assignment = load(options.exercises, options.assignment)
        if options.unsafe:
            text = "without a sandbox, every notebook can read and change all that you can"
            print(f"attention-course: {text}", file=sys.stderr)
        elif not options.scheduler:
            doctor.sandbox_or_cure()
            if doctor.missing_filter():
                print(f"attention-course: {doctor.missing_filter()}", file=sys.stderr)
        with open_source(options.submissions, assignment.name) as source:
            mine = [
                submission
                for submission in source.submissions
                if run.in_shard(submission.student, options.shard)
            ]
            with _progress_bar(len(mine), "notebook") as bar:
                records = run.grade_class(
                    source, assignment, options.exercises, options.seed, options.out,
                    jobs=options.jobs, shard=options.shard, scheduler=options.scheduler,
                    unsafe=options.unsafe, hidden=[options.submissions], progress=lambda record: bar.update(),
                )  # fmt: skip
            alike = run.alike(source, assignment)
        if not records:  # a class may be smaller than the number of its parts
            print("No submission belongs to this part.")
            return 0
        export.write(options.out, records, _titles(assignment.chapter))
        export.write_alike(options.out, alike)
    except run.PreflightError as error:
        print(f"attention-course: {error}", file=sys.stderr)
        return 1
    except (
        AssignmentError,
        SubmissionsError,
        RecordError,
        SandboxError,
        run.SchedulerError,
        OSError,
    ) as error:
        return _wrong_call(error)
    except KeyboardInterrupt:
        print("\nattention-course: stopped; called again, it goes on from here", file=sys.stderr)
        return 130
    _print(f"{export.table(records)}\n{export.alike_lines(alike)}".rstrip())
    return 1 if any(record["status"] == "infra_error" for record in records) else 0


def _titles(chapter) -> dict[str, str]:
    return {exercise.name: exercise.title for exercise in chapter.exercises}


# merge ----------------------------------------------------------------------------------------


def _add_merge(commands, name: str) -> None:
    command = commands.add_parser(
        name,
        description="Write into DIR the results of every part, and the gradebooks and feedback over all.",
    )
    command.add_argument("parts", nargs="+", type=Path, metavar="PART", help="what --out was for a part")
    command.add_argument("--out", required=True, type=Path, metavar="DIR", help="where all of it goes")
    command.set_defaults(run=_merge)


def _merge(options: argparse.Namespace) -> int:
    from attention_course.checks import find_chapter
    from attention_course.grading import export, results

    try:
        notes = results.merge(options.parts, options.out)
        for note in notes:
            print(f"attention-course: {note}", file=sys.stderr)
        records = tuple(results.latest(results.read(options.out / results.NAME)[0]).values())
        if not records:
            print("No part has a submission.")
            return 0
        try:
            titles = _titles(find_chapter(records[0]["assignment"]))
        except ValueError as error:  # graded by a newer course, say
            return _wrong_call(error)
        export.write(options.out, records, titles)
    except (results.RecordError, OSError) as error:
        return _wrong_call(error)
    _print(export.table(records))
    return 1 if any(record["status"] == "infra_error" for record in records) else 0


# doctor ---------------------------------------------------------------------------------------


def _add_doctor(commands, name: str) -> None:
    command = commands.add_parser(
        name,
        description="Look at what grading needs, try the sandbox, and name a cure for what does not work.",
    )
    command.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from attention_course.grading import doctor

    findings = list(doctor.examine())
    _print(doctor.table(findings))
    return 0 if doctor.healthy(findings) else 1


if __name__ == "__main__":
    sys.exit(main())

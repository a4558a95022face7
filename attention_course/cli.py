"""The command ``attention-course``: check exercises, tell progress, hand out and grade them.

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
    _add_grade(commands)
    _add_merge(commands)
    _add_doctor(commands)
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
    from attention_course.checks.engine import notebook as runner
    from attention_course.checks.engine import record

    try:
        read = [(path, runner.read(path)) for path in options.notebooks]
        known = [(path, notebook, runner.chapter_of(notebook, path)) for path, notebook in read]
        results = []
        for path, notebook, chapter in known:
            unfinished = runner.execute(notebook, path.resolve().parent, options.timeout)
            results += runner.results(str(path), notebook, chapter, unfinished)
    except runner.NotebookError as error:
        return _wrong_call(error)
    verdicts = [result for result in results if result.status in ("passed", "failed")]
    trouble = record.write([record.now(verdict.exercise, verdict.status == "passed") for verdict in verdicts])
    if trouble:
        print(f"attention-course: {trouble}", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        _print_results([asdict(result) for result in results])
    return 0 if all(result.status == "passed" for result in results) else 1


def _print_results(results: list[dict]) -> None:
    columns = ("notebook", "exercise", "status", "points")
    rows = [columns]
    rows += [
        (
            result["notebook"],
            result["exercise"],
            result["status"],
            f"{result['points']}/{result['max_points']}",
        )
        for result in results
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    reached, of = (sum(result[key] for result in results) for key in ("points", "max_points"))
    lines += ["", f"{reached} of {of} points. This is a self-check on your own machine, not a grade."]
    for result in results:
        if result["status"] != "passed":
            lines += ["", f"{result['exercise']}: {result['status']}", f"  {result['message']}"]
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
    from attention_course.checks import chapters
    from attention_course.checks.engine import record, report

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


def _add_grade(commands) -> None:
    command = commands.add_parser(
        "grade",
        help="grade a class's notebooks, each in a sandbox",
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
            with _progress_bar(len(mine)) as progress:
                records = run.grade_class(
                    source, assignment, options.exercises, options.seed, options.out,
                    jobs=options.jobs, shard=options.shard, scheduler=options.scheduler,
                    unsafe=options.unsafe, hidden=[options.submissions], progress=progress,
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


def _progress_bar(total: int):
    from contextlib import contextmanager

    from tqdm import tqdm

    @contextmanager
    def shown():
        with tqdm(total=total, unit="notebook", file=sys.stderr, disable=None) as bar:
            yield lambda record: bar.update()

    return shown()


# merge ----------------------------------------------------------------------------------------


def _add_merge(commands) -> None:
    command = commands.add_parser(
        "merge",
        help="put the parts of a class together that were graded with --shard",
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


def _add_doctor(commands) -> None:
    command = commands.add_parser(
        "doctor",
        help="tell whether this machine can grade a class, and what to do if not",
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

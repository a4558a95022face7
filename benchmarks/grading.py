"""How fast the grader is, beside nbgrader in the same run, and where its time goes.

    python benchmarks/grading.py [--submissions 200] [--peer 10] [--jobs 2] [--assignment NAME]

Needs Linux, bubblewrap and nbgrader. Progress goes to stderr, tables go to stdout. Exit code 1 when the
two graders disagree on any exercise, 2 when something that is needed is missing.
"""

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep

EXERCISES = Path(__file__).resolve().parents[1] / "exercises"
SEED = 20260401
#: seconds between two looks at a running grader
LOOK = 0.1
#: submissions graded to see how much memory they take, and in one process to see what takes how long
MEMORY, PROFILE = 4, 20

#: which kind of submission comes when; two that raise are put in between
MIX = ("right", "slip", "right", "starter", "slip", "right", "half", "slip")
RAISING = {7: "raises", 9: "breaks"}
#: slips of the pen, in the text of a solution
SLIPS = (
    ("-1", "-2"), ("**0.5", ""), (" - ", " + "), (" + ", " - "), (" * ", " / "), ("True", "False"),
    ("<=", "<"), (">=", ">"), ("return ", "return 2 * "),
)  # fmt: skip


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# A class --------------------------------------------------------------------------------------


def hand_in(folders: Sequence[Path], name: str, students: Sequence[str]) -> None:
    """Write a class, its first student's notebook first, spread evenly over ``folders``."""
    source = json.loads((EXERCISES / "source" / name / f"{name}.ipynb").read_text(encoding="utf-8"))
    starter = json.loads((EXERCISES / "release" / name / f"{name}.ipynb").read_text(encoding="utf-8"))
    share = -(-len(students) // len(folders))
    for index, student in enumerate(students):
        notebook = json.loads(json.dumps(starter))
        answered(notebook["cells"], source["cells"], RAISING.get(index) or MIX[index % len(MIX)], index)
        text = {"cell_type": "markdown", "id": "whose", "metadata": {}, "source": f"Handed in by {student}."}
        notebook["cells"].insert(0, text)
        path = folders[index // share] / student / name / f"{name}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")


def answered(cells: list[dict], solved: list[dict], kind: str, index: int) -> None:
    """Fill in the starter's cells, as a student of this kind does."""
    places = [place for place, cell in enumerate(cells) if marks(cell).get("solution")]
    solutions = {place: "".join(solved[place]["source"]) for place in places}
    if kind == "starter":
        return
    if kind == "half":
        solutions = {place: solutions[place] for place in places[: -(-len(places) // 2)]}
    if kind == "slip":
        slips = [(place, slip) for place in places for slip in slipped(solutions[place])]
        place, text = slips[(index * 7) % len(slips)]  # 7 apart: neighbours make other slips
        solutions[place] = text
    if kind in ("raises", "breaks"):
        place = places[index % len(places)]
        word = "raise ValueError('no idea')" if kind == "raises" else "return ("
        solutions[place] = solutions[place].replace("### BEGIN SOLUTION", word)
    for place, text in solutions.items():
        cells[place]["source"] = "\n".join(line for line in text.split("\n") if " SOLUTION" not in line)
    if kind == "breaks":
        text = {"cell_type": "code", "id": "breaks", "metadata": {}, "outputs": [], "execution_count": None}
        cells.insert(0, {**text, "source": "1 / 0"})


def marks(cell: dict) -> dict:
    return cell["metadata"].get("nbgrader", {})


def slipped(solution: str) -> Iterator[str]:
    """The solution with one slip of the pen, each that can be made in it."""
    before, begin, after = solution.partition("### BEGIN SOLUTION")
    for right, wrong in SLIPS:
        lines = after.split("\n")
        hits = [place for place, line in enumerate(lines) if right in line.partition("#")[0]]
        if hits:
            lines[hits[-1]] = lines[hits[-1]].replace(right, wrong, 1)
            yield before + begin + "\n".join(lines)


# Running a grader -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """Seconds from the start of a grader until its first result, its last result, and its end."""

    results: int
    first: float
    last: float
    seconds: float


Look = Callable[[int], None]


def run(command: list[str], folder: Path, results: Callable[[], int], look: Look | None = None) -> Ran:
    """Run a grader to its end; ``look`` is called with its process id now and then."""
    log = folder / f"{os.urandom(4).hex()}.log"
    counts = [(0, 0.0)]  # results, seconds after the start
    with log.open("wb") as output:
        start = monotonic()
        grader = subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, stdout=output,
            stderr=output,
        )  # fmt: skip
        try:
            while grader.poll() is None:
                sleep(LOOK)
                if look:
                    look(grader.pid)
                count = results()
                if count > counts[-1][0]:
                    counts.append((count, monotonic() - start))
                    print(f"\r  {count} graded", end="", file=sys.stderr, flush=True)
            seconds = monotonic() - start
        finally:
            grader.kill()
            grader.wait()
    if grader.returncode:
        output_tail = log.read_text(errors="replace")[-3000:]
        raise SystemExit(f"{output_tail}\nexit code {grader.returncode}: {' '.join(command)}")
    say(f"\r  {results()} graded, {seconds:.1f} s" if results() else f"  {seconds:.1f} s")
    return Ran(results(), counts[min(1, len(counts) - 1)][1], counts[-1][1], seconds)


def environment(home: Path) -> dict[str, str]:
    """No user's configuration is read, no progress is recorded."""
    settings = ("JUPYTER", "IPYTHON", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return {
        **kept, "HOME": str(home), "JUPYTER_NO_CONFIG": "1", "ATTENTION_COURSE_PROGRESS": os.devnull,
        "PATH": path,  # nbgrader starts alembic by its name
    }  # fmt: skip


@dataclass(frozen=True)
class Ours:
    """``attention-course grade``, of what lies in ``submitted``."""

    folder: Path
    submitted: Path
    name: str
    jobs: int

    @property
    def log(self) -> Path:
        return self.folder / "out" / "results.jsonl"

    def grade(self, look: Look | None = None) -> Ran:
        self.folder.mkdir(parents=True)
        command = [
            sys.executable, "-m", "attention_course.cli", "grade", str(self.submitted),
            "--assignment", self.name, "--seed", str(SEED), "--out", str(self.folder / "out"),
            "--jobs", str(self.jobs), "--exercises", str(EXERCISES),
        ]  # fmt: skip
        return run(command, self.folder, self.results, look)

    def results(self) -> int:
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def points(self, checks: dict[str, str]) -> dict[str, dict[str, float]]:
        """Student -> check -> points."""
        records = map(json.loads, self.log.read_text(encoding="utf-8").splitlines())
        return {
            record["student"]: {
                checks[exercise["name"]]: exercise["points"] for exercise in record["exercises"]
            }
            for record in records
        }


@dataclass(frozen=True)
class Peer:
    """``nbgrader autograde``, in a course of its own."""

    folder: Path
    name: str

    def prepare(self, submitted: Path, students: Sequence[str]) -> None:
        """What comes before grading: the assignment in its database, the notebooks in its folder."""
        shutil.copytree(EXERCISES / "source" / self.name, self.folder / "source" / self.name)
        for student in students:
            shutil.copytree(submitted / student, self.folder / "submitted" / student)
        run(self._command("generate_assignment"), self.folder, lambda: 0)

    def grade(self, look: Look | None = None) -> Ran:
        return run(self._command("autograde"), self.folder, self.results, look)

    def _command(self, what: str) -> list[str]:
        return [sys.executable, "-m", "nbgrader", what, self.name, "--course-dir", str(self.folder)]

    def results(self) -> int:
        """Those it has written and made read-only, the last thing it does with each."""
        paths = self.folder.glob(f"autograded/*/{self.name}/{self.name}.ipynb")
        return sum(not path.stat().st_mode & 0o222 for path in paths)

    def points(self) -> dict[str, dict[str, float]]:
        """Student -> check -> points."""
        from nbgrader.api import Gradebook

        with Gradebook(f"sqlite:///{self.folder}/gradebook.db") as gradebook:
            students = [submission.student.id for submission in gradebook.assignment_submissions(self.name)]
            notebooks = {
                student: gradebook.find_submission_notebook(self.name, self.name, student)
                for student in students
            }
            return {
                student: {grade.name: grade.score for grade in notebook.grades}
                for student, notebook in notebooks.items()
            }


# Memory ---------------------------------------------------------------------------------------


class Memory:
    """The most memory that a process and all below it held together, as their shares of it (PSS)."""

    def __init__(self):
        self.bytes, self.processes, self.unread = 0, 0, 0

    def look(self, process: int) -> None:
        shares = [size for size in map(share, below(process)) if size is not None]
        self.unread = max(self.unread, shares.count(-1))
        together = sum(size for size in shares if size > 0)
        if together > self.bytes:
            self.bytes, self.processes = together, len(shares)


def below(process: int) -> list[int]:
    """A process and its descendants, in whatever namespace they are."""
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry))
    processes = [process]
    for parent in processes:
        processes += children.get(parent, [])
    return processes


def share(process: int) -> int | None:
    """Bytes; None when it is gone, -1 when it may not be read."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except PermissionError:
        return -1
    except OSError:
        return None
    kilobytes = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
    return 1024 * int(kilobytes[1]) if kilobytes else None


# Where our time goes --------------------------------------------------------------------------


class Stopwatch:
    """Seconds by part; what an inner part takes is not counted for the outer one."""

    def __init__(self):
        self.seconds: Counter[str] = Counter()
        self._parts, self._since = ["the rest"], perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._charge()
        self._parts.append(name)
        try:
            yield
        finally:
            self._charge()
            self._parts.pop()

    def _charge(self) -> None:
        now = perf_counter()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now

    def timed(self, function: Callable, name: str) -> Callable:
        def call(*arguments, **settings):
            with self.part(name):
                return function(*arguments, **settings)

        return call

    def entered(self, make: Callable, start: str, end: str) -> Callable:
        """A context manager whose way in and way out are two parts."""

        @contextmanager
        def manager(*arguments, **settings):
            stack = ExitStack()
            with self.part(start):
                value = stack.enter_context(make(*arguments, **settings))
            try:
                yield value
            finally:
                with self.part(end):
                    stack.close()

        return manager


def profile(paths: Sequence[Path], name: str, folder: Path) -> tuple[list[tuple[str, float]], Counter]:
    """Grade in this process; seconds of what is done once, and of what is done for each submission."""
    once = Stopwatch()
    with once.part("torch imported"):
        import torch
    with once.part("the grader imported"):
        from attention_course.grading import assignment, grade, remote, results
    torch.set_num_threads(1)
    with once.part("assignment loaded"):
        loaded = assignment.load(EXERCISES, name)
    with ExitStack() as stack:
        with once.part("process with torch (zygote) started"):
            zygote = stack.enter_context(remote.launcher(loaded.files, loaded.preload, remote.Limits()))
        log = stack.enter_context(results.open_log(folder))
        watch = Stopwatch()
        sandbox = watch.entered(zygote.room, "sandbox made (bubblewrap)", "sandbox ended")
        zygote = replace(zygote, room=sandbox)
        grade.session = watch.entered(grade.session, "process forked, enters the sandbox", "process ended")
        for owner, function, part in (
            (grade, "read_cells", "notebook read"),
            (grade, "plan", "exercises found"),
            (grade, "public_inputs", "public inputs made and sent"),
            (grade, "judge", "judging: inputs, reference, comparison"),
            (grade.Session, "public_inputs", "public inputs made and sent"),
            (grade.Session, "cell", "cells run"),
            (grade.Session, "call", "functions called"),
        ):
            setattr(owner, function, watch.timed(getattr(owner, function), part))
        append = watch.timed(log.append, "record written")
        for number, path in enumerate(paths, 1):
            start, content = perf_counter(), path.read_bytes()
            verdict = grade.record(grade.grade(content, loaded, SEED, zygote), loaded)
            identity = {
                "student": path.parts[-3], "name": path.name, "key": assignment.key(loaded, content, SEED),
            }  # fmt: skip
            append({**identity, **verdict, "seconds": round(perf_counter() - start, 3)})
            print(f"\r  {number} graded", end="", file=sys.stderr, flush=True)
        say("")
    return [(part, took) for part, took in once.seconds.items() if part != "the rest"], watch.seconds


# Telling --------------------------------------------------------------------------------------


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "nbgrader", "nbclient"))
    return (
        f"{cores} cores ({model[1] if model else platform.machine()}), {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()}\nPython {platform.python_version()}, {versions}, {bwrap}"
    )


def columns(rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def after_first(runs: Sequence[Ran]) -> float:
    """Submissions per second between the first result and the last."""
    seconds = sum(run.last - run.first for run in runs)
    return sum(run.results - 1 for run in runs) / seconds if seconds else float("nan")


def compared(what: str, ours: float, peer: float, digits: int) -> tuple[str, str, str, str]:
    return what, f"{ours:,.{digits}f}", f"{peer:,.{digits}f}", f"{ours / peer:.1f}"


def speeds(ours: Sequence[Ran], peer: Ran, memory: Memory, memory_peer: Memory) -> str:
    rates = [sum(run.results for run in runs) / sum(run.seconds for run in runs) for runs in (ours, [peer])]
    halves = " + ".join(f"{half.seconds:.1f}" for half in ours)
    rows = [
        ("", "ours", "nbgrader", "ours / nbgrader"),
        ("submissions", str(sum(half.results for half in ours)), str(peer.results), ""),
        ("seconds, start to end", halves, f"{peer.seconds:.1f}", ""),
        compared("seconds to the first result", max(half.first for half in ours), peer.first, 1),
        compared("submissions per second", *rates, 2),
        compared("  after the first result", after_first(ours), after_first([peer]), 2),
        compared("peak memory, MiB", memory.bytes / 2**20, memory_peer.bytes / 2**20, 0),
        ("  processes then", str(memory.processes), str(memory_peer.processes), ""),
    ]
    return columns(rows)


def shares(seconds: Counter, each: int) -> str:
    total = sum(seconds.values())
    rows = [("in one process, for each submission", "ms", "share")]
    for part, took in seconds.most_common():
        rows.append((part, f"{1000 * took / each:.1f}", f"{took / total:.0%}"))
    return columns([*rows, ("all", f"{1000 * total / each:.1f}", "100%")])


def disagreements(ours: dict, peer: dict) -> list[str]:
    return [
        f"{student}, {check}: ours {ours[student][check]}, nbgrader {points:g}"
        for student, checks in sorted(peer.items())
        for check, points in sorted(checks.items())
        if ours[student][check] != points
    ]


def checks_of(name: str) -> dict[str, str]:
    """Exercise -> grade_id of the cell that checks it."""
    source = json.loads((EXERCISES / "source" / name / f"{name}.ipynb").read_text(encoding="utf-8"))
    return {
        re.search(r'check\("([\w.]+)"', "".join(cell["source"]))[1]: marks(cell)["grade_id"]
        for cell in source["cells"]
        if marks(cell).get("grade")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast the grader is, beside nbgrader in the same run.")
    parser.add_argument("--submissions", type=int, default=200, metavar="N", help="graded by ours")
    parser.add_argument(
        "--peer", type=int, default=10, metavar="N", help="the first N, graded by nbgrader, too"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many ours grades at a time")
    parser.add_argument("--assignment", default="03_scaled_dot_product", metavar="NAME")
    options = parser.parse_args()
    if options.submissions < 2 * MEMORY or options.jobs < 1:
        parser.error(f"expected --submissions of at least {2 * MEMORY} and --jobs of at least 1")
    if not 2 <= options.peer <= options.submissions // 2:
        parser.error("expected --peer from 2 to half of --submissions")
    if importlib.util.find_spec("nbgrader") is None or not shutil.which("bwrap"):
        say("benchmarks/grading.py needs nbgrader (pip install nbgrader) and bubblewrap")
        return 2
    with TemporaryDirectory(prefix="grading-") as folder:
        return measure(Path(folder), options.assignment, options.submissions, options.peer, options.jobs)


def measure(folder: Path, name: str, submissions: int, peers: int, jobs: int) -> int:
    students = [f"student-{number:04}" for number in range(1, submissions + 1)]
    halves = [folder / "class" / half for half in ("first", "second")]
    hand_in(halves, name, students)
    ours = [Ours(folder / half.name, half, name, jobs) for half in halves]
    peer = Peer(folder / "nbgrader", name)
    say("nbgrader: its database")
    peer.prepare(halves[0], students[:peers])
    load = os.getloadavg()[0]
    say("ours, first half")
    first = ours[0].grade()
    say("nbgrader")
    between = peer.grade()
    say("ours, second half")
    second = ours[1].grade()
    load = f"{load:.1f} before, {os.getloadavg()[0]:.1f} after"

    memory, memory_peer = Memory(), Memory()
    small = Peer(folder / "few", name)
    say("memory: nbgrader's database")
    small.prepare(halves[0], students[:MEMORY])
    say("memory of ours")
    Ours(folder / "memory", small.folder / "submitted", name, jobs).grade(memory.look)
    say("memory of nbgrader")
    small.grade(memory_peer.look)

    say("where our time goes")
    paths = sorted(halves[0].glob("*/*/*.ipynb"))[:PROFILE]
    once, each = profile(paths, name, folder / "profile")

    print(machine())
    print(f"Assignment {name}. Load average {load}.\n")
    print(speeds([first, second], between, memory, memory_peer))
    print(f"""
Ours ran with --jobs {jobs} in two halves, nbgrader between them, as the one process that it always is, with
a kernel for each notebook. All start-up counts, from the call of the command to its end: each half of ours
starts Python and torch anew in all of its processes, and grades the official solution first. What nbgrader
needs beforehand (generate_assignment) does not count. Memory is the sum over all processes of their shares
(PSS), every {LOOK:g} s, from runs of {MEMORY} submissions that are not timed, because looking takes time
itself.""")
    if memory.unread or memory_peer.unread:
        print("Some processes could not be read: they held more.")
    print("\n" + columns([("once for each process", "s"), *((part, f"{took:.2f}") for part, took in once)]))
    print("\n" + shares(each, len(paths)))
    theirs = peer.points()
    differing = disagreements(ours[0].points(checks_of(name)), theirs)
    print(f"\nBoth graded {len(theirs)} submissions, and {'not ' if differing else ''}all exercises alike.")
    for line in differing:
        print(f"  {line}")
    return 1 if differing or len(theirs) != peers else 0


if __name__ == "__main__":
    sys.exit(main())

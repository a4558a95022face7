"""A learner's progress over weeks: one line of JSON for each verdict, in a file of the learner's own.

Lines are only ever appended, so two notebooks open at once lose nothing of each other's. A line
says which exercise was checked, when, and whether it passed: no code, no name. Anybody can edit
the file; it is a memory, not a grade. To start anew, delete it.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # with it comes torch, which takes a second
    from attention_course.checks.engine.exercise import Chapter, Exercise

#: names the file, instead of the usual place; the null device means that nothing is recorded
VARIABLE = "ATTENTION_COURSE_PROGRESS"


@dataclass(frozen=True)
class Entry:
    """One verdict: ``exercise`` by name, and the learner's own time, with its offset."""

    exercise: str
    passed: bool
    time: datetime


def now(exercise: str, passed: bool) -> Entry:
    """The verdict just reached; a record keeps whole seconds."""
    return Entry(exercise, passed, datetime.now().astimezone().replace(microsecond=0))


# On disk --------------------------------------------------------------------------------------


def path() -> Path | None:
    """The file verdicts are recorded in, or ``None`` where they are not.

    It is what ``ATTENTION_COURSE_PROGRESS`` names, else ``attention-course/progress.jsonl`` in
    ``XDG_DATA_HOME``, else in ``~/.local/share``, on every system. A test run under pytest, be it
    of notebooks, is nobody's progress: there only a file that is named counts.
    """
    named = os.environ.get(VARIABLE)
    if not named and "PYTEST_VERSION" in os.environ:
        return None
    try:
        if named:
            return None if named == os.devnull else Path(named).expanduser()
        data = os.environ.get("XDG_DATA_HOME", "")  # a relative one is to be ignored, says its standard
        folder = Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share"
    except RuntimeError:  # this account has no home
        return None
    return folder / "attention-course" / "progress.jsonl"


def place() -> str:
    """Where the record is and how long it lasts there, in a sentence."""
    file = path()
    if file is None:
        return "Nothing is recorded here."
    if "google.colab" in sys.modules and not file.is_relative_to("/content/drive"):
        return (
            f"Recorded in {_shown(file)}, which Colab deletes with this session. To keep it, mount your "
            f"Drive and set os.environ[{VARIABLE!r}] to a file there before the first check."
        )
    return f"Recorded in {_shown(file)}."


def _shown(file: Path) -> str:
    """The file as people write it; a notebook that is handed on then tells nobody's name."""
    try:
        return str(Path("~") / file.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(file)


@contextmanager
def off() -> Iterator[None]:
    """Inside, nothing is recorded, nor by processes started there: for running others' notebooks."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = os.devnull
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def write(entries: Sequence[Entry]) -> str:
    """Append ``entries``; returns why that failed, in one sentence, empty if it did not.

    It never raises: a check must not fail for want of a place to write.
    """
    file = path()
    if file is None or not entries:
        return ""
    lines = b"".join(_line(entry) for entry in entries)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+b") as stream:  # one write at the end: others may be writing, too
            if _is_cut_off(stream):
                lines = b"\n" + lines
            stream.write(lines)
    except OSError as error:
        return f"This is not recorded: {_shown(file)}: {error.strerror or error}."
    return ""


def read() -> tuple[tuple[Entry, ...], str]:
    """Every entry of the file, and what could not be read, in one sentence, empty if all could."""
    file = path()
    try:
        content = b"" if file is None else file.read_bytes()
    except FileNotFoundError:  # nothing was checked yet
        return (), ""
    except OSError as error:
        return (), f"The record cannot be read: {_shown(file)}: {error.strerror or error}."
    lines = [line for line in content.split(b"\n") if line.strip()]
    entries = [_entry(line) for line in lines]
    good = tuple(entry for entry in entries if entry)
    if len(good) == len(lines):
        return good, ""
    bad = f"{len(lines) - len(good)} of {len(lines)} lines"
    return good, f"{bad} in {_shown(file)} cannot be read; the others count."


def _line(entry: Entry) -> bytes:
    values = {
        "version": 1,
        "time": entry.time.isoformat(),
        "exercise": entry.exercise,
        "status": "passed" if entry.passed else "failed",
    }
    return json.dumps(values).encode() + b"\n"


def _entry(line: bytes) -> Entry | None:
    try:
        values = json.loads(line)
        version, exercise, status = values["version"], values["exercise"], values["status"]
        time = datetime.fromisoformat(values["time"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    known = version == 1 and isinstance(exercise, str) and status in ("passed", "failed")
    return Entry(exercise, status == "passed", time) if known and time.tzinfo else None


def _is_cut_off(stream) -> bool:
    """Whether the last line lacks its end, as a full disk leaves it; a new one must not join it."""
    size = stream.seek(0, os.SEEK_END)
    if not size:
        return False
    stream.seek(size - 1)
    return stream.read(1) != b"\n"


# What it amounts to ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """How far one exercise has come: the check it first passed and the latest one, ``None`` if none.

    Once passed, it stays passed. A notebook opened afresh holds the starter again, and running that
    fails; what was learned is not unlearned by it. ``latest`` tells what the code did last.
    """

    exercise: "Exercise"
    passed: Entry | None
    latest: Entry | None

    @property
    def points(self) -> int:
        return self.exercise.points if self.passed else 0

    @property
    def status(self) -> str:
        """passed, failed or missing, as ``attention-course check`` has them."""
        return "passed" if self.passed else "failed" if self.latest else "missing"


def standings(chapters: "Sequence[Chapter]", entries: Sequence[Entry]) -> tuple[Standing, ...]:
    """How far every exercise of ``chapters`` has come, in their order; other entries do not count."""
    checked: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.time):
        checked.setdefault(entry.exercise, []).append(entry)
    found = []
    for exercise in (exercise for chapter in chapters for exercise in chapter.exercises):
        own = checked.get(exercise.name, [])
        passed = next((entry for entry in own if entry.passed), None)
        found.append(Standing(exercise, passed, own[-1] if own else None))
    return tuple(found)


def following(standings: Sequence[Standing]) -> "Exercise | None":
    """The exercise to go on with: the first not passed, from the chapter checked last onwards.

    After the last chapter come those left open in earlier ones. ``None`` when all have passed.
    """
    # of two in one second, the later chapter
    checked = [standing for standing in reversed(standings) if standing.latest]
    last = max(checked, key=lambda standing: standing.latest.time, default=None)
    chapters = [standing.exercise.chapter for standing in standings]
    start = chapters.index(last.exercise.chapter) if last else 0
    ahead = (*standings[start:], *standings[:start])
    return next((standing.exercise for standing in ahead if not standing.passed), None)

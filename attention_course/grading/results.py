"""The log of a grading run: one line of JSON for each submission, in a file that survives ``kill -9``.

A record is a plain dict with the keys of ``FIELDS``. Lines are only ever appended, each by one write
that is synced before the next submission counts as done; so a run that is killed resumes where it
was, and what had been graded is not graded again. Linux only, as the grader is.
"""

import errno
import fcntl
import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

Record = dict[str, Any]

NAME = "results.jsonl"
LOCK = ".lock"
FIELDS = (
    *("key", "student", "assignment", "status", "points", "max_points"),
    *("exercises", "flags", "seconds", "name"),
)
EXERCISE_FIELDS = ("name", "status", "points", "max_points", "message")
#: it says something about the machine, not about the submission: it never stands, never counts as 0
INFRA_ERROR = "infra_error"
STATUSES = ("graded", "student_error", "timeout", "crashed", "oversize", "refused", INFRA_ERROR)
EXERCISE_STATUSES = ("passed", "failed", "missing", "error", "timeout", "crashed", "refused")
_KEY = re.compile("[0-9a-f]+")


class RecordError(ValueError):
    """A record, or a log of records, that is not what it has to be."""


# One record -----------------------------------------------------------------------------------


def validate(record: Any) -> None:
    """Check that ``record`` has every field, none besides, and values that fit together.

    Raises:
        RecordError: it does not; the message names the field, what came and what was expected.
    """
    _has_fields(record, FIELDS, "a record")
    for field in ("key", "student", "assignment"):
        _is_text(record[field], field)
        if not record[field]:
            raise RecordError(f"{field} is empty")
    if not _KEY.fullmatch(record["key"]):
        raise RecordError(f"key is {record['key']!r}, not a digest in lower-case hexadecimal")
    _is_text(record["name"], "name")
    _is_one_of(record["status"], STATUSES, "status")
    _is_whole(record["max_points"], None, "max_points")
    if (record["points"] is None) != (record["status"] == INFRA_ERROR):
        raise RecordError(
            f"points are {record['points']!r} with the status {record['status']!r}: None and "
            f"{INFRA_ERROR!r} come together or not at all"
        )
    if record["points"] is not None:
        _is_whole(record["points"], record["max_points"], "points")
    _is_list(record["flags"], "flags")
    for flag in record["flags"]:
        _is_text(flag, "a flag")
    seconds = record["seconds"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise RecordError(f"seconds are {seconds!r}, not a number")
    if not 0 <= seconds < math.inf:  # nor NaN, which is neither
        raise RecordError(f"seconds are {seconds!r}, not a finite number from 0 on")
    _check_exercises(record)


def _check_exercises(record: Record) -> None:
    _is_list(record["exercises"], "exercises")
    names = set()
    for exercise in record["exercises"]:
        _has_fields(exercise, EXERCISE_FIELDS, "an exercise")
        name = exercise["name"]
        _is_text(name, "an exercise's name")
        if not name or name in names:
            raise RecordError(f"the exercise name {name!r} is {'used twice' if name else 'empty'}")
        names.add(name)
        _is_one_of(exercise["status"], EXERCISE_STATUSES, f"{name}: status")
        _is_whole(exercise["max_points"], None, f"{name}: max_points")
        _is_whole(exercise["points"], exercise["max_points"], f"{name}: points")
        _is_text(exercise["message"], f"{name}: message")
    reached = sum(exercise["points"] for exercise in record["exercises"])
    if record["points"] is not None and reached != record["points"]:
        raise RecordError(f"points are {record['points']}, but those of the exercises sum to {reached}")


def _has_fields(value: Any, fields: Sequence[str], what: str) -> None:
    if not isinstance(value, dict):
        raise RecordError(f"{what} is a {type(value).__name__}, not a dict")
    missing = [field for field in fields if field not in value]
    unknown = [field for field in value if field not in fields]
    if missing or unknown:
        raise RecordError(f"{what} lacks {missing} and has the unknown {unknown}")


def _is_list(value: Any, what: str) -> None:
    if not isinstance(value, list):
        raise RecordError(f"{what} are a {type(value).__name__}, not a list")


def _is_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise RecordError(f"{what} is {value!r}, not a str")


def _is_one_of(value: Any, known: Sequence[str], what: str) -> None:
    if not isinstance(value, str) or value not in known:
        raise RecordError(f"{what} is {value!r}, not one of {', '.join(known)}")


def _is_whole(value: Any, highest: int | None, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RecordError(f"{what} are {value!r}, not an int")
    if value < 0 or (highest is not None and value > highest):
        wanted = "0 or more" if highest is None else f"0 to {highest}"
        raise RecordError(f"{what} are {value}, expected {wanted}")


def _line(record: Record) -> bytes:
    """The record as it is logged: the same record is always the same bytes, all of them ASCII."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode() + b"\n"


# Reading --------------------------------------------------------------------------------------


def read(path: Path) -> tuple[tuple[Record, ...], str]:
    """Every record of the log at ``path``, and what was left out, in one sentence, empty if nothing was.

    Only a last line that was cut off while it was written is left out. A missing file has no records.

    Raises:
        RecordError: another line is damaged or not a record, and which; or the file cannot be read.
    """
    records, _, note = _parse(_content(path), path)
    return records, note


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from None


def _parse(content: bytes, path: Path) -> tuple[tuple[Record, ...], int, str]:
    """The records, how many bytes they take up, and what is said of the rest."""
    *lines, tail = content.split(b"\n")
    if not tail and lines and not _is_json(lines[-1]):  # after a power cut a file may have its length only
        tail = lines.pop() + b"\n"
    records = tuple(_record(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))
    note = f"{path}: the last line was cut off while it was written, {len(tail)} bytes; it is left out."
    return records, len(content) - len(tail), note if tail else ""


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _record(line: bytes, place: str) -> Record:
    if not _is_json(line):
        raise RecordError(f"{place} is damaged: it is not JSON")
    record = json.loads(line)
    try:
        validate(record)
    except RecordError as error:
        raise RecordError(f"{place} is not a record: {error}") from None
    return record


# Writing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Log:
    """A log that is open for writing; ``append`` is for one thread."""

    path: Path
    #: those that were there when it was opened
    records: tuple[Record, ...]
    #: what was cut off from the log on opening, in one sentence, empty if nothing was
    note: str
    file: FileIO

    def append(self, record: Record) -> None:
        """Add one record; when this returns, it is on the disk.

        Raises:
            RecordError: it is not a record.
            OSError: it could not be written; the log is what it was before.
        """
        validate(record)
        line = _line(record)
        descriptor = self.file.fileno()  # a closed log raises here
        before = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, line)
            if written != len(line):
                reason = f"only {written} of {len(line)} bytes could be written"
                raise OSError(errno.ENOSPC, reason, str(self.path))
            os.fsync(descriptor)
        except BaseException:  # an interrupt, too, must leave no half line for the next one to join
            os.ftruncate(descriptor, before)
            raise


@contextmanager
def open_log(folder: Path) -> Iterator[Log]:
    """Open the log in ``folder``, which is made if need be, for one run at a time.

    A last line that was cut off is removed first. The lock is an open file: a child that is forked
    without ``exec`` keeps it, even when its parent is killed, so start workers before or by ``exec``.

    Raises:
        RecordError: another run has the log open, or a line of it is damaged; nothing is changed then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        path = folder / NAME
        records, sound, note = _parse(_content(path), path)
        with path.open("ab", buffering=0) as file:
            if note:
                os.ftruncate(file.fileno(), sound)
            os.fsync(file.fileno())
            _sync(folder)  # a file whose name is lost is lost
            _sync(folder.parent)
            yield Log(path, records, note, file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(f"another run is writing to {folder}: wait for it, or stop it") from None
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # for forked children as well, which closing is not


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``: whoever looks finds the old file or the new one, never a part.

    Raises:
        OSError: it could not be written; ``path`` is what it was before.
    """
    part = path.with_name(f".{secrets.token_hex(8)}.part")  # short, for names of the greatest length
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(path.parent)


# What the records amount to -------------------------------------------------------------------


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """The last record of each student: after a resubmission, the one of that."""
    return {record["student"]: record for record in records}


def done(records: Iterable[Record]) -> set[tuple[str, str]]:
    """Student and key of every submission whose record stands; the others are to be tried again."""
    return {(record["student"], record["key"]) for record in records if _stands(record)}


def _stands(record: Record) -> bool:
    return record["status"] != INFRA_ERROR


# Shards ---------------------------------------------------------------------------------------


def merge(folders: Sequence[Path], out: Path) -> tuple[str, ...]:
    """Write the records of all ``folders`` to the log in ``out``; returns notes on what to look at.

    Records are sorted by student, and a student's stay in their order. What is the same in two
    folders is kept once. The order of ``folders`` matters only for a student who has different
    submissions in different folders: nothing else tells which came later. A note names the student.

    Raises:
        RecordError: a folder without a log, damaged lines, different assignments, two different
            verdicts on one submission, ``out`` among the folders or in use, or in ``out`` a log
            with records that would be lost. Nothing is written then.
    """
    if not folders:
        raise RecordError("there are no folders to merge")
    if out.resolve() in {folder.resolve() for folder in folders}:
        raise RecordError(f"{out} is one of the folders to merge: choose another one for the result")
    logs, notes = [], []
    for folder in folders:
        if not (folder / NAME).is_file():
            raise RecordError(f"{folder} has no {NAME}: it is not the folder of a grading run")
        records, note = read(folder / NAME)
        logs.append((folder, records))
        notes += [note] if note else []
    _check_agreement(logs)
    shares: dict[str, dict[Path, list[Record]]] = {}
    for folder, records in logs:
        for record in records:
            shares.setdefault(record["student"], {}).setdefault(folder, []).append(record)
    merged: list[Record] = []
    for student in sorted(shares):
        own, by_folder = _joined(list(shares[student].values()))
        merged += own
        if by_folder:
            notes.append(
                f"{student!r} has different submissions in different folders: "
                "the order of the folders decided which is the latest."
            )
    lines = [_line(record) for record in merged]
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        lost = {_line(record) for record in read(out / NAME)[0]} - set(lines)
        if lost:
            raise RecordError(f"{out / NAME} holds {len(lost)} records that none of the folders has")
        replace(out / NAME, b"".join(lines))
    return tuple(notes)


def _check_agreement(logs: Sequence[tuple[Path, Sequence[Record]]]) -> None:
    """One assignment in all logs, and one verdict on each submission."""
    first: tuple[Path, str] | None = None
    verdicts: dict[tuple[str, str], tuple[Path, Record]] = {}
    for folder, records in logs:
        for record in records:
            first = first or (folder, record["assignment"])
            if record["assignment"] != first[1]:
                raise RecordError(
                    f"different assignments: {first[1]!r} in {first[0]}, {record['assignment']!r} in {folder}"
                )
            if not _stands(record):  # tried again, here or in another shard: no second verdict
                continue
            verdict = {**record, "seconds": None}
            where, first_verdict = verdicts.setdefault((record["student"], record["key"]), (folder, verdict))
            if verdict != first_verdict:
                fields = [field for field in FIELDS if verdict[field] != first_verdict[field]]
                raise RecordError(
                    f"two verdicts on one submission of {record['student']!r}, in {where} and in {folder}: "
                    f"they differ in {', '.join(fields)}"
                )


def _joined(shares: Sequence[Sequence[Record]]) -> tuple[list[Record], bool]:
    """One student's records from several folders, and whether the folders' order decided on theirs."""
    own = [_unlike(share[::-1])[::-1] for share in shares]  # of equal ones the last: somebody went back to it
    if len(own) == 1:
        return own[0], False
    together = [record for share in own for record in share]
    if len({record["key"] for record in together}) > 1:
        return _unlike(together), True
    return _unlike(sorted(together, key=lambda record: (_stands(record), _line(record)))), False


def _unlike(records: Iterable[Record]) -> list[Record]:
    """The records without those that equal an earlier one."""
    first: dict[bytes, Record] = {}
    for record in records:
        first.setdefault(_line(record), record)
    return list(first.values())

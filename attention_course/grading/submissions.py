"""Find what was handed in: one notebook for each student, in a folder or a zip.

Whatever lies there was named and written by strangers. Links are not followed, zips are not
extracted, and every read is bounded. What is wrong with one student's files becomes that student's
:class:`Problem`; only what is wrong with the whole raises.
"""

import errno
import hashlib
import os
import re
import stat
import struct
import unicodedata
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from attention_course.grading.cells import shown

#: the largest notebook that is read, as a file or unpacked
NOTEBOOK_BYTES = 20_000_000
#: the most entries of a folder of submissions, or of a zip
MAX_MEMBERS = 100_000
#: the most entries of one student's folder
MAX_FILES = 10_000
#: the largest directory of a zip: more than 600 bytes for each of the most members
MAX_DIRECTORY_BYTES = 64_000_000
MAX_NAME_BYTES = 200

_TIMESTAMP = "timestamp.txt"  # nbgrader writes it beside a notebook it collects
_TIMESTAMP_BYTES = 1_000_000


class SubmissionsError(ValueError):
    """The place given holds no submissions, or cannot be read as a whole."""


@dataclass(frozen=True)
class Problem:
    """Why a submission is not graded: ``status`` for the grader, ``message`` for the student."""

    status: str
    message: str


@dataclass(frozen=True)
class Submission:
    """One student's notebook: ``name`` is its path within the source, for people."""

    student: str
    name: str
    problem: Problem | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """What was handed in, sorted by student."""

    submissions: tuple[Submission, ...]
    _read: Callable[[Submission], bytes | Problem] = field(repr=False)

    def read(self, submission: Submission) -> bytes | Problem:
        """The notebook's bytes, at most ``NOTEBOOK_BYTES``, or why there are none."""
        return submission.problem or self._read(submission)


@contextmanager
def open_source(path: Path, assignment: str) -> Iterator[Source]:
    """What was handed in for ``assignment``, in the folder or zip at ``path``.

    A student hands in ``STUDENT.ipynb``, ``STUDENT/NOTEBOOK.ipynb`` or, as with nbgrader,
    ``STUDENT/ASSIGNMENT/NOTEBOOK.ipynb``; of several, the newest counts. In a zip, all may lie in
    one top folder.

    Raises:
        SubmissionsError: ``path`` is neither folder nor zip, cannot be read, or holds no submission.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SubmissionsError(f"{path}: {error.strerror}; expected a folder or a zip of notebooks") from None
    try:
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise SubmissionsError(f"{path} is neither a folder nor a zip of notebooks")
        entries, read = (_folder if stat.S_ISDIR(mode) else _zip)(path, handle, assignment)
        found = _sorted_out(entries, assignment, read)
        if not found:
            raise SubmissionsError(
                f"{path} holds no submission: expected STUDENT.ipynb, STUDENT/NOTEBOOK.ipynb or "
                f"STUDENT/{assignment}/NOTEBOOK.ipynb"
            )
        chosen = {submission.student: entry for submission, entry in found}
        submissions = tuple(submission for submission, _ in found)
        yield Source(submissions, lambda submission: read(chosen[submission.student], NOTEBOOK_BYTES))
    finally:
        os.close(handle)


# Names ----------------------------------------------------------------------------------------


def safe_name(student: str) -> str:
    """A file name for ``student`` that no other student has, on file systems that fold case and
    normal forms, too.

    A plain lower-case name stays as it is. Any other loses what is not a letter, a digit or one of
    ``._-``, and gets a digest of the whole.
    """
    cleaned = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", student)).strip("._-")[:50]
    if cleaned == student and re.fullmatch(r"[a-z0-9._-]+", cleaned) and not _DIGEST.search(cleaned):
        return student
    digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{cleaned}-{digest}".lstrip("-")


#: a name that ends like one made here gets a digest of its own, lest it be taken for that one
_DIGEST = re.compile(r"(^|-)[0-9a-f]{16}$")


def _unsafe(student: str) -> str:
    """What is wrong with a student's name, empty if nothing is."""
    if student in ("", ".", ".."):
        return "is empty or only dots"
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in student):
        return "holds control characters"
    if "/" in student or "\\" in student:
        return "holds a slash"
    size = len(student.encode())
    return f"is {size} bytes long, more than {MAX_NAME_BYTES}" if size > MAX_NAME_BYTES else ""


# What lies there, and what of it counts ---------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """Something below the source: ``parts`` is its path as far as students go, ``name`` the whole
    path for people, ``kind`` one of file, folder, link, special and astray."""

    parts: tuple[str, ...]
    name: str
    kind: str = "file"
    time: int | tuple[int, ...] = 0
    problem: Problem | None = None
    member: zipfile.ZipInfo | None = None

    @property
    def stem(self) -> str:
        return os.path.splitext(self.parts[-1])[0]

    @property
    def suffix(self) -> str:
        return os.path.splitext(self.parts[-1])[1].lower()

    @property
    def is_notebook(self) -> bool:
        return self.kind == "file" and self.suffix == ".ipynb"


_Read = Callable[[_Entry, int], bytes | Problem]


def _entry(parts: tuple[str, ...], mode: int, time: int | tuple[int, ...], **more: Any) -> _Entry:
    """An entry of the kind ``mode`` tells, with its problem if it is neither file nor folder."""
    kinds = {0: "file", stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    entry = _Entry(parts, shown("/".join(parts), 300), kinds.get(stat.S_IFMT(mode), "special"), time, **more)
    problems = {"link": _link, "special": _special}
    return replace(entry, problem=problems[entry.kind](entry)) if entry.kind in problems else entry


def _link(entry: _Entry) -> Problem:
    return Problem("refused", f"{entry.name} is a link, and links are not followed.")


def _special(entry: _Entry) -> Problem:
    return Problem("refused", f"{entry.name} is neither a file nor a folder.")


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _sorted_out(entries: list[_Entry], assignment: str, read: _Read) -> list[tuple[Submission, _Entry]]:
    """One submission for each student, and the entry it is read from."""
    by_student = defaultdict(list)
    for entry in entries:
        student = _student(entry)
        if student is not None:
            by_student[student].append(entry)
    found, taken = [], set()
    # safe names first: they stay as they came, and one that is made up gives way
    for student in sorted(by_student, key=lambda name: (bool(_unsafe(name)), name)):
        submission, entry = _submission(student, by_student[student], assignment, read)
        while submission.student in taken:
            submission = replace(submission, student=submission.student + "~")
        taken.add(submission.student)
        found.append((submission, entry))
    return sorted(found, key=lambda pair: pair[0].student)


def _student(entry: _Entry) -> str | None:
    """Whose an entry is; None for a file that lies beside the submissions."""
    if len(entry.parts) > 1 or entry.kind == "folder":
        return entry.parts[0]
    if entry.kind != "astray" and entry.suffix in (".ipynb", ".zip"):
        return entry.stem
    return entry.parts[0] if entry.problem else None  # a link, say, that may well mean a folder


def _submission(
    student: str, entries: list[_Entry], assignment: str, read: _Read
) -> tuple[Submission, _Entry]:
    entries = sorted(entries, key=lambda entry: entry.parts)
    notebooks = [entry for entry in entries if entry.is_notebook]
    newest = max((entry.time for entry in notebooks), default=0)
    best = [entry for entry in notebooks if entry.time == newest]
    taken = next((entry for entry in entries if entry.problem), (best or entries)[0])
    unsafe = _unsafe(student)
    name = safe_name(student) if unsafe else student
    problem = taken.problem
    if not problem and unsafe:
        problem = Problem("refused", f"The name “{shown(student)}” {unsafe}.")
    if not problem and len(best) != 1:
        problem = _tie(best) if best else _none(student, entries, assignment)
    if problem:
        return Submission(name, taken.name, problem), taken
    several = f"{len(notebooks)} notebooks; the newest, {taken.name}, was graded"
    flags = ((several,) if len(notebooks) > 1 else ()) + _submitted(taken, entries, read)
    return Submission(name, taken.name, None, flags), taken


def _tie(best: list[_Entry]) -> Problem:
    names = ", ".join(entry.name for entry in best[:3])
    more = f" and {len(best) - 3} more" if len(best) > 3 else ""
    return Problem("refused", f"{len(best)} notebooks are equally new, hand in one only: {names}{more}.")


def _none(student: str, entries: list[_Entry], assignment: str) -> Problem:
    below = any(len(entry.parts) > (1 if entry.kind == "folder" else 2) for entry in entries)
    zipped = any(entry.kind == "file" and entry.suffix == ".zip" for entry in entries)
    what = f"no notebook of {assignment}" if below else "no notebook"
    hint = "; a zip among the files is not opened" if zipped else ""
    return Problem("student_error", f"For “{shown(student)}”, {what} was found{hint}.")


def _submitted(notebook: _Entry, entries: list[_Entry], read: _Read) -> tuple[str, ...]:
    """What nbgrader noted beside the notebook, if it did; a file larger than a note is none."""
    place = (*notebook.parts[:-1], _TIMESTAMP)
    notes = [entry for entry in entries if entry.parts == place and entry.kind == "file"]
    content = read(notes[0], _TIMESTAMP_BYTES) if notes else b""
    if isinstance(content, Problem):
        return ()
    text = content.decode("utf-8", "replace")
    time = "".join(letter for letter in text if letter.isprintable())[:64].strip()
    return (f"submitted {time}",) if time else ()


def _oversize(size: int, limit: int) -> Problem:
    # a size that was no more than the limit when it was told is not worth telling
    complaint = f"has {size:,} bytes" if size > limit else "is larger than it says"
    return Problem("oversize", f"The notebook {complaint}; {limit:,} bytes is the most allowed.")


# In a folder ----------------------------------------------------------------------------------


def _folder(path: Path, root: int, assignment: str) -> tuple[list[_Entry], _Read]:
    """A top folder around the students is not seen through here: whoever names a folder can name the
    right one, and a folder with one student in it is common when the first hands in."""
    try:
        top = _listed(root, (), MAX_MEMBERS)
    except OSError as error:
        raise SubmissionsError(f"{path} cannot be read: {error.strerror}") from None
    if len(top) > MAX_MEMBERS:
        raise SubmissionsError(f"{path} holds more than {MAX_MEMBERS:,} files and folders")
    entries = []
    for entry in top:
        below = _below(root, entry)
        folders = [inner for inner in below if inner.parts[1:] == (assignment,)]
        entries += [entry, *below, *(deeper for folder in folders for deeper in _below(root, folder))]
    return entries, partial(_read_file, root)


def _below(root: int, folder: _Entry) -> list[_Entry]:
    """What lies in a student's folder; the folder with a problem where that cannot be told."""
    if folder.kind != "folder":
        return []
    try:
        entries = _listed(root, folder.parts, MAX_FILES)
    except OSError as error:
        return [replace(folder, problem=_unread(folder, error))]
    if len(entries) > MAX_FILES:
        crowded = Problem("refused", f"{folder.name} holds more than {MAX_FILES:,} files and folders.")
        return [replace(folder, problem=crowded)]
    return entries


def _listed(root: int, parts: tuple[str, ...], limit: int) -> list[_Entry]:
    """The visible entries of a folder, at most one more than ``limit``."""
    entries = []
    with _opened(root, parts, os.O_DIRECTORY) as handle, os.scandir(handle) as listing:
        for item in islice(listing, limit + 1):
            if not _is_hidden(item.name):
                with suppress(FileNotFoundError):  # gone since
                    status = item.stat(follow_symlinks=False)
                    entries.append(_entry((*parts, item.name), status.st_mode, status.st_mtime_ns))
    return entries


@contextmanager
def _opened(root: int, parts: tuple[str, ...], flags: int) -> Iterator[int]:
    """Open what is below ``root``, part by part, so that none of them can be swapped for a link."""
    always = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(".", always | os.O_DIRECTORY, dir_fd=root)
    try:
        for index, part in enumerate(parts, 1):
            last = index == len(parts)
            inner = os.open(part, always | (flags if last else os.O_DIRECTORY), dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _read_file(root: int, entry: _Entry, limit: int) -> bytes | Problem:
    try:
        with _opened(root, entry.parts, 0) as handle:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return _special(entry)
            with open(handle, "rb", closefd=False) as file:
                content = file.read(limit + 1)
    except OSError as error:
        return _unread(entry, error)
    return content if len(content) <= limit else _oversize(status.st_size, limit)


def _unread(entry: _Entry, error: OSError) -> Problem:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):  # what O_NOFOLLOW says to a link
        return _link(entry)
    return Problem("infra_error", f"{entry.name} could not be read: {error.strerror}.")


# In a zip -------------------------------------------------------------------------------------


def _zip(path: Path, handle: int, assignment: str) -> tuple[list[_Entry], _Read]:
    file = open(handle, "rb", closefd=False)  # noqa: SIM115 - whoever opened the handle closes it
    try:
        many = _count(file) > MAX_MEMBERS
        archive = None if many else zipfile.ZipFile(file)
    except Exception as error:  # zipfile raises at least six types on what strangers can write
        raise SubmissionsError(
            f"{path} is neither a folder nor a zip that can be read: {shown(error)}"
        ) from None
    if archive is None:
        raise SubmissionsError(f"{path} holds more than {MAX_MEMBERS:,} members")
    entries = [entry for entry in map(_member, archive.infolist()) if entry]
    wrapper = _wrapper(entries, assignment)
    entries = [entry for entry in (_placed(entry, wrapper, assignment) for entry in entries) if entry]
    files = Counter(entry.parts for entry in entries if entry.is_notebook)
    entries = [_twice(entry) if files[entry.parts] > 1 else entry for entry in entries]
    return entries, partial(_read_member, archive)


def _count(file: BinaryIO) -> int:
    """How many members a zip has at most, told from the bytes of its directory.

    zipfile makes objects of them all before one can ask it how many there are.
    """
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - 2**16 - 22 - 76)  # the end, a comment of up to 64 KiB, and the longer end's size
    file.seek(start)
    tail = file.read()
    end = tail.rfind(b"PK\5\6")
    if end < 0:
        raise zipfile.BadZipFile("it has no directory at its end")
    [length] = struct.unpack_from("<L", tail, end + 12)
    if tail[end - 20 :].startswith(b"PK\6\7"):  # a longer end before it, for long zips
        end -= 76
        [length] = struct.unpack_from("<Q", tail, end + 40)
    if length > MAX_DIRECTORY_BYTES:
        raise zipfile.BadZipFile(f"its directory has {length:,} bytes, more than {MAX_DIRECTORY_BYTES:,}")
    file.seek(start + end - length)
    return file.read(length).count(b"PK\1\2")


def _member(info: zipfile.ZipInfo) -> _Entry | None:
    """A member as an entry; None if it is hidden. A name that leads elsewhere is never a path."""
    name = info.orig_filename  # zipfile cuts the other one at a NUL
    parts = tuple(name.removesuffix("/").split("/"))
    if ".." in parts or "" in parts or "\\" in name or "\0" in name or _DRIVE.match(name):
        problem = Problem("refused", f"The zip's member “{shown(name)}” has a name that leads elsewhere.")
        return _Entry(parts, shown(name, 300), "astray", problem=problem)
    parts = tuple(part for part in parts if part != ".")
    if not parts or any(map(_is_hidden, parts)):
        return None
    mode = stat.S_IFDIR if name.endswith("/") else info.external_attr >> 16
    return _entry(parts, mode, tuple(info.date_time), member=info)


_DRIVE = re.compile(r"[A-Za-z]:")


def _twice(entry: _Entry) -> _Entry:
    problem = Problem("refused", f"The zip holds two members named {entry.name}.")
    return replace(entry, problem=problem)


def _wrapper(entries: list[_Entry], assignment: str) -> str | None:
    """The one top folder around all submissions, if there is one.

    People zip a folder as often as what is in it. The top folder is a student's own, though, if what
    it holds is named after the assignment: a folder, or its only notebook.
    """
    entries = [entry for entry in entries if entry.kind != "astray"]
    below = [entry for entry in entries if len(entry.parts) > 1]
    if len({entry.parts[0] for entry in entries}) != 1:
        return None
    if any(entry.kind != "folder" for entry in entries if len(entry.parts) == 1):
        return None
    folders = {entry.parts[1] for entry in below if len(entry.parts) > 2 or entry.kind == "folder"}
    notebooks = {entry.stem for entry in below if len(entry.parts) == 2 and entry.is_notebook}
    own = assignment in folders or notebooks == {assignment}
    return None if own or not below else below[0].parts[0]


def _placed(entry: _Entry, wrapper: str | None, assignment: str) -> _Entry | None:
    """``entry`` as seen from inside the wrapper; what is too deep stands for the folder it is in."""
    inside = wrapper is None or entry.parts[0] == wrapper
    parts = entry.parts if wrapper is None or not inside else entry.parts[1:]
    if entry.kind == "astray":
        # below a student's own folder it is that student's; else its name, slashes and all, is nobody's
        own = inside and not _unsafe(parts[0]) and not _DRIVE.match(parts[0])
        return replace(entry, parts=parts if own else ("/".join(entry.parts),))
    if len(parts) > 3 or (len(parts) == 3 and parts[1] != assignment):
        return _Entry(parts[:2], entry.name, "folder")
    return replace(entry, parts=parts) if parts else None


def _read_member(archive: zipfile.ZipFile, entry: _Entry, limit: int) -> bytes | Problem:
    info = entry.member
    if info.flag_bits & 1:
        return Problem("refused", f"{entry.name} is encrypted.")
    # of the others, zipfile unpacks a whole block at once, whatever it was asked for
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return Problem("refused", f"{entry.name} is packed in another way than zip's usual, deflate.")
    try:
        with archive.open(info) as file:
            content = file.read(limit + 1)
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: an offset that is none
            return _unread(entry, error)
        return Problem("student_error", f"{entry.name} is broken inside the zip: {shown(error)}.")
    return content if len(content) <= limit else _oversize(info.file_size, limit)

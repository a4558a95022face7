"""Read a learner's notebook, and what its checks said when it was run.

What is expected, and what it is worth, comes from the package; the notebook only says what passed.
Nothing here loads torch: a wrong path is told at once.
"""

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attention_course.checks.engine import plain
from attention_course.checks.engine.registry import MODULES
from attention_course.checks.engine.report import MIMETYPE, STATUSES
from attention_course.checks.engine.words import printable

#: so much of a check's report is shown
_LINES, _WIDTH = 60, 400


class NotebookError(ValueError):
    """A file that is not a notebook of this course, or a machine that cannot run one."""


@dataclass
class Cell:
    """A cell's source, and what came of it when it was run."""

    kind: str
    source: str
    #: what it showed, by media type
    shown: list[dict] = field(default_factory=list)
    #: type and words of the error it ended with
    raised: tuple[str, str] | None = None
    ran: bool = False

    def hear(self, message: dict) -> None:
        """Note one of the kernel's messages about this cell."""
        content = message["content"]
        self.ran = True
        if message["msg_type"] == "error":
            self.raised = str(content["ename"]), str(content["evalue"])
        elif message["msg_type"] in ("display_data", "execute_result"):
            self.shown.append(content["data"])


@dataclass
class Notebook:
    """The cells of a notebook, and the name of the chapter whose exercises it has."""

    cells: list[Cell]
    chapter: str


@dataclass(frozen=True)
class Result:
    """One exercise of one notebook: ``status`` is passed, failed, not started, error or missing.

    failed: the check ran and something is not right. not started: it ran, and nothing is written yet.
    error: the check could not finish. missing: the notebook holds no such check, or never came to it.

    ``message`` is one line, ``report`` all that the check said.
    """

    notebook: str
    exercise: str
    status: str
    points: int
    max_points: int
    message: str
    report: str


# Reading --------------------------------------------------------------------------------------


def read(path: Path) -> Notebook:
    """The notebook at ``path``: sources alone, for stored outputs are not believed. A plain file of Python is
    read as one that imports and checks it.

    Raises:
        NotebookError: it cannot be read, is no notebook, or none of this course.
    """
    if path.suffix == ".py" and path.is_file():
        return Notebook([Cell("code", source) for source in plain.cells(path)], plain.CHAPTER)
    content = _content(path)
    cells = content.get("cells")
    if not isinstance(cells, list):
        raise NotebookError(f"{path} is not a valid notebook: it has no list of cells")
    read = [_cell(path, number, cell) for number, cell in enumerate(cells, 1)]
    return Notebook(read, _chapter(path, content, read))


def _content(path: Path) -> dict:
    """What the file holds, as nbformat 4."""
    if path.is_dir():
        raise NotebookError(f"{path} is a folder; name the notebook in it")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotebookError(f"{path} does not exist") from None
    except UnicodeDecodeError:
        raise NotebookError(f"{path} is not a notebook: it is not text") from None
    except OSError as error:
        raise NotebookError(f"{path} cannot be read: {error.strerror}") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        what = "it is empty" if not text.strip() else "it is not valid JSON"
        raise NotebookError(f"{path} is not a notebook: {what}") from None
    version = content.get("nbformat") if isinstance(content, dict) else None
    if type(version) is not int:
        raise NotebookError(f"{path} is not a notebook: it is JSON, but names no nbformat")
    if version > 4:
        raise NotebookError(f"{path} has nbformat {version}; save it as nbformat 4")
    return content if version == 4 else _converted(path, content)


def _converted(path: Path, content: dict) -> dict:
    import nbformat  # a second, which only old notebooks cost

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return nbformat.convert(nbformat.from_dict(content), 4)
    except Exception as error:
        raise NotebookError(f"{path} is not a valid notebook: {printable(error)}") from None


def _cell(path: Path, number: int, cell: Any) -> Cell:
    kind, source = (cell.get("cell_type"), cell.get("source")) if isinstance(cell, dict) else (None, None)
    lines = source if isinstance(source, list) else [source]
    if not isinstance(kind, str) or not all(isinstance(line, str) for line in lines):
        raise NotebookError(f"{path} is not a valid notebook: cell {number} has no cell_type and source")
    return Cell(kind, "".join(lines))


def _chapter(path: Path, content: dict, cells: Sequence[Cell]) -> str:
    """The chapter a notebook belongs to: its metadata say so, else the checks in its cells do.

    The file's name counts for nothing, because learners rename files.
    """
    name: Any = content
    for key in ("metadata", "attention_course", "chapter"):
        name = name.get(key) if isinstance(name, dict) else None
    if not isinstance(name, str) or name not in MODULES:
        sources = [cell.source for cell in cells if cell.kind == "code"]
        counts = {chapter: sum(source.count(f"{chapter}.") for source in sources) for chapter in MODULES}
        name = max(counts, key=counts.get)
        if not counts[name]:
            raise NotebookError(f"{path} is not an exercise notebook of this course")
    return name


# Judging --------------------------------------------------------------------------------------


def results(
    path: str, notebook: Notebook, exercises: Sequence[tuple[str, int]], unfinished: dict[int, str]
) -> list[Result]:
    """One result for each of the ``exercises``, whatever the notebook holds, in their order.

    Args:
        exercises: the name and the points of each.
        unfinished: why a cell never finished, by its number from 0.
    """
    names = [name for name, _ in exercises]
    judged = []
    for name, points in exercises:
        status, message, report = _last_word(notebook, name, names, unfinished)
        reached = points if status == "passed" else 0
        judged.append(Result(path, name, status, reached, points, printable(message, 600), report or message))
    return judged


def _last_word(
    notebook: Notebook, name: str, names: Sequence[str], unfinished: dict[int, str]
) -> tuple[str, str, str]:
    """Status, message and report of the last check of an exercise that came to an end, one way or another.

    The same check may stand in several cells, in any order: what the notebook says last is what
    holds, and it holds once.
    """
    last = None
    silent = f"the notebook has no check of {name}"
    for index, cell in enumerate(notebook.cells):
        if cell.kind != "code":
            continue
        verdicts = [verdict for verdict in _payloads(cell) if verdict.get("exercise") == name]
        if not verdicts and not _checks(name, cell):
            continue
        if verdicts:
            said = verdicts[-1]
            last = said["status"], str(said.get("message", "")), _report(said.get("report"))
        elif index in unfinished:
            last = "error", f"the cell of its check {unfinished[index]}", ""
        elif not cell.ran:
            why = _stopped_by(notebook, index, unfinished)
            silent = f"its check did not run{why}"
            if why and not last and _is_next(notebook, names, index, unfinished):
                last = "error", silent, ""
        elif cell.raised and cell.raised[0] == "CheckFailed":
            silent = "its check did not run: another check before it, in the same cell, did not pass"
        elif cell.raised:
            why = _undefined(notebook, index) or _stopped_by(notebook, index, unfinished)
            last = "error", f"its check could not start: {_error(cell)}{why}", ""
        else:
            silent = "its cell ran, but no check in it; is it commented out?"
    return last or ("missing", silent, "")


def _checks(name: str, cell: Cell) -> bool:
    """Whether a check of the exercise is written in the cell, be it commented out."""
    call = rf"""\bcheck\(\s*(name\s*=\s*)?["']{re.escape(name)}["']"""
    return bool(re.search(call, cell.source))


def _payloads(cell: Cell) -> list[dict]:
    payloads = [values.get(MIMETYPE) for values in cell.shown]
    return [each for each in payloads if isinstance(each, dict) and each.get("status") in STATUSES]


def _report(text: Any) -> str:
    """All that a check said, without control characters: it quotes the learner's own code."""
    lines = text.split("\n")[:_LINES] if isinstance(text, str) else []
    shown = ("".join(letter if letter.isprintable() else "?" for letter in line[:_WIDTH]) for line in lines)
    return "\n".join(line.rstrip() for line in shown)


def _error(cell: Cell) -> str:
    """The error a cell ended with; of a syntax error the line, too."""
    kind, words = cell.raised
    found = re.fullmatch(r"(.*?) \([^()]*\bline (\d+)\)", words, re.DOTALL)
    lines = cell.source.split("\n")
    if kind not in ("SyntaxError", "IndentationError", "TabError") or not found:
        return f"{kind}: {words}" if words else kind
    number = int(found[2])
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return f"{kind}: {found[1]}, in line {number}: {line}"


def _undefined(notebook: Notebook, index: int) -> str:
    """Why a name is not there that the cell asks for: the cell that would make it ended with an error."""
    kind, words = notebook.cells[index].raised
    found = re.match(r"name '(\w+)' is not defined", words) if kind == "NameError" else None
    if not found:
        return ""
    makes = re.compile(
        rf"^[ \t]*(?:(?:async )?def|class)\s+{found[1]}\b|\bimport\b[^#]*\b{found[1]}\b|^{found[1]}\s*=",
        re.MULTILINE,
    )
    for number in range(index, 0, -1):
        cell = notebook.cells[number - 1]
        if cell.kind == "code" and cell.raised and makes.search(cell.source):
            return f"; cell {number}, which makes {found[1]}, ended with {_error(cell)}"
    return ""


def _stopped_by(notebook: Notebook, index: int, unfinished: dict[int, str]) -> str:
    """The cell before ``index`` that never finished, in words; empty if there is none."""
    before = [place for place in unfinished if place < index]
    if not before:
        return ""
    first = next((line for line in notebook.cells[before[-1]].source.split("\n") if line.strip()), "")
    return f"; cell {before[-1] + 1} before it ({printable(first, 40)}) {unfinished[before[-1]]}"


def _is_next(notebook: Notebook, names: Sequence[str], index: int, unfinished: dict[int, str]) -> bool:
    """Whether the cell that ended the kernel stands between this check and the one before it: then
    it is this exercise's own."""
    between = notebook.cells[max(unfinished) : index]
    return not any(_checks(name, cell) for cell in between for name in names)

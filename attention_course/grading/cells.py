"""From the bytes of a submitted notebook to its cells, with nothing in them believed but their text.

Read with ``json`` alone: a notebook from a stranger is data of any shape, and what does not look like
a notebook gets a sentence that says in which way. Outputs, the kernelspec and all metadata but a
cell's grade_id are left behind here.
"""

import json
import re
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import Any

MAX_CELLS = 2_000
#: characters of one cell, and of all code together; text may hold a picture, and is cut
MAX_SOURCE = 200_000
MAX_TOTAL = 2_000_000
#: brackets that may open lists and objects: an empty one takes 2 bytes in the file and 64 in memory
MAX_BRACKETS = 500_000
MAX_GRADE_ID = 200

_KINDS = {"code": "code", "markdown": "markdown", "heading": "markdown", "html": "markdown"}
#: NUL, which no Python source may hold, and halves of surrogate pairs, which no encoding takes
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class Cell:
    """One cell: ``kind`` is code, markdown or raw."""

    kind: str
    source: str
    grade_id: str | None


class Unreadable(ValueError):
    """A notebook that cannot be read: ``status`` for the grader, ``message`` for the student."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status, self.message = status, message


def read_cells(content: bytes) -> tuple[Cell, ...]:
    """The cells of a notebook of format 3 or 4.

    Raises:
        Unreadable: ``student_error`` for what is no such notebook, ``oversize`` for more cells or
            text than any answer needs.
    """
    notebook = _parse(content)
    cells = tuple(_cell(number, cell) for number, cell in enumerate(_cell_list(notebook), 1))
    if sum(len(cell.source) for cell in cells if cell.kind == "code") > MAX_TOTAL:
        raise Unreadable("oversize", f"The cells hold more than {MAX_TOTAL:,} characters in all.")
    return cells


def shown(value: Any, limit: int = 100) -> str:
    """``str(value)`` on one line, without control characters, cut to ``limit``."""
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(str(value).split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _wrong(message: str) -> Unreadable:
    return Unreadable("student_error", message)


# JSON -----------------------------------------------------------------------------------------


def _parse(content: bytes) -> dict:
    """The notebook's outermost object."""
    content = content.removeprefix(BOM_UTF8)
    try:
        text = content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise _wrong(f"The file is not UTF-8 text: byte {error.start + 1} is not part of any.") from None
    if not text:
        raise _wrong("The file is empty.")
    if text.count("{") + text.count("[") > MAX_BRACKETS:
        raise Unreadable("oversize", f"The file opens more than {MAX_BRACKETS:,} lists and objects.")
    try:
        # float reads an integer of any length in linear time; int refuses some and is slow with others
        notebook = json.loads(text, parse_int=float)
    except json.JSONDecodeError as error:
        raise _wrong(_invalid(text, error)) from None
    except RecursionError:
        raise _wrong("The file nests lists or objects too deeply for a notebook.") from None
    if not isinstance(notebook, dict):
        raise _wrong(
            f"The file is JSON, but no notebook: it begins with “{shown(text[:20])}”, not with “{{”."
        )
    return notebook


def _invalid(text: str, error: json.JSONDecodeError) -> str:
    if not text.startswith("{"):
        return f"The file is no notebook: it begins with “{shown(text[:20])}”, not with “{{”."
    if not text.endswith("}") or error.pos >= len(text):
        return f"The file is cut off: it ends with “{shown(text[-20:])}”, in the middle of a notebook."
    return f"The file is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}."


# The notebook ---------------------------------------------------------------------------------


def _cell_list(notebook: dict) -> list:
    version = notebook.get("nbformat")
    if not isinstance(version, float):
        raise _wrong("The file is JSON, but no notebook: it has no number “nbformat”.")
    if version > 4:
        raise _wrong(f"The notebook has nbformat {version:g}, which is newer than 4: save it as nbformat 4.")
    if version not in (3, 4):
        raise _wrong(f"The notebook has nbformat {version:g}: save it as nbformat 4.")
    if version == 4:
        cells = _list_in(notebook, "cells", "The notebook")
    else:
        sheets = _list_in(notebook, "worksheets", "The notebook")
        cells = [cell for sheet in sheets for cell in _list_in(sheet, "cells", "A worksheet of the notebook")]
    if len(cells) > MAX_CELLS:
        raise Unreadable(
            "oversize", f"The notebook has {len(cells):,} cells; {MAX_CELLS:,} is the most allowed."
        )
    return cells


def _list_in(holder: Any, key: str, name: str) -> list:
    items = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(items, list):
        raise _wrong(f"{name} has no list “{key}”.")
    return items


def _cell(number: int, cell: Any) -> Cell:
    if not isinstance(cell, dict):
        raise _wrong(f"Cell {number} is not an object.")
    kind = cell.get("cell_type")
    known = _KINDS.get(kind, "raw") if isinstance(kind, str) else "raw"
    # the one word in which format 3 differs
    source = _source(number, cell["source"] if "source" in cell else cell.get("input"), known == "code")
    if kind == "heading":
        source = f"{'#' * _level(cell.get('level'))} {source}"
    return Cell(known, source, _grade_id(cell))


def _source(number: int, source: Any, code: bool) -> str:
    if source is None:
        raise _wrong(f"Cell {number} has no source.")
    lines = [source] if isinstance(source, str) else source
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise _wrong(f"Cell {number} has a source that is neither text nor a list of lines.")
    size = sum(map(len, lines))
    if code and size > MAX_SOURCE:
        raise Unreadable(
            "oversize", f"Cell {number} has {size:,} characters; {MAX_SOURCE:,} is the most allowed."
        )
    return _storable("".join(lines)[:MAX_SOURCE])


def _level(level: Any) -> int:
    return int(level) if level in (1, 2, 3, 4, 5, 6) else 1


def _grade_id(cell: dict) -> str | None:
    name: Any = cell
    for key in ("metadata", "nbgrader", "grade_id"):
        name = name.get(key) if isinstance(name, dict) else None
    return _storable(name) if isinstance(name, str) and len(name) <= MAX_GRADE_ID else None


def _storable(text: str) -> str:
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)

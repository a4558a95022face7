"""From a source notebook, with its solutions, to the notebook a learner gets.

The format is nbgrader's (cell metadata of schema 3, markers in comments), and what comes out is
what its ClearSolutions, ClearHiddenTests and ClearOutput make of it.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it takes a second to import
    from nbformat import NotebookNode

CODE_STUB = ("# YOUR CODE HERE", "raise NotImplementedError()")
TEXT_STUB = ("YOUR ANSWER HERE",)
#: written as comments, ### BEGIN SOLUTION; as in nbgrader, the words anywhere in a line count
SOLUTION = ("BEGIN SOLUTION", "END SOLUTION")
HIDDEN = ("BEGIN HIDDEN TESTS", "END HIDDEN TESTS")
#: a marker that is nearly right would leave the solution in
_NEARLY = re.compile(r"#\s*(begin|end)[\s_-]+(solution|hidden)", re.IGNORECASE)


class ReleaseError(ValueError):
    """A source notebook whose markers or cell metadata do not fit together."""


def release(notebook: "NotebookNode") -> "NotebookNode":
    """The learner's copy of a source notebook: no solutions, no hidden tests, no outputs.

    ``notebook`` itself is left alone.

    Raises:
        ReleaseError: a marker without its partner or inside another region, a region in a cell
            that is not marked as a solution or a test, a grade_id used twice.
    """
    copy = deepcopy(notebook)
    _check_ids(copy)
    for number, cell in enumerate(copy.cells, 1):
        marks = cell.metadata.get("nbgrader", {})
        place = f"cell {number} ({marks.get('grade_id') or cell.get('id', 'without id')})"
        solution = bool(marks.get("solution"))
        stub = CODE_STUB if cell.cell_type == "code" else TEXT_STUB
        cell.source, replaced = _replace(cell.source, SOLUTION, stub, place)
        if replaced and not solution:
            raise ReleaseError(f"{place}: a solution stands in a cell that is not marked as one")
        if solution and not replaced:
            cell.source = "\n".join(stub)
        cell.source, removed = _replace(cell.source, HIDDEN, (), place)
        if removed and not marks.get("grade"):
            raise ReleaseError(f"{place}: hidden tests stand in a cell that is not graded")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            for key in ("collapsed", "scrolled", "execution"):
                cell.metadata.pop(key, None)
    copy.metadata.pop("celltoolbar", None)
    return copy


def _check_ids(notebook: "NotebookNode") -> None:
    seen = set()
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in seen:
            raise ReleaseError(f"the grade_id {name!r} is used by two cells")
        seen |= {name} - {None}


def _replace(source: str, markers: tuple[str, str], stub: tuple[str, ...], place: str) -> tuple[str, bool]:
    """``source`` with every marked region replaced by ``stub``, and whether there was one."""
    begin, end = markers
    lines, opened, replaced = [], False, False
    for line in source.split("\n"):
        if begin in line:
            if opened:
                raise ReleaseError(f"{place}: {begin!r} inside a region that is still open")
            opened = replaced = True
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + text for text in stub]
        elif end in line:
            if not opened:
                raise ReleaseError(f"{place}: {end!r} without {begin!r} before it")
            opened = False
        elif _NEARLY.search(line) and not any(mark in line for mark in SOLUTION + HIDDEN):
            raise ReleaseError(f"{place}: {line.strip()!r} is not quite a marker, {begin!r} or {end!r}")
        elif not opened:
            lines.append(line)
    if opened:
        raise ReleaseError(f"{place}: {begin!r} without {end!r} after it")
    return "\n".join(lines), replaced


# On disk --------------------------------------------------------------------------------------


def released(exercises: Path) -> dict[Path, str]:
    """The text of every release that the sources under ``exercises`` call for, by its path.

    Raises:
        ReleaseError: there are no sources, or one of them cannot be released.
    """
    sources = sorted((exercises / "source").glob("*/*.ipynb"))
    if not sources:
        raise ReleaseError(f"no source notebooks in {exercises / 'source'}")
    return {
        exercises / "release" / source.relative_to(exercises / "source"): _text(source) for source in sources
    }


def _text(source: Path) -> str:
    import nbformat

    try:
        notebook = release(nbformat.read(source, as_version=4))
    except ReleaseError as error:
        raise ReleaseError(f"{source}: {error}") from None
    except Exception as error:
        raise ReleaseError(f"{source} is not a valid notebook: {error}") from None
    return nbformat.writes(notebook, indent=1) + "\n"


def stale(exercises: Path) -> Iterator[tuple[Path, str]]:
    """Every release that does not agree with its source, and what is wrong with it."""
    wanted = released(exercises)
    for path, text in wanted.items():
        if not path.is_file():
            yield path, "is missing"
        elif path.read_bytes() != text.encode():
            yield path, "differs from what its source releases"
    for path in sorted((exercises / "release").glob("*/*.ipynb")):
        if path not in wanted:
            yield path, "has no source"


def write(exercises: Path) -> list[Path]:
    """Write every release; returns the paths. Nothing is written unless all can be."""
    wanted = released(exercises)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(wanted)

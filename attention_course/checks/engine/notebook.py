"""Run a learner's notebook in a fresh kernel and read what its checks said.

What is expected, and what it is worth, comes from the package; the notebook only says what passed.
"""

import asyncio
import json
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from time import monotonic

import nbformat
from nbformat import NotebookNode

from attention_course.checks.engine import record
from attention_course.checks.engine.exercise import Chapter, Exercise
from attention_course.checks.engine.observe import printable
from attention_course.checks.engine.registry import MODULES, find_chapter
from attention_course.checks.engine.report import MIMETYPE
from attention_course.checks.engine.session import CheckFailed

#: after an interrupt, how long a kernel may take to come to itself
_GRACE = 10


class NotebookError(ValueError):
    """A file that is not a notebook of this course, or a machine that cannot run one."""


@dataclass(frozen=True)
class Result:
    """One exercise of one notebook: ``status`` is passed, failed, error or missing.

    failed: the check ran and something is not right. error: the check could not finish.
    missing: the notebook holds no such check, or never came to it.
    """

    notebook: str
    exercise: str
    status: str
    points: int
    max_points: int
    message: str


# Reading --------------------------------------------------------------------------------------


def read(path: Path) -> NotebookNode:
    """The notebook at ``path``, in nbformat 4 and without its stored outputs.

    Raises:
        NotebookError: it cannot be read, or is no notebook.
    """
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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook from Colab has no cell ids
            notebook = nbformat.convert(nbformat.from_dict(content), 4)
            notebook = _executable(notebook)
            nbformat.validate(notebook)
    except Exception as error:
        raise NotebookError(f"{path} is not a valid notebook: {printable(error)}") from None
    return notebook


def _executable(notebook: NotebookNode) -> NotebookNode:
    """Only what running needs: sources, in order, with fresh ids and no outputs or metadata.

    Stored outputs are not believed, no tag makes a cell be skipped, and no kernel is asked for by
    name.
    """
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    cells = []
    for cell in notebook.cells:
        source = cell.source
        source = "".join(source) if isinstance(source, list) else source
        cells.append(make.get(cell.cell_type, nbformat.v4.new_raw_cell)(source))
    metadata = {"attention_course": notebook.get("metadata", {}).get("attention_course", {})}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def chapter_of(notebook: NotebookNode, path: Path) -> Chapter:
    """The chapter a notebook belongs to: its metadata say so, else the checks in its cells do.

    The file's name counts for nothing, because learners rename files.

    Raises:
        NotebookError: it is not a notebook of this course.
    """
    marks = notebook.metadata.get("attention_course")
    name = marks.get("chapter") if isinstance(marks, dict) else None
    if not isinstance(name, str) or name not in MODULES:
        sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        counts = {chapter: sum(source.count(f"{chapter}.") for source in sources) for chapter in MODULES}
        name = max(counts, key=counts.get)
        if not counts[name]:
            raise NotebookError(f"{path} is not an exercise notebook of this course")
    return find_chapter(name)


# Running --------------------------------------------------------------------------------------


def execute(notebook: NotebookNode, folder: Path, timeout: float) -> dict[int, str]:
    """Run every cell in a fresh kernel of this very Python, past cells that raise.

    Fills in the outputs. Returns what no output can tell: for a cell that never finished, why.

    Raises:
        NotebookError: there is no kernel to run it in.
    """
    try:
        with record.off():  # what a notebook says is recorded, if at all, by whoever runs it
            return asyncio.run(_execute(notebook, folder, timeout))
    except ImportError as error:
        text = f"running notebooks needs {error.name}: pip install nbclient ipykernel"
        raise NotebookError(text) from None


async def _execute(notebook: NotebookNode, folder: Path, timeout: float) -> dict[int, str]:
    import ipykernel  # noqa: F401  (a kernel without it would die with no word)
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    class ThisPython(KernelSpecManager):
        """Whatever kernels a machine has registered, the one that runs is this Python."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    # nbclient leaves a kernel manager alone that it was given; here it must end with the notebook
    class Client(NotebookClient):
        def create_kernel_manager(self):
            self.km = AsyncKernelManager(kernel_spec_manager=ThisPython())
            return self.km

    client = Client(
        notebook, timeout=timeout, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.log.disabled = True
    unfinished = {}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    async with client.async_setup_kernel(**silent):
        for index, cell in enumerate(notebook.cells):
            try:
                await client.async_execute_cell(cell, index)
            except CellTimeoutError:
                unfinished[index] = f"ran longer than {timeout:g} s and was stopped"
                if not await _interrupted(client):
                    break
            except DeadKernelError:
                unfinished[index] = "ended the kernel"
                break
    return unfinished


async def _interrupted(client) -> bool:
    """Whether the kernel answers again after an interrupt; the next cells can then run."""
    await client.km.interrupt_kernel()
    asked = client.kc.execute("", silent=True, store_history=False)
    answered, deadline = None, monotonic() + _GRACE
    try:
        while answered != asked:  # replies to what was asked before may still be waiting
            reply = await client.kc.get_shell_msg(timeout=max(0, deadline - monotonic()))
            answered = reply["parent_header"].get("msg_id")
    except Empty:
        await client.km.shutdown_kernel(now=True)
        return False
    return True


# Judging --------------------------------------------------------------------------------------


def results(path: str, notebook: NotebookNode, chapter: Chapter, unfinished: dict[int, str]) -> list[Result]:
    """One result for each exercise of ``chapter``, whatever the notebook holds, in its order."""
    judged = []
    for exercise in chapter.exercises:
        status, message = _last_word(notebook, exercise, chapter, unfinished)
        points = exercise.points if status == "passed" else 0
        message = printable(message, 600)
        judged.append(Result(path, exercise.name, status, points, exercise.points, message))
    return judged


def _last_word(
    notebook: NotebookNode, exercise: Exercise, chapter: Chapter, unfinished: dict[int, str]
) -> tuple[str, str]:
    """Status and message of the last check of ``exercise`` that came to an end, one way or another.

    The same check may stand in several cells, in any order: what the notebook says last is what
    holds, and it holds once.
    """
    last = None
    silent = f"the notebook has no check of {exercise.name}"
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        verdicts = [verdict for verdict in _payloads(cell) if verdict.get("exercise") == exercise.name]
        if not verdicts and not _checks(exercise, cell):
            continue
        raised = next((output for output in cell.outputs if output.output_type == "error"), None)
        if verdicts:
            last = verdicts[-1]["status"], str(verdicts[-1].get("message", ""))
        elif index in unfinished:
            last = "error", f"the cell of its check {unfinished[index]}"
        elif cell.execution_count is None:
            why = _stopped_by(notebook, index, unfinished)
            silent = f"its check did not run{why}"
            if why and not last and _is_next(notebook, chapter, index, unfinished):
                last = "error", silent
        elif raised and raised.ename == CheckFailed.__name__:
            silent = "its check did not run: another check before it, in the same cell, did not pass"
        elif raised:
            why = _stopped_by(notebook, index, unfinished)
            last = "error", f"its check could not start: {raised.ename}: {raised.evalue}{why}"
        else:
            silent = "its cell ran, but no check in it; is it commented out?"
    return last or ("missing", silent)


def _checks(exercise: Exercise, cell: NotebookNode) -> bool:
    """Whether a check of ``exercise`` is written in the cell, be it commented out."""
    call = rf"""\bcheck\(\s*(name\s*=\s*)?["']{re.escape(exercise.name)}["']"""
    return bool(re.search(call, cell.source))


def _payloads(cell: NotebookNode) -> list[dict]:
    shown = (output.get("data", {}).get(MIMETYPE) for output in cell.outputs)
    payloads = [payload for payload in shown if isinstance(payload, dict)]
    return [payload for payload in payloads if payload.get("status") in ("passed", "failed")]


def _stopped_by(notebook: NotebookNode, index: int, unfinished: dict[int, str]) -> str:
    """The cell before ``index`` that never finished, in words; empty if there is none."""
    before = [place for place in unfinished if place < index]
    if not before:
        return ""
    first = next((line for line in notebook.cells[before[-1]].source.split("\n") if line.strip()), "")
    return f"; cell {before[-1] + 1} before it ({printable(first, 40)}) {unfinished[before[-1]]}"


def _is_next(notebook: NotebookNode, chapter: Chapter, index: int, unfinished: dict[int, str]) -> bool:
    """Whether the cell that ended the kernel stands between this check and the one before it: then
    it is this exercise's own."""
    between = notebook.cells[max(unfinished) : index]
    return not any(_checks(exercise, cell) for cell in between for exercise in chapter.exercises)

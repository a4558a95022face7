"""Run a learner's notebook in a fresh kernel, cell after cell, past what goes wrong.

The course's own modules load there and nowhere else: whoever asks needs no torch.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any

from attention_course.checks.engine import record
from attention_course.checks.engine.notebook import Notebook, NotebookError
from attention_course.checks.engine.words import printable

#: after an interrupt, how long a kernel may take to come to itself
_GRACE = 10.0
#: how long it may take to start, and to load the course, on a machine that is busy
_PATIENCE = 120.0
#: what is asked of the kernel before the learner's first cell
_LISTED = "__import__('attention_course.checks.engine.registry', fromlist=['']).listed({!r})"


def execute(
    notebook: Notebook, folder: Path, timeout: float, seen: Callable[[], Any] = lambda: None
) -> tuple[list[tuple[str, int]], dict[int, str]]:
    """Run every cell in a fresh kernel of this very Python, past cells that raise.

    Fills in the outputs. Returns each exercise of the notebook's chapter with its points, as the package
    has them before a cell ran, and what no output can tell: for a cell that never finished, why.

    Args:
        timeout: seconds for one cell.
        seen: called once for every cell of the notebook that is done with.

    Raises:
        NotebookError: there is no kernel to run it in.
    """
    # what a notebook says is recorded, if at all, by whoever runs it
    with record.off(), _kernel(folder) as (manager, client):
        exercises = _listed(manager, client, notebook.chapter)
        unfinished: dict[int, str] = {}
        for index, cell in enumerate(notebook.cells):
            if cell.kind == "code" and cell.source.strip():
                asked = client.execute(cell.source, allow_stdin=False, stop_on_error=False)
                ended = _finish(manager, client, asked, timeout, cell.hear)
                if ended == "late":
                    unfinished[index] = f"ran longer than {timeout:g} s and was stopped"
                    manager.interrupt_kernel()
                    if _finish(manager, client, asked, _GRACE) != "idle":
                        break
                elif ended == "dead":
                    unfinished[index] = "ended the kernel"
                    break
            seen()
    return exercises, unfinished


@contextmanager
def _kernel(folder: Path) -> Iterator[tuple[Any, Any]]:
    try:
        import ipykernel  # noqa: F401  (a kernel without it would die with no word)
        from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
        from jupyter_client.manager import KernelManager
    except ImportError as error:
        raise NotebookError(f"running notebooks needs {error.name}: pip install ipykernel") from None

    class ThisPython(KernelSpecManager):
        """Whatever kernels a machine has registered, the one that runs is this Python."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    manager = KernelManager(kernel_spec_manager=ThisPython())
    # torch's threads are not to spin while they wait: that is most of what a check costs on a busy machine
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    manager.start_kernel(cwd=str(folder), env=environment, **silent)
    client = manager.client()
    try:
        client.start_channels()
        try:
            client.wait_for_ready(timeout=_PATIENCE)
        except RuntimeError as error:
            raise NotebookError(f"no kernel can be started: {printable(error)}") from None
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _finish(
    manager: Any, client: Any, asked: str, seconds: float, hear: Callable[[dict], Any] = lambda message: None
) -> str:
    """Wait until the kernel is done with what was ``asked``: "idle", or "late", or "dead"."""
    deadline = monotonic() + seconds
    while (left := deadline - monotonic()) > 0:
        try:
            message = client.get_iopub_msg(timeout=min(left, 0.5))
        except Empty:
            if not manager.is_alive():
                return "dead"
            continue
        if message["parent_header"].get("msg_id") != asked:
            continue
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return "idle"
        hear(message)
    return "late"


def _listed(manager: Any, client: Any, chapter: str) -> list[tuple[str, int]]:
    """The exercises of ``chapter`` and their points; with this question the kernel loads the course."""
    asked = client.execute("", silent=True, user_expressions={"listed": _LISTED.format(chapter)})
    ended = _finish(manager, client, asked, _PATIENCE)
    try:
        while ended == "idle":
            reply = client.get_shell_msg(timeout=_GRACE)
            if reply["parent_header"].get("msg_id") == asked:
                found = reply["content"]["user_expressions"]["listed"]
                if found["status"] == "ok":
                    return ast.literal_eval(found["data"]["text/plain"])
                ended = f"{found['ename']}: {found['evalue']}"
    except Empty:
        pass
    raise NotebookError(f"a kernel of this Python could not load the course ({printable(ended)})")

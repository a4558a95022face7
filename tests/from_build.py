"""nbval on a faster path: a notebook that the build has executed is not executed again.

``pytest -p from_build --nbval-lax book`` is nbval with its collection, its tags and its comparison; only
the kernel differs. Where the build left an execution of just these cells, made with just these sources
(see ``book/_ext/executed.py``), its outputs are played back. Any other notebook runs in a kernel, as always.
"""

import sys
from collections import deque
from pathlib import Path
from queue import Empty
from typing import Any

from nbval.plugin import IPyNbFile

sys.path.append(str(Path(__file__).resolve().parent.parent / "book" / "_ext"))

import executed


class Playback:
    """Answers as nbval's kernel does, with the outputs of cells that were executed before."""

    def __init__(self, cells: list[dict]) -> None:
        self.cells = deque(cell for cell in cells if cell["cell_type"] == "code")
        self.messages: deque[dict] = deque()

    def is_alive(self) -> bool:
        return True

    def stop(self) -> None: ...

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> str:
        cell = self.cells.popleft()
        while cell["source"] != source:  # nbval skips cells that are tagged so
            cell = self.cells.popleft()
        self.messages.clear()
        self.messages.extend(message(output) for output in cell["outputs"])
        self.messages.append(message({"output_type": "status", "execution_state": "idle"}))
        return "played"

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None: ...

    def await_idle(self, msg_id: str, timeout: float) -> None: ...

    def get_message(self, stream: str, timeout: float | None = None) -> dict:
        if not self.messages:
            raise Empty
        return self.messages.popleft()


def message(output: Any) -> dict:
    """An output of a notebook as the message that a kernel would have sent."""
    content = {key: value for key, value in output.items() if key != "output_type"}
    return {"msg_type": output["output_type"], "parent_header": {"msg_id": "played"}, "content": content}


start_kernel = IPyNbFile.setup


def setup(self: IPyNbFile) -> None:
    """Play back what the build has left of this notebook, or start a kernel."""
    page, root = Path(self.path).resolve(), self.config.rootpath.resolve()
    notebook = executed.executed(page, root) if page.parent == root / "book" else None
    if notebook is None:
        start_kernel(self)
    else:
        self.setup_sanitize_files()
        self.kernel = Playback(notebook["cells"])


def pytest_configure() -> None:
    IPyNbFile.setup = setup

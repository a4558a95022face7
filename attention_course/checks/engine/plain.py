"""A plain file of Python in the place of a notebook: it is imported, and what it defines is checked.

What stands below ``if __name__ == "__main__":`` does not run, so a file may train and write there. What it
does not define is not started yet.
"""

import linecache
import traceback
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from attention_course.checks.engine.words import printable

#: the chapter whose exercises a plain file has, and under which names it answers them
CHAPTER = "19_capstone"
ANSWERS = {
    "tokenizer": "Tokenizer", "logits": "GPT", "start": "GPT", "overfit": "GPT", "generate": "GPT",
    "sample": "GPT", "update": "update", "train": "train",
}  # fmt: skip


class NotImported(Exception):
    """A file could not be imported; the text says why, and where."""


def cells(path: Path) -> list[str]:
    """The cells of a notebook that checks the file at ``path``: it is imported, then each answer checked."""
    start = (
        "from attention_course.checks import check\n"
        "from attention_course.checks.engine.plain import answer, imported\n"
        f"answers = imported({str(path.resolve())!r})"
    )
    tests = (f'check("{CHAPTER}.{name}", answer(answers, "{one}"))' for name, one in ANSWERS.items())
    return [start, *tests]


def imported(path: str) -> ModuleType:
    """The file as a module.

    Raises:
        NotImported: it cannot be read, or something in it raises.
    """
    spec = spec_from_file_location(Path(path).stem, path)
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a file that is only read ends nothing
        raise NotImported(_why(error, path)) from None
    return module


def _why(error: BaseException, path: str) -> str:
    """The error, and the line of the file that it comes from."""
    if isinstance(error, SyntaxError) and error.filename == path:
        kind, words, line = type(error).__name__, error.msg, error.lineno
    else:
        kind, words = type(error).__name__, printable(error)
        own = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == path]
        line = own[-1] if own else None
    text = kind
    if line:
        source = printable(linecache.getline(path, line))
        text += f" in line {line}" + (f": `{source}`" if source else "")
    return f"{text} ({words})" if words else text


def not_imported(raised: tuple[str, str] | None, unfinished: Mapping[int, str]) -> str:
    """Why the cell that imports the file came to nothing; empty if it did not.

    Args:
        raised: type and words of the error it ended with, if with one.
        unfinished: of cells that never finished, why.
    """
    if 0 in unfinished:
        return f"it could not be imported: importing it {unfinished[0]}"
    if raised:
        kind, words = raised
        return f"it could not be imported: {words if kind == NotImported.__name__ else f'{kind}: {words}'}"
    return ""


def answer(answers: ModuleType, name: str) -> Any:
    """What the file has under this name; something that is not written yet if it has nothing."""
    return getattr(answers, name, None) or _starter(name)


def _starter(name: str) -> type:
    from torch import nn  # late: what can be said without torch is said at once

    def not_written(self, *given, **named) -> None:
        raise NotImplementedError

    return type(name, (nn.Module,), {"__init__": not_written})

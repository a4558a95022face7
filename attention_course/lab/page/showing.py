"""What a page shows besides figures: tables of what was just computed, and the package's own source."""

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from IPython.display import Markdown

from attention_course.lab.measure import machine


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], *, text_columns: int = 1) -> Markdown:
    """Return a table: first ``text_columns`` of text, then numbers, which stand at the right.

    Floats are shown as they are: format them where their meaning is known. Raises a ``ValueError``
    for a row that is longer or shorter than the header.
    """
    lines = ["| " + " | ".join(header) + " |", _rule(len(header), text_columns)]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"every row must have {len(header)} cells as the header has, got {row}")
        lines.append("| " + " | ".join(str(cell) for cell in row) + " |")
    return Markdown("\n".join(lines))


def _rule(columns: int, text_columns: int) -> str:
    return "|" + ":---|" * text_columns + "---:|" * (columns - text_columns)


def source(*functions: Callable[..., Any]) -> Markdown:
    """Return the package's own source of ``functions``, so that page and package cannot drift apart."""
    text = "\n\n".join(inspect.getsource(function).rstrip() for function in functions)
    return Markdown(f"```python\n{text}\n```")


def took(began: float) -> Markdown:
    """Return a sentence: how long ago ``began`` was, by ``time.perf_counter``, and on which machine."""
    seconds, cores = time.perf_counter() - began, machine.cores()
    where = f"{cores} core{'s' * (cores != 1)} of this processor: {machine.processor()}"
    return Markdown(f"All code on this page took {seconds:.0f} seconds on {where}.")

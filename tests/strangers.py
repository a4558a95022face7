"""Notebooks such as strangers hand in: honest, broken and hostile, all made here by code."""

import json
from pathlib import Path

NAME = "03_scaled_dot_product"
ROOT = Path(__file__).parents[1]


def whole(name: str = NAME) -> list[dict]:
    """The cells of the source notebook, solutions included: an honest submission with full points."""
    path = ROOT / "exercises" / "source" / name / f"{name}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(name: str = NAME) -> list[dict]:
    """The same without text and without what only shows something: quicker, and as many points."""
    cells = [cell for cell in whole(name) if cell["cell_type"] == "code"]
    return [cell for number, cell in enumerate(cells) if number < 2 or grade_id(cell)]


def grade_id(cell: dict) -> str | None:
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


def code(text: str, **metadata) -> dict:
    return {
        "cell_type": "code", "id": "x", "metadata": metadata, "source": text, "outputs": [],
        "execution_count": None,
    }  # fmt: skip


def notebook(cells: list[dict], **metadata) -> bytes:
    content = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    return json.dumps(content).encode()


def submission(
    answers: dict[str, str] | None = None, *, first: str = "", last: str = "", name: str = NAME
) -> bytes:
    """The source notebook with some answers replaced, and cells put before and after all."""
    cells = source(name)
    for cell in cells:
        if grade_id(cell) in (answers or {}):
            cell["source"] = answers[grade_id(cell)]
    return notebook([*([code(first)] if first else []), *cells, *([code(last)] if last else [])])


#: right answers, some written another way than in the source
SCORES = "def scores(query, key):\n    return query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5\n"
SOFTMAX = (
    "def softmax(scores):\n    e = torch.exp(scores - scores.max(-1, keepdim=True).values)\n"
    "    return e / e.sum(-1, keepdim=True)\n"
)

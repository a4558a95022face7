"""Notebooks such as strangers hand in: honest, broken and hostile, all made here by code."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from attention_course.checks.engine.registry import MODULES
from attention_course.grading import grade, remote
from attention_course.grading.assignment import load
from attention_course.grading.sandbox import Limits

NAME = "03_scaled_dot_product"
ROOT = Path(__file__).parents[2]
SEED = 20260401
CHAPTERS = tuple(MODULES)
#: chapters of three kinds -> the grade_id of an answer on which no other answer stands: words as integers
#: and one number a run; tensors of any axes; a number of processes and axes that move
SHAPES = {"01_bottleneck": "token-loss", NAME: "softmax-jacobian", "11_ring": "deal"}


def whole(name: str = NAME) -> list[dict]:
    """The cells of the source notebook, solutions included: an honest submission with full points."""
    path = ROOT / "exercises" / "source" / name / f"{name}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(name: str = NAME) -> list[dict]:
    """The same without text and without what only shows something: quicker, and as many points."""
    cells = [cell for cell in whole(name) if cell["cell_type"] == "code"]
    given = ("import ", "class ")  # set-up, and classes that an answer may build
    return [cell for cell in cells if grade_id(cell) or "".join(cell["source"]).startswith(given)]


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
    unknown = {*(answers or {})} - {grade_id(cell) for cell in cells}
    assert not unknown, f"{name} has no cells {unknown}"
    for cell in cells:
        if grade_id(cell) in (answers or {}):
            cell["source"] = answers[grade_id(cell)]
    return notebook([*([code(first)] if first else []), *cells, *([code(last)] if last else [])])


def function(grade_id: str) -> str:
    """The function that the cell ``grade_id`` asks for."""
    return grade_id.replace("-", "_")


def solution(name: str, wanted: str) -> str:
    """The official answer in the cell ``wanted``."""
    [text] = ["".join(cell["source"]) for cell in source(name) if grade_id(cell) == wanted]
    return text


def instead(name: str, body: str, first: str = "") -> bytes:
    """All right but the one answer of ``SHAPES``: its function has ``body``, which sees ``inputs`` and
    ``right``, the official answer; ``first`` stands above it."""
    wanted = SHAPES[name]
    text = f"{solution(name, wanted)}\nright = {function(wanted)}\n{first}\n"
    return submission({wanted: f"{text}def {function(wanted)}(*inputs):\n    {body}\n"}, name=name)


#: chapter -> the cell, a line of its official answer, the same with a usual mistake, and its name
MISTAKES = {
    "01_bottleneck": (
        "token-loss", "(losses * word).sum((-2, -1)) / word.sum()", "losses.mean((-2, -1))",
        "padding counted as a word",
    ),
    "02_score_functions": (
        "cosine", "(query / query_length) @ (key / key_length).mT", "query @ key.mT", "no length taken out",
    ),
    NAME: ("softmax-jacobian", "torch.diag_embed(weights) - outer", "-outer", "diagonal term missing"),
    "04_multi_head": ("grouped-query-attention", " / query.shape[-1] ** 0.5", "", "no scale"),
    "05_masks": ("causal-weights", ".tril(T_k - T_q)", ".tril()", "first query at first key"),
    "06_positions": (
        "alibi-weights", "-slopes[:, None, None]", "slopes[:, None, None]", "distance rewarded",
    ),
    "07_transformer": ("cross-attention", " / key.shape[-1] ** 0.5", "", "no scale"),
    "08_kernels": (
        "merge", "share_a[..., None] * context_a + share_b[..., None] * context_b",
        "(context_a + context_b) / 2", "plain average",
    ),
    "09_decoding": (
        "nucleus", "logits.masked_fill(~kept, -torch.inf).softmax(dim=-1)",
        "logits.softmax(dim=-1).masked_fill(~kept, 0.0)", "not made to sum to 1",
    ),
    "10_linear": ("strided-weights", "(j <= i) & ((i - j) % stride == 0)", "j <= i", "no stride"),
    "11_ring": ("deal", "chunks[2 * P - 1 - r]", "chunks[P + r]", "P chunks further on"),
    "12_seeing": ("rollout", "layer @ rolled", "rolled @ layer", "order of the product"),
    "13_probing": (
        "best-head", "weights.masked_fill(~allowed[:, None, None], -torch.inf)", "weights",
        "special tokens allowed",
    ),
    "14_vision": (
        "patches", "movedim((-4, -2), (-5, -4))", "movedim((-2, -4), (-5, -4))", "patches column by column",
    ),
    "15_speech": (
        "spell", "scores.masked_fill(behind, -torch.inf).softmax(dim=-1)", "scores.softmax(dim=-1)",
        "no mask",
    ),
    "16_senses": (
        "image-prefix-weights", "(causal | image) & ~padding", "causal & ~padding", "causal for everybody",
    ),
    "17_graphs": (
        "with-self-loops", "edges[:, edges[0] != edges[1]]", "edges", "a second loop",
    ),
    "18_memory": ("returns", "later.masked_fill(done[t], 0.0)", "later", "across the ends"),
    "19_capstone": (
        "tokenizer", "sorted(set(text))", "list(dict.fromkeys(text))", "not sorted",
    ),
}  # fmt: skip


#: right answers, some written another way than in the source
SCORES = "def scores(query, key):\n    return query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5\n"
SOFTMAX = (
    "def softmax(scores):\n    e = torch.exp(scores - scores.max(-1, keepdim=True).values)\n"
    "    return e / e.sum(-1, keepdim=True)\n"
)


# Grading --------------------------------------------------------------------------------------

#: generous, because the machine may be busy
LIMITS = Limits(cell=30.0, call=15.0, total=120.0, memory=512 << 20, disk=8 << 20)
#: grades bytes; returns the record, with exercises by their short name
Grade = Callable[..., dict]


@contextmanager
def grader() -> Iterator[Grade]:
    """Grade submissions of any chapter, each in a sandbox of its own, all forked from one process."""
    assignments = {name: load(ROOT / "exercises", name) for name in CHAPTERS}
    preload = sorted({module for one in assignments.values() for module in one.preload})
    with tempfile.TemporaryDirectory() as folder, remote.launcher({}, preload, LIMITS) as zygote:
        os.chmod(folder, 0o755)
        for name, one in assignments.items():
            remote._write(Path(folder) / name, one.files)

        def graded(content: bytes, seed: int = SEED, limits: Limits = LIMITS, name: str = NAME) -> dict:
            launcher = replace(zygote, course=Path(folder) / name, limits=limits)
            one = grade.grade(content, assignments[name], seed, launcher)
            record = grade.record(one, assignments[name])
            json.dumps(record, allow_nan=False)
            record["by"] = {one["name"].partition(".")[2]: one for one in record["exercises"]}
            return record

        yield graded


def lost(record: dict) -> set[str]:
    """The exercises without points."""
    return {name for name, one in record["by"].items() if one["points"] == 0}


def full(record: dict) -> bool:
    return record["points"] == record["max_points"]

"""An assignment as it was handed out: what its verdicts are named by."""

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from attention_course.grading import assignment

EXERCISES = Path(__file__).resolve().parents[2] / "exercises"


def digest() -> str:
    return assignment.load(EXERCISES, "03_scaled_dot_product").digest


@pytest.mark.parametrize("name", ["torch", "numpy", "ipython"])
def test_verdicts_of_another_library_are_others(monkeypatch, name):
    before, version = digest(), metadata.version
    assert digest() == before
    monkeypatch.setattr(metadata, "version", lambda asked: "0" if asked == name else version(asked))
    assert digest() != before


def test_verdicts_of_another_python_are_others(monkeypatch):
    before = digest()
    monkeypatch.setattr(assignment, "sys", SimpleNamespace(version="3.99"))
    assert digest() != before

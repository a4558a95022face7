"""An assignment as it was handed out: what its verdicts are named by."""

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from attention_course.checks.engine.observe import SLACK
from attention_course.grading import assignment
from attention_course.grading.shown import shown

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


def test_of_names_that_are_loaded_late_a_notebook_sees_those_it_uses():
    files = shown(["from attention_course import MultiHeadAttention"], ())
    front = files["__init__.py"].decode()
    assert front.endswith("from attention_course.heads import MultiHeadAttention\n")
    assert "import" not in front.replace("from attention_course.heads import MultiHeadAttention", "")
    assert "heads.py" in files and "device.py" not in shown(["from attention_course import attend"], ())


def test_what_trains_long_has_the_time_for_it():
    assert assignment.load(EXERCISES, "03_scaled_dot_product").seconds == 0
    assert assignment.load(EXERCISES, "07_transformer").seconds == SLACK * 10
    assert assignment.load(EXERCISES, "19_capstone").seconds == SLACK * (90 + 10 + 2 * 10)

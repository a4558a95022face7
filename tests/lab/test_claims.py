"""Claims: what is said of a run, what holds, what is shown, when it is an error."""

import json
import math

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from attention_course.lab.page.claims import (
    MIME,
    Checked,
    Claim,
    ClaimBroken,
    carried,
    claims,
    margin,
    strict,
)


@pytest.fixture(autouse=True)
def neutral(monkeypatch):
    monkeypatch.delenv("ATTENTION_COURSE_CLAIMS", raising=False)
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.parametrize(
    ("number", "low", "high", "held"),
    [
        (0.5, 0.5, None, True),
        (0.4999, 0.5, None, False),
        (0.5, None, 0.5, True),
        (0.5001, None, 0.5, False),
        (0.5, 0.4, 0.6, True),
        (0.7, 0.4, 0.6, False),
        (math.nan, 0.0, None, False),
        (math.inf, 0.0, None, False),
        (-math.inf, None, 0.0, False),
    ],
)
def test_a_claim_holds_while_its_number_keeps_its_bound(number, low, high, held):
    assert Claim("It is so", number, at_least=low, at_most=high).held is held


def test_a_tensor_with_one_number_is_a_number():
    assert Claim("It is so", torch.tensor(0.5), at_least=0.4).number == 0.5


@pytest.mark.parametrize("number", [torch.zeros(2), "many", None, [1.0]])
def test_what_is_no_single_number_is_refused(number, unchecked):
    with pytest.raises(TypeError, match=f"number must be a single number, got {type(number).__name__}"):
        Claim("It is so", number, at_least=0)


def test_a_claim_needs_words_and_a_bound(unchecked):
    with pytest.raises(ValueError, match="words must say what is claimed"):
        Claim("  ", 1.0, at_least=0)
    with pytest.raises(ValueError, match="a claim needs at_least or at_most, got neither: It is so"):
        Claim("It is so", 1.0)


@pytest.mark.parametrize(
    ("said", "ci", "expected"),
    [
        (None, None, False), (None, "true", True), ("strict", None, True), ("report", "true", False),
        ("", "", False),
    ],
)  # fmt: skip
def test_when_a_broken_claim_is_an_error(monkeypatch, said, ci, expected):
    for name, value in (("ATTENTION_COURSE_CLAIMS", said), ("CI", ci)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert strict() is expected


GOOD = Claim("The sum is small", 0.25, at_most=0.5)
BAD = Claim("The loss <falls>", -0.125, at_least=0.1)


def test_a_quiet_line_where_all_hold():
    page = Checked((GOOD, GOOD))._repr_html_()
    assert page.startswith('<details class="claims"><summary>✓ 2 statements checked on this run</summary>')
    assert "claim-otherwise" not in page
    assert "The sum is small: <strong>0.25</strong> (at most 0.5)" in page


def test_what_came_out_otherwise_is_said_openly_and_escaped():
    page = Checked((GOOD, BAD))._repr_html_()
    before, quiet = page.split("<details", 1)
    assert "Otherwise on this machine." in before
    assert "The loss &lt;falls&gt;: here the number is −0.125, not at least 0.1." in before
    assert "The sum is small" not in before and "The sum is small" in quiet
    assert "✗ 2 statements checked on this run, 1 came out otherwise" in quiet


def test_a_broken_claim_is_shown_and_the_page_goes_on(capsys):
    claims(BAD, GOOD)
    assert "✗ The loss <falls>: −0.125 (at least 0.1)" in capsys.readouterr().out


def test_strict_raises_after_all_were_shown_and_names_each(monkeypatch, capsys):
    monkeypatch.setenv("ATTENTION_COURSE_CLAIMS", "strict")
    claims(GOOD)
    with pytest.raises(
        ClaimBroken, match=r"The loss <falls>: −0\.125, not at least 0\.1\nNever: nan, not at most 1"
    ):
        claims(BAD, GOOD, Claim("Never", math.nan, at_most=1))
    assert "The sum is small" in capsys.readouterr().out


def executed(source, **kernel):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, kernel_name="python3", **kernel).execute()
    return notebook


SOURCE = """
from attention_course.lab.page.claims import Claim, claims
claims(Claim("One", 1, at_least=1), Claim("Two", float("nan"), at_most=2))
3
"""


def test_an_executed_notebook_carries_its_claims_as_plain_values(monkeypatch):
    monkeypatch.setenv("ATTENTION_COURSE_CLAIMS", "report")
    notebook = json.loads(nbformat.writes(executed(SOURCE)))
    assert list(carried(notebook)) == [
        {"words": "One", "number": 1.0, "at_least": 1, "at_most": None, "held": True},
        {"words": "Two", "number": None, "at_least": None, "at_most": 2, "held": False},
    ]
    (shown,) = (o["data"] for o in notebook["cells"][0]["outputs"] if MIME in o.get("data", {}))
    assert {"text/html", "text/plain"} < set(shown)


def test_a_strict_notebook_stops_at_the_cell_with_its_claims_shown(monkeypatch):
    monkeypatch.setenv("ATTENTION_COURSE_CLAIMS", "strict")
    with pytest.raises(CellExecutionError, match="Two: nan, not at most 2"):
        executed(SOURCE)


def test_a_margin_counts_standard_deviations_to_the_nearer_bound():
    numbers = [1.0, 2.0, 3.0]  # mean 2, standard deviation 1
    assert margin(numbers, at_least=-2, at_most=None) == 4
    assert margin(numbers, at_least=-2, at_most=3) == 1
    assert margin(numbers, at_least=2.5, at_most=None) == -0.5


def test_a_margin_without_spread_or_without_a_number():
    assert margin([1.0, 1.0], at_least=1, at_most=None) == math.inf
    assert margin([1.0, 1.0], at_least=2, at_most=None) == -math.inf
    assert margin([1.0, None], at_least=0, at_most=None) == -math.inf
    with pytest.raises(ValueError, match="at least two numbers, got 1"):
        margin([1.0], at_least=0, at_most=None)


@pytest.mark.parametrize(
    ("number", "low", "high", "shown"),
    [
        (0.89996, 0.9, None, "0.89996"),
        (0.9000001, None, 0.9, "0.9000001"),
        (0.90004, 0.9, None, "0.9"),
        (3.9999, 4, None, "3.9999"),
        (0.12345, 0.9, None, "0.123"),
        (math.nan, 0.9, None, "nan"),
    ],
)
def test_a_number_that_missed_its_bound_is_told_from_it(number, low, high, shown):
    claim = Claim("It is so", number, at_least=low, at_most=high)
    assert claim.shown == shown
    if not claim.held:
        assert f"here the number is {shown}, not {claim.bound}" in Checked((claim,))._repr_html_()

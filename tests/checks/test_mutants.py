"""Every exercise's check against mechanical mutants of its reference: see ``mutants.py``."""

import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("mutants.py")
#: of each exercise; all of them take a minute: python tests/checks/mutants.py
SAMPLE = 10


def run(*arguments):
    # another process, in which no annotation is checked at each call
    command = [sys.executable, str(FILE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def sampled():
    return run("--sample", str(SAMPLE))


def columns(output, row):
    line = next(line for line in output.splitlines() if line.startswith(f"{row} "))
    return [int(one) for one in line.removeprefix(row).rstrip("%").split()]


def test_no_mutant_is_accepted(sampled):
    assert "accepted:" not in sampled.stdout
    assert (sampled.returncode, sampled.stderr) == (0, "")
    made, equivalent, rejected, *_ = columns(sampled.stdout, "all")
    assert made == equivalent + rejected and made > 500


def test_most_of_the_plausible_ones_are_named(sampled):
    rows = [line for line in sampled.stdout.splitlines() if line[:2].isdigit()]
    assert len(rows) == 18
    *_, share = columns(sampled.stdout, "all")
    assert share >= 60


def test_a_hole_in_the_cases_is_found(tmp_path):
    """With an exercise whose only case tells nothing, mutants live, and are told."""
    script = tmp_path / "hole.py"
    script.write_text(
        "import sys; from dataclasses import replace\n"
        f"sys.path.insert(0, {str(FILE.parent)!r})\n"
        "import mutants; from attention_course import checks\n"
        "exercise = checks.find_exercise('05_masks.causal_weights')\n"
        "hole = replace(exercise, cases=exercise.cases[3:4], mistakes=(), hidden=())\n"  # one query sees all
        "verdicts = [(one.operator, mutants.judged(one)) for one in mutants.mutants_of(hole)]\n"
        "print(sorted({name for name, verdict in verdicts if verdict and verdict.passed}))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert "'leak'" in run.stdout and "'no maximum'" in run.stdout

"""nbgrader's own commands work on the exercises: it hands out what we do, and grades what we grade."""

import csv
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from attention_course.checks import find_chapter
from attention_course.grading.submissions import open_source

EXERCISES = Path(__file__).resolve().parents[2] / "exercises"
NAME, OTHER = "03_scaled_dot_product", "05_masks"
#: what bob answers, and what it is worth: no other exercises are worth as much together
ANSWERED, POINTS = "softmax-jacobian", 3
SUBMITTED = "2026-01-31 23:59:59.000000 UTC"
CURE = "nbgrader is not installed, so it was not tried on the exercises: pip install nbgrader"

#: prints the points of every graded cell, by student
GRADES = """
import json, sys
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as gradebook:
    print(json.dumps({
        student: {grade.name: [grade.score, grade.max_score] for grade in
                  gradebook.find_submission_notebook(sys.argv[1], sys.argv[1], student).grades}
        for student in ("ada", "bob")
    }))
"""


@dataclass(frozen=True)
class Graded:
    """A course folder that nbgrader has been through, and what it said on the way."""

    folder: Path
    log: str
    #: student -> check -> [points, of so many]
    grades: dict[str, dict[str, list[float]]]
    #: the rows of its export
    exported: list[dict[str, str]]


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Graded:
    if importlib.util.find_spec("nbgrader") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(CURE)
    folder, home = tmp_path_factory.mktemp("course"), tmp_path_factory.mktemp("home")
    for name in (NAME, OTHER):
        shutil.copytree(EXERCISES / "source" / name, folder / "source" / name)

    def python(*arguments: str) -> str:
        """Run it in the course's folder; what it printed on either stream."""
        ran = subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=environment(home), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    log = ""
    for name in (NAME, OTHER):
        log += python("-m", "nbgrader", "generate_assignment", name, "--course-dir", str(folder))
    hand_in(folder)
    log += python("-m", "nbgrader", "autograde", NAME, "--course-dir", str(folder))
    log += python("-m", "nbgrader", "export", "--to", "exported.csv")
    grades = json.loads(python("-c", GRADES, NAME).splitlines()[-1])
    with (folder / "exported.csv").open(encoding="utf-8", newline="") as file:
        return Graded(folder, log, grades, list(csv.DictReader(file)))


def environment(home: Path) -> dict[str, str]:
    """No user's configuration is read or written, no progress is recorded."""
    settings = ("JUPYTER", "IPYTHON", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return {
        **kept, "HOME": str(home), "JUPYTER_NO_CONFIG": "1", "ATTENTION_COURSE_PROGRESS": os.devnull,
        "PATH": path,  # nbgrader starts alembic by its name
    }  # fmt: skip


def hand_in(folder: Path) -> None:
    """Ada has every answer, bob one of them, in the notebook that learners get from us."""
    source = (EXERCISES / "source" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8")
    write(folder, "ada", NAME, source)
    (folder / "submitted" / "ada" / NAME / "timestamp.txt").write_text(SUBMITTED)
    [answer] = [cell for cell in json.loads(source)["cells"] if grade_id(cell) == ANSWERED]
    notebook = json.loads((EXERCISES / "release" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8"))
    [stub] = [cell for cell in notebook["cells"] if grade_id(cell) == ANSWERED]
    stub["source"] = answer["source"]
    write(folder, "bob", NAME, json.dumps(notebook))
    write(folder, "bob", OTHER, "{}")


def write(folder: Path, student: str, name: str, content: str) -> None:
    path = folder / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")


def grade_id(cell: dict) -> str | None:
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


# Handing out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, OTHER])
def test_its_release_is_ours_but_for_locks_and_checksums(course, name):
    theirs = nbformat.read(course.folder / "release" / name / f"{name}.ipynb", 4)
    ours = nbformat.read(EXERCISES / "release" / name / f"{name}.ipynb", 4)
    marked = [cell for cell in theirs.cells if "nbgrader" in cell.metadata]
    assert len(marked) == 2 * len(find_chapter(name).exercises)
    for cell in marked:
        assert re.fullmatch("[0-9a-f]{32}", cell.metadata.nbgrader.pop("checksum"))
        assert cell.metadata.pop("deletable") is False
        if cell.metadata.nbgrader.grade:
            assert cell.metadata.pop("editable") is False
    assert theirs == ours


# Grading --------------------------------------------------------------------------------------


def test_it_gives_right_answers_full_points_and_one_answer_its_own(course):
    most = {f"check-{exercise_id(one.name)}": one.points for one in find_chapter(NAME).exercises}
    assert most[f"check-{ANSWERED}"] == POINTS
    assert course.grades["ada"] == {check: [points, points] for check, points in most.items()}
    assert course.grades["bob"] == {
        check: [points if check == f"check-{ANSWERED}" else 0, points] for check, points in most.items()
    }


def exercise_id(name: str) -> str:
    return name.partition(".")[2].replace("_", "-")


def test_it_exports_what_it_gave(course):
    columns = ("assignment", "student_id", "score", "max_score", "timestamp")
    rows = [tuple(row[column] for column in columns) for row in course.exported]
    most = str(float(find_chapter(NAME).points))
    assert [row for row in rows if row[0] == NAME] == [
        (NAME, "ada", most, most, "2026-01-31 23:59:59"),
        (NAME, "bob", str(float(POINTS)), most, ""),
    ]


def test_it_finds_no_cell_changed_that_was_handed_out_by_us(course):
    assert "Autograding" in course.log
    assert "has changed" not in course.log
    assert "Missing grade cell" not in course.log


# What it collects -----------------------------------------------------------------------------


def test_we_take_submissions_where_it_has_them(course):
    with open_source(course.folder / "submitted", NAME) as source:
        found = {one.student: (one, source.read(one)) for one in source.submissions}
    assert list(found) == ["ada", "bob"]
    for student, (one, content) in found.items():
        assert one.name == f"{student}/{NAME}/{NAME}.ipynb"
        assert content == (course.folder / "submitted" / one.name).read_bytes()
    assert [found[student][0].flags for student in found] == [(f"submitted {SUBMITTED}",), ()]

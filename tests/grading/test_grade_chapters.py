"""Every chapter can be graded: right answers get all points, and what a learner may do costs nothing."""

import ast
import shutil

import pytest
from strangers import (
    CHAPTERS,
    MISTAKES,
    NAME,
    ROOT,
    code,
    full,
    function,
    grade_id,
    grader,
    lost,
    notebook,
    source,
    submission,
    whole,
)  # fmt: skip

from attention_course.checks.engine.registry import find_chapter
from attention_course.grading import remote, wire
from attention_course.grading.assignment import load
from attention_course.grading.grade import public_inputs

if not shutil.which("bwrap"):
    pytest.skip("needs bubblewrap", allow_module_level=True)

every_chapter = pytest.mark.parametrize("chapter", CHAPTERS)


@pytest.fixture(scope="module")
def graded():
    with grader() as grades:
        yield grades


# All of them ----------------------------------------------------------------------------------


@every_chapter
def test_the_official_solution_gets_all_points_and_no_flag(graded, chapter):
    record = graded(notebook(whole(chapter)), name=chapter)
    assert record["max_points"] == find_chapter(chapter).points
    assert (record["status"], record["flags"], lost(record)) == ("graded", [], set())
    assert full(record)


@every_chapter
def test_a_remark_in_an_answer_changes_nothing(graded, chapter):
    cells = source(chapter)
    for cell in cells:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = "# my inputs, check() them\n" + "".join(cell["source"])
    record = graded(notebook(cells), name=chapter)
    assert (record["status"], record["flags"], lost(record)) == ("graded", [], set())


@every_chapter
def test_the_starter_gets_nothing_and_says_so(graded, chapter):
    content = (ROOT / "exercises" / "release" / chapter / f"{chapter}.ipynb").read_bytes()
    record = graded(content, name=chapter)
    assert (record["status"], record["points"]) == ("graded", 0)
    assert all("Nothing is written here yet" in one["message"] for one in record["exercises"])


@every_chapter
def test_a_usual_mistake_costs_its_exercise_and_is_named(graded, chapter):
    place, right, wrong, name = MISTAKES[chapter]
    cells = source(chapter)
    [cell] = [cell for cell in cells if grade_id(cell) == place]
    text = "".join(cell["source"])
    assert text.count(right) == 1
    cell["source"] = text.replace(right, wrong)
    record = graded(notebook(cells), name=chapter)
    assert (record["status"], lost(record)) == ("graded", {function(place)})
    assert f"Usual mistake: {name}." in record["by"][function(place)]["message"]


@every_chapter
def test_every_public_input_is_there_as_on_a_learner_s_machine(graded, chapter):
    cases = {name: list(of) for name, of in public_inputs(load(ROOT / "exercises", chapter)).items()}
    first = (
        "from attention_course.checks import inputs\nimport torch\n"
        f"CASES = {cases!r}\nseen = [inputs(name, case) for name in CASES for case in CASES[name]]\n"
        "assert all(type(one) is tuple and any(map(torch.is_tensor, one)) for one in seen)\n"
    )
    cells = source(chapter)
    cells.insert(0, code(first))
    record = graded(notebook(cells), name=chapter)  # a cell that stops is flagged
    assert (record["flags"], lost(record)) == ([], set())


@every_chapter
def test_the_sandbox_shows_nothing_that_is_asked_for(chapter):
    """What a demonstration calls may bear the name, and does nothing."""
    assignment = load(ROOT / "exercises", chapter)
    asked = {task.function for task in assignment.tasks}
    shown = {
        node.name
        for content in assignment.files.values() for node in ast.parse(content).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not (node.name in asked and isinstance(node.body[0], ast.Raise))
    }  # fmt: skip
    assert not shown & asked
    assert not shown & {name for task in assignment.tasks for name in task.exercise.forbidden}


# What is shown of the course ------------------------------------------------------------------


def test_a_module_is_shown_with_what_is_used_of_it(graded):
    """One function of a module is given; the answers beside it are not there."""
    attempts = ["from attention_course.linear import linear_attention", "import attention_course.ring",
                "import attention_course\nattention_course.linear.causal_linear_attention"]  # fmt: skip
    first = (
        "from attention_course.linear import elu_plus_one\nfrom attention_course import masks\n"
        f"found = []\nfor attempt in {attempts!r}:\n    try:\n        exec(attempt)\n"
        "    except (ImportError, AttributeError):\n        continue\n    found.append(attempt)\n"
        "assert not found, found\nassert masks.window(4, 4, 2).shape == (4, 4)\n"
    )
    cells = source("10_linear")
    cells.insert(0, code(first))
    assert not [flag for flag in graded(notebook(cells), name="10_linear")["flags"] if "stopped" in flag]


def test_a_module_that_also_holds_an_answer_is_shown_without_any(graded):
    """Its functions raise: what helps with one answer, such as a table of angles, is no help either."""
    files = load(ROOT / "exercises", "06_positions").files
    functions = [node for node in ast.parse(files["positions.py"]).body if isinstance(node, ast.FunctionDef)]
    assert {node.name for node in functions} == {"rotate", "sinusoidal"}
    assert all(isinstance(node.body[0], ast.Raise) for node in functions)
    borrowed = (
        "def rotate(x, start):\n"
        "    return globals()['pack' + 'aged'].rotate(x, start + torch.arange(x.shape[-2]))\n"
    )
    record = graded(submission({"rotate": borrowed}, name="06_positions"), name="06_positions")
    assert "rotate" in lost(record) and any(flag.endswith(": globals") for flag in record["flags"])


def test_what_the_assignment_gives_is_no_flag_and_what_it_asks_for_is(graded):
    given = "from attention_course.linear import elu_plus_one as phi, elu_plus_one\n"
    step = "".join(next(cell for cell in source("10_linear") if grade_id(cell) == "step")["source"])
    record = graded(submission({"step": given + step}, name="10_linear"), name="10_linear")
    assert (record["flags"], lost(record)) == ([], set())
    packaged = "def rotate(x, start):\n    return packaged.rotate(x, start + torch.arange(x.shape[-2]))\n"
    record = graded(submission({"rotate": packaged}, name="06_positions"), name="06_positions")
    assert "rotate: uses packaged of the course's own code" in record["flags"]
    disguised = "from attention_course.linear import (\n    linear_attention as elu_plus_one,\n)\n"
    record = graded(submission({"step": disguised + step}, name="10_linear"), name="10_linear")
    assert "step: uses elu_plus_one of the course's own code" in record["flags"]


# What is judged is what the check was handed --------------------------------------------------

DRAFT = "def scores(query, key):\n    return query @ key.mT\n"
SECOND = "def scores_v2(query, key):\n    return query @ key.mT / query.shape[-1] ** 0.5\n"
OWN = "def attention(query, key, value):\n    w = softmax(scores_v2(query, key))\n    return w @ value, w\n"


def checked(text: str, answer: str = DRAFT + SECOND) -> bytes:
    """Chapter 3 with a draft beside the answer, and ``text`` as the cell that checks it."""
    return submission({"scores": answer, "attention": OWN, "check-scores": text})


@pytest.mark.parametrize(
    "call",
    [
        f'check("{NAME}.scores", scores_v2)',
        f'check(name="{NAME}.scores", function=scores_v2)',
        f'check(function=scores_v2, name="{NAME}.scores")',
        f'for name, one in {{"scores": scores_v2}}.items():\n    check("{NAME}." + name, one)',
    ],
    ids=["by place", "by name", "by name, the other way round", "in a loop"],
)
def test_what_the_check_was_handed_is_judged_whatever_else_bears_the_name(graded, call):
    assert graded(checked(call))["flags"] == []
    assert lost(graded(checked(call))) == set()
    swapped = graded(checked(call.replace("scores_v2)", "scores)").replace("=scores_v2", "=scores")
                             .replace(": scores_v2", ": scores")))  # fmt: skip
    assert lost(swapped) == {"scores"}
    assert "Usual mistake" in swapped["by"]["scores"]["message"]


def test_a_draft_that_is_right_does_not_save_a_check_that_was_handed_a_wrong_one(graded):
    right_draft = SECOND.replace("scores_v2", "scores") + DRAFT.replace("scores(", "scores_v2(")
    content = checked(f'check("{NAME}.scores", scores_v2)', right_draft)
    assert "scores" in lost(graded(content))


# Whose failure --------------------------------------------------------------------------------


def test_a_frame_of_the_grader_s_that_is_too_large_is_the_grader_s_failure(graded, monkeypatch):
    monkeypatch.setattr(wire, "FROM_GRADER", wire.Bounds(1 << 20, 1 << 20, 10))
    with pytest.raises(wire.TooLarge, match=r"\d\d tensors"):
        graded(submission(first="from attention_course.checks import inputs"))


def test_a_process_that_cannot_take_the_inputs_is_the_grader_s_failure(graded, monkeypatch):
    def ended(session, *_):
        raise remote.Ended("crashed", "ended its process")

    monkeypatch.setattr(remote.Session, "_ask", ended)
    with pytest.raises(remote.SandboxError, match="before its first cell"):
        graded(submission(first="from attention_course.checks import inputs"))


def test_a_notebook_s_frame_has_narrower_bounds_than_the_grader_s(graded):
    assert wire.FROM_NOTEBOOK.tensors <= 64 and wire.FROM_NOTEBOOK.header <= 1 << 20
    many = (
        "import attention_course.grading.wire as w, json, struct\n"
        "one = {'dtype': 'float32', 'shape': [0]}\n"
        "text = json.dumps({'result': {'tensor': 0}, 'changed': [], 'called': [], 'tensors': [one] * 65})\n"
        "def scores(query, key):\n"
        "    w.pack = lambda *a: struct.pack('!IQ', len(text), 0) + text.encode()\n    return query\n"
    )
    record = graded(submission({"scores": many}))
    assert (record["by"]["scores"]["status"], record["status"]) == ("refused", "refused")

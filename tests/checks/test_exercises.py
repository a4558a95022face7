"""The graded notebooks in the tree: they agree with the package, starters fail, solutions pass."""

import ast
import re
from inspect import signature
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from attention_course import checks
from attention_course.checks.engine import kernel
from attention_course.checks.engine import notebook as reader
from attention_course.checks.engine.asks import Loaded, Module
from attention_course.checks.engine.scenes import MeasuredScene, Scene
from attention_course.grading.release import stale

ROOT = Path(__file__).resolve().parents[2]
EXERCISES = ROOT / "exercises"
SOURCES = sorted((EXERCISES / "source").glob("*/*.ipynb"))
#: as many words and signs in a row, as in ``scores.softmax(dim=-1)``, are code that a hint gives away
GIVEN_AWAY = 9
#: and so is a whole line that has as many
WHOLE_LINE = 5
#: difficulty -> the fewest and the most minutes
MINUTES = {1: (5, 10), 2: (10, 20), 3: (15, 25)}
MINUTES_OF_A_MILESTONE = 60
LINES_OF_ONE_STAR = 3
CHECK = re.compile(r'^check\("([\w.]+)", (\w+)\)$')


def release_of(source):
    return EXERCISES / "release" / source.relative_to(EXERCISES / "source")


def chapter_of(source):
    return checks.find_chapter(source.stem)


def marks(cell):
    return cell.metadata.get("nbgrader", {})


def run(path, folder):
    """Run every cell of a notebook; it runs in ``folder``, not where it stands."""
    notebook = reader.read(path)
    exercises, unfinished = kernel.execute(notebook, folder, 120.0)
    cells = [cell for cell in notebook.cells if cell.kind == "code" and cell.source.strip()]
    assert unfinished == {} and all(cell.ran for cell in cells)
    judged = reader.results(str(path), notebook, exercises, unfinished)
    return notebook, {one.exercise: one for one in judged}


def named(code, function):
    """The names of the parameters of the first definition of ``function``."""
    definition = re.search(rf"def {function}\((.*?)\) ->", code, re.DOTALL)[1]
    [tree] = ast.parse(f"def f({definition}): ...").body
    return tuple(argument.arg for argument in tree.args.args)


def solutions_of(source):
    """The lines of each official solution, by the cell that holds it."""
    found = {}
    for cell in nbformat.read(source, 4).cells:
        for block in re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.DOTALL):
            lines = found.setdefault(marks(cell)["grade_id"].replace("-", "_"), [])
            lines += [line.strip() for line in block.split("\n") if line.strip()]
    return found


def signs(text):
    """Its words and signs, without spaces and without a comment."""
    return re.findall(r"\w+|[^\w\s]", re.sub(r"\s#\s.*", "", text))


def shared_run(one, other):
    """The length of the longest run of words and signs that stands in both."""
    longest, before = 0, [0] * (len(other) + 1)
    for word in one:
        now = [0] + [before[i] + 1 if word == them else 0 for i, them in enumerate(other)]
        longest, before = max(longest, *now), now
    return longest


def test_what_a_hint_shares_with_a_line_is_counted():
    line = signs("weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)  # over the keys")
    assert shared_run(signs("Take scores.masked_fill( ~mask, -torch.inf )."), line) == 13
    assert shared_run(signs("Fill the scores where the mask is not True."), line) == 1


def test_every_chapter_with_exercises_has_a_notebook():
    assert [source.stem for source in SOURCES] == [chapter.name for chapter in checks.chapters()]
    assert all(source.parent.name == source.stem for source in SOURCES)


def test_releases_agree_with_their_sources():
    assert list(stale(EXERCISES)) == [], "run attention-course release"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_what_is_forbidden_is_told_in_the_task(source):
    task, told = "", {}
    for cell in nbformat.read(source, 4).cells:
        if cell.cell_type == "markdown":
            task = cell.source if cell.source.startswith("## ") else f"{task}\n{cell.source}"
        elif match := CHECK.match(cell.source):
            told[match[1]] = task
    for exercise in chapter_of(source).exercises:
        if exercise.forbidden:
            said = [name for name in exercise.forbidden if name in told[exercise.name]]
            assert said and re.search("not allowed|without|Do not|may not", told[exercise.name]), (
                exercise.name
            )


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
class TestNotebook:
    def test_both_are_valid_and_without_outputs(self, source):
        for path in (source, release_of(source)):
            notebook = nbformat.read(path, 4)
            nbformat.validate(notebook)
            assert notebook.nbformat_minor >= 5
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    assert cell.outputs == [] and cell.execution_count is None
            assert notebook.metadata.attention_course == {"chapter": source.stem}

    def test_no_solution_text_is_in_the_release(self, source):
        """But for lines that stand in the notebook anyway, such as those of code that is to be mended."""
        secret, given = [], set()
        for cell in nbformat.read(source, 4).cells:
            inside = False
            for line in cell.source.split("\n"):
                if "BEGIN SOLUTION" in line or "BEGIN HIDDEN" in line:
                    inside = True
                elif "END SOLUTION" in line or "END HIDDEN" in line:
                    inside = False
                elif inside and re.search(r"\w", line):
                    secret.append(line.strip())
                else:
                    given.add(line.strip())
        secret = [line for line in secret if line not in given]
        assert len(secret) >= len(chapter_of(source).exercises)
        text = "\n".join(cell.source for cell in nbformat.read(release_of(source), 4).cells)
        assert not [line for line in secret if line in text]
        assert "SOLUTION" not in text and "HIDDEN" not in text

    def test_points_are_stars_and_minutes_follow_them(self, source):
        """The rule of CONTRIBUTING, "How to write a graded exercise"."""
        for one in chapter_of(source).exercises:
            assert one.points == one.difficulty, one.name
            least, most = MINUTES[one.difficulty]
            if isinstance(one.asks, Scene | MeasuredScene):
                most = MINUTES_OF_A_MILESTONE
            assert least <= one.minutes <= most and one.minutes % 5 == 0, one.name

    def test_one_star_is_a_function_of_few_lines(self, source):
        one_star = [one for one in chapter_of(source).exercises if one.difficulty == 1]
        solutions = solutions_of(source)
        for one in one_star:
            if not isinstance(one.asks, Scene | MeasuredScene):
                assert len(solutions[one.answer]) <= LINES_OF_ONE_STAR, one.name

    def test_hints_stop_before_the_code(self, source):
        """A hint names an operation and its axis; what it shares with a line of a solution stays short."""
        lines = [signs(line) for block in solutions_of(source).values() for line in block]
        for one in chapter_of(source).exercises:
            for level, text in enumerate(one.hints, 1):
                said = signs(text)
                for line in lines:
                    run = shared_run(said, line)
                    assert run < GIVEN_AWAY, (one.name, level, " ".join(line))
                    assert run < len(line) or run < WHOLE_LINE, (one.name, level, " ".join(line))

    def test_metadata_are_nbgraders(self, source):
        cells = [cell for cell in nbformat.read(source, 4).cells if marks(cell)]
        for cell in cells:
            expected = {"cell_type", "grade", "grade_id", "locked", "schema_version", "solution", "task"}
            assert set(marks(cell)) == expected | ({"points"} if marks(cell)["grade"] else set())
            assert marks(cell)["schema_version"] == 3 and marks(cell)["task"] is False
            assert marks(cell)["grade"] is marks(cell)["locked"] is not marks(cell)["solution"]
            assert marks(cell)["cell_type"] == cell.cell_type == "code"
            assert re.fullmatch(r"[A-Za-z0-9_-]+", marks(cell)["grade_id"])
        assert len({marks(cell)["grade_id"] for cell in cells}) == len(cells)
        utils = pytest.importorskip("nbgrader.nbgraderformat", reason="pip install nbgrader to compare")
        utils.MetadataValidator().validate_nb(nbformat.read(source, 4))

    def test_each_exercise_is_solved_in_one_cell_and_checked_in_the_next(self, source):
        cells = nbformat.read(source, 4).cells
        found, answered = [], ""
        for before, cell in pairwise(cells):
            if marks(cell).get("grade"):
                name, function = CHECK.match(cell.source).groups()
                kind = "class" if function[0].isupper() else "def"
                if function != answered:  # one class may be asked for several things
                    assert marks(before).get("solution")
                    assert re.search(rf"^{kind} {function}\b", before.source, re.MULTILINE)
                answered = function
                assert function == checks.find_exercise(name).answer
                found.append((name, marks(cell)["points"]))
        assert found == [(one.name, one.points) for one in chapter_of(source).exercises]

    def test_the_text_says_what_the_package_says(self, source):
        chapter = chapter_of(source)
        texts = [cell.source for cell in nbformat.read(source, 4).cells if cell.cell_type == "markdown"]
        assert texts[0].startswith(f"# {chapter.title}: exercises")
        minutes = sum(one.minutes for one in chapter.exercises)
        numbers = f"{chapter.points} points, about {minutes} minutes"
        assert numbers in texts[0]
        for number, one in enumerate(chapter.exercises, 1):
            [text] = [text for text in texts if text.startswith(f"## {number}. ")]
            plural = "" if one.points == 1 else "s"
            assert text.startswith(f"## {number}. {one.title}\n")
            assert f"{one.stars} · {one.minutes} minutes · {one.points} point{plural}\n" in text

    def test_stubs_name_the_parameters_of_the_reference(self, source):
        code = "\n".join(cell.source for cell in nbformat.read(release_of(source), 4).cells)
        for one in chapter_of(source).exercises:
            if isinstance(one.asks, Module):
                stands_on, methods = re.search(
                    rf"class {one.answer}\(([\w.]+)\):(.*)", code, re.DOTALL
                ).groups()
                if isinstance(one.asks, Loaded):
                    assert named(methods, "load_torch") == ("self", "state")
                    continue
                if stands_on == "nn.Module":  # what is to be mended brings its own
                    assert named(methods, "__init__") == ("self", *signature(one.reference).parameters)
                assert named(methods, "forward") == tuple(signature(one.reference.forward).parameters)
            elif isinstance(one.asks, Scene | MeasuredScene):
                inside = code.partition(f"class {one.answer}")[2] if one.answer[0].isupper() else code
                function = "__init__" if one.answer[0].isupper() else one.answer
                own = ("self",) if function == "__init__" else ()
                assert named(inside, function) == (*own, *signature(one.reference).parameters)
            else:
                assert named(code, one.answer) == one.parameters

    def test_every_solution_passes(self, source, tmp_path):
        """The one place where a source notebook is executed: whole, with its cells that answer nothing."""
        notebook, results = run(source, tmp_path)
        assert {one.status for one in results.values()} == {"passed"}
        assert sum(one.points for one in results.values()) == chapter_of(source).points
        assert [cell.raised for cell in notebook.cells if cell.raised] == []
        printed = notebook.cells[-1].shown[-1]["text/plain"]
        assert f"{chapter_of(source).points} of {chapter_of(source).points} points" in printed

    def test_every_starter_fails_each_check(self, source, tmp_path):
        notebook, results = run(release_of(source), tmp_path)
        assert list(results) == [one.name for one in chapter_of(source).exercises]
        for one in results.values():
            assert (one.status, one.points) == ("not started", 0)
            assert one.message.startswith("Nothing is written here yet")
        raised = [cell.raised for cell in notebook.cells if cell.raised and "check(" in cell.source]
        assert raised == [("CheckFailed", f"{name}: not started") for name in results]

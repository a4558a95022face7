"""From source to release: no solution, no hidden test, no output gets out."""

from copy import deepcopy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from attention_course import cli
from attention_course.grading.release import ReleaseError, release, released, stale, write

STUB = "# YOUR CODE HERE\nraise NotImplementedError()"


def marked(cell, name="one", *, solution=False, grade=False):
    cell.metadata["nbgrader"] = {
        "grade": grade,
        "grade_id": name,
        "locked": grade,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    return cell


def solution(source, name="one"):
    return marked(new_code_cell(source), name, solution=True)


def graded(source, name="test"):
    return marked(new_code_cell(source), name, grade=True)


def sources(*cells):
    return [cell.source for cell in release(new_notebook(cells=list(cells))).cells]


FUNCTION = """def f(x):
    \"\"\"Twice.\"\"\"
    before = 1
    ### BEGIN SOLUTION
    y = 2 * x

    return y
    ### END SOLUTION
    after = 2"""


def test_a_region_becomes_the_stub_at_its_own_indent():
    [got] = sources(solution(FUNCTION))
    assert got == (
        'def f(x):\n    """Twice."""\n    before = 1\n'
        "    # YOUR CODE HERE\n    raise NotImplementedError()\n    after = 2"
    )


def test_two_regions_become_two_stubs():
    text = "### BEGIN SOLUTION\na = 1\n### END SOLUTION\nb = 2\n### BEGIN SOLUTION\nc = 3\n### END SOLUTION"
    assert sources(solution(text)) == [f"{STUB}\nb = 2\n{STUB}"]


def test_a_solution_cell_without_a_region_is_emptied():
    assert sources(solution("secret = 1")) == [STUB]
    text = marked(new_markdown_cell("The answer is 42."), solution=True)
    assert sources(text) == ["YOUR ANSWER HERE"]


def test_hidden_tests_are_removed():
    text = (
        "assert f(1) == 2\n### BEGIN HIDDEN TESTS\nassert f(2) == 4\n### END HIDDEN TESTS\nassert f(3) == 6"
    )
    assert sources(graded(text)) == ["assert f(1) == 2\nassert f(3) == 6"]


def test_outputs_and_counts_are_cleared():
    cell = new_code_cell("1", execution_count=3, outputs=[new_output("stream", text="1")])
    cell.metadata.update(collapsed=True, scrolled=True, execution={"iopub.status.busy": "1"}, tags=["kept"])
    notebook = new_notebook(cells=[cell], metadata={"celltoolbar": "x", "kept": 1})
    [got] = release(notebook).cells
    assert (got.outputs, got.execution_count, dict(got.metadata)) == ([], None, {"tags": ["kept"]})
    assert dict(release(notebook).metadata) == {"kept": 1}


def test_the_source_is_left_alone_and_a_release_releases_to_itself():
    notebook = new_notebook(cells=[solution(FUNCTION), graded("f(1)")])
    before = deepcopy(notebook)
    first = release(notebook)
    assert notebook == before
    assert [cell.id for cell in first.cells] == [cell.id for cell in before.cells]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("### BEGIN SOLUTION\nx", "without 'END SOLUTION' after it"),
        ("x\n### END SOLUTION", "without 'BEGIN SOLUTION' before it"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "still open"),
        ("### BEGIN SOLUTION\n### END SOLUTION\n### END SOLUTION", "without 'BEGIN SOLUTION' before"),
        ("### BEGIN SOLUTION\n### BEGIN HIDDEN TESTS\n### END SOLUTION\n### END HIDDEN TESTS", "before it"),
        ("### Begin solution\nx\n### End solution", "not quite a marker"),
        ("### BEGIN_SOLUTION\nx\n### END_SOLUTION", "not quite a marker"),
        ("#BEGIN  SOLUTION\nx", "not quite a marker"),
    ],
)
def test_markers_that_do_not_fit_are_an_error(source, words):
    with pytest.raises(ReleaseError, match=r"cell 1 \(one\).*" + words):
        sources(solution(source))


def test_regions_in_the_wrong_cell_are_an_error():
    with pytest.raises(ReleaseError, match="not marked as one"):
        sources(new_code_cell("### BEGIN SOLUTION\n### END SOLUTION"))
    with pytest.raises(ReleaseError, match="not graded"):
        sources(new_code_cell("### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS"))
    with pytest.raises(ReleaseError, match="'END HIDDEN TESTS' after it"):
        sources(graded("### BEGIN HIDDEN TESTS\nassert secret"))


def test_a_grade_id_used_twice_is_an_error():
    with pytest.raises(ReleaseError, match="'one' is used by two cells"):
        sources(solution(FUNCTION), graded("f(1)", "one"))


@pytest.mark.parametrize("marker", ["### BEGIN SOLUTION", "# BEGIN SOLUTION", "    #BEGIN SOLUTION # here"])
def test_it_is_what_nbgrader_makes(marker):
    preprocessors = pytest.importorskip("nbgrader.preprocessors", reason="pip install nbgrader to compare")
    cells = [
        new_markdown_cell("text"),
        solution(FUNCTION.replace("    ### BEGIN SOLUTION", marker)),
        solution("secret", "two"),
        marked(new_markdown_cell("secret"), "three", solution=True),
        graded("a\n### BEGIN HIDDEN TESTS\nb\n### END HIDDEN TESTS"),
    ]
    cells[1].outputs = [new_output("stream", text="secret")]
    notebook = new_notebook(cells=cells, metadata={"celltoolbar": "x"})
    theirs, resources = deepcopy(notebook), {}
    for name in ("ClearSolutions", "ClearOutput", "ClearHiddenTests"):
        theirs, resources = getattr(preprocessors, name)().preprocess(theirs, resources)
    assert release(notebook) == theirs


# On disk --------------------------------------------------------------------------------------


@pytest.fixture
def exercises(tmp_path):
    path = tmp_path / "source" / "one" / "one.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(new_notebook(cells=[solution(FUNCTION)]), path)
    return tmp_path


def call(exercises, *more):
    return cli.main(["release", "--exercises", str(exercises), *more])


def test_release_writes_what_check_wants(exercises, capsys):
    assert call(exercises, "--check") == 1
    assert "is missing" in capsys.readouterr().out
    assert not (exercises / "release").exists()
    assert call(exercises) == 0
    target = exercises / "release" / "one" / "one.ipynb"
    assert "2 * x" not in target.read_text() and "YOUR CODE HERE" in target.read_text()
    before = target.read_bytes()
    assert call(exercises, "--check") == 0 and call(exercises) == 0
    assert target.read_bytes() == before


@pytest.mark.parametrize("change", [b"", b"\xff\xfe", b"{}"])
def test_a_release_that_was_touched_is_found(exercises, change, capsys):
    [target] = write(exercises)
    target.write_bytes(change)
    assert call(exercises, "--check") == 1
    assert "differs from what its source releases" in capsys.readouterr().out


def test_a_source_that_moved_on_and_a_release_without_source_are_found(exercises):
    [target] = write(exercises)
    other = target.parent.parent / "old" / "old.ipynb"
    other.parent.mkdir()
    other.write_bytes(target.read_bytes())
    assert list(stale(exercises)) == [(other, "has no source")]
    [source] = (exercises / "source").glob("*/*.ipynb")
    notebook = nbformat.read(source, 4)
    notebook.cells[0].source += "\nmore = 1"
    nbformat.write(notebook, source)
    assert dict(stale(exercises))[target] == "differs from what its source releases"


def test_bad_sources_are_a_sentence_and_nothing_is_written(exercises, capsys):
    bad = exercises / "source" / "two" / "two.ipynb"
    bad.parent.mkdir()
    for text in ("", "{", "[]", '{"nbformat": 4}'):
        bad.write_text(text)
        assert call(exercises) == 2
        error = capsys.readouterr().err
        assert "two.ipynb is not a valid notebook" in error and "Traceback" not in error
    nbformat.write(new_notebook(cells=[solution("### BEGIN SOLUTION")]), bad)
    assert call(exercises) == 2
    assert "two.ipynb: cell 1 (one)" in capsys.readouterr().err
    assert not (exercises / "release").exists()


def test_no_sources_is_a_sentence(tmp_path, capsys):
    assert call(tmp_path) == 2
    assert "no source notebooks" in capsys.readouterr().err
    with pytest.raises(ReleaseError):
        released(tmp_path)

"""The book's notebooks as the build has executed them, and how it knows what to execute again."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))
sys.path.append(str(ROOT / "benchmarks"))

import claims_summary  # noqa: E402
import course_sphinx  # noqa: E402
import executed  # noqa: E402
import replicate  # noqa: E402

from attention_course.lab.page.claims import margin  # noqa: E402

PAGES = executed.pages()


def page_of(path):
    return path.stem


@pytest.fixture
def built():
    if not (ROOT / "_build" / "html" / "book" / "index.html").exists():
        reason = "the book is not built: run make book first"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


# The book ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=page_of)
def test_the_build_has_executed_this_page_and_nothing_in_it_failed(built, page):
    notebook = executed.executed(page)
    assert notebook is not None, "changed since it was executed: run make book"
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells if cell["source"].strip())
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [o["evalue"] for o in outputs if o["output_type"] == "error"] == []
    assert [o["text"] for o in outputs if o.get("name") == "stderr"] == []


def test_every_claim_held_on_this_run(built):
    statements = claims_summary.found(PAGES, execution=executed.executed)
    broken = [claims_summary.claim_line(page, claim) for page, claim in statements if not claim["held"]]
    assert broken == [], "came out otherwise on this machine"
    said = [(page.stem, claim["words"]) for page, claim in statements]
    assert len(said) > 100 and len(said) == len(set(said)), "a claim is known by its words"


def test_the_replications_are_those_of_the_claims_in_the_book(built):
    """A claim that was changed has to be replicated again: make replicate ONLY=..."""
    now = {
        (page.stem, claim["words"], claim["at_least"], claim["at_most"])
        for page, claim in claims_summary.found(PAGES, execution=executed.executed)
    }
    replicated = {
        (name, claim["words"], claim["at_least"], claim["at_most"])
        for name, notebook in replicate.known_results().items()
        for claim in notebook["claims"]
    }
    assert now == replicated
    assert {page for page, *_ in now} == {path.stem for path in replicate.notebooks([])}


def test_every_claim_is_sure_enough():
    for name, notebook in replicate.known_results().items():
        assert len(notebook["runs"]) >= 12, name
        assert [error for run in notebook["runs"] for error in run["errors"]] == [], name
        for claim in notebook["claims"]:
            sure = margin(claim["numbers"], claim["at_least"], claim["at_most"])
            assert sure >= replicate.ENOUGH, f"{name}: {claim['words']}"


# What is executed again ---------------------------------------------------------------------------


def notebook(*cells, outputs=(), **metadata):
    made = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for source in cells:
        made.cells.append(nbformat.v4.new_code_cell(source, metadata=metadata))
    return made


FILES = {
    "attention_course/__init__.py": "",
    "attention_course/masks.py": "import attention_course.base",
    "attention_course/base.py": "",
    "attention_course/checks/__init__.py": "",
    "attention_course/explorables/__init__.py": "",
    "attention_course/explorables/base.py": "from importlib.resources import files",
    "attention_course/explorables/parts/a.css": "",
    "benchmarks/results/a.txt": "1",
    "exercises/source/a.ipynb": "{}",
    "book/numbers.csv": "1",
    "book/other.md": "",
    "book/references.bib": "",
    "book/_ext/looks.py": "",
    "requirements.txt": "# torch\ntorch==2.0\nruff==1.0  # tidy",
}


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")
    return tmp_path


@pytest.mark.parametrize(
    ("cell", "change", "matters"),
    [
        ("from attention_course import masks", "attention_course/checks/__init__.py", False),
        ("from attention_course import masks", "attention_course/base.py", True),
        ("from attention_course import masks", "book/numbers.csv", True),
        ("from attention_course import masks", "book/other.md", False),
        ("from attention_course import masks", "book/references.bib", False),
        ("from attention_course import masks", "book/_ext/looks.py", False),
        ("from attention_course import masks", "benchmarks/results/a.txt", False),
        ("from attention_course.explorables import base", "attention_course/explorables/parts/a.css", True),
        ("x = Path('..') / 'benchmarks' / 'results'", "benchmarks/results/a.txt", True),
        ("x = Path('../exercises').resolve()", "exercises/source/a.ipynb", True),
        ("x = kept('../benchmarks/results/a.txt')", "benchmarks/results/a.txt", True),
        ("x = kept('../benchmarks/results/later.txt')", "benchmarks/results/later.txt", True),
        ("x = kept(f'../benchmarks/{kind}.txt')", "benchmarks/results/a.txt", True),
        ("x = kept('../benchmarks/results/a.txt')", "exercises/source/a.ipynb", False),
        ("x = open('numbers.csv')", "book/numbers.csv", True),
    ],
)
def test_a_page_is_executed_again_when_what_it_stands_on_has_changed(project, cell, change, matters):
    page = project / "book" / "page.ipynb"
    nbformat.write(notebook(cell), page)
    before = executed.cache_of(page, project)
    assert before == executed.cache_of(page, project)
    assert re.fullmatch(r"page-[0-9a-f]{16}", before.name)
    with open(project / change, "a", encoding="utf8") as file:
        file.write("\n# changed\n")
    assert (executed.cache_of(page, project) != before) is matters


@pytest.mark.parametrize(
    ("pins", "matters"),
    [
        ("# the same torch\ntorch==2.0\nruff==1.0", False),
        ("torch==2.0\nruff==1.1", False),
        ("torch==2.1\nruff==1.0", True),
        ("torch==2.0\nruff==1.0\nnumpy==2.0", True),
    ],
)
def test_a_page_is_executed_again_when_a_pin_that_it_may_feel_has_changed(project, pins, matters):
    page = project / "book" / "page.ipynb"
    nbformat.write(notebook("1 + 1"), page)
    before = executed.cache_of(page, project)
    (project / "requirements.txt").write_text(pins)
    assert (executed.cache_of(page, project) != before) is matters


def test_a_page_is_executed_again_when_its_seeds_move(project, monkeypatch):
    page = project / "book" / "page.ipynb"
    nbformat.write(notebook("1 + 1"), page)
    monkeypatch.delenv("ATTENTION_COURSE_SEED_OFFSET", raising=False)
    before = executed.cache_of(page, project)
    monkeypatch.setenv("ATTENTION_COURSE_SEED_OFFSET", "1000")
    assert executed.cache_of(page, project) != before


def test_old_caches_are_removed(project):
    page = project / "book" / "page.ipynb"
    nbformat.write(notebook("1 + 1"), page)
    keep = executed.cache_of(page, project)
    for name in (keep.name, "page-0123456789abcdef", "gone-0123456789abcdef"):
        (keep.parent / name).mkdir(parents=True)
    executed.remove_old_caches([keep], project)
    assert list(keep.parent.iterdir()) == [keep]


# nbval, on a faster path --------------------------------------------------------------------------


def keep(page, root, text, **error):
    """Leave an execution of ``page`` as the build does, with an output made up."""
    made = nbformat.read(page, 4)
    for count, cell in enumerate(made.cells, 1):
        cell.execution_count = count
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        if error:
            cell.outputs.append(nbformat.v4.new_output("error", traceback=["red"], **error))
    bundle = CacheBundleIn(made, str(page), data={"execution_seconds": 1.0})
    get_cache(executed.cache_of(page, root)).cache_notebook_bundle(bundle)


def test_nbval_compares_what_the_build_has_executed(project):
    """Nothing is executed but the page whose execution is missing: the outputs played back are made up."""
    pages = {name: project / "book" / f"{name}.ipynb" for name in ("right", "wrong", "raised", "missing")}
    for name, page in pages.items():
        made = notebook(f"print('{name}')", tags=["nbval-check-output"])
        made.cells[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text="made up\n")]
        made.cells[0].execution_count = 1
        nbformat.write(made, page)
    keep(pages["right"], project, "made up\n")
    keep(pages["wrong"], project, "something else\n")
    keep(pages["raised"], project, "made up\n", ename="ValueError", evalue="no")
    assert executed.executed(pages["right"], project)["cells"][0]["outputs"][0]["text"] == "made up\n"
    assert executed.executed(pages["missing"], project) is None
    options = "-q -rA -p from_build -p no:xdist -p no:cacheprovider --nbval-lax --nbval-current-env book"
    command = [sys.executable, "-m", "pytest", "--rootdir", str(project), *options.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    ).stdout
    verdicts = {
        page: verdict for verdict, page in re.findall(r"^(PASSED|FAILED) .*?(\w+)\.ipynb", done, re.M)
    }
    assert verdicts == {"right": "PASSED", "wrong": "FAILED", "raised": "FAILED", "missing": "FAILED"}, done
    report = done.partition("short test summary")[0]  # which says it again where CI=true
    assert report.count("Cell outputs differ") == 2, "the wrong one, and the one that was executed"
    assert report.count("Cell execution caused an exception") == 1


def test_a_page_that_is_saved_while_it_is_executed_is_read_again(project):
    page = project / "book" / "03_page.ipynb"
    nbformat.write(notebook("1 + 1"), page)
    settings = SimpleNamespace(copy=lambda execution_cache_path: settings)
    env = SimpleNamespace(
        found_docs={"book/03_page"}, doc2path=lambda name: str(page), mystnb_config=settings
    )
    app = SimpleNamespace(env=env, srcdir=project)

    def outdated():
        return course_sphinx.find_outdated(app, env, set(), set(), set())

    assert outdated() == ["book/03_page"]
    app.course_caches["book/03_page"].mkdir(parents=True)
    course_sphinx.choose_cache(app, "book/03_page", [])
    assert outdated() == []
    nbformat.write(notebook("1 + 1", "2 + 2"), page)  # as an editor does while the first cells run
    assert outdated() == ["book/03_page"]


def test_what_this_machine_shows_in_outputs_names_the_cache(project, monkeypatch):
    page = project / "book" / "03_page.ipynb"
    nbformat.write(notebook("1 + 1"), page)
    before = executed.cache_of(page, project)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert executed.cache_of(page, project) != before
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr(executed.lab("measure/machine"), "processor", lambda: "another")
    assert executed.cache_of(page, project) != before


# The sum of all claims ----------------------------------------------------------------------------


def claim(words, number, *, held, at_least=None, at_most=None):
    return {"words": words, "number": number, "at_least": at_least, "at_most": at_most, "held": held}


def test_claims_are_summed_up():
    first = Path("book/02_score_functions.ipynb"), claim("A is ahead", 0.91, at_least=0.9, held=True)
    second = Path("book/10_linear.ipynb"), claim("B is behind", 0.52, at_most=0.5, held=False)
    third = Path("book/alignment_lab.ipynb"), claim("C is found", None, at_least=0, at_most=1, held=False)
    assert claims_summary.summary([first, first]) == [
        "2 statements about training and timing were checked on this run; all held."
    ]
    assert claims_summary.summary([first, second, third]) == [
        "2 of 3 statements about training and timing came out otherwise on this machine: "
        "chapter 10, the page alignment lab.",
        "  chapter 10: B is behind: 0.52, not at most 0.5",
        "  the page alignment lab: C is found: no finite number, not at least 0 and at most 1",
    ]


@pytest.mark.parametrize(("number", "environment", "code"), [
    (0.95, {"ATTENTION_COURSE_CLAIMS": "strict"}, 0),
    (0.85, {"ATTENTION_COURSE_CLAIMS": "report"}, 0),
    (0.85, {"ATTENTION_COURSE_CLAIMS": "strict"}, 1),
    (0.85, {"CI": "true"}, 1),
    (0.85, {}, 0),
])  # fmt: skip
def test_a_broken_claim_is_an_error_only_where_claims_are_strict(
    project, monkeypatch, capsys, number, environment, code
):
    page = project / "book" / "03_page.ipynb"
    nbformat.write(notebook("claims()"), page)
    made = nbformat.read(page, 4)
    carried = [claim("D is so", number, at_least=0.9, held=number >= 0.9)]
    made.cells[0].outputs = [
        nbformat.v4.new_output("display_data", {executed.lab("page/claims").MIME: carried})
    ]
    get_cache(executed.cache_of(page, project)).cache_notebook_bundle(
        CacheBundleIn(made, str(page)), check_validity=False
    )
    for name in ("ATTENTION_COURSE_CLAIMS", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    just_executed = executed.just_executed
    pages = [page]
    monkeypatch.setattr(executed, "pages", lambda: pages)
    monkeypatch.setattr(executed, "just_executed", lambda page: just_executed(page, project))
    assert claims_summary.main() == code
    assert ("chapter 3: D is so: 0.85, not at least 0.9" in capsys.readouterr().out) is (number < 0.9)

    pages.append(project / "book" / "04_gone.ipynb")  # nothing says that what it claims has held
    assert claims_summary.main() == int("strict" in environment.values() or "CI" in environment)
    assert "Not looked at: chapter 4." in capsys.readouterr().out


def test_no_page_is_read_as_something_that_is_no_python():
    """Such a cell stands on everything, and would be executed after every change."""
    closure = executed.lab("train/closure")
    for page in PAGES:
        closure._facts(tuple(executed.code_cells(page)))

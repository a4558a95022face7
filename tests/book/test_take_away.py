"""A page's take-away: one file from its tagged cells, which runs where there is torch and no course."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urljoin

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "book" / "_ext"
HTML = ROOT / "_build" / "html"
sys.path.append(str(EXTENSIONS))

import plain_copies  # noqa: E402
from take_away import FOLDER, TAG, tagged, take_away  # noqa: E402

NOTEBOOKS = sorted((ROOT / "book").glob("*.ipynb"))
PAGES = [page for page in NOTEBOOKS if any(tagged(json.loads(page.read_text(encoding="utf8"))))]
each_page = pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])

#: runs a file in a process that finds no module of the course, wherever it is installed
ALONE = """
import runpy, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "attention_course":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
runpy.run_path(sys.argv[1], run_name="__main__")
"""
LINK = re.compile(
    r'<p class="take-away">.*?<a class="[^"]*" download="" href="([^"]+)">([^<]+)</a>', re.DOTALL
)

ATTEND = """\
import torch


def attend(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return scores.softmax(-1) @ value"""
TRY = "assert attend(*torch.ones(3, 2, 4)).shape == (2, 4)"


def code(source: str, *tags: str, name: str = "") -> dict:
    return {
        "cell_type": "code", "id": name, "metadata": {"tags": list(tags)},
        "execution_count": None, "outputs": [], "source": source.splitlines(keepends=True),
    }  # fmt: skip


def prose(source: str, *tags: str) -> dict:
    return {"cell_type": "markdown", "id": "", "metadata": {"tags": list(tags)}, "source": source}


def page_of(root: Path, *cells: dict, name: str = "01_small") -> Path:
    """Write a notebook into a book that has what a file's header says: an address and a licence."""
    (root / "book").mkdir(exist_ok=True)
    for file in ("LICENSE", "_config.yml"):
        (root / file).write_bytes((ROOT / file).read_bytes())
    path = root / "book" / f"{name}.ipynb"
    for number, cell in enumerate(cells):
        cell["id"] = cell["id"] or f"cell-{number}"
    metadata = {"language_info": {"name": "python"}}
    content = {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content), encoding="utf8")
    return path


def run_alone(text: str, folder: Path, *, runner: str = ALONE) -> subprocess.CompletedProcess:
    """Run a file in an empty folder, by an interpreter that looks into no other and into no variable."""
    (folder / "taken.py").write_text(text, encoding="utf8")
    return subprocess.run(
        [sys.executable, "-I", "-c", runner, "taken.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def lines_of_code(text: str) -> int:
    """Count the lines that hold more than a comment or a docstring."""
    tree = ast.parse(text)
    words = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(text.splitlines(), 1)
    return sum(line not in words and bool(re.match(r"\s*[^#\s]", written)) for line, written in lines)


# The function -----------------------------------------------------------------------------------------


def test_a_page_without_the_tag_has_none(tmp_path):
    page = page_of(
        tmp_path, prose("# 1. Small", TAG), code("%matplotlib inline", "hide-input"), code("1 + 1")
    )
    assert take_away(page, tmp_path) is None


def test_tagged_cells_stand_in_order_below_page_and_licence(tmp_path):
    page = page_of(
        tmp_path,
        code("%pip install nothing", "hide-input"),
        prose("Words.\n\n# 1. Small"),
        code(ATTEND, TAG),
        code("import attention_course"),
        code(TRY + "\n", "keep_output", TAG),
    )
    head, _, body = take_away(page, tmp_path).partition("\n\n")
    assert body == f"{ATTEND}\n\n\n{TRY}\n"
    assert all(line.startswith("# ") for line in head.splitlines())
    first, second, third = head.splitlines()
    config = plain_copies.repository(tmp_path)
    assert first == f'# From the page "1. Small": {config["url"]}/blob/{config["branch"]}/book/01_small.ipynb'
    assert second == (
        f"# Copyright (c) 2026 the attention-course authors. Licence: MIT, {config['url']}/blob/main/LICENSE"
    )
    assert third == "# Needs Python and torch, nothing else."


def test_code_cells_are_under_the_licence_that_the_file_names():
    text = (ROOT / "LICENSE").read_text(encoding="utf8")
    assert text.startswith("Copyright (c) 2026 the attention-course authors\n")
    mit = text[text.index("1. Code: MIT") : text.index("2. Text and figures")]
    assert "the code cells of\nthe notebooks" in mit


@pytest.mark.parametrize(
    ("source", "tags", "why"),
    [
        ("%time 1 + 1", (), r"is no plain Python \(a magic\?\): %time 1 \+ 1"),
        ("x = 1\n!ls", (), r"no plain Python .*: !ls"),
        ("%%bash\nls", (), r"no plain Python .*: %%bash"),
        ("await later()", (), "no plain Python"),
        ("import attention_course", (), "imports attention_course: torch alone"),
        ("from attention_course.masks import causal", (), "imports attention_course"),
        ("def f():\n    import attention_course.heads as heads", (), "imports attention_course"),
        ("from . import heads", (), r"imports \.: torch alone"),
        ("import math, numpy as np", (), "imports numpy"),
        ("import torch", ("hide-input",), "is tagged hide-input: a take-away is there to be read"),
    ],
)
def test_a_cell_that_could_not_stand_alone_is_refused(tmp_path, source, tags, why):
    page = page_of(tmp_path, code(ATTEND, TAG), code(source, TAG, *tags, name="this-one"))
    with pytest.raises(ValueError, match=rf"^01_small\.ipynb: the take-away's cell this-one .*{why}"):
        take_away(page, tmp_path)


def test_torch_and_what_comes_with_python_are_allowed(tmp_path):
    source = (
        "import math\nfrom dataclasses import field\n\nimport torch.nn.functional as F\nfrom torch import nn"
    )
    assert source in take_away(page_of(tmp_path, code(source, TAG)), tmp_path)


def test_a_percent_sign_alone_is_no_magic(tmp_path):
    source = "x = (7\n% 4)\nassert x == 3"
    assert source in take_away(page_of(tmp_path, code(source, TAG)), tmp_path)


def test_the_plain_copy_has_the_cells_and_promises_no_file(tmp_path):
    page = page_of(tmp_path, prose("# 1. Small"), code(ATTEND, TAG), code(TRY, TAG))
    copy = plain_copies.copy(page, tmp_path)
    assert [cell["source"] for cell in json.loads(copy)["cells"]] == [
        text.splitlines(keepends=True) for text in ("# 1. Small", ATTEND, TRY)
    ]
    assert FOLDER not in copy


# How the files are run --------------------------------------------------------------------------------


def test_the_course_cannot_be_imported_where_the_files_run(tmp_path):
    ways = (
        "import attention_course",
        "__import__('importlib').import_module('attention_course.masks')",
    )
    for source in ways:
        done = run_alone(source, tmp_path)
        assert done.returncode != 0
        assert done.stderr.rstrip().endswith("ModuleNotFoundError: No module named 'attention_course'")
    # only because it is kept away: without that, the same process finds it
    freely = ALONE.replace("sys.meta_path.insert(0, Nowhere())", "")
    assert freely != ALONE
    done = run_alone("import attention_course; print('found')", tmp_path, runner=freely)
    assert done.stdout == "found\n", done.stderr


def test_an_assertion_that_fails_is_noticed(tmp_path):
    done = run_alone("assert 1 + 1 == 3", tmp_path)
    assert done.returncode != 0 and "AssertionError" in done.stderr


def test_lines_of_code_are_neither_comments_nor_docstrings():
    text = (
        '# a comment\n\ndef f(x):\n    """Words.\n\n    More words.\n    """\n    # why\n    return x  # it\n'
    )
    assert lines_of_code(text) == 2


# The pages --------------------------------------------------------------------------------------------


@each_page
def test_it_is_long_enough_to_be_worth_taking_and_checks_itself(page):
    text = take_away(page)
    assert lines_of_code(text) >= 15
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text)))


@each_page
def test_it_runs_in_an_empty_folder_without_the_course(page, tmp_path):
    done = run_alone(take_away(page), tmp_path)
    assert done.returncode == 0, done.stderr
    # what the page keeps as exact output, the file prints, too
    for cell in tagged(json.loads(page.read_text(encoding="utf8"))):
        for output in cell["outputs"]:
            assert "".join(output.get("text", ())) in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["taken.py"], "it leaves files behind"


@each_page
def test_the_built_page_offers_the_file(page):
    built = HTML / "book" / f"{page.stem}.html"
    if not built.exists():
        reason = "the book is not built: run make book first"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    links = LINK.findall(built.read_text(encoding="utf8"))
    assert [name for _, name in links] == [f"{page.stem}.py"]
    assert (built.parent / links[0][0]).read_text(encoding="utf8") == take_away(page)


# A small book, built ----------------------------------------------------------------------------------


def build(root: Path) -> subprocess.CompletedProcess:
    """Build the notebooks below ``root`` with Sphinx, strictly, executing nothing."""
    settings = (
        f"import sys; sys.path.append({str(EXTENSIONS)!r})",
        "extensions = ['myst_nb', 'take_away']",
        "exclude_patterns, nb_execution_mode = ['out', 'jupyter_execute'], 'off'",
    )
    (root / "conf.py").write_text("\n".join(settings), encoding="utf8")
    pages = "\n".join(f"book/{path.stem}" for path in sorted((root / "book").glob("*.ipynb")))
    (root / "index.md").write_text(f"# Start\n\n```{{toctree}}\n{pages}\n```\n", encoding="utf8")
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-n", "-q", str(root), str(root / "out")],
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def small_book(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("small")
    page_of(root, prose("# 2. None"), code("1 + 1"), name="02_none")
    cells = [
        prose("# 1. Small"),
        code("import attention_course"),
        code(ATTEND, TAG),
        prose("Try."),
        code(TRY, TAG),
    ]
    page_of(root, *cells)
    done = build(root)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return root


def test_the_build_writes_the_file_and_links_to_it_above_the_first_cell(small_book):
    out = small_book / "out"
    text = (out / "book" / "01_small.html").read_text(encoding="utf8")
    assert LINK.findall(text) == [(f"../{FOLDER}/01_small.py", "01_small.py")]
    assert text.index("import</span>") < text.index('<p class="take-away">') < text.index("attend")
    assert text.count(f'class="cell tag_{TAG} ') == 2
    assert [path.name for path in (out / FOLDER).iterdir()] == ["01_small.py"]
    written = (out / FOLDER / "01_small.py").read_text(encoding="utf8")
    assert written == take_away(small_book / "book" / "01_small.ipynb", small_book)
    assert TAG not in (out / "book" / "02_none.html").read_text(encoding="utf8")


def test_the_link_is_reached_by_keyboard(small_book, chromium):
    page = chromium.new_page()
    page.goto((small_book / "out" / "book" / "01_small.html").as_uri())
    link = page.locator("p.take-away a")
    for _ in range(40):
        page.keyboard.press("Tab")
        if link.evaluate("a => a === document.activeElement"):
            break
    else:
        pytest.fail("forty presses of Tab did not reach the link")
    # a browser either opens the file or keeps it: both end at its address
    assert link.evaluate("a => a.href") == urljoin(page.url, f"../{FOLDER}/01_small.py")
    page.close()


def test_a_file_that_no_page_offers_any_more_is_removed_and_a_wrong_cell_ends_the_build(tmp_path):
    page_of(tmp_path, prose("# 1. Small"), code(ATTEND, TAG))
    assert build(tmp_path).returncode == 0
    file = tmp_path / "out" / FOLDER / "01_small.py"
    assert file.exists()
    page_of(tmp_path, prose("# 1. Small"), code("%time 1", TAG, name="this-one"))
    done = build(tmp_path)
    assert done.returncode != 0 and "01_small.ipynb: the take-away's cell this-one" in done.stderr
    page_of(tmp_path, prose("# 1. Small"), code(ATTEND))
    assert build(tmp_path).returncode == 0
    assert not file.exists()

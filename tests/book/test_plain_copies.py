"""Copies of the notebooks for readers that know no MyST: nothing raw, nothing lost, no link to nowhere."""

import json
import re
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

import plain_copies  # noqa: E402

COPIES = plain_copies.copies()
#: what a plain renderer would show as it is
RAW = {
    "a role": r"\{[a-z:]+\}`",
    "a directive": r"^(:{3,}|`{3,}\{)",
    "an option": r"^:\w+:",
    "a label": r"^\([\w-]+\)=|\$\$ \([\w-]+\)$",
}
each_copy = pytest.mark.parametrize("name", COPIES)


def cells(name, kind):
    return [cell for cell in json.loads(COPIES[name])["cells"] if cell["cell_type"] == kind]


def prose(name):
    """The Markdown of a copy without what stands in it as code."""
    text = "\n\n".join("".join(cell["source"]) for cell in cells(name, "markdown"))
    return re.sub(r"^```.*?^```$|`[^`\n]+`", lambda code: "`code`", text, flags=re.MULTILINE | re.DOTALL)


def test_every_chapter_and_every_released_exercise_has_one():
    chapters = {f"book/{path.name}" for path in (ROOT / "book").glob("*.ipynb")}
    exercises = {name for name in COPIES if name.startswith("exercises/release/")}
    folders = {path.name for path in (ROOT / "exercises" / "release").iterdir()}
    assert len(chapters) > len(folders) > 10
    assert exercises == {f"exercises/release/{name}/{name}.ipynb" for name in folders}
    assert set(COPIES) == chapters | exercises


@each_copy
def test_it_is_a_notebook_with_the_same_cells(name):
    nbformat.validate(nbformat.reads(COPIES[name], as_version=4))
    source = nbformat.read(ROOT / name, as_version=4)
    copy = nbformat.reads(COPIES[name], as_version=4)
    assert [cell.id for cell in copy.cells] == [cell.id for cell in source.cells]
    for mine, theirs in zip(copy.cells, source.cells, strict=True):
        if theirs.cell_type == "code":
            assert re.sub(r"\A# @title .*\n", "", mine.source) == theirs.source


@each_copy
def test_nothing_is_shown_raw(name):
    text = prose(name)
    found = {what: re.findall(pattern, text, re.MULTILINE) for what, pattern in RAW.items()}
    assert not any(found.values()), found


@each_copy
def test_every_link_is_absolute(name):
    links = re.findall(r"\]\(([^)]*)\)", prose(name))
    assert all(link.startswith(("https://", "http://", "#")) for link in links), links


@each_copy
def test_what_is_folded_folds_in_colab_and_in_jupyter(name):
    for cell in cells(name, "code"):
        if plain_copies.FOLDED & set(cell["metadata"].get("tags", ())):
            assert cell["metadata"]["cellView"] == "form"
            assert cell["metadata"]["jupyter"]["source_hidden"]
            assert "".join(cell["source"]).startswith(("# @title ", "%%"))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("See {cite:t}`vaswani2017`.", "See [Vaswani et al. (2017)](https://arxiv.org/abs/1706.03762)."),
        ("({cite:t}`xiong2020`, x)", "([Xiong et al. (2020)](https://arxiv.org/abs/2002.04745), x)"),
        ("A {term}`query`", "A [query](URL/blob/main/book/glossary.md)"),
        ("{term}`queries <query>`", "[queries](URL/blob/main/book/glossary.md)"),
        ("as {eq}`eq-a` says", "as (7) says"),
        ("$$\nx\n$$ (eq-a)", "$$\nx\n\\tag{7} $$"),
        ("[m](05_masks.ipynb#top)", "[m](URL/blob/BRANCH/book/05_masks.ipynb)"),
        ("[n](notation.md#masks)", "[n](URL/blob/main/book/notation.md#masks)"),
        ("[b](benchmarks)", "[b](URL/blob/BRANCH/book/benchmarks.ipynb)"),
        ("`{cite:t}` and `[a](b)`", "`{cite:t}` and `[a](b)`"),
        (":::{exercise} 3.1 Why?\n:label: ex\n:nonumber:\n\nSay.\n:::", "### Exercise 3.1 Why?\n\nSay.\n"),
    ],
)
def test_each_kind_of_markup(text, want):
    config = plain_copies.repository(ROOT)
    want = want.replace("URL", config["url"]).replace("BRANCH", config["branch"])
    page = ROOT / "book" / "03_scaled_dot_product.ipynb"
    assert plain_copies.plain(text, page, ROOT, {"eq-a": "7"}) == want


def test_two_papers_stand_in_one_pair_of_brackets():
    page = ROOT / "book" / "03_scaled_dot_product.ipynb"
    text = plain_copies.plain("x {cite:p}`ba2016,bahdanau2015`", page, ROOT, {})
    assert re.fullmatch(r"x \(\[Ba et al\. 2016\]\(\S+\); \[Bahdanau et al\. 2015\]\(\S+\)\)", text)


@pytest.mark.parametrize("text", ["[x](nowhere.ipynb)", "{cite:t}`nobody1999`", "{unknown}`x`"])
def test_what_leads_nowhere_is_refused(text):
    with pytest.raises((ValueError, KeyError), match=r"nowhere|nobody1999|unknown"):
        plain_copies.plain(text, ROOT / "book" / "03_scaled_dot_product.ipynb", ROOT, {})

"""The glossary: letters to jump to, and the first chapter that links to each term."""

import html
import re
import sys
from pathlib import Path

import pytest
import yaml
from sphinx.testing.util import SphinxTestApp

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "book" / "_ext"
sys.path.append(str(EXTENSIONS))

PAGES = {
    "index": "# Start\n\n```{toctree}\nb\na\nglossary\n```\n\nAn {term}`edge` comes before all chapters.\n",
    "b": "# 1. First\n\nA {term}`weight` and {term}`keys <key>`.\n",
    "a": "# 2b. Second\n\nA {term}`Key`, an {term}`Edge`.\n",
    "glossary": "# Glossary\n\n{.glossary}\nedge\n: From one to another.\n\nkey\n: What is found.\n\n"
    "kernel\n: Nobody links here.\n\nweight\n: A share.\n",
}


@pytest.fixture
def book(tmp_path):
    """A book of three pages and a glossary, and a way to build it again."""
    (tmp_path / "conf.py").write_text(
        "extensions = ['myst_parser', 'glossary_letters']\n"
        "myst_enable_extensions = ['attrs_block', 'deflist']\n"
    )
    for name, text in PAGES.items():
        (tmp_path / f"{name}.md").write_text(text)

    def build() -> str:
        app = SphinxTestApp(srcdir=tmp_path, freshenv=False)
        app.build()
        assert app.warning.getvalue() == ""
        app.cleanup()
        return (app.outdir / "glossary.html").read_text(encoding="utf8")

    build.folder = tmp_path
    return build


def entries(page: str) -> dict[str, str]:
    """Each term with its definition's text."""
    found = re.findall(r'<dt id="[^"]*">(.*?)</dt>\s*<dd>(.*?)</dd>', page, re.DOTALL)
    return {bare(term).strip("¶# "): " ".join(bare(text).split()) for term, text in found}


def bare(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def test_each_term_names_the_first_chapter_in_the_order_of_the_contents(book):
    said = entries(book())
    assert said["weight"].endswith("First met in chapter 1.")
    assert said["key"].endswith("First met in chapter 1.")  # by the contents; in any case
    assert said["edge"].endswith("First met in chapter 2b.")  # the start page is no chapter
    assert said["kernel"] == "Nobody links here."


def test_it_is_written_again_when_another_page_changes(book):
    book()
    (book.folder / "b.md").write_text(PAGES["b"].replace("{term}`weight`", "{term}`kernel`"))
    said = entries(book())
    assert said["kernel"].endswith("First met in chapter 1.")
    assert said["weight"] == "A share."


def test_letters_lead_to_the_first_term_of_each(book):
    page = book()
    (line,) = re.findall(r'<p class="letters">(.*?)</p>', page, re.DOTALL)
    assert re.findall(r'href="#([^"]+)">(\w)<', line) == [
        ("term-edge", "E"), ("term-key", "K"), ("term-weight", "W"),
    ]  # fmt: skip
    assert all(f'id="{place}"' in page for place in ("term-edge", "term-key", "term-weight"))


def test_the_book_uses_it():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
    assert "glossary_letters" in config["sphinx"]["local_extensions"]

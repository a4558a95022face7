"""The pages that the build itself fills: the API reference, and the seconds of each page."""

import html
import importlib
import inspect
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from attention_course.lab.measure import machine

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))

import executed  # noqa: E402

HTML = ROOT / "_build" / "html" / "book"
#: modules of the package whose every public name is on the page; the others are named on it one by one
MODULES = re.findall(
    r"automodule:: (attention_course(?:\.\w+)+)\n   :members:\n",
    (ROOT / "book" / "api.md").read_text(encoding="utf8"),
)


@pytest.fixture(autouse=True)
def built():
    if not (HTML / "api.html").exists():
        reason = "the book is not built: run make book first"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def public(module: str) -> dict[str, object]:
    """Every function and class that ``module`` defines for others."""
    content = vars(importlib.import_module(module))
    return {
        f"{module}.{name}": thing
        for name, thing in content.items()
        if not name.startswith("_")
        and (inspect.isclass(thing) or inspect.isfunction(thing))
        and thing.__module__ == module
    }


def test_the_reference_covers_the_taught_modules():
    taught = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for room in ("", "beyond", "inside", "transformer")
        for path in (ROOT / "attention_course" / room).glob("*.py")
        if path.stem not in {"__init__", "cli", "inputs", "palette"}  # nobody calls these
    }
    assert {module for module in MODULES if "kernels" not in module} == taught


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented(module):
    page = (HTML / "api.html").read_text(encoding="utf8")
    lacking = [name for name in public(module) if f'id="{name}"' not in page]
    assert lacking == [], "no docstring, or not on the page"


def test_signatures_carry_their_shapes():
    page = (HTML / "api.html").read_text(encoding="utf8")
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page)).replace("&#39;", "'")
    assert "query: Float[Tensor, '... T_q d_q']" in words, "a short name was not written out"
    assert "(*args" not in words, "a class shows the arguments of torch's, which has none"
    assert "jaxtyping.Float" not in words
    assert "Define the computation performed at every call" not in words, "torch's docstring, not ours"


class Rows(HTMLParser):
    """The rows of a page's tables, as lists of text."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag):
        if tag in {"td", "th"}:
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data.strip()


def test_the_table_of_seconds_holds_every_page_that_runs_and_its_sum():
    parser = Rows()
    parser.feed((HTML / "timings.html").read_text(encoding="utf8"))
    head, *pages, total = parser.rows
    assert head == ["Page", "Seconds"]
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    listed = list(executed.listed(contents))
    assert len(pages) == len([name for name in listed if (ROOT / f"{name}.ipynb").exists()])
    numbers = [row[0].partition(".")[0] for row in pages]
    chapters = [name for name in listed if re.match(r"book/\d\d_", name)]
    wanted = [str(number) for number in range(1, len(chapters) + 1)]
    assert [one for one in numbers if one.isdigit()] == wanted, "not in order"
    assert total[0] == "All together"
    # each is rounded by itself
    assert abs(sum(float(row[1]) for row in pages) - float(total[1])) <= 0.5 * len(pages) + 1


def test_the_table_of_seconds_says_on_which_machine_and_which_page_was_the_longest():
    page = (HTML / "timings.html").read_text(encoding="utf8")
    parser = Rows()
    parser.feed(page)
    longest = max(float(seconds) for _, seconds in parser.rows[1:-1])
    assert f"The longest page took {longest:.0f} s" in page
    assert machine.processor() in html.unescape(page)

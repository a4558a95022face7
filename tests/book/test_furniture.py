"""What every page has around its text: folds that say what they hold, captions in place, boxes to act in."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docutils import nodes
from docutils.utils import new_document

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "book" / "_ext"
STATIC = ROOT / "book" / "_static"
sys.path.append(str(EXTENSIONS))

from furniture import asks, caption, furnish, label  # noqa: E402

FIGURE = '<style>.a { color: red }</style><figure class="ac-figure"><svg></svg></figure>'
CLAIMS = '<details class="claims"><summary>✓ 1 statement checked on this run</summary></details>'


# Small documents --------------------------------------------------------------------------------------


def bold(words: str, rest: str = " More.") -> nodes.paragraph:
    """A paragraph as myst makes it: with an empty text in front of what is bold."""
    return nodes.paragraph("", "", nodes.Text(""), nodes.strong(text=words), nodes.Text(rest))


def cell(
    source: str = "1 + 1", *outputs: nodes.Node, mode: str = "input", ran: bool = True
) -> nodes.container:
    part = nodes.container(nb_element="cell_code_source")
    part += nodes.literal_block(source, source)
    made = nodes.container(nb_element="cell_code", prompt_show="Show", prompt_hide="Hide")
    made += part
    if mode:
        made["hide_mode"] = mode
    if ran:
        made["exec_count"] = 1
    if outputs:
        made += nodes.container("", *outputs, nb_element="cell_code_output")
    return made


def shown(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html", classes=["output", "text_html"])


def table() -> nodes.table:
    return nodes.table("", nodes.tgroup("", nodes.tbody(), cols=1))


def furnished(*children: nodes.Node) -> nodes.document:
    document = new_document("page")
    document += nodes.section("", cell("import torch"), *children)
    furnish(document)
    return document


def prompts(document: nodes.document) -> list[str]:
    """What the folded cells say, but the first, which is always the set-up."""
    return [node["prompt_show"] for node in document.findall(nodes.container) if "hide_mode" in node][1:]


def markup(document: nodes.document) -> str:
    return "".join(node.astext() for node in document.findall(nodes.raw))


# Labels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, about, closed, opened",
    [
        ("import torch", {"first": True}, "Set-up and imports", "Hide set-up and imports"),
        ("x = 1\nassert x", {"first": True}, "Set-up and imports", "Hide set-up and imports"),
        (
            "plot()",
            {"first": True, "output": True, "shows": "Figure 3.1"},
            "Set-up, imports and the code for Figure 3.1",
            "Hide set-up, imports and the code for Figure 3.1",
        ),
        (
            "assert plot()",
            {"output": True, "shows": "Figure 3.2"},
            "Code for Figure 3.2",
            "Hide the code for Figure 3.2",
        ),
        ("x = 1\nassert x", {}, "✓ checked", "Hide the code"),
        ("with a:\n    assert x", {}, "✓ checked", "Hide the code"),
        ("assert x", {"ran": False}, "Helper code", "Hide helper code"),
        ("assert x", {"output": True}, "Show the code", "Hide the code"),
        ("print(1)", {"output": True, "whole": True}, "Show the code and its output", None),
        ("def f():\n    reassert = 1", {}, "Helper code", "Hide helper code"),
        ("from math import pi", {}, "Imports", "Hide imports"),
    ],
)
def test_a_fold_says_what_is_in_it(source, about, closed, opened):
    assert label(source, **about) == (closed, opened or f"Hide {closed[5:]}")


def test_captions_are_paragraphs_that_begin_with_a_bold_number():
    assert caption(bold("Figure 3.2."))["name"] == "Figure 3.2"
    assert caption(bold("Table 12.10."))["kind"] == "Table"
    assert caption(bold("Figure G.1."))["name"] == "Figure G.1"
    plain = nodes.paragraph("", "Figure 3.2. More.")
    late = nodes.paragraph("", "", nodes.Text("See "), nodes.strong(text="Figure 3.2."))
    others = [
        plain,
        late,
        bold("Figure 3."),
        bold("Figures."),
        bold("Figure 3.2 shows"),
        nodes.paragraph(),
        None,
    ]
    assert [caption(other) for other in others] == [None] * len(others)


def test_a_box_asks_for_a_prediction_by_its_bold_word():
    assert asks(nodes.block_quote("", bold("Predict."), nodes.bullet_list()))
    others = (bold("Usual mistakes."), bold("Predicted."), nodes.paragraph("", "Predict. This."))
    assert not any(asks(nodes.block_quote("", other)) for other in others)
    assert not asks(nodes.block_quote())


# Captions ---------------------------------------------------------------------------------------------


def test_a_caption_goes_into_the_figure_above_it():
    document = furnished(cell("plot()", shown(FIGURE)), bold("Figure 3.2."))
    assert prompts(document) == ["Code for Figure 3.2"]
    output = document[0][1][-1]
    assert [type(node) for node in output] == [nodes.raw, nodes.paragraph, nodes.raw]
    assert output[0].astext() == (
        '<div class="output text_html"><style>.a { color: red }</style><figure class="ac-figure">'
        '<div class="picture"><svg></svg></div><figcaption id="figure-3-2">'
    )
    assert not output[0]["classes"]  # they are written, and may not be written around a half
    assert output[2].astext() == "</figcaption></figure></div>"


def test_a_caption_passes_folded_cells_that_show_nothing_but_no_other():
    passed = (cell("assert 1"), cell("claims()", shown(CLAIMS)), cell("x", shown("<p>x</p>"), mode="all"))
    for between in passed:
        document = furnished(cell("plot()", shown(FIGURE)), between, bold("Figure 3.2."))
        assert prompts(document)[0] == "Code for Figure 3.2"
        assert "<figcaption" in markup(document)
    stops = (cell("open", mode=""), cell("print(1)", shown("<p>1</p>")), nodes.paragraph("", "Text."))
    for between in stops:
        document = furnished(cell("plot()", shown(FIGURE)), between, bold("Figure 3.2."))
        assert prompts(document)[0] == "Show the code"
        assert "<figcaption" not in markup(document)


@pytest.mark.parametrize(
    "html",
    [
        '<div id="moves"><template><figure></figure></template></div>',
        f"<div>{FIGURE}{FIGURE}</div>",
        FIGURE * 2,
        FIGURE.replace("<svg>", "<figcaption>Sound</figcaption><svg>"),
    ],
)
def test_what_is_not_one_figure_keeps_its_caption_below(html):
    document = furnished(cell("plot()", shown(html)), bold("Figure 3.2."))
    assert prompts(document) == ["Code for Figure 3.2"]
    assert markup(document) == html
    assert document[0][-1]["classes"] == ["caption"]


def test_of_several_outputs_the_last_figure_gets_the_caption():
    later = FIGURE.replace("ac-figure", "later")
    document = furnished(cell("plot()", shown(FIGURE), shown(later), shown("<p>1</p>")), bold("Figure 3.2."))
    assert markup(document).startswith(FIGURE)
    assert '<div class="picture"><svg></svg></div><figcaption id="figure-3-2">' in markup(document)


def test_a_table_has_its_title_whether_it_stands_above_or_below():
    for children in (
        [cell("table()", table()), bold("Table 3.1.")],
        [bold("Table 3.1."), cell("table()", table())],
        [cell("table()", table()), cell("claims()", shown(CLAIMS)), bold("Table 3.1.")],
    ):
        document = furnished(*children)
        [found] = document.findall(nodes.table)
        assert isinstance(found[0], nodes.title) and found[0].astext() == "Table 3.1. More."
        assert found["ids"] == ["table-3-1"]
        assert "Code for Table 3.1" in prompts(document)
        assert not [node for node in document.findall(nodes.paragraph) if caption(node)]
    for children in ([table(), bold("Table 3.1.")], [bold("Table 3.1."), table()]):
        [found] = furnished(*children).findall(nodes.table)
        assert found[0].astext() == "Table 3.1. More."


def test_each_of_two_tables_gets_its_own_title():
    one, other = cell("a", table()), cell("b", table())
    for children in (
        [one, bold("Table 3.1."), other, bold("Table 3.2.")],
        [bold("Table 3.1."), one, bold("Table 3.2."), other],
    ):
        titles = [
            node[0].astext()[:9] for node in furnished(*(c.deepcopy() for c in children)).findall(nodes.table)
        ]
        assert titles == ["Table 3.1", "Table 3.2"]


def test_two_tables_of_one_cell_keep_a_caption_below():
    document = furnished(cell("both()", table(), table()), bold("Table 3.1."))
    assert document[0][-1]["classes"] == ["caption"]
    assert not list(document.findall(nodes.title))


# A small page, built and looked at --------------------------------------------------------------------

QUESTION = """\
# 1. Small

> **Predict.** Which is it?
>
> - The *first*, $x$.
> - The second.

<details>
<summary>Answer</summary>

The second.

</details>

> **Predict.** And without options?

<details><summary>Answer</summary>

Only this.

</details>

> **Predict.** And without an answer?
>
> - One.
"""


@pytest.fixture(scope="module")
def page_path(tmp_path_factory) -> Path:
    """A page that Sphinx has built strictly, with the book's own looks, and nothing executed."""
    root = tmp_path_factory.mktemp("small")
    picture = {"output_type": "display_data", "metadata": {}, "data": {"text/html": FIGURE}}

    def code(name: str, source: str, *outputs: dict) -> dict:
        return {
            "cell_type": "code", "id": name, "metadata": {"tags": ["hide-input"]},
            "execution_count": 1, "outputs": list(outputs), "source": source,
        }  # fmt: skip

    def prose(name: str, source: str) -> dict:
        return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}

    cells = [
        prose("question", QUESTION),
        code("set-up", "import torch"),
        code("figure", "plot()", picture),
        code("checked", "assert 1 < 2"),
        prose(
            "caption",
            "**Figure 1.1.** What *it* shows.\n\n**Table 1.1.** Two.\n\n| a | b |\n|--|--|\n| 1 | 2 |",
        ),
    ]
    metadata = {"language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    (root / "index.ipynb").write_text(json.dumps(content), encoding="utf8")
    settings = (
        f"import sys; sys.path.append({str(EXTENSIONS)!r})",
        "extensions, numfig = ['myst_nb', 'furniture'], True",
        "myst_enable_extensions, mathjax_path = ['dollarmath'], 'vendor/mathjax/tex-chtml.js'",
        "nb_execution_mode, project = 'off', 'Attention'",
        f"html_theme, html_static_path = 'sphinx_book_theme', [{str(STATIC)!r}]",
        "html_css_files, html_js_files = ['course.css'], ['course.js']",
    )
    (root / "conf.py").write_text("\n".join(settings), encoding="utf8")
    out = root / "out"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-n", "-q", str(root), str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return out / "index.html"


@pytest.fixture
def opened(page_path, chromium):
    """Open the page in a window of its own, with or without scripts."""
    contexts = []

    def open_page(**options):
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.route("**/*", lambda r: r.continue_() if r.request.url.startswith("file:") else r.abort())
        page.goto(page_path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


def test_the_page_has_a_name_and_captions_in_place(page_path):
    text = page_path.read_text(encoding="utf8")
    assert "<title>An executable textbook &#8212; Attention" in text
    folds = re.findall(r'<span class="collapsed">([^<]*)</span>', text)
    assert folds == ["Set-up and imports", "Code for Figure 1.1", "✓ checked"]
    assert re.search(r'<table class="table" id="table-1-1">\s*<caption>', text)


def test_a_fold_is_read_as_it_is_seen_and_opens_by_keyboard(opened):
    page = opened()
    fold = page.locator("details.hide").nth(1)
    summary = fold.locator("summary")
    assert summary.get_attribute("aria-label") is None
    assert summary.inner_text() == "Code for Figure 1.1"
    summary.focus()
    page.keyboard.press("Enter")
    assert fold.locator("div.cell_input").is_visible()
    assert summary.inner_text() == "Hide the code for Figure 1.1"


def test_a_fold_is_smaller_and_narrower_than_text(opened):
    page = opened()
    measure = "e => [parseFloat(getComputedStyle(e).fontSize), e.getBoundingClientRect().width]"
    size, width = page.locator("details.hide > summary").nth(1).evaluate(measure)
    text_size, text_width = page.locator("blockquote p").first.evaluate(measure)
    assert size < 0.85 * text_size
    assert width < 0.5 * text_width


def test_the_figure_holds_its_caption_and_only_its_picture_scrolls(opened):
    page = opened(viewport={"width": 390, "height": 800})
    figure = page.locator("figure:has(> figcaption)")
    assert figure.locator("> figcaption").inner_text() == "Figure 1.1. What it shows."
    figure.locator("svg").evaluate("svg => { svg.style.minWidth = '900px'; }")
    page.evaluate("window.dispatchEvent(new Event('resize'))")
    assert figure.get_attribute("tabindex") is None
    assert figure.locator("> .picture").get_attribute("tabindex") == "0"
    assert figure.locator("> figcaption").evaluate("e => e.getBoundingClientRect().right") <= 390


def test_the_choice_is_marked_and_opens_the_answer(opened):
    page = opened()
    answer, buttons = page.locator("blockquote.predict + details").first, page.locator(".predict button")
    assert buttons.all_inner_texts()[0].startswith("The first")
    assert buttons.first.locator("em").inner_text() == "first"
    page.wait_for_selector(".predict button mjx-container")
    assert answer.get_attribute("open") is None
    assert answer.locator("summary").inner_text() == "Choose first, or open the answer"
    buttons.nth(1).focus()
    page.keyboard.press("Space")
    assert answer.locator("p").is_visible()
    pressed = "all => all.map((e) => e.getAttribute('aria-pressed'))"
    assert buttons.evaluate_all(pressed)[:2] == ["false", "true"]
    page.wait_for_function("document.querySelector('.predict + details summary').innerText === 'Answer'")
    # another choice moves the mark, and nothing closes
    buttons.first.click()
    assert buttons.evaluate_all(pressed)[:2] == ["true", "false"]
    assert answer.get_attribute("open") is not None


def test_the_answer_can_be_opened_without_a_choice(opened):
    page = opened()
    answer = page.locator("blockquote.predict + details").first
    answer.locator("summary").click()
    assert answer.locator("p").is_visible()
    page.wait_for_function("document.querySelector('.predict + details summary').innerText === 'Answer'")


WIDE = """
  <table class="table" id="wide">
  <thead><tr><th>wrong</th><th>right <em>line</em></th><th>what one sees</th></tr></thead>
  <tbody><tr><td><code>scores.softmax(-2)</code></td><td><code>scores.softmax(-1)</code></td>
    <td>rows that do not sum to one, in a sentence of its own</td></tr>
    <tr><td><code>scores * mask</code></td><td></td>
    <td>hidden words that are seen all the same</td></tr></tbody></table>
"""
NUMBERS = (
    WIDE.replace("wide", "numbers")
    .replace("in a sentence of its own", "")
    .replace("words that are seen all the same", "")
)


def with_tables(page):
    page.evaluate(
        """tables => {
          const article = document.querySelector(".bd-article");
          for (const table of tables) article.insertAdjacentHTML("beforeend",
            `<div class="pst-scrollable-table-container" style="white-space: nowrap">${table}</div>`);
          window.dispatchEvent(new Event("resize"));
        }""",
        [
            WIDE,
            re.sub(r"(?<=<td>)[^<]{20,}", "0.123", NUMBERS) + "<style>#numbers { min-width: 900px }</style>",
        ],
    )


def test_a_wide_table_of_words_becomes_cards_on_a_phone(opened):
    page = opened(viewport={"width": 390, "height": 800})
    with_tables(page)
    table = page.locator("#wide")
    assert table.get_attribute("class") == "table cards"
    cells = table.locator("tbody tr").first.locator("td")
    assert cells.nth(1).inner_text().split("\n") == ["right line", "scores.softmax(-1)"]
    assert cells.evaluate_all("all => all.every((e) => e.getBoundingClientRect().right <= 390)")
    assert table.locator("tbody tr").nth(1).locator("td").nth(1).is_hidden()  # nothing in it
    # what a screen reader is told: a table still, each cell without the name that is only seen
    assert table.get_attribute("role") == "table" and cells.first.get_attribute("role") == "cell"
    assert cells.nth(1).locator(".card-label").get_attribute("aria-hidden") == "true"


def test_a_table_of_numbers_stays_one_and_so_does_any_on_a_wide_screen(opened):
    page = opened(viewport={"width": 390, "height": 800})
    with_tables(page)
    assert page.locator("#numbers").get_attribute("class") == "table"
    page.set_viewport_size({"width": 1400, "height": 800})
    page.wait_for_function("!document.querySelector('#wide').classList.contains('cards')")
    assert page.locator("#wide").get_attribute("role") is None
    assert page.locator("#wide .card-label").first.is_hidden()


def test_only_options_with_an_answer_become_buttons(opened):
    page = opened()
    boxes = page.locator("blockquote.predict")
    assert boxes.count() == 3
    assert [boxes.nth(i).locator("button").count() for i in range(3)] == [2, 0, 0]
    assert page.locator("blockquote.predict + details summary").nth(1).inner_text() == "Answer"


def test_without_scripts_options_are_a_list_and_the_answer_is_folded(opened):
    page = opened(java_script_enabled=False)
    assert page.locator(".predict li").count() == 3 and page.locator(".predict button").count() == 0
    answer = page.locator("blockquote.predict + details").first
    assert answer.locator("summary").inner_text() == "Answer"
    assert answer.get_attribute("open") is None

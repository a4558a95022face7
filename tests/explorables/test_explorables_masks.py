"""The mask that is painted: whatever is painted, its numbers are the package's."""

import re

import numpy as np
import pytest
import torch
from browser import figure

from attention_course import masks
from attention_course.attention import attend
from attention_course.explorables.paint_a_mask import paint_a_mask
from attention_course.lab.data import example

QUERIES, KEYS, VALUES = (torch.from_numpy(example.X @ w) for w in (example.W_Q, example.W_K, example.W_V))
SAT = example.TOKENS.index("sat")


@pytest.fixture
def painted(page_with):
    """Open a page with ``copies`` of the figure and return the page."""
    return lambda copies=1, **options: page_with(*(paint_a_mask() for _ in range(copies)), **options)


def cell(within, i, j):
    return within.locator("td.cell").nth(6 * i + j)


def press(within, name):
    within.get_by_role("button", name=re.compile(f"^{name}")).click()


def assert_shows(within, mask, row):
    """The grid, the sentence and the context are those of ``mask``; ``row`` is the query described."""
    context, weights = attend(QUERIES, KEYS, VALUES, attn_mask=mask)
    read = "all => all.map(e => [+e.dataset.value, e.textContent, e.getAttribute('aria-selected')])"
    shown = within.locator("td.cell").evaluate_all(read)
    numbers = np.array([number for number, _, _ in shown]).reshape(6, 6)
    np.testing.assert_allclose(numbers, weights, rtol=0, atol=1e-9)
    for (number, text, selected), may in zip(shown, mask.flatten().tolist(), strict=True):
        assert selected == str(may).lower()
        assert text == (f"{number:.2f}" if may else "×")
    for d in (0, 1):
        number = float(within.locator(f".c{d}").get_attribute("data-value"))
        assert number == pytest.approx(context[row, d].item(), abs=1e-9)


def test_buttons_take_the_packages_masks(painted):
    within = figure(painted())
    everything = torch.ones(6, 6, dtype=torch.bool)
    assert_shows(within, masks.causal(6), SAT)
    for name, mask in (
        ("none", everything),
        ("window", masks.window(6, 6, 2)),
        ("padding", masks.padding(torch.tensor([4]), 6)[0].expand(6, 6)),
        ("causal", masks.causal(6)),
    ):
        press(within, name)
        assert_shows(within, mask, SAT)
        pressed = within.locator(".masks button[aria-pressed=true]")
        assert pressed.count() == 1 and pressed.text_content().startswith(name)


def test_painting_with_the_mouse(painted):
    page = painted()
    within = figure(page)
    mask = masks.causal(6).clone()
    cell(within, SAT, 1).click()
    mask[SAT, 1] = False
    assert_shows(within, mask, SAT)
    assert within.locator(".masks button[aria-pressed=true]").count() == 0
    start, end = (cell(within, i, j).bounding_box() for i, j in ((0, 1), (0, 5)))
    page.mouse.move(start["x"] + 9, start["y"] + 9)
    page.mouse.down()
    page.mouse.move(end["x"] + 9, end["y"] + 9, steps=20)
    page.mouse.up()
    page.mouse.move(end["x"] + 9, end["y"] + 90)  # let go: nothing more is painted
    mask[0] = True
    assert_shows(within, mask, 0)


def test_painting_with_a_finger(painted):
    page = painted(width=390, has_touch=True, is_mobile=True)
    within = figure(page)
    boxes = [cell(within, i, 5).bounding_box() for i in range(4)]
    points = [{"x": b["x"] + b["width"] / 2, "y": b["y"] + b["height"] / 2} for b in boxes]
    touch = page.context.new_cdp_session(page)
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points[:1]})
    for point in points[1:]:
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    mask = masks.causal(6).clone()
    mask[:4, 5] = True
    assert_shows(within, mask, 3)
    assert page.evaluate("scrollY") == 0


def test_everything_by_keyboard(painted):
    page = painted()
    within = figure(page)
    for _ in range(4):  # the four buttons
        page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    mask = masks.window(6, 6, 2).clone()
    assert_shows(within, mask, SAT)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # one stop for the whole grid
    for key in ("ArrowRight", "ArrowUp", "Space"):
        page.keyboard.press(key)
    mask[1, 1] = False
    assert_shows(within, mask, 1)
    for key in ("ArrowUp", "ArrowUp", "Home", "Enter", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    mask[0, :2] = False
    assert not mask[0].any()
    assert_shows(within, mask, 0)
    assert "may look nowhere" in within.locator(".row").text_content()
    assert "may look nowhere" in within.locator("[role=status]").text_content()
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")  # the edge
    page.keyboard.press("Space")
    mask[0, 5] = True
    assert_shows(within, mask, 0)


def test_any_mask_at_all(painted):
    within = figure(painted())
    mask = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[3] = False
    now = masks.causal(6)
    for i, j in (mask != now).nonzero().tolist():
        cell(within, i, j).click()
    assert_shows(within, mask, (mask != now).nonzero()[-1, 0].item())


def test_two_copies_do_not_interfere(painted):
    page = painted(copies=2)
    press(figure(page, 1), "none")
    assert_shows(figure(page, 0), masks.causal(6), SAT)
    assert_shows(figure(page, 1), torch.ones(6, 6, dtype=torch.bool), SAT)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390, 320])
def test_accessible_and_never_too_wide(painted, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = painted(theme=theme, width=width)
    press(figure(page), "none")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_says_something_where_scripts_do_not_run(painted):
    assert "needs JavaScript" in figure(painted(java_script_enabled=False)).inner_text()


def test_stands_alone():
    html = paint_a_mask()._repr_html_()
    assert not re.search(
        r"https?:|src=|@import|url\(|fetch\(", html.replace("http://www.w3.org/2000/svg", "")
    )
    assert len(html) < 40_000 and html.count("</script>") == 1

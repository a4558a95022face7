"""The figures that move: their numbers are the package's, whoever moves them, wherever they stand."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import figure

from attention_course import palette
from attention_course.attention import attend
from attention_course.explorables import (
    head_view,
    paint_a_mask,
    query_and_keys,
    split_heads,
    who_looks_at_whom,
)
from attention_course.explorables.base import embed
from attention_course.lab.data import example

QUERIES, KEYS, VALUES = (torch.from_numpy(example.X @ w) for w in (example.W_Q, example.W_K, example.W_V))
SAT = example.TOKENS.index("sat")
FIGURES = (query_and_keys, who_looks_at_whom)


def numbers(within, selector):
    """The full numbers that stand in ``data-value``; the text must be their rounding."""
    read = "all => all.map(e => [Number(e.dataset.value), e.textContent])"
    found = within.locator(f"{selector}[data-value]").evaluate_all(read)
    for number, text in found:
        shown = text.replace("−", "-")
        assert shown == f"{number:.2f}".replace("-0.00", "0.00") or math.isclose(
            float(shown), number, abs_tol=0.00500001
        ), "JavaScript and Python may round a tie differently, nothing else"
    return [number for number, _ in found]


def assert_is_attention(within, query, divisor):
    """Every number in the figure is what the package computes for this query and divisor."""

    def score(query, key):
        return query @ key.mT / divisor

    query = torch.tensor([query], dtype=torch.float64)
    context, weights = attend(query, KEYS, VALUES, score=score)
    dot = (query @ KEYS.mT)[0]
    expected = {
        "td.score": dot.tolist(),
        "td.scaled": (dot / divisor).tolist(),
        ".weight > span": weights[0].tolist(),
        ".c0": [context[0, 0].item()],
        ".c1": [context[0, 1].item()],
        ".largest": [weights.max().item()],
        ".entropy": [torch.special.entr(weights).sum().item()],
        ".alike": [math.exp(torch.special.entr(weights).sum().item())],
    }
    for selector, values in expected.items():
        np.testing.assert_allclose(numbers(within, selector), values, rtol=0, atol=1e-6, err_msg=selector)


def test_numbers_of_a_typed_query(page_with):
    within = figure(page_with(query_and_keys()))
    for query in [(3.6, -1.4), (0, 0), (-2, 2), (4, -2), (0.37, -1.21)]:
        within.locator(".q0").fill(str(query[0]))
        within.locator(".q1").fill(str(query[1]))
        for divisor in (0.1, 0.75, math.sqrt(2), 2.5, 8):
            within.locator(".typed").fill(repr(divisor))
            assert_is_attention(within, query, divisor)


def test_typed_numbers_stay_in_range(page_with):
    within = figure(page_with(query_and_keys()))
    within.locator(".q0").fill("99")
    within.locator(".q1").fill("")
    within.locator(".typed").fill("0")
    assert_is_attention(within, (4, -1.4), math.sqrt(2))  # no number, or no divisor: nothing moves
    within.locator(".typed").fill("1e9")
    assert_is_attention(within, (4, -1.4), 8)
    within.locator(".slider").focus()
    typed = [within.locator(name).input_value() for name in (".q0", ".q1", ".typed")]
    assert typed == ["4", "-1.4", "8.00"]


def test_starts_with_the_query_of_sat_divided_by_root_d_k(page_with):
    assert_is_attention(figure(page_with(query_and_keys())), QUERIES[SAT].tolist(), math.sqrt(2))


@pytest.mark.parametrize("reduced_motion", ["reduce", "no-preference"])
def test_a_button_takes_the_query_of_its_word(page_with, reduced_motion):
    page = page_with(query_and_keys(), reduced_motion=reduced_motion, clock=True)
    within = figure(page)
    for i, button in enumerate(within.locator(".words button").all()):
        button.click()
        page.clock.run_for(0 if reduced_motion == "reduce" else 800)
        assert button.get_attribute("aria-pressed") == "true"
        assert_is_attention(within, QUERIES[i].tolist(), math.sqrt(2))


def test_everything_by_keyboard(page_with):
    page = page_with(query_and_keys())
    within = figure(page)

    def focused():
        return page.evaluate(
            """() => { let e = document.activeElement;
            while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement;
            return e.getAttribute('aria-label') ?? e.localName }"""
        )

    page.keyboard.press("Tab")
    assert focused() == "Query"
    for key in ["ArrowLeft"] * 3 + ["ArrowUp"] * 2 + ["ArrowRight", "ArrowDown"]:
        page.keyboard.press(key)
    assert_is_attention(within, (3.4, -1.3), math.sqrt(2))
    page.keyboard.press("Shift+ArrowUp")
    assert_is_attention(within, (3.4, -0.8), math.sqrt(2))
    for _ in range(12):
        page.keyboard.press("Shift+ArrowLeft")
    assert_is_attention(within, (-2, -0.8), math.sqrt(2))  # the plane's edge

    order = []
    while len(order) < 30 and "Scores divided by" not in order:
        page.keyboard.press("Tab")
        order.append(focused())
    words = ["the (word 1)", "cat", "sat", "on", "the (word 5)", "mat"]
    assert order == [
        "query, first number",
        "query, second number",
        *(f"query of {word}" for word in words),
        "Scores divided by, as a number",
        "divide by the square root of d_k",
        "Scores divided by",
    ]
    page.keyboard.press("Home")
    assert_is_attention(within, (-2, -0.8), 0.1)
    page.keyboard.press("End")
    assert_is_attention(within, (-2, -0.8), 8)
    for _ in range(34):
        page.keyboard.press("ArrowLeft")
    assert within.locator(".slider").get_attribute("aria-valuetext") == "1.41 = √d_k"
    assert_is_attention(within, (-2, -0.8), math.sqrt(2))

    for _ in range(4):
        page.keyboard.press("Shift+Tab")
    assert focused() == "query of the (word 5)"
    page.keyboard.press("Enter")
    assert_is_attention(within, QUERIES[4].tolist(), math.sqrt(2))


def test_what_changed_is_said(page_with):
    page = page_with(query_and_keys())
    within = figure(page)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    within.locator("[role=status]", has_text="Largest weight").wait_for(state="attached")
    said = within.locator("[role=status]").text_content()
    _, weights = attend(torch.tensor([[3.6, -1.5]], dtype=torch.float64), KEYS, VALUES)
    assert said.startswith(
        f"Query 3.60, −1.50, scores divided by 1.41. Largest weight {weights.max():.2f}, cat."
    )
    assert within.locator(".handle").get_attribute("aria-valuetext") == "3.60, −1.50"


def test_drag_with_the_mouse(page_with):
    page = page_with(query_and_keys())
    within = figure(page)
    plane = within.locator(".keys svg").bounding_box()
    unit = plane["width"] / 6.6  # the plane shows x from -2.3 to 4.3, y from 2.3 to -2.3
    x, y = (lambda q: plane["x"] + (q + 2.3) * unit), (lambda q: plane["y"] + (2.3 - q) * unit)
    page.mouse.move(x(3.6), y(-1.4))
    page.mouse.down()
    page.mouse.move(x(1), y(1), steps=4)
    page.mouse.move(x(-1), y(1.5), steps=4)
    page.mouse.up()
    page.mouse.move(x(3), y(0))  # let go: nothing more happens
    query = [float(within.locator(f".q{d}").input_value()) for d in (0, 1)]
    assert query == pytest.approx([-1, 1.5], abs=0.02)
    assert_is_attention(within, query, math.sqrt(2))


def test_drag_with_a_finger_moves_the_query_and_not_the_page(page_with):
    page = page_with(query_and_keys(), width=390, has_touch=True, is_mobile=True)
    within = figure(page)
    box = within.locator(".handle .knob").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch = page.context.new_cdp_session(page)

    def send(kind, *points):
        points = [{"x": x, "y": y} for x, y in points]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    send("touchStart", (x, y))
    for step in range(1, 11):
        send("touchMove", (x - 10 * step, y - 8 * step))
    send("touchEnd")
    query = [float(within.locator(f".q{d}").input_value()) for d in (0, 1)]
    assert query[0] < 2.5 and query[1] > -0.5
    assert_is_attention(within, query, math.sqrt(2))
    assert page.evaluate("scrollY") == 0


def test_two_copies_do_not_interfere(page_with):
    page = page_with(query_and_keys(), who_looks_at_whom(), query_and_keys(), who_looks_at_whom())
    first, second = figure(page, 0), figure(page, 2)
    second.locator(".q0").fill("-1.5")
    second.locator(".typed").fill("4")
    assert_is_attention(first, QUERIES[SAT].tolist(), math.sqrt(2))
    assert_is_attention(second, (-1.5, -1.4), 4)
    figure(page, 1).get_by_role("radio", name="on").check()
    assert figure(page, 1).get_by_role("radio", name="on").is_checked()
    assert figure(page, 3).get_by_role("radio", name="sat").is_checked()
    ids = page.locator(".ac-explorable").evaluate_all("all => all.map(e => e.id)")
    assert len(set(ids)) == 4


def centres(within, selector):
    script = "all => all.map(e => [e.cx.baseVal.value, e.cy.baseVal.value])"
    return np.array(within.locator(selector).evaluate_all(script))


def where(within, selector):
    script = "e => { const m = e.transform.baseVal[0].matrix; return [m.e, m.f] }"
    return np.array(within.locator(selector).evaluate(script))


@pytest.mark.parametrize("query", [(3.6, -1.4), (-2, 1.3), (0, 0), (2.6, 1.6)])
def test_what_is_drawn_is_what_is_computed(page_with, query):
    within = figure(page_with(query_and_keys()))
    within.locator(".q0").fill(str(query[0]))
    within.locator(".q1").fill(str(query[1]))
    _, weights = attend(torch.tensor([query], dtype=torch.float64), KEYS, VALUES)
    weights = weights[0].numpy()

    # One affine map takes all keys and the query to the screen; equal units, y upwards.
    keys = np.column_stack([KEYS.numpy(), np.ones(6)])
    drawn = centres(within, ".keys .halo")
    affine, *_ = np.linalg.lstsq(keys, drawn, rcond=None)
    np.testing.assert_allclose(keys @ affine, drawn, atol=1e-3)
    np.testing.assert_allclose([*query, 1] @ affine, where(within, ".handle"), atol=1e-3)
    assert affine[0, 0] == pytest.approx(-affine[1, 1], abs=1e-3) and affine[0, 0] > 0

    # Affine maps keep mixtures: the context's place is the same mixture of the values' places.
    mark = where(within, ".values g")
    np.testing.assert_allclose(weights @ centres(within, ".values .halo"), mark, atol=1e-3)
    inside = "(hull, [x, y]) => hull.isPointInFill(new DOMPoint(x, y))"
    assert within.locator(".hull").evaluate(inside, mark.tolist())
    assert within.locator(".hull").get_attribute("points").count(",") == 4  # mat and one "the" are within
    radii = within.locator(".values .halo").evaluate_all("all => all.map(e => e.r.baseVal.value)")
    np.testing.assert_allclose(np.square(radii) / np.square(radii).sum(), weights, atol=1e-3)


def asked(within):
    return within.locator("input:checked").get_attribute("aria-label")


def assert_row(within, i):
    context, weights = attend(QUERIES, KEYS, VALUES)
    np.testing.assert_allclose(numbers(within, ".number"), weights[i], rtol=0, atol=1e-6)
    shares = within.locator(".mix span").evaluate_all("all => all.map(e => +e.style.flexGrow)")
    np.testing.assert_allclose(shares, weights[i], rtol=0, atol=1e-6)
    total = within.locator(".sum").text_content().replace("−", "-").split("=")[1]
    shown = [float(number) for number in re.findall(r"-?\d+\.\d+", total)]
    np.testing.assert_allclose(shown, context[i], atol=0.005001)


def test_the_start_picture_by_keyboard(page_with):
    page = page_with(who_looks_at_whom())
    within = figure(page)
    assert_row(within, SAT)
    page.keyboard.press("Tab")
    for i in (3, 4, 5, 0, 1, 2):  # round and round
        page.keyboard.press("ArrowRight")
        assert_row(within, i)
    page.keyboard.press("ArrowLeft")
    assert asked(within) == "cat"
    assert "cat looks at: the (word 1) 0.15" in within.locator("[role=status]").text_content()


def test_the_start_picture_moves_until_it_is_stopped(page_with):
    page = page_with(who_looks_at_whom(), reduced_motion="no-preference", clock=True)
    within = figure(page)
    assert asked(within) == "sat"
    page.clock.run_for(4200)  # the next word, and the lines arrive
    assert asked(within) == "on"
    assert_row(within, 3)
    within.get_by_role("button", name="Pause").click()
    page.clock.run_for(8000)
    assert asked(within) == "on"
    assert within.locator("[role=status]").text_content() == ""  # what moves by itself stays quiet
    within.get_by_role("button", name="Play").click()
    page.clock.run_for(4200)
    assert asked(within) == "the (word 5)"
    within.get_by_role("radio", name="mat").check()  # a reader's choice stops it too
    page.clock.run_for(8000)
    assert asked(within) == "mat"


def test_the_start_picture_stands_still_where_motion_is_unwelcome(page_with):
    page = page_with(who_looks_at_whom(), clock=True)
    within = figure(page)
    page.clock.run_for(8000)
    assert asked(within) == "sat"
    assert within.get_by_role("button", name="Play").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 390])
def test_accessible_and_never_too_wide(page_with, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    figures = [make() for make in FIGURES for _ in range(2)]
    page = page_with(*figures, theme=theme, width=width)
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_colours_follow_the_page_at_once(page_with):
    page = page_with(query_and_keys())
    paper = "e => getComputedStyle(e.shadowRoot.querySelector('figure')).backgroundColor"
    light = figure(page).evaluate(paper)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert figure(page).evaluate(paper) != light


LOOKS = torch.eye(3)[None, None] * 0.7 + 0.1  # [1, 1, 3, 3]
CELLS = {
    "paint_a_mask": (paint_a_mask, "td[aria-selected=true]", 21),
    "split_heads": (split_heads, "td.weight", 36),
    "head_view": (lambda: head_view([(["a", "b", "c"], LOOKS)]), ".to .word", 3),
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_weights_have_the_ramp_of_the_page_and_letters_to_be_read(page_with, theme, name):
    make, cells, number = CELLS[name]
    colours, marks = {
        "light": (palette.LIGHT, palette.LIGHT_RAMP),
        "dark": (palette.DARK, palette.DARK_RAMP),
    }[theme]
    read = """all => all.map(e => { const style = getComputedStyle(e);
        return [style.getPropertyValue("--w"), style.backgroundColor, style.color] })"""
    found = figure(page_with(make(), theme=theme)).locator(cells).evaluate_all(read)
    assert len(found) == number
    parts = {n: [int(colours[n][i : i + 2], 16) for i in (1, 3, 5)] for n in ("paper", "weights", "deep")}
    for weight, ground, letters in ((float(w), *others) for w, *others in found):
        expected = [
            np.interp(weight, [0, marks["knee"], 1], stop) for stop in zip(*parts.values(), strict=True)
        ]
        rgb = 255 * np.array(re.findall(r"[\d.]+", ground)[:3], dtype=float)
        np.testing.assert_allclose(rgb, expected, atol=1)
        on = marks["on-low" if weight < marks["flip"] else "on-high"]
        assert re.findall(r"[\d.]+", letters)[:3] == (["0"] * 3 if on == "#000000" else ["1"] * 3)


def test_readable_in_a_frame_without_a_doctype(new_page):
    """As an output frame may be: in quirks mode a table inherits neither colour nor font."""
    page = new_page(reduced_motion="reduce")
    page.set_content(f'<html data-theme="dark">{query_and_keys()._repr_html_()}')
    look = "e => [getComputedStyle(e).color, getComputedStyle(e).fontSize]"
    within = figure(page)
    assert within.locator("td").first.evaluate(look) == within.locator("figure").evaluate(look)


@pytest.mark.parametrize("make", FIGURES)
def test_says_something_where_scripts_do_not_run(page_with, make):
    page = page_with(make(), java_script_enabled=False)
    assert figure(page).inner_text().strip()


@pytest.mark.parametrize("make", FIGURES)
def test_a_figure_put_in_later_starts_too(page_with, make):
    """As in a notebook: the output's HTML is set first, then its scripts are made anew."""
    page = page_with()
    page.evaluate(
        """html => {
            const output = document.createElement('div');
            output.innerHTML = html;
            for (const old of output.querySelectorAll('script')) {
                const script = document.createElement('script');
                script.textContent = old.textContent;
                old.replaceWith(script);
            }
            setTimeout(() => document.querySelector('main').append(output), 200);
        }""",
        make()._repr_html_(),
    )
    figure(page).locator("figure").wait_for()


@pytest.mark.parametrize("make", FIGURES)
def test_stands_alone(make):
    """No request to anywhere, no identifier that two copies share, small enough for a notebook."""
    html = make()._repr_html_()
    without_namespace = html.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|src=|@import|url\(|fetch\(", without_namespace)
    assert len(html) < 40_000
    assert html.count("</script>") == 1
    assert make().html != html


def test_data_cannot_end_the_script():
    awkward = {"word": "</script><!-- & \u2028 ' \" \\ 猫"}
    text = embed(awkward)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == awkward
    with pytest.raises(ValueError):
        embed({"weight": math.nan})


def test_parts_are_shipped():
    """What the templates need is package data: nothing stands outside the package's folder."""
    import attention_course.explorables as explorables

    parts = Path(explorables.__file__).parent / "parts"
    assert {p.suffix for p in parts.iterdir()} == {".html", ".css", ".js"}

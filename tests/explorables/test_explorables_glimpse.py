"""Scenes in the page: a word's veil and a cell's words are the weights handed in."""

import re

import numpy as np
import pytest
import torch
from browser import figure

from attention_course.explorables import Scene, glimpse

WORDS = ["three", "left", "of", "three"]
NAMES = ["three (word 1)", "left", "of", "three (word 4)"]
HALF = 1 / 510 + 1e-6  # what 8 bits may be wrong by
READ = "all => all.map(e => Number(e.dataset.value))"


def drawn(words=4, rows=2, columns=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        (2 * torch.randn(words, rows * columns, generator=generator)).softmax(1).reshape(words, rows, columns)
    )


IMAGE = torch.rand(8, 12, generator=torch.Generator().manual_seed(1))
WEIGHTS, OTHER = drawn(), drawn(2, 3, 1, seed=2)
SCENES = (
    Scene(IMAGE, WORDS, WEIGHTS, "said <b>right</b>"),
    Scene(IMAGE.T.numpy(), ["a", "<b>"], OTHER.numpy()),
)


def word(within, place):
    return within.locator(".words input").nth(place)


def cell(within, place):
    return within.get_by_role("gridcell").nth(place)


def assert_word(within, weights, place, name):
    """The veil is this word's grid, its largest cell has the ring, and the line says so."""
    row = weights[place].flatten().numpy()
    got = np.array(within.locator(".scene td").evaluate_all(READ))
    np.testing.assert_allclose(got, row, rtol=0, atol=HALF)
    veils = within.locator(".scene td").evaluate_all(
        "all => all.map(e => parseFloat(e.style.getPropertyValue('--veil')))"
    )
    np.testing.assert_allclose(veils, 64 * np.sqrt(got), atol=1e-3)
    ringed = within.locator(".scene td").evaluate_all("all => all.map(e => e.classList.contains('most'))")
    assert np.flatnonzero(ringed).tolist() == [row.argmax()]
    down, across = divmod(row.argmax(), weights.shape[2])
    assert within.locator(".sum").text_content() == (
        f"{name} looks most at row {down + 1}, column {across + 1}: {got.max():.2f}."
    )
    assert within.locator(".words .on .word").count() == 1
    assert within.locator(".words .number").all_text_contents() == [""] * len(weights)


def assert_cell(within, place):
    """Every word shows how much it looks at this cell, and the scene has no veil."""
    column = WEIGHTS.flatten(1)[:, place].numpy()
    np.testing.assert_allclose(within.locator(".words .number").evaluate_all(READ), column, rtol=0, atol=HALF)
    tints = "all => all.map(e => Number(getComputedStyle(e).getPropertyValue('--w')))"
    np.testing.assert_allclose(within.locator(".words .word").evaluate_all(tints), column, rtol=0, atol=HALF)
    assert within.locator(".scene td").evaluate_all(READ) == [0] * 6
    assert within.locator(".scene td.asked").count() == 1 and within.locator(".words .on").count() == 0
    said = within.locator(".sum").text_content()
    assert said.startswith(
        f"row {place // 3 + 1}, column {place % 3 + 1}: {NAMES[column.argmax()]} looks there most"
    )


@pytest.mark.parametrize(
    ("scenes", "words"),
    [
        ([], "at least one Scene, got none"),
        ([Scene(IMAGE[0], WORDS, WEIGHTS)], "scene 1 must be [H, W], none of them empty, got shape (12,)"),
        ([Scene(2 * IMAGE, WORDS, WEIGHTS)], "image of scene 1 must lie between 0 and 1, got 1."),
        ([Scene(IMAGE, WORDS, WEIGHTS[0])], "weights of scene 1 must be [words, rows, columns]"),
        ([Scene(IMAGE, WORDS[1:], WEIGHTS)], "one grid for each of its 3 words, got 4"),
        ([SCENES[0], Scene(IMAGE, WORDS, WEIGHTS / 2)], "those of 'three' in scene 2 sum to 0.500"),
        ([Scene(IMAGE, WORDS, WEIGHTS * torch.nan)], "weights of scene 1 must be finite, got nan"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(unchecked, scenes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        glimpse(scenes)


def test_every_word_every_cell_every_scene(page_with):
    page = page_with(glimpse(SCENES))
    within = figure(page)
    for place, name in enumerate(NAMES):
        word(within, place).click()
        assert_word(within, WEIGHTS, place, name)
    for place in range(6):
        cell(within, place).click()
        assert_cell(within, place)
    word(within, 3).click()  # the word that was chosen before is chosen again
    assert_word(within, WEIGHTS, 3, NAMES[3])
    assert within.locator(".note").text_content() == "said <b>right</b>"
    within.get_by_role("button", name="2: a <b>").click()
    assert_word(within, OTHER, 0, "a")
    assert within.locator(".words .word").all_text_contents() == ["a", "<b>"]
    assert within.locator(".note").text_content() == ""


def test_the_mouse_shows_and_a_click_keeps(page_with):
    page = page_with(glimpse(SCENES))
    within = figure(page)
    within.locator(".words label").nth(2).hover()
    assert_word(within, WEIGHTS, 2, "of")
    cell(within, 4).hover()
    assert_cell(within, 4)
    page.mouse.move(1, 1)
    assert_word(within, WEIGHTS, 0, NAMES[0])


def test_by_finger(page_with):
    page = page_with(glimpse(SCENES), width=390, has_touch=True, is_mobile=True)
    within = figure(page)
    cell(within, 4).tap()
    assert_cell(within, 4)
    within.locator(".words label").nth(1).tap()
    assert_word(within, WEIGHTS, 1, "left")


def test_by_keyboard(page_with):
    page = page_with(glimpse(SCENES[:1]))
    within = figure(page)
    assert not within.locator(".which").is_visible()
    page.keyboard.press("Tab")
    assert_cell(within, 0)
    for key, place in [
        ("ArrowRight", 1),
        ("ArrowDown", 4),
        ("ArrowDown", 4),
        ("ArrowLeft", 3),
        ("ArrowLeft", 3),
        ("End", 5),
    ]:
        page.keyboard.press(key)
        assert_cell(within, place)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert_word(within, WEIGHTS, 1, "left")
    assert within.locator("[role=status]").text_content().startswith("left looks most at")


def test_play_goes_through_the_words_once(page_with):
    page = page_with(glimpse(SCENES), reduced_motion="no-preference", clock=True)
    within = figure(page)
    page.clock.run_for(8000)
    assert_word(within, WEIGHTS, 0, NAMES[0])  # nothing moves unasked
    within.get_by_role("button", name="Play").click()
    for place in (1, 2, 3):
        page.clock.run_for(1450)
        assert_word(within, WEIGHTS, place, NAMES[place])
    page.clock.run_for(1500)
    assert within.get_by_role("button", name="Play").is_visible()
    within.get_by_role("button", name="Play").click()
    page.clock.run_for(1450)
    within.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    assert_word(within, WEIGHTS, 1, "left")


def test_the_image_is_ink_on_paper_and_follows_the_page(page_with):
    page = page_with(glimpse(SCENES))
    canvas = figure(page).locator(".scene canvas")
    read = """e => [...e.getContext("2d").getImageData(0, 0, e.width, e.height).data]"""
    for paper, ink, theme in [
        ((255, 255, 255), (31, 35, 40), "light"),
        ((20, 24, 30), (228, 232, 236), "dark"),
    ]:
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        got = np.reshape(canvas.evaluate(read), (8, 12, 4))[..., :3]
        expected = np.array(paper) + IMAGE.numpy()[..., None] * (np.array(ink) - np.array(paper))
        np.testing.assert_allclose(got, expected, atol=1.5)


def test_a_word_that_looks_nowhere(page_with):
    weights = WEIGHTS.clone()
    weights[1] = 0
    within = figure(page_with(glimpse([Scene(IMAGE, WORDS, weights)])))
    word(within, 1).click()
    assert within.locator(".sum").text_content() == "left looks nowhere."
    assert within.locator(".scene td.most").count() == 0


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 390), ("light", 320)])
def test_accessible_and_never_too_wide(page_with, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = page_with(glimpse(SCENES * 3), theme=theme, width=width)
    for act in (lambda: None, cell(figure(page), 4).click):
        act()
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_says_something_where_scripts_do_not_run(page_with):
    said = figure(page_with(glimpse(SCENES), java_script_enabled=False)).inner_text()
    row = WEIGHTS[1].flatten()
    where = f"row {row.argmax() // 3 + 1}, column {row.argmax() % 3 + 1}"
    assert "needs JavaScript" in said and re.search(rf"left\s+{where}\s+{row.max():.2f}", said)
    assert "<b>" in said


def test_stands_alone():
    html = glimpse(SCENES).html
    assert not re.search(
        r"https?:|src=|@import|url\(|fetch\(", html.replace("http://www.w3.org/2000/svg", "")
    )
    assert len(html) < 40_000 and html.count("</script>") == 1

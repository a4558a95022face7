"""The heads of a model in the page: their numbers are the ones handed in, rows are rows, columns columns."""

import re
import time

import numpy as np
import pytest
import torch
from browser import figure

from attention_course import palette
from attention_course.explorables import head_view

CAT = ["[CLS]", "the", "cat", "sat", "on", "the", "mat", "[SEP]"]
BANK = ["[CLS]", "one", "bank", "lends", ",", "another", "holds", "back", "the", "river", "[SEP]"]
HALF = 1 / 510 + 1e-6  # what 8 bits may be wrong by

READ = "all => all.map(e => e.dataset.value === undefined ? NaN : Number(e.dataset.value))"
SIDES = {"from": "From this token: where it looks, a row", "to": "To this token: who looks at it, a column"}


def drawn(T, layers=3, heads=4, seed=0):
    """Weights [L, h, T, T] that differ from head to head, some sharp and some flat."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(layers, heads, T, T, generator=generator)
    return (scores * torch.linspace(0.5, 4, heads)[:, None, None]).softmax(-1)


WEIGHTS, OTHER = drawn(len(CAT)), drawn(len(BANK), seed=1)


@pytest.fixture
def viewed(page_with):
    """Open a page with the figure of two sentences and return the page."""

    def view(copies=1, *, sentences=((CAT, WEIGHTS), (BANK, OTHER)), start=(1, 2, 3), **options):
        return page_with(*(head_view(sentences, start=start) for _ in range(copies)), **options)

    return view


def head(within, layer, number):
    return within.get_by_role("gridcell", name=f"layer {layer}, head {number}", exact=True)


def turn(within, side):
    within.get_by_role("radio", name=SIDES[side]).check()


def token(within, side, place):
    return within.locator(f".tokens.{side} input").nth(place)


def assert_shows(within, weights, place, side="from"):
    """The numbers, ribbons and tints are the row, or the column, of this token, and of no other."""
    expected = weights[place] if side == "from" else weights[:, place]
    answers = "to" if side == "from" else "from"
    got = np.array(within.locator(f".tokens.{answers} .number").evaluate_all(READ))
    np.testing.assert_allclose(got, expected, rtol=0, atol=HALF)
    assert np.isnan(within.locator(f".tokens.{side} .number").evaluate_all(READ)).all()
    texts = within.locator(f".tokens.{answers} .number").all_text_contents()
    assert texts == ["" if weight < 0.005 else f"{weight:.2f}" for weight in got]
    assert (
        within.locator(f".tokens.{side} input").evaluate_all("all => all.findIndex(e => e.checked)") == place
    )
    assert not any(within.locator(f".tokens.{answers} input").evaluate_all("all => all.map(e => e.checked)"))
    tints = within.locator(f".tokens.{answers} label").evaluate_all(
        "all => all.map(e => parseFloat(e.style.getPropertyValue('--w')))"
    )
    np.testing.assert_allclose(tints, got, rtol=0, atol=1e-9)

    # A ribbon leaves the asked token's row and arrives in the middle of its own, as thick as its weight.
    paths = within.locator(".ribbons path").evaluate_all("all => all.map(e => e.getAttribute('d'))")
    total = 0
    for j, (path, weight) in enumerate(zip(paths, got, strict=True)):
        a, c, d, b = (
            float(re.search(p, path)[1]) for p in (r"M 0 (\S+)", r" 1 (\S+) V", r"V (\S+)", r"(\S+) Z")
        )
        near, far = ((a, b), (c, d)) if side == "from" else ((c, d), (a, b))
        assert sum(far) / 2 == pytest.approx(j + 0.5) and far[1] - far[0] == pytest.approx(0.84 * weight)
        assert place < near[0] <= near[1] < place + 1
        total += near[1] - near[0]
    assert total == pytest.approx(0.84 * min(1, got.sum()))


# What is handed in ----------------------------------------------------------------------------


def changed(place, value):
    weights = WEIGHTS.clone()
    weights[place] = value
    return weights


@pytest.mark.parametrize(
    ("sentences", "options", "words"),
    [
        ([], {}, "at least one pair (tokens, weights), got none"),
        ([(CAT, WEIGHTS[0])], {}, "four dimensions [L, h, T, T], none of them empty, got shape (4, 8, 8)"),
        ([(CAT, WEIGHTS[:0])], {}, "none of them empty, got shape (0, 4, 8, 8)"),
        ([(CAT[1:], WEIGHTS)], {}, "must be [L, h, 7, 7] for its 7 tokens, got shape (3, 4, 8, 8)"),
        ([(CAT, WEIGHTS[..., :7])], {}, "for its 8 tokens, got shape (3, 4, 8, 7)"),
        ([(CAT, WEIGHTS), (BANK, OTHER[:2])], {}, "3 and 4; sentence 2 has weights of shape (2, 4, 11, 11)"),
        ([(CAT, changed((0, 0, 0, 0), torch.nan))], {}, "weights of sentence 1 must be finite, got nan"),
        ([(CAT, changed((2, 1, 4, 0), torch.inf))], {}, "must be finite, got inf"),
        ([(CAT, changed((0, 1, 2), torch.tensor([1.5, -0.5] + [0.0] * 6)))], {}, "negative, got -0.5"),
        ([(BANK, OTHER), (CAT, changed((0, 1, 2), 0.05))], {}, "sentence 2 must sum to 1, or to 0"),
        ([(CAT, changed((0, 1, 2), 0.05))], {}, "weights[0, 1, 2] sums to 0.400"),
        ([(CAT, WEIGHTS)], {"names": ["one", "two"]}, "one name for each of the 1 sentences, got 2"),
        ([(CAT, WEIGHTS)], {"start": (3, 0, 0)}, "start must be (layer, head, token) below (3, 4, 8)"),
        ([(CAT, WEIGHTS)], {"start": (0, -1, 0)}, "counted from 0, got (0, -1, 0)"),
        ([(CAT, WEIGHTS)], {"start": (0, 0)}, "counted from 0, got (0, 0)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(unchecked, sentences, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        head_view(sentences, **options)


@pytest.mark.parametrize(
    ("weights", "words"),
    [(WEIGHTS.numpy(), "got ndarray"), (torch.ones(1, 1, 8, 8).long(), "got torch.int64")],
)
def test_what_is_no_tensor_of_floats_is_refused(unchecked, weights, words):
    with pytest.raises(TypeError, match=f"must be a floating-point tensor, {words}"):
        head_view([(CAT, weights)])


def test_rows_of_zeros_and_half_precision_are_welcome(page_with):
    weights = changed((0, 0, 2), 0.0).half()
    within = figure(page_with(head_view([(CAT, weights)], start=(0, 0, 2))))
    assert within.locator(".sum").text_content() == "cat may look nowhere: its weights are all 0."
    assert within.locator(".number.strong").count() == 0


def test_weights_in_the_graph_stay_as_they_were():
    weights = WEIGHTS.clone().requires_grad_()
    head_view([(CAT, weights)])
    assert weights.requires_grad and torch.equal(weights, WEIGHTS)


def test_a_large_model_takes_no_time():
    """12 layers of 12 heads, 64 tokens: the fastest of three, since the machine may be busy."""
    weights, tokens = drawn(64, 12, 12), [f"w{i}" for i in range(64)]
    seconds = []
    for _ in range(3):
        began = time.process_time()
        html = head_view([(tokens, weights)]).html
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.5
    assert len(html) < 1_000_000  # a byte a weight, four letters for three bytes


# What is shown --------------------------------------------------------------------------------


def test_every_head_both_ways(viewed):
    within = figure(viewed())
    assert_shows(within, WEIGHTS[1, 2].numpy(), 3)  # as start says
    for side in ("to", "from"):
        turn(within, side)
        for layer in range(3):
            for number in range(4):
                head(within, layer + 1, number + 1).click()
                assert_shows(within, WEIGHTS[layer, number].numpy(), 3, side)
        assert within.locator("#look").text_content() == "Layer 3, head 4"


def test_every_token_both_ways(viewed):
    within = figure(viewed())
    for side in ("from", "to"):
        for place in range(len(CAT)):
            token(within, side, place).check()  # of the other side: it turns the direction, too
            assert within.get_by_role("radio", name=SIDES[side]).is_checked()
            assert_shows(within, WEIGHTS[1, 2].numpy(), place, side)


def test_a_row_and_a_column_are_told_apart_in_words(viewed):
    within = figure(viewed(start=(1, 3, 2)))
    weights = WEIGHTS[1, 3]
    order = weights[2].argsort(descending=True).tolist()
    names = ["[CLS]", "the (token 2)", "cat", "sat", "on", "the (token 6)", "mat", "[SEP]"]
    said = within.locator(".sum").text_content()
    assert said.startswith(f"cat looks most at {names[order[0]]}\u00a0{weights[2, order[0]]:.2f}")
    assert said.endswith("A row sums to 1.")
    turn(within, "to")
    order = weights[:, 2].argsort(descending=True).tolist()
    said = within.locator(".sum").text_content()
    assert said.startswith(f"cat is looked at most by {names[order[0]]}\u00a0{weights[order[0], 2]:.2f}")
    assert said.endswith(f"A column need not sum to 1: this one sums to {weights[:, 2].sum():.2f}.")
    for side in SIDES:
        assert within.get_by_role("radio", name=SIDES[side]).count() == 1


def test_the_shares_that_are_not_named_are_summed(viewed):
    weights = torch.tensor([0.6, 0.2, 0.1, 0.04, 0.03, 0.03, 0, 0]).expand(1, 1, 8, 8)
    within = figure(viewed(sentences=[(CAT, weights)], start=(0, 0, 7)))
    assert within.locator(".sum").text_content().replace("\u00a0", " ") == (
        "[SEP] looks most at [CLS] 0.60, then the (token 2) 0.20 and cat 0.10. "
        "The other 5 share 0.10. A row sums to 1."
    )
    turn(within, "to")
    assert within.locator(".sum").text_content() == "[SEP] is looked at by no token."
    token(within, "to", 0).check()
    assert "nearly alike: 0.60. A column need not sum to 1: this one sums to 4.80." in (
        within.locator(".sum").text_content()
    )


def test_a_columns_sum_is_not_that_of_its_rounded_weights(viewed):
    """63 of 64 weights are below 1/510, so the bytes alone would say that nobody looks there."""
    T = 64
    row = torch.full((T,), 0.0015)
    row[0] = 1 - row[1:].sum()
    within = figure(
        viewed(sentences=[([f"w{i}" for i in range(T)], row.expand(1, 1, T, T))], start=(0, 0, 5))
    )
    turn(within, "to")
    np.testing.assert_array_equal(within.locator(".tokens.from .number").evaluate_all(READ), np.zeros(T))
    said = within.locator(".sum").text_content()
    assert said.startswith("w5 gets less than 0.01 from each token.") and said.endswith("sums to 0.10.")
    token(within, "to", 0).check()
    assert f"this one sums to {row[0] * T:.2f}." in within.locator(".sum").text_content()


def test_another_sentence_keeps_head_and_direction(viewed):
    within = figure(viewed())
    turn(within, "to")
    token(within, "to", 7).check()
    within.get_by_role("combobox", name="Sentence").select_option("1")
    assert within.locator(".tokens.to .word").all_text_contents() == BANK
    assert_shows(within, OTHER[1, 2].numpy(), 7, "to")
    token(within, "to", 10).check()
    within.get_by_role("combobox", name="Sentence").select_option("0")
    assert_shows(within, WEIGHTS[1, 2].numpy(), 7, "to")  # it has no eleventh token: its last


def test_names_and_one_sentence(viewed, page_with):
    within = figure(viewed())
    assert within.locator("option").all_text_contents() == [" ".join(CAT), " ".join(BANK)]
    within = figure(page_with(head_view([(CAT, WEIGHTS), (BANK, OTHER)], names=["a cat", "<b>banks"])))
    assert within.locator("option").all_text_contents() == ["a cat", "<b>banks"]
    assert not figure(viewed(sentences=[(CAT, WEIGHTS)])).locator("select").is_visible()


# Pixels ---------------------------------------------------------------------------------------

PIXELS = """canvas => { const { width, height } = canvas;
  const all = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  return [width, height, [...all]] }"""


def pixels(canvas):
    width, height, numbers = canvas.evaluate(PIXELS)
    return np.reshape(numbers, (height, width, 4))[..., :3]


def ramp(within):
    return pixels(within.locator(".scale canvas"))[0]


@pytest.mark.parametrize(("theme", "colours", "marks"), [
    ("light", palette.LIGHT, palette.LIGHT_RAMP), ("dark", palette.DARK, palette.DARK_RAMP),
])  # fmt: skip
def test_pictures_are_the_weights_queries_down_keys_across(viewed, theme, colours, marks):
    stops = [[int(colours[name][i : i + 2], 16) for i in (1, 3, 5)] for name in ("paper", "weights", "deep")]
    expected = [np.interp(np.arange(256) / 255, [0, marks["knee"], 1], stop) for stop in np.transpose(stops)]
    within = figure(viewed(theme=theme))
    colours = ramp(within)
    assert len(colours) == 256
    np.testing.assert_allclose(colours, np.transpose(expected), atol=1)
    steps = (WEIGHTS * 255).round().long().numpy()
    np.testing.assert_array_equal(pixels(within.locator(".cells canvas")), colours[steps[1, 2]])
    for layer, number in [(0, 0), (1, 3), (2, 2)]:
        picture = head(within, layer + 1, number + 1).locator("canvas")
        np.testing.assert_array_equal(pixels(picture), colours[steps[layer, number]])


def test_colours_follow_the_page_at_once(viewed):
    page = viewed()
    within = figure(page)
    before = pixels(within.locator(".cells canvas"))
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    after = pixels(within.locator(".cells canvas"))
    steps = (WEIGHTS[1, 2] * 255).round().long().numpy()
    assert (before != after).any()
    np.testing.assert_array_equal(after, ramp(within)[steps])
    picture = pixels(head(within, 1, 1).locator("canvas"))
    np.testing.assert_array_equal(picture, ramp(within)[(WEIGHTS[0, 0] * 255).round().long().numpy()])


def test_a_thin_line_is_seen_in_a_small_picture(viewed):
    T = 64
    weights = torch.eye(T).expand(1, 1, T, T)
    within = figure(viewed(sentences=[(["w"] * T, weights)], start=(0, 0, 0)))
    small = pixels(head(within, 1, 1).locator("canvas"))
    assert len(small) == 22
    assert (small[np.arange(22), np.arange(22)] == ramp(within)[255]).all()
    assert (small[21, 10] == ramp(within)[0]).all()


# Hands ----------------------------------------------------------------------------------------


def test_the_mouse_shows_and_a_click_keeps(viewed):
    page = viewed()
    within = figure(page)

    def asked():
        return within.locator(".tokens .asked input").evaluate("e => [e.name, e.getAttribute('aria-label')]")

    labels = within.locator(".tokens.from label")
    labels.nth(6).hover()
    assert asked() == ["from", "mat"]
    assert within.locator(".sum").text_content().startswith("mat looks most at")
    within.locator(".tokens.to label").nth(2).hover()  # on the way to read the numbers: nothing turns
    assert asked() == ["from", "sat"]
    labels.nth(4).click()
    page.mouse.move(1, 1)
    assert asked() == ["from", "on"]
    assert_shows(within, WEIGHTS[1, 2].numpy(), 4)


def test_a_cell_of_the_heatmap_is_read_as_query_and_key(viewed):
    page = viewed()
    within = figure(page)
    box = within.locator(".cells").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 6.5 / 8, box["y"] + box["height"] * 2.5 / 8)
    weight = (WEIGHTS[1, 2, 2, 6] * 255).round() / 255
    assert (
        within.locator(".read").text_content() == f"Row cat, column mat: cat looks at mat with {weight:.2f}."
    )
    assert within.locator(".sum").text_content().startswith("cat looks")
    page.mouse.down(), page.mouse.up()
    page.mouse.move(1, 1)
    assert_shows(within, WEIGHTS[1, 2].numpy(), 2)
    turn(within, "to")
    page.mouse.click(box["x"] + box["width"] * 6.5 / 8, box["y"] + box["height"] * 2.5 / 8)
    assert_shows(within, WEIGHTS[1, 2].numpy(), 6, "to")


def test_everything_by_keyboard(viewed):
    page = viewed()
    within = figure(page)

    def press(*keys):
        for key in keys:
            page.keyboard.press(key)

    def focused():
        return page.evaluate(
            """() => { let e = document.activeElement;
            while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement;
            const seen = e.localName === 'input' ? e.nextElementSibling : e;
            return [e.ariaLabel ?? e.localName, getComputedStyle(seen).outlineStyle] }"""
        )

    press("Tab")
    assert focused() == ["select", "solid"]
    press("Tab")
    assert focused() == ["layer 2, head 3", "solid"]
    press("ArrowUp", "ArrowUp", "ArrowRight")
    assert focused() == ["layer 1, head 4", "solid"]
    assert_shows(within, WEIGHTS[0, 3].numpy(), 3)
    press("ArrowRight", "ArrowDown", "Home")
    assert focused() == ["layer 2, head 1", "solid"]
    press("End", "ArrowDown", "ArrowDown", "ArrowLeft")
    assert_shows(within, WEIGHTS[2, 2].numpy(), 3)
    press("Tab")
    assert focused() == [SIDES["from"], "solid"]
    press("Tab", "ArrowDown")
    assert focused() == ["on", "solid"]
    assert_shows(within, WEIGHTS[2, 2].numpy(), 4)
    press("ArrowUp", "ArrowUp")
    assert_shows(within, WEIGHTS[2, 2].numpy(), 2)
    press("Shift+Tab", "ArrowRight")
    assert focused() == [SIDES["to"], "solid"]
    assert_shows(within, WEIGHTS[2, 2].numpy(), 2, "to")
    within.locator(".tokens.to input").nth(2).focus()
    press("ArrowDown")
    assert_shows(within, WEIGHTS[2, 2].numpy(), 3, "to")


def test_nothing_moves_under_the_mouse(viewed):
    """Bold names are wider: whatever is asked about, tokens, ribbons and cells stay where they are."""
    within = figure(viewed())
    boxes = """all => all.map(e => { const { x, y, width, height } = e.getBoundingClientRect();
        return [x, y, width, height] })"""
    seen = set()
    for place in range(len(CAT)):
        token(within, "from", place).check()
        seen.add(str(within.locator(".tokens label, .ribbons svg, .cells").evaluate_all(boxes)))
    assert len(seen) == 1


def test_what_was_chosen_is_said(viewed):
    page = viewed(clock=True)
    within = figure(page)
    status = within.locator("[role=status]")
    head(within, 3, 1).click()
    assert status.text_content() == ""  # while the reader moves on, nothing is said
    page.clock.run_for(500)
    assert status.text_content() == f"Layer 3, head 1. {within.locator('.sum').text_content()}"


def test_ribbons_glide_and_arrive(viewed):
    page = viewed(reduced_motion="no-preference", clock=True)
    within = figure(page)
    before = within.locator(".ribbons path").first.get_attribute("d")
    token(within, "from", 6).check()
    page.clock.run_for(100)
    assert within.locator(".ribbons path").first.get_attribute("d") != before
    page.clock.run_for(300)
    assert_shows(within, WEIGHTS[1, 2].numpy(), 6)


def test_two_copies_do_not_interfere(viewed):
    page = viewed(copies=2)
    head(figure(page, 1), 3, 4).click()
    turn(figure(page, 1), "to")
    token(figure(page, 1), "to", 6).check()
    assert_shows(figure(page, 0), WEIGHTS[1, 2].numpy(), 3)
    assert_shows(figure(page, 1), WEIGHTS[2, 3].numpy(), 6, "to")


# Everywhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 390, 320])
def test_accessible_and_never_too_wide(viewed, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    long = [f"word{'s' * (i % 20)}" for i in range(64)]
    page = viewed(
        sentences=[(BANK, drawn(len(BANK), 12, 12)), (long, drawn(64, 12, 12))], theme=theme, width=width
    )
    within = figure(page)
    for side in ("from", "to"):
        turn(within, side)
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
    for sentence in "01":
        within.get_by_role("combobox").select_option(sentence)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        box = within.locator("figure").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        inner = within.locator(".parts *").evaluate_all(
            "all => Math.max(...all.map(e => e.getBoundingClientRect().right))"
        )
        assert inner <= box["x"] + box["width"]


def test_says_something_where_scripts_do_not_run(viewed):
    said = figure(viewed(java_script_enabled=False)).inner_text()
    assert "needs JavaScript" in said and "Where each token looks most in layer 2, head 3" in said
    place = WEIGHTS[1, 2, 3].argmax().item()
    assert re.search(rf"sat\s+{re.escape(CAT[place])}\s+{WEIGHTS[1, 2, 3, place]:.2f}", said)


def test_stands_alone():
    html = head_view([(CAT, WEIGHTS)]).html
    assert not re.search(
        r"https?:|src=|@import|url\(|fetch\(", html.replace("http://www.w3.org/2000/svg", "")
    )
    assert len(html) < 40_000 and html.count("</script>") == 1
    assert head_view([(CAT, WEIGHTS)]).html != html


def test_a_token_cannot_end_the_script(page_with):
    tokens = ["</script>", "<b>", "&amp;", "猫", '"', "</table>", "x", "\u2028"]
    page = page_with(head_view([(tokens, WEIGHTS)], start=(0, 0, 1)))
    within = figure(page)
    assert within.locator(".tokens.to .word").all_text_contents() == tokens
    assert page.locator("b").count() == within.locator("b").count()

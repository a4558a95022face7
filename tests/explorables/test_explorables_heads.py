"""The wide projection that is cut: however it is cut, the numbers are the package's."""

import re

import numpy as np
import pytest
import torch
from browser import figure

from attention_course.attention import attend
from attention_course.explorables.split_heads import WIDE, split_heads
from attention_course.heads import MultiHeadAttention
from attention_course.lab.data import example

SAT = example.TOKENS.index("sat")
X = torch.tensor(example.X)
PERMUTED = [0, 2, 1, 3]


@pytest.fixture
def cut(page_with):
    """Open a page with ``copies`` of the figure and return the page."""
    return lambda copies=1, **options: page_with(*(split_heads() for _ in range(copies)), **options)


def choose(within, group, name):
    within.locator(f".{group}").get_by_role("radio", name=name, exact=True).check()


def permute(within, on=True):
    within.locator("details").evaluate("e => { e.open = true }")
    within.get_by_role("checkbox").set_checked(on)


def numbers(within, selector, *shape):
    found = within.locator(selector).evaluate_all("all => all.map(e => Number(e.dataset.value))")
    return np.reshape(found, shape)


def heads(h, order=(0, 1, 2, 3), every=False):
    """Weights [h, 6, 6] and concatenated contexts [6, 4]: ``attend`` on slices of the package's products."""
    query, key, value = (
        X @ torch.from_numpy(WIDE[role])[:, list(order)] for role in ("query", "key", "value")
    )
    slices = [slice(i, None, h) if every else slice(i * 4 // h, (i + 1) * 4 // h) for i in range(h)]
    contexts, weights = zip(*(attend(query[:, s], key[:, s], value[:, s]) for s in slices), strict=True)
    return torch.stack(weights), torch.cat(contexts, -1)


def layer(h, order=(0, 1, 2, 3)):
    """The same from the package's layer: X and the weights get a fourth row of zeros, W_O is the identity."""
    module = MultiHeadAttention(4, h, bias=False).double()
    state = {"output_projection.weight": torch.eye(4)}
    for role, wide in WIDE.items():
        padded = np.concatenate((wide, np.zeros((1, 4))))[:, list(order)]
        state[f"{role}_projection.weight"] = torch.from_numpy(padded).mT
    module.load_state_dict(state)
    with torch.no_grad():
        context, weights = module(torch.nn.functional.pad(X, (0, 1)), need_weights=True)
    return weights, context


def assert_heads(within, weights, contexts, row=SAT):
    """Every weight, the context and the words about them are those of ``weights`` and ``contexts``."""
    h = len(weights)
    np.testing.assert_allclose(numbers(within, ".card td.weight", h, 6, 6), weights, rtol=0, atol=1e-9)
    np.testing.assert_allclose(numbers(within, ".joined td", 4), contexts[row], rtol=0, atol=1e-9)
    texts = within.locator(".card td.weight").all_text_contents()
    assert texts == [f"{weight:.2f}".removeprefix("0") for weight in weights.flatten().tolist()]
    assert within.locator(".cards tr.chosen").count() == h
    shares = within.locator(".card td.weight").evaluate_all(
        "all => all.map(e => parseFloat(e.style.getPropertyValue('--w')))"
    )
    np.testing.assert_allclose(shares, weights.flatten(), rtol=0, atol=1e-9)
    for i, line in enumerate(within.locator(".most").all_text_contents()):
        largest = weights[i, row].max()
        assert line.startswith(f"{example.TOKENS[row]} looks ") and line.endswith(f": {largest:.2f}")
        best = weights[i, row].argmax().item()
        assert example.TOKENS[best] in line or "all words alike" in line


@pytest.mark.parametrize("h", [1, 2, 4])
def test_each_head_is_attention_on_its_slice(cut, h):
    within = figure(cut())
    choose(within, "heads", str(h))
    for row, name in enumerate(("the (word 1)", "cat", "sat", "on", "the (word 5)", "mat")):
        choose(within, "words", name)
        assert_heads(within, *heads(h), row)
        assert_heads(within, *layer(h), row)


def test_starts_with_one_head(cut):
    within = figure(cut())
    assert_heads(within, *heads(1))
    assert within.locator(".product .title").text_content() == "One product, one head"
    choose(within, "heads", "4")
    assert within.locator(".product .title").text_content() == "One product, cut into 4 heads"


def test_one_picture_or_four_different_ones():
    """What the figure is for, in numbers of the package."""
    assert heads(1)[0][0, SAT].argmax() == 5 and heads(1)[0][0, SAT, 5] > 0.75  # mostly mat
    two = heads(2)[0][:, SAT]
    assert two.argmax(-1).tolist() == [1, 5]  # who: cat, where: mat
    np.testing.assert_allclose(two[[0, 1], [1, 5]], [0.487, 0.576], atol=5e-4)  # chapter 4's numbers
    four = heads(4)[0]
    for i in range(4):
        for j in range(i):
            assert (four[i] - four[j]).abs().max() > 0.2


def test_two_heads_are_the_chapters(cut):
    """Cut in two, the wide matrices are the running example's head and the chapter's second one."""
    for role, first in (("query", example.W_Q), ("key", example.W_K), ("value", example.W_V)):
        np.testing.assert_array_equal(WIDE[role][:, :2], first)
    within = figure(cut())
    choose(within, "heads", "2")
    context, weights = attend(
        *(torch.from_numpy(example.X @ w) for w in (example.W_Q, example.W_K, example.W_V))
    )
    np.testing.assert_allclose(numbers(within, ".card td.weight", 2, 6, 6)[0], weights, rtol=0, atol=1e-9)
    np.testing.assert_allclose(numbers(within, ".joined td", 4)[:2], context[SAT], rtol=0, atol=1e-9)


@pytest.mark.parametrize("role", ["query", "key", "value"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_the_product_is_x_times_the_weights_above(cut, role, order):
    within = figure(cut())
    choose(within, "roles", f"{role[0].upper()}, {role}")
    permute(within, order[1] == 2)
    assert within.locator(".product tr.chosen").count() == (role == "query")
    weights = numbers(within, ".product .w td", 3, 4)
    rows = numbers(within, ".product .q td", 6, 7)
    np.testing.assert_array_equal(weights, WIDE[role][:, list(order)])
    np.testing.assert_array_equal(rows[:, :3], example.X)
    np.testing.assert_allclose(rows[:, 3:], example.X @ weights, rtol=0, atol=1e-12)
    for text, number in zip(
        within.locator(".product td[data-value]").all_text_contents(),
        numbers(within, ".product td[data-value]", -1),
        strict=True,
    ):
        assert float(text.replace("−", "-")) == pytest.approx(number, abs=1e-12)  # one decimal says it all
        assert text != "−0.0"


def test_columns_are_told_apart_by_name_and_ground(cut):
    within = figure(cut())
    for h, spans in ((1, ["4"]), (2, ["2", "2"]), (4, ["1"] * 4)):
        choose(within, "heads", str(h))
        read = "all => all.map(e => [e.textContent, String(e.colSpan)])"
        for table in (".product", ".joined"):
            brackets = within.locator(f"{table} .bracket").evaluate_all(read)
            assert brackets == [[f"head {i + 1}", span] for i, span in enumerate(spans)]
        grounds = within.locator(".product .w tr:first-child .column").evaluate_all(
            "all => all.map(e => getComputedStyle(e).backgroundColor)"
        )
        assert len(set(grounds)) == h
    choose(within, "heads", "2")
    within.locator("summary").click()
    choose(within, "cuts", "every h-th column")
    assert within.locator(".product .bracket").all_text_contents() == ["head 1", "head 2"] * 2
    assert within.locator(".card .name").all_text_contents() == [
        "head 1: columns a, c",
        "head 2: columns b, d",
    ]
    permute(within)
    assert within.locator(".card .name").all_text_contents() == [
        "head 1: columns a, b",
        "head 2: columns c, d",
    ]
    names = within.locator(".product .names .column").all_text_contents()
    assert names == ["Q a", "Q c", "Q b", "Q d"]


@pytest.mark.parametrize("h", [1, 2, 4])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
def test_any_cut_of_any_order(cut, h, every, permuted):
    within = figure(cut())
    order = PERMUTED if permuted else range(4)
    choose(within, "heads", str(h))
    permute(within, permuted)
    choose(within, "cuts", "every h-th column" if every else "neighbouring columns")
    weights, contexts = heads(h, order, every)
    assert_heads(within, weights, contexts)
    if not every:
        assert_heads(within, *layer(h, order))
    told = within.locator(".meets").text_content()
    in_order = heads(h)[0]
    same = all(any(torch.allclose(w, first) for first in in_order) for w in weights)
    moved = (
        torch.stack([(w - first).abs().max() for w, first in zip(weights, in_order, strict=True)]).max()
        > 1e-9
    )
    assert ("pictures are the same" in told) == (same and (every or permuted))
    assert ("in another order" in told) == (same and bool(moved))
    assert ("Other columns meet: a and c; b and d." in told) == (not same)


def test_a_permutation_takes_up_the_other_cut(cut):
    """Every other column of the permuted weights: the very heads of the cut in order."""
    within = figure(cut())
    choose(within, "heads", "2")
    in_order = numbers(within, ".card td.weight", -1), numbers(within, ".joined td", -1)
    within.locator("summary").click()
    choose(within, "cuts", "every h-th column")
    assert np.abs(numbers(within, ".card td.weight", -1) - in_order[0]).max() > 0.2
    permute(within)
    np.testing.assert_array_equal(numbers(within, ".card td.weight", -1), in_order[0])
    np.testing.assert_array_equal(numbers(within, ".joined td", -1), in_order[1])
    assert "the same columns meet" in within.locator(".meets").text_content().lower()


def test_a_click_on_a_row_chooses_its_query(cut):
    within = figure(cut())
    choose(within, "heads", "2")
    within.locator(".card").nth(1).locator("tbody tr").nth(3).click()
    assert within.get_by_role("radio", name="on", exact=True).is_checked()
    assert_heads(within, *heads(2), row=3)
    assert within.locator(".joined .title").text_content() == "Side by side: the context of on"


def test_equal_weights_share_the_first_place(cut):
    within = figure(cut())
    choose(within, "heads", "4")
    assert (
        within.locator(".most").nth(3).text_content()
        == "sat looks most at the (word 1), the (word 5), mat: 0.22"
    )
    choose(within, "words", "the (word 1)")
    assert within.locator(".most").nth(0).text_content() == "the looks at all words alike: 0.17"


def test_everything_by_keyboard(cut):
    page = cut()
    within = figure(page)

    def press(*keys):
        for key in keys:
            page.keyboard.press(key)

    def focused():
        return page.evaluate(
            """() => { let e = document.activeElement;
            while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement;
            return [e.ariaLabel ?? e.innerText ?? e.type, getComputedStyle(e).outlineStyle] }"""
        )

    press("Tab", "ArrowRight", "ArrowRight")
    assert focused() == ["4", "solid"]
    assert_heads(within, *heads(4))
    press("Tab", "ArrowRight", "ArrowRight", "ArrowRight")
    assert focused() == ["mat", "solid"]
    assert_heads(within, *heads(4), row=5)
    press("Tab", "ArrowRight")
    assert focused() == ["K, key", "solid"]
    assert within.locator(".product .bracket").first.text_content() == "head 1"
    press("Tab")
    assert focused() == ["Cut otherwise", "solid"]
    press(
        "Enter",
        "Tab",
        "ArrowDown",
        "Tab",
        "Space",
        "Shift+Tab",
        "Shift+Tab",
        "Shift+Tab",
        "Shift+Tab",
        "Shift+Tab",
    )
    assert focused() == ["4", "solid"]
    press("ArrowLeft")
    assert_heads(within, *heads(2, PERMUTED, every=True), row=5)


def test_what_changed_is_said(cut):
    page = cut()
    within = figure(page)
    status = within.locator("[role=status]")
    assert status.text_content() == ""
    choose(within, "heads", "2")
    within.locator("[role=status]", has_text="2 heads").wait_for(state="attached")
    assert status.text_content() == (
        "2 heads of width 2: 2 pictures of attention from the same 4 columns. "
        "Query sat: head 1 (columns a, b) looks most at cat: 0.49; "
        "head 2 (columns c, d) looks most at mat: 0.58. Context 1.39, 0.45, 1.40, 0.56."
    )


def test_every_part_has_a_name(cut):
    within = figure(cut())
    choose(within, "heads", "2")
    for name in (
        "Heads h =",
        "Query",
        "One product",
        "Projection",
        "The weights of each head",
        "Side by side",
    ):
        assert within.get_by_role("group", name=name).is_visible()
    for name in ("One product, cut into 2 heads", "Weights of head 1", "Weights of head 2", "Side by side"):
        assert within.get_by_role("table", name=name).is_visible()


def test_two_copies_do_not_interfere(cut):
    page = cut(copies=2)
    choose(figure(page, 1), "heads", "4")
    choose(figure(page, 1), "words", "on")
    assert_heads(figure(page, 0), *heads(1))
    assert_heads(figure(page, 1), *heads(4), row=3)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390, 320])
def test_accessible_and_never_too_wide(cut, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = cut(theme=theme, width=width)
    within = figure(page)
    permute(within)
    roles = ("Q, query", "K, key", "V, value")
    for role in roles if width == 1400 else roles[-1:]:  # colours do not depend on the width
        choose(within, "heads", "4")
        choose(within, "roles", role)
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for h in (1, 2, 4):
        choose(within, "heads", str(h))
        wide = within.locator("figure td, figure th").evaluate_all(
            """all => all.filter(e => {
                const text = document.createRange();
                text.selectNodeContents(e);
                return text.getBoundingClientRect().width > e.getBoundingClientRect().width;
            }).map(e => e.textContent)"""
        )
        assert wide == []  # no number and no name leaves its cell


def test_says_something_where_scripts_do_not_run(cut):
    assert "needs JavaScript" in figure(cut(java_script_enabled=False)).inner_text()


def test_stands_alone():
    html = split_heads()._repr_html_()
    assert not re.search(
        r"https?:|src=|@import|url\(|fetch\(", html.replace("http://www.w3.org/2000/svg", "")
    )
    assert len(html) < 40_000 and html.count("</script>") == 1
    assert split_heads().html != html

"""The graph in the page: its weights are those of the package, whichever edges a reader draws."""

import re

import numpy as np
import pytest
import torch
from browser import figure

from attention_course.beyond.graphs import gat_scores, gatv2_scores, segment_softmax
from attention_course.explorables import drag_an_edge
from attention_course.explorables.drag_an_edge import FEATURES, HEARD_BY, NODES, SLOPE, A, W

READ = "all => all.map(e => Number(e.dataset.value))"
NAMES = {"GAT": "GAT: sum up, then bend", "GATv2": "GATv2: bend, then sum up"}
X = torch.tensor(FEATURES)


def scored(edges, version):
    """What the library says of each edge: its score and its weight [E]."""
    W_q, W_k = torch.tensor(W, dtype=torch.float32).split(2, dim=-1)
    query, key, a = (X @ W_q.T)[:, None], (X @ W_k.T)[:, None], torch.tensor([A])
    if version == "GAT":
        scores = gat_scores((query * a).sum(-1), (key * a).sum(-1), edges, negative_slope=SLOPE)
    else:
        scores = gatv2_scores(query, key, a, edges, negative_slope=SLOPE)
    return scores[:, 0], segment_softmax(scores, edges[1], len(NODES))[:, 0]


def in_rows(heard_by):
    pairs = [(NODES.index(s), NODES.index(t)) for t, sources in heard_by.items() for s in sources]
    return torch.tensor(pairs).T.reshape(2, -1)


def assert_shows(within, node, heard_by, version):
    """Scores, weights, arrows, context and favourites are the library's for these edges."""
    edges, query = in_rows(heard_by), NODES.index(node)
    all_pairs = torch.cartesian_prod(torch.arange(7), torch.arange(7)).T
    scores = scored(all_pairs, version)[0].reshape(7, 7)  # [key, query]
    expected = torch.zeros(7)
    into = edges[1] == query
    expected[edges[0, into]] = scored(edges, version)[1][into]

    rows = within.locator(".asked tbody tr")
    np.testing.assert_allclose(
        rows.locator("td:nth-child(2)").evaluate_all(READ), scores[:, query], atol=1e-5
    )
    np.testing.assert_allclose(rows.locator("td span").evaluate_all(READ), expected, atol=1e-6)
    checked = rows.locator("input").evaluate_all("all => all.map(e => e.checked)")
    assert [n for n, on in zip(NODES, checked, strict=True) if on] == sorted(heard_by[node])
    assert rows.evaluate_all("all => all.filter(e => e.hidden).length") == 1
    drawn = within.locator(".arrow").evaluate_all("all => all.map(e => e.dataset.edge)")
    assert sorted(drawn) == sorted(s + t for t, sources in heard_by.items() for s in sources)
    seen = within.locator(".arrow.seen").evaluate_all("all => all.map(e => e.dataset.edge[0])")
    numbers = dict(zip(seen, within.locator("svg .weight").evaluate_all(READ), strict=True))
    assert numbers == pytest.approx({n: expected[NODES.index(n)].item() for n in heard_by[node]}, abs=1e-6)
    shafts = within.locator(".arrow.seen").evaluate_all(
        """all => all.map(e => { const p = e.getAttribute("d").match(/-?[\\d.]+/g).map(Number);
        return Math.hypot(p[0] - p[12], p[1] - p[13]) })"""
    )
    np.testing.assert_allclose(shafts, [2 + 14 * numbers[n] for n in seen], atol=0.15)  # one decimal a corner

    if heard_by[node]:
        context = within.locator(".context span").evaluate_all(READ)
        np.testing.assert_allclose(context, expected @ X, atol=1e-5)
    else:
        assert within.locator(".context").text_content() == f"{node} hears nobody: context 0."
    best = [
        max(heard_by[n], key=lambda s: scores[NODES.index(s), NODES.index(n)].item(), default="nobody")
        for n in NODES
    ]
    said = within.locator(".favourites").text_content().replace("\u00a0", " ")
    assert said == "Looks most at: " + ", ".join(f"{n} → {b}" for n, b in zip(NODES, best, strict=True)) + "."
    orders = within.locator(".all tbody tr").evaluate_all(
        "all => all.map(e => [...e.cells].slice(1).map(c => c.textContent).join(''))"
    )
    assert orders == ["".join(NODES[j] for j in row.argsort(descending=True)) for row in scores.T]


def box(within, name):
    return within.get_by_role("button", name=re.compile(f"^{name}: hears"))


def middle(within, name):
    area = box(within, name).locator(".box").bounding_box()
    return area["x"] + area["width"] / 2, area["y"] + area["height"] / 2


def pull(page, within, source, target):
    """Drag with the mouse from one node to another."""
    page.mouse.move(*middle(within, source))
    page.mouse.down()
    page.mouse.move(*middle(within, target), steps=5)
    page.mouse.up()


@pytest.mark.parametrize("version", NAMES)
def test_every_node_with_both_scores(page_with, version):
    within = figure(page_with(drag_an_edge()))
    within.get_by_role("radio", name=NAMES[version]).check()
    for node in NODES:
        box(within, node).click()
        assert box(within, node).get_attribute("aria-pressed") == "true"
        assert_shows(within, node, HEARD_BY, version)


def test_one_order_for_all_or_one_for_each(page_with):
    """The chapter's point, and that the figure says it."""
    within = figure(page_with(drag_an_edge()))
    rows = within.locator(".all tbody tr")
    read = "all => new Set(all.map(e => [...e.cells].slice(1).map(c => c.textContent).join(' '))).size"
    assert rows.evaluate_all(read) == 7
    assert within.locator(".order").text_content() == "7 different orders: each node has its own."
    within.get_by_role("radio", name=NAMES["GAT"]).check()
    assert rows.evaluate_all(read) == 1
    order = " ".join(rows.first.locator("td").all_text_contents())
    assert within.locator(".order").text_content().startswith(f"One order for all: {order}.")


def test_edges_drawn_and_removed_with_the_mouse(page_with):
    page = page_with(drag_an_edge())
    within = figure(page)
    pull(page, within, "G", "D")
    heard = HEARD_BY | {"D": "BCEG"}
    assert_shows(within, "D", heard, "GATv2")
    assert within.locator("[role=status]").text_content().startswith("Edge from G to D drawn. D takes away")
    pull(page, within, "A", "G")  # whom the edge reaches is chosen
    heard["G"] = "A"
    assert_shows(within, "G", heard, "GATv2")
    pull(page, within, "A", "G")
    heard["G"] = ""
    assert_shows(within, "G", heard, "GATv2")
    page.mouse.move(*middle(within, "A"))  # let go beside every node: nothing happens
    page.mouse.down()
    x, y = middle(within, "A")
    page.mouse.move(x + 70, y + 60, steps=3)
    page.mouse.up()
    assert_shows(within, "G", heard, "GATv2")
    assert within.locator(".rubber").get_attribute("visibility") == "hidden"


def test_drag_with_a_finger(page_with):
    page = page_with(drag_an_edge(), width=390, has_touch=True, is_mobile=True)
    within = figure(page)
    touch = page.context.new_cdp_session(page)

    def send(kind, *points):
        points = [{"x": x, "y": y} for x, y in points]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    (x, y), (to_x, to_y) = middle(within, "A"), middle(within, "E")
    send("touchStart", (x, y))
    for part in (0.2, 0.5, 0.8, 1):
        send("touchMove", (x + part * (to_x - x), y + part * (to_y - y)))
    send("touchEnd")
    assert_shows(within, "E", HEARD_BY | {"E": "ACDF"}, "GATv2")
    assert page.evaluate("scrollY") == 0


def test_everything_by_keyboard(page_with):
    page = page_with(drag_an_edge())
    within = figure(page)

    def focused():
        return page.evaluate("document.activeElement.shadowRoot.activeElement.getAttribute('aria-label')")

    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    assert_shows(within, "D", HEARD_BY, "GAT")
    page.keyboard.press("Tab")
    assert focused() == "D: hears B, C, E"
    page.keyboard.press("ArrowUp")
    assert focused().startswith("B:")
    assert within.locator(".node:focus-visible .ring").evaluate("e => getComputedStyle(e).stroke") != "none"
    page.keyboard.press("e")
    heard = HEARD_BY | {"D": "CE"}
    assert_shows(within, "D", heard, "GAT")
    page.keyboard.press("ArrowRight")
    assert focused().startswith("A:")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert_shows(within, "G", heard, "GAT")
    page.keyboard.press("e")  # no edge from a node to itself
    assert_shows(within, "G", heard, "GAT")
    page.keyboard.press("Tab")  # the list: boxes to tick
    page.keyboard.press("Space")
    assert_shows(within, "G", heard | {"G": "A"}, "GAT")


def test_every_node_is_reached_by_arrow_keys(page_with):
    page = page_with(drag_an_edge())
    within = figure(page)
    reached, new = set(), {"D"}
    while new:
        reached |= new
        found = set()
        for name in new:
            for key in ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"):
                box(within, name).focus()
                page.keyboard.press(key)
                found.add(
                    page.evaluate("document.activeElement.shadowRoot.activeElement.ariaLabel.slice(0, 1)")
                )
        new = found - reached
    assert reached == set(NODES)


def test_two_copies_do_not_interfere(page_with):
    page = page_with(drag_an_edge(), drag_an_edge())
    figure(page, 1).get_by_role("radio", name=NAMES["GAT"]).check()
    box(figure(page, 1), "A").click()
    assert_shows(figure(page, 0), "D", HEARD_BY, "GATv2")
    assert_shows(figure(page, 1), "A", HEARD_BY, "GAT")


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 800), ("dark", 390), ("light", 320)])
def test_accessible_and_never_too_wide(page_with, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = page_with(drag_an_edge(), theme=theme, width=width)
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_says_something_where_scripts_do_not_run(page_with):
    said = figure(page_with(drag_an_edge(), java_script_enabled=False)).inner_text()
    assert "needs JavaScript" in said
    assert re.search(r"D\s+B, C, E\s+C\s+B\s", said) and re.search(r"G\s+nobody\s+–\s+–", said)


def test_stands_alone():
    html = drag_an_edge().html
    assert not re.search(
        r"https?:|src=|@import|url\(|fetch\(", html.replace("http://www.w3.org/2000/svg", "")
    )
    assert len(html) < 40_000 and html.count("</script>") == 1

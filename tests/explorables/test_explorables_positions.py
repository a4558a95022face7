"""The clock hands: whatever is moved, the numbers are those of the package's sinusoidal encoding."""

import itertools
import re

import numpy as np
import pytest
import torch
from browser import figure

from attention_course import positions
from attention_course.explorables.clock_hands import clock_hands

LENGTH, WIDTH, CLOCKS = 128, 8, 4
ALIKE = 0.98


@pytest.fixture
def hung(page_with):
    """Open a page with ``copies`` of the figure and return the page."""
    return lambda copies=1, **options: page_with(*(clock_hands() for _ in range(copies)), **options)


def move(within, position=None, shift=None):
    for name, value in (("position", position), ("shift", shift)):
        if value is not None:
            within.locator(f".{name} input").fill(str(value))


def use(within, clocks):
    for i in range(CLOCKS):
        within.get_by_role("checkbox", name=f"clock {i + 1}").set_checked(i in clocks)


def choose_base(within, base):
    name = {10: "10", 100: "100", 10_000: "10\u202f000"}[base]
    within.get_by_role("radio", name=name, exact=True).and_(within.locator(".base input")).check()


def numbers(within, selector):
    """The full numbers that stand in ``data-value``."""
    return within.locator(selector).evaluate_all("all => all.map(e => Number(e.dataset.value))")


def hands(position, base):
    """The package's encoding of one position as (cos, sin) for each clock, [4, 2]."""
    row = positions.sinusoidal(1, WIDTH, base=float(base), start=position)[0]
    return row.view(CLOCKS, 2).flip(-1)  # the package has the sine first


def likeness(position, base, clocks):
    """The dot product with each position's encoding, columns of ``clocks`` only, over their number."""
    columns = [column for i in clocks for column in (2 * i, 2 * i + 1)]
    table = positions.sinusoidal(LENGTH, WIDTH, base=float(base))[:, columns].double()
    return (table @ table[position] / len(clocks)).numpy()


def close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def assert_sectors(within, now, later, turns):
    """The grey sector of each clock runs against the clock's sense, from one hand to the other."""
    arc = r"M 0 0 L (\S+) (\S+) A \S+ \S+ 0 ([01]) 0 (\S+) (\S+) Z"
    for i, path in enumerate(within.locator(".sector").all()):
        x0, y0, large, x1, y1 = (float(n) for n in re.fullmatch(arc, path.get_attribute("d")).groups())
        close(
            [np.array([x0, -y0]) / np.hypot(x0, y0), np.array([x1, -y1]) / np.hypot(x1, y1)],
            [now[i], later[i]],
        )
        assert large == (turns[i] % (2 * np.pi) > np.pi)


def assert_clocks(within, position, shift, base, chosen=0):
    """Numbers, hands, turns and matrix are those of the package."""
    now, later = hands(position, base), hands(position + shift, base)
    close(numbers(within, ".clocks .cos"), now[:, 0])
    close(numbers(within, ".clocks .sin"), now[:, 1])
    tip = "all => all.map(e => [e.x2.baseVal.value, -e.y2.baseVal.value])"
    close(within.locator(".hand:not(.at-k)").evaluate_all(tip), now)
    close(within.locator(".hand.at-k").evaluate_all(tip), later)
    omega = base ** (-np.arange(CLOCKS) * 2 / WIDTH)
    assert_sectors(within, now, later, omega * shift)
    close(numbers(within, ".wavelength"), 2 * np.pi / omega, 1e-9)
    close(numbers(within, ".by span"), omega * shift)

    matrix = np.reshape(numbers(within, ".square .matrix span"), (2, 2))
    before, after = (numbers(within, f".equation .{at} .matrix span") for at in ("at-p", "at-k"))
    close(before, now[chosen])
    close(after, later[chosen])
    close(matrix @ before, after)
    both = torch.eye(2, dtype=torch.float64)[:, None].repeat(1, 1, CLOCKS)  # the two axes, for every clock
    turned = positions.rotate(both, torch.tensor([shift]), base=float(base)).view(2, CLOCKS, 2)
    close(matrix, turned[:, chosen].T, 1e-5)  # rotate's angles are float32


def drawn(within, name):
    """The dots of the curve as {position: likeness}."""
    path = within.locator(f".curve .{name}").get_attribute("d") or ""
    dots = re.findall(r"M (\S+) (\S+) h 0", path)
    return {round(float(x) - 0.5): -float(y) for x, y in dots}


def assert_alike(within, position, base, clocks):
    """The curve is the package's dot product, and exactly what comes too close to 1 is marked and named."""
    expected = likeness(position, base, clocks)
    dots = drawn(within, "dots")
    assert list(dots) == list(range(LENGTH))
    close(list(dots.values()), expected)
    marked = [int(p) for p in np.flatnonzero(expected >= ALIKE) if p != position]
    assert list(drawn(within, "marks")) == marked
    assert within.locator(".ticks .mark").count() == len(marked)
    verdict = within.locator(".verdict").text_content()
    if marked:
        verb = "are" if len(marked) > 1 else "is"
        assert f"{len(marked)} of 127 other positions {verb} hard to tell from {position}: " in verdict
        named = [int(p) for p in re.findall(r"\d+", verdict.split(":")[1])]
        assert named == marked[:10] and verdict.endswith(", …." if len(marked) > 10 else f"{marked[-1]}.")
    else:
        assert f"no other position is hard to tell from {position}." in verdict
        most = int(re.search(r"most alike is (\d+), with (\d\.\d\d)", verdict)[1])
        others = np.delete(expected, position)
        assert most != position and expected[most] == pytest.approx(others.max(), abs=1e-6)
        assert f"with {others.max():.2f}." in verdict


def test_starts_with_a_hand_per_frequency(hung):
    within = figure(hung())
    assert_clocks(within, 20, 3, 10_000)
    assert_alike(within, 20, 10_000, range(4))
    shown = within.locator(".wavelength").all_text_contents()
    assert shown == ["6.3", "62.8", "628", "6\u202f283"]


@pytest.mark.parametrize("base", [10_000, 100, 10])
def test_hands_are_the_packages_numbers(hung, base):
    within = figure(hung())
    choose_base(within, base)
    for position, shift in ((0, 0), (1, 64), (63, 44), (127, 1), (127, 64)):
        move(within, position, shift)
        for chosen in (0, 3):
            within.locator(".chosen").get_by_role("radio", name=str(chosen + 1)).check()
            assert_clocks(within, position, shift, base, chosen)


def test_the_matrix_does_not_know_the_position(hung):
    within = figure(hung())
    move(within, 5, 11)
    before = numbers(within, ".square .matrix span"), within.locator(".angle").text_content()
    hand = numbers(within, ".equation .at-p .matrix span")
    move(within, 90)
    after = numbers(within, ".square .matrix span"), within.locator(".angle").text_content()
    assert before == after
    assert hand != numbers(within, ".equation .at-p .matrix span")
    assert after[1] == "by ω·k = 1 · 11 = 11 radians = 1 · 360° + 270°, whatever p is."


@pytest.mark.parametrize("base", [10_000, 100, 10])
def test_the_strip_is_the_packages_table(hung, base):
    within = figure(hung())
    choose_base(within, base)
    read = "all => all.map(g => [...g.children].map(e => 2 * Number(e.getAttribute('fill-opacity')) - 1))"
    close(
        within.locator(".strip svg g").evaluate_all(read),
        positions.sinusoidal(LENGTH, WIDTH, base=float(base)).T,
    )
    names = within.locator(".rows span").all_text_contents()
    assert names[:3] == ["sin 1", "cos 1", "sin 2"]  # the package's columns, in its order


@pytest.mark.parametrize("base", [10_000, 100, 10])
def test_which_positions_a_set_of_clocks_mistakes(hung, base):
    within = figure(hung())
    choose_base(within, base)
    for count in range(1, CLOCKS + 1):
        for clocks in itertools.combinations(range(CLOCKS), count):
            use(within, clocks)
            move(within, 7 * count)
            assert_alike(within, 7 * count, base, clocks)


def test_one_clock_repeats_and_four_do_not(hung):
    """What the figure is for, in numbers of the package."""
    fast, slow = likeness(20, 10_000, [0]), likeness(20, 10_000, [3])
    assert fast[20 + 44] > 0.999 and (fast >= ALIKE).sum() == 9  # itself and eight others
    assert (slow >= ALIKE).all()
    assert [p for p in range(LENGTH) if likeness(20, 10_000, [0, 1])[p] >= ALIKE] == [20, 83]
    for position in range(LENGTH):
        assert (likeness(position, 10_000, range(4)) >= ALIKE).sum() == 1


def test_clocks_that_are_not_used_are_gone(hung):
    within = figure(hung())
    use(within, [1])
    shown = within.locator(".clocks .numbers").evaluate_all(
        "all => all.map(e => e.checkVisibility({visibilityProperty: true}))"
    )
    assert shown == [False, True, False, False]
    drawn_rows = within.locator(".strip svg g").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().width > 0)"
    )
    assert drawn_rows == [row in (2, 3) for row in range(WIDTH)]
    assert "clock 2 alone" in within.locator(".verdict").text_content()
    use(within, [])
    assert within.locator(".verdict").text_content() == "Without a clock every position looks the same."
    assert len(drawn(within, "marks")) == LENGTH - 1


def test_the_markers_stand_at_p_and_at_p_plus_k(hung):
    within = figure(hung())

    def centres(selector):
        """Where the lines stand, in positions."""
        box = within.locator(".strip svg").bounding_box()
        lines = [line.bounding_box() for line in within.locator(selector).all()]
        return [(b["x"] + b["width"] / 2 - box["x"]) / box["width"] * LENGTH - 0.5 for b in lines]

    for position, shift in ((0, 0), (20, 3), (63, 64)):
        move(within, position, shift)
        close(centres(".line:not(.at-k)"), [position] * 2, 0.3)
        close(centres(".line.at-k"), [position + shift] * 2, 0.3)
        assert within.locator(".strip .tag").text_content() == f"p = {position}"
        assert within.locator(".curve .tag").text_content() == f"p + k = {position + shift}"
    move(within, 64, 64)  # one beyond the last position
    assert not any(line.is_visible() for line in within.locator(".line.at-k").all())
    assert within.locator(".curve .tag").text_content() == "p + k = 128 →"


def test_everything_by_keyboard(hung):
    page = hung()
    within = figure(page)

    def press(*keys):
        for key in keys:
            page.keyboard.press(key)

    def focused():
        return page.evaluate(
            """() => { let e = document.activeElement;
            while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement;
            return [e.type, e.closest('label').innerText.replace(/\\s+/g, ' ').trim(),
                getComputedStyle(e).outlineStyle] }"""
        )

    press("Tab")
    assert focused() == ["checkbox", "clock 1", "solid"]
    press("Space", "Tab", "Tab")
    assert focused() == ["checkbox", "clock 3", "solid"]
    press("Space", "Tab", "Space")
    assert_alike(within, 20, 10_000, [1])
    press("Tab", "ArrowRight")
    assert focused() == ["radio", "100", "solid"]
    press("Tab", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert focused() == ["range", "Position p = 19", "solid"]
    press("Tab", "End")
    assert focused() == ["range", "Shift k = 64", "solid"]
    press("Tab", "ArrowDown", "ArrowDown")
    assert focused() == ["radio", "3", "solid"]
    use(within, range(4))
    assert_clocks(within, 19, 64, 100, chosen=2)


def test_what_changed_is_said(hung):
    page = hung()
    within = figure(page)
    status = within.locator("[role=status]")
    assert status.text_content() == ""  # nothing is said before somebody moves something
    use(within, [0])
    within.locator("[role=status]", has_text="clock 1 alone").wait_for(state="attached")
    assert status.text_content() == (
        "Position 20, shift 3. Clock 1: cos 0.41, sin 0.91, turned by 172°. "
        "With clock 1 alone, 8 of 127 other positions are hard to tell from 20: "
        "1, 39, 45, 64, 83, 89, 108, 127."
    )
    assert within.locator(".curve").get_attribute("aria-label") in status.text_content()
    for name in (
        "One clock for each pair",
        "The shift as a turn",
        "All positions",
        "Base",
        "The shift turns",
    ):
        assert within.get_by_role("group", name=name).is_visible()
    equation = within.get_by_role("img", name="The matrix with rows −0.99, −0.14 and 0.14, −0.99")
    assert equation.is_visible()


def test_two_copies_do_not_interfere(hung):
    page = hung(copies=2)
    second = figure(page, 1)
    move(second, 101, 7)
    choose_base(second, 100)
    assert_clocks(figure(page, 0), 20, 3, 10_000)
    assert_clocks(second, 101, 7, 100)
    choose_base(figure(page, 0), 10)
    assert_clocks(second, 101, 7, 100)


@pytest.mark.parametrize("width", [1400, 560, 390, 320])
def test_nothing_jumps_while_something_is_moved(hung, width):
    """Short sentences and long ones take the same room: the page stays where it is."""
    within = figure(hung(width=width))
    within.locator(".chosen").get_by_role("radio", name="2").check()
    heights = set()
    for clocks, position, shift, base in (
        (range(4), 0, 0, 10),
        (range(4), 127, 64, 10),
        ([], 9, 0, 100),
        ([1, 2, 3], 118, 64, 10_000),
        ([1, 3], 118, 5, 10_000),
    ):
        choose_base(within, base)
        use(within, clocks)
        move(within, position, shift)
        heights.add(within.locator("figure").bounding_box()["height"])
    assert len(heights) == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390, 320])
def test_accessible_and_never_too_wide(hung, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = hung(theme=theme, width=width)
    within = figure(page)
    use(within, [0, 2])
    move(within, 127, 64)
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    frame = within.locator("figure").bounding_box()
    inside = within.locator("figure *:not(.unseen)").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).filter(b => b.width).map(b => [b.left, b.right])"
    )
    assert min(left for left, _ in inside) >= frame["x"]
    assert max(right for _, right in inside) <= frame["x"] + frame["width"]


def test_says_something_where_scripts_do_not_run(hung):
    assert "needs JavaScript" in figure(hung(java_script_enabled=False)).inner_text()


def test_stands_alone():
    html = clock_hands()._repr_html_()
    assert not re.search(
        r"https?:|src=|@import|url\(|fetch\(", html.replace("http://www.w3.org/2000/svg", "")
    )
    assert len(html) < 40_000 and html.count("</script>") == 1
    assert clock_hands().html != html

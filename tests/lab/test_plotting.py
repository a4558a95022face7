import itertools
import re
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from IPython.display import HTML

mpl.use("Agg")

from attention_course import palette
from attention_course.lab.page import plotting


@pytest.fixture(autouse=True)
def closed():
    yield
    plotting.plt.close("all")


def drawn(alt="A line that rises", colour=plotting.QUERY):
    figure, axes = plotting.figure(3.0, 2.0)
    axes.plot([0, 1], [0, 1], color=colour, label="a < b & c")
    axes.legend()
    markup = plotting.svg(figure, alt)
    plotting.plt.close(figure)
    return markup


def element(markup):
    return ElementTree.fromstring(markup[markup.index("<svg") : markup.rindex("</svg>") + 6])


def test_the_figure_says_in_words_what_it_shows():
    root = element(drawn(alt='weights of "sat" & <others>'))
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'weights of "sat" & <others>'


def test_house_colours_follow_the_page():
    for name, colour in palette.LIGHT.items():
        markup = drawn(colour=colour)
        picture = markup[markup.index("<svg") :]
        assert f"var(--ac-{name})" in picture
        assert colour.lower() not in picture.lower()


def test_light_and_dark_name_the_same_colours_and_differ():
    assert palette.LIGHT.keys() == palette.DARK.keys()
    assert all(palette.LIGHT[name] != palette.DARK[name] for name in palette.LIGHT)
    style = palette.css(".x")
    for name in palette.LIGHT:
        assert f"--ac-{name}: {palette.LIGHT[name]};" in style
        assert f"--ac-{name}: {palette.DARK[name]};" in style


def contrast(one, other):
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def channels(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def ramp(weights, colours, marks):
    """The ramp's red, green and blue at these weights: straight lines between its three colours."""
    stops = np.array([channels(colours[name]) for name in ("paper", "weights", "deep")])
    return np.stack([np.interp(weights, [0, marks["knee"], 1], stop) for stop in stops.T], axis=-1)


THEMES = {"light": (palette.LIGHT, palette.LIGHT_RAMP), "dark": (palette.DARK, palette.DARK_RAMP)}


@pytest.mark.parametrize("theme", THEMES)
def test_colours_stand_out_from_the_page(theme):
    colours, page = THEMES[theme][0], {"light": "#FFFFFF", "dark": "#14181E"}[theme]
    for name in ("ink", "muted", "ochre", "indigo", "deep"):
        assert contrast(colours[name], page) >= 4.5, name  # WCAG AA, text
    for name in ("query", "key", "value", "weights"):
        assert contrast(colours[name], page) >= 2.9, name  # graphics; always labelled too


@pytest.mark.parametrize("theme", THEMES)
def test_letters_can_be_read_on_every_step_of_the_ramp(theme):
    colours, marks = THEMES[theme]
    steps = np.arange(256) / 255
    for weight, ground in zip(steps, ramp(steps, colours, marks), strict=True):
        letters = marks["on-low" if weight < marks["flip"] else "on-high"]
        assert contrast(letters, mpl.colors.to_hex(ground / 255)) >= 4.5, weight


@pytest.mark.parametrize("theme", THEMES)
def test_the_ramp_goes_one_way_from_the_ground(theme):
    grounds = [mpl.colors.to_hex(c / 255) for c in ramp(np.linspace(0, 1, 11), *THEMES[theme])]
    far = [contrast(ground, grounds[0]) for ground in grounds]
    assert all(b > 1.08 * a for a, b in itertools.pairwise(far))  # a tenth more of weight can be seen


# Machado, Oliveira and Fernandes (2009), no cones of one kind, on linear light
BLINDNESS = {
    "none": np.eye(3),
    "red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def seen(colour, blindness):
    """CIE L*a*b* of a colour as such eyes see it."""
    parts = channels(colour) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = to_xyz @ (BLINDNESS[blindness] @ linear).clip(0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("theme", THEMES)
def test_what_is_compared_is_told_apart_by_all_eyes(theme, blindness):
    colours = THEMES[theme][0]
    for one, other in itertools.combinations(("ink", "muted", "ochre", "indigo"), 2):
        apart = np.linalg.norm(seen(colours[one], blindness) - seen(colours[other], blindness))
        assert apart >= 15, (one, other)
    for own, four in itertools.product(("ochre", "indigo"), ("query", "key", "value", "weights")):
        if blindness == "none":
            assert np.linalg.norm(seen(colours[own], "none") - seen(colours[four], "none")) >= 25, (own, four)


def test_two_figures_of_a_page_share_no_id():
    ids = [set(re.findall(r'\bid="([^"]+)"', drawn(alt=alt))) for alt in ("one", "two")]
    assert ids[0]
    assert not ids[0] & ids[1]
    for markup in (drawn(alt="one"),):
        for reference in re.findall(r"(?:url\(#|xlink:href=\"#)([^)\"]+)", markup):
            assert f'id="{reference}"' in markup


def test_a_figure_without_words_is_refused():
    with pytest.raises(ValueError, match="alt must say in words"):
        drawn(alt=" ")


def fills(page, selector):
    """Red, green and blue, 0 to 255, in which the elements are filled."""
    found = page.locator(selector).evaluate_all("all => all.map(e => getComputedStyle(e).fill)")
    numbers = [[float(x) for x in re.findall(r"[\d.]+", fill)][:3] for fill in found]
    return [
        np.multiply(n, 255 if fill.startswith("color") else 1) for n, fill in zip(numbers, found, strict=True)
    ]


class TestHeatmap:
    def texts(self, weights, **options):
        figure, axes = plotting.figure(3.0, 3.0)
        rows, columns = np.shape(weights)
        plotting.heatmap(
            axes, weights, [f"q{i}" for i in range(rows)], [f"k{j}" for j in range(columns)], **options
        )
        figure.canvas.draw()
        plotting.plt.close(figure)
        return axes

    def test_queries_run_down_and_keys_across(self):
        axes = self.texts([[0.1, 0.9], [0.25, 0.75]])
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("keys", "queries")
        assert [label.get_text() for label in axes.get_yticklabels()] == ["q0", "q1"]
        places = {text.get_text(): text.get_position() for text in axes.texts}
        assert places["0.90"] == (1.5, 0.5)  # first query, second key
        assert axes.get_ylim() == (2, 0)  # the first query is on top

    def test_numbers_up_to_eight_by_eight_only(self):
        assert len(self.texts(np.full((8, 8), 0.125)).texts) == 64
        assert len(self.texts(np.full((8, 9), 1 / 9)).texts) == 0

    def test_numbers_can_be_read_on_their_cells(self):
        axes = self.texts([[0.0, 0.25, 0.5, 0.75, 1.0]])
        faces = axes.collections[0].get_facecolors()
        for text, face in zip(axes.texts, faces, strict=True):
            assert contrast(text.get_color(), mpl.colors.to_hex(face)) >= 4.5

    def markup(self, weights, **options):
        figure = self.texts(weights, **options).figure
        return plotting.svg(figure, "cells")

    def test_without_the_rules_the_light_ramp_is_left(self):
        root = element(self.markup([[0.0, 0.5, 0.9]], limits=(0.0, 0.9)))
        cells = [e for e in root.iter() if e.get("class") == "ac-cell" and "stroke" in e.get("style")]
        assert [cell.get("fill") for cell in cells] == [
            mpl.colors.to_hex(plotting.WEIGHT_COLOURS(w)) for w in (0, 0.5 / 0.9, 1.0)
        ]
        letters = [e.get("fill") for e in root.iter() if e.get("class") == "ac-on-cell"]
        assert letters == ["#000000", "#000000", "#ffffff"]

    @pytest.mark.parametrize("theme", THEMES)
    def test_cells_and_their_numbers_follow_the_page(self, page_with, theme):
        weights = np.array([0, 0.05, 0.3, 0.4, 0.45, 0.46, 0.5, 0.67, 0.7, 0.78, 0.86, 1]).reshape(2, 6)
        page = page_with(HTML(self.markup(weights)), theme=theme)
        steps = (weights.flatten() * 256).astype(int).clip(max=255) / 255
        colours, marks = THEMES[theme]
        np.testing.assert_allclose(fills(page, "path.ac-cell"), ramp(steps, colours, marks), atol=1)
        letters = [channels(marks["on-low" if step < marks["flip"] else "on-high"]) for step in steps]
        np.testing.assert_array_equal(fills(page, "text.ac-on-cell"), letters)

    def test_a_word_in_the_colour_of_weights_is_no_cell(self):
        assert plotting.WEIGHTS.lower() not in plotting._STEPS
        figure, axes = plotting.figure(3.0, 2.0)
        axes.text(0, 0, "weights", color=plotting.WEIGHTS)
        markup = plotting.svg(figure, "a word")
        assert re.search(r'fill: var\(--ac-weights\)"[^>]*>weights<', markup)

    def test_labels_that_do_not_fit(self):
        _, axes = plotting.figure(3.0, 3.0)
        with pytest.raises(ValueError, match=r"\(2 queries, 1 keys\), got \(2, 2\)"):
            plotting.heatmap(axes, np.eye(2), ["a", "b"], ["a"])
        plotting.plt.close("all")


def test_show_closes_the_figure(capsys):
    figure, _ = plotting.figure(2.0, 2.0)
    plotting.show(figure, "an empty frame")
    assert not plotting.plt.get_fignums()


class TestImages:
    def drawn(self, weights, **options):
        figure, axes = plotting.figure(2.0, 1.0)
        place = axes.inset_axes([0, 0, 1, 1])
        axes.set_axis_off()
        place.set_axis_off()
        place.imshow(weights, vmin=0, vmax=1, aspect="auto", interpolation="nearest", **options)
        markup = plotting.svg(figure, "an image")
        plotting.plt.close(figure)
        return markup

    @pytest.mark.parametrize("theme", THEMES)
    def test_an_image_of_weights_has_the_ramp_of_the_page(self, page_with, theme):
        weights = np.array([0.0, 0.2, 0.45, 0.6, 0.7, 0.85, 1.0, np.nan])
        page = page_with(HTML(self.drawn(weights[None], cmap=plotting.WEIGHT_COLOURS)), theme=theme)
        shot = page.locator(".ac-figure svg").screenshot()
        pixels = plotting.np.asarray(plotting.Image.open(plotting.io.BytesIO(shot)).convert("RGB")).astype(
            int
        )
        row = pixels[len(pixels) // 2]
        painted = np.abs(np.diff(row, axis=0)).sum(1).nonzero()[0]
        left, right = painted[0], painted[-1]  # from 0.2 to 1: what is 0 or missing is ground
        middles = left + 1 + ((right - left) * (np.arange(6) + 0.5) / 6).astype(int)
        expected = ramp(weights[1:7], *THEMES[theme])
        np.testing.assert_allclose(row[middles], expected, atol=4)
        ground = channels(THEMES[theme][0]["paper"])
        np.testing.assert_array_equal(row[[left - 5, right + 5]], [ground, ground])

    def test_another_image_stays_as_it_is(self):
        markup = self.drawn([[0.1, 0.9]], cmap="gray")
        assert "<mask" not in markup and markup.count("<image") == 1

    def test_no_two_sheets_share_an_id(self):
        figure, axes = plotting.figure(2.0, 1.0, ncols=2)
        for axis in axes:
            axis.imshow([[0.2, 0.8]], cmap=plotting.WEIGHT_COLOURS, vmin=0, vmax=1)
        ids = re.findall(r'<mask id="([^"]+)"', plotting.svg(figure, "twins"))
        plotting.plt.close(figure)
        assert len(set(ids)) == len(ids) == 6


class TestOnAPhone:
    @pytest.mark.parametrize(("size", "shrinks_to"), [(9, 288), (10, 259.2), (5, 384)])
    def test_a_figure_shrinks_as_long_as_its_letters_can_be_read(self, size, shrinks_to):
        figure, axes = plotting.figure(4.0, 2.0)
        axes.set_axis_off()
        axes.text(0, 0, "word", fontsize=size)
        style = element(plotting.svg(figure, "a word")).get("style")
        plotting.plt.close(figure)
        assert float(re.search(r"min-width: ([\d.]+)px", style).group(1)) == pytest.approx(
            shrinks_to, abs=0.5
        )
        assert "max-width: 384px" in style

    def pair(self):
        figures = []
        for alt in ("left", "right"):
            figure, axes = plotting.figure(3.6, 2.0)
            axes.set_title(alt)
            figures.append((figure, alt))
        return figures

    @pytest.mark.parametrize(("width", "beside"), [(1400, True), (640, True), (390, False)])
    def test_panels_stand_side_by_side_or_are_stacked(self, page_with, width, beside):
        page = page_with(HTML(plotting.beside(self.pair())), width=width)
        left, right = (page.locator(".ac-figure svg").nth(i).bounding_box() for i in (0, 1))
        assert (left["y"] == right["y"]) == beside
        assert (left["x"] + left["width"] <= right["x"]) == beside
        assert all(230 <= box["width"] <= 346 for box in (left, right))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert [page.locator("svg").nth(i).get_attribute("aria-label") for i in (0, 1)] == ["left", "right"]

    def test_show_beside_closes_the_figures(self):
        plotting.show_beside(self.pair())
        assert not plotting.plt.get_fignums()


@pytest.mark.parametrize(
    ("written", "read"),
    [(r"÷ $\sqrt{d_k}$", "√dk"), (r"$\sqrt{d_{model}}$", "√dmodel"), (r"$\sqrt{2n + 1}$", "√(2n+1)")],
)
def test_a_root_is_text_without_a_bar(written, read):
    figure, axes = plotting.figure(3.0, 1.0)
    axes.set_axis_off()
    axes.text(0, 0, written)
    root = element(plotting.svg(figure, "a root"))
    plotting.plt.close(figure)
    texts = "".join("".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text"))
    spans = {e.get("style") for e in root.iter("{http://www.w3.org/2000/svg}tspan") if "√" in (e.text or "")}
    assert sorted(re.sub(r"[\s÷]", "", texts)) == sorted(read)
    assert spans and all("DejaVu Sans" in style for style in spans)
    assert not list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]

import re
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from attention_course import palette
from attention_course.lab.page import plotting


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


@pytest.mark.parametrize(("colours", "page"), [(palette.LIGHT, "#FFFFFF"), (palette.DARK, "#14181E")])
def test_colours_stand_out_from_the_page(colours, page):
    for name in ("ink", "muted"):
        assert contrast(colours[name], page) >= 4.5, name  # WCAG AA, text
    for name in ("query", "key", "value", "weights"):
        assert contrast(colours[name], page) >= 2.9, name  # graphics; always labelled too


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

    def test_cells_keep_their_colours_on_dark_pages(self):
        figure, axes = plotting.figure(3.0, 3.0)
        plotting.heatmap(axes, [[0.0, 1.0]], ["q"], ["a", "b"])
        markup = plotting.svg(figure, "two cells")
        plotting.plt.close(figure)
        cells = markup[markup.index("<svg") :]
        assert "#fefefe" in cells  # not the paper's white, which would turn dark under dark numbers

    def test_labels_that_do_not_fit(self):
        _, axes = plotting.figure(3.0, 3.0)
        with pytest.raises(ValueError, match=r"\(2 queries, 1 keys\), got \(2, 2\)"):
            plotting.heatmap(axes, np.eye(2), ["a", "b"], ["a"])
        plotting.plt.close("all")


def test_show_closes_the_figure(capsys):
    figure, _ = plotting.figure(2.0, 2.0)
    plotting.show(figure, "an empty frame")
    assert not plotting.plt.get_fignums()

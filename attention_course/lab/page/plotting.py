"""House style for figures: inline SVG that follows the page's theme, with its alt text.

Weights have one scale, ``WEIGHT_COLOURS``: whatever is filled by it, cells, images and colour bars alike,
follows the theme too. ``OCHRE`` and ``INDIGO`` are for series that are no query, key, value or weight.

Importing this module sets matplotlib's defaults to the house style.
"""

import base64
import html
import io
import itertools
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, display
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from attention_course import palette

QUERY, KEY, VALUE, WEIGHTS, INK, MUTED, LINE, PAPER, DEEP, OCHRE, INDIGO = palette.LIGHT.values()

#: The ramp on light pages; ``svg`` lets it follow the page. No step has the colour of ``WEIGHTS`` itself:
#: words and bars of that colour are no cells.
WEIGHT_COLOURS = LinearSegmentedColormap.from_list(
    "weights", [(0, PAPER), (palette.LIGHT_RAMP["knee"], "#CC7AA7"), (1, DEEP)]
)
_STEPS = {to_hex(WEIGHT_COLOURS(step)): step / 255 for step in range(256)}
#: In images matplotlib rounds colours down.
_PIXELS = {to_hex(WEIGHT_COLOURS(step, bytes=True)[:3] / np.float64(255)): step / 255 for step in range(256)}

#: Between these, the ramp is a straight line in both themes.
_KNEES = sorted({palette.LIGHT_RAMP["knee"], palette.DARK_RAMP["knee"]})

_NARROWEST = 480  # px
_SMALLEST = 9  # px: smaller letters cannot be read
_PX = 4 / 3  # of a point
_FRAME = "margin: 1em 0; text-align: center; overflow-x: auto;"

_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and recoloured
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": LINE,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 2,
    "lines.markersize": 6,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.constrained_layout.use": True,
}
# Once for the whole notebook: titles, legends and labels are made after figure() has returned.
matplotlib.rcParams.update(_STYLE)


def figure(width: float = 7.0, height: float = 3.5, **subplots: Any) -> tuple[Figure, Any]:
    """Return ``(figure, axes)`` in house style; size in inches, the rest as in ``plt.subplots``."""
    return plt.subplots(figsize=(width, height), **subplots)


def heatmap(
    ax: Axes,
    weights: Any,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    limits: tuple[float, float] = (0.0, 1.0),
    digits: int = 2,
) -> None:
    """Draw ``weights`` [T_q, T_k]: queries down, keys across, numbers in the cells up to 8 x 8.

    Raises a ``ValueError`` when the labels do not match the array's shape.
    """
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (len(queries), len(keys)):
        raise ValueError(
            f"weights must have shape ({len(queries)} queries, {len(keys)} keys), got {weights.shape}"
        )
    low, high = limits
    mesh = ax.pcolormesh(weights, cmap=WEIGHT_COLOURS, vmin=low, vmax=high, edgecolors=LINE, linewidth=0.5)
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.set_xticks(np.arange(len(keys)) + 0.5, keys)
    ax.set_yticks(np.arange(len(queries)) + 0.5, queries)
    if len(keys) > 8:
        ax.tick_params(axis="x", labelrotation=90)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("keys")
    ax.set_ylabel("queries")
    if weights.size and max(weights.shape) <= 8:
        for (row, column), weight in np.ndenumerate(weights):
            text = ax.text(
                column + 0.5,
                row + 0.5,
                f"{weight:.{digits}f}",
                ha="center",
                va="center",
                fontsize=10,
            )
            on_cell(text, mesh.norm(weight))


def on_cell(text: Text, weight: float) -> None:
    """Let ``text``, which lies on a cell of this weight from 0 to 1, have letters that can be read there."""
    step = min(255, max(0, int(256 * weight))) / 255  # as the cell's colour is rounded
    low, high = palette.LIGHT_RAMP["on-low"], palette.LIGHT_RAMP["on-high"]
    text.set_color(low if step < palette.LIGHT_RAMP["flip"] else high)
    text.set_gid(f"ac-on-cell-{step:.3f}")


def svg(fig: Figure, alt: str) -> str:
    """Return ``fig`` as an inline ``<figure>``: house colours become CSS variables, ``alt`` its label."""
    if not alt.strip():
        raise ValueError("alt must say in words what the figure shows, got an empty string")
    _plain_roots(fig)
    buffer = io.StringIO()
    # Ids are hashed with the alt text, so that two figures of one page never share an id.
    with matplotlib.rc_context({"svg.hashsalt": alt}):
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = _weights_follow(text[text.index("<svg") :])
    for name, colour in palette.LIGHT.items():
        text = re.sub(f'(?<!fill="){colour}', f"var(--ac-{name})", text, flags=re.IGNORECASE)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # matplotlib calls its groups figure_1, axes_1, ... in every figure; nothing refers to these ids.
    text = re.sub(r'<g id="[\w.]+_\d+"', "<g", text)
    width, narrowest = _widths(fig)
    label = f'role="img" aria-label="{html.escape(alt, quote=True)}"'
    size = f'style="width: 100%; min-width: {narrowest:.0f}px; max-width: {width:.0f}px; height: auto;"'
    text = re.sub(
        r'<svg (.*?)width="[\d.]+pt" height="[\d.]+pt"',
        lambda match: f"<svg {label} {match.group(1)}{size}",
        text,
        count=1,
        flags=re.DOTALL,
    )
    style = palette.css(".ac-figure") + _RAMP_RULES
    return f'{style}<figure class="ac-figure" style="{_FRAME}">{text}</figure>'


def show(fig: Figure, alt: str) -> None:
    """Display ``fig`` under the cell with the alternative text ``alt``, and close it."""
    markup = svg(fig, alt)
    plt.close(fig)
    display(HTML(markup))


def beside(figures: Sequence[tuple[Figure, str]]) -> str:
    """Return figures, each with its alt text, side by side; where letters would get too small, stacked."""
    panels = []
    for fig, alt in figures:
        markup = svg(fig, alt)  # draws the figure: only then its letters are known
        width, narrowest = _widths(fig)
        place = f"flex: 1 1 {narrowest:.0f}px; min-width: 0; max-width: {width:.0f}px;"
        panels.append(f'<div style="{place}">{markup}</div>')
    row = "display: flex; flex-wrap: wrap; justify-content: center; column-gap: 1em;"
    return f'<div class="ac-beside" style="{row}">{"".join(panels)}</div>'


def show_beside(figures: Sequence[tuple[Figure, str]]) -> None:
    """Display figures, each with its alt text, side by side or on a phone stacked, and close them."""
    markup = beside(figures)
    for fig, _ in figures:
        plt.close(fig)
    display(HTML(markup))


def _widths(fig: Figure) -> tuple[float, float]:
    """Return the figure's width in pixels, and how far it shrinks on a phone before it scrolls instead."""
    width = float(fig.get_figwidth()) * 72 * _PX
    sizes = [text.get_fontsize() for text in fig.findobj(Text) if text.get_text().strip()]
    readable = width * _SMALLEST / (min(sizes, default=_SMALLEST) * _PX)
    return width, float(min(width, _NARROWEST, readable))


def _plain_roots(fig: Figure) -> None:
    """Write every root in ``fig`` without its bar, which a page's font tears from the sign."""
    for text in fig.findobj(Text):
        if r"\sqrt{" in text.get_text():
            text.set_text(re.sub(r"\\sqrt\{((?:[^{}]|\{[^{}]*\})*)\}", _root, text.get_text()))


def _root(match: re.Match) -> str:
    inner = match.group(1)
    return f"√{inner}" if re.fullmatch(r"\w(_\w|_\{\w+\})?|\d+", inner) else f"√({inner})"


#: What the ramp's colours become. Where these rules are missing, the light colour in ``fill`` stays.
_RAMP_RULES = (
    "<style>"
    f".ac-figure .ac-cell {{ fill: {palette.CELL}; }} .ac-figure .ac-on-cell {{ fill: {palette.ON_CELL}; }}"
    "</style>"
)


def _weights_follow(text: str) -> str:
    """Let what the ramp has coloured in an SVG follow the page: cells, images, and the numbers on them."""
    text = re.sub(r'<g id="ac-on-cell-([\d.]+)">(\s*)<text style="([^"]*)"', _number_follows, text)
    text = re.sub(r'style="([^"]*)(?<![\w-])fill: (#[0-9a-f]{6})([^"]*)"', _cell_follows, text)
    count = itertools.count()
    return re.sub(
        r'<image xlink:href="data:image/png;base64,([^"]+)" id="(\w+)" ([^>]*)/>',
        lambda image: _image_follows(image.group(), *image.group(1, 3), f"{image.group(2)}-{next(count)}"),
        text,
    )


def _number_follows(match: re.Match) -> str:
    step, space, style = match.groups()
    fill = re.search(r"; fill: (#\w+)", style)  # black is left out
    style = style.replace(fill.group(), "") if fill else style
    colour = fill.group(1) if fill else "#000000"
    return f'<g>{space}<text class="ac-on-cell" fill="{colour}" style="--w: {step}; {style}"'


def _cell_follows(match: re.Match) -> str:
    before, colour, after = match.groups()
    if colour not in _STEPS:
        return match.group()
    return f'class="ac-cell" fill="{colour}" style="{before}--w: {_STEPS[colour]:.3f}{after}"'


def _image_follows(image: str, png: str, place: str, name: str) -> str:
    """Return an image of weights as sheets of the ramp's colours at its knees, each as dense as they say."""
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA"))
    colours, where = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    steps = [0.0 if colour[3] == 0 else _pixel(colour) for colour in colours]
    if None in steps:
        return image  # of something else
    weights = np.array(steps)[where].reshape(pixels.shape[:2])
    shape = re.sub(r' ?style="[^"]*"', "", place)
    sheets = []
    for low, high in itertools.pairwise((0.0, *_KNEES, 1.0)):
        own = f"{name}-{len(sheets)}"
        dense = _veil((weights - low) / (high - low))
        colour = f'class="ac-cell" fill="{to_hex(WEIGHT_COLOURS(high))}" style="--w: {high}"'
        sheets.append(
            f'<mask id="{own}"><image xlink:href="data:image/png;base64,{dense}" {place}/></mask>'
            f'<g mask="url(#{own})"><rect {colour} {shape}/></g>'
        )
    return "".join(sheets)


def _pixel(colour: np.ndarray) -> float | None:
    name = to_hex(colour[:3] / 255)
    return _PIXELS.get(name, _STEPS.get(name)) if colour[3] == 255 else None


def _veil(dense: np.ndarray) -> str:
    """Return a white PNG, as opaque as ``dense`` says, in base64."""
    opaque = (255 * dense.clip(0, 1)).round().astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.stack([np.full_like(opaque, 255), opaque], axis=-1), "LA").save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()

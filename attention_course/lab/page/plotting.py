"""House style for figures: inline SVG that follows the page's theme, with its alt text.

Importing this module sets matplotlib's defaults to the house style.
"""

import html
import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, display
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure

from attention_course import palette

QUERY, KEY, VALUE, WEIGHTS, INK, MUTED, LINE, PAPER = palette.LIGHT.values()

#: White to deep purple. Its white is not quite the paper's, which would turn dark with the page.
WEIGHT_COLOURS = LinearSegmentedColormap.from_list("weights", ["#FEFEFE", WEIGHTS, "#6B2850"])

_NARROWEST = 480  # px
_FRAME = "margin: 1em 0; text-align: center; overflow-x: auto;"

#: Text that lies on a heatmap's own cells keeps its colour when the page turns dark.
_ON_LIGHT, _ON_DARK = "#111112", "#FFFFFE"

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
            red, green, blue = to_rgb(mesh.cmap(mesh.norm(weight)))
            bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
            colour = _ON_LIGHT if bright else _ON_DARK
            ax.text(
                column + 0.5,
                row + 0.5,
                f"{weight:.{digits}f}",
                ha="center",
                va="center",
                color=colour,
                fontsize=10,
            )


def svg(fig: Figure, alt: str) -> str:
    """Return ``fig`` as an inline ``<figure>``: house colours become CSS variables, ``alt`` its label."""
    if not alt.strip():
        raise ValueError("alt must say in words what the figure shows, got an empty string")
    buffer = io.StringIO()
    # Ids are hashed with the alt text, so that two figures of one page never share an id.
    with matplotlib.rc_context({"svg.hashsalt": alt}):
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for name, colour in palette.LIGHT.items():
        text = re.sub(colour, f"var(--ac-{name})", text, flags=re.IGNORECASE)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # matplotlib calls its groups figure_1, axes_1, ... in every figure; nothing refers to these ids.
    text = re.sub(r'<g id="[\w.]+_\d+"', "<g", text)
    width = float(re.search(r'width="([\d.]+)pt"', text).group(1)) * 4 / 3  # pt to px
    label = f'role="img" aria-label="{html.escape(alt, quote=True)}"'
    # On a phone a wide figure keeps letters that can be read, and scrolls inside itself.
    narrowest = min(width, _NARROWEST)
    size = f'style="width: 100%; min-width: {narrowest:.0f}px; max-width: {width:.0f}px; height: auto;"'
    text = re.sub(
        r'<svg (.*?)width="[\d.]+pt" height="[\d.]+pt"',
        lambda match: f"<svg {label} {match.group(1)}{size}",
        text,
        count=1,
        flags=re.DOTALL,
    )
    style = palette.css(".ac-figure")
    return f'{style}<figure class="ac-figure" style="{_FRAME}">{text}</figure>'


def show(fig: Figure, alt: str) -> None:
    """Display ``fig`` under the cell with the alternative text ``alt``, and close it."""
    markup = svg(fig, alt)
    plt.close(fig)
    display(HTML(markup))

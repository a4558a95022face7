"""Pictures of weights in the house's style: one head, a layer's heads, all heads of a model."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from attention_course.lab.page import plotting

#: beyond this many tokens a small picture's words could not be read
_WORDS = 16


def head(
    weights: Float[Tensor, "T_q T_k"], queries: Sequence[str], keys: Sequence[str] | None = None
) -> Figure:
    """Return the heatmap of one head, queries down, keys across; ``keys`` are the queries' unless given."""
    keys = queries if keys is None else keys
    side = 1.2 + 0.32 * max(len(queries), len(keys))
    figure, axis = plotting.figure(side, side)
    plotting.heatmap(axis, weights.detach().cpu(), queries, keys)
    return figure


def layer(
    weights: Float[Tensor, "h T_q T_k"], queries: Sequence[str], keys: Sequence[str] | None = None
) -> Figure:
    """Return all heads of one layer side by side, four in a row, each with its words if they can be read."""
    keys = queries if keys is None else keys
    columns = min(4, len(weights))
    rows = -(-len(weights) // columns)
    figure, axes = plotting.figure(2.6 * columns, 2.6 * rows, nrows=rows, ncols=columns, squeeze=False)
    for number, axis in enumerate(axes.flat):
        if number >= len(weights):
            axis.set_visible(False)
            continue
        _small(axis, weights[number].detach().cpu().numpy(), f"head {number + 1}")
        if len(queries) <= _WORDS and number % columns == 0:
            axis.set_yticks(np.arange(len(queries)) + 0.5, queries, fontsize=8)
        if len(keys) <= _WORDS and number + columns >= len(weights):
            axis.set_xticks(np.arange(len(keys)) + 0.5, keys, fontsize=8, rotation=90)
    figure.supxlabel("keys", fontsize=11)
    figure.supylabel("queries", fontsize=11)
    return figure


def gallery(weights: Float[Tensor, "layers h T_q T_k"]) -> Figure:
    """Return all heads of a model as small pictures, layers down and heads across, both counted from 1."""
    layers, heads, T_q, T_k = weights.shape
    figure, axis = plotting.figure(0.6 + 0.66 * heads, 0.5 + 0.66 * layers * T_q / T_k)
    # One image with gaps: 144 axes would take seconds.
    gap = max(1, round(0.08 * max(T_q, T_k)))
    mosaic = np.full((layers * (T_q + gap) - gap, heads * (T_k + gap) - gap), np.nan)
    frames = []
    for row, column in np.ndindex(layers, heads):
        top, left = row * (T_q + gap), column * (T_k + gap)
        mosaic[top : top + T_q, left : left + T_k] = weights[row, column].detach().cpu()
        frames.append(Rectangle((left - 0.5, top - 0.5), T_k, T_q))
    axis.imshow(mosaic, cmap=plotting.WEIGHT_COLOURS, vmin=0, vmax=1, interpolation="nearest")
    axis.add_collection(PatchCollection(frames, facecolor="none", edgecolor=plotting.LINE, linewidth=0.7))
    axis.set_xticks(np.arange(heads) * (T_k + gap) + T_k / 2, range(1, heads + 1))
    axis.set_yticks(np.arange(layers) * (T_q + gap) + T_q / 2, range(1, layers + 1))
    axis.set(xlabel="head", ylabel="layer")
    axis.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axis.xaxis.set_label_position("top")
    axis.spines[:].set_visible(False)
    return figure


def _small(axis: Axes, weights: np.ndarray, title: str) -> None:
    # An image instead of a polygon for each weight.
    extent = (0, weights.shape[1], weights.shape[0], 0)
    axis.imshow(weights, cmap=plotting.WEIGHT_COLOURS, vmin=0, vmax=1, extent=extent, interpolation="nearest")
    axis.set(xticks=[], yticks=[], title=title)
    axis.spines[:].set_visible(True)
    axis.spines[:].set_color(plotting.LINE)

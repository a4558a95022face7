"""Chapter 17's explorable: a small graph whose edges a reader draws, and whom each node looks at."""

import torch
from torch.nn.functional import leaky_relu

from attention_course.explorables.base import Explorable, explorable

NODES = "ABCDEFG"

#: Two numbers for each node ([7, 2]): they are its query, its key and its value in one.
FEATURES = ((1.0, 0.2), (0.4, 1.2), (1.6, 1.0), (-0.6, 0.8), (-0.2, -0.8), (0.8, -1.0), (-1.0, -0.4))

#: Who is heard by whom at the start; G by nobody, and it hears nobody.
HEARD_BY = {"A": "BCF", "B": "AC", "C": "AB", "D": "BCE", "E": "CDF", "F": "AC", "G": ""}

#: W [4, 4], for a query and a key side by side: their differences, each way round.
W = ((1, 0, -1, 0), (-1, 0, 1, 0), (0, 1, 0, -1), (0, -1, 0, 1))

#: a [4]: to lie below the query costs three times as much as to lie above it.
A = (-3.0, -1.0, -3.0, -1.0)

SLOPE = 0.2  # of LeakyReLU below 0

#: Where the nodes stand in a picture of 340 by 300.
_PLACES = ((170, 28), (46, 80), (170, 148), (46, 208), (150, 272), (290, 200), (296, 58))


def drag_an_edge() -> Explorable:
    """Return the figure in which a reader draws the edges of a graph of seven nodes.

    The weights of GAT and of GATv2 are computed in the page from ``FEATURES``, ``W`` and ``A``.
    Sources: Veličković et al. 2018, eq. 3; Brody, Alon and Yahav 2022, eq. 7.
    """
    data = {
        "nodes": NODES,
        "features": FEATURES,
        "edges": [[source, target] for target, sources in HEARD_BY.items() for source in sources],
        "W": W,
        "a": A,
        "slope": SLOPE,
        "places": _PLACES,
        "start": "D",
    }
    return explorable("drag_an_edge", data, _fallback())


def _favourites(version: str) -> list[str]:
    """Return which of its neighbours each node looks at most, a dash for nobody."""
    nodes = torch.tensor(FEATURES)
    W_q, W_k = torch.tensor(W, dtype=nodes.dtype).split(2, dim=-1)
    hidden = (nodes @ W_q.T)[:, None] + nodes @ W_k.T
    a = torch.tensor(A)
    scores = leaky_relu(hidden @ a, SLOPE) if version == "GAT" else leaky_relu(hidden, SLOPE) @ a
    return [
        max(HEARD_BY[node], key=lambda source: row[NODES.index(source)], default="–")
        for node, row in zip(NODES, scores.tolist(), strict=True)
    ]


def _fallback() -> str:
    """Return as a table whom each node looks at most, for wherever the picture cannot move."""
    columns = (
        NODES,
        [", ".join(HEARD_BY[n]) or "nobody" for n in NODES],
        _favourites("GAT"),
        _favourites("GATv2"),
    )
    rows = "".join(
        f'<tr><th scope="row">{node}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        for node, *cells in zip(*columns, strict=True)
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("node", "hears", "GAT", "GATv2"))
    return (
        "<p><em>Here stands a figure that needs JavaScript: a graph whose edges you draw, and the weights "
        "they get. It moves in the built book, in Jupyter and in Colab.</em></p>"
        "<table><caption>Whom each node looks at most, with GAT and with GATv2</caption>"
        f"<tr>{head}</tr>{rows}</table>"
    )

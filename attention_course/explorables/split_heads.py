"""Chapter 4's explorable: one projection, cut into one, two or four heads."""

import numpy as np

from attention_course.explorables.base import Explorable, explorable
from attention_course.lab.data import example

#: [3, 2] each, chapter 4's second head: it looks for things that are places.
W_Q2 = np.array([[0.0, 2.0], [3.0, -2.0], [0.0, 0.0]])
W_K2 = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
W_V2 = np.array([[0.0, 1.0], [0.0, 0.0], [2.0, 0.0]])

#: [3, 4] each: both heads' columns side by side.
WIDE = {
    "query": np.concatenate((example.W_Q, W_Q2), axis=1),
    "key": np.concatenate((example.W_K, W_K2), axis=1),
    "value": np.concatenate((example.W_V, W_V2), axis=1),
}


def split_heads() -> Explorable:
    """Return the figure in which the running example's wide projections are cut into heads.

    The reader chooses the number of heads (1, 2 or 4), the query, and how the four columns of
    Q, K and V ([6, 4] each) are dealt out; the figure computes the weights of each head ([h, 6, 6])
    and the concatenated context ([6, 4]). Source: Vaswani et al. 2017, section 3.2.2.
    """
    data = {
        "tokens": example.TOKENS,
        "features": ["thing", "action", "place"],
        "x": example.X.tolist(),
        "projections": {role: weight.tolist() for role, weight in WIDE.items()},
        "projected": {role: (example.X @ weight).tolist() for role, weight in WIDE.items()},
        "heads": [1, 2, 4],
        "row": example.TOKENS.index("sat"),
    }
    return explorable("split_heads", data, _FALLBACK)


_FALLBACK = """<p><em>Here stands a figure that needs JavaScript: one projection of six words, cut into one,
two or four heads, each with its weights. It moves in the built book, in Jupyter and in Colab.</em></p>"""

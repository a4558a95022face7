"""Chapter 5's explorable: paint who may look at whom; weights and contexts follow."""

import torch

from attention_course import masks
from attention_course.explorables.base import Explorable, explorable
from attention_course.lab.data import example


def paint_a_mask() -> Explorable:
    """Return the figure in which a mask is painted over the running example's scores.

    The scores ([6, 6], divided by √d_k), the values ([6, 2]) and the masks behind the buttons
    ([6, 6], True = may look) come from the package; the figure computes the weights and the
    context of whatever mask the reader paints. A query that may look nowhere gets zeros.
    """
    T = len(example.TOKENS)
    scores = (example.X @ example.W_Q) @ (example.X @ example.W_K).T / example.W_K.shape[1] ** 0.5
    data = {
        "tokens": example.TOKENS,
        "scores": scores.tolist(),
        "values": (example.X @ example.W_V).tolist(),
        "masks": {
            "none": torch.ones(T, T, dtype=torch.bool).tolist(),
            "causal": masks.causal(T).tolist(),
            "window": masks.window(T, T, 2).tolist(),
            "padding": masks.padding(torch.tensor([4]), T)[0].expand(T, T).tolist(),
        },
        "start": "causal",
        "row": example.TOKENS.index("sat"),
    }
    return explorable("paint_a_mask", data, _FALLBACK)


_FALLBACK = """<p><em>Here stands a figure that needs JavaScript: a six by six grid in which you paint who may
look at whom, while the weights follow. It moves in the built book, in Jupyter and in Colab.</em></p>"""

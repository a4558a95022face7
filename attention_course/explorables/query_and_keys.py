"""Chapter 3's explorable: drag a query over six keys; scores, weights and context follow."""

from attention_course.explorables.base import Explorable, explorable
from attention_course.lab.data import example


def query_and_keys() -> Explorable:
    """Return the figure in which a query is dragged over the running example's six keys.

    The reader moves the query ([2]) and the divisor of the scores; the figure computes the scores,
    the weights ([6]) and the context ([2]). Source: Vaswani et al. 2017, equation 1.
    """
    data = {
        "tokens": example.TOKENS,
        "queries": (example.X @ example.W_Q).tolist(),
        "keys": (example.X @ example.W_K).tolist(),
        "values": (example.X @ example.W_V).tolist(),
        "start": example.TOKENS.index("sat"),
    }
    return explorable("query_and_keys", data, _FALLBACK)


_FALLBACK = """<p><em>Here stands a figure that needs JavaScript: a query you drag over six keys, while
scores, weights and context follow. It moves in the built book, in Jupyter and in Colab.</em></p>"""

"""The start page's picture: each of six words in turn, and how much it looks at every other."""

import html

import torch

from attention_course.attention import attend
from attention_course.explorables.base import Explorable, explorable
from attention_course.lab.data import example


def who_looks_at_whom() -> Explorable:
    """Return the figure that steps through the running example's weights, word after word.

    The weights ([6, 6]) and contexts ([6, 2]) come from ``attend`` at the time of the call.
    """
    query, key, value = (
        torch.from_numpy(example.X @ projection) for projection in (example.W_Q, example.W_K, example.W_V)
    )
    context, weights = attend(query, key, value)
    data = {
        "tokens": example.TOKENS,
        "weights": weights.tolist(),
        "values": value.tolist(),
        "contexts": context.tolist(),
        "start": example.TOKENS.index("sat"),
    }
    return explorable("who_looks_at_whom", data, _table(example.TOKENS, weights.tolist()))


def _table(tokens: tuple[str, ...], weights: list[list[float]]) -> str:
    """Return the weights as a plain table, for wherever the picture cannot move."""
    words = [html.escape(token) for token in tokens]
    head = "".join(f'<th scope="col">{word}</th>' for word in words)
    rows = "".join(
        f'<tr><th scope="row">{word}</th>' + "".join(f"<td>{w:.2f}</td>" for w in row) + "</tr>"
        for word, row in zip(words, weights, strict=True)
    )
    caption = "How much each word (down) looks at each word (across)"
    return f"<table><caption>{caption}</caption><tr><td></td>{head}</tr>{rows}</table>"

"""Chapter 14's explorable: a scene, its caption, and where each word looks."""

import html
from collections.abc import Sequence
from typing import NamedTuple

from numpy.typing import ArrayLike
from torch import Tensor

from attention_course.explorables.base import Explorable, explorable, in_bytes, numbers


class Scene(NamedTuple):
    """An image [H, W] from 0 to 1, its caption, and the weights of each word [words, rows, columns]."""

    image: ArrayLike
    words: Sequence[str]
    weights: ArrayLike
    note: str = ""


def glimpse(scenes: Sequence[Scene]) -> Explorable:
    """Return the figure that lays each word's weights over the scene, and each cell's over the words.

    Cells divide the image evenly, counted row by row. Raises ``ValueError`` for no scene, for arrays
    with other dimensions, for numbers outside 0 to 1, and for weights that are not one grid a word or
    whose grids sum to neither 1 nor 0. Source: after figure 5 of Xu et al. 2015, "Show, attend and tell".
    """
    if not scenes:
        raise ValueError("scenes must hold at least one Scene, got none")
    data, tables = [], []
    for number, scene in enumerate(scenes, 1):
        image = numbers(f"image of scene {number}", scene.image, "H W", between=(0, 1))
        weights = numbers(f"weights of scene {number}", scene.weights, "words rows columns", between=(0, 1))
        _check(number, scene.words, weights)
        data.append(
            {
                "image": in_bytes(image),
                "size": list(image.shape),
                "words": list(scene.words),
                "weights": in_bytes(weights),
                "cells": list(weights.shape[1:]),
                "note": scene.note,
            }
        )
        tables.append(_table(number, scene.words, weights))
    return explorable("glimpse", {"scenes": data}, _fallback(tables))


def _check(number: int, words: Sequence[str], weights: Tensor) -> None:
    if len(words) != len(weights):
        raise ValueError(
            f"weights of scene {number} must hold one grid for each of its {len(words)} words, "
            f"got {len(weights)}"
        )
    for word, total in zip(words, weights.sum((1, 2)).tolist(), strict=True):
        if min(abs(total), abs(total - 1)) > 1e-2:
            raise ValueError(
                f"the weights of a word must sum to 1, or to 0 where it looks nowhere; "
                f"those of {word!r} in scene {number} sum to {total:.3f}"
            )


def _table(number: int, words: Sequence[str], weights: Tensor) -> str:
    """Return in words where each word looks most."""
    columns = weights.shape[2]
    largest, places = weights.flatten(1).max(1)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(word)}</th>'
        f"<td>row {place // columns + 1}, column {place % columns + 1}</td><td>{weight:.2f}</td></tr>"
        for word, place, weight in zip(words, places.tolist(), largest.tolist(), strict=True)
    )
    return (
        f"<table><caption>Where each word of scene {number} looks most</caption>"
        f'<tr><th scope="col">word</th><th scope="col">cell</th><th scope="col">weight</th></tr>'
        f"{rows}</table>"
    )


def _fallback(tables: list[str]) -> str:
    return (
        "<p><em>Here stands a figure that needs JavaScript: scenes, and where each word of their captions "
        f"looks. It moves in the built book, in Jupyter and in Colab.</em></p>{''.join(tables)}"
    )

"""Pictures of heads: what they name, and that a large model does not take long."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attention_course.inside import pictures
from attention_course.lab.page import plotting

WORDS = ["the", "cat", "sat"]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def drawn(*shape):
    return torch.randn(*shape).softmax(-1)


def labels(axis):
    return [text.get_text() for text in axis.get_xticklabels()], [
        t.get_text() for t in axis.get_yticklabels()
    ]


def test_one_head_names_its_axes():
    [axis] = pictures.head(drawn(3, 2), WORDS, ["a", "b"]).axes
    assert labels(axis) == (["a", "b"], WORDS)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("keys", "queries")


def test_a_layer_shows_every_head_once():
    weights = drawn(5, 3, 3)
    axes = pictures.layer(weights, WORDS).axes
    assert [axis.get_title() for axis in axes if axis.get_visible()] == [f"head {n}" for n in range(1, 6)]
    for head, axis in enumerate(axes[:5]):
        np.testing.assert_array_equal(axis.images[0].get_array(), weights[head])
    assert labels(axes[0])[1] == WORDS and labels(axes[4])[0] == WORDS


def test_the_gallery_has_every_head_in_its_place():
    weights = drawn(2, 3, 4, 4)
    [axis] = pictures.gallery(weights).axes
    mosaic, gap = axis.images[0].get_array().filled(np.nan), 1
    for layer in range(2):
        for head in range(3):
            top, left = layer * (4 + gap), head * (4 + gap)
            np.testing.assert_allclose(mosaic[top : top + 4, left : left + 4], weights[layer, head])
    assert np.isnan(mosaic).sum() == mosaic.size - weights.numel()
    assert labels(axis) == (["1", "2", "3"], ["1", "2"])


def test_a_large_gallery_is_one_image():
    figure = pictures.gallery(drawn(12, 12, 64, 64))
    assert len(figure.axes) == 1 and len(figure.axes[0].images) == 1
    assert len(plotting.svg(figure, "all heads")) < 1_000_000

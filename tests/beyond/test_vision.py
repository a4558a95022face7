import math

import numpy as np
import pytest
import torch

from attention_course.beyond.vision import (
    attention_distance,
    from_patches,
    grid_positions,
    patches,
    pointing,
)
from attention_course.positions import sinusoidal


def patches_by_loop(image, size):
    channels, height, width = image.shape
    found = []
    for top in range(0, height, size):
        for left in range(0, width, size):
            patch = []
            for channel in range(channels):
                for row in range(size):
                    for column in range(size):
                        patch.append(image[channel, top + row, left + column])
            found.append(patch)
    return np.array(found)


@pytest.mark.parametrize(
    ("shape", "size"), [((1, 4, 4), 2), ((3, 4, 6), 2), ((2, 9, 3), 3), ((1, 2, 5), 1), ((2, 4, 4), 4)]
)
class TestPatches:
    def test_equal_the_loop(self, shape, size):
        image = torch.randn(shape)
        np.testing.assert_array_equal(patches(image, size).numpy(), patches_by_loop(image.numpy(), size))

    def test_there_is_a_way_back(self, shape, size):
        images = torch.randn(2, 3, *shape)
        cut = patches(images, size)
        assert torch.equal(from_patches(cut, *shape[1:], size), images)
        assert torch.equal(patches(from_patches(cut, *shape[1:], size), size), cut)


def test_a_patch_is_a_square_and_not_a_strip():
    image = torch.arange(16).view(1, 4, 4)
    assert patches(image, 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


@pytest.mark.parametrize(("shape", "size"), [((1, 5, 4), 2), ((1, 4, 5), 2), ((1, 2, 2), 4), ((1, 4, 4), 0)])
def test_patches_that_do_not_fit_are_refused(shape, size):
    with pytest.raises(ValueError, match="size must"):
        patches(torch.zeros(shape), size)
    with pytest.raises(ValueError, match="size must"):
        from_patches(torch.zeros(4, 4), *shape[1:], size)


def test_what_is_no_image_is_refused(unchecked):
    with pytest.raises(ValueError, match=r"images must have shape \[..., C, H, W\], got \(4, 4\)"):
        patches(torch.zeros(4, 4), 2)


@pytest.mark.parametrize("shape", [(5, 4), (4, 6)])
def test_patches_of_another_image_are_refused(shape):
    with pytest.raises(ValueError, match=r"patches must have shape \[..., 4, C·4\] for 4 × 4 pixels"):
        from_patches(torch.zeros(shape), 4, 4, 2)


def test_grid_positions_are_those_of_row_and_column():
    table = grid_positions(3, 5, 8)
    assert table.shape == (15, 8)
    for place in range(15):
        row, column = divmod(place, 5)
        assert torch.equal(table[place, :4], sinusoidal(3, 4)[row])
        assert torch.equal(table[place, 4:], sinusoidal(5, 4)[column])
    assert len({tuple(line) for line in table.tolist()}) == 15


@pytest.mark.parametrize(("rows", "columns", "width"), [(0, 2, 4), (2, 0, 4), (2, 2, 6), (2, 2, 0)])
def test_grids_that_cannot_be_are_refused(rows, columns, width):
    with pytest.raises(ValueError, match="must be"):
        grid_positions(rows, columns, width)


def test_attention_distance_equals_the_loop():
    weights = torch.randn(2, 3, 6, 6, dtype=torch.float64).softmax(-1)  # two images, three heads, 2 × 3
    expected = np.zeros((2, 3))
    for image in range(2):
        for head in range(3):
            for query in range(6):
                for key in range(6):
                    down, across = query // 3 - key // 3, query % 3 - key % 3
                    weight = weights[image, head, query, key].item()
                    expected[image, head] += weight * 2.0 * math.hypot(down, across) / 6
    np.testing.assert_allclose(attention_distance(weights, 3, 2.0).numpy(), expected, rtol=1e-12)


def test_who_looks_at_itself_looks_nowhere_far():
    assert attention_distance(torch.eye(6)[None], 3).tolist() == [0.0]
    assert attention_distance(torch.eye(4).roll(2, 0)[None], 2, 8.0).tolist() == [8.0]  # one row away


def test_weights_with_a_class_token_are_refused(unchecked):
    with pytest.raises(ValueError, match="without class token, got"):
        attention_distance(torch.ones(1, 7, 7) / 7, 3)
    with pytest.raises(ValueError, match="weights must have shape"):
        attention_distance(torch.ones(1, 6, 3), 3)
    with pytest.raises(ValueError, match="columns must be at least 1"):
        attention_distance(torch.ones(1, 6, 6), 0)


def test_pointing():
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]])
    assert pointing(weights, torch.tensor([1, 2, -1, 0])).tolist() == [True, False, False, False]
    assert pointing(weights[None], torch.tensor([[1, 0, 2, 1]])).tolist() == [[True, True, True, False]]


def test_targets_of_other_words_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"target must have one cell for each word, \(2,\), got \(3,\)"):
        pointing(torch.ones(2, 4), torch.zeros(3, dtype=torch.long))

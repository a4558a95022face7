import math

import numpy as np
import pytest
import torch

from attention_course.beyond.vision import (
    Captioner,
    PatchEmbedding,
    PatchTransformer,
    attention_distance,
    from_patches,
    grid_positions,
    patches,
    pointing,
)
from attention_course.positions import Learned, sinusoidal
from attention_course.transformer import Embedding, LayerConfig

CONFIG = LayerConfig(d_model=8, num_heads=2, d_ff=12, norm="pre")


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


def test_an_embedded_patch_is_its_projection_and_its_place():
    embed, images = PatchEmbedding(3, 4, 6, 2, 8), torch.randn(5, 3, 4, 6)
    states = embed(images)
    assert states.shape == (5, 6, 8)
    third = images[:, :, 0:2, 4:6].flatten(1) @ embed.encode.weight.T + embed.encode.bias
    torch.testing.assert_close(states[:, 2], third + grid_positions(2, 3, 8)[2])
    given = torch.randn(6, 8)
    other = PatchEmbedding(3, 4, 6, 2, 8, encode=embed.encode, positions=given)
    torch.testing.assert_close(other(images) - given, states - grid_positions(2, 3, 8))
    other.positions.data.zero_()
    assert given.any()  # what was handed in is copied, not kept


def test_images_and_positions_that_do_not_fit_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"images must have shape \[B, 3, 4, 6\], got \(5, 3, 6, 4\)"):
        PatchEmbedding(3, 4, 6, 2, 8)(torch.zeros(5, 3, 6, 4))
    with pytest.raises(ValueError, match=r"positions must have shape \(6, 8\) for 2 × 3 patches, got"):
        PatchEmbedding(3, 4, 6, 2, 8, positions=torch.zeros(3, 8))
    with pytest.raises(ValueError, match="num_outputs must be at least 1, got 0"):
        PatchTransformer(PatchEmbedding(3, 4, 6, 2, 8), 0, 1, CONFIG)


class TestPatchTransformer:
    def make(self):
        return PatchTransformer(PatchEmbedding(1, 4, 6, 2, 8), 10, 2, CONFIG)

    def test_the_class_token_comes_first(self):
        logits, weights = self.make()(torch.randn(5, 1, 4, 6), need_weights=True)
        assert logits.shape == (5, 10)
        assert [w.shape for w in weights] == [(5, 2, 7, 7)] * 2
        assert self.make()(torch.randn(5, 1, 4, 6))[1] is None

    def test_every_patch_and_its_place_count(self):
        model, images = self.make(), torch.randn(1, 1, 4, 6)
        before = model(images)[0]
        for row in (0, 2):
            for column in (0, 2, 4):
                other = images.clone()
                other[..., row : row + 2, column : column + 2] += 1
                assert not torch.allclose(model(other)[0], before)
        exchanged = images.roll(2, -1)  # the same patches at other places
        assert not torch.allclose(model(exchanged)[0], before, atol=1e-5)
        model.embedding.positions.data.zero_()
        torch.testing.assert_close(model(exchanged)[0], model(images)[0])

    def test_no_place_is_added_to_the_class_token(self):
        model = self.make()
        seen = []
        model.stack.register_forward_hook(lambda module, given, answer: seen.append(given[0]))
        question = torch.randn(3, 8)
        for asked in (None, question):
            model(torch.randn(3, 1, 4, 6), question=asked)
        assert torch.equal(seen[0][:, 0], model.class_token.expand(3, 8))
        torch.testing.assert_close(seen[1][:, 0], model.class_token + question)

    def test_gradients_reach_every_parameter(self):
        model = self.make()
        model(torch.randn(3, 1, 4, 6))[0].square().sum().backward()
        # Adding the same number to all scores of a query changes no weight: keys need no bias.
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0 or "key_projection.bias" in name, name


class TestCaptioner:
    def make(self):
        words = Embedding(9, 8, Learned(6, 8))
        return Captioner(PatchEmbedding(1, 4, 6, 2, 8), words, 1, CONFIG)

    def test_writes_word_after_word(self):
        model, images = self.make(), torch.randn(4, 1, 4, 6)
        words, looks = model.write(images, start=8, length=5)
        assert words.shape == (4, 5) and looks.shape == (4, 2, 5, 6)
        # Once more with all words known: word t and its weights come from the step that reads t - 1 words.
        previous = torch.cat((torch.full((4, 1), 8), words[:, :-1]), dim=1)
        logits, weights = model(images, previous, need_weights=True)
        assert torch.equal(logits.argmax(-1), words)
        torch.testing.assert_close(weights[0].source, looks)

    def test_words_to_come_are_not_seen_and_the_image_is(self):
        model, images = self.make(), torch.randn(2, 1, 4, 6)
        previous = torch.tensor([[8, 1, 2, 3]]).expand(2, 4)
        later = torch.tensor([[8, 1, 7, 7]]).expand(2, 4)
        logits = model(images, previous)[0]
        torch.testing.assert_close(model(images, later)[0][:, :2], logits[:, :2])
        assert not torch.allclose(model(images + 1, previous)[0], logits)

    def test_a_length_below_one_is_refused(self):
        with pytest.raises(ValueError, match="length must be at least 1, got 0"):
            self.make().write(torch.randn(1, 1, 4, 6), start=0, length=0)

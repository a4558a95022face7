"""Chapter 16's pairs of senses: the loss by loops, what retrieval counts, who sees whom."""

import math

import pytest
import torch

from attention_course.beyond.senses import (
    TextWithCrossAttention,
    TextWithPrefix,
    contrastive_loss,
    image_prefix_mask,
    own_is_nearest,
    retrieval_at_1,
)
from attention_course.positions import Learned
from attention_course.transformer import Embedding, LanguageModel, LayerConfig

CONFIG = LayerConfig(d_model=8, num_heads=2, d_ff=16, norm="pre")


def pairs(B=5, d=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(B, d, generator=generator, dtype=torch.float64) for _ in range(2))


def by_loops(image, text, temperature):
    def cosine(a, b):
        return (a @ b / (a.norm() * b.norm())).item()

    B, total = len(image), 0.0
    for i in range(B):
        row = [math.exp(cosine(image[i], text[j]) / temperature) for j in range(B)]
        column = [math.exp(cosine(image[j], text[i]) / temperature) for j in range(B)]
        total -= math.log(row[i] / sum(row)) + math.log(column[i] / sum(column))
    return total / (2 * B)


class TestContrastiveLoss:
    @pytest.mark.parametrize("temperature", [0.07, 1.0, 3.0])
    def test_it_is_what_loops_find(self, temperature):
        image, text = pairs()
        assert contrastive_loss(image, text, temperature).item() == pytest.approx(
            by_loops(image, text, temperature)
        )

    def test_lengths_do_not_count(self):
        image, text = pairs()
        scale = torch.rand(5, 1, dtype=torch.float64) + 0.1
        torch.testing.assert_close(
            contrastive_loss(image * scale, text / scale, 0.2), contrastive_loss(image, text, 0.2)
        )

    def test_the_senses_may_be_exchanged_and_the_pairs_shuffled_together_but_not_apart(self):
        image, text = pairs()
        loss, order = contrastive_loss(image, text, 0.2), torch.tensor([3, 1, 4, 0, 2])
        torch.testing.assert_close(contrastive_loss(text, image, 0.2), loss)
        torch.testing.assert_close(contrastive_loss(image[order], text[order], 0.2), loss)
        assert abs(contrastive_loss(image[order], text, 0.2) - loss) > 0.1

    def test_each_direction_has_half_of_it(self):
        image = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        text = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # both texts look like the first image
        to_text, to_image = math.log(2), (math.log(1 + math.e**-1) + math.log(1 + math.e)) / 2
        assert contrastive_loss(image, text, 1.0).item() == pytest.approx((to_text + to_image) / 2)

    def test_two_pairs_that_say_the_same_cost_ln_2_at_best(self):
        image = text = torch.ones(2, 3)
        assert contrastive_loss(image, text, 0.01).item() == pytest.approx(math.log(2))

    def test_gradients_reach_both_senses_and_the_temperature(self):
        image, text = (part.requires_grad_() for part in pairs(3))
        log_temperature = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda i, t, s: contrastive_loss(i, t, s.exp()), (image, text, log_temperature)
        )


class TestRetrieval:
    def test_it_counts_the_images_whose_own_text_is_nearest(self):
        image = torch.eye(4)
        text = torch.eye(4)[[0, 1, 3, 2]]
        assert own_is_nearest(image, text).tolist() == [True, True, False, False]
        assert retrieval_at_1(image, text) == 0.5
        assert retrieval_at_1(image, image) == 1.0

    def test_its_two_directions_differ(self):
        image = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
        text = torch.tensor([[0.8, 0.4], [-1.0, -1.0]])
        assert retrieval_at_1(image, text) == 0.5 and retrieval_at_1(text, image) == 0.0

    def test_lengths_do_not_count(self):
        image = torch.eye(3)
        assert retrieval_at_1(image, image * torch.tensor([[100.0], [1.0], [0.01]])) == 1.0

    def test_a_tie_is_a_miss(self):
        image = torch.eye(3)
        text = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        assert retrieval_at_1(image, text) == pytest.approx(1 / 3)
        assert retrieval_at_1(torch.ones(5, 3), torch.ones(5, 3)) == 0.0

    def test_what_is_not_a_number_finds_nothing(self):
        assert retrieval_at_1(torch.full((2, 2), math.nan), torch.eye(2)) == 0.0


class TestPrefixMask:
    def test_by_hand(self):
        assert image_prefix_mask(2, 3).int().tolist() == [
            [1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0],
            [1, 1, 1, 1, 1],
        ]

    def test_without_words_or_images(self):
        assert image_prefix_mask(3, 0).all()
        assert torch.equal(image_prefix_mask(0, 4), torch.ones(4, 4).tril().bool())
        assert image_prefix_mask(0, 0).shape == (0, 0)

    def test_it_is_made_where_it_is_asked_for(self):
        assert image_prefix_mask(1, 2, device="meta").device.type == "meta"


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    @pytest.mark.parametrize("function", [lambda i, t: contrastive_loss(i, t, 1.0), retrieval_at_1])
    def test_pairs_that_do_not_fit(self, function):
        with pytest.raises(
            ValueError, match=r"the same shape \[B, d\], got image \(3, 2\) and text \(2, 2\)"
        ):
            function(torch.ones(3, 2), torch.ones(2, 2))
        with pytest.raises(ValueError, match=r"the same shape \[B, d\], got image \(2,\) and text \(2,\)"):
            function(torch.ones(2), torch.ones(2))
        with pytest.raises(ValueError, match="the number of pairs must be at least 1, got 0"):
            function(torch.ones(0, 2), torch.ones(0, 2))
        with pytest.raises(TypeError, match=r"text must have the image's dtype torch.float32, got"):
            function(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64))

    @pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, torch.tensor(0.0)])
    def test_a_temperature_that_is_none(self, temperature):
        with pytest.raises(ValueError, match="temperature must be above 0, got"):
            contrastive_loss(*pairs(), temperature)

    def test_several_temperatures(self):
        with pytest.raises(ValueError, match=r"temperature must be a single number, got shape \(5,\)"):
            contrastive_loss(*pairs(), torch.ones(5))

    def test_one_pair_has_nothing_to_find(self):
        with pytest.raises(ValueError, match="the number of pairs must be at least 2, got 1"):
            retrieval_at_1(torch.ones(1, 2), torch.ones(1, 2))

    def test_less_than_nothing(self):
        with pytest.raises(ValueError, match="images must be at least 0, got -1"):
            image_prefix_mask(-1, 2)
        with pytest.raises(ValueError, match="words must be at least 0, got -2"):
            image_prefix_mask(1, -2)


def text_model(seed=0):
    torch.manual_seed(seed)
    embedding = Embedding(11, 8, Learned(6, 8))
    return LanguageModel(embedding, 2, CONFIG, is_causal=True, tied=False).eval()


class TestCrossAttention:
    def test_behind_shut_gates_nothing_changes_to_the_last_bit(self):
        text, words, image = text_model(), torch.randint(11, (3, 5)), torch.randn(3, 4, 6)
        model = TextWithCrossAttention(text, CONFIG, 6, gated=True).eval()
        assert torch.equal(model(words, image), text(words))
        with torch.no_grad():
            model.looks[0].around_cross_attention.gate += 0.1
        assert not torch.allclose(model(words, image), text(words))
        assert torch.equal(model(words), text(words))  # without an image, whatever the gates say

    def test_without_gates_it_is_layer_upon_layer(self):
        text, words, image = text_model(), torch.randint(11, (3, 5)), torch.randn(3, 4, 6)
        model = TextWithCrossAttention(text, CONFIG, 6, gated=False).eval()
        x, seen = text.embedding(words), model.projection(image)
        for look, layer in zip(model.looks, text.stack.layers, strict=True):
            x, _ = look(x, seen)
            x, _ = layer(x, is_causal=True)
        torch.testing.assert_close(model(words, image), text.output(text.stack.final_norm(x)))
        assert not torch.allclose(model(words, image), text(words))

    def test_the_first_step_moves_only_gates_and_they_do_move(self):
        model = TextWithCrossAttention(text_model(), CONFIG, 6, gated=True)
        model(torch.randint(11, (3, 5)), torch.randn(3, 4, 6)).square().mean().backward()
        assert model.projection.weight.grad.abs().sum() == 0
        for look in model.looks:
            assert look.around_cross_attention.gate.grad != 0 != look.around_feed_forward.gate.grad


@pytest.mark.parametrize("prefix", [True, False])
def test_no_word_hears_of_a_later_one_and_every_word_of_the_image(prefix):
    torch.manual_seed(0)
    model = TextWithPrefix(text_model(), 6).eval()
    if not prefix:
        model = TextWithCrossAttention(text_model(), CONFIG, 6, gated=False).eval()
    words, image = torch.randint(11, (1, 5)), torch.randn(1, 4, 6)
    before = model(words, image)
    for place in range(5):
        changed = words.clone()
        changed[0, place] = (changed[0, place] + 1) % 11
        moved = ((model(changed, image) - before).abs() > 1e-6).any(-1)[0]
        assert moved.tolist() == [t >= place for t in range(5)]
    for token in range(4):
        changed = image.clone()
        changed[0, token] += 1
        assert ((model(words, changed) - before).abs() > 1e-6).any(-1).all()


def test_a_prefix_is_read_by_the_models_own_attention_under_the_mask():
    text, words, image = text_model(), torch.randint(11, (2, 5)), torch.randn(2, 4, 6)
    model = TextWithPrefix(text, 6).eval()
    x = torch.cat((model.projection(image), text.embedding(words)), 1)
    for layer in text.stack.layers:
        x, weights = layer(x, attn_mask=image_prefix_mask(4, 5), need_weights=True)
        assert (weights[..., :4, :4] > 0).all() and (weights[..., :4, 4:] == 0).all()
        assert (weights[..., 4:, :4] > 0).all()
    torch.testing.assert_close(model(words, image), text.output(text.stack.final_norm(x))[:, 4:])
    torch.testing.assert_close(model(words), text(words))

"""Chapter 16's two senses: what is compared, what is counted, what is frozen."""

import math

import pytest
import torch

from attention_course.lab.data import clips
from attention_course.lab.data.digits import digits
from attention_course.lab.experiments import senses
from attention_course.lab.experiments.senses import Told

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    return senses.Pair().eval()


def described(size=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return clips.paint(digits(0).train, torch.randperm(120, generator=generator)[:size], generator)


class TestPair:
    def test_the_two_never_meet(self, pair):
        pixels, words, _ = described()
        pixels.requires_grad_()
        seen, read = pair.see(pixels), pair.read(words)
        assert seen.shape == read.shape == (6, senses.SHARED)
        assert torch.autograd.grad(read.sum(), pixels, allow_unused=True) == (None,)
        (moved,) = torch.autograd.grad(seen[2].sum(), pixels)
        assert (moved.flatten(1).abs().sum(1) > 0).tolist() == [i == 2 for i in range(6)]

    def test_the_order_of_words_and_the_place_of_patches_count(self, pair):
        pixels, words, _ = described()
        assert not torch.allclose(pair.read(words), pair.read(words.flip(1)))
        assert not torch.allclose(pair.see(pixels), pair.see(pixels.roll(8, -1)))

    def test_its_temperature_is_what_it_is_given_and_learned_or_not(self):
        assert senses.Pair(0.3).temperature.item() == pytest.approx(0.3)
        assert not senses.Pair(learned=False).log_temperature.requires_grad


class TestRetrieval:
    def test_a_pair_that_reads_images_finds_all_and_one_that_reads_nothing_none(self, pair, monkeypatch):
        vectors = torch.randn(120, 32, generator=torch.Generator().manual_seed(0))
        number = {tuple(words): i for i, words in enumerate(clips.describe(torch.arange(120)).tolist())}
        order = []

        def paint(images, kind, generator):
            order[:] = kind.tolist()
            return clips.Described(torch.zeros(len(kind), 16, 16), clips.describe(kind), kind)

        monkeypatch.setattr(senses.clips, "paint", paint)
        read = lambda words: vectors[[number[tuple(row)] for row in words.tolist()]]  # noqa: E731
        monkeypatch.setattr(pair, "read", read)
        monkeypatch.setattr(pair, "see", lambda pixels: vectors[order])
        assert senses.retrieval(pair, digits(0).test, 0, rounds=2) == (1, 1, 1)
        monkeypatch.setattr(pair, "see", lambda pixels: torch.ones(len(pixels), 32))
        found = senses.retrieval(pair, digits(0).test, 0, rounds=2)
        assert found.image == 0 and found.text == 0.01 and found.withheld <= 0.05

    def test_a_short_trial_learns_and_is_the_same_every_time(self):
        once, again = (senses.match(0, pairs=32 * 12, batch_size=32) for _ in range(2))
        assert once["steps"] == 12 and once["loss"] == again["loss"] < math.log(32)
        assert once["retrieval"] == again["retrieval"]
        assert once["parameters"] == 43_889


class TestTelling:
    def test_nats_are_of_each_word_given_those_before(self):
        torch.manual_seed(0)
        model = senses.text_model().eval()
        words = clips.describe(torch.tensor([7, 99]))
        found = senses.nats(model, Told(words, None))
        for place in range(4):
            before = torch.cat((torch.zeros(2, 1, dtype=torch.long), words[:, :place]), 1)
            chances = model(before)[:, -1].log_softmax(-1)
            torch.testing.assert_close(found[:, place], -chances[torch.arange(2), words[:, place]])

    def test_right_means_all_four_words(self):
        words = clips.describe(torch.tensor([7, 99]))
        logits = torch.nn.functional.one_hot(words, len(clips.WORDS)).float()
        model = torch.nn.Module()
        model.forward = lambda before: logits
        assert senses.right(model, Told(words, None)) == 1
        logits[0, 2] = logits[0, 2].roll(1)
        assert senses.right(model, Told(words, None)) == 0.5

    @pytest.mark.parametrize("way", ["gated", "ungated", "prefix"])
    def test_what_learns_and_what_stays(self, pair, way):
        torch.manual_seed(0)
        text = senses.text_model()
        state = {name: weight.clone() for name, weight in text.state_dict().items()}
        model, told = senses.joined(text, way), senses.told(pair.image, described())
        assert told.image.shape == (6, 16, 48) and not told.image.requires_grad
        for _ in range(2):  # behind a shut gate nothing has a gradient in the first step but the gate
            senses.caption_loss(model, told).backward()
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.grad is not None:
                        weight -= 0.1 * weight.grad
        learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
        moved = {n for n, weight in model.text.state_dict().items() if not torch.equal(weight, state[n])}
        assert bool(moved) == (way == "prefix")
        assert any(name.startswith("text.") for name in learning) == (way == "prefix")
        assert "projection.weight" in learning and model.projection.weight.grad.abs().sum() > 0
        # the text model that was handed in is nobody's to change
        assert all(torch.equal(weight, state[name]) for name, weight in text.state_dict().items())

    def test_a_short_trial_keeps_what_is_frozen(self, pair):
        gated, prefix = (
            senses.join(pair, way, 0, steps=4, batch_size=8, text_steps=2) for way in ("gated", "prefix")
        )
        assert gated["before"] == pytest.approx(gated["after"], abs=1e-6)
        assert gated["first"] == pytest.approx(gated["before"], abs=1e-5)
        assert gated["gates"].shape == (2, 2) and gated["gates"].abs().sum() > 0
        assert prefix["before"] == gated["before"] != prefix["after"] and prefix["gates"] is None
        assert gated["trained"] == 40_276 and prefix["trained"] == 42_288
        assert len(gated["losses"]) == 4


@pytest.mark.usefixtures("unchecked")
def test_a_way_that_is_none():
    with pytest.raises(ValueError, match=r'way must be "gated" or "ungated" or "prefix", got .both.'):
        senses.joined(senses.text_model(), "both")

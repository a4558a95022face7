"""Clips with two clear frames, and digits that four words describe."""

import pytest
import torch

from attention_course.lab.data import clips
from attention_course.lab.data.digits import Images


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def plain(copies=3):
    """Images that give their digit away: every pixel of digit d is (d + 1) / 10."""
    digit = torch.arange(10).repeat(copies)
    return Images(((digit + 1) / 10)[:, None, None].expand(-1, 8, 8), digit)


class TestClips:
    @pytest.mark.parametrize("length", [2, 5, 16])
    def test_two_frames_are_clear_and_their_digits_add_up(self, length):
        frames, clear, total = clips.clips(plain(), 200, length, generator())
        assert frames.shape == (200, length, 8, 8) and 0 <= frames.min() and frames.max() <= 1
        assert (clear.sum(1) == 2).all()
        # what is left of a plain frame when the mean of its snow is taken away
        digits = ((frames[clear].mean((1, 2)) - clips.CLEAR / 2) / (1 - clips.CLEAR) * 10 - 1).round()
        assert torch.equal(digits.view(200, 2).sum(1).long(), total)

    def test_clear_frames_have_little_snow_and_stand_anywhere(self):
        frames, clear, _ = clips.clips(plain(), 600, 6, generator())
        spread = frames.flatten(2).std(-1)
        assert spread[clear].max() < 0.1 < spread[~clear].min()
        assert (clear.float().mean(0) - 1 / 3).abs().max() < 0.08

    def test_the_same_seed_gives_the_same_clips(self):
        one, other = (clips.clip_batches(plain(), 4, 8, seed=1) for _ in range(2))
        first = next(one)
        assert torch.equal(first.frames, next(other).frames)
        assert not torch.equal(first.frames, next(one).frames)


class TestDescriptions:
    def test_every_kind_has_words_of_its_own_in_their_order(self):
        words = clips.describe(torch.arange(clips.KINDS))
        spoken = [clips.said(row) for row in words]
        assert len(set(spoken)) == clips.KINDS == 120
        assert spoken[0] == "faint zero top left" and spoken[-1] == "bright nine bottom right"
        for row in words:
            shade, digit, vertical, horizontal = clips.said(row).split()
            assert shade in clips.SHADES and digit in clips.NAMES
            assert vertical in clips.ROWS and horizontal in clips.COLUMNS

    def test_an_image_is_what_its_words_say(self):
        kind = torch.arange(clips.KINDS)
        pixels, words, same = clips.paint(plain(), kind, generator())
        assert torch.equal(same, kind) and pixels.shape == (120, 16, 16)
        for image, row in zip(pixels, words, strict=True):
            shade, digit, vertical, horizontal = clips.said(row).split()
            top, left = 8 * (vertical == "bottom"), 8 * (horizontal == "right")
            corner = image[top : top + 8, left : left + 8]
            expected = clips.BRIGHTNESS[clips.SHADES.index(shade)] * (clips.NAMES.index(digit) + 1) / 10
            assert corner.mean().item() == pytest.approx(expected, abs=0.03)
            rest = (image.sum() - corner.sum()) / (256 - 64)
            assert rest.abs() < 0.02

    def test_every_image_of_a_digit_can_be_drawn(self):
        digit = torch.tensor([3, 1, 3, 3, 7])
        images = Images(torch.arange(5.0)[:, None, None].expand(5, 8, 8), digit)
        threes = torch.full((300,), 4 * 3 + 80)  # bright, top left
        drawn = clips.paint(images, threes, generator()).pixels[:, :8, :8].mean((1, 2)).round()
        assert set(drawn.tolist()) == {0.0, 2.0, 3.0}

    def test_no_two_of_a_batch_say_the_same(self):
        kinds = torch.arange(0, 120, 3)
        stream = clips.described_batches(plain(), kinds, 30, seed=0)
        for _ in range(5):
            drawn = next(stream).kind.tolist()
            assert len(set(drawn)) == 30 and set(drawn) <= set(kinds.tolist())

    def test_of_each_digit_two_kinds_are_withheld_and_every_word_stays(self):
        for seed in range(20):
            kept = clips.withheld(seed)
            words = clips.describe(torch.arange(120))
            assert torch.equal(words[kept][:, 1].bincount()[4:], torch.full((10,), 2))
            assert set(words[~kept].flatten().tolist()) == set(range(1, len(clips.WORDS)))
        assert not torch.equal(clips.withheld(0), clips.withheld(1))


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    def test_a_clip_of_one_frame(self):
        with pytest.raises(ValueError, match="length must be at least 2, got 1"):
            clips.clips(plain(), 1, 1, generator())

    @pytest.mark.parametrize("kind", [-1, 120])
    def test_a_kind_that_is_none(self, kind):
        with pytest.raises(ValueError, match=f"kind must lie between 0 and 119, got {kind}"):
            clips.describe(torch.tensor([kind]))

    def test_a_digit_of_which_there_is_no_image(self):
        images = Images(torch.ones(2, 8, 8), torch.tensor([4, 5]))
        with pytest.raises(ValueError, match=r"images must hold every digit asked for, got \[4, 5\]"):
            clips.paint(images, torch.tensor([0]), generator())

    def test_more_images_than_kinds(self):
        with pytest.raises(ValueError, match="size must be at most the number of kinds, 3, got 4"):
            next(clips.described_batches(plain(), torch.arange(3), 4, seed=0))

"""Handwritten digits: what there is of them, and that the parts share no image."""

import torch

from attention_course.lab.data.digits import digits


def test_the_parts_are_whole_disjoint_and_drawn_by_the_seed():
    parts = digits(seed=3)
    assert [len(part.digit) for part in parts] == [1097, 300, 400]
    pixels = torch.cat([part.pixels for part in parts])
    assert pixels.min() == 0
    assert pixels.max() == 1
    assert len(pixels.flatten(1).unique(dim=0)) == 1797
    assert all(set(part.digit.tolist()) == set(range(10)) for part in parts)
    assert torch.equal(digits(seed=3).train.pixels, parts.train.pixels)
    assert not torch.equal(digits(seed=4).train.pixels, parts.train.pixels)


def test_an_image_keeps_its_label():
    """Whatever the order, the same pixels show the same digit."""
    first, second = digits(seed=0), digits(seed=1)
    named = {
        tuple(image.flatten().tolist()): int(digit)
        for part in first
        for image, digit in zip(*part, strict=True)
    }
    for part in second:
        for image, digit in zip(*part, strict=True):
            assert named[tuple(image.flatten().tolist())] == digit

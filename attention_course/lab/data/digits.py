"""Handwritten digits that come with scikit-learn: 1,797 real ones, 8 × 8 pixels each."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: height and width of an image, in pixels
SIDE = 8
#: how many images test and validate; the others train
TEST, VALIDATION = 400, 300


class Images(NamedTuple):
    """Images with brightnesses from 0 to 1, and the digit that each shows."""

    pixels: Float[Tensor, "n 8 8"]
    digit: Int[Tensor, " n"]


class Digits(NamedTuple):
    """1,097 images to train with, 300 to choose by, 400 to report on; no image is in two of them."""

    train: Images
    validation: Images
    test: Images


def digits(seed: int = 0) -> Digits:
    """Return the digits of Alpaydin and Kaynak (1998), shuffled by ``seed`` and cut in three."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(seed))
    pixels = torch.tensor(bunch.images, dtype=torch.float32)[order] / 16
    digit = torch.tensor(bunch.target, dtype=torch.long)[order]
    parts = [len(order) - TEST - VALIDATION, VALIDATION, TEST]
    return Digits(*map(Images, pixels.split(parts), digit.split(parts)))

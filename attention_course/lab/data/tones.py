"""Key tones: what a telephone sends when keys are pressed, with noise, in clips of different lengths.

Each key sounds two pure tones, one for its row and one for its column (ITU-T Q.23). How long it is
held, how long the pause is, and by how much the frequencies are off is drawn anew for every key.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_course.inputs import check_at_least, check_range

KEYS = "123A456B789C*0#D"
#: frequencies of the keypad's rows and columns, in hertz
ROWS, COLUMNS = (697.0, 770.0, 852.0, 941.0), (1209.0, 1336.0, 1477.0, 1633.0)
#: samples a second
RATE = 8000
#: shortest and longest tone and pause, in seconds; frequencies are off by at most this share
TONE, PAUSE, OFF = (0.06, 0.15), (0.03, 0.10), 0.015


class Clips(NamedTuple):
    """Clips of key tones without noise, and what is known of them: times in samples, -1 behind the last."""

    wave: Float[Tensor, "n samples"]
    lengths: Int[Tensor, " n"]
    keys: Int[Tensor, "n most"]
    begin: Int[Tensor, "n most"]
    end: Int[Tensor, "n most"]


def draw(
    size: int, generator: torch.Generator, *, count: tuple[int, int] = (3, 6), different: int | None = None
) -> Clips:
    """Return ``size`` clips of ``count`` keys each, from the first number to the second.

    All sixteen keys are equally likely; with ``different``, a clip has only so many of its own to draw
    from, so that most come again. Raises a ``ValueError`` for sizes below 1, numbers of keys that are
    not in order, and more different keys than there are.
    """
    few, most = count
    check_at_least(1, size=size)
    if not 1 <= few <= most:
        raise ValueError(f"count must be at least 1 and in order, got {count}")
    own = len(KEYS) if different is None else different
    if not 1 <= own <= len(KEYS):
        raise ValueError(f"different must lie between 1 and {len(KEYS)}, got {different}")

    pressed = torch.randint(few, most + 1, (size, 1), generator=generator)
    palette = torch.rand(size, len(KEYS), generator=generator).argsort(1)  # each clip's own order of keys
    keys = palette.gather(1, torch.randint(own, (size, most), generator=generator))
    return press(keys.where(torch.arange(most) < pressed, -1), generator)


def press(keys: Int[Tensor, "n most"], generator: torch.Generator) -> Clips:
    """Return clips in which ``keys`` [n, most] are pressed from left to right, -1 behind the last.

    Raises a ``ValueError`` for a number that is no key, for a clip without any, and for a key behind a -1.
    """
    check_range("keys", keys, -1, len(KEYS) - 1)
    present = keys >= 0
    if not present[:, 0].all() or (present[:, 1:] & ~present[:, :-1]).any():
        raise ValueError("every clip of keys must begin with a key and have -1 only behind the last one")
    size, most = keys.shape

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator)

    held = (uniform(*TONE, size, most) * RATE).long() * present
    pause = (uniform(*PAUSE, size, most + 1) * RATE).long()
    pause[:, 1:] *= present
    steps = held + pause[:, 1:]
    begin = pause[:, :1] + steps.cumsum(1) - steps
    lengths = pause[:, 0] + steps.sum(1)

    time = torch.arange(int(held.max()))
    pairs = torch.tensor([(row, column) for row in ROWS for column in COLUMNS])[keys]  # [n, most, 2]
    pairs = pairs * uniform(1 - OFF, 1 + OFF, size, most, 1)
    phase = uniform(0.0, 2 * math.pi, size, most, 2)
    angle = (2 * math.pi / RATE) * pairs[present][..., None] * time + phase[present][..., None]
    sound = 0.5 * angle.sin_().sum(-2) * (time < held[present][:, None])  # [keys in all, longest tone]
    wave = torch.zeros(size, int(lengths.max()) + len(time))
    clip = torch.arange(size)[:, None].expand(size, most)[present]
    wave.index_put_((clip[:, None], begin[present][:, None] + time), sound, accumulate=True)
    wave = wave[:, : int(lengths.max())]
    return Clips(wave, lengths, *(times.where(present, -1) for times in (keys, begin, begin + held)))


def noisy(
    wave: Float[Tensor, "n samples"], decibels: Float[Tensor, " n"], generator: torch.Generator
) -> Float[Tensor, "n samples"]:
    """Return each ``wave`` [n, samples] under white noise, so many ``decibels`` [n] below a sounding key.

    At 0 the noise is as strong as the tones; at -5 it is stronger.
    """
    power = 0.25  # of two sines of height 1/2
    strength = (power * 10 ** (-decibels / 10)).sqrt()
    return wave + strength[:, None] * torch.randn(wave.shape, generator=generator)


def names(keys: Sequence[int]) -> list[str]:
    """Return what is printed on each of ``keys``; what is no key, as -1, is left out."""
    return [KEYS[key] for key in keys if 0 <= key < len(KEYS)]


def numbers(names: str) -> Int[Tensor, "1 most"]:
    """Return the keys with these ``names``, as one clip for ``press``: "1A" -> [[0, 3]].

    Raises a ``ValueError`` for what is on no key.
    """
    if not names or any(name not in KEYS for name in names):
        raise ValueError(f"names must be one or more of {KEYS}, got {names!r}")
    return torch.tensor([[KEYS.index(name) for name in names]])

"""Key tones: which frequencies sound when, and how loud the noise is."""

import math

import pytest
import torch

from attention_course.lab.data import tones


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_key_sounds_its_row_and_its_column_and_pauses_are_silent():
    clips = tones.press(tones.numbers("1D058"), generator())
    wave, begin, end = clips.wave[0], clips.begin[0], clips.end[0]
    for i, (row, column) in enumerate([(697, 1209), (941, 1633), (941, 1336), (770, 1336), (852, 1336)]):
        tone = wave[begin[i] : end[i]]
        time = torch.arange(len(tone)) / tones.RATE

        def loudness(frequency, tone=tone, time=time):
            angle = 2 * math.pi * frequency * time
            return ((tone * angle.cos()).sum() ** 2 + (tone * angle.sin()).sum() ** 2).item()

        rows = [loudness(frequency) for frequency in tones.ROWS]
        columns = [loudness(frequency) for frequency in tones.COLUMNS]
        assert tones.ROWS[rows.index(max(rows))] == row
        assert tones.COLUMNS[columns.index(max(columns))] == column
        assert tone.square().mean().item() == pytest.approx(0.25, abs=0.02)
    sounding = torch.zeros(len(wave), dtype=torch.bool)
    for first, last in zip(begin, end, strict=True):
        sounding[first:last] = True
    assert (wave[~sounding] == 0).all()
    assert wave.abs().max() <= 1


def test_times_lie_in_order_and_within_what_is_promised():
    clips = tones.draw(200, generator())
    present = clips.keys >= 0
    count = present.sum(1)
    assert set(count.tolist()) == {3, 4, 5, 6}
    assert set(clips.keys[present].tolist()) == set(range(16))
    held = (clips.end - clips.begin)[present] / tones.RATE
    assert held.min() >= 0.06 - 1e-3
    assert held.max() <= 0.15
    pause = (clips.begin[:, 1:] - clips.end[:, :-1])[present[:, 1:]] / tones.RATE
    assert pause.min() >= 0.03 - 1e-3
    assert pause.max() <= 0.10
    last = clips.end.gather(1, count[:, None] - 1)[:, 0]
    assert (last < clips.lengths).all()
    assert clips.wave.shape[1] == clips.lengths.max()
    assert all((clips.wave[b, n:] == 0).all() for b, n in enumerate(clips.lengths))
    assert ((clips.begin == -1) == ~present).all()
    assert ((clips.end == -1) == ~present).all()


def test_few_different_keys_come_again():
    for different in (1, 2):
        keys = tones.draw(100, generator(), different=different).keys
        counts = [len({key for key in row if key >= 0}) for row in keys.tolist()]
        assert max(counts) == different


def test_the_generator_decides():
    first, second, third = (tones.draw(3, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.wave, second.wave)
    assert first.wave.shape != third.wave.shape or not torch.equal(first.wave, third.wave)


def test_noise_has_the_decibels_it_is_asked_for():
    decibels = torch.tensor([20.0, 0.0, -5.0])
    noise = tones.noisy(torch.zeros(3, 40_000), decibels, generator())
    found = 10 * (0.25 / noise.square().mean(1)).log10()
    assert torch.allclose(found, decibels, atol=0.2)


def test_names_and_numbers():
    assert tones.numbers("1A#").tolist() == [[0, 3, 14]]
    assert tones.names([0, 3, 14, -1, 16]) == ["1", "A", "#"]


def test_tones_refuse(unchecked):
    for given, message in (
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"count": (4, 3)}, r"in order, got \(4, 3\)"),
        ({"count": (0, 3)}, "count must be at least 1"),
        ({"different": 17}, "between 1 and 16, got 17"),
    ):
        with pytest.raises(ValueError, match=message):
            tones.draw(**({"size": 2, "generator": generator()} | given))
    for keys in ([[-1, 2]], [[1, -1, 2]]):
        with pytest.raises(ValueError, match="begin with a key and have -1 only behind"):
            tones.press(torch.tensor(keys), generator())
    with pytest.raises(ValueError, match="keys must lie between -1 and 15, got 1 to 16"):
        tones.press(torch.tensor([[1, 16]]), generator())
    for names in ("", "12E"):
        with pytest.raises(ValueError, match="one or more of 123A456B789C"):
            tones.numbers(names)

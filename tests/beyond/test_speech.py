"""Frames, pyramids, the score that knows where it looked, and edit distance."""

import math

import pytest
import torch

from attention_course.beyond import speech


def sine(frequency: float, samples: int, rate: int = 8000) -> torch.Tensor:
    return (2 * math.pi * frequency * torch.arange(samples) / rate).sin()


# ---------------------------------------------------------------- spectrogram


def test_a_tone_is_loudest_in_its_own_band():
    found = speech.spectrogram(sine(1000.0, 1000))
    assert found.shape == (5, 129)  # (1000 - 256) // 160 + 1 frames
    assert (found.argmax(-1) == 1000 * 256 / 8000).all()


def test_a_frame_equals_its_windowed_fourier_sum():
    wave, window, hop = torch.randn(2, 50, dtype=torch.float64), 16, 6
    found = speech.spectrogram(wave, window=window, hop=hop, bands=5, floor=0.1)
    assert found.shape == (2, 6, 5)
    time = torch.arange(window, dtype=torch.float64)
    hann = 0.5 - 0.5 * (2 * math.pi * time / window).cos()
    for t in range(6):
        piece = wave[:, t * hop : t * hop + window] * hann
        for band in range(5):
            angle = 2 * math.pi * band * time / window
            size = ((piece * angle.cos()).sum(-1) ** 2 + (piece * angle.sin()).sum(-1) ** 2).sqrt()
            assert torch.allclose(found[:, t, band], (0.1 + size).log())


def test_leading_dimensions_are_kept_and_frames_are_counted():
    wave = torch.randn(2, 3, 700)
    found = speech.spectrogram(wave)
    assert found.shape == (2, 3, int(speech.frames_of(torch.tensor([700]))), 129)
    assert torch.allclose(found[1, 2], speech.spectrogram(wave[1, 2]))
    assert speech.spectrogram(torch.randn(700)).shape == (3, 129)


def test_frames_do_not_know_what_comes_behind_a_clips_end():
    wave = torch.randn(1, 2000)
    count = int(speech.frames_of(torch.tensor([1000])))
    longer = wave.clone()
    longer[:, 1000:] = 9.0
    assert torch.equal(speech.spectrogram(wave)[:, :count], speech.spectrogram(longer)[:, :count])
    assert not torch.equal(speech.spectrogram(wave)[:, count], speech.spectrogram(longer)[:, count])


def test_frames_of_counts_whole_frames():
    lengths = torch.tensor([256, 415, 416, 575, 576])
    assert speech.frames_of(lengths, 256, 160).tolist() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wave": torch.zeros(255)}, "at least window = 256 samples, got 255"),
        ({"bands": 130}, "between 1 and window // 2 \\+ 1 = 129, got 130"),
        ({"bands": 0}, "got 0"),
        ({"floor": 0.0}, "floor must be above 0"),
        ({"hop": 0}, "hop must be at least 1, got 0"),
        ({"window": 0}, "window must be at least 1, got 0"),
    ],
)
def test_spectrogram_refuses(given, message):
    with pytest.raises(ValueError, match=message):
        speech.spectrogram(**{"wave": torch.zeros(1000), **given})


def test_frames_of_refuses():
    with pytest.raises(ValueError, match="at least window = 256, got 255"):
        speech.frames_of(torch.tensor([300, 255]))
    with pytest.raises(ValueError, match="hop must be at least 1"):
        speech.frames_of(torch.tensor([300]), 256, 0)


# ---------------------------------------------------------------- pyramid


def test_pyramid_joins_neighbours_and_pads_an_odd_last_frame():
    x = torch.arange(1.0, 11.0).reshape(1, 5, 2)
    found, lengths = speech.pyramid(x, torch.tensor([5]))
    assert found.tolist() == [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]]
    assert lengths.tolist() == [3]


def test_pyramid_lets_no_padding_in():
    x, lengths = torch.randn(3, 6, 2), torch.tensor([6, 3, 0])
    dirty = x.clone()
    dirty[1, 3:] = 7.0
    dirty[2] = torch.nan
    first, halves = speech.pyramid(x, lengths)
    second, _ = speech.pyramid(dirty, lengths)
    assert halves.tolist() == [3, 2, 0]
    assert torch.equal(first, second)
    assert (first[1, 1, 2:] == 0).all()  # the odd last frame's partner
    assert torch.equal(first[0], x[0].reshape(3, 4))


def test_pyramid_refuses(unchecked):
    with pytest.raises(ValueError, match="lengths must lie between 0 and T = 4, got 2 to 5"):
        speech.pyramid(torch.zeros(2, 4, 1), torch.tensor([2, 5]))
    with pytest.raises(ValueError, match="one for each of 2 clips, got 3"):
        speech.pyramid(torch.zeros(2, 4, 1), torch.tensor([1, 2, 3]))


# ---------------------------------------------------------------- location


def test_location_score_by_a_loop():
    torch.manual_seed(0)
    module = speech.LocationAware(3, 4, 5, filters=2, width=3).double()
    with torch.no_grad():
        module.bias.normal_()
    query, key = torch.randn(2, 3, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    previous = torch.rand(2, 6, dtype=torch.float64)
    found = module(query, key, previous)
    padded = torch.nn.functional.pad(previous, (1, 1))
    for i in range(2):
        for j in range(6):
            feature = module.filters @ padded[i, j : j + 3]  # the key before, the key, the key after
            inner = query[i] @ module.query_weight + key[j] @ module.key_weight
            inner = inner + feature @ module.location_weight + module.bias
            assert torch.allclose(found[i, j], inner.tanh() @ module.v)


def test_the_module_the_function_and_projected_agree():
    module = speech.LocationAware(3, 4, 5)
    query, key, previous = torch.randn(2, 1, 3), torch.randn(2, 6, 4), torch.rand(2, 1, 6)
    found = module(query, key, previous)
    assert found.shape == (2, 1, 6)
    assert torch.equal(found, module.projected(query, module.project_key(key), previous))
    parameters = dict(module.named_parameters())
    assert torch.equal(found, speech.location_score(query, key, previous, **parameters))


def test_without_a_step_before_it_is_the_additive_score():
    module = speech.LocationAware(3, 4, 5)
    query, key = torch.randn(2, 1, 3), torch.randn(2, 6, 4)
    content = super(speech.LocationAware, module).forward(query, key)
    assert torch.allclose(module(query, key, torch.zeros(2, 1, 6)), content, atol=1e-6)
    assert not torch.allclose(module(query, key, torch.ones(2, 1, 6)), content, atol=1e-3)


def test_two_keys_alike_are_told_apart_by_where_it_looked():
    module = speech.LocationAware(3, 4, 5)
    key = torch.randn(1, 1, 4).repeat(1, 20, 1)
    previous = torch.zeros(1, 1, 20)
    blind = module(torch.randn(1, 1, 3), key, previous)
    assert torch.allclose(blind, blind[..., :1].expand_as(blind))
    previous[..., 4] = 1.0
    found = module(torch.randn(1, 1, 3), key, previous)
    near, far = found[0, 0, :12], found[0, 0, 12:]  # the filter's 15 taps reach seven keys from key 4
    assert near.std() > 1e-3
    assert torch.allclose(far, far[:1].expand_as(far))


def test_location_refuses(unchecked):
    with pytest.raises(ValueError, match="width must be odd, so that it has a middle, got 4"):
        speech.LocationAware(3, 4, 5, width=4)
    with pytest.raises(ValueError, match="filters must be at least 1, got 0"):
        speech.LocationAware(3, 4, 5, filters=0)
    module = speech.LocationAware(3, 4, 5)
    with pytest.raises(ValueError, match=r"previous must have shape .* = \[\.\.\., 1, 6\], got \(2, 1, 5\)"):
        module(torch.zeros(2, 1, 3), torch.zeros(2, 6, 4), torch.zeros(2, 1, 5))
    module.filters = torch.nn.Parameter(torch.zeros(8, 2))
    with pytest.raises(ValueError, match="width must be odd"):
        module(torch.zeros(2, 1, 3), torch.zeros(2, 6, 4), torch.zeros(2, 1, 6))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("said", "right", "distance"),
    [
        ([], [], 0),
        ([1, 2, 3], [1, 2, 3], 0),
        ([1, 3], [1, 2, 3], 1),
        ([1, 2, 2, 3], [1, 2, 3], 1),
        ([1, 9, 3], [1, 2, 3], 1),
        ([2, 3, 1], [1, 2, 3], 2),
        ([], [1, 2, 3], 3),
        ([1, 2], [], 2),
        (list(b"kitten"), list(b"sitting"), 3),
    ],
)
def test_edit_distance(said, right, distance):
    assert speech.edit_distance(said, right) == distance
    assert speech.edit_distance(right, said) == distance


def test_error_rate_sums_before_it_divides():
    said, right = [[1], [1, 2, 3, 4, 5]], [[2], [1, 2, 3, 4, 5]]
    assert speech.error_rate(said, right) == pytest.approx(1 / 6)  # the mean of the two clips would be 1/2
    assert speech.error_rate([[1, 1, 1]], [[2]]) == 3.0


def test_error_rate_refuses():
    with pytest.raises(ValueError, match="as many clips, got 1 and 2"):
        speech.error_rate([[1]], [[1], [2]])
    with pytest.raises(ValueError, match="at least one symbol"):
        speech.error_rate([[1]], [[]])

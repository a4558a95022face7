"""Frames, pyramids, the score that knows where it looked, and edit distance."""

import math

import pytest
import torch

from attention_course.beyond import speech
from attention_course.scores import Additive
from attention_course.seq2seq import BahdanauDecoder


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


# ---------------------------------------------------------------- listener and speller


def small(levels=1, location=True):
    score = (speech.LocationAware if location else Additive)(6, 8, 5)
    speller = speech.Speller(7, 3, 6, 8, score=score)
    return speech.ListenAttendSpell(speech.Listener(5, 4, levels=levels), speller)


def test_turned_reads_each_clip_from_its_own_end():
    x = torch.arange(1.0, 9.0).reshape(2, 4, 1)
    found = speech.turned(x, torch.tensor([4, 3]))
    assert found.flatten(1).tolist() == [[4, 3, 2, 1], [7, 6, 5, 8]]
    assert torch.equal(speech.turned(found, torch.tensor([4, 3])), x)


def test_the_listener_equals_packed_grus():
    listener, x, lengths = speech.Listener(5, 4), torch.randn(3, 7, 5), torch.tensor([7, 4, 1])
    both = torch.nn.GRU(5, 4, batch_first=True, bidirectional=True)
    both.load_state_dict(
        listener.onwards[0].state_dict()
        | {f"{name}_reverse": value for name, value in listener.backwards[0].state_dict().items()}
    )
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, last = both(packed)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)
    states, summary, counts = listener(x, lengths)
    assert torch.allclose(states, expected, atol=1e-6)
    assert torch.allclose(summary, torch.cat(tuple(last), -1), atol=1e-6)
    assert counts.tolist() == [7, 4, 1]


@pytest.mark.parametrize(("levels", "counts"), [(0, [7, 4, 1]), (1, [4, 2, 1]), (2, [2, 1, 1])])
def test_padding_changes_nothing_on_any_level(levels, counts):
    model = small(levels).eval()
    x, lengths = torch.randn(3, 7, 5), torch.tensor([7, 4, 1])
    dirty = x.clone()
    dirty[1, 4:], dirty[2, 1:] = 9.0, -9.0
    previous = torch.randint(7, (3, 2))
    first, second = model.read(x, lengths), model.read(dirty, lengths)
    assert model.listener.stride == 2**levels
    assert first.mask.squeeze(1).sum(1).tolist() == counts
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.summary, second.summary)
    logits, weights = model(x, lengths, previous)
    alone, seen = model(x[1:2, :4], lengths[1:2], previous[1:2])
    assert torch.allclose(logits[1], alone[0], atol=1e-6)
    assert torch.allclose(weights[1, :, : counts[1]], seen[0], atol=1e-6)
    assert (weights[1, :, counts[1] :] == 0).all()


def test_the_speller_scores_by_content_as_chapter_2s_decoder_does():
    model = small(location=False)
    plain = BahdanauDecoder(7, 3, 6, 8)
    plain.score = model.speller.score
    plain.load_state_dict(model.speller.state_dict())
    previous = torch.randint(7, (2, 3))
    memory = model.read(torch.randn(2, 6, 5), torch.tensor([6, 5]))
    for mine, other in zip(model.speller(previous, memory)[:2], plain(previous, memory)[:2], strict=True):
        assert torch.equal(mine, other)


def test_a_step_hears_of_the_weights_of_the_step_before_and_of_no_other():
    speller = small().speller
    memory = speller.remember(torch.randn(1, 6, 8), torch.randn(1, 8), torch.tensor([6]))
    previous = torch.randint(7, (1, 3))
    logits, weights, end = speller(previous, memory)
    state = None
    for step in range(3):  # one step at a time comes to the same
        logit, weight, state = speller(previous[:, step : step + 1], memory, state)
        assert torch.allclose(logit[:, 0], logits[:, step], atol=1e-6)
        assert torch.allclose(weight[:, 0], weights[:, step], atol=1e-6)
    assert torch.equal(state.weights, weight)
    assert torch.allclose(state.state, end.state, atol=1e-6)
    moved = speech.Written(state.state, state.weights.roll(2, -1))
    before, after = (speller(previous[:, :1], memory, given)[1] for given in (state, moved))
    assert not torch.allclose(before, after, atol=1e-4)


def test_spell_feeds_back_what_it_wrote_and_stops():
    model, x, lengths = small().eval(), torch.randn(4, 6, 5), torch.tensor([6, 5, 4, 3])
    tokens, weights = speech.spell(model, x, lengths, bos=0, eos=6, max_length=5)
    assert tokens.shape == weights.shape[:2]
    assert tokens.shape[1] <= 5
    logits, again = model(x, lengths, torch.nn.functional.pad(tokens, (1, 0))[:, :-1])
    for row, said in zip(logits.argmax(-1).tolist(), tokens.tolist(), strict=True):
        end = said.index(6) + 1 if 6 in said else len(said)
        assert row[:end] == said[:end]
        assert set(said[end:]) <= {6}
    assert torch.allclose(weights[:, 0], again[:, 0], atol=1e-6)
    with torch.no_grad():
        model.speller.output.bias[6] = 100.0
    assert speech.spell(model, x, lengths, bos=0, eos=6, max_length=5)[0].tolist() == [[6]] * 4


def test_listening_and_spelling_refuse(unchecked):
    model = small()
    x = torch.zeros(2, 6, 5)
    with pytest.raises(ValueError, match="levels must be at least 0, got -1"):
        speech.Listener(5, 4, levels=-1)
    with pytest.raises(ValueError, match="hidden_size must be at least 1"):
        speech.Listener(5, 0)
    with pytest.raises(ValueError, match="lengths must lie between 1 and T = 6, got 0 to 6"):
        model.listener(x, torch.tensor([0, 6]))
    with pytest.raises(ValueError, match="at least one clip, got none"):
        model.listener(x[:0], torch.tensor([], dtype=torch.long))
    with pytest.raises(ValueError, match="one for each of 2 clips, got 1"):
        speech.turned(x, torch.tensor([3]))
    with pytest.raises(ValueError, match="evaluation mode"):
        speech.spell(model, x, torch.tensor([6, 6]), bos=0, eos=6, max_length=3)
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        speech.spell(model.eval(), x, torch.tensor([6, 6]), bos=0, eos=6, max_length=0)

"""A wave in the page: what is in the file, and that nothing is fetched."""

import base64
import io
import re
import wave

import numpy as np
import pytest

from attention_course.lab.page import sound


def test_the_file_holds_the_wave():
    samples = np.array([0.0, 0.25, -0.5, 0.1])
    with wave.open(io.BytesIO(sound.wav(samples, 8000))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 8000)
        found = np.frombuffer(file.readframes(4), dtype="<i2") / (2**15 - 1)
    assert np.allclose(found, samples / 0.5, atol=1e-4)


def test_silence_stays_silent():
    with wave.open(io.BytesIO(sound.wav(np.zeros(5), 8000))) as file:
        assert set(file.readframes(5)) == {0}


def test_the_player_carries_its_sound_and_its_words():
    markup = sound.player([0.0, 1.0, -1.0], 8000, 'four keys, "5"').data
    [data] = re.findall(r'src="data:audio/wav;base64,([^"]+)"', markup)
    assert base64.b64decode(data) == sound.wav([0.0, 1.0, -1.0], 8000)
    assert 'aria-label="four keys, &quot;5&quot;"' in markup
    assert "http" not in markup


@pytest.mark.parametrize("samples", [[], [[0.0]], [0.0, float("nan")]])
def test_sound_refuses_samples(samples):
    with pytest.raises(ValueError, match="finite, in one row"):
        sound.wav(samples, 8000)


def test_sound_refuses_a_missing_label():
    with pytest.raises(ValueError, match="label must say in words"):
        sound.player([0.0], 8000, " ")

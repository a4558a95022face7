"""Chapter 15's experiment: equal sizes, what the loss asks for, where a look lies, a run that learns."""

import pytest
import torch

from attention_course.lab.data import tones
from attention_course.lab.experiments import speech
from attention_course.lab.measure.numbers import count_parameters


def test_the_arms_have_one_size():
    sizes = [count_parameters(speech.build(kind)) for kind in speech.SCORES]
    assert max(sizes) / min(sizes) < 1.005
    with pytest.raises(ValueError, match='kind must be "content" or "location", got \'neither\''):
        speech.build("neither")


def test_batches_bring_every_clip_once_and_no_padding_of_others():
    data = speech.training_data(20, seed=0)
    stream = speech.batches(data, 4, torch.Generator().manual_seed(0))
    seen = [next(stream) for _ in range(5)]
    assert sum(len(batch.keys) for batch in seen) == 20
    assert all(batch.sound.shape[1] == batch.lengths.max() for batch in seen)
    rows = {tuple(row.tolist()) for batch in seen for row in batch.keys}
    assert rows == {tuple(row.tolist()) for row in data.keys}


def test_the_loss_asks_for_every_key_and_the_end_and_nothing_behind():
    data = speech.training_data(6, seed=0)
    keys = torch.tensor([[3, 3, 7, -1, -1, -1]]).repeat(6, 1)
    wanted = [3, 3, 7, speech.EOS]

    class Known(torch.nn.Module):
        def forward(self, sound, lengths, previous):
            assert previous[0, :4].tolist() == [speech.BOS, 3, 3, 7]
            assert previous.min() >= 0  # an embedding knows no -1
            logits = torch.full((*previous.shape, 18), -30.0)
            for step, key in enumerate(wanted):
                logits[:, step, key] = 30.0
            return logits, None

    batch = speech.Batch(data.sound, data.lengths, keys)
    assert speech.loss(Known(), batch).item() < 1e-6
    wanted[3] = 5
    assert speech.loss(Known(), batch).item() > 10


def test_aim_counts_states_not_frames():
    clips = tones.press(tones.numbers("159"), torch.Generator().manual_seed(0))
    for stride in (1, 2):
        middle = (clips.begin[0] + clips.end[0]) // 2
        states = (middle - speech.WINDOW // 2) // (speech.HOP * stride)
        weights = torch.zeros(1, 4, 60)
        weights[0, torch.arange(3), states] = 1.0
        right = clips.keys.tolist()
        heard = speech.Heard(right, right, weights)
        assert speech.aim(heard, clips, stride) == (1.0, 1.0)
        turned = speech.Heard(right, right, weights[:, [2, 1, 0, 3]])
        assert speech.aim(turned, clips, stride) == (pytest.approx(1 / 3), 0.0)
        assert speech.aim(heard, clips, 3 - stride).inside < 1  # the other stride points elsewhere
        wrong = speech.Heard([[1]], right, weights)
        assert speech.aim(wrong, clips, stride) == (0.0, 0.0)


def test_held_out_clips_have_their_noise_and_their_keys():
    asked = speech.held_out(5, seed=3)
    assert list(asked) == ["20 dB", "10 dB", "0 dB", "-5 dB", "one key", "ten keys"]
    assert torch.equal(asked["20 dB"].clips.wave, asked["-5 dB"].clips.wave)
    assert not torch.equal(asked["20 dB"].batch.sound, asked["-5 dB"].batch.sound)
    assert all(len({k for k in row if k >= 0}) == 1 for row in asked["one key"].batch.keys.tolist())
    assert (asked["ten keys"].batch.keys >= 0).all()
    assert asked["ten keys"].batch.keys.shape == (5, 10)


def test_a_run_learns_and_is_heard():
    data, asked = speech.training_data(32, seed=0), speech.held_out(4, seed=1)
    batch = {"10 dB": asked["10 dB"].batch}
    run = speech.trial("location", 0, data, batch, hidden=8, steps=12, learning_rate=0.01)
    assert run["losses"][-1] < run["losses"][0]
    assert run["heard"]["10 dB"].right == [[k for k in row if k >= 0] for row in batch["10 dB"].keys.tolist()]
    assert not run["model"].training
    again = speech.trial("location", 0, data, batch, hidden=8, steps=12, learning_rate=0.01)
    assert again["losses"] == run["losses"]

"""Chapter 7's layers, attention against GRU: what is timed, weighed, differentiated and trained."""

import pytest
import torch
from torch import nn

from attention_course.heads import MultiHeadAttention
from attention_course.lab.experiments import recurrence
from attention_course.lab.measure.numbers import crossing, slope
from attention_course.lab.measure.seconds import seconds


@pytest.mark.parametrize("kind", recurrence.KINDS)
def test_every_layer_maps_a_sequence_to_one_of_the_same_shape(kind):
    output = recurrence.layer(kind, 6)(torch.randn(2, 5, 6))[0]
    assert output.shape == (2, 5, 6)


def test_open_gates_keep_the_old_state():
    gru = recurrence.layer("GRU, gates open", 6, openness=50.0)
    state = torch.randn(1, 2, 6)
    output, _ = gru(torch.randn(2, 5, 6), state)
    torch.testing.assert_close(output, state[0].unsqueeze(1).expand(2, 5, 6))
    plain, _ = recurrence.layer("GRU", 6)(torch.randn(2, 5, 6), state)
    assert not torch.allclose(plain, output, atol=0.1)


def test_slope_finds_the_exponent():
    x = [16.0, 32.0, 64.0, 128.0]
    assert slope(x, [3 * v**1.5 for v in x]) == pytest.approx(1.5, abs=1e-5)
    for bad in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="at least two points"):
            slope([1.0] if len(bad) == 1 else [1.0, 2.0], bad)


def test_crossing_is_where_two_power_laws_meet():
    x = [16.0, 64.0, 256.0, 1024.0]
    linear, quadratic = [100 * v for v in x], [v**2 for v in x]
    assert crossing(x, quadratic, linear) == pytest.approx(100)
    assert crossing(x, linear, quadratic) is None
    assert crossing(x, quadratic, [1.0] * 4) == 16.0
    assert crossing(x, [1.0, 5.0, 1.0, 5.0], [2.0] * 4) > 256  # for good, not for the first time


def test_seconds_are_those_of_the_quickest_call(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 11.0, 20.0, 23.0])
    calls = []
    monkeypatch.setattr("time.process_time", lambda: next(clock))
    assert seconds(lambda: calls.append(1), repeats=3) == 1.0
    assert len(calls) == 4  # one to warm up


def test_kept_counts_each_piece_of_memory_once():
    x = torch.randn(10, 10, requires_grad=True)
    assert recurrence.kept(lambda: x * x) == 400  # the same tensor twice
    assert recurrence.kept(lambda: x.exp().exp()) == 800  # two results
    assert recurrence.kept(lambda: x + 1) == 0  # a sum needs nothing
    assert recurrence.kept(lambda: x[0] * x[1]) == 400  # two views of one piece


def test_influence_is_the_norm_of_the_jacobian(monkeypatch):
    class Half(nn.Module):
        def forward(self, x):  # the last output is half the first input
            return 0.5 * x[:, :1].expand_as(x), None

    monkeypatch.setattr(recurrence, "layer", lambda kind, d: Half())
    assert recurrence.influence("GRU", 7, d=9) == pytest.approx(0.5 * 3)  # ‖I/2‖ = √9 / 2


def test_attention_thins_the_first_token_out_and_a_gru_forgets_it():
    thin = [recurrence.influence("attention", T) for T in (8, 32)]
    assert thin[0] / thin[1] == pytest.approx(4, rel=0.5)
    forgotten = [recurrence.influence("GRU", T) for T in (8, 32)]
    assert forgotten[0] / forgotten[1] > 1000


def test_the_answer_is_the_first_symbol():
    stream = recurrence.sequences(5, 400, seed=0)
    batch = next(stream)
    assert torch.equal(batch.first, batch.tokens[:, 0]) and batch.tokens.shape == (400, 5)
    assert batch.tokens.flatten().bincount(minlength=recurrence.SYMBOLS).min() > 0
    assert not torch.equal(batch.tokens, next(stream).tokens)
    assert torch.equal(batch.tokens, next(recurrence.sequences(5, 400, seed=0)).tokens)


def test_asking_the_last_query_alone_is_asking_all_and_taking_the_last():
    model = recurrence.Recall("attention")
    tokens = next(recurrence.sequences(6, 3, seed=0)).tokens
    x = model.embedding(tokens)
    torch.testing.assert_close(model(tokens), model.output((x + model.layer(x)[0])[:, -1]))
    assert isinstance(model.layer, MultiHeadAttention)


@pytest.mark.parametrize("kind", recurrence.KINDS)
def test_every_kind_reads_the_first_symbol(kind):
    model = recurrence.Recall(kind)
    tokens = next(recurrence.sequences(3, 4, seed=0)).tokens
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % recurrence.SYMBOLS
    assert (model(tokens) - model(changed)).abs().amax() > 1e-5


def test_order_matters_to_each_of_them():
    for kind in recurrence.KINDS:
        model = recurrence.Recall(kind)
        assert not torch.allclose(model(torch.tensor([[1, 2, 3]])), model(torch.tensor([[2, 1, 3]])))


def test_a_trial_learns_a_short_sequence():
    outcome = recurrence.trial("attention", 4, seed=0, steps=60, longer=8)
    assert outcome["accuracy"] > 0.9 and outcome["learned_at"] < 50
    assert outcome["parameters"] == 8 * 32 + 4 * 32 * 33 + 8 * 33
    assert 0 <= outcome["beyond"] <= 1


def test_a_trial_is_the_same_every_time_and_learns_nothing_without_a_rate():
    once, again = (recurrence.trial("GRU", 4, seed=0, steps=12, learning_rate=0.0) for _ in range(2))
    assert {**once, "seconds": 0} == {**again, "seconds": 0}
    assert once["learned_at"] is None and once["beyond"] is None
    assert once["accuracy"] < 0.3


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="kind must be one of GRU; GRU, gates open; attention, got 'LSTM'"):
        recurrence.layer("LSTM", 4)

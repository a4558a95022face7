"""The models of chapters 1 and 2: what padding, a perturbed state and another way of stepping may change."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_course import local, scores
from attention_course.seq2seq import (
    BahdanauDecoder,
    Encoder,
    FixedVectorDecoder,
    LocalDecoder,
    LuongDecoder,
    greedy,
    recurrent,
)

BOS, EOS = 1, 2
SCORES = {
    "dot": lambda d_q, d_k: scores.Dot(),
    "scaled_dot": lambda d_q, d_k: scores.ScaledDot(),
    "cosine": lambda d_q, d_k: scores.Cosine(3.0),
    "general": scores.General,
    "additive": lambda d_q, d_k: scores.Additive(d_q, d_k, 5),
    "concat": lambda d_q, d_k: scores.Concat(d_q, d_k, 5),
    "location": lambda d_q, d_k: scores.Location(d_q, 8),
}


def luong(name):
    """A decoder with a score of its own at each call."""

    def decoder(num_tokens, embedding_dim, hidden_size, d_k):
        score = SCORES[name](hidden_size, d_k)
        return LuongDecoder(num_tokens, embedding_dim, hidden_size, d_k, score=score)

    return decoder


def local_m(num_tokens, embedding_dim, hidden_size, d_k):
    score = scores.General(hidden_size, d_k)
    return LocalDecoder(num_tokens, embedding_dim, hidden_size, d_k, score=score, where=local.Monotonic(1))


def local_p(num_tokens, embedding_dim, hidden_size, d_k):
    score, where = scores.General(hidden_size, d_k), local.Predictive(hidden_size, 3, 2)
    return LocalDecoder(num_tokens, embedding_dim, hidden_size, d_k, score=score, where=where)


DECODERS = {
    "fixed": FixedVectorDecoder,
    "bahdanau": BahdanauDecoder,
    **{f"luong, {name}": luong(name) for name in SCORES},
    "local-m": local_m,
    "local-p": local_p,
}
ATTENDING = {name: decoder for name, decoder in DECODERS.items() if name != "fixed"}
#: Decoders whose every row of weights reads every key.
READING = {
    name: decoder
    for name, decoder in ATTENDING.items()
    if name not in ("luong, location", "local-m", "local-p")
}


def each(decoders):
    return pytest.mark.parametrize("decoder", decoders.values(), ids=decoders.keys())


every, attending, reading = each(DECODERS), each(ATTENDING), each(READING)


def small(decoder, hidden_size=6):
    return recurrent(decoder, 11, 9, embedding_dim=4, hidden_size=hidden_size).eval()


def inputs(lengths=(5, 3, 1), T_q=4):
    lengths = torch.tensor(lengths)
    source = torch.randint(3, 11, (len(lengths), int(lengths.max())))
    return source, lengths, torch.randint(3, 9, (len(lengths), T_q))


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), extra=st.integers(0, 3))
def test_padding_changes_neither_states_nor_summary(lengths, extra):
    encoder = Encoder(11, 4, 3).eval()
    source = torch.randint(3, 11, (len(lengths), max(lengths) + extra))
    states, summary = encoder(source, torch.tensor(lengths))
    assert states.shape == (len(lengths), max(lengths) + extra, 6)
    for b, length in enumerate(lengths):
        alone, alone_summary = encoder(source[b : b + 1, :length], torch.tensor([length]))
        torch.testing.assert_close(states[b, :length], alone[0])
        torch.testing.assert_close(summary[b], alone_summary[0])
        assert (states[b, length:] == 0).all()


def test_the_summary_is_the_last_state_of_each_direction():
    encoder = Encoder(11, 4, 3)
    source, lengths, _ = inputs()
    states, summary = encoder(source, lengths)
    for b, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(summary[b, :3], states[b, length - 1, :3])  # forwards ends at the end
        torch.testing.assert_close(summary[b, 3:], states[b, 0, 3:])  # backwards ends at the start


def test_an_encoder_that_reads_forwards_only_has_not_seen_what_comes():
    encoder = Encoder(11, 4, 3, bidirectional=False)
    source, lengths, _ = inputs()
    states, summary = encoder(source, lengths)
    for b, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(summary[b], states[b, length - 1])
    source[0, 3] = 3 + (source[0, 3] + 1) % 8
    changed, _ = encoder(source, lengths)
    assert torch.equal(changed[0, :3], states[0, :3])
    assert not torch.equal(changed[0, 3:], states[0, 3:])


@every
def test_both_encoders_fit_every_decoder(decoder):
    source, lengths, previous = inputs()
    for bidirectional in (True, False):
        model = recurrent(decoder, 11, 9, embedding_dim=4, hidden_size=6, bidirectional=bidirectional)
        assert model(source, lengths, previous)[0].shape == (*previous.shape, 9)


@pytest.mark.parametrize("lengths", [(0, 3), (2, 6), (-1, 2)])
def test_lengths_outside_the_source_are_named(lengths):
    with pytest.raises(ValueError, match="lengths must lie between 1 and T_k = 5"):
        Encoder(11, 4, 3)(torch.full((2, 5), 3), torch.tensor(lengths))


def test_no_sentences_are_named():
    with pytest.raises(ValueError, match="at least one sentence"):
        Encoder(11, 4, 3)(torch.zeros(0, 5, dtype=torch.long), torch.zeros(0, dtype=torch.long))


@every
def test_shapes(decoder):
    logits, weights = small(decoder)(*inputs())
    assert logits.shape == (3, 4, 9)
    assert weights is None if decoder is FixedVectorDecoder else weights.shape == (3, 4, 5)


@pytest.mark.parametrize("chunks", [(1, 1, 1, 1), (3, 1), (2, 2)], ids=str)
@every
def test_step_by_step_equals_all_at_once(decoder, chunks):
    model, (source, lengths, previous) = small(decoder), inputs()
    memory, state, steps = model.read(source, lengths), None, []
    for chunk in previous.split(chunks, dim=1):
        logits, _, state = model.decoder(chunk, memory, state)
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, 1), model(source, lengths, previous)[0])


@every
def test_a_sentence_is_translated_alike_alone_and_in_a_batch(decoder):
    model, (source, lengths, previous) = small(decoder), inputs()
    logits, _ = model(source, lengths, previous)
    for b, length in enumerate(lengths.tolist()):
        alone, _ = model(source[b : b + 1, :length], lengths[b : b + 1], previous[b : b + 1])
        torch.testing.assert_close(logits[b], alone[0])


@every
def test_no_word_depends_on_later_ones(decoder):
    model, (source, lengths, previous) = small(decoder), inputs()
    changed = previous.clone()
    changed[:, 2] = (changed[:, 2] - 2) % 6 + 3  # another word
    assert (changed[:, 2] != previous[:, 2]).all()
    before, after = model(source, lengths, previous)[0], model(source, lengths, changed)[0]
    torch.testing.assert_close(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2:], after[:, 2:])


@attending
def test_weights_sum_to_one_and_skip_padding(decoder):
    source, lengths, previous = inputs()
    _, weights = small(decoder)(source, lengths, previous)
    if decoder is local_p:  # the Gaussian takes a part away
        assert (weights.sum(-1) < 1).all() and (weights.sum(-1) > 0).all()
    elif decoder is local_m:  # step 2 looks beyond a sentence of one word, steps 0 and 1 do not
        blind = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
        torch.testing.assert_close(weights.sum(-1), (~blind).float())
    else:
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4))
    assert (weights[1, :, 3:] == 0).all() and (weights[2, :, 1:] == 0).all()


def first_step(decoder, states, summary, length):
    previous = torch.tensor([[BOS]])
    logits, weights, _ = decoder(previous, decoder.remember(states, summary, torch.tensor([length])))
    return logits, weights


def perturbed(states, j):
    """Bent, not only moved: a score that compares directions must notice too."""
    changed = states.clone()
    changed[0, j] += torch.linspace(0.5, 1.5, states.shape[-1])
    return changed


@pytest.mark.parametrize("j", range(5))
@reading
def test_the_weights_read_the_encoders_states(decoder, j):
    decoder = small(decoder).decoder
    states, summary = torch.randn(1, 5, 6), torch.randn(1, 6)
    other = perturbed(states, j)
    (logits, before), (_, after) = (first_step(decoder, s, summary, 5) for s in (states, other))
    assert (before[0, 0, j] - after[0, 0, j]).abs() > 1e-5
    if j == 4:  # the same state behind the sentence's end is padding: nothing moves
        shorter, moved = (first_step(decoder, s, summary, 4)[0] for s in (states, other))
        torch.testing.assert_close(shorter, moved)
        assert not torch.allclose(logits, shorter)


@pytest.mark.parametrize("j", range(5))
def test_location_weighs_without_reading_and_mixes_what_it_weighs(j):
    decoder = small(luong("location")).decoder
    states, summary = torch.randn(1, 5, 6), torch.randn(1, 6)
    logits, before = first_step(decoder, states, summary, 5)
    moved, after = first_step(decoder, perturbed(states, j), summary, 5)
    assert torch.equal(before, after)
    assert not torch.allclose(logits, moved)


@pytest.mark.parametrize("j", range(5))
def test_local_m_reads_what_its_window_holds_and_nothing_else(j):
    decoder = small(local_m).decoder
    states, summary = torch.randn(1, 5, 6), torch.randn(1, 6)
    (logits, before), (moved, after) = (
        first_step(decoder, s, summary, 5) for s in (states, perturbed(states, j))
    )
    if j <= 1:  # step 0 sees positions 0 and 1
        assert (before[0, 0, j] - after[0, 0, j]).abs() > 1e-5
    else:
        assert torch.equal(before, after) and torch.equal(logits, moved)


def test_local_p_asks_the_query_where_to_look():
    decoder = small(local_p).decoder
    states, summary = torch.randn(1, 5, 6), torch.randn(1, 6)
    previous = torch.tensor([[BOS, 4, 5]])
    memory = decoder.remember(states, summary, torch.tensor([5]))
    queries = decoder.advance(previous, memory, None)
    centres = decoder.where.centres(queries, torch.tensor([5]))
    expected = local.attend_gaussian(
        queries,
        states,
        states,
        centres,
        reach=2,
        score=lambda q, k: scores.general(q, k, decoder.score.weight),
    )[1]
    torch.testing.assert_close(decoder(previous, memory)[1], expected)


def test_one_step_of_bahdanau_written_out_in_numpy():
    model, (source, lengths, _) = small(BahdanauDecoder).double(), inputs((4,))
    previous = torch.tensor([[BOS, 5]])
    logits, weights, _ = model.decoder(previous, model.read(source, lengths))
    states, summary = model.encoder(source, lengths)
    h = states[0].detach().numpy()
    p = {name: value.detach().numpy() for name, value in model.decoder.named_parameters()}

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    s = np.tanh(p["start.weight"] @ summary[0].detach().numpy() + p["start.bias"])
    for t, token in enumerate(previous[0].tolist()):
        e = np.array(
            [np.tanh(s @ p["score.query_weight"] + row @ p["score.key_weight"]) @ p["score.v"] for row in h]
        )
        alpha = np.exp(e) / np.exp(e).sum()
        c = sum(weight * row for weight, row in zip(alpha, h, strict=True))
        y = p["embedding.weight"][token]
        x = np.concatenate((y, c))
        gates_x = p["cell.weight_ih"] @ x + p["cell.bias_ih"]
        gates_s = p["cell.weight_hh"] @ s + p["cell.bias_hh"]
        (r_x, z_x, n_x), (r_s, z_s, n_s) = np.split(gates_x, 3), np.split(gates_s, 3)
        z, n = sigmoid(z_x + z_s), np.tanh(n_x + sigmoid(r_x + r_s) * n_s)
        s = (1 - z) * n + z * s
        expected = p["output.weight"] @ np.concatenate((s, c, y)) + p["output.bias"]
        np.testing.assert_allclose(weights[0, t].detach(), alpha, rtol=1e-10)
        np.testing.assert_allclose(logits[0, t].detach(), expected, rtol=1e-9, atol=1e-12)


def test_one_step_of_luong_written_out_in_numpy():
    model, (source, lengths, _) = small(luong("general")).double(), inputs((4,))
    previous = torch.tensor([[BOS, 5]])
    logits, weights, _ = model.decoder(previous, model.read(source, lengths))
    states, summary = model.encoder(source, lengths)
    h = states[0].detach().numpy()
    p = {name: value.detach().numpy() for name, value in model.decoder.named_parameters()}

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    s = np.tanh(p["start.weight"] @ summary[0].detach().numpy() + p["start.bias"])
    for t, token in enumerate(previous[0].tolist()):
        gates_x = p["rnn.weight_ih_l0"] @ p["embedding.weight"][token] + p["rnn.bias_ih_l0"]
        gates_s = p["rnn.weight_hh_l0"] @ s + p["rnn.bias_hh_l0"]
        (r_x, z_x, n_x), (r_s, z_s, n_s) = np.split(gates_x, 3), np.split(gates_s, 3)
        z, n = sigmoid(z_x + z_s), np.tanh(n_x + sigmoid(r_x + r_s) * n_s)
        s = (1 - z) * n + z * s  # first the new state ...
        e = np.array([s @ p["score.weight"] @ row for row in h])  # ... then the scores, from it
        alpha = np.exp(e) / np.exp(e).sum()
        c = sum(weight * row for weight, row in zip(alpha, h, strict=True))
        attentional = np.tanh(p["combine.weight"] @ np.concatenate((c, s)))
        expected = p["output.weight"] @ attentional + p["output.bias"]
        np.testing.assert_allclose(weights[0, t].detach(), alpha, rtol=1e-10)
        np.testing.assert_allclose(logits[0, t].detach(), expected, rtol=1e-9, atol=1e-12)


def test_luongs_first_weights_depend_on_the_first_word_and_bahdanaus_do_not():
    """After the update the query has read the word; before it, it has not."""
    source, lengths, previous = inputs((4,))
    other = previous.clone()
    other[:, 0] = (other[:, 0] - 2) % 6 + 3
    for decoder, moves in ((BahdanauDecoder, False), (luong("additive"), True)):
        model = small(decoder)
        (_, before), (_, after) = (model(source, lengths, p) for p in (previous, other))
        assert torch.equal(before[:, 0], after[:, 0]) is not moves
        assert not torch.equal(before[:, 1], after[:, 1])


def test_luongs_context_stays_out_of_the_recurrence():
    """Without input feeding the next query knows nothing of what the last one found."""
    decoder = small(luong("dot")).decoder
    states, summary, lengths = torch.randn(1, 5, 6), torch.randn(1, 6), torch.tensor([5])
    previous = torch.tensor([[BOS, 4, 5]])
    last = [decoder(previous, decoder.remember(h, summary, lengths))[2] for h in (states, 2 * states)]
    assert torch.equal(*last)


@every
def test_gradients_reach_every_parameter(decoder):
    model = small(decoder)
    model(*inputs())[0].logsumexp(-1).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_fixed_vector_is_all_that_its_decoder_remembers():
    decoder = small(FixedVectorDecoder).decoder
    summary = torch.randn(2, 6)
    assert decoder.remember(torch.randn(2, 5, 6), summary, torch.tensor([5, 4])) is summary


@every
def test_greedy_feeds_back_its_own_words(decoder):
    model, (source, lengths, _) = small(decoder), inputs()
    tokens, weights = greedy(model, source, lengths, bos=BOS, eos=EOS, max_length=7)
    previous = torch.cat((torch.full((3, 1), BOS), tokens[:, :-1]), 1)
    logits, forced = model(source, lengths, previous)
    for b in range(3):
        end = (tokens[b] == EOS).nonzero().flatten().tolist()
        stop = end[0] + 1 if end else tokens.shape[1]
        assert logits.argmax(-1)[b, :stop].tolist() == tokens[b, :stop].tolist()
        assert (tokens[b, stop:] == EOS).all()
    if weights is not None:
        torch.testing.assert_close(weights, forced)


@every
def test_greedy_stops_at_eos_and_at_max_length(decoder):
    model, (source, lengths, _) = small(decoder), inputs()
    with torch.no_grad():
        model.decoder.output.bias[EOS] = 100.0
    assert greedy(model, source, lengths, bos=BOS, eos=EOS, max_length=7)[0].tolist() == [[EOS]] * 3
    with torch.no_grad():
        model.decoder.output.bias[EOS] = -100.0
    assert greedy(model, source, lengths, bos=BOS, eos=EOS, max_length=7)[0].shape == (3, 7)
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        greedy(model, source, lengths, bos=BOS, eos=EOS, max_length=0)


@every
def test_greedy_refuses_a_model_in_training_mode(decoder):
    model, (source, lengths, _) = small(decoder).train(), inputs()
    with pytest.raises(ValueError, match=r"evaluation mode, .* call model.eval\(\)"):
        greedy(model, source, lengths, bos=BOS, eos=EOS, max_length=7)


@pytest.mark.parametrize("decoder", [BahdanauDecoder, luong("additive")], ids=["bahdanau", "luong"])
def test_keys_are_projected_once_for_all_steps(monkeypatch, decoder):
    model, (source, lengths, _) = small(decoder), inputs()
    calls, project = [], model.decoder.score.project_key
    monkeypatch.setattr(model.decoder.score, "project_key", lambda key: calls.append(1) or project(key))
    with torch.no_grad():
        model.decoder.output.bias[EOS] = -100.0
    greedy(model, source, lengths, bos=BOS, eos=EOS, max_length=7)
    assert calls == [1]


def test_the_dot_product_refuses_states_of_another_width(unchecked):
    decoder = LuongDecoder(9, 4, 6, d_k=8, score=scores.Dot())
    memory = decoder.remember(torch.randn(1, 5, 8), torch.randn(1, 8), torch.tensor([5]))
    with pytest.raises(ValueError, match=r"same width, got query \(1, 1, 6\) and key \(1, 5, 8\)"):
        decoder(torch.tensor([[BOS]]), memory)


@pytest.mark.parametrize("name", ["general", "additive", "concat", "location"])
def test_the_other_scores_take_states_of_another_width(name):
    decoder = luong(name)(9, 4, 6, d_k=8)
    memory = decoder.remember(torch.randn(1, 5, 8), torch.randn(1, 8), torch.tensor([5]))
    assert decoder(torch.tensor([[BOS]]), memory)[0].shape == (1, 1, 9)


def test_location_refuses_sentences_longer_than_it_was_built_for():
    model = small(luong("location"))
    source, lengths, previous = inputs((9, 2))
    with pytest.raises(ValueError, match="key has 9 positions, but Location was built for max_length=8"):
        model(source, lengths, previous)


def test_an_odd_width_is_named():
    with pytest.raises(ValueError, match="hidden_size must be even, got 7"):
        small(BahdanauDecoder, hidden_size=7)


@pytest.mark.gpu
@every
def test_on_a_gpu(decoder):
    model, batch = small(decoder), inputs()
    expected, _ = model(*batch)
    logits, _ = model.cuda()(*(x.cuda() for x in batch))
    torch.testing.assert_close(logits.cpu(), expected, atol=1e-4, rtol=1e-4)

"""Chapter 13's induction heads: the sequences, the models, what is measured, what is taken out."""

import math
from itertools import islice

import pytest
import torch

from attention_course.lab.experiments import induction
from attention_course.lab.experiments.induction import Sequences
from attention_course.lab.measure.numbers import count_parameters


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def build(num_layers=2, seed=0, **settings):
    torch.manual_seed(seed)
    return induction.model_for(num_layers, **settings).eval()


def by_hand(period, *symbols):
    return Sequences(torch.tensor([symbols]), torch.tensor([period]))


class TestSequences:
    def test_they_repeat_after_their_period(self):
        tokens, period = induction.draw(400, generator())
        assert tokens.shape == (400, induction.LENGTH)
        assert set(period.tolist()) == set(range(16, 25))
        assert set(tokens.flatten().tolist()) == set(range(induction.SYMBOLS))
        for row, p in zip(tokens, period, strict=True):
            assert torch.equal(row[p:], row[:-p])

    def test_in_any_order_later_rounds_bring_only_what_the_first_one_had(self):
        tokens, period = induction.draw(200, generator(), rounds="any order")
        repeats = [(row[p:] == row[:-p]).float().mean() for row, p in zip(tokens, period, strict=True)]
        assert all(
            set(row[p:].tolist()) <= set(row[:p].tolist()) for row, p in zip(tokens, period, strict=True)
        )
        assert torch.stack(repeats).mean() < 0.15

    def test_new_symbols_do_not_repeat(self):
        tokens, period = induction.draw(400, generator(), rounds="new symbols")
        repeats = [(row[p:] == row[:-p]).float().mean() for row, p in zip(tokens, period, strict=True)]
        assert torch.stack(repeats).mean().item() == pytest.approx(1 / induction.SYMBOLS, abs=0.01)

    def test_the_first_round_is_the_same_whatever_follows(self):
        same, other, new = (
            induction.draw(20, generator(), rounds=rounds)
            for rounds in ("same order", "any order", "new symbols")
        )
        assert torch.equal(same.tokens[:, :16], other.tokens[:, :16])
        assert torch.equal(same.tokens[:, :16], new.tokens[:, :16])

    def test_other_periods_can_be_asked_for(self):
        assert set(induction.draw(50, generator(), periods=(8, 9)).period.tolist()) == {8, 9}

    def test_the_same_seed_gives_the_same_batches(self):
        one, other = (induction.batches(4, seed=1) for _ in range(2))
        first = next(one).tokens
        assert torch.equal(first, next(other).tokens) and not torch.equal(first, next(one).tokens)

    def test_the_first_symbol_of_the_second_round_is_neither_new_nor_known(self):
        new, repeated = induction.places(by_hand(3, 5, 6, 7, 5, 6, 7, 5, 6))
        assert new.tolist() == [[True, True, False, False, False, False, False]]  # targets 1 to 7
        assert repeated.tolist() == [[False, False, False, True, True, True, True]]


class TestModel:
    def test_it_is_attention_alone(self):
        model, tokens = build(2), induction.draw(3, generator()).tokens
        x = model.embedding.table(tokens) + model.embedding.positions.table
        for layer in model.stack.layers:
            normal = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
            x = x + layer.attention(normal, is_causal=True)[0]
        normal = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        torch.testing.assert_close(model(tokens), model.output(normal))

    @pytest.mark.parametrize(("num_layers", "d_model"), [(1, 88), (2, 64)])
    def test_its_parameters_are_tables_and_matrices(self, num_layers, d_model):
        tables = 2 * induction.SYMBOLS * d_model + induction.LENGTH * d_model
        expected = tables + num_layers * 4 * d_model**2
        assert count_parameters(build(num_layers, d_model=d_model)) == expected

    def test_knowing_nothing_costs_the_logarithm_of_the_symbols(self):
        model, sequences = build(), induction.draw(4, generator())
        torch.nn.init.zeros_(model.output.weight)
        assert induction.repeated_loss(model, sequences) == pytest.approx(math.log(32))
        assert induction.loss(model, sequences).item() == pytest.approx(induction.GUESSING)

    def test_only_repeats_count_for_the_loss_on_repeats(self):
        model, (tokens, period) = build(), induction.draw(5, generator())
        logits = model(tokens).log_softmax(-1)
        costs = [
            -logits[b, t - 1, tokens[b, t]].item()
            for b in range(5)
            for t in range(int(period[b]) + 1, induction.LENGTH)
        ]
        found = induction.repeated_loss(model, Sequences(tokens, period))
        assert found == pytest.approx(sum(costs) / len(costs), rel=1e-5)


class TestScores:
    @pytest.mark.parametrize("after", [0, 1, 2])
    def test_matches_are_what_a_loop_finds(self, after):
        tokens = torch.randint(4, (2, 9))
        found = induction.after_a_match(tokens, after)
        for b in range(2):
            for t in range(9):
                for j in range(9):
                    earlier = j - after
                    expected = 0 <= earlier < t and j <= t and tokens[b, earlier] == tokens[b, t]
                    assert found[b, t, j].item() == bool(expected)

    def test_the_matches_themselves_can_be_asked_for(self):
        sequences = by_hand(3, 1, 2, 1, 1, 2, 1)
        weights = torch.rand(1, 1, 6, 6)
        itself = {3: (0, 2), 4: (1,), 5: (0, 2, 3)}  # no token is its own earlier appearance
        expected = sum(weights[0, 0, t, j].item() for t in itself for j in itself[t]) / 3
        assert induction.induction_score(weights, sequences, after=0).item() == pytest.approx(expected)

    def test_induction_counts_every_token_that_followed_in_later_rounds_only(self):
        sequences = by_hand(3, 1, 2, 1, 1, 2, 1)  # the queries of later rounds: 3, 4, 5
        weights = torch.rand(1, 2, 6, 6)
        follows = {3: (1, 3), 4: (2,), 5: (1, 3, 4)}
        expected = [
            sum(weights[0, h, t, j].item() for t in follows for j in follows[t]) / 3 for h in range(2)
        ]
        assert induction.induction_score(weights, sequences).tolist() == pytest.approx(expected)

    def test_a_head_that_looks_one_period_back_and_one_further_has_all_of_it(self):
        sequences = induction.draw(6, generator())
        weights = torch.zeros(6, 1, induction.LENGTH, induction.LENGTH)
        for b, period in enumerate(sequences.period.tolist()):
            for t in range(period, induction.LENGTH):
                weights[b, 0, t, t - period + 1] = 1
        assert induction.induction_score(weights, sequences).item() == pytest.approx(1)

    def test_previous_is_the_diagonal_below(self):
        weights = torch.rand(3, 2, 5, 5)
        for back in (0, 1, 3):
            expected = [
                sum(weights[b, h, t, t - back].item() for b in range(3) for t in range(back, 5))
                / (3 * (5 - back))
                for h in range(2)
            ]
            assert induction.previous_score(weights, back=back).tolist() == pytest.approx(expected)

    def test_a_uniform_head_spreads_its_weight_over_what_it_sees(self):
        weights = induction.uniform(4)
        assert weights[0, 0].tolist() == pytest.approx(
            torch.tensor([[1, 0, 0, 0], [1 / 2] * 2 + [0, 0], [1 / 3] * 3 + [0], [1 / 4] * 4])
        )

    def test_what_is_measured_is_what_the_trace_shows(self):
        model, sequences = build(), induction.draw(4, generator())
        found, weights = induction.measure(model, sequences), model.trace(sequences.tokens).weights
        for layer in range(2):
            expected = induction.induction_score(weights[layer], sequences)
            torch.testing.assert_close(found["induction"][layer], expected)
            torch.testing.assert_close(found["previous"][layer], induction.previous_score(weights[layer]))
        assert found["repeated"].item() == pytest.approx(induction.repeated_loss(model, sequences))
        nats, first_round = induction.nats(model, sequences.tokens), induction.places(sequences).new
        torch.testing.assert_close(found["new"], nats[first_round].mean())


class TestTakenOut:
    @pytest.mark.parametrize("back", [1, 3])
    def test_what_is_hidden_cannot_be_seen_and_all_else_can(self, back):
        model, tokens = build(1), induction.draw(1, generator()).tokens
        before, _ = induction.hiding(model, tokens, back)
        for j in range(0, induction.LENGTH, 5):
            changed = tokens.clone()
            changed[0, j] = (changed[0, j] + 1) % induction.SYMBOLS
            after, _ = induction.hiding(model, changed, back)
            moved = ((after - before).abs() > 1e-6).any(-1)[0]
            assert moved.tolist() == [i >= j and i != j + back for i in range(induction.LENGTH)]

    def test_weights_hide_what_is_hidden_and_sum_to_one(self):
        model, tokens = build(2), induction.draw(2, generator()).tokens
        _, (first, second) = induction.hiding(model, tokens, 1)
        assert (first.diagonal(-1, -2, -1) == 0).all() and (second.diagonal(-1, -2, -1) > 0).all()
        torch.testing.assert_close(first.sum(-1), torch.ones(2, 2, induction.LENGTH))

    def test_only_the_layer_one_names_is_changed(self):
        model, tokens = build(2), induction.draw(2, generator()).tokens
        plain = model.trace(tokens).states
        seen = []
        model.stack.layers[1].register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
        induction.hiding(model, tokens, 1, layer=1)
        induction.hiding(model, tokens, 1, layer=0)
        torch.testing.assert_close(seen[0], plain[1])
        assert (seen[1] - plain[1]).abs().max() > 1e-3

    def test_hiding_what_is_further_away_than_anything_changes_nothing(self):
        model, sequences = build(2), induction.draw(2, generator())
        logits, weights = induction.hiding(model, sequences.tokens, induction.LENGTH)
        expected = model.trace(sequences.tokens)
        torch.testing.assert_close(logits, expected.output)
        torch.testing.assert_close(weights, expected.weights)
        assert induction.hidden_loss(model, sequences, induction.LENGTH) == pytest.approx(
            induction.repeated_loss(model, sequences)
        )
        assert induction.hidden_loss(model, sequences, 1) != pytest.approx(
            induction.repeated_loss(model, sequences)
        )


class TestOverTime:
    def test_halfway_lies_on_a_straight_line(self):
        assert induction.halfway([0, 10, 20], torch.tensor([4.0, 3.0, 0.0])) == pytest.approx(10 + 10 / 3)
        assert induction.halfway([0, 10, 20], torch.tensor([0.0, 1.0, 2.0])) == pytest.approx(10)

    def test_the_model_is_watched_before_each_step_it_names(self):
        seen, items = [], induction.watched("abcdefg", 3, lambda step: seen.append((step, done[-1:])))
        done = []
        for item in items:
            done.append(item)
        assert done == list("abcdefg")
        assert seen == [(0, []), (3, ["c"]), (6, ["f"])]

    def test_an_endless_stream_stays_endless(self):
        endless = induction.watched(induction.batches(2, 0), 2, lambda step: None)
        assert len(list(islice(endless, 5))) == 5


def test_a_trial_is_the_same_every_time():
    once, again = (induction.trial(2, 1, steps=4, every=2, held_out=8) for _ in range(2))
    assert once["steps"] == [0, 2, 4]
    for name in ("new", "repeated", "induction", "previous"):
        assert torch.equal(once[name], again[name])
    assert once["induction"].shape == once["previous"].shape == (3, 2, 2)
    assert once["parameters"] == 39_936
    assert once["repeated"][-1].item() == pytest.approx(
        induction.repeated_loss(once["model"], once["held_out"])
    )
    untrained = induction.measure(build(2, seed=1), once["held_out"])
    assert once["repeated"][0].item() == pytest.approx(untrained["repeated"].item())
    other = induction.trial(2, 2, steps=4, every=2, held_out=8)
    assert not torch.equal(other["repeated"], once["repeated"])


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    def test_unknown_rounds(self):
        with pytest.raises(ValueError, match=r"rounds must be .same order. or .*, got 'backwards'"):
            induction.draw(1, generator(), rounds="backwards")

    @pytest.mark.parametrize("periods", [(0, 4), (5, 4), (16, 47)])
    def test_periods_that_leave_nothing_to_repeat(self, periods):
        with pytest.raises(ValueError, match=r"periods must be in order and lie between 1 and 46, got \("):
            induction.draw(1, generator(), periods=periods)

    def test_matches_in_the_future(self):
        with pytest.raises(ValueError, match="after must be at least 0, got -1"):
            induction.after_a_match(torch.zeros(1, 4, dtype=torch.int64), -1)

    @pytest.mark.parametrize("layer", [-1, 2])
    def test_a_layer_that_is_not_there(self, layer):
        with pytest.raises(ValueError, match=f"layer must lie between 0 and 1, got {layer}"):
            induction.hiding(build(2), induction.draw(1, generator()).tokens, 1, layer=layer)

    def test_numbers_below_their_least(self):
        tokens = induction.draw(1, generator()).tokens
        with pytest.raises(ValueError, match="back must be at least 1, got 0"):
            induction.hiding(build(1), tokens, 0)
        with pytest.raises(ValueError, match="back must be at least 0, got -1"):
            induction.previous_score(torch.ones(1, 1, 2, 2), back=-1)
        with pytest.raises(ValueError, match="every must be at least 1, got 0"):
            next(induction.watched("ab", 0, print))

    @pytest.mark.parametrize(("steps", "values"), [([0], [1.0]), ([0, 1], [1.0, 2.0, 3.0])])
    def test_too_little_for_halfway(self, steps, values):
        with pytest.raises(ValueError, match="need at least two steps and as many values, got"):
            induction.halfway(steps, torch.tensor(values))

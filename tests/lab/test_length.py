import hashlib

import pytest
import torch

from attention_course.lab.data.text import SYMBOLS, Sample, Text, documentation, text_batches
from attention_course.lab.experiments import length
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train
from attention_course.positions import ALiBi, Learned, Rotary, Sinusoidal, sinusoidal

each_scheme = pytest.mark.parametrize("scheme", length.SCHEMES)


def build(scheme, seed=0, **settings):
    torch.manual_seed(seed)
    return length.model_for(scheme, **settings).eval()


def some_tokens(*shape):
    return torch.randint(len(SYMBOLS), shape)


@pytest.fixture(scope="module")
def text():
    return documentation()


class TestText:
    def test_it_is_cut_in_order(self, text):
        sizes = [len(piece) for piece in text]
        assert sizes == [298_224, 37_278, 37_281]
        whole = "".join(SYMBOLS[number] for number in torch.cat(text))
        assert whole.startswith('The "assert" statement') and whole.endswith("Yield expressions\nsection.")

    def test_it_is_the_same_on_every_python(self, text):
        whole = "".join(SYMBOLS[number] for number in torch.cat(text))
        digest = hashlib.sha256(whole.encode()).hexdigest()
        assert digest == "155856fec668bf99a996824ce822c597a33aa7bffeb8d245f584e0d068887563"

    def test_no_paragraph_comes_twice(self, text):
        whole = "".join(SYMBOLS[number] for number in torch.cat(text))
        paragraphs = whole.split("\n\n")
        assert len(set(paragraphs)) == len(paragraphs) > 1000

    def test_it_is_the_same_every_time(self, text):
        assert all(torch.equal(a, b) for a, b in zip(text, documentation(), strict=True))


class TestSamples:
    def test_the_target_is_the_next_character(self, text):
        sample = next(text_batches(text.train, 4, seed=0, length=length.TRAINED))
        assert sample.tokens.shape == sample.target.shape == (4, length.TRAINED)
        assert torch.equal(sample.tokens[:, 1:], sample.target[:, :-1])

    def test_every_character_can_be_drawn(self):
        batches = text_batches(torch.arange(6), 50, seed=0, length=3)
        seen = next(batches)
        assert set(seen.tokens[:, 0].tolist()) == {0, 1, 2}
        assert seen.target.max() == 5

    def test_the_same_seed_gives_the_same_batches(self, text):
        one, other = (text_batches(text.train, 4, seed=1, length=64) for _ in range(2))
        first = next(one)
        assert torch.equal(first.tokens, next(other).tokens)
        assert not torch.equal(first.tokens, next(one).tokens)

    def test_targets_are_the_same_for_every_length(self, text):
        targets = [length.windows(text.test, n).target for n in length.LENGTHS]
        assert all(torch.equal(target, targets[0]) for target in targets)
        assert targets[0].shape[1] == length.JUDGED

    def test_a_longer_window_only_begins_earlier(self, text):
        short, long = (length.windows(text.test, n).tokens for n in (64, 512))
        assert torch.equal(long[:, -64:], short)

    def test_targets_follow_their_context(self):
        sample = length.windows(torch.arange(1000), 64, longest=100)
        assert sample.tokens.shape == (9, 64)
        assert torch.equal(sample.target, sample.tokens[:, -length.JUDGED :] + 1)
        assert sample.target[0, -1] == 100  # the context ends right before it
        assert len(sample.target.flatten().unique()) == sample.target.numel()  # none is judged twice

    def test_recall_asks_for_the_token_some_places_back(self):
        sample = next(length.recall_batches(3, 0, back=5, symbols=16, length=20))
        assert (sample.target[:, :5] == -1).all()
        assert torch.equal(sample.target[:, 5:], sample.tokens[:, :-5])
        again = next(length.recall_batches(3, 0, back=5, symbols=16, length=20))
        assert torch.equal(sample.tokens, again.tokens)


class TestModel:
    @each_scheme
    @pytest.mark.parametrize("window", [None, 3])
    def test_a_changed_token_moves_what_may_see_it_and_nothing_else(self, scheme, window):
        model, tokens, layers = build(scheme, num_layers=2), some_tokens(1, 12), 2
        model = length.narrowed(model, window)
        before = model(tokens)
        for j in range(12):
            changed = tokens.clone()
            changed[0, j] = (changed[0, j] + 1) % 90
            moved = ((model(changed) - before).abs() > 1e-6).any(-1)[0]
            reach = 12 if window is None else layers * (window - 1) + 1
            assert moved.tolist() == [j <= i < j + reach for i in range(12)]

    def test_without_positions_one_layer_sees_a_bag_of_tokens(self):
        model, tokens = build("none", num_layers=1), some_tokens(1, 9)
        order = torch.tensor([3, 0, 2, 1, 4, 5, 6, 7, 8])
        torch.testing.assert_close(model(tokens[:, order])[:, 4:], model(tokens)[:, 4:])

    @pytest.mark.parametrize("scheme", length.SCHEMES[1:])
    def test_with_positions_it_does_not(self, scheme):
        model, tokens = build(scheme, num_layers=1), torch.arange(9)[None]
        order = torch.tensor([3, 0, 2, 1, 4, 5, 6, 7, 8])
        moved = (model(tokens[:, order]) - model(tokens))[:, 4:].abs().amax(-1)
        assert (moved > 1e-4).all()

    def test_without_positions_a_second_layer_gets_a_hint(self):
        model, tokens = build("none", num_layers=2), torch.arange(9)[None]
        order = torch.tensor([3, 0, 2, 1, 4, 5, 6, 7, 8])
        assert (model(tokens[:, order]) - model(tokens))[:, 4:].abs().max() > 1e-4

    @pytest.mark.parametrize("scheme", ["rotary", "alibi"])
    def test_relative_positions_do_not_count_from_the_start(self, scheme):
        """With a window, what lies in front of it cannot matter, nor how much of it there is."""
        model, tokens = build(scheme, num_layers=1), some_tokens(2, 40)
        late = length.narrowed(model, 8)(tokens)[:, -8:]
        torch.testing.assert_close(
            late, length.narrowed(model, 8)(tokens[:, -15:])[:, -8:], rtol=1e-4, atol=1e-4
        )

    @pytest.mark.parametrize("scheme", ["learned", "sinusoidal"])
    def test_absolute_ones_do(self, scheme):
        model, tokens = build(scheme, num_layers=1), some_tokens(2, 40)
        late = length.narrowed(model, 8)(tokens)[:, -8:]
        assert (late - length.narrowed(model, 8)(tokens[:, -15:])[:, -8:]).abs().max() > 1e-2

    def test_each_scheme_enters_at_one_place(self):
        places = {}
        for scheme in length.SCHEMES:
            model = build(scheme, d_model=32)
            attention = model.stack.layers[0].attention
            parts = model.embedding.positions, attention.rotation, attention.score_bias
            places[scheme] = [type(part) for part in parts]
        nothing = type(None)
        assert places == {
            "none": [nothing, nothing, nothing],
            "learned": [Learned, nothing, nothing],
            "sinusoidal": [Sinusoidal, nothing, nothing],
            "rotary": [nothing, Rotary, nothing],
            "alibi": [nothing, nothing, ALiBi],
        }

    def test_only_learned_positions_have_parameters(self):
        sizes = {scheme: count_parameters(build(scheme)) for scheme in length.SCHEMES}
        assert sizes.pop("learned") == 78_848 + 512 * 64
        assert set(sizes.values()) == {78_848}

    def test_learned_positions_start_as_large_as_sinusoids(self):
        table = build("learned").embedding.positions.table
        assert table.pow(2).mean().item() == pytest.approx(sinusoidal(512, 64).pow(2).mean().item(), abs=0.02)

    def test_the_loss_of_knowing_nothing_is_that_of_a_guess(self):
        model = build("none")
        torch.nn.init.zeros_(model.output.weight)
        sample = Sample(some_tokens(4, 40), some_tokens(4, 32))
        expected = torch.tensor(float(len(SYMBOLS))).log()
        torch.testing.assert_close(length.loss(model, sample), expected)

    def test_what_is_not_asked_does_not_count(self):
        model = build("rotary")
        tokens, target = some_tokens(2, 10), some_tokens(2, 10)
        some = target.clone()
        some[:, :6] = -1
        torch.testing.assert_close(
            length.loss(model, Sample(tokens, some)),
            length.loss(model, Sample(tokens, target[:, 6:])),
        )
        best = model(tokens).argmax(-1)
        best[:, :6] = -1
        assert length.accuracy(model, Sample(tokens, best)) == 1.0
        assert length.accuracy(length.narrowed(model, 1), Sample(tokens, best)) < 1.0


class TestStretched:
    def test_ends_stay_and_the_rest_lies_between(self):
        model = build("learned")
        table = model.embedding.positions.table
        wide = length.stretched(model, 127).embedding.positions.table  # one new vector in every gap
        torch.testing.assert_close(wide[0::2], table[:64])
        torch.testing.assert_close(wide[1::2], (table[:63] + table[1:64]) / 2)

    def test_the_model_itself_stays(self):
        model, tokens = build("learned"), some_tokens(1, 64)
        before = model(tokens)
        other = length.stretched(model, 64)
        torch.testing.assert_close(other(tokens), before)
        length.stretched(model, 128)
        assert torch.equal(model(tokens), before)


def test_training_learns_to_look_back():
    model = build("rotary", num_tokens=8, d_model=32, num_layers=1)
    stream = length.recall_batches(16, 0, back=2, symbols=8, length=16)
    fresh = next(length.recall_batches(50, 9, back=2, symbols=8, length=16))
    assert length.accuracy(model, fresh) < 0.3
    train(model, stream, length.loss, steps=100, learning_rate=0.01, warmup=10)
    assert length.accuracy(model, fresh) > 0.9


@pytest.fixture
def short_text(monkeypatch, text):
    """Two windows instead of seventy."""
    short = Text(*(piece[:1200] for piece in text))
    monkeypatch.setattr(length, "documentation", lambda: short)
    return short


@pytest.mark.usefixtures("short_text")
def test_a_trial_is_the_same_every_time():
    once, again = (length.trial("learned", 1, steps=2) for _ in range(2))
    assert once["plain"] == again["plain"]
    assert once["window"] == again["window"]
    assert once["stretched"] == again["stretched"]
    assert len(once["plain"]) == len(once["stretched"]) == len(length.LENGTHS)
    assert once["plain"][0] == pytest.approx(once["stretched"][0])  # nothing to stretch at 64
    assert once["parameters"] == 111_616
    assert length.trial("learned", 2, steps=2)["plain"] != once["plain"]


def test_a_trial_is_judged_where_it_is_told(short_text):
    found = length.trial("alibi", 0, steps=2, judged_on="validation")
    expected = length.nats(found["model"], short_text.validation, 128)
    assert found["plain"][length.LENGTHS.index(128)] == pytest.approx(expected)
    assert expected != pytest.approx(length.nats(found["model"], short_text.test, 128))
    assert "stretched" not in found


@each_scheme
def test_a_recall_trial_is_the_same_every_time(scheme):
    once, again = (length.recall_trial(scheme, 0, steps=2) for _ in range(2))
    assert once["accuracy"] == again["accuracy"]
    assert len(once["accuracy"]) == len(length.LENGTHS)
    assert once["window"] == again["window"]
    assert 0 <= min(once["accuracy"]) <= max(once["accuracy"]) <= 1


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    def test_unknown_scheme(self):
        with pytest.raises(ValueError, match=r"one of none, learned, .* got 'polar'"):
            build("polar")

    def test_heads_that_do_not_divide(self):
        with pytest.raises(ValueError, match="num_heads must divide d_model, got d_model=64, num_heads=5"):
            build("none", num_heads=5)

    def test_more_tokens_than_learned_positions(self):
        with pytest.raises(ValueError, match="do not lie within the 512 learned ones"):
            build("learned")(some_tokens(1, 513))

    @pytest.mark.parametrize("wrong", [31, 513])
    def test_windows_of_a_wrong_length(self, text, wrong):
        with pytest.raises(ValueError, match=f"between 32 and longest=512, got {wrong}"):
            length.windows(text.test, wrong)

    def test_texts_that_are_too_short(self, text):
        with pytest.raises(ValueError, match="longer than longest=512, got 512 characters"):
            length.windows(text.test[:512], 64)
        with pytest.raises(ValueError, match="longer than length=64, got 64 characters"):
            text_batches(text.test[:64], 4, seed=0, length=64)

    @pytest.mark.parametrize("back", [0, 20])
    def test_asking_for_a_token_that_is_not_there(self, back):
        with pytest.raises(ValueError, match=f"at least 1 and below length=20, got {back}"):
            length.recall_batches(3, 0, back=back, symbols=16, length=20)

    @pytest.mark.parametrize("scheme", ["none", "sinusoidal", "rotary"])
    def test_stretching_what_is_not_learned(self, scheme):
        with pytest.raises(TypeError, match="only learned positions can be stretched, got "):
            length.stretched(build(scheme), 128)

"""Chapter 2's translators and the measure of where they look."""

import pickle
from functools import partial

import pytest
import torch

from attention_course import seq2seq
from attention_course.lab.data import translation
from attention_course.lab.data.pairs import collate
from attention_course.lab.experiments import translators
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.measure.translations import Translation
from attention_course.lab.train.translators import learn


@pytest.fixture(scope="module")
def task():
    return translators.up_to(translation.task(0, train=500, per_bucket=5), 20)


def build(kind, task, hidden_size=8):
    torch.manual_seed(0)
    return translators.build(kind, hidden_size, len(task.source), len(task.target)).eval()


KINDS = pytest.mark.parametrize("kind", translators.DECODERS)


@KINDS
def test_every_kind_translates_and_weighs(kind, task):
    model = build(kind, task)
    batch = collate(task.test, task)
    logits, weights = model(batch.source, batch.lengths, batch.previous)
    assert logits.shape == (*batch.previous.shape, len(task.target))
    assert weights.shape == (*batch.previous.shape, batch.source.shape[1])


def test_every_kind_is_another_one(task):
    first = {name: build(name, task)(*collate(task.test, task)[:3])[1] for name in translators.DECODERS}
    names = [name for name in first if name != "bare cosine"]
    for i, one in enumerate(names):
        assert not any(torch.allclose(first[one], first[other]) for other in names[:i])


def test_bare_cosine_is_cosine_with_its_sharpness_held_at_one(task):
    bare, learned = build("bare cosine", task), build("cosine", task)
    assert count_parameters(learned) == count_parameters(bare) + 1
    batch = collate(task.test, task)[:3]
    torch.testing.assert_close(bare(*batch)[1], learned(*batch)[1])
    train = partial(learn, task=task, seed=0, steps=3, learning_rate=0.01, batch_size=4)
    for kind, moves in (("bare cosine", False), ("cosine", True)):
        run = train(partial(translators.build, kind, 8, len(task.source), len(task.target)))
        assert (run.model.decoder.score.log_sharpness.item() != 0) is moves


def test_two_builds_share_nothing(task):
    for kind in translators.DECODERS:
        one, other = build(kind, task), build(kind, task)
        assert not {id(p) for p in one.parameters()} & {id(p) for p in other.parameters()}


def test_a_build_can_be_sent_to_another_process(task):
    for kind in translators.DECODERS:
        make = pickle.loads(pickle.dumps(partial(translators.build, kind, 8, 10, 10)))
        assert isinstance(pickle.loads(pickle.dumps(make())), seq2seq.EncoderDecoder)


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match=r"kind must be one of dot, general, .*, got doto"):
        translators.build("doto", 8, 10, 10)


def test_short_sentences_stay_in_their_split_and_order():
    whole = translation.task(0, train=300, per_bucket=5)
    short = translators.up_to(whole, 12)
    for split in ("train", "validation", "test"):
        pairs = getattr(whole, split)
        assert getattr(short, split) == tuple(p for p in pairs if len(p.source) <= 12) != pairs
    assert short.beyond == () and short.source is whole.source


def test_aim_counts_what_lies_where():
    shares = translators.aim([0, 0, 0, -1, -1, 1, 5, -3])
    assert shares == translators.Aim(on_gold=3 / 8, one_left=2 / 8, one_right=1 / 8, elsewhere=2 / 8)
    with pytest.raises(ValueError, match="at least one number"):
        translators.aim([])


class Oracle(seq2seq.EncoderDecoder):
    """Looks at the gold position, whatever it is fed, and writes nonsense."""

    def __init__(self, pairs, task):
        super().__init__(torch.nn.Identity(), torch.nn.Identity())
        batch = collate(pairs, task)
        self.weights = torch.zeros(*batch.target.shape, batch.source.shape[1])
        for b, pair in enumerate(pairs):
            for t, gold in enumerate(pair.alignment):
                self.weights[b, t, max(gold, 0)] = 1.0
        self.num_target = len(task.target)

    def forward(self, source, lengths, previous):
        return torch.zeros(*previous.shape, self.num_target), self.weights


def test_offsets_of_a_model_that_looks_at_the_right_word(task):
    offsets = translators.forced_offsets(Oracle(task.test, task), task.test, task)
    assert offsets == [
        (word, 0) for pair in task.test for word, j in zip(pair.target, pair.alignment, strict=True) if j >= 0
    ]


def test_offsets_say_on_which_side(task):
    pair = translation.being(translation.word("watashi", "I"), translation.word("neko", "cat"))
    looker = Oracle([pair], task)
    looker.weights = looker.weights.roll(1, dims=-1)  # one to the right; position 3 becomes 0
    assert pair.alignment == (0, 3, -1, 2)
    assert translators.forced_offsets(looker, [pair], task) == [("I", 1), ("am", -3), ("cat", 1)]


def test_wrong_words_count_too(task):
    """A bad model's weights are measured on all words, not on those it happens to get right."""
    offsets = translators.forced_offsets(build("dot", task), task.test, task)
    assert len(offsets) == sum(j >= 0 for pair in task.test for j in pair.alignment)


def test_distances_of_predicted_centres(task):
    model = build("local-p", task)
    with torch.no_grad():
        model.decoder.where.v.weight.zero_()  # sigmoid(0): the middle of every sentence
    distances = translators.predicted_distances(model, task.test, task)
    expected = [
        abs(len(pair.source) / 2 - gold) for pair in task.test for gold in pair.alignment if gold >= 0
    ]
    assert distances == pytest.approx(expected)


def test_a_trial_trains_and_tests_and_is_the_same_every_time(task):
    groups = (task.test[:3], task.test[3:9])
    once, again = (
        translators.trial("general", 8, task, groups, seed=1, steps=3, learning_rate=0.01) for _ in range(2)
    )
    assert once.run.history.losses == again.run.history.losses and len(once.run.history.losses) == 3
    assert once.exact == again.exact and len(once.exact) == 2
    assert once.offsets == again.offsets
    assert list(once.offsets) == translators.forced_offsets(once.run.model, task.test[:9], task)
    other = translators.trial("general", 8, task, groups, seed=2, steps=3, learning_rate=0.01)
    assert other.run.history.losses != once.run.history.losses


def test_a_trials_exact_match_is_that_of_its_model(task, monkeypatch):
    perfect = {pair.source: pair.target for pair in task.test}
    monkeypatch.setattr(
        translators,
        "translate",
        lambda model, pairs, task: [
            Translation(perfect[p.source] if len(p.source) < 8 else (), None) for p in pairs
        ],
    )
    short = [pair for pair in task.test if len(pair.source) < 8]
    long = [pair for pair in task.test if len(pair.source) >= 8]
    result = translators.trial("dot", 8, task, (short, long), seed=0, steps=1, learning_rate=0.01)
    assert result.exact == (1.0, 0.0)

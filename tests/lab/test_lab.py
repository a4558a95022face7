"""The experiments' data, training loop and measures."""

import pickle
import random
from collections import Counter
from functools import partial
from itertools import islice

import pytest
import torch

from attention_course import seq2seq
from attention_course.lab.data import reversal, translation
from attention_course.lab.data.pairs import BOS, EOS, PAD, Pair, Vocabulary, batches, by_length, collate
from attention_course.lab.measure.numbers import count_parameters, mean_and_sd
from attention_course.lab.measure.translations import (
    Translation,
    alignment_offsets,
    exact_match,
    forced_choices,
    position_match,
    translate,
)
from attention_course.lab.train import store
from attention_course.lab.train.loop import progress, schedule, side_by_side, train
from attention_course.lab.train.translators import learn, token_loss

LEXICON = {
    **translation.ANIMALS_AND_PEOPLE, **translation.THINGS, **translation.PLACES, **translation.ADJECTIVES,
    **translation.VERBS, **translation.JOINERS, "watashi": "I", "de": "in", "kara": "because",
}  # fmt: skip


@pytest.fixture(scope="module")
def task():
    return translation.task(0, train=2000, per_bucket=20)


@pytest.fixture(scope="module")
def symbols():
    return reversal.task(0, train=500, per_bucket=10)


# The data


def test_the_sentence_everybody_knows():
    pair = translation.being(translation.word("watashi", "I"), translation.word("neko", "cat"))
    assert pair == Pair(("watashi", "wa", "neko", "desu"), ("I", "am", "a", "cat"), (0, 3, -1, 2))
    task = translation.task(0, train=10, per_bucket=1)
    assert task.target.decode(task.target.encode(pair.target)) == pair.target


def test_the_grammar_can_make_it():
    rng = random.Random(0)
    assert any(translation.clause(rng).target == ("I", "am", "a", "cat") for _ in range(20_000))


def test_kara_swaps_the_clauses():
    a, b = translation.word("hon", "book"), translation.word("isu", "chair")
    pair = translation.because(a, b)
    assert pair == Pair(("hon", "kara", "isu"), ("chair", "because", "book"), (2, 1, 0))


def test_the_gold_alignment_joins_words_that_translate_each_other(task):
    for pair in (*task.train, *task.beyond):
        assert len(pair.alignment) == len(pair.target)
        for english, j in zip(pair.target, pair.alignment, strict=True):
            if j < 0:
                assert english in ("the", "a")
            elif pair.source[j] == "desu":
                assert english in ("am", "is")
            else:
                assert LEXICON[pair.source[j]] == english
        used = [j for j in pair.alignment if j >= 0]
        silent = [j for j in range(len(pair.source)) if pair.source[j] in ("wa", "o")]
        assert sorted(used + silent) == list(range(len(pair.source)))  # every other word is used once


def test_am_goes_with_I(task):
    for pair in task.train:
        for left, right in zip(pair.target, pair.target[1:], strict=False):
            assert (right == "am") <= (left == "I") and (right == "is") <= (left != "I")


@pytest.mark.parametrize("module", [translation, reversal])
def test_splits_are_disjoint_and_filled(module):
    task = module.task(0, train=500, per_bucket=10)
    sources = [{p.source for p in pairs} for pairs in (task.train, task.validation, task.test, task.beyond)]
    assert all(not a & b for i, a in enumerate(sources) for b in sources[i + 1 :])
    assert [len(s) for s in sources[1:]] == [10 * len(module.BUCKETS)] * 2 + [10]
    for pairs in (task.validation, task.test):
        assert [len(group) for group in by_length(pairs, module.BUCKETS)] == [10] * len(module.BUCKETS)
    assert all(module.BEYOND[0] <= len(p.source) <= module.BEYOND[1] for p in task.beyond)
    assert max(len(p.source) for p in task.train) <= module.BUCKETS[-1][1] < module.BEYOND[0]
    assert len(task.train) == 500


@pytest.mark.parametrize("module", [translation, reversal])
def test_a_seed_fixes_the_task(module):
    again = [module.task(seed, train=50, per_bucket=2) for seed in (0, 0, 1)]
    assert again[0].train == again[1].train and again[0].test == again[1].test
    assert again[0].train != again[2].train


def test_reversing_and_copying(symbols):
    assert all(p.target == p.source[::-1] for p in symbols.train)
    copied = reversal.task(0, reversal.copied_pair, train=50, per_bucket=2)
    assert all(p.target == p.source for p in (*copied.train, *copied.test))
    for pair in (*symbols.test, *copied.test):
        assert tuple(pair.source[j] for j in pair.alignment) == pair.target


def test_a_vocabulary_and_back():
    vocabulary = Vocabulary(["a", "b"])
    assert len(vocabulary) == 5
    assert vocabulary.decode([BOS, *vocabulary.encode(["b", "a"]), EOS, 3, PAD]) == ("b", "a")
    with pytest.raises(ValueError, match=r"must be in the vocabulary, got \['c'\]"):
        vocabulary.encode(["a", "c"])
    for words in (["a", "a"], ["<pad>"]):
        with pytest.raises(ValueError, match="words must be distinct"):
            Vocabulary(words)


def test_collate_shifts_the_target_behind_bos(task):
    pairs = task.test[:1] + task.test[-1:]
    batch = collate(pairs, task)
    for b, pair in enumerate(pairs):
        n = len(pair.target)
        numbers = task.target.encode(pair.target)
        assert batch.target[b].tolist()[: n + 1] == [*numbers, EOS] and not batch.target[b, n + 1 :].any()
        assert batch.previous[b].tolist()[: n + 1] == [BOS, *numbers]
        assert batch.lengths[b] == len(pair.source) and not batch.source[b, batch.lengths[b] :].any()


def test_an_epoch_serves_every_pair_once_with_little_padding(task):
    served = list(islice(batches(task.train, task, batch_size=32, seed=0), 63))  # 2000 / 32, rounded up
    sources = [
        task.source.decode(row[:n])
        for batch in served
        for row, n in zip(batch.source.tolist(), batch.lengths, strict=True)
    ]
    assert Counter(sources) == Counter(pair.source for pair in task.train)
    padding = sum((b.source == PAD).sum().item() for b in served) / sum(b.source.numel() for b in served)
    assert padding < 0.05
    widths = [batch.source.shape[1] for batch in served]
    assert widths != sorted(widths)  # the batches themselves come in any order


def test_batches_follow_their_seed(task):
    first, second, other = (next(batches(task.train, task, batch_size=8, seed=s)) for s in (0, 0, 1))
    assert torch.equal(first.source, second.source)
    assert first.source.shape != other.source.shape or not torch.equal(first.source, other.source)
    with pytest.raises(ValueError, match="need pairs"):
        next(batches((), task, batch_size=8, seed=0))


# Training


def quadratic(model, batch):
    return ((model(batch) - 3.0) ** 2).mean()


def line(seed=0, **options):
    torch.manual_seed(seed)
    model = torch.nn.Linear(2, 1)
    steps = options.pop("steps", 100)
    data = [torch.ones(4, 2)] * steps
    return model, train(model, data, quadratic, steps=steps, learning_rate=0.1, **options)


def test_training_lowers_the_loss_and_says_what_it_took():
    model, history = line()
    assert len(history.losses) == 100 and history.losses[-1] < 0.01 * history.losses[0]
    assert history.seconds > 0 and not model.training


def test_training_repeats_itself():
    assert line()[1].losses == line()[1].losses != line(seed=1)[1].losses


def test_the_seed_fixes_what_is_drawn_in_training():
    def noisy(model, batch):
        return quadratic(model, batch + torch.randn(4, 2))

    def losses(seed):
        torch.manual_seed(5)
        model = torch.nn.Linear(2, 1)
        data = [torch.ones(4, 2)] * 5
        return train(model, data, noisy, steps=5, learning_rate=0.1, seed=seed).losses

    assert losses(0) == losses(0) != losses(1)


def test_too_few_batches_and_a_lost_loss_are_named():
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="batches ended after 3 of steps=5"):
        train(model, [torch.ones(4, 2)] * 3, quadratic, steps=5, learning_rate=0.1)
    with pytest.raises(ValueError, match="loss must stay finite, got nan at step 0"):
        train(model, [torch.full((4, 2), torch.nan)], quadratic, steps=1, learning_rate=0.1)


@pytest.mark.parametrize("clip", [0.5, 1e9])
def test_a_step_is_adams_with_the_gradient_cut_to_the_norm(clip):
    """By hand: a steep step, then gentle ones, which Adam weighs by what it has seen of the steep one."""
    data = [torch.tensor([[30.0, -20.0]]), torch.tensor([[0.2, 0.1]]), torch.tensor([[-0.1, 0.3]])]
    model = torch.nn.Linear(2, 1)
    weights = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    train(model, data, quadratic, steps=3, learning_rate=0.1, warmup=2, clip=clip)
    mean, square, norms = torch.zeros(3), torch.zeros(3), []
    for step, batch in enumerate(data):
        row = torch.cat((batch[0].double(), torch.ones(1)))  # the bias is the weight of a 1
        gradient = 2 * (row @ weights - 3) * row
        norms.append(float(gradient.norm()))
        gradient = gradient * min(1.0, clip / norms[-1])
        mean, square = 0.9 * mean + 0.1 * gradient, 0.98 * square + 0.02 * gradient**2
        unbiased = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.98 ** (step + 1))
        rate = 0.1 * schedule(step, 3, warmup=2)
        weights = weights - rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    assert norms[0] > 0.5  # something is cut
    got = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    torch.testing.assert_close(got, weights, rtol=1e-4, atol=1e-5)
    cut = min(clip, norms[-1])
    assert torch.cat([p.grad.flatten() for p in model.parameters()]).norm() == pytest.approx(cut, rel=1e-3)


def test_the_schedule_rises_stays_and_falls():
    rate = [schedule(step, 800, warmup=50, final=0.02) for step in range(800)]
    assert rate[0] == pytest.approx(1 / 50) and rate[49] == rate[400] == 1.0
    assert rate[:50] == sorted(rate[:50]) and rate[400:] == sorted(rate[400:], reverse=True)
    assert rate[600] == pytest.approx(0.51) and 0.02 < rate[-1] < 0.03


def test_nobody_watching_means_no_bar(capsys):
    assert list(progress(range(3), "steps")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_side_by_side_keeps_the_order():
    jobs = [{"values": [float(n), n + 2.0]} for n in range(3)]
    expected = [mean_and_sd(**job) for job in jobs]
    assert side_by_side(mean_and_sd, jobs, workers=2) == expected
    assert side_by_side(mean_and_sd, []) == []


def test_runs_are_kept_only_when_asked_and_reused_only_when_asked(tmp_path, monkeypatch):
    jobs = [{"values": [1.0, 2.0]}, {"values": [5.0]}]
    honest = side_by_side(mean_and_sd, jobs)
    monkeypatch.setenv(store.KEEP, str(tmp_path))
    assert side_by_side(mean_and_sd, jobs) == honest
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2
    for path in kept:
        path.write_bytes(pickle.dumps("from the store"))
    assert side_by_side(mean_and_sd, jobs) == honest  # a build never reads
    for path in kept:
        path.write_bytes(pickle.dumps("from the store"))
    monkeypatch.delenv(store.KEEP)
    assert side_by_side(mean_and_sd, jobs) == honest
    monkeypatch.setenv(store.REUSE, str(tmp_path))
    assert side_by_side(mean_and_sd, jobs) == ["from the store"] * 2
    other = {"values": [1.0, 3.0]}
    mixed = side_by_side(mean_and_sd, [other, jobs[0]])
    assert mixed == [mean_and_sd(**other), "from the store"]


def test_a_kept_run_is_of_no_use_to_another_source(tmp_path, monkeypatch):
    monkeypatch.setenv(store.KEEP, str(tmp_path))
    monkeypatch.setenv(store.REUSE, str(tmp_path))
    call, another = pickle.dumps((mean_and_sd, 1)), pickle.dumps((mean_and_sd, 2))
    store.keep(call, b"answer")
    assert store.reused(call) == b"answer" and store.reused(another) is None
    monkeypatch.setattr(store, "_surroundings", lambda modules: "a changed package")
    assert store.reused(call) is None


def test_side_by_side_trains_as_one_process_does(symbols):
    build = partial(seq2seq.recurrent, seq2seq.BahdanauDecoder, 23, 23, embedding_dim=8, hidden_size=8)
    job = {"build": build, "task": symbols, "seed": 3, "steps": 4, "learning_rate": 0.01, "batch_size": 8}
    here = learn(**job)
    (there,) = side_by_side(learn, [job])
    assert there.history.losses == pytest.approx(here.history.losses, rel=1e-4)
    assert there.parameters == count_parameters(there.model) == here.parameters
    for a, b in zip(there.model.parameters(), here.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_a_mistake_in_a_job_comes_back():
    with pytest.raises(Exception, match="mean requires at least one data point"):
        side_by_side(mean_and_sd, [{"values": []}])


# Measuring


PAIRS = [
    Pair(("A", "B", "C"), ("C", "B", "A"), (2, 1, 0)),
    Pair(("A", "B"), ("B", "A"), (1, 0)),
]


def test_counting_parameters():
    model = torch.nn.Linear(3, 2)
    assert count_parameters(model) == 8
    model.bias.requires_grad_(False)
    assert count_parameters(model) == 6


def test_mean_and_sd():
    assert mean_and_sd([1.0, 3.0]) == pytest.approx((2.0, 2**0.5))
    assert mean_and_sd([4.0]) == (4.0, 0.0)


def test_exact_match_wants_every_word_and_no_more():
    written = [Translation(("C", "B", "A"), None), Translation(("B", "A", "A"), None)]
    assert exact_match(written, PAIRS) == 0.5


def test_position_match_follows_the_alignment():
    written = [Translation(("C", "C", "A"), None), Translation(("B",), None)]
    assert position_match(written, PAIRS, 0) == 0.5  # "A" is written third, and is missing
    assert position_match(written, PAIRS, -1) == 1.0
    assert position_match(written, PAIRS, 1) == 0.5


def test_alignment_offsets_count_right_translations_alone():
    weights = torch.tensor([[0.1, 0.1, 0.8], [0.1, 0.2, 0.7], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    written = [Translation(("C", "B", "A"), weights), Translation(("A",), weights[:2, :2])]
    assert alignment_offsets(written, PAIRS) == [0, 1, 0]


@pytest.mark.parametrize("decoder", [seq2seq.FixedVectorDecoder, seq2seq.BahdanauDecoder])
def test_translations_and_forced_choices_have_the_pairs_shapes(decoder, symbols):
    model = seq2seq.recurrent(decoder, 23, 23, embedding_dim=8, hidden_size=8).eval()
    pairs = symbols.test[:1] + symbols.test[-1:]
    for translation_, pair in zip(forced_choices(model, pairs, symbols), pairs, strict=True):
        assert len(translation_.words) == len(pair.target)
        if translation_.weights is not None:
            assert translation_.weights.shape == (len(pair.target) + 1, len(pair.source))
    for translation_, pair in zip(translate(model, pairs, symbols), pairs, strict=True):
        if translation_.weights is not None:
            assert translation_.weights.shape[1] == len(pair.source)
    assert translate(model, [], symbols) == forced_choices(model, [], symbols) == []


def test_padding_does_not_count_in_the_loss(symbols):
    torch.manual_seed(0)
    model = seq2seq.recurrent(seq2seq.BahdanauDecoder, 23, 23, embedding_dim=8, hidden_size=8)
    short, long = symbols.test[0], symbols.test[-1]
    counts = [len(pair.target) + 1 for pair in (short, long)]
    each = [token_loss(model, collate([pair], symbols)).item() for pair in (short, long)]
    together = token_loss(model, collate([short, long], symbols)).item()
    assert together == pytest.approx(
        sum(n * x for n, x in zip(counts, each, strict=True)) / sum(counts), rel=1e-5
    )


def test_the_task_can_be_learned():
    task = reversal.task(0, reversal.copied_pair, train=500, per_bucket=10)
    short = [pair for pair in task.train if len(pair.source) <= 4]
    model = seq2seq.recurrent(seq2seq.BahdanauDecoder, 23, 23, embedding_dim=16, hidden_size=32)
    history = train(
        model,
        batches(short, task, batch_size=16, seed=0),
        token_loss,
        steps=80,
        learning_rate=0.01,
    )
    assert history.losses[-1] < 0.5 * history.losses[0]

"""Exercises that ask for a training run: what it may take, what comes out, what it cannot see."""

import time
from dataclasses import replace

import pytest
import torch

from attention_course.checks import find_exercise, inputs
from attention_course.checks.engine import report
from attention_course.checks.engine.judge import judge_function

TRAIN = find_exercise("07_transformer.train")
SHOWN = TRAIN.cases[0].inputs()


def right(tokens):
    """The table by counting, asked with what is there: it takes no time to learn."""
    counts = torch.zeros(11, 11)
    for sentence in tokens.tolist():
        for word, other in zip(sentence[:6], sentence[7:], strict=True):
            counts[word, other] += 1
    table = counts.argmax(1)

    def predictor(sentences):
        said = torch.zeros_like(sentences)
        said[:, 6:12] = table[sentences[:, :6]]
        return said

    return predictor


def returning(predictor):
    return lambda tokens, seed: predictor


def first(answer, exercise=TRAIN):
    finding = judge_function(exercise, answer).findings[0]
    return finding.stage, finding.text


def raises(sentences):
    raise ValueError("no idea")


WRONG = {
    "nothing": (returning(None), "unfit", "It returned None. Return what can be asked"),
    "a tensor": (returning(torch.zeros(3)), "unfit", "It returned a Tensor."),
    "raises": (lambda tokens, seed: raises(tokens), "raised", "train(tokens, seed) raised ValueError: no"),
    "a predictor that raises": (returning(raises), "raised", "What your function returned raised ValueError"),
    "no tensor": (returning(lambda sentences: None), "type", "It returned None"),
    "logits": (returning(lambda sentences: torch.zeros(500, 13, 11)), "shape", "expected [500, 13]."),
    "floats": (returning(lambda sentences: sentences.float()), "dtype", "dtype float32; expected int64"),
    "one word for all": (
        returning(lambda sentences: torch.full_like(sentences, 3)), "score", "says the same to every",
    ),
    "at random": (
        returning(lambda sentences: torch.randint_like(sentences, 10)), "score", "Guessing gives 0.1",
    ),
    "other arguments": (lambda tokens: None, "raised", "It is called as train(tokens, seed)"),
    "exit": (returning(lambda sentences: exit()), "raised", "called exit()"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "stage", "words"), WRONG.values(), ids=list(WRONG))
def test_each_kind_of_wrong_run_has_a_sentence_of_its_own(answer, stage, words):
    told = first(answer)
    assert told[0] == stage and words in told[1]


def test_whatever_says_the_right_words_passes():
    """How it came to know them is its own affair; a number is an int."""

    def train(tokens, seed):
        assert type(seed) is int and tokens.shape == (1000, 13)
        return right(tokens)

    verdict = judge_function(TRAIN, train)
    assert verdict.passed and report.summary(verdict) == "Its case passes."


def test_tokens_that_are_changed_are_told():
    def train(tokens, seed):
        predictor = right(tokens)
        tokens.fill_(0)
        return predictor

    assert first(train)[0] == "inputs"


def test_time_is_measured_and_told_not_cut_short():
    short = replace(TRAIN, asks=replace(TRAIN.asks, seconds=0.2))

    def train(tokens, seed):
        start = time.process_time()
        while time.process_time() - start < 0.4:
            pass
        return right(tokens)

    [finding] = judge_function(short, train).findings
    assert finding.stage == "time" and "; 0.2 s are allowed." in finding.text
    assert judge_function(TRAIN, train).passed


def test_sleep_counts_after_its_slack():
    short = replace(TRAIN, asks=replace(TRAIN.asks, seconds=0.1))

    def train(tokens, seed):
        predictor = right(tokens)
        time.sleep(1)
        return predictor

    assert judge_function(short, train).findings[0].stage == "time"


def test_it_runs_on_one_thread_as_in_the_sandbox_and_the_notebook_keeps_its_own():
    seen = []

    def train(tokens, seed):
        seen.append(torch.get_num_threads())
        return right(tokens)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        judge_function(TRAIN, train)
        assert seen == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_is_forbidden_is_noticed_while_it_trains():
    watched = replace(TRAIN, forbidden=("softmax",))

    def train(tokens, seed):
        torch.zeros(3).softmax(0)
        return right(tokens)

    assert [finding.stage for finding in judge_function(watched, train).findings] == ["forbidden"]


def test_answers_for_another_seed_are_worth_nothing():
    *_, answers = SHOWN
    remembered = returning(lambda sentences: answers.clone())
    assert judge_function(TRAIN, remembered, 0).passed
    assert not judge_function(TRAIN, remembered, 1).passed


def test_gradients_that_add_up_are_taken_for_nothing_learned():
    from attention_course.checks.transformer.train import _train

    verdict = judge_function(TRAIN, _train(zero_grad=False))
    assert not verdict.passed and verdict.mistake.name == "nothing learned"


@pytest.mark.parametrize("bound", [{"at_least": None, "at_most": 0.5}, {"at_least": 0.5}])
def test_a_number_that_is_none_is_within_no_bound(bound):
    asks = replace(TRAIN.asks, measure=lambda said, answers: float("nan"), **bound)
    stage, text = first(lambda tokens, seed: right(tokens), replace(TRAIN, asks=asks))
    assert stage == "score" and "is nan; at " in text


def test_a_bound_from_above():
    asks = replace(TRAIN.asks, at_least=None, at_most=0.2)
    _, text = first(lambda tokens, seed: right(tokens), replace(TRAIN, asks=asks))
    assert "is 1; at most 0.2 is asked for." in text


def test_a_learner_can_ask_the_questions_too():
    tokens, seed, questions, answers = inputs(TRAIN.name, TRAIN.cases[0].name)
    assert type(seed) is int
    assert TRAIN.asks.measure(right(tokens)(questions), answers) == 1.0

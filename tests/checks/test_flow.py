"""The leak test of an answer that is wrong: what it moves with, and when nothing is said of that."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from attention_course.checks import chapters, find_exercise
from attention_course.checks.engine import flow
from attention_course.checks.engine.judge import judge_function, local

READER, ROTARY, LAYER = map(
    find_exercise, ("05_masks.reader", "06_positions.rotary_attention", "09_decoding.decoder_layer")
)
ATTENTION, SCORES = map(find_exercise, ("05_masks.decoder_attention", "03_scaled_dot_product.scores"))

rotated = find_exercise("06_positions.rotate").reference


def _softly(scores, *masks):
    """A penalty of 9 in the place of -inf, with or without masks that are given."""
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
    for mask in masks:
        seen = seen & mask
    return (scores - 9.0 * ~seen).softmax(-1)


def of(exercise, **parts):
    return type(exercise.answer, (exercise.reference,), parts)


LEAKY = {
    "reader": (READER, of(READER, weights=lambda self, *given: _softly(*given)), "tokens[..., "),
    "rotary attention": (ROTARY, of(ROTARY, weights=lambda self, scores: _softly(scores)), "x[..., "),
    "decoder layer": (LAYER, of(LAYER, weights=lambda self, scores: _softly(scores)), "x[..., "),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("what", LEAKY)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_leak_of_any_size_is_shown_where_the_context_alone_comes_back(what, seed):
    exercise, answer, row = LEAKY[what]
    mistake = judge_function(exercise, answer, seed).mistake
    assert mistake.name == "sees what it may not"
    assert mistake.message.startswith("A leak test, in the case “") and f"”: {row}" in mistake.message


@pytest.mark.usefixtures("unchecked")
def test_what_is_told_is_so():
    """The row that is named is exchanged by hand: the number that is named moves as told."""
    exercise, answer, _ = LEAKY["rotary attention"]
    message = judge_function(exercise, answer).mistake.message
    [case] = [one for one in exercise.cases if f"“{one.name}”" in message]
    row = int(message.partition("x[..., ")[2].partition(",")[0])
    place = tuple(map(int, message.partition("output[")[2].partition("]")[0].split(", ")))
    before, after = message.partition(" was ")[2].split(" now.")[0].split(" and is ")
    *state, x = case.inputs()
    built = answer(**case.arguments).to(x.dtype)
    built.load_state_dict(dict(zip(exercise.asks.state, state, strict=True)))
    other = x.clone()
    other[..., row, :] = 1 - 2 * x[..., row, :]
    with torch.no_grad():
        assert [f"{built(one)[place]:.4g}" for one in (x, other)] == [before, after]


@pytest.mark.usefixtures("unchecked")
def test_sentences_that_are_mixed_are_shown():
    """With one mean over all sentences, each of them moves with the others."""

    def attention(query, key, value, real):
        context, weights = ATTENTION.reference(query, key, value, real)
        others = key.mean(0, keepdim=True)
        return context + others[..., : context.shape[-2], : context.shape[-1]], weights

    mistake = judge_function(ATTENTION, attention).mistake
    assert mistake.name == "sees what it may not" and "key[" in mistake.message


def _with_itself(self, x):
    return x + ROTARY.reference.forward(self, x)


def _turned_twice(self, query, key, value):
    return *(rotated(rotated(one, torch.tensor(0)), torch.tensor(0)) for one in (query, key)), value


BLAMELESS = {
    "each number in its place": (SCORES, lambda query, key: SCORES.reference(query, key).square()),
    "random": (ATTENTION, lambda *inputs: tuple(map(torch.rand_like, ATTENTION.reference(*inputs)))),
    "a softmax so loud that what is in sight moves nothing": (ROTARY, of(ROTARY, forward=_with_itself)),
    "logits made probabilities": (
        READER,
        of(READER, say=lambda self, *parts: READER.reference.say(self, *parts).log_softmax(-1)),
    ),
    "positions counted twice": (ROTARY, of(ROTARY, turn=_turned_twice)),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("what", BLAMELESS)
def test_nobody_is_blamed_who_looks_at_what_is_in_sight(what):
    exercise, answer = BLAMELESS[what]
    for seed in range(4):
        mistake = judge_function(exercise, answer, seed).mistake
        assert mistake is None or mistake.name != "sees what it may not"


@pytest.mark.usefixtures("unchecked")
def test_an_exercise_in_which_nothing_is_hidden_has_no_leak_test():
    exercise, answer, _ = LEAKY["rotary attention"]
    assert judge_function(replace(exercise, unseen=()), answer).mistake is None


@pytest.mark.usefixtures("unchecked")
def test_a_slow_answer_is_not_called_again(monkeypatch):
    exercise, answer, _ = LEAKY["reader"]
    monkeypatch.setattr(flow, "_SECONDS", -1.0)
    assert judge_function(exercise, answer).mistake is None


def test_rows_are_the_last_and_the_first_ones_and_integers_stay_in_their_range():
    x = torch.randn(2, 9, 4)
    assert list(flow._rows(x)) == [*((-2, row) for row in (8, 7, 6, 2, 1, 0)), (0, 0)]
    tokens = torch.tensor([[3, 1, 2], [0, 5, 5]])
    assert list(flow._rows(tokens)) == [(-1, 2), (-1, 1), (-1, 0), (0, 0)]
    assert flow._other(tokens, -1, 2).tolist() == [[3, 1, 1], [0, 5, 5]]
    assert flow._other(tokens[1:], -1, 2) is None
    assert [flow._written(axis, row) for axis, row in ((-2, 8), (0, 1), (1, 0))] == ["..., 8, :", "1", ":, 0"]


def test_every_input_that_is_exchanged_is_one_of_its_exercise():
    exercises = [exercise for chapter in chapters() for exercise in chapter.exercises if exercise.unseen]
    assert len(exercises) > 12
    for exercise in exercises:
        assert set(exercise.unseen) <= set(exercise.parameters)


@pytest.mark.usefixtures("unchecked")
def test_a_saturated_softmax_is_no_proof():
    """In the loud case a visible token moves the right result by nothing; at small inputs it does."""
    [case] = [one for one in ROTARY.cases if one.name == "a loud future"]
    answer, right = local(of(ROTARY, forward=_with_itself)), local(ROTARY.reference)
    for seed in range(4):
        steps = [(case, ROTARY.steps(case, case.inputs(seed))[0])]
        assert (
            flow.moved_by(ROTARY, partial(answer, cotangents=None), partial(right, cotangents=None), steps)
            is None
        )


@pytest.mark.usefixtures("unchecked")
def test_a_mistake_whose_nan_is_replaced_keeps_its_name():
    def weights(self, scores):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(seen, -torch.inf).softmax(-1).nan_to_num()

    for seed in (0, 1):
        assert judge_function(ROTARY, of(ROTARY, weights=weights), seed).mistake.name == "seen for hidden"

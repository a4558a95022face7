"""The leak test of an answer that is wrong: what it moves with, and when nothing is said of that."""

import pytest
import torch

from attention_course.checks import find_exercise
from attention_course.checks.engine import flow
from attention_course.checks.engine.judge import judge_function

READER, ROTARY, LAYER = map(
    find_exercise, ("05_masks.reader", "06_positions.rotary_attention", "09_decoding.decoder_layer")
)
ATTENTION, SCORES = map(find_exercise, ("05_masks.decoder_attention", "03_scaled_dot_product.scores"))


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
    assert mistake.message.startswith(f"A leak test: {row}") and "a right answer does not move there" in (
        mistake.message
    )


@pytest.mark.usefixtures("unchecked")
def test_what_is_told_is_so():
    """The row that is named is exchanged by hand: the number that is named moves as told."""
    exercise, answer, _ = LEAKY["rotary attention"]
    message = judge_function(exercise, answer).mistake.message
    row = int(message.partition("x[..., ")[2].partition(",")[0])
    place = tuple(map(int, message.partition("output[")[2].partition("]")[0].split(", ")))
    before, after = message.partition(" was ")[2].split(" now;")[0].split(" and is ")
    found = []
    for case in exercise.cases:
        *state, x = case.inputs()
        built = answer(**case.arguments)
        built.load_state_dict(dict(zip(exercise.asks.state, state, strict=True)))
        other = x.clone()
        if x.dim() != len(place) or row >= x.shape[-2]:
            continue
        other[..., row, :] = 1 - 2 * x[..., row, :]
        with torch.no_grad():
            found.append(tuple(f"{built.to(x.dtype)(one)[place]:.4g}" for one in (x, other)))
    assert (before, after) in found


@pytest.mark.usefixtures("unchecked")
def test_sentences_that_are_mixed_are_shown():
    """With one mean over all sentences, each of them moves with the others."""

    def attention(query, key, value, real):
        context, weights = ATTENTION.reference(query, key, value, real)
        others = key.mean(0, keepdim=True)
        return context + others[..., : context.shape[-2], : context.shape[-1]], weights

    mistake = judge_function(ATTENTION, attention).mistake
    assert mistake.name == "sees what it may not" and "key[" in mistake.message


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "answer",
    [
        lambda query, key: SCORES.reference(query, key).square(),  # wrong, and each number in its place
        lambda query, key: torch.randn_like(SCORES.reference(query, key)),  # moves by itself
    ],
)
def test_nothing_is_told_where_nothing_leaks(answer):
    torch.manual_seed(0)
    assert judge_function(SCORES, answer).mistake is None


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
    weights = torch.randn(3, 4).softmax(-1)
    assert torch.equal(flow._other(weights, -2, 2, True), weights[[0, 1, 1]])
    assert not list(flow._rows(torch.ones(3, 4))) and not list(flow._rows(torch.ones(3, 4) > 0))
    assert [flow._written(x, axis, row) for axis, row in ((-2, 8), (0, 1), (1, 0))] == [
        "..., 8, :", "1", ":, 0"
    ]  # fmt: skip

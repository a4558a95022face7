"""Mistakes known in any exercise: by what is left of the right result, by the inputs it is right for."""

import pytest
import torch

from attention_course.checks import find_exercise
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.masks.shared import later

SCORES, SELF, CACHED, CAUSAL = map(
    find_exercise,
    (
        "03_scaled_dot_product.scores",
        "03_scaled_dot_product.self_attention",
        "09_decoding.attend_cached",
        "05_masks.causal_weights",
    ),
)


def _leaky(scores):
    return (scores - 12.0 * (later(scores) > 0)).softmax(-1)


def of(exercise, change):
    return lambda *inputs: change(exercise.reference(*inputs))


TOLD = (
    (CACHED, of(CACHED, lambda pair: pair[::-1]), "results in another order"),
    (
        CAUSAL,
        _leaky,
        "what is hidden gets weight",
    ),
    (SCORES, of(SCORES, torch.neg), "the other way round"),
    (SCORES, of(SCORES, lambda x: 3 * x), "one factor too many or too few"),
    (SCORES, of(SCORES, lambda x: x + 2), "one term too many or too few"),
    (SCORES, of(SCORES, lambda x: x.flip(-1)), "back to front"),
    (SCORES, of(SCORES, lambda x: x[..., None]), "an axis of length 1 too many"),
    (SELF, lambda x, q, k, v: SELF.reference(x, k, q, v), "w_query and w_key swapped"),
    (SELF, lambda x, q, k, v: SELF.reference(x, q, k, -v), "the other way round"),
)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("exercise", "answer", "name"), TOLD, ids=[name for *_, name in TOLD])
def test_it_is_named(exercise, answer, name):
    for seed in (0, 1):
        assert judge_function(exercise, answer, seed).mistake.name == name


@pytest.mark.usefixtures("unchecked")
def test_nothing_is_named_where_one_case_disagrees():
    def sometimes(query, key):
        scores = SCORES.reference(query, key)
        return -scores if scores.dtype == torch.float64 else scores.square()

    assert judge_function(SCORES, sometimes).mistake is None

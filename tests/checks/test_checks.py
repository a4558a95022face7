"""Checks: the right answer passes, every usual mistake is named, garbage is told apart."""

import json
import os
import random
import subprocess
import sys
import textwrap
import warnings
from collections import namedtuple
from dataclasses import replace
from functools import partial, reduce
from operator import attrgetter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attention_course import attend, checks, local, masked_softmax, masks, seq2seq
from attention_course import scores as package
from attention_course.checks import CheckFailed, check, find_exercise, hint, inputs, progress
from attention_course.checks.engine import examine, report, session
from attention_course.checks.engine.asks import Loaded, Module
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.observe import observe, printable, undisturbed
from attention_course.checks.engine.scenes import MeasuredScene, Scene
from attention_course.checks.engine.use import presented
from attention_course.checks.engine.verdict import STAGES
from attention_course.checks.score_functions.local_p import REACH
from attention_course.kernels import online
from attention_course.lab.data import pairs, reversal
from attention_course.scores import scaled_dot

EXERCISES = [one for chapter in checks.chapters() for one in chapter.exercises]
#: whole models that go through scenes: what is drawn for them is looked at in test_capstone.py
OF_TENSORS = [one for one in EXERCISES if not isinstance(one.asks, Scene | MeasuredScene)]

SCORES, SOFTMAX, ATTENTION, SELF_ATTENTION, JACOBIAN = (
    find_exercise(f"03_scaled_dot_product.{name}")
    for name in ("scores", "softmax", "attention", "self_attention", "softmax_jacobian")
)


BEST_OFFSET = find_exercise("13_probing.best_offset")
GRAPH_ATTENTION = find_exercise("17_graphs.graph_attention")


def counts(exercise):
    """Whether no result of a function hangs together with its inputs but by comparisons."""
    inputs = exercise.cases[0].inputs()
    leaves = (x.requires_grad_() if x.is_floating_point() else x for x in inputs)
    results = exercise.reference(*leaves)
    return not any(result.requires_grad for result in (results if type(results) is tuple else (results,)))


@pytest.fixture(autouse=True)
def fresh_session(monkeypatch):
    monkeypatch.setattr(session, "_LATEST", {})


def right_scores(query, key):
    return query @ key.mT / query.shape[-1] ** 0.5


# What an exercise is --------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
class TestExercise:
    def test_inputs_follow_the_seed(self, exercise):
        for case in exercise.cases:
            same, again = case.inputs(3), case.inputs(3)
            assert all(map(torch.equal, same, again))
            assert not all(all(map(torch.equal, same, case.inputs(other))) for other in (4, 5, 6))

    def test_inputs_do_not_follow_the_notebook(self, exercise):
        before = [case.inputs() for case in exercise.cases]
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"):
                after = [case.inputs() for case in exercise.cases]
        finally:
            torch.set_default_dtype(torch.float32)
        for one, other in zip(before, after, strict=True):
            assert [x.dtype for x in one] == [x.dtype for x in other]
            assert all(map(torch.equal, one, other))

    def test_it_is_described(self, exercise):
        assert 1 <= exercise.points <= 3 and 1 <= exercise.difficulty <= 3
        assert exercise.minutes > 0 and len(exercise.hints) >= 2
        assert len(exercise.stars) == 3
        for things in (exercise.cases, exercise.mistakes):
            assert len({one.name for one in things}) == len(things)
        messages = [mistake.message for mistake in exercise.mistakes]
        assert len(set(messages)) == len(messages)

    def test_cases_cover_what_hides_mistakes(self, exercise):
        if exercise not in OF_TENSORS:
            return
        drawn = [case.inputs() for case in exercise.cases]
        floating = [[tensor for tensor in one if tensor.is_floating_point()] for one in drawn]
        if any(floating):
            assert any(case.gradient or case.finite for case in exercise.cases) or counts(exercise)
            leading = any(tensor.dim() > 2 for one in floating for tensor in one)
            leading = leading or all(reads_tokens(one) for one in drawn)
            assert leading or exercise is GRAPH_ATTENTION, "leading axes"  # its nodes are the batch
            assert any(one[0].dtype == torch.float64 for one in floating) or exercise is SELF_ATTENTION
        else:  # tokens have no gradient and no axis behind the words
            batch = any(one[0].dim() > 1 and len(one[0]) > 1 for one in drawn)
            assert batch or exercise is BEST_OFFSET, "a batch"  # its examples are the batch


def reads_tokens(inputs):
    """Whether what comes last is a batch of sentences: of what reads them, only the weights are floating."""
    return inputs[-1].dim() > 1 and inputs[-1].dtype == torch.int64


def test_sizes_all_differ_where_queries_meet_keys():
    for exercise in (SCORES, ATTENTION):
        for case in exercise.cases:
            query, key, *value = case.inputs()
            sizes = [query.shape[-2], key.shape[-2], key.shape[-1]]
            assert len(set(sizes)) == 3, case.name
            if value and case.name != "values as wide as keys":
                assert value[0].shape[-1] not in sizes, case.name
        assert any(case.inputs()[0].shape[-1] == 256 for case in exercise.cases)


def test_no_softmax_is_saturated_unless_the_case_is_about_that():
    for seed in range(10):
        for case in ATTENTION.cases:
            if case.name != "large scores":
                _, weights = ATTENTION.reference(*case.inputs(seed))
                assert weights.amax(-1).median() < 0.9, case.name


def test_references_agree_with_the_package():
    for case in SCORES.cases:
        torch.testing.assert_close(SCORES.reference(*case.inputs()), scaled_dot(*case.inputs()))
    for case in (one for one in SOFTMAX.cases if one.inputs()[0].dim() > 1):
        torch.testing.assert_close(SOFTMAX.reference(*case.inputs()), masked_softmax(*case.inputs()))
    for case in ATTENTION.cases:
        for mine, packaged in zip(ATTENTION.reference(*case.inputs()), attend(*case.inputs()), strict=True):
            torch.testing.assert_close(mine, packaged)
    for case in SELF_ATTENTION.cases:
        x, w_query, w_key, w_value = case.inputs()
        expected, _ = attend(x @ w_query, x @ w_key, x @ w_value)
        torch.testing.assert_close(SELF_ATTENTION.reference(x, w_query, w_key, w_value), expected)
    scores = torch.randn(5, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    torch.testing.assert_close(JACOBIAN.reference(scores.softmax(-1)), expected)


# Chapters 1 and 2 -----------------------------------------------------------------------------

SUMMARY, PREVIOUS, LOSS, LOOK_BACK, DECODE = (
    find_exercise(f"01_bottleneck.{name}")
    for name in ("summary", "previous_tokens", "token_loss", "look_back", "decode")
)
GENERAL, ADDITIVE, CONCAT, COSINE, ATTENTIONAL, LOCAL_P = (
    find_exercise(f"02_score_functions.{name}")
    for name in ("general", "additive", "concat", "cosine", "attentional", "local_p")
)


def drawn(exercise):
    return [case.inputs() for case in exercise.cases]


def test_the_references_of_chapter_1_agree_with_the_package():
    encoder, lengths = seq2seq.Encoder(9, 4, 3), torch.tensor([2, 5, 1])
    states, summary = encoder(torch.randint(9, (3, 6)), lengths)
    torch.testing.assert_close(SUMMARY.reference(states, lengths), summary)
    task = reversal.task(0, reversal.reversed_pair)
    batch = pairs.collate(task.test[:20], task)
    assert torch.equal(PREVIOUS.reference(batch.target), batch.previous)
    for logits, target in drawn(LOSS):
        each = [
            F.cross_entropy(one.flatten(0, 1), target.flatten(), ignore_index=pairs.PAD) for one in logits
        ]
        torch.testing.assert_close(LOSS.reference(logits, target), torch.stack(each))
    for scores, states, lengths in drawn(LOOK_BACK):
        weights = masked_softmax(scores.unsqueeze(1), masks.padding(lengths, scores.shape[1]))
        expected = (weights @ states).squeeze(1), weights.squeeze(1)
        torch.testing.assert_close(LOOK_BACK.reference(scores, states, lengths), expected)


def test_each_state_of_the_decoder_follows_from_the_one_before():
    for embedded, start, states, v in drawn(DECODE):
        after, weights = DECODE.reference(embedded, start, states, v)
        before = torch.cat((start.unsqueeze(1), after[:, :-1]), 1)
        context, expected = attend(before, states, states, score=partial(package.additive_projected, v=v))
        torch.testing.assert_close(weights, expected)
        torch.testing.assert_close(after, (embedded + context + before).tanh())


def test_the_references_of_chapter_2_agree_with_the_package():
    for exercise in (GENERAL, ADDITIVE, CONCAT, COSINE):
        packaged = getattr(package, exercise.name.partition(".")[2])
        for one in drawn(exercise):
            torch.testing.assert_close(exercise.reference(*one), packaged(*one))
    for decoder, encoder, lengths, weight in drawn(ATTENTIONAL):
        seen = masks.padding(lengths, encoder.shape[1])
        context, weights = attend(decoder, encoder, encoder, attn_mask=seen, score=package.dot)
        expected = (torch.cat((context, decoder), -1) @ weight).tanh(), weights
        torch.testing.assert_close(ATTENTIONAL.reference(decoder, encoder, lengths, weight), expected)
    for scores, place, lengths in drawn(LOCAL_P):
        T_k, centres = scores.shape[-1], lengths[:, None] * place.sigmoid()
        seen = masks.padding(lengths, T_k) & local.window(centres, T_k, REACH)
        expected = masked_softmax(scores, seen) * local.gaussian(centres, T_k, REACH)
        torch.testing.assert_close(LOCAL_P.reference(scores, place, lengths), expected)


def test_lengths_leave_no_mistake_a_place_to_hide():
    for exercise in (SUMMARY, LOOK_BACK):
        batches = [(one[0].shape[1], one[-1].tolist()) for one in drawn(exercise)]
        assert any(max(lengths) < T for T, lengths in batches), "the longest is not the width"
        assert any(lengths != sorted(lengths, reverse=True) for _, lengths in batches), "not sorted"
        assert any(1 in lengths for _, lengths in batches), "one word"


def test_nothing_is_saturated_where_a_recurrent_decoder_looks():
    for seed in range(5):
        for exercise in (LOOK_BACK, DECODE, ATTENTIONAL):
            for case in exercise.cases:
                mixed, weights = exercise.reference(*case.inputs(seed))
                several = (weights > 0).sum(-1) > 1
                assert not several.any() or weights.amax(-1)[several].median() < 0.95, case.name
                assert exercise is LOOK_BACK or mixed.abs().median() < 0.95, case.name


@pytest.mark.parametrize(
    "loss",
    [F.cross_entropy, torch.nn.CrossEntropyLoss(), lambda x, y: F.nll_loss(F.log_softmax(x, -1), y)],
)
def test_torchs_own_loss_is_no_answer(loss):
    def solution(logits, target):
        word = target != pairs.PAD
        return torch.stack([loss(one[word], target[word]) for one in logits])

    assert {finding.stage for finding in judge_function(LOSS, solution).findings} == {"forbidden"}


def test_torchs_own_cosine_is_no_answer():
    verdict = judge_function(
        COSINE, lambda query, key: F.cosine_similarity(query.unsqueeze(-2), key.unsqueeze(-3), dim=-1)
    )
    assert {finding.stage for finding in verdict.findings} == {"forbidden"}


def test_a_gaussian_added_as_an_exponent_is_named_as_rows_that_sum_to_1():
    def local_p(scores, place, lengths, *, on_the_scores):
        centre = (lengths[:, None] * torch.sigmoid(place)).unsqueeze(-1)
        key = torch.arange(scores.shape[-1], dtype=scores.dtype)
        seen = (key >= centre - REACH) & (key <= centre + REACH) & (key < lengths[:, None, None])
        exponent = -2 * ((key - centre) / REACH) ** 2
        if on_the_scores:
            return torch.where(seen, scores + exponent, -torch.inf).softmax(-1)
        return torch.where(seen, scores, -torch.inf).softmax(-1) * exponent.exp()

    assert judge_function(LOCAL_P, partial(local_p, on_the_scores=False)).passed
    verdict = judge_function(LOCAL_P, partial(local_p, on_the_scores=True))
    assert verdict.mistake.name == "rows made to sum to 1 again"


def test_a_weight_cut_in_two_is_right_unless_it_is_cut_for_the_key_first():
    def query_first(query, key, weight, v):
        return package.additive(query, key, *weight.split([query.shape[-1], key.shape[-1]]), v)

    def key_first(query, key, weight, v):
        of_key, of_query = weight.split([key.shape[-1], query.shape[-1]])
        return package.additive(query, key, of_query, of_key, v)

    assert judge_function(CONCAT, query_first).passed
    assert judge_function(CONCAT, key_first).mistake.name == "key in front of query"


# Usual mistakes -------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")  # the checks of shapes take longer than all the rest
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
def test_every_mistake_fails_and_is_named(exercise):
    """For the learner's own inputs, and for others that a grader draws."""
    for mistake in exercise.mistakes:
        own, fresh = (judge_function(exercise, mistake.function, seed) for seed in (0, 1))
        assert not own.passed and not fresh.passed
        assert own.mistake is mistake and fresh.mistake is mistake
        card = " ".join(report.plain(own, "").split())
        assert card.count("Usual mistake") == 1
        assert f"Usual mistake: {mistake.name}. {mistake.message}" in card


def test_a_check_prints_the_report_and_raises(capsys):
    mistake = SCORES.mistakes[0]
    with pytest.raises(CheckFailed, match="not yet"):
        check(SCORES.name, mistake.function)
    assert (
        report.plain(judge_function(SCORES, mistake.function), "").splitlines()[1] in capsys.readouterr().out
    )


def test_a_gradient_that_is_nan_is_not_told_as_one_that_is_cut():
    exercise = find_exercise("05_masks.safe_softmax")
    verdict = judge_function(exercise, lambda scores: scores.softmax(-1).nan_to_num(0.0))
    [finding] = verdict.findings
    assert finding.stage == "gradient" and "is NaN or infinite in 5 of 20 entries" in finding.text
    assert "cut" not in finding.text and "nan" in finding.table.rows[0][1]


def test_where_right_answers_differ_in_their_gradients_these_must_arrive_and_be_finite():
    cases = (Case("any", lambda g: (torch.ones(2, 3),), finite=True),)
    exercise = replace(
        SOFTMAX, reference=lambda x: x - x.mean(), cases=cases, mistakes=(), distributions=(), forbidden=()
    )
    for right in (lambda x: x - x.sum() / 6, lambda x: 2 * (x - x.mean()), lambda x: x - 1):
        assert judge_function(exercise, right).passed
    for wrong, words in (
        (lambda x: (x - 1).detach(), "no gradient reaches"),
        (lambda x: (x - 1).sqrt(), "is NaN or infinite in 6 of 6 entries"),
    ):
        [finding] = judge_function(exercise, wrong).findings
        assert finding.stage == "gradient" and words in finding.text


def test_gradients_of_rows_that_sum_to_1_are_compared_along_changes_that_keep_the_sum():
    exercise = find_exercise("12_seeing.rollout")

    def rollout(weights, matrix):
        layers = [matrix(layer.mean(0), torch.eye(weights.shape[-1])) for layer in weights]
        return reduce(lambda below, layer: layer.to(weights.dtype) @ below.to(weights.dtype), layers)

    for right in (lambda a, i: (a + i) / 2, lambda a, i: (a + i) / (a + i).sum(-1, keepdim=True)):
        assert judge_function(exercise, partial(rollout, matrix=right)).passed
    verdict = judge_function(exercise, partial(rollout, matrix=lambda a, i: (a / 2 + a.detach() / 2 + i) / 2))
    [finding] = verdict.findings
    assert finding.stage == "gradient" and "with respect to weights differs" in finding.text


def test_dividing_twice_by_the_root_is_dividing_by_d_k():
    def twice(query, key):
        d_k = query.shape[-1]
        return (query / d_k**0.5) @ (key / d_k**0.5).mT

    assert judge_function(SCORES, twice).mistake.name == "divided by d_k"
    again = judge_function(
        ATTENTION, lambda query, key, value: attend(query / query.shape[-1] ** 0.5, key, value)
    )
    assert again.mistake.name == "divided by d_k"


def test_a_maximum_without_keepdim_is_named_too():
    def solution(scores):
        powers = torch.exp(scores - scores.amax(-1))
        return powers / powers.sum(-1, keepdim=True)

    assert judge_function(SOFTMAX, solution).mistake.name == "keepdim missing"


def test_a_mistake_is_named_though_the_softmax_overflows_as_well():
    def solution(query, key, value):
        weights = (query @ key.mT).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return weights @ value, weights

    verdict = judge_function(ATTENTION, solution)
    assert verdict.mistake.name == "no scale"
    assert any(finding.stage == "stability" for finding in verdict.findings)


def test_no_mistake_is_named_when_none_fits():
    assert judge_function(SCORES, lambda query, key: right_scores(query, key) ** 3).mistake is None
    # the plain dot product, but for wide heads only: right where "no scale" is wrong
    wide = judge_function(
        SCORES, lambda query, key: query @ key.mT if query.shape[-1] == 256 else right_scores(query, key)
    )
    assert not wide.passed and wide.mistake.name == "one factor too many or too few"
    # an error of the same type as a mistake's, for another reason
    assert judge_function(SELF_ATTENTION, lambda *inputs: torch.zeros(2) @ torch.zeros(3)).mistake is None


def test_an_error_of_the_same_type_for_another_reason_is_no_mistake():
    def solution(scores):  # raises where "keepdim missing" raises, with other words
        return SOFTMAX.reference(scores) if scores.dim() == 1 else torch.zeros(2) @ torch.zeros(3)

    verdict = judge_function(SOFTMAX, solution)
    assert verdict.findings[0].stage == "raised" and verdict.mistake is None


def test_changing_another_input_is_another_mistake():
    def solution(query, key):
        result = right_scores(query, key)
        key.detach().zero_()
        return result

    verdict = judge_function(SCORES, solution)
    assert verdict.findings[0].stage == "inputs" and verdict.mistake is None


# What is told, and in which order -------------------------------------------------------------


class Subclass(torch.Tensor):
    pass


Pair = namedtuple("Pair", ["context", "weights"])


def late(query, key):
    raise NotImplementedError


def exits(query, key):
    sys.exit(1)


def generator(query, key):
    yield query


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def unspeakable(query, key):
    raise Unspeakable


def nested(query, key):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([query, key])


def wrong(change):
    return lambda query, key: change(right_scores(query, key))


GARBAGE = {
    "not callable": (torch.ones(2), "callable", "must be a function, but it is a Tensor"),
    "None": (None, "callable", "it is None"),
    "not written": (late, "unwritten", "Nothing is written here yet"),
    "exits": (exits, "raised", "called exit()"),
    "raises": (wrong(lambda x: x.nothing), "raised", "AttributeError"),
    "raises silently": (unspeakable, "raised", "could not be read"),
    "too many parameters": (lambda a, b, c: a, "raised", "It is called as scores(query, key)"),
    "other names": (lambda *, query, key: query, "raised", "positional"),
    "returns None": (wrong(lambda x: None), "type", "returned None. Is there a return"),
    "list": (wrong(lambda x: x.tolist()), "type", "a list of 2; expected one tensor"),
    "tuple": (wrong(lambda x: (x, x)), "type", "a tuple of 2; expected one tensor"),
    "array": (wrong(lambda x: x.numpy()), "type", "a NumPy array"),
    "NumPy number": (wrong(lambda x: np.float64(3)), "type", "a NumPy number"),
    "number": (wrong(lambda x: 1.5), "type", "a float; expected a torch.Tensor"),
    "text": (wrong(str), "type", "a str; expected"),
    "generator": (generator, "type", "a generator; expected"),
    "class": (dict, "raised", "TypeError"),
    "parameter": (wrong(torch.nn.Parameter), "type", "a Parameter, a kind of its own"),
    "subclass": (wrong(lambda x: x.as_subclass(Subclass)), "type", "a Subclass, a kind of its own"),
    "sparse": (wrong(lambda x: x.to_sparse()), "type", "sparse_coo tensor"),
    "nested": (nested, "type", "nested tensor"),
    "device": (wrong(lambda x: x.to("meta")), "type", "on device meta; expected cpu"),
    "shape": (wrong(lambda x: x[..., :1]), "shape", "has shape [2, 1]; expected [2, 3]"),
    "number as tensor": (wrong(lambda x: x.sum()), "shape", "has shape []; expected [2, 3]"),
    "transposed": (wrong(lambda x: x.mT), "shape", "the wrong way round"),
    "float64": (wrong(lambda x: x.double()), "dtype", "has dtype float64; expected float32"),
    "float32": (wrong(lambda x: x.float()), "dtype", "has dtype float32; expected float64"),
    "integers": (wrong(lambda x: x.long()), "dtype", "has dtype int64"),
    "complex": (wrong(lambda x: x + 0j), "dtype", "has dtype complex64"),
    "values": (wrong(lambda x: x + 0.01), "values", "6 of 6 entries differ"),
    "NaN": (wrong(lambda x: x * float("nan")), "stability", "6 NaN"),
    "infinite": (wrong(lambda x: x / 0), "stability", "6 infinite"),
    "detached": (wrong(lambda x: x.detach()), "gradient", "no gradient reaches query"),
    "one detached": (lambda q, k: right_scores(q, k.detach()), "gradient", "no gradient reaches key"),
    "new tensor": (wrong(lambda x: torch.tensor(x.tolist(), dtype=x.dtype)), "gradient", "no gradient"),
    "through NumPy": (wrong(lambda x: torch.from_numpy(x.numpy())), "gradient", "with gradients: "),
    "half a gradient": (wrong(lambda x: x / 2 + x.detach() / 2), "gradient", "with respect to query differs"),
}  # fmt: skip


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_gets_its_own_words(name):
    function, stage, words = GARBAGE[name]
    verdict = judge_function(SCORES, function)
    assert (verdict.passed, verdict.points) == (False, 0)
    assert verdict.findings[0].stage == stage
    assert words in verdict.findings[0].text
    report.plain(verdict, ""), report.html(verdict, "")
    json.dumps(report.payload(verdict), allow_nan=False)


def test_garbage_is_told_apart():
    sentences = {judge_function(SCORES, function).findings[0].text for function, _, _ in GARBAGE.values()}
    assert len(sentences) == len(GARBAGE) - 1  # a new tensor is cut off just as a detached one is


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda context, weights: context, "one tensor; expected 2: return (context, weights)"),
        (
            lambda context, weights: [context, weights],
            "It returned a list of 2; expected a tuple of 2: return (context, weights).",
        ),
        (lambda context, weights: (context,), "a tuple of 1; expected 2"),
        (lambda context, weights: (context, weights, weights), "a tuple of 3; expected 2"),
        (lambda context, weights: (context, None), "weights is None"),
        (lambda context, weights: (context.tolist(), weights), "context is a list"),
        (lambda context, weights: (context, weights.numpy()), "weights is a NumPy array"),
        (lambda context, weights: None, "It returned None"),
        (lambda context, weights: {"context": context}, "It returned a dict"),
    ],
)
def test_two_results_are_asked_for_by_name(change, words):
    verdict = judge_function(ATTENTION, lambda *inputs: change(*ATTENTION.reference(*inputs)))
    assert verdict.findings[0].stage == "type" and words in verdict.findings[0].text


def test_a_dtype_is_said_to_be_the_inputs_only_where_it_is():
    def one_too_wide(source, target, train):
        offset, accuracy = BEST_OFFSET.reference(source, target, train)
        return offset.float(), accuracy.double()

    texts = [one.text for one in judge_function(BEST_OFFSET, one_too_wide).findings[:2]]
    assert texts == [
        "offset has dtype float32; expected int64, as the inputs have.",
        "accuracy has dtype float64; expected float32.",
    ]


def test_a_named_tuple_is_a_tuple():
    assert judge_function(ATTENTION, lambda *inputs: Pair(*ATTENTION.reference(*inputs))).passed


def test_the_earlier_stage_is_told_first_whatever_the_case():
    def solution(query, key):
        if query.dim() > 3:
            raise ValueError("later case")
        return query @ key.mT

    stages = [finding.stage for finding in judge_function(SCORES, solution).findings]
    assert stages[0] == "raised" and "values" in stages
    assert stages == sorted(stages, key=STAGES.index)


def test_the_line_told_is_the_learners_own(tmp_path):
    source = textwrap.dedent("""\
        import torch

        def helper(query, key):
            return torch.matmul(query, key)  # the culprit

        def scores(query, key):
            return helper(query, key)
    """)
    path, space = tmp_path / "learner.py", {}
    path.write_text(source)
    exec(compile(source, str(path), "exec"), space)
    text = judge_function(SCORES, space["scores"]).findings[0].text
    assert text.endswith("at line 4: return torch.matmul(query, key) # the culprit")


def presented_of(exercise):
    """What an answer is given, in the order of the exercise's parameters: a seed is no tensor."""
    shown = exercise.shown(exercise.cases[0])
    return shown.inputs if isinstance(exercise.asks, Module) else presented(shown.use, shown.inputs)


def changing(exercise, position):
    """The reference, which also doubles one of the tensors that it is given."""

    @torch.no_grad()
    def double(changed):
        changed.copy_(~changed if changed.dtype == torch.bool else 2 * changed)

    def solution(*inputs):
        result = exercise.reference(*inputs)
        double(inputs[position])
        return result

    def load_torch(self, state):
        exercise.reference.load_torch(self, state)
        double(state[exercise.parameters[position]])

    if isinstance(exercise.asks, Loaded) and exercise.parameters[position] in exercise.asks.state:
        return type("Changing", (exercise.reference,), {"load_torch": load_torch})

    def forward(self, *inputs):
        result = exercise.reference.forward(self, *inputs)
        name, state = exercise.parameters[position], exercise.asks.state
        double(attrgetter(name)(self) if name in state else inputs[position - len(state)])
        return result

    if isinstance(exercise.asks, Module):
        return type("Changing", (exercise.reference,), {"forward": forward})
    return solution


@pytest.mark.parametrize("exercise", OF_TENSORS, ids=lambda one: one.name)
def test_every_input_is_watched_for_changes(exercise):
    for position, name in enumerate(exercise.parameters):
        if not torch.is_tensor(presented_of(exercise)[position]):
            continue
        verdict = judge_function(exercise, changing(exercise, position))
        assert verdict.findings[0].stage == "inputs"
        assert verdict.findings[0].text.startswith(f"{name} is no longer what it was")


def test_rows_that_do_not_sum_to_1_are_told_after_the_values():
    def solution(query, key, value):
        context, weights = ATTENTION.reference(query, key, value)
        return context, weights / 2

    verdict = judge_function(ATTENTION, solution)
    assert verdict.findings[0].stage == "values"
    assert "Also: The rows of weights do not sum to 1: they sum to 0.5." in report.plain(verdict, "")


def test_what_else_is_wrong_names_its_case_where_that_is_another_one():
    def solution(query, key, value):
        context, weights = ATTENTION.reference(query, key, value)
        return context * torch.nan if query.shape[-1] == 256 else context + 1, weights

    verdict = judge_function(ATTENTION, solution)
    assert verdict.findings[0].case == "one decimal"
    assert 'Also: in the case "wide head", context: of 12 entries, 12 NaN' in report.plain(verdict, "")


def test_a_mistake_with_the_right_values_is_known_by_its_gradients():
    exercise = find_exercise("05_masks.safe_softmax")

    def by_where(scores):
        weights = scores.softmax(-1)
        return torch.where(weights.isnan(), 0.0, weights)

    assert judge_function(exercise, by_where).mistake.name == "NaN replaced afterwards"
    cut = judge_function(exercise, lambda scores: exercise.reference(scores.detach()))
    assert cut.findings[0].stage == "gradient" and cut.mistake is None


def test_overflow_is_told_only_where_it_happens():
    verdict = judge_function(SOFTMAX, lambda s: s.exp() / s.exp().sum(-1, keepdim=True))
    assert {finding.stage for finding in verdict.findings} == {"stability"}
    assert {finding.case for finding in verdict.findings} == {
        "large scores, float64",
        "one score far above the others",
    }


@pytest.mark.parametrize(
    "solution",
    [
        lambda scores: torch.softmax(scores, -1),
        lambda scores: scores.softmax(-1),
        lambda scores: F.softmax(scores, dim=-1),
        torch.nn.Softmax(dim=-1),
        lambda scores: torch.special.softmax(scores, -1),
        lambda scores: F.log_softmax(scores, -1).exp(),
    ],
)
def test_torchs_own_softmax_is_no_answer(solution):
    verdict = judge_function(SOFTMAX, solution)
    assert {finding.stage for finding in verdict.findings} == {"forbidden"}


def test_torchs_own_attention_is_no_answer():
    def solution(query, key, value):
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        return F.scaled_dot_product_attention(query, key, value), weights

    assert {finding.stage for finding in judge_function(ATTENTION, solution).findings} == {"forbidden"}

    def allowed(query, key, value):
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        return weights @ value, weights

    assert judge_function(ATTENTION, allowed).passed


# What must not matter -------------------------------------------------------------------------


def test_warnings_cost_nothing():
    def solution(query, key):
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
        warnings.warn("beware", UserWarning, stacklevel=1)
        return right_scores(query, key)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judge_function(SCORES, solution).passed


def test_rounding_costs_nothing():
    assert judge_function(SCORES, lambda q, k: right_scores(q, k) + 1e-6).passed
    assert judge_function(
        SCORES, lambda q, k: torch.einsum("...qd,...kd->...qk", q, k) * q.shape[-1] ** -0.5
    ).passed
    assert judge_function(SCORES, lambda q, k: right_scores(q.double(), k.double()).to(q.dtype)).passed
    assert not judge_function(SCORES, lambda q, k: right_scores(q, k) + 1e-3).passed


def test_a_result_that_is_a_view_or_reused_is_right():
    assert judge_function(SCORES, lambda q, k: right_scores(k, q).mT).passed
    buffers = {}

    def reuses(query, key):
        result = right_scores(query, key)
        if result.requires_grad:
            return result
        buffer = buffers.setdefault(result.dtype, torch.empty(10_000, dtype=result.dtype))
        return buffer[: result.numel()].view(result.shape).copy_(result)

    assert judge_function(SCORES, reuses).passed


def cut(query, key):
    return right_scores(query, key).detach()


@pytest.mark.parametrize("ambient", ["float64", "no_grad", "inference", "device"])
def test_the_notebooks_settings_do_not_matter_and_stay(ambient):
    def judged():
        assert judge_function(SCORES, right_scores).passed
        assert judge_function(SCORES, cut).findings[0].stage == "gradient"

    try:
        if ambient == "float64":
            torch.set_default_dtype(torch.float64)
            judged()
            assert torch.get_default_dtype() == torch.float64
        elif ambient == "no_grad":
            torch.set_grad_enabled(False)
            judged()
            assert not torch.is_grad_enabled()
        elif ambient == "inference":
            with torch.inference_mode():
                judged()
                assert torch.is_inference_mode_enabled()
        else:
            with torch.device("meta"):
                judged()
                assert torch.empty(1).device.type == "meta"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


def test_what_a_solution_does_to_the_notebook_is_undone():
    def solution(query, key):
        torch.manual_seed(7), random.seed(7), np.random.seed(7)
        torch.randn(3), random.random(), np.random.rand()
        torch.set_default_dtype(torch.float64)
        warnings.simplefilter("always")
        torch.set_grad_enabled(False)
        return right_scores(query, key)

    def state():
        numbers = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        return (*numbers, torch.get_default_dtype(), torch.is_grad_enabled(), list(warnings.filters))

    before = state()
    judge_function(SCORES, solution)
    assert state() == before


def test_undisturbed_puts_all_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(KeyError), undisturbed():
        torch.set_default_dtype(torch.float64)
        torch.randn(5)
        raise KeyError
    assert torch.get_default_dtype() == torch.float32 and torch.equal(before, torch.get_rng_state())


def test_only_the_keyboard_gets_out():
    def interrupted(query, key):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_function(SCORES, interrupted)
    observed = observe(lambda x: (_ for _ in ()).throw(SystemExit), (torch.ones(1),))
    assert observed.raised.type == "SystemExit"


# How it is told -------------------------------------------------------------------------------


def test_html_is_escaped():
    def solution(query, key):
        raise ValueError("<script>alert(1)</script> & <b>")

    verdict = judge_function(SCORES, solution)
    html = report.html(verdict, "<i>so far</i>")
    assert "<script>" not in html and "<i>" not in html and "<b>" not in html
    assert "&lt;script&gt;" in html
    kind = type("<img src=x>", (), {})
    assert "<img" not in report.html(judge_function(SCORES, lambda q, k: kind()), "")


def test_control_characters_and_long_texts_are_tamed():
    assert printable("\x1b[31mred\x07\n\n two") == "?[31mred? two"
    assert len(printable("x" * 10_000)) == 300


def test_hints_are_folded_in_levels():
    verdict = judge_function(SCORES, right_scores and (lambda q, k: q @ k.mT))
    html = report.html(verdict, "")
    assert html.count("<details><summary>Hint ") == len(SCORES.hints)
    assert "open" not in html.split("<details>")[1].split(">")[0]
    text = report.plain(verdict, "")
    assert not any(one in text for one in SCORES.hints)
    assert 'hint("03_scaled_dot_product.scores", 1)' in text


def test_hint_shows_one_level(capsys):
    hint(SCORES.name, 2)
    assert capsys.readouterr().out == f"Hint 2 of 3: {SCORES.hints[1]}\n"
    for level in (0, 4):
        with pytest.raises(ValueError, match="has hints 1 to 3"):
            hint(SCORES.name, level)


def test_the_table_shows_the_worst_entry():
    def solution(query, key):
        result = right_scores(query, key).clone()
        if result.shape[-1] == 7:
            result[1, 2, 4, 6] += 3
        return result

    finding = judge_function(SCORES, solution).findings[0]
    assert "1 of 210 entries" in finding.text and "[1, 2, 4, 6]" in finding.text
    assert finding.table.corner == "[1, 2, 4, :]" and "6" in finding.table.columns
    got, expected = (dict(zip(finding.table.columns, row, strict=True)) for _, row in finding.table.rows)
    assert float(got["6"]) == pytest.approx(float(expected["6"]) + 3, abs=0.01)


def test_the_table_shows_the_wrong_entry_beside_a_right_infinity():
    want = torch.tensor([[-torch.inf, 1.0, 2.0]])
    got = torch.tensor([[-torch.inf, 1.0, 2.5]])
    find = partial(examine.finding, Case("by hand", lambda g: ()))
    (finding,) = examine.values(find, "lse", got, want)
    assert "1 of 3 entries" in finding.text and "the largest difference, 0.5, is at [0, 2]" in finding.text


def test_a_block_of_queries_may_merge_what_torchs_softmax_gives():
    exercise = find_exercise("08_kernels.attend_block")

    def attend_block(query, key, value, start):
        answer = None
        for begin in range(0, min(key.shape[-2], int(start) + query.shape[-2]), 4):
            k, v = key[..., begin : begin + 4, :], value[..., begin : begin + 4, :]
            at, position = begin + torch.arange(k.shape[-2]), start + torch.arange(query.shape[-2])
            s = (query @ k.mT / query.shape[-1] ** 0.5).masked_fill(at > position[:, None], -torch.inf)
            lse = s.logsumexp(-1)
            found = online.Partial((s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp() @ v, lse)
            answer = found if answer is None else online.merge(answer, found)
        return tuple(answer)

    assert judge_function(exercise, attend_block, 0).findings == ()


def test_digits_are_added_until_a_difference_shows():
    table = examine._table(torch.tensor([1.00002]), torch.tensor([1.0]), (0,))
    assert table.rows[0][1] != table.rows[1][1]


def test_the_exception_is_one_line_and_an_assertion():
    with pytest.raises(AssertionError) as caught:
        check(SCORES.name, lambda query, key: query @ key.mT)
    [line] = caught.value._render_traceback_()
    assert line == "CheckFailed: 03_scaled_dot_product.scores: not yet; what differs stands above"


def test_points_are_counted_once_and_the_latest_check_holds(capsys):
    check(SCORES.name, SCORES.reference)
    check(SCORES.name, SCORES.reference)
    check(SOFTMAX.name, SOFTMAX.reference)
    out = capsys.readouterr().out
    assert "So far in this session: 3 of 10 points." in out
    assert "self-check on your own machine, not a grade" in out
    with pytest.raises(CheckFailed):
        check(SCORES.name, SCORES.mistakes[0].function)
    assert "So far in this session: 2 of 10 points." in capsys.readouterr().out
    progress("03_scaled_dot_product")
    lines = capsys.readouterr().out
    assert "not yet" in lines and "passed" in lines and "not checked" in lines


def test_an_untouched_starter_is_told_in_two_lines_and_counts_for_nothing(capsys):
    check(SCORES.name, SCORES.reference)
    capsys.readouterr()
    with pytest.raises(CheckFailed) as caught:
        check(SCORES.name, late)
    assert str(caught.value) == "03_scaled_dot_product.scores: not started"
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Not started: 03_scaled_dot_product.scores (0 of 1 point)" and len(lines) == 3
    assert lines[0].startswith("  Nothing is written here yet") and lines[1].startswith("  Stuck? hint(")
    assert "1 of 10 points" in lines[2]  # what has passed in this session stays
    verdict = judge_function(SCORES, late)
    assert report.payload(verdict)["status"] == verdict.status == "not started"
    shown = report.html(verdict, "")
    assert "Not started" in shown and "In the case" not in shown and shown.count("<details>") == 3

    def half(query, key):
        if query.dim() == 2:
            return right_scores(query, key)
        raise NotImplementedError

    verdict = judge_function(SCORES, half)
    assert verdict.status == "failed" and "In the case" in report.plain(verdict, "")


def test_a_starter_is_compared_with_no_mistake():
    run = []
    exercise = replace(SCORES, mistakes=(Mistake("noted", lambda *inputs: run.append(inputs), ""),))
    judge_function(exercise, late)
    assert run == []
    judge_function(exercise, wrong(lambda x: x + 1))
    assert run != []


def test_an_answer_that_calls_a_starter_is_started():
    def helper(query, key):
        raise NotImplementedError()

    verdict = judge_function(SCORES, lambda query, key: helper(query, key))
    assert verdict.status == "failed"
    text = verdict.findings[0].text
    assert text.startswith("scores(query, key) raised NotImplementedError: helper is not written yet")


def test_names_that_do_not_exist():
    with pytest.raises(ValueError, match=r"did you mean '03_scaled_dot_product.softmax'"):
        check("03_scaled_dot_product.softmx", abs)
    with pytest.raises(ValueError, match="no exercise is called"):
        check("nonsense", abs)
    with pytest.raises(ValueError, match="no chapter"):
        progress("99_nothing")
    with pytest.raises(ValueError, match="there are: one decimal"):
        inputs(SCORES.name, "nothing")


def test_inputs_are_those_of_the_check():
    query, key = inputs(SCORES.name, "one decimal")
    assert torch.equal(query, SCORES.cases[0].inputs()[0]) and key.shape == (3, 4)


def test_a_terminal_without_the_characters_gets_the_text():
    script = (
        "from attention_course.checks import check;"
        "check('03_scaled_dot_product.scores', lambda q, k: q @ k.mT / q.shape[-1])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=_environment(PYTHONIOENCODING="ascii"),
    )
    assert run.returncode == 1
    assert "Usual mistake: divided by d_k." in run.stdout
    assert "CheckFailed" in run.stderr and "UnicodeEncodeError" not in run.stderr


def test_a_plain_session_needs_no_ipython():
    script = (
        "import sys; from attention_course.checks import check, find_exercise as f;"
        "e = f('03_scaled_dot_product.scores'); check(e.name, e.reference);"
        "assert 'IPython' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=_environment())
    assert run.returncode == 0, run.stderr
    assert "Passed: 03_scaled_dot_product.scores (1 of 1 point)" in run.stdout


def test_in_a_notebook_there_is_html_text_and_json(monkeypatch):
    shown = []
    monkeypatch.setattr(session, "_shell", lambda: object())
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    check(SCORES.name, SCORES.reference)
    [bundle] = shown
    assert set(bundle) == {"text/plain", "text/html", report.MIMETYPE}
    assert bundle[report.MIMETYPE]["status"] == "passed" and bundle[report.MIMETYPE]["points"] == 1


def _environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def test_two_cases_of_one_seed_differ():
    def build(generator):
        return (torch.randn(4, generator=generator),)

    assert not torch.equal(Case("one", build).inputs()[0], Case("two", build).inputs()[0])


def test_a_gradient_where_the_reference_has_none_is_no_mistake():
    exercise = Exercise(
        name="any.product",
        title="Product",
        points=1,
        difficulty=1,
        minutes=1,
        reference=lambda one, other: one * other.detach(),
        returns=("product",),
        cases=(Case("two numbers", lambda g: (torch.ones(2), torch.full((2,), 3.0)), gradient=True),),
        mistakes=(),
        hints=(),
    )
    assert judge_function(exercise, lambda one, other: one * other).passed
    assert not judge_function(exercise, lambda one, other: one.detach() * other).passed


def test_a_single_number_that_is_off_is_shown():
    """It has no row and no place: once, reporting it raised."""
    exercise = Exercise(
        name="none.total",
        title="A sum",
        points=1,
        reference=lambda x: x.sum(),
        cases=(Case("three numbers", lambda generator: (torch.randn(3, generator=generator),)),),
        mistakes=(),
        difficulty=1,
        minutes=1,
        hints=(),
        returns=("total",),
    )
    assert judge_function(exercise, lambda x: x.sum()).passed
    verdict = judge_function(exercise, lambda x: x.sum() + 1)
    assert verdict.findings[0].text == "total is off by 1."
    assert len(verdict.findings[0].table.rows[0][1]) == 1

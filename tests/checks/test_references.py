"""Every exercise's reference beside an oracle that shares nothing with it: loops written from the formula."""

import time
from functools import cache, partial
from inspect import signature

import numpy as np
import oracles
import pytest
import torch

from attention_course import checks
from attention_course.checks.engine.asks import Training
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.observe import identical, observe
from attention_course.checks.engine.scenes import MeasuredScene, Scene
from attention_course.checks.engine.use import applied

ALL = [exercise for chapter in checks.chapters() for exercise in chapter.exercises]
# what a whole model goes through is compared in test_capstone.py
ALL = [exercise for exercise in ALL if not isinstance(exercise.asks, Scene | MeasuredScene)]
EXERCISES = [exercise for exercise in ALL if not isinstance(exercise.asks, Training)]
TRAININGS = [exercise for exercise in ALL if isinstance(exercise.asks, Training)]
SEEDS = (0, 1, 2**80)
#: float32 inputs: what the order of a sum may do; float64 inputs: nothing that is seen here
BOUNDS = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float64: {"rtol": 1e-9, "atol": 1e-9}}

each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


def arrays(inputs):
    return tuple(x.double().numpy() if x.is_floating_point() else x.numpy() for x in inputs)


def oracle_of(exercise, case):
    """The oracle, told what a module is built with where it asks for that by name."""
    oracle = oracles.of(exercise)
    known = case.arguments.keys() & signature(oracle).parameters.keys()
    return partial(oracle, **{name: case.arguments[name] for name in known})


@cache
def expected(exercise, seed, case):
    """What the oracle makes of a case: float64 where numbers come in."""
    oracle = oracle_of(exercise, case)
    return tuple(torch.as_tensor(x) for x in tensors(oracle(*arrays(case.inputs(seed)))))


def differences(exercise, answer, seed):
    """The cases in which ``answer`` and the oracle differ, and how."""
    for case in exercise.cases:
        function = applied(answer, exercise.asks.use(case), {})
        inputs = case.inputs(seed)
        try:
            given = tuple(x.clone() for x in inputs)
            got = tensors(function(*given))
            assert all(map(identical, given, inputs)), "inputs changed in place"
            for name, one, want in zip(exercise.returns, got, expected(exercise, seed, case), strict=True):
                if want.is_floating_point():  # a share of what was counted is a number like any other
                    want = want.to(inputs[0].dtype if inputs[0].is_floating_point() else torch.float32)
                bounds = BOUNDS.get(want.dtype, {"rtol": 0, "atol": 0})
                torch.testing.assert_close(one, want, **bounds, msg=lambda text, name=name: f"{name}: {text}")
        except Exception as error:
            yield case.name, error


@each_exercise
@pytest.mark.parametrize("seed", SEEDS, ids=["0", "1", "2^80"])
def test_the_reference_is_what_the_formula_says(exercise, seed):
    assert dict(differences(exercise, exercise.reference, seed)) == {}


@each_exercise
def test_its_gradients_are_those_of_the_formula(exercise):
    """Along drawn directions, by differences of the oracle."""
    generator, step = np.random.default_rng(0), 1e-5
    for case in (one for one in exercise.cases if one.gradient):
        inputs = tuple(x.double() if x.is_floating_point() else x for x in case.inputs(3))
        leaves = tuple(x.requires_grad_() if x.is_floating_point() else x for x in inputs)
        results = tensors(applied(exercise.reference, exercise.asks.use(case), {})(*leaves))
        cotangents = [torch.from_numpy(generator.standard_normal(one.shape)) for one in results]
        total = sum((one * cot).sum() for one, cot in zip(results, cotangents, strict=True))
        total.backward()

        def oracle(position, moved, case=case, inputs=inputs, cotangents=cotangents):
            values = [x.detach().numpy() for x in inputs]
            values[position] = values[position] + moved
            found = tensors(oracle_of(exercise, case)(*values))
            return sum(float((one * cot.numpy()).sum()) for one, cot in zip(found, cotangents, strict=True))

        for position, name in enumerate(exercise.parameters):
            if name in (*exercise.constants, *exercise.settings) or not inputs[position].is_floating_point():
                continue
            slope = leaves[position].grad
            slope = torch.zeros_like(leaves[position]) if slope is None else slope
            for _ in range(3):
                direction = generator.standard_normal(slope.shape)
                far = oracle(position, step * direction) - oracle(position, -step * direction)
                got = float((slope.numpy() * direction).sum())
                assert got == pytest.approx(far / (2 * step), rel=1e-5, abs=1e-7), (case.name, name)


@each_exercise
def test_the_oracle_tells_every_mistake_from_the_reference(exercise):
    """A reference that any of the usual mistakes had crept into would be found: by its values, or, where
    these are right, by its gradients (above)."""
    missed = [
        one.name
        for one in exercise.mistakes
        if next(differences(exercise, one.function, 0), None) is None
        and {found.stage for found in judge_function(exercise, one.function).findings} != {"gradient"}
    ]
    assert missed == []


@each_exercise
@pytest.mark.parametrize("seed", [0, -1, 2**80], ids=["0", "-1", "2^80"])
def test_the_reference_keeps_the_rules_of_its_exercise(exercise, seed):
    """Not its numbers, which are what a judge compares with: no input changed, nothing forbidden called."""
    assert judge_function(exercise, exercise.reference, seed).findings == ()


# Training runs --------------------------------------------------------------------------------

each_training = pytest.mark.parametrize("exercise", TRAININGS, ids=lambda one: one.name)


@each_training
@pytest.mark.parametrize("seed", SEEDS, ids=["0", "1", "2^80"])
def test_what_is_asked_can_be_known(exercise, seed):
    """By an oracle that sees what a learner's function is given, and no training."""
    for case in exercise.cases:
        inputs = case.inputs(seed)
        said = torch.as_tensor(oracles.of(exercise)(*arrays(inputs)))
        assert exercise.asks.measure(said, inputs[-1]) == 1.0


@each_training
def test_the_reference_keeps_far_from_its_bounds(exercise):
    """Its number in every run, its seconds three times over."""
    for case in exercise.cases:
        for seed in range(10):
            inputs, kept = case.inputs(seed), {}
            train, ask = exercise.steps(case, inputs)
            start = time.process_time()  # not the clock's, for this machine may be busy
            outcome = observe(applied(exercise.reference, train.use, kept), train.inputs)
            seconds = time.process_time() - start
            assert outcome.raised is None and 3 * seconds < exercise.asks.seconds
            said = applied(None, ask.use, kept)(*ask.inputs)
            assert exercise.asks.measure(said, inputs[-1]) > 0.97

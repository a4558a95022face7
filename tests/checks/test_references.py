"""Every exercise's reference beside an oracle that shares nothing with it: loops written from the formula."""

from functools import cache

import numpy as np
import oracles
import pytest
import torch

from attention_course import checks
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.observe import identical

EXERCISES = [one for chapter in checks.chapters() for one in chapter.exercises]
SEEDS = (0, 1, 2**80)
#: float32 inputs: what the order of a sum may do; float64 inputs: nothing that is seen here
BOUNDS = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float64: {"rtol": 1e-9, "atol": 1e-9}}

each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


def arrays(inputs):
    return tuple(x.double().numpy() if x.is_floating_point() else x.numpy() for x in inputs)


@cache
def expected(exercise, seed, case):
    """What the oracle makes of a case: float64 where numbers come in."""
    return tuple(torch.as_tensor(x) for x in tensors(oracles.of(exercise)(*arrays(case.inputs(seed)))))


def differences(exercise, function, seed):
    """The cases in which ``function`` and the oracle differ, and how."""
    for case in exercise.cases:
        inputs = case.inputs(seed)
        try:
            given = tuple(x.clone() for x in inputs)
            got = tensors(function(*given))
            assert all(map(identical, given, inputs)), "inputs changed in place"
            for name, one, want in zip(exercise.returns, got, expected(exercise, seed, case), strict=True):
                if want.is_floating_point():
                    want = want.to(inputs[0].dtype)
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
        results = tensors(exercise.reference(*leaves))
        cotangents = [torch.from_numpy(generator.standard_normal(one.shape)) for one in results]
        total = sum((one * cot).sum() for one, cot in zip(results, cotangents, strict=True))
        total.backward()

        def oracle(position, moved, inputs=inputs, cotangents=cotangents):
            values = [x.detach().numpy() for x in inputs]
            values[position] = values[position] + moved
            found = tensors(oracles.of(exercise)(*values))
            return sum(float((one * cot.numpy()).sum()) for one, cot in zip(found, cotangents, strict=True))

        for position, name in enumerate(exercise.parameters):
            if not inputs[position].is_floating_point():
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
    """A reference that any of the usual mistakes had crept into would be found."""
    missed = [
        one.name for one in exercise.mistakes if next(differences(exercise, one.function, 0), None) is None
    ]
    assert missed == []


@each_exercise
@pytest.mark.parametrize("seed", [0, -1, 2**80], ids=["0", "-1", "2^80"])
def test_the_reference_keeps_the_rules_of_its_exercise(exercise, seed):
    """Not its numbers, which are what a judge compares with: no input changed, nothing forbidden called."""
    assert judge_function(exercise, exercise.reference, seed).findings == ()

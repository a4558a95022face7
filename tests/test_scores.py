import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_course import scores

F64 = torch.float64


def draw(*shape, dtype=F64):
    return torch.randn(*shape, dtype=dtype)


def modules():
    return {
        "dot": scores.Dot(),
        "scaled_dot": scores.ScaledDot(),
        "cosine": scores.Cosine(),
        "general": scores.General(5, 5),
        "additive": scores.Additive(5, 5, 7),
        "concat": scores.Concat(5, 5, 7),
        "location": scores.Location(5, 9),
    }


NAMES = list(modules())


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine"])
def test_function_without_weights_equals_the_loop(name):
    query, key = draw(3, 5), draw(4, 5)
    expected = oracles.pairwise(getattr(oracles, name), query.numpy(), key.numpy())
    np.testing.assert_allclose(getattr(scores, name)(query, key).numpy(), expected, rtol=1e-12)


def test_general_equals_the_loop():
    query, key, weight = draw(3, 5), draw(4, 2), draw(5, 2)
    expected = oracles.pairwise(oracles.general(weight.numpy()), query.numpy(), key.numpy())
    np.testing.assert_allclose(scores.general(query, key, weight).numpy(), expected, rtol=1e-12)


def test_additive_and_concat_equal_the_loop_and_each_other():
    query, key = draw(3, 5), draw(4, 2)
    query_weight, key_weight, v = draw(5, 7), draw(2, 7), draw(7)
    expected = oracles.pairwise(
        oracles.additive(query_weight.numpy(), key_weight.numpy(), v.numpy()), query.numpy(), key.numpy()
    )
    split = scores.additive(query, key, query_weight, key_weight, v)
    joined = scores.concat(query, key, torch.cat((query_weight, key_weight)), v)
    np.testing.assert_allclose(split.numpy(), expected, rtol=1e-12)
    torch.testing.assert_close(split, joined, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_projecting_the_key_once_changes_nothing(name):
    score = modules()[name].double()
    query, key = draw(2, 4, 5), draw(2, 6, 5)
    torch.testing.assert_close(score.projected(query, score.project_key(key)), score(query, key))


def test_only_the_additive_score_has_something_to_project():
    key = draw(2, 6, 5)
    prepared = {name: score.double().project_key(key) for name, score in modules().items()}
    assert prepared.pop("additive").shape == (2, 6, 7)
    assert all(keys is key for keys in prepared.values())


def test_location_reads_the_query_alone():
    score = scores.Location(5, 9)
    query, key = torch.randn(2, 3, 5), torch.randn(2, 4, 8)
    result = score(query, key)
    torch.testing.assert_close(result, query @ score.weight[:, :4])
    assert torch.equal(result, score(query, torch.randn(2, 4, 8)))


def test_cosine_of_a_zero_vector_is_zero():
    assert scores.cosine(torch.zeros(1, 3), torch.randn(2, 3)).abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
@given(
    leading=st.sampled_from([(), (2,), (2, 3), (0,)]),
    T_q=st.integers(0, 4),
    T_k=st.integers(0, 6),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_any_leading_dimensions_and_dtypes(name, leading, T_q, T_k, dtype):
    score = modules()[name].to(dtype)
    query, key = torch.randn(*leading, T_q, 5).to(dtype), torch.randn(*leading, T_k, 5).to(dtype)
    result = score(query, key)
    assert result.shape == (*leading, T_q, T_k)
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert result.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_keys_broadcast_over_the_batch(name):
    score = modules()[name].double()
    query, key = draw(2, 3, 4, 5), draw(6, 5)
    torch.testing.assert_close(score(query, key), score(query, key.expand(2, 3, 6, 5)))


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    score = modules()[name].double()
    query, key = draw(2, 3, 5).requires_grad_(), draw(2, 4, 5).requires_grad_()
    parameters = tuple(score.parameters())
    assert torch.autograd.gradcheck(lambda q, k, *_: score(q, k), (query, key, *parameters))


@pytest.mark.parametrize("name", NAMES)
def test_non_contiguous_inputs_and_untouched_inputs(name):
    score = modules()[name].double()
    query, key = draw(5, 3).mT, draw(2, 5, 4).mT
    before = query.clone(), key.clone()
    torch.testing.assert_close(score(query, key), score(query.contiguous(), key.contiguous()))
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])


def test_float16_products_do_not_overflow():
    query = torch.full((1, 64), 100.0, dtype=torch.float16)
    assert scores.dot(query, query).item() == 64 * 100 * 100  # above float16's 65504


def test_scaling_first_keeps_large_products_finite():
    query = torch.full((1, 64), 10.0**18.5)
    assert scores.dot(query, query).isinf().all()  # 6.4e38: above float32's 3.4e38
    assert scores.scaled_dot(query, query).isfinite().all()


def test_scale_can_be_given():
    query, key = draw(3, 4), draw(2, 4)
    torch.testing.assert_close(scores.scaled_dot(query, key, scale=1.0), scores.dot(query, key))


def weights_of(name):
    return {
        "general": (torch.randn(5, 4),),
        "additive": (torch.randn(5, 7), torch.randn(4, 7), torch.randn(7)),
        "concat": (torch.randn(9, 7), torch.randn(7)),
    }[name]


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    @pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine"])
    def test_different_widths(self, name):
        with pytest.raises(ValueError, match=r"same width, got query \(3, 5\) and key \(2, 4\)"):
            getattr(scores, name)(torch.randn(3, 5), torch.randn(2, 4))

    @pytest.mark.parametrize("name", ["general", "additive", "concat"])
    def test_weights_that_do_not_fit(self, name):
        with pytest.raises(ValueError, match="weight must have shape"):
            getattr(scores, name)(torch.randn(3, 6), torch.randn(2, 4), *weights_of(name))

    def test_v_that_does_not_fit(self):
        with pytest.raises(ValueError, match="v must have shape"):
            scores.additive_projected(torch.randn(3, 5), torch.randn(2, 5), torch.randn(4))

    def test_integers(self):
        with pytest.raises(TypeError, match=r"floating point, got torch.int64"):
            scores.dot(torch.ones(2, 3, dtype=torch.int64), torch.randn(2, 3))

    def test_mixed_dtypes(self):
        with pytest.raises(TypeError, match=r"one dtype, got torch.float32 and torch.float64"):
            scores.dot(torch.randn(2, 3), draw(2, 3))

    def test_mixed_devices(self):
        with pytest.raises(ValueError, match="one device, got cpu and meta"):
            scores.dot(torch.randn(2, 3), torch.randn(2, 3, device="meta"))

    def test_location_beyond_its_length(self):
        with pytest.raises(ValueError, match="key has 10 positions, but Location was built for max_length=9"):
            scores.Location(5, 9)(torch.randn(3, 5), torch.randn(10, 5))

    def test_sharpness_below_zero(self):
        with pytest.raises(ValueError, match="sharpness must be above 0, got -1"):
            scores.Cosine(-1)

    def test_empty_widths(self):
        with pytest.raises(ValueError, match=r"at least 1, got \(0, 3\)"):
            scores.General(0, 3)

"""Local attention: windows, Gaussians and predicted centres, each against a loop; and what sums to what."""

import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_course import attention, local, masks, scores

F64 = torch.float64


def draw(*shape, dtype=F64):
    return torch.randn(*shape, dtype=dtype)


def triple(T_q=4, T_k=7, leading=(2,)):
    return draw(*leading, T_q, 5), draw(*leading, T_k, 5), draw(*leading, T_k, 3)


def looped(query, key, value, centres, reach, gaussian, mask=None):
    """One sentence, in NumPy, from the paper's section 3.2: (context, weights)."""
    T_q, T_k = len(query), len(key)
    seen = np.array([[abs(j - centres[i]) <= reach for j in range(T_k)] for i in range(T_q)])
    if mask is not None:
        seen &= mask
    _, weights = oracles.attend(oracles.pairwise(oracles.dot, query, key), value, seen)
    if gaussian:
        for i in range(T_q):
            for j in range(T_k):
                weights[i, j] *= math.exp(-((j - centres[i]) ** 2) / (2 * (reach / 2) ** 2))
    return weights @ value, weights


@given(
    centres=st.lists(st.floats(-4, 12, width=32), min_size=1, max_size=4),
    T_k=st.integers(0, 8),
    reach=st.integers(0, 5),
)
def test_a_window_holds_the_keys_at_most_reach_away(centres, T_k, reach):
    seen = local.window(torch.tensor(centres, dtype=F64), T_k, reach)
    assert seen.tolist() == [[abs(j - p) <= reach for j in range(T_k)] for p in centres]


def test_whole_numbers_are_centres_too():
    steps = torch.arange(5)
    assert torch.equal(local.window(steps, 5, 1), masks.window(5, 5, 2))  # masks.window counts the key itself
    torch.testing.assert_close(local.gaussian(steps, 5, 2), local.gaussian(steps.float(), 5, 2))


def test_a_window_reaches_to_both_sides():
    assert local.window(torch.tensor([3]), 8, 2)[0].nonzero().flatten().tolist() == [1, 2, 3, 4, 5]


def test_a_window_beyond_the_end_is_empty():
    assert local.window(torch.tensor([9.0, -3.0]), 6, 2).any(-1).tolist() == [False, False]


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_leading_dimensions(leading):
    centres = draw(*leading, 4) + 3
    assert local.window(centres, 6, 2).shape == (*leading, 4, 6)
    assert local.gaussian(centres, 6, 2).shape == (*leading, 4, 6)
    lengths = torch.full(leading, 6)
    assert local.predicted_centres(draw(*leading, 4, 5), lengths, draw(5, 8), draw(8)).shape == (*leading, 4)
    query, key, value = triple(leading=leading)
    for attend in (local.attend_window, local.attend_gaussian):
        context, weights = attend(query, key, value, centres, reach=2)
        assert context.shape == (*leading, 4, 3) and weights.shape == (*leading, 4, 7)


def test_the_gaussian_is_one_at_the_centre_and_e_to_minus_two_at_the_rim():
    bell = local.gaussian(torch.tensor([3.0], dtype=F64), 7, 3)[0]
    assert bell[3] == 1 and bell[0].item() == pytest.approx(math.exp(-2)) == bell[6].item()
    assert bell[2] == bell[4] < 1


def test_the_gaussian_equals_the_formula_between_positions():
    bell = local.gaussian(torch.tensor([2.3], dtype=F64), 5, 2)[0]
    expected = [math.exp(-((j - 2.3) ** 2) / 2) for j in range(5)]  # σ = 1
    np.testing.assert_allclose(bell, expected, rtol=1e-12)


def test_predicted_centres_equal_the_formula():
    query, weight, v = draw(2, 3, 4), draw(4, 6), draw(6)
    lengths = torch.tensor([5, 9])
    centres = local.predicted_centres(query, lengths, weight, v)
    for b in range(2):
        for i in range(3):
            z = sum(math.tanh(sum(query[b, i, a] * weight[a, h] for a in range(4))) * v[h] for h in range(6))
            expected = lengths[b].item() / (1 + math.exp(-z))
            assert centres[b, i].item() == pytest.approx(expected, rel=1e-10)


def test_each_sentence_has_its_own_length():
    query, weight, v = draw(1, 3, 4).expand(2, 3, 4), draw(4, 6), draw(6)
    short, long = local.predicted_centres(query, torch.tensor([4, 12]), weight, v)
    torch.testing.assert_close(long, 3 * short)
    assert (short > 0).all() and (short < 4).all() and (long < 12).all()


def test_narrow_queries_get_centres_in_float32():
    query = torch.zeros(1, 1, 4, dtype=torch.bfloat16)
    weight, v = torch.zeros(4, 6, dtype=torch.bfloat16), torch.zeros(6, dtype=torch.bfloat16)
    centres = local.predicted_centres(query, torch.tensor([514]), weight, v)
    assert centres.dtype == torch.float32 and centres.item() == 257  # bfloat16 has 256 and 258


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_local_attention_equals_the_loop(gaussian, masked):
    query, key, value = triple()
    centres = torch.tensor([[0.0, 2.3, 5.9, 6.8], [1.0, 1.5, 3.0, 4.2]], dtype=F64)
    mask = masks.padding(torch.tensor([7, 4]), 7) if masked else None
    attend = local.attend_gaussian if gaussian else local.attend_window
    context, weights = attend(query, key, value, centres, reach=2, attn_mask=mask)
    for b in range(2):
        expected = looped(
            query[b].numpy(), key[b].numpy(), value[b].numpy(), centres[b].tolist(), 2, gaussian,
            None if mask is None else mask[b].numpy(),
        )  # fmt: skip
        np.testing.assert_allclose(context[b], expected[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(weights[b], expected[1], rtol=1e-10, atol=1e-12)


def test_a_window_that_holds_everything_is_global_attention():
    query, key, value = triple()
    expected = attention.attend(query, key, value, score=scores.dot)
    actual = local.attend_window(query, key, value, torch.arange(4), reach=7)
    torch.testing.assert_close(actual, expected)


def test_rows_of_a_window_sum_to_one_and_those_of_a_gaussian_to_less():
    query, key, value = triple()
    centres = torch.tensor([0.4, 2.3, 5.9, 6.8], dtype=F64).expand(2, 4)
    _, plain = local.attend_window(query, key, value, centres, reach=2)
    _, bell = local.attend_gaussian(query, key, value, centres, reach=2)
    torch.testing.assert_close(plain.sum(-1), torch.ones(2, 4, dtype=F64))
    assert (bell.sum(-1) < 0.99).all() and (bell.sum(-1) > 0).all()
    torch.testing.assert_close(bell, plain * local.gaussian(centres, 7, 2))
    assert (plain[:, 0, 3:] == 0).all() and (bell[:, 0, 3:] == 0).all()


def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients():
    query, key, value = (x.requires_grad_() for x in triple(T_q=2))
    for attend in (local.attend_window, local.attend_gaussian):
        context, weights = attend(query, key, value, torch.tensor([20.0, 3.0], dtype=F64), reach=2)
        assert not context[:, 0].any() and not weights[:, 0].any() and weights[:, 1].any()
        gradients = torch.autograd.grad(context.sum(), (query, key, value))
        assert all(g.isfinite().all() for g in gradients)


def test_gradients():
    query, key, value = (x.requires_grad_() for x in triple(T_k=5))
    centres = torch.tensor([[0.4, 1.3, 2.7, 4.1]], dtype=F64).expand(2, 4).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: local.gaussian(p, 5, 2), (centres,))
    weight, v = draw(5, 6).requires_grad_(), draw(6).requires_grad_()
    lengths = torch.tensor([5, 3])
    assert torch.autograd.gradcheck(
        lambda q, w, u: local.predicted_centres(q, lengths, w, u), (query, weight, v)
    )
    # With a reach that no small step carries a key across:
    assert torch.autograd.gradcheck(
        lambda *x: local.attend_gaussian(*x, reach=2), (query, key, value, centres)
    )


def test_only_the_gaussian_tells_a_centre_where_to_go():
    query, key, value = triple()
    centres = torch.tensor([[1.2, 2.3, 3.4, 4.6]] * 2, dtype=F64, requires_grad=True)
    context, _ = local.attend_window(query, key, value, centres, reach=2)
    assert not context.requires_grad
    context, _ = local.attend_gaussian(query, key, value, centres, reach=2)
    (gradient,) = torch.autograd.grad(context.square().sum(), centres)
    assert (gradient != 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, F64])
def test_dtypes_come_out_as_they_went_in(dtype):
    query, key, value = (x.to(dtype) for x in triple())
    for centres in (torch.arange(4), torch.arange(4).float()):
        for attend in (local.attend_window, local.attend_gaussian):
            context, weights = attend(query, key, value, centres, reach=2)
            assert context.dtype == weights.dtype == dtype


def test_whole_centres_lose_nothing_in_float64():
    query, key, value = triple()
    whole = local.attend_gaussian(query, key, value, torch.arange(4), reach=3)
    exact = local.attend_gaussian(query, key, value, torch.arange(4, dtype=F64), reach=3)
    assert torch.equal(whole[1], exact[1])


def where(kind):
    return local.Monotonic(2) if kind == "m" else local.Predictive(5, 6, 2).double()


@pytest.mark.parametrize("kind", ["m", "p"])
def test_the_modules_are_the_functions(kind):
    query, key, value = triple()
    mask, module = masks.padding(torch.tensor([7, 4]), 7), where(kind)
    actual = module(query, key, value, mask, first=1, score=scores.dot)
    if kind == "m":
        steps = torch.tensor([1, 2, 3, 4])
        expected = local.attend_window(query, key, value, steps, reach=2, attn_mask=mask)
    else:
        centres = local.predicted_centres(
            query, torch.tensor([7, 4]), module.hidden.weight.T, module.v.weight[0]
        )
        torch.testing.assert_close(module.centres(query, torch.tensor([7, 4])), centres)
        expected = local.attend_gaussian(query, key, value, centres, reach=2, attn_mask=mask)
    torch.testing.assert_close(actual, expected)


def test_monotonic_moves_with_the_step_and_predictive_with_the_query():
    query, key, value = triple(T_q=1)
    mask = masks.padding(torch.tensor([7, 7]), 7)
    at = [where("m")(query, key, value, mask, first=t, score=scores.dot)[1] for t in (0, 4)]
    assert (at[0][..., 3:] == 0).all() and (at[1][..., :2] == 0).all()
    module = where("p")
    at = [module(query, key, value, mask, first=t, score=scores.dot)[1] for t in (0, 4)]
    assert torch.equal(*at)
    other = module(query + 1, key, value, mask, first=0, score=lambda _, k: scores.dot(query, k))[1]
    assert not torch.allclose(at[0], other)  # the same scores around another centre


def test_every_parameter_of_predictive_learns():
    module = where("p")
    query, key, value = triple()
    context, _ = module(query, key, value, masks.padding(torch.tensor([7, 4]), 7), first=0, score=scores.dot)
    context.square().sum().backward()
    assert all(p.grad.any() for p in module.parameters())


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    def test_reach(self):
        with pytest.raises(ValueError, match="reach must be at least 0, got -1"):
            local.window(torch.arange(3), 4, -1)
        with pytest.raises(ValueError, match="reach must be at least 1, for σ is half of it, got 0"):
            local.gaussian(torch.arange(3), 4, 0)

    def test_reach_of_the_modules(self):
        with pytest.raises(ValueError, match="reach must be at least 0, got -2"):
            local.Monotonic(-2)
        with pytest.raises(ValueError, match="reach must be at least 1, for σ is half of it, got 0"):
            local.Predictive(4, 4, 0)

    @pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (2, 1), (2, 2, 4), ()])
    def test_centres_that_are_not_one_per_query(self, shape):
        with pytest.raises(ValueError, match=r"centres must be one per query, \(2, 4\), got"):
            local.attend_window(*triple(), torch.ones(shape), reach=2)

    def test_centres_elsewhere(self):
        with pytest.raises(ValueError, match="centres must be on the query's device cpu, got meta"):
            local.attend_gaussian(*triple(), torch.ones(4, device="meta"), reach=2)

    def test_lengths_that_are_not_one_per_sentence(self):
        with pytest.raises(ValueError, match=r"query's leading dimensions \(2,\), got \(1,\)"):
            local.predicted_centres(draw(2, 3, 4), torch.tensor([5]), draw(4, 6), draw(6))

    def test_weights_that_do_not_fit(self):
        with pytest.raises(
            ValueError, match=r"weight must have shape \[d_q, hidden\] = \(4, 6\), got \(6, 4\)"
        ):
            local.predicted_centres(draw(2, 3, 4), torch.tensor([5, 5]), draw(6, 4), draw(6))

    def test_a_mask_that_is_not_boolean(self):
        with pytest.raises(TypeError, match="masks must be boolean"):
            local.attend_window(*triple(), torch.arange(4), reach=2, attn_mask=torch.ones(4, 7))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["m", "p"])
def test_on_a_gpu(kind):
    query, key, value = triple()
    mask, module = masks.padding(torch.tensor([7, 4]), 7), where(kind)
    expected = module(query, key, value, mask, first=1, score=scores.dot)
    inputs = (x.cuda() for x in (query, key, value, mask))
    actual = module.cuda()(*inputs, first=1, score=scores.dot)
    torch.testing.assert_close([x.cpu() for x in actual], list(expected), atol=1e-8, rtol=1e-6)

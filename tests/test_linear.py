"""Linear attention: four ways to the same sum, and what a state of fixed size means."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_course import attend, masked_softmax, masks
from attention_course.checks import linear as exercises
from attention_course.linear import (
    LinearState,
    chunked,
    elu_plus_one,
    linear_attention,
    linear_attention_quadratic,
    recurrent,
)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def inputs(T_q, T_k, *leading, d_k=3, d_v=2, dtype=torch.float64):
    shapes = ((T_q, d_k), (T_k, d_k), (T_k, d_v))
    return tuple(draw(*leading, *shape, dtype=dtype) for shape in shapes)


def by_hand(query, key, value, may_look):
    """The definition, loop by loop."""
    T_q, d_v = len(query), value.shape[1]
    context = torch.zeros(T_q, d_v, dtype=query.dtype)
    for i in range(T_q):
        total = 0.0
        for j in range(len(key)):
            if may_look[i, j]:
                likeness = sum((F.elu(a) + 1) * (F.elu(b) + 1) for a, b in zip(query[i], key[j], strict=True))
                context[i] += likeness * value[j]
                total += likeness
        if total:
            context[i] /= total
    return context


def gradients(function, tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    context = function(*leaves)
    cotangent = torch.randn(context.shape, generator=torch.Generator().manual_seed(1), dtype=context.dtype)
    return context.detach(), torch.autograd.grad((context * cotangent).sum(), leaves)


# One sum --------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(T_q=st.integers(0, 4), T_k=st.integers(0, 5), is_causal=st.booleans())
def test_every_form_equals_the_loops(T_q, T_k, is_causal):
    query, key, value = inputs(T_q, T_k)
    may_look = masks.causal(T_q, T_k) if is_causal else torch.ones(T_q, T_k, dtype=torch.bool)
    want = by_hand(query, key, value, may_look)
    torch.testing.assert_close(linear_attention(query, key, value, is_causal=is_causal), want)
    context, weights = linear_attention_quadratic(query, key, value, is_causal=is_causal)
    torch.testing.assert_close(context, want)
    torch.testing.assert_close(weights @ value, want)


@settings(max_examples=40)
@given(T=st.integers(0, 9), chunk=st.integers(1, 11), seed=st.integers(0, 99))
def test_causal_forms_agree_in_value_and_gradient(T, chunk, seed):
    torch.manual_seed(seed)
    tensors = inputs(T, T, 2)
    forms = (
        lambda q, k, v: linear_attention_quadratic(q, k, v, is_causal=True)[0],
        lambda q, k, v: linear_attention(q, k, v, is_causal=True, chunk=chunk),
        lambda q, k, v: chunked(q, k, v, chunk=chunk)[0],
        lambda q, k, v: recurrent(q, k, v)[0],
    )
    want = gradients(forms[0], tensors)
    for form in forms[1:]:
        torch.testing.assert_close(gradients(form, tensors), want)


def test_the_sum_without_a_mask_has_the_gradients_of_the_definition():
    tensors = inputs(4, 6, 2)
    want = gradients(lambda q, k, v: linear_attention_quadratic(q, k, v)[0], tensors)
    torch.testing.assert_close(gradients(linear_attention, tensors), want)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    assert torch.autograd.gradcheck(linear_attention, leaves)


def test_it_is_attention_with_a_logarithm_as_score():
    query, key, value = inputs(3, 5, 2)
    context, weights = attend(
        query, key, value, score=lambda q, k: (elu_plus_one(q) @ elu_plus_one(k).mT).log()
    )
    torch.testing.assert_close(linear_attention(query, key, value), context)
    torch.testing.assert_close(linear_attention_quadratic(query, key, value)[1], weights)


@pytest.mark.parametrize(("T_q", "T_k"), [(2, 70), (70, 66), (5, 3), (1, 6)])
def test_the_last_query_stands_at_the_last_key(T_q, T_k):
    query, key, value = inputs(T_q, T_k, 2)
    want, _ = linear_attention_quadratic(query, key, value, attn_mask=masks.causal(T_q, T_k))
    torch.testing.assert_close(linear_attention(query, key, value, is_causal=True, chunk=4), want)


def test_nothing_of_the_future_gets_through():
    query, key, value = inputs(9, 9)
    before = linear_attention(query, key, value, is_causal=True, chunk=4)
    for j in range(9):
        moved_key, moved_value = key.clone(), value.clone()
        moved_key[j] += 1
        moved_value[j] += 1
        after = linear_attention(query, moved_key, moved_value, is_causal=True, chunk=4)
        assert torch.equal(after[:j], before[:j]) and (after[j:] != before[j:]).any(-1).all()


def test_leading_dimensions_broadcast():
    query, key, value = draw(2, 3, 5, 4), draw(3, 5, 4), draw(2, 1, 5, 6)
    for options in ({}, {"is_causal": True, "chunk": 2}):
        want, _ = linear_attention_quadratic(query, key, value, is_causal="is_causal" in options)
        torch.testing.assert_close(linear_attention(query, key, value, **options), want)


def test_any_feature_map_may_have_another_width():
    def squares(x):
        return (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)  # m = d_k²: the score is (q·k)²

    query, key, value = inputs(6, 6)
    scores = (query @ key.mT) ** 2
    torch.testing.assert_close(
        linear_attention(query, key, value, feature_map=squares),
        scores / scores.sum(-1, keepdim=True) @ value,
    )
    context, state = chunked(query, key, value, feature_map=squares, chunk=4)
    assert state.S.shape == (9, 2) and state.z.shape == (9,)
    torch.testing.assert_close(recurrent(query, key, value, feature_map=squares)[0], context)


# The state ------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(cut=st.integers(0, 7), again=st.integers(0, 7), first=st.booleans())
def test_a_state_carries_over_whichever_form_made_it(cut, again, first):
    tensors = inputs(7, 7, 2)
    want, whole = recurrent(*tensors)
    forms = (recurrent, lambda *a: chunked(*a, chunk=3))
    one, other = forms if first else forms[::-1]
    places = [0, min(cut, again), max(cut, again), 7]
    state, rows = None, []
    for form, start, stop in zip((one, other, one), places[:-1], places[1:], strict=True):
        context, state = form(*(x[:, start:stop] for x in tensors), state)
        rows.append(context)
    torch.testing.assert_close(torch.cat(rows, 1), want)
    torch.testing.assert_close(tuple(state), tuple(whole))


def test_the_state_is_the_sum_over_the_tokens_and_does_not_grow():
    query, key, value = inputs(50, 50)
    _, state = chunked(query, key, value)
    features = elu_plus_one(key)
    torch.testing.assert_close(state.S, torch.einsum("tm,tv->mv", features, value))
    torch.testing.assert_close(state.z, features.sum(0))
    assert state.S.shape == (3, 2)


def test_a_state_given_is_not_changed():
    query, key, value = inputs(5, 5)
    _, state = recurrent(query, key, value)
    kept = LinearState(state.S.clone(), state.z.clone())
    recurrent(query, key, value, state)
    chunked(query, key, value, state)
    assert torch.equal(state.S, kept.S) and torch.equal(state.z, kept.z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_states_of_narrow_inputs_are_wide(dtype):
    query, key, value = inputs(700, 700, dtype=dtype)
    exact = linear_attention_quadratic(*(x.double() for x in (query, key, value)), is_causal=True)[0]
    narrow = torch.finfo(dtype).eps
    for form in (recurrent, chunked):
        context, state = form(query, key, value)
        assert context.dtype == dtype and state.S.dtype == state.z.dtype == torch.float32
        torch.testing.assert_close(context.double(), exact, rtol=narrow, atol=1e-4)
        # In bfloat16 a sum of ones would end at 256, and these features are 1 on average and more.
        assert state.z.min() > 700 * 0.9


def test_memory_of_the_chunked_form_grows_with_the_length_not_its_square():
    def held(T):
        sizes = []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        tensors = [x.requires_grad_() for x in inputs(T, T, d_k=8, d_v=8)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            chunked(*tensors, chunk=16)
        return sum(sizes), max(sizes)

    (short, _), (long, largest) = held(512), held(1024)
    assert long < 2.1 * short
    assert largest <= 1024 * 16 < 1024 * 1024


# Masks and nothing to look at -----------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_hides_keys_in_every_form(is_causal):
    query, key, value = inputs(6, 6, 3, 2)
    mask = masks.padding(torch.tensor([6, 4, 1]), 6).unsqueeze(1)  # [3, 1, 1, 6]
    want, _ = linear_attention_quadratic(query, key, value, attn_mask=mask, is_causal=is_causal)
    context = linear_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    torch.testing.assert_close(context, want)
    if is_causal:
        torch.testing.assert_close(recurrent(query, key, value, attn_mask=mask)[0], want)
        torch.testing.assert_close(chunked(query, key, value, attn_mask=mask, chunk=4)[0], want)
    alone = linear_attention(query[1, :, :4], key[1, :, :4], value[1, :, :4], is_causal=is_causal)
    torch.testing.assert_close(context[1, :, :4], alone)


def test_a_mask_may_be_one_row():
    query, key, value = inputs(4, 3)
    mask = torch.tensor([True, False, True])
    want = linear_attention(query, key[mask], value[mask])
    torch.testing.assert_close(linear_attention(query, key, value, attn_mask=mask), want)


def test_keys_in_front_of_the_first_query_are_masked_too():
    query, key, value = inputs(3, 5)
    mask = torch.tensor([False, True, True, False, True])
    want, _ = linear_attention_quadratic(query, key, value, attn_mask=mask, is_causal=True)
    torch.testing.assert_close(linear_attention(query, key, value, attn_mask=mask, is_causal=True), want)


def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients():
    tensors = inputs(4, 4, 2)
    mask = torch.tensor([[[False] * 4], [[False, False, True, True]]])
    forms = (
        lambda q, k, v: linear_attention(q, k, v, attn_mask=mask),
        lambda q, k, v: linear_attention(q, k, v, attn_mask=mask, is_causal=True, chunk=3),
        lambda q, k, v: recurrent(q, k, v, attn_mask=mask)[0],
        lambda q, k, v: linear_attention_quadratic(q, k, v, attn_mask=mask, is_causal=True)[0],
    )
    for form in forms:
        context, found = gradients(form, tensors)
        assert not context[0].any() and context[1, 2:].all()
        assert all(gradient.isfinite().all() for gradient in found)


def test_a_query_that_shares_no_feature_gets_zeros_and_finite_gradients():
    query = torch.tensor([[1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]]).double()
    key, value = torch.tensor([[1.0, -1.0]] * 3).double(), draw(3, 2)
    for form in (linear_attention, lambda q, k, v, **o: recurrent(q, k, v, **o)[0]):
        context, found = gradients(lambda *x, form=form: form(*x, feature_map=F.relu), (query, key, value))
        torch.testing.assert_close(context[0], value[0] if form is not linear_attention else value.mean(0))
        assert not context[1:].any()
        assert all(gradient.isfinite().all() for gradient in found)


# Weights --------------------------------------------------------------------------------------


def test_weights_are_positive_sum_to_one_and_have_a_rank_of_at_most_m():
    query, key, value = inputs(40, 40, d_k=4)
    _, weights = linear_attention_quadratic(query, key, value)
    assert weights.min() > 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(40, dtype=torch.float64))
    assert torch.linalg.matrix_rank(weights) == 4
    softmax = (query @ key.mT / 2).softmax(-1)
    assert torch.linalg.matrix_rank(softmax) > 8


def test_no_more_than_m_keys_can_ever_get_more_than_half():
    key = draw(40, 4) - 20  # features of nearly 0, but for four keys
    key[torch.tensor([3, 8, 20, 39]), torch.arange(4)] = 5.0
    _, weights = linear_attention_quadratic(100 * draw(5000, 4), key, key)
    assert (weights > 0.5).any(0).nonzero().flatten().tolist() == [3, 8, 20, 39]
    key[11, 2] = 5.0  # a rival for one feature
    _, weights = linear_attention_quadratic(100 * draw(5000, 4), key, key)
    assert (weights > 0.5).any(0).sum() == 3


@pytest.mark.parametrize("form", [linear_attention, recurrent, chunked, linear_attention_quadratic])
def test_autocast_does_not_narrow_the_sums(form):
    """In bfloat16 256 + 1 is 256: a sum over 1000 tokens would stop there."""
    query, key, value = torch.zeros(1000, 4), torch.zeros(1000, 4), torch.ones(1000, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = form(query, key, value)
    context = got if form is linear_attention else got[0]
    torch.testing.assert_close(context, torch.ones(1000, 4))
    if form in (recurrent, chunked):
        torch.testing.assert_close(got[1].S, torch.full((4, 4), 1000.0))


@pytest.mark.parametrize("form", [linear_attention, recurrent, chunked, linear_attention_quadratic])
def test_dtypes_may_differ_under_autocast_alone_as_in_attend(form):
    query, key, value = (torch.randn(2, 5, 4) for _ in range(3))
    mixed = query, key.bfloat16(), value.double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = form(*mixed)
        like_attend, _ = attend(*mixed)
    context = got if form is linear_attention else got[0]
    assert context.dtype == like_attend.dtype == torch.float64
    want = form(*(x.double() for x in mixed))
    torch.testing.assert_close(context, want if form is linear_attention else want[0])
    with pytest.raises(TypeError, match="key must have the query's dtype"):
        form(*mixed)


def test_elu_plus_one_is_elu_plus_one_and_stays_positive():
    x = torch.linspace(-10, 10, 401, dtype=torch.float64)
    torch.testing.assert_close(elu_plus_one(x), F.elu(x) + 1)
    low = torch.tensor([-18.0, -80.0])
    assert (F.elu(low) + 1 == 0).all() and (elu_plus_one(low) > 0).all()
    # e to the power of 1000 is infinite, and would make the gradient of the other branch NaN.
    x = torch.tensor([-2.0, 0.0, 3.0, 1000.0, -torch.inf], requires_grad=True)
    (gradient,) = torch.autograd.grad(elu_plus_one(x).sum(), x)
    torch.testing.assert_close(gradient, torch.tensor([-2.0, 0.0, 0.0, 0.0, -torch.inf]).exp())


# What does not fit ----------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    def test_integers(self):
        with pytest.raises(TypeError, match=r"key must be floating point, got torch.int64"):
            linear_attention(draw(2, 3), torch.ones(2, 3, dtype=torch.int64), draw(2, 3))

    def test_two_dtypes(self):
        with pytest.raises(
            TypeError, match=r"value must have the query's dtype torch.float64, got torch.float32"
        ):
            linear_attention(draw(2, 3), draw(2, 3), draw(2, 3).float())

    def test_one_dimension(self):
        with pytest.raises(ValueError, match=r"query must have shape \[..., T, d\], got \(3,\)"):
            linear_attention(draw(3), draw(2, 3), draw(2, 3))

    def test_widths(self):
        with pytest.raises(ValueError, match=r"same width, got query \(2, 3\) and key \(2, 4\)"):
            linear_attention(draw(2, 3), draw(2, 4), draw(2, 3))

    def test_lengths(self):
        with pytest.raises(ValueError, match=r"same length, got key \(2, 3\) and value \(4, 3\)"):
            linear_attention(draw(2, 3), draw(2, 3), draw(4, 3))
        for form in (recurrent, chunked):
            with pytest.raises(ValueError, match="same length, got 3 queries and 2 keys"):
                form(draw(3, 3), draw(2, 3), draw(2, 3))

    def test_a_mask_that_differs_from_query_to_query(self):
        with pytest.raises(ValueError, match=r"same for all queries and broadcast to \(1, 3\), got \(3, 3\)"):
            linear_attention(*inputs(3, 3), attn_mask=masks.causal(3))

    def test_a_mask_of_another_length(self):
        with pytest.raises(ValueError, match=r"broadcast to \(1, 3\), got \(4,\)"):
            linear_attention(*inputs(3, 3), attn_mask=torch.ones(4, dtype=torch.bool))

    def test_a_mask_of_floats(self):
        with pytest.raises(TypeError, match=r"boolean \(True = may look\), got torch.float32"):
            linear_attention(*inputs(3, 3), attn_mask=torch.ones(3))

    def test_a_chunk_without_order(self):
        with pytest.raises(ValueError, match=r"chunk is for is_causal=True; .* got chunk=4"):
            linear_attention(*inputs(3, 3), chunk=4)

    @pytest.mark.parametrize("chunk", [0, -3])
    def test_an_empty_chunk(self, chunk):
        with pytest.raises(ValueError, match=f"chunk must be at least 1, got {chunk}"):
            linear_attention(*inputs(3, 3), is_causal=True, chunk=chunk)

    def test_a_state_of_another_shape(self):
        _, state = recurrent(*inputs(3, 3))
        for form in (recurrent, chunked):
            with pytest.raises(ValueError, match=r"state.S must have shape \(2, 3, 2\), got \(3, 2\)"):
                form(*inputs(3, 3, 2), state)


# The exercises --------------------------------------------------------------------------------


def drawn(exercise):
    return [case.inputs() for case in exercise.cases]


def test_the_references_of_the_exercises_agree_with_the_package():
    for tensors in drawn(exercises.LINEAR_ATTENTION):
        torch.testing.assert_close(exercises.LINEAR_ATTENTION.reference(*tensors), linear_attention(*tensors))
    for *tokens, S, z in drawn(exercises.CHUNK_STEP):
        for form in (recurrent, chunked):
            context, state = form(*tokens, LinearState(S, z))
            torch.testing.assert_close(exercises.CHUNK_STEP.reference(*tokens, S, z), (context, *state))
    for *vectors, S, z in drawn(exercises.STEP):
        context, state = recurrent(*(x.unsqueeze(-2) for x in vectors), LinearState(S, z))
        torch.testing.assert_close(exercises.STEP.reference(*vectors, S, z), (context.squeeze(-2), *state))
    for scores, stride in drawn(exercises.STRIDED_WEIGHTS):
        mask = masks.strided(scores.shape[-1], int(stride), is_causal=True)
        torch.testing.assert_close(
            exercises.STRIDED_WEIGHTS.reference(scores, stride), masked_softmax(scores, mask)
        )

import math

import numpy as np
import oracles
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attention_course import kernels, masks, scores
from attention_course.attention import (
    attend,
    attention_weights,
    masked_softmax,
    mix,
    scaled_dot_product_attention,
)

BACKENDS = ("reference", "fused")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def inputs(leading=(2,), T_q=3, T_k=5, d_k=4, d_v=6, dtype=torch.float64):
    return tuple(
        torch.randn(*leading, length, width).to(dtype)
        for length, width in ((T_q, d_k), (T_k, d_k), (T_k, d_v))
    )


def expected(query, key, value, mask=None):
    """The oracle over any leading dimensions."""
    leading = query.shape[:-2]
    query, key, value = (
        tensor.double().expand(*leading, *tensor.shape[-2:]).numpy() for tensor in (query, key, value)
    )
    context = np.zeros((*query.shape[:-1], value.shape[-1]))
    weights = np.zeros((*query.shape[:-1], key.shape[-2]))
    if mask is not None:
        mask = mask.expand(weights.shape).numpy()
    for index in np.ndindex(*leading):
        one = oracles.pairwise(oracles.scaled_dot, query[index], key[index])
        context[index], weights[index] = oracles.attend(
            one, value[index], None if mask is None else mask[index]
        )
    return torch.from_numpy(context), torch.from_numpy(weights)


class TestMaskedSoftmax:
    def test_rows_sum_to_one_over_what_may_be_seen(self):
        values, mask = torch.randn(4, 6), torch.rand(4, 6) > 0.4
        mask[:, 0] = True
        weights = masked_softmax(values, mask)
        torch.testing.assert_close(weights.sum(-1), torch.ones(4))
        assert (weights[~mask] == 0).all()

    def test_without_mask_it_is_softmax(self):
        values = torch.randn(4, 6, dtype=torch.float64)
        torch.testing.assert_close(masked_softmax(values), values.softmax(-1), rtol=1e-15, atol=0)

    @pytest.mark.parametrize("size", [1e4, 1e30])
    def test_huge_scores(self, size):
        values = torch.tensor([[size, -size, size]])
        assert masked_softmax(values).tolist() == [[0.5, 0.0, 0.5]]
        hidden = masked_softmax(values, torch.tensor([False, True, False]))
        assert hidden.tolist() == [[0.0, 1.0, 0.0]]  # a fill value of -1e9 would lose to -1e30

    def test_a_blind_row_is_zero_with_zero_gradient(self):
        values = torch.randn(2, 3, requires_grad=True)
        weights = masked_softmax(values, torch.tensor([[True, True, False], [False] * 3]))
        assert weights[1].tolist() == [0, 0, 0]
        (weights * torch.randn(2, 3)).sum().backward()
        assert values.grad.isfinite().all()
        assert values.grad[1].abs().max() == 0

    def test_scores_of_minus_infinity_count_as_masked(self):
        assert masked_softmax(torch.full((1, 3), -torch.inf)).tolist() == [[0, 0, 0]]

    def test_half_precision_is_summed_in_float32(self):
        # 4096 equal scores: float16 sums would stop growing at 2048.
        weights = masked_softmax(torch.zeros(1, 4096, dtype=torch.float16))
        assert weights.dtype == torch.float16
        assert weights.double().sum().item() == 1

    def test_no_keys(self):
        assert masked_softmax(torch.randn(2, 0)).shape == (2, 0)

    def test_the_scores_are_left_alone(self):
        values = torch.randn(2, 3)
        before = values.clone()
        masked_softmax(values, masks.causal(2, 3))
        assert torch.equal(values, before)

    def test_gradient(self):
        values = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(3, 4) > 0.5
        mask[0] = False
        assert torch.autograd.gradcheck(lambda s: masked_softmax(s, mask), values)
        assert torch.autograd.gradgradcheck(lambda s: masked_softmax(s, mask), values)


class TestAttend:
    @given(
        leading=st.sampled_from([(), (2,), (2, 3), (0,)]),
        T_q=st.integers(0, 4),
        T_k=st.integers(0, 5),
        dtype=st.sampled_from(list(TOLERANCE)),
        masked=st.booleans(),
    )
    def test_equals_the_loop(self, leading, T_q, T_k, dtype, masked):
        query, key, value = inputs(leading, T_q, T_k, dtype=dtype)
        mask = torch.rand(T_q, T_k) > 0.5 if masked else None
        context, weights = attend(query, key, value, attn_mask=mask)
        assert context.dtype == weights.dtype == dtype
        for got, want in zip((context, weights), expected(query, key, value, mask), strict=True):
            torch.testing.assert_close(got.double(), want, rtol=0, atol=TOLERANCE[dtype])

    def test_takes_any_score(self):
        query, key, value = torch.randn(2, 3, 5), torch.randn(2, 4, 7), torch.randn(2, 4, 6)
        score = scores.Additive(5, 7, 8)
        context, weights = attend(query, key, value, score=score)
        torch.testing.assert_close(weights, score(query, key).softmax(-1))
        torch.testing.assert_close(context, weights @ value)

    def test_reads_every_value_it_weighs(self):
        query, key, value = inputs()
        context, weights = attend(query, key, value)
        value[:, 2] += 1.0  # the context moves by exactly the weight of position 2
        torch.testing.assert_close(
            attend(query, key, value)[0] - context, weights[..., 2:3].expand_as(context)
        )

    def test_permuting_the_keys_permutes_the_weights_only(self):
        query, key, value = inputs()
        order = torch.tensor([3, 0, 4, 1, 2])
        context, weights = attend(query, key, value)
        same, moved = attend(query, key[:, order], value[:, order])
        torch.testing.assert_close(same, context)
        torch.testing.assert_close(moved, weights[..., order])

    def test_gradient(self):
        tensors = [tensor.requires_grad_() for tensor in inputs()]
        mask = masks.causal(3, 5)
        mask[0] = False
        assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, attn_mask=mask), tensors)


def masks_for(kind, T_q, T_k):
    allowed = torch.rand(2, 1, T_q, T_k) > 0.4
    allowed[0, :, :1] = False  # the first query of the first sequence sees nothing
    return {
        "none": None,
        "bool": allowed,
        "padding": masks.padding(torch.tensor([T_k, T_k // 2]), T_k).unsqueeze(1),
        "float": torch.randn(2, 1, T_q, T_k).double().masked_fill(~allowed, -torch.inf),
    }[kind]


@pytest.mark.parametrize("backend", BACKENDS)
class TestScaledDotProductAttention:
    @given(
        T_q=st.integers(0, 5),
        T_k=st.integers(0, 7),
        d_k=st.integers(1, 9),
        kind=st.sampled_from(["none", "bool", "padding", "float"]),
        is_causal=st.booleans(),
        window=st.sampled_from([None, 1, 3]),
        dtype=st.sampled_from(list(TOLERANCE)),
        strided=st.booleans(),
    )
    def test_equals_the_loop(self, backend, T_q, T_k, d_k, kind, is_causal, window, dtype, strided):
        query, key, value = inputs((2, 3), T_q, T_k, d_k, dtype=dtype)
        if strided:
            query, key, value = (t.mT.contiguous().mT for t in (query, key, value))
        attn_mask = masks_for(kind, T_q, T_k)
        structure = torch.ones(T_q, T_k, dtype=torch.bool)
        if is_causal:
            structure &= masks.causal(T_q, T_k)
        if window:
            structure &= masks.window(T_q, T_k, window)
        got = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask.to(dtype) if kind == "float" else attn_mask,
            is_causal=is_causal,
            window=window,
            backend=backend,
        )
        assert got.dtype == dtype
        if kind == "float":
            wide = attn_mask.to(dtype).double()
            values = scores.scaled_dot(query.double(), key.double()) + wide
            allowed = (wide > -torch.inf) & structure
            want = masked_softmax(values, allowed) @ value.double()
        else:
            allowed = structure if attn_mask is None else structure & attn_mask
            want, _ = expected(query, key, value, allowed)
        torch.testing.assert_close(got.double(), want, rtol=0, atol=TOLERANCE[dtype])

    def test_equals_torch_where_both_are_defined(self, backend):
        query, key, value = inputs((2, 3), 5, 5, dtype=torch.float32)
        mask = torch.rand(5, 5) > 0.3
        for arguments in ({}, {"is_causal": True}, {"attn_mask": mask}, {"scale": 0.3}):
            torch.testing.assert_close(
                scaled_dot_product_attention(query, key, value, backend=backend, **arguments),
                F.scaled_dot_product_attention(query, key, value, **arguments),
            )

    def test_causal_stands_at_the_last_key_where_torch_stands_at_the_first(self, backend):
        query, key, value = inputs((1, 1), 1, 6)
        ours = scaled_dot_product_attention(query, key, value, is_causal=True, backend=backend)
        torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value))
        torchs = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.testing.assert_close(torchs, value[..., :1, :])  # it sees the first key only

    def test_the_future_does_not_leak(self, backend):
        query, key, value = inputs((1, 2), 6, 6)
        before = scaled_dot_product_attention(query, key, value, is_causal=True, backend=backend)
        key[..., 4:, :], value[..., 4:, :] = 7.0, 9.0
        after = scaled_dot_product_attention(query, key, value, is_causal=True, backend=backend)
        torch.testing.assert_close(after[..., :4, :], before[..., :4, :], rtol=0, atol=1e-15)
        assert (after[..., 4:, :] != before[..., 4:, :]).any(-1).all()

    @given(groups=st.integers(1, 3), num_kv_heads=st.integers(1, 3))
    def test_grouped_heads_equal_repeated_ones(self, backend, groups, num_kv_heads):
        query, _, _ = inputs((2, groups * num_kv_heads))
        _, key, value = inputs((2, num_kv_heads))
        got = scaled_dot_product_attention(query, key, value, enable_gqa=True, backend=backend)
        want, _ = attend(query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))
        torch.testing.assert_close(got, want)

    def test_leading_dimensions_are_optional_and_broadcast(self, backend):
        query, key, value = inputs((2, 3))
        want, _ = attend(query, key[0, 0], value[0, 0])
        got = scaled_dot_product_attention(query, key[0, 0], value[0, 0], backend=backend)
        torch.testing.assert_close(got, want)
        flat = scaled_dot_product_attention(query[0, 0], key[0, 0], value[0, 0], backend=backend)
        torch.testing.assert_close(flat, want[0, 0])

    def test_blind_queries_get_zero_and_finite_gradients(self, backend):
        tensors = [tensor.requires_grad_() for tensor in inputs((1, 2), dtype=torch.float32)]
        mask = torch.ones(3, 5, dtype=torch.bool)
        mask[1] = False
        context = scaled_dot_product_attention(*tensors, mask, backend=backend)
        assert context[..., 1, :].abs().max() == 0
        assert context[..., 0, :].abs().min() > 0
        context.square().sum().backward()
        assert all(tensor.grad.isfinite().all() for tensor in tensors)

    def test_more_causal_queries_than_keys(self, backend):
        query, key, value = inputs((1, 1), 5, 3)
        context = scaled_dot_product_attention(query, key, value, is_causal=True, backend=backend)
        assert context[..., :2, :].abs().max() == 0
        torch.testing.assert_close(context[..., 2, :], value[..., 0, :])

    def test_huge_logits(self, backend):
        query = torch.tensor([[[[1e4, 0.0]]]])
        key = torch.tensor([[[[1.0, 0.0], [-1.0, 0.0]]]])
        got = scaled_dot_product_attention(query, key, torch.eye(2)[None, None], backend=backend)
        assert got.tolist() == [[[[1.0, 0.0]]]]

    def test_float16_products_do_not_overflow(self, backend):
        query, key, value = inputs((1, 2), dtype=torch.float16)
        got = scaled_dot_product_attention(query * 100, key * 100, value, backend=backend)
        assert got.dtype == torch.float16
        assert got.isfinite().all()

    def test_gradient(self, backend):
        tensors = [tensor.requires_grad_() for tensor in inputs((1, 2))]
        mask = masks.causal(3, 5)
        mask[0] = False
        assert torch.autograd.gradcheck(
            lambda q, k, v: scaled_dot_product_attention(q, k, v, mask, backend=backend), tensors
        )

    def test_dropout_keeps_the_mean(self, backend):
        query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 20_000, 4)
        got = scaled_dot_product_attention(
            query, key, torch.ones(1, 1, 20_000, 1), dropout_p=0.5, backend=backend
        )
        assert got.item() != 1.0  # some rows no longer sum to one ...
        assert abs(got.item() - 1.0) < 0.05  # ... but their mean does

    def test_autocast(self, backend):
        query, key, value = inputs((1, 2), dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = scaled_dot_product_attention(query, key.bfloat16(), value, backend=backend)
        want = scaled_dot_product_attention(query, key, value, backend=backend)
        torch.testing.assert_close(got.float(), want, rtol=0, atol=5e-2)

    @pytest.mark.usefixtures("unchecked")
    def test_compile(self, backend, compiler):
        compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="eager")
        query, key, value = inputs((1, 2), dtype=torch.float32)
        for arguments in ({}, {"is_causal": True}, {"window": 2}):
            torch.testing.assert_close(
                compiled(query, key, value, backend=backend, **arguments),
                scaled_dot_product_attention(query, key, value, backend=backend, **arguments),
            )

    @pytest.mark.gpu
    def test_on_a_gpu(self, backend):
        tensors = inputs((2, 3), dtype=torch.float32)
        got = scaled_dot_product_attention(
            *(tensor.cuda() for tensor in tensors), is_causal=True, backend=backend
        )
        assert got.is_cuda
        want = scaled_dot_product_attention(*tensors, is_causal=True, backend=backend)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


def test_values_are_mixed_in_float32_at_least():
    weights = torch.tensor([[0.5005, 0.4985, 0.001]])  # bfloat16 has three digits: it would lose them
    value = torch.tensor([[256.0], [-256.0], [1.0]], dtype=torch.bfloat16)
    mixed = mix(weights, value)
    assert mixed.dtype == torch.bfloat16
    assert abs(mixed.item() - 0.513) < 0.004


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_may_be_as_broad_as_the_keys(backend):
    query, key, value = torch.randn(3, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    mask = torch.rand(2, 1, 3, 5) > 0.3
    got = scaled_dot_product_attention(query, key, value, mask, backend=backend)
    want, _ = attend(query.expand(2, 3, 3, 4), key, value, attn_mask=mask)
    torch.testing.assert_close(got, want)


def test_weights_are_those_the_values_are_mixed_with():
    query, key, value = inputs((2, 3))
    weights = attention_weights(query, key, is_causal=True)
    torch.testing.assert_close(
        mix(weights, value), scaled_dot_product_attention(query, key, value, is_causal=True)
    )


@pytest.mark.parametrize("scale", [0.0, -1.0])
@pytest.mark.parametrize("backend", ["auto", "fused", "tiled"])
def test_a_scale_of_zero_or_less_is_a_scale(backend, scale):
    query, key, value = (x.float() for x in inputs((2, 3), 5, 5, 4, 4))
    options = {"is_causal": True, "scale": scale}
    want = scaled_dot_product_attention(query, key, value, backend="reference", **options)
    got = scaled_dot_product_attention(query, key, value, backend=backend, **options)
    assert want.isfinite().all()
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", ["fused", "tiled"])
def test_a_finite_mask_stays_finite_in_half_precision(backend):
    query, key, value = (x.half() for x in inputs((1, 2), 3, 5, 4, 4))
    mask = torch.zeros(3, 5)
    mask[0] = -1e9  # below what float16 can hold, and yet not -inf: this query is not blind
    mask[1, 2:] = -torch.inf
    context = scaled_dot_product_attention(query, key, value, mask, backend=backend)
    want = scaled_dot_product_attention(query, key, value, mask, backend="reference")
    torch.testing.assert_close(context[..., 1:, :], want[..., 1:, :], atol=2e-3, rtol=2e-3)
    assert (context[..., 0, :] != 0).all()
    assert ((value.amin(-2) <= context[..., 0, :]) & (context[..., 0, :] <= value.amax(-2))).all()


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    @pytest.mark.parametrize("function", [attend, scaled_dot_product_attention])
    def test_key_and_value_of_different_length(self, function):
        query, key, value = inputs()
        with pytest.raises(ValueError, match=r"same length, got key \(2, 5, 4\) and value \(2, 4, 6\)"):
            function(query, key, value[:, :4])

    @pytest.mark.parametrize("function", [attend, scaled_dot_product_attention])
    def test_query_and_key_of_different_width(self, function):
        query, key, value = inputs()
        with pytest.raises(ValueError, match=r"same width, got query \(2, 3, 3\) and key \(2, 5, 4\)"):
            function(query[..., :3], key, value)

    def test_not_a_tensor(self):
        _, key, value = inputs()
        with pytest.raises(TypeError, match="query must be a tensor, got list"):
            attend([1.0], key, value)

    def test_integers(self):
        query, key, value = inputs()
        with pytest.raises(TypeError, match=r"value must be floating point, got torch.int64"):
            attend(query, key, value.long())

    def test_dtypes(self):
        query, key, value = inputs()
        with pytest.raises(
            TypeError, match=r"key must have the query's dtype torch.float64, got torch.float32"
        ):
            attend(query, key.float(), value)

    def test_devices(self):
        query, key, value = inputs()
        with pytest.raises(ValueError, match="value must be on the query's device cpu, got meta"):
            attend(query, key, value.to("meta"))

    def test_too_few_dimensions(self):
        _, key, value = inputs()
        with pytest.raises(ValueError, match=r"query must have shape \[..., T, d\], got \(4,\)"):
            attend(torch.randn(4).double(), key, value)

    def test_leading_dimensions(self):
        query, key, value = inputs()
        with pytest.raises(ValueError, match="leading dimensions must broadcast, got query"):
            attend(query.expand(2, 3, 4), key[:1].expand(3, 5, 4), value)

    def test_mask_of_numbers(self):
        query, key, value = inputs()
        with pytest.raises(TypeError, match=r"boolean \(True = may look\), got torch.int64"):
            attend(query, key, value, attn_mask=torch.ones(3, 5, dtype=torch.int64))
        with pytest.raises(TypeError, match=r"or floating point, got torch.int64"):
            scaled_dot_product_attention(query, key, value, torch.ones(3, 5, dtype=torch.int64))

    @pytest.mark.parametrize("shape", [(5, 3), (4, 5), (2, 3, 6), (3, 3, 5), (1, 1, 3, 5)])
    def test_mask_that_does_not_fit(self, shape):
        query, key, value = inputs()
        with pytest.raises(ValueError, match=r"broadcast to the scores' shape \(2, 3, 5\)"):
            attend(query, key, value, attn_mask=torch.ones(shape, dtype=torch.bool))

    def test_mask_that_would_stretch_the_scores(self):
        query, key, value = inputs(T_q=1)
        with pytest.raises(ValueError, match=r"got \(4, 5\)"):
            attend(query, key, value, attn_mask=torch.ones(4, 5, dtype=torch.bool))

    @pytest.mark.parametrize("dropout_p", [-0.1, 1.0, math.nan])
    def test_dropout(self, dropout_p):
        with pytest.raises(ValueError, match="dropout_p must be at least 0 and below 1"):
            scaled_dot_product_attention(*inputs(), dropout_p=dropout_p)

    @pytest.mark.parametrize("backend", kernels.BACKENDS)
    @pytest.mark.parametrize("window", [0, -3])
    def test_window(self, backend, window):
        with pytest.raises(ValueError, match=f"at least 1, got {window}"):
            scaled_dot_product_attention(*inputs(), window=window, backend=backend)

    def test_backend(self):
        with pytest.raises(
            ValueError, match="one of auto, fused, reference, tiled, windowed, triton, got 'fast'"
        ):
            scaled_dot_product_attention(*inputs(), backend="fast")

    def test_heads_that_do_not_divide(self):
        query, _, _ = inputs((1, 4))
        _, key, value = inputs((1, 3))
        with pytest.raises(ValueError, match="a divisor of the query's, got query 4, key 3, value 3"):
            scaled_dot_product_attention(query, key, value, enable_gqa=True)

    def test_grouped_heads_without_heads(self):
        tensors = inputs(())
        with pytest.raises(ValueError, match="enable_gqa needs a dimension for the heads"):
            scaled_dot_product_attention(*tensors, enable_gqa=True)


@pytest.mark.parametrize("leading", [(3,), (2, 3), (2, 1, 3), (0, 3)])
@pytest.mark.parametrize("masked", [None, (5, 7), (3, 5, 7), "whole"])
def test_any_number_of_dimensions_reaches_torchs_fast_kernel(leading, masked):
    query, key, value = inputs(leading, T_q=5, T_k=7)
    shape = (*leading, 5, 7) if masked == "whole" else masked
    mask = None if shape is None else torch.rand(shape) > 0.3
    got, want = (
        scaled_dot_product_attention(query, key, value, mask, backend=backend)
        for backend in ("fused", "reference")
    )
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_torchs_kernel_gets_four_dimensions(monkeypatch):
    seen = []

    def spy(query, key, value, **options):
        seen.append(query.dim())
        return query

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    for leading in ((3,), (2, 3), (2, 2, 3)):
        scaled_dot_product_attention(*inputs(leading, T_q=5, T_k=5, d_v=4), is_causal=True)
    assert seen == [4, 4, 4]  # with others it falls back to the sum that holds all weights

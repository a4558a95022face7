"""Every kernel is the same sum: equal answers, equal gradients, and no more memory than promised."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_course import decoding, kernels, masks, scores
from attention_course.attention import scaled_dot_product_attention
from attention_course.kernels import additive as additive_module
from attention_course.kernels.additive import additive_scores
from attention_course.kernels.online import Partial, merge
from attention_course.kernels.row import Linear, spread
from attention_course.transformer import gpt_like

tiled_module = sys.modules["attention_course.kernels.tiled"]  # the package's own name is the function

BOUNDS = {torch.float64: 1e-12, torch.float32: 5e-6}


class Operations(TorchDispatchMode):
    """The names of all operations that ran."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that any operation gave back."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            # An expanded view holds fewer numbers than it shows.
            if isinstance(leaf, torch.Tensor) and leaf.numel() * leaf.element_size():
                stored = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.numel = max(self.numel, min(leaf.numel(), stored))
        return result


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiled_module, "FORWARD", (3, 5))
    monkeypatch.setattr(tiled_module, "BACKWARD", (4, 2))


def draw(leading, T_q, T_k, d_k, d_v, dtype=torch.float64, key_leading=None):
    lengths = ((leading, T_q, d_k), (key_leading or leading, T_k, d_k), (key_leading or leading, T_k, d_v))
    return [torch.randn(*lead, T, d, dtype=dtype, requires_grad=True) for lead, T, d in lengths]


def answers(backend, inputs, d_context, *args, **options):
    context = scaled_dot_product_attention(*inputs, *args, backend=backend, **options)
    return [context, *torch.autograd.grad(context, inputs, d_context)]


MASKS = {
    "none": lambda T_q, T_k: None,
    "boolean": lambda T_q, T_k: torch.rand(2, 1, T_q, T_k) > 0.4,
    "one for all": lambda T_q, T_k: torch.rand(T_k) > 0.4,
    "added": lambda T_q, T_k: torch.randn(3, T_q, T_k, dtype=torch.float64),
    "nothing": lambda T_q, T_k: torch.zeros(T_q, 1, dtype=torch.bool),
}


class TestTiled:
    @settings(max_examples=150)
    @given(
        T_q=st.integers(0, 13),
        T_k=st.integers(0, 13),
        is_causal=st.booleans(),
        window=st.none() | st.integers(1, 15),
        mask=st.sampled_from(list(MASKS)),
        dtype=st.sampled_from(list(BOUNDS)),
    )
    def test_equals_the_definition_with_gradients(self, T_q, T_k, is_causal, window, mask, dtype):
        tiles = tiled_module.FORWARD, tiled_module.BACKWARD
        tiled_module.FORWARD, tiled_module.BACKWARD = (3, 5), (4, 2)
        try:
            inputs = draw((2, 3), T_q, T_k, 4, 5, dtype)
            attn_mask = MASKS[mask](T_q, T_k)
            if mask == "added":
                attn_mask = attn_mask.to(dtype)
            d_context = torch.randn(2, 3, T_q, 5, dtype=dtype)
            options = {"is_causal": is_causal, "window": window}
            got = answers("tiled", inputs, d_context, attn_mask, **options)
            wide = [x.detach().double().requires_grad_() for x in inputs]
            oracle_mask = attn_mask.double() if mask == "added" else attn_mask
            want = answers("reference", wide, d_context.double(), oracle_mask, **options)
            for one, other in zip(got, want, strict=True):
                assert one.dtype == dtype
                torch.testing.assert_close(one.double(), other, rtol=0, atol=BOUNDS[dtype])
        finally:
            tiled_module.FORWARD, tiled_module.BACKWARD = tiles

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype):
        inputs = [(x * 30).to(dtype).detach() for x in draw((2,), 6, 7, 4, 4)]
        got = scaled_dot_product_attention(*inputs, backend="tiled")
        want = scaled_dot_product_attention(*(x.double() for x in inputs), backend="reference")
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-3)

    def test_scores_beyond_float16_are_held_in_float32(self):
        query, key, value = (x.half().detach() for x in draw((1,), 6, 7, 16, 4))
        inputs = 200 * query, 200 * key, value
        assert (inputs[0] @ inputs[1].mT).isinf().any()  # what float16 makes of such products
        got = scaled_dot_product_attention(*inputs, scale=1.0, backend="tiled")
        want = scaled_dot_product_attention(*(x.double() for x in inputs), scale=1.0, backend="reference")
        torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=2e-3)

    def test_huge_scores_overflow_nowhere(self, small_tiles):
        query, key, value = draw((1,), 4, 12, 4, 4)
        options = {"is_causal": True, "scale": 1e4}
        got = answers("tiled", [query, key, value], torch.ones(1, 4, 4, dtype=torch.float64), **options)
        want = answers("reference", [query, key, value], torch.ones(1, 4, 4, dtype=torch.float64), **options)
        for one, other in zip(got, want, strict=True):
            assert one.isfinite().all()
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)

    def test_heads_that_share_keys(self, small_tiles):
        inputs = draw((2, 6), 5, 7, 4, 4, key_leading=(2, 2))
        d_context = torch.randn(2, 6, 5, 4, dtype=torch.float64)
        got = answers("tiled", inputs, d_context, enable_gqa=True)
        want = answers("reference", inputs, d_context, enable_gqa=True)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)

    def test_leading_dimensions_broadcast(self, small_tiles):
        query, key, value = draw((3,), 5, 7, 4, 4, key_leading=(2, 1))
        d_context = torch.randn(2, 3, 5, 4, dtype=torch.float64)
        got = answers("tiled", [query, key, value], d_context)
        want = answers("reference", [query, key, value], d_context)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)

    def test_no_leading_dimension(self):
        query, key, value = draw((), 5, 7, 4, 4)
        got = scaled_dot_product_attention(query, key, value, backend="tiled")
        torch.testing.assert_close(got, scaled_dot_product_attention(query, key, value, backend="reference"))

    def test_inputs_stay_as_they_are(self):
        inputs = draw((2,), 5, 7, 4, 4)
        before = [x.clone() for x in inputs]
        answers("tiled", inputs, torch.ones(2, 5, 4, dtype=torch.float64), is_causal=True)
        assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))

    def test_gradient_by_differences(self, small_tiles):
        inputs = draw((2,), 5, 7, 3, 3)
        run = lambda *x: scaled_dot_product_attention(*x, backend="tiled", is_causal=True)  # noqa: E731
        assert torch.autograd.gradcheck(run, inputs)

    def test_twice_is_refused(self):
        inputs = draw((2,), 5, 7, 3, 3)
        context = scaled_dot_product_attention(*inputs, backend="tiled")
        (slope,) = torch.autograd.grad(context.sum(), inputs[0], create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated once only"):
            torch.autograd.grad(slope.square().sum(), inputs[1])

    @pytest.mark.parametrize("window", [2, 20])
    def test_once_by_function_and_no_more_whatever_the_window(self, window):
        """ "auto" takes the tiles for the narrow one and torch's kernel for the wide one."""
        inputs = [torch.randn(2, 3, 24, 4, dtype=torch.float64) for _ in range(3)]
        mask = torch.rand(2, 1, 24, 24) > 0.3

        def total(backend, *x):
            return scaled_dot_product_attention(*x, mask, window=window, backend=backend).sin().sum()

        auto, reference = partial(total, "auto"), partial(total, "reference")
        slopes = torch.func.grad(auto, argnums=(0, 1, 2))(*inputs)
        for one, other in zip(slopes, torch.func.grad(reference, argnums=(0, 1, 2))(*inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        with pytest.raises(RuntimeError, match=r"differentiated once only|not implemented"):
            torch.func.grad(lambda q: torch.func.grad(auto)(q, *inputs[1:]).square().sum())(inputs[0])

    def test_gradients_for_each_sample(self):
        inputs = [torch.randn(3, 2, 24, 4, dtype=torch.float64) for _ in range(3)]

        def total(backend, *x):
            return scaled_dot_product_attention(*x, is_causal=True, backend=backend).sin().sum()

        got, want = (
            torch.func.vmap(
                torch.func.grad(partial(total, backend), argnums=(0, 1, 2)), in_dims=(0, 0, None)
            )(inputs[0], inputs[1], inputs[2][0])
            for backend in ("tiled", "reference")
        )
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)

    def test_nothing_as_large_as_the_weights_is_made(self):
        T = 2048
        inputs = [torch.randn(1, T, 8, requires_grad=True) for _ in range(3)]
        with Largest() as largest:
            answers("tiled", inputs, torch.ones(1, T, 8), is_causal=True)
        assert largest.numel <= max(128 * 1024, 256 * 256) < T * T / 8
        with Largest() as largest:
            answers("reference", inputs, torch.ones(1, T, 8), is_causal=True)
        assert largest.numel >= T * T

    def test_the_backward_pass_is_left_one_number_per_query(self):
        inputs, kept = draw((2,), 40, 50, 4, 4), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            scaled_dot_product_attention(*inputs, backend="tiled")
        known = {2 * 40 * 4, 2 * 50 * 4}
        others = [x.numel() for x in kept if x.numel() not in known]
        assert others == [2 * 40]

    def test_a_mask_changed_before_the_backward_pass_is_noticed(self):
        inputs, mask = draw((2,), 6, 6, 4, 4), torch.ones(6, 6, dtype=torch.bool)
        context = scaled_dot_product_attention(*inputs, mask, backend="tiled")
        mask.tril_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            context.sum().backward()

    def test_a_small_table_takes_a_small_tile(self):
        inputs = draw((64,), 2, 5, 4, 4)
        with Largest() as largest:
            answers("tiled", inputs, torch.ones(64, 2, 4))
        assert largest.numel <= 64 * 5 * 4  # the keys

    def test_under_autocast(self):
        inputs = [x.detach().float() for x in draw((2,), 6, 7, 4, 4)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = scaled_dot_product_attention(*inputs, backend="tiled")
        torch.testing.assert_close(got, scaled_dot_product_attention(*inputs, backend="reference"))


class TestTiles:
    @given(
        T_q=st.integers(0, 20), T_k=st.integers(0, 20), is_causal=st.booleans(),
        window=st.none() | st.integers(1, 25), rows=st.integers(1, 7), columns=st.integers(1, 7),
    )  # fmt: skip
    def test_every_pair_in_reach_is_visited_once_and_no_idle_tile(
        self, T_q, T_k, is_causal, window, rows, columns
    ):
        limit = T_q + T_k if window is None else window - 1
        tiles = tiled_module.Tiles(T_q, T_k, back=limit, ahead=0 if is_causal else limit)
        seen = torch.zeros(T_q, T_k, dtype=torch.int64)
        for i, blocks in tiles.visit(rows, columns):
            for j in blocks:
                scores_ = torch.zeros(1, i.stop - i.start, j.stop - j.start)
                some_blind = tiles.hide(scores_, i, j)
                allowed = scores_[0] == 0
                seen[i, j] += allowed
                assert some_blind or allowed.any(-1).all()  # never a blind query that was not told
        everything = torch.ones(T_q, T_k, dtype=torch.bool)
        if window is not None:
            everything = masks.window(T_q, T_k, window, is_causal=is_causal)
        elif is_causal:
            everything = masks.causal(T_q, T_k)
        assert torch.equal(seen, everything.long())

    def test_a_window_costs_its_width_not_the_length(self):
        def visited(T):
            tiles = tiled_module.Tiles(T, T, back=255, ahead=0)
            return sum(
                (i.stop - i.start) * (j.stop - j.start)
                for i, blocks in tiles.visit(*tiled_module.FORWARD)
                for j in blocks
            )

        assert visited(8192) / visited(4096) < 2.1
        assert visited(8192) < 8192 * (256 + 128)


class TestChoose:
    def test_auto_is_torchs_but_for_a_narrow_window(self):
        query, key, value = draw((1,), 64, 64, 4, 4)
        choose = lambda **options: kernels.choose(  # noqa: E731
            "auto",
            query,
            key,
            value,
            options.pop("attn_mask", None),
            **{"dropout_p": 0.0, "window": None} | options,
        )
        assert choose() == "fused"
        assert choose(window=16) == "windowed"
        assert choose(window=17) == "fused"
        assert choose(window=16, dropout_p=0.1) == "fused"
        learned = torch.zeros(64, 64, requires_grad=True)
        assert choose(window=16, attn_mask=learned) == "fused"

    def test_auto_agrees_with_the_definition_under_a_window(self):
        inputs = draw((2,), 40, 40, 4, 4)
        d_context = torch.randn(2, 40, 4, dtype=torch.float64)
        got = answers("auto", inputs, d_context, window=5)
        for one, other in zip(got, answers("reference", inputs, d_context, window=5), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)

    @pytest.mark.parametrize(
        "backend, options, says",
        [
            (
                "flash",
                {},
                "backend must be one of auto, fused, reference, tiled, windowed, triton, got 'flash'",
            ),
            ("windowed", {}, "backend='windowed' cannot do this: it needs a window"),
            ("tiled", {"dropout_p": 0.1}, "it has no dropout, got dropout_p=0.1"),
            ("triton", {"attn_mask": torch.ones(4, 4, dtype=torch.bool)}, "it takes no attn_mask"),
            ("triton", {}, "backend='triton' cannot do this"),
            ("tiled", {"attn_mask": torch.zeros(4, 4, requires_grad=True)}, "no gradient for attn_mask"),
        ],
    )
    def test_what_cannot_be_done_is_said(self, backend, options, says):
        inputs = torch.randn(3, 4, 6).unbind(0)  # no width of Triton's
        with pytest.raises(ValueError, match=says.replace("(", r"\(")):
            scaled_dot_product_attention(*inputs, backend=backend, **options)

    def test_a_mask_without_gradient_is_taken_where_none_is_wanted(self):
        inputs = torch.randn(3, 4, 6).unbind(0)
        learned = torch.zeros(4, 4, requires_grad=True)
        with torch.no_grad():
            got = scaled_dot_product_attention(*inputs, learned, backend="tiled")
        torch.testing.assert_close(got, scaled_dot_product_attention(*inputs))

    def test_importing_the_package_imports_no_triton(self):
        code = "import sys, attention_course.attention; sys.exit('triton' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestMerge:
    @given(
        T_q=st.integers(1, 4),
        sizes=st.lists(st.integers(0, 5), min_size=2, max_size=4),
        scale=st.sampled_from([1.0, 1e3]),
    )
    def test_parts_merge_to_the_whole(self, T_q, sizes, scale):
        values = scale * torch.randn(T_q, sum(sizes), dtype=torch.float64)
        value = torch.randn(sum(sizes), 3, dtype=torch.float64)
        parts = []
        for row, v in zip(values.split(sizes, 1), value.split(sizes), strict=True):
            out = torch.zeros(T_q, 3, dtype=torch.float64) if not row.shape[1] else row.softmax(-1) @ v
            parts.append(Partial(out, row.logsumexp(-1)))
        whole = parts[0]
        for part in parts[1:]:
            whole = merge(whole, part)
        if sum(sizes):
            torch.testing.assert_close(whole.out, values.softmax(-1) @ value)
            torch.testing.assert_close(whole.lse, values.logsumexp(-1))
        else:
            assert (whole.lse == -torch.inf).all() and (whole.out == 0).all()


class TestAdditive:
    @settings(max_examples=60)
    @given(
        leading=st.sampled_from([(), (2,), (2, 3)]),
        T_q=st.integers(0, 5),
        T_k=st.integers(0, 5),
        block=st.sampled_from([1, 12, 1 << 18]),
    )
    def test_equals_the_table_with_gradients(self, leading, T_q, T_k, block):
        usual, additive_module.BLOCK = additive_module.BLOCK, block
        try:
            query, key = (
                torch.randn(*leading, T, 4, dtype=torch.float64, requires_grad=True) for T in (T_q, T_k)
            )
            v = torch.randn(4, dtype=torch.float64, requires_grad=True)
            got = additive_scores(query, key, v)
            want = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() @ v
            torch.testing.assert_close(got, want, rtol=0, atol=1e-13)
            d = torch.randn_like(want)
            grads = [torch.autograd.grad(x, (query, key, v), d) for x in (got, want)]
            for one, other in zip(*grads, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        finally:
            additive_module.BLOCK = usual

    def test_broadcasts(self):
        query, key = torch.randn(3, 2, 4), torch.randn(5, 1, 6, 4)
        v = torch.randn(4)
        assert additive_scores(query, key, v).shape == (5, 3, 2, 6)

    def test_second_derivatives_by_differences(self):
        inputs = [
            torch.randn(*shape, dtype=torch.float64, requires_grad=True)
            for shape in ((2, 3, 4), (2, 2, 4), (4,))
        ]
        assert torch.autograd.gradcheck(additive_scores, inputs)
        assert torch.autograd.gradgradcheck(additive_scores, inputs)

    def test_a_table_and_blocks_are_differentiated_alike(self, monkeypatch):
        """By function as well, three times over, and for each of several samples."""
        q, k, v = (torch.randn(*shape, dtype=torch.float64) for shape in ((3, 2, 4), (3, 5, 4), (4,)))

        def total(q, k, v):
            return scores.additive_projected(q, k, v).sin().sum()

        def derivatives():
            grad, vmap = torch.func.grad, torch.func.vmap
            first = grad(total, argnums=(0, 1, 2))
            second = grad(lambda *x: sum(one.square().sum() for one in first(*x)), argnums=(0, 1, 2))
            third = grad(lambda *x: sum(one.square().sum() for one in second(*x)), argnums=(0, 1, 2))
            return (
                *first(q, k, v),
                *second(q, k, v),
                *third(q, k, v),
                vmap(grad(total), (0, 0, None))(q, k, v),
            )

        want = derivatives()
        monkeypatch.setattr(kernels, "BLOCKWISE", 0)
        monkeypatch.setattr(additive_module, "BLOCK", 12)
        for one, other in zip(derivatives(), want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)

    def test_a_large_table_is_never_built(self, monkeypatch):
        monkeypatch.setattr(additive_module, "BLOCK", 1 << 12)
        B, T_q, T_k, H = 4, 16, 32, 64
        monkeypatch.setattr(kernels, "BLOCKWISE", B * T_q * T_k * H)
        score = scores.Additive(8, 8, H)
        query, key = torch.randn(B, T_q, 8, requires_grad=True), torch.randn(B, T_k, 8, requires_grad=True)
        with Largest() as largest:
            score(query, key).sum().backward()
        assert largest.numel < B * T_q * T_k * H / 8
        blocked = query.grad.clone()
        monkeypatch.setattr(kernels, "BLOCKWISE", 1 << 30)
        query.grad = None
        with Largest() as largest:
            score(query, key).sum().backward()
        assert largest.numel >= B * T_q * T_k * H
        torch.testing.assert_close(blocked, query.grad)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
class TestRow:
    """A layer that shares one row's product among threads, beside ``nn.Linear`` with the same weights."""

    @staticmethod
    def pair(d_in, d_out, bias=True, dtype=torch.float32):
        ours = Linear(d_in, d_out, bias=bias, dtype=dtype)
        theirs = torch.nn.Linear(d_in, d_out, bias=bias, dtype=dtype)
        theirs.load_state_dict(ours.state_dict())
        return ours, theirs

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("shape", [(512,), (1, 512), (1, 1, 512)])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_one_row_is_shared_and_comes_out_the_same(self, shape, bias, dtype):
        ours, theirs = self.pair(512, 256, bias, dtype)
        x = torch.randn(shape, dtype=dtype)
        mine, yours = x.clone().requires_grad_(), x.clone().requires_grad_()
        with Operations() as seen:
            out = ours(mine)
        assert any("bmm" in name for name in seen.names)
        rounding = 2e-2 if dtype == torch.bfloat16 else 1e-5
        close = {"rtol": rounding, "atol": rounding}
        expected = theirs(yours)
        assert out.shape == expected.shape and out.dtype == dtype
        torch.testing.assert_close(out, expected, **close)
        d_out = torch.randn_like(out)
        gradients = torch.autograd.grad(out, (mine, *ours.parameters()), d_out)
        for one, other in zip(
            gradients, torch.autograd.grad(expected, (yours, *theirs.parameters()), d_out), strict=True
        ):
            torch.testing.assert_close(one, other, **close)

    @pytest.mark.parametrize(
        ("d_in", "d_out", "shape"),
        [(512, 256, (2, 512)), (512, 257, (1, 512)), (64, 64, (1, 64))],
        ids=["two rows", "does not divide", "small"],
    )
    def test_anything_else_is_left_to_torch(self, d_in, d_out, shape):
        ours, theirs = self.pair(d_in, d_out)
        x = torch.randn(shape)
        with Operations() as seen:
            out = ours(x)
        assert not any("bmm" in name for name in seen.names)
        assert torch.equal(out, theirs(x))

    def test_fewer_share_what_all_threads_do_not_divide(self):
        torch.set_num_threads(3)
        ours, theirs = self.pair(512, 256)
        x = torch.randn(1, 512)
        with Operations() as seen:
            out = ours(x)
        assert any("bmm" in name for name in seen.names)
        torch.testing.assert_close(out, theirs(x), rtol=1e-5, atol=1e-5)

    def test_one_thread_shares_nothing(self):
        torch.set_num_threads(1)
        ours, theirs = self.pair(512, 256)
        x = torch.randn(1, 512)
        assert torch.equal(ours(x), theirs(x))

    def test_a_wrong_width_is_refused_as_by_torch(self, unchecked):
        ours, _ = self.pair(512, 256)
        for wrong in (torch.randn(511), torch.randn(2, 256), torch.randn(512, 1)):
            with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|size mismatch"):
                ours(wrong)

    def test_a_model_is_spread_and_stays_as_it_is(self):
        model = gpt_like(16, 8, num_layers=1, d_model=8, num_heads=2, d_ff=16)
        theirs = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        assert len(theirs) == 7  # query, key, value, output; inner, outer; logits
        result = spread(model)
        assert all(type(module) is torch.nn.Linear for module in theirs)
        ours = [module for module in result.modules() if isinstance(module, torch.nn.Linear)]
        assert all(type(module) is Linear for module in ours)
        for mine, yours in zip(result.parameters(), model.parameters(), strict=True):
            assert mine is yours

    def test_generating_spreads(self):
        model = gpt_like(300, 8, num_layers=1, d_model=256, num_heads=2, d_ff=256).eval()
        with Operations() as seen:
            decoding.generate(model, torch.zeros(1, 1, dtype=torch.long), steps=2)
        assert any("bmm" in name for name in seen.names)

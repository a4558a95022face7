"""The Triton kernels: on a GPU where there is one, else in Triton's interpreter, on small inputs."""

import os
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which nothing has done yet

from attention_course import kernels, masks, scaled_dot_product_attention
from attention_course.kernels import triton as host
from attention_course.kernels.triton import supports, triton_attention

with_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(T_q, T_k, d, *, batch=1, heads=1, key_heads=None, dtype=torch.float32):
    key_heads = heads if key_heads is None else key_heads
    shapes = ((heads, T_q, d), (key_heads, T_k, d), (key_heads, T_k, d))
    return [torch.randn(batch, *shape).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def with_gradients(attention, tensors, slope, dtype=None, **options):
    """The context, and the gradients of its product with ``slope``."""
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in tensors]
    context = attention(*leaves, **options)
    return context, *torch.autograd.grad(context, leaves, slope.to(context.dtype))


def both(tensors, **options):
    """What the kernels give, and what the plain formula gives in float64 on the same numbers."""
    query, key, _ = tensors
    slope = torch.randn_like(query)
    mine = with_gradients(triton_attention, tensors, slope, **options)
    plain = with_gradients(
        scaled_dot_product_attention,
        tensors,
        slope,
        torch.float64,
        backend="reference",
        enable_gqa=query.shape[-3] != key.shape[-3],
        **options,
    )
    return mine, plain


def assert_equal(mine, plain, tolerance):
    for name, ours, theirs in zip(("context", "dq", "dk", "dv"), mine, plain, strict=True):
        assert ours.isfinite().all(), name
        torch.testing.assert_close(
            ours.double(), theirs, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@with_triton
class TestAgainstThePlainFormula:
    @pytest.mark.parametrize(
        ("T_q", "T_k", "d", "is_causal", "window"),
        [
            (32, 64, 16, False, None),  # whole blocks
            (37, 45, 32, False, None),  # ragged ones
            (64, 64, 16, True, None),
            (37, 37, 64, True, None),
            (20, 53, 16, True, None),  # the last queries of a longer text
            (53, 20, 16, True, None),  # the first queries see nothing
            (70, 70, 16, True, 9),
            (40, 40, 16, True, 1),
            (45, 80, 16, False, 5),
            (80, 45, 16, False, 7),  # here too
            (80, 45, 16, True, 40),
            (1, 40, 128, True, None),
            (40, 1, 16, False, None),
            (50, 50, 16, False, 500),
        ],
    )
    def test_forward_and_backward(self, T_q, T_k, d, is_causal, window):
        mine, plain = both(inputs(T_q, T_k, d), is_causal=is_causal, window=window)
        assert_equal(mine, plain, 1e-5)

    @pytest.mark.parametrize("scale", [0.0, 0.3, -0.3])
    def test_any_scale(self, scale):
        assert_equal(*both(inputs(20, 40, 16), scale=scale), 1e-5)

    @pytest.mark.parametrize("key_heads", [1, 2])
    def test_grouped_heads_read_their_own_keys(self, key_heads):
        tensors = inputs(20, 40, 16, batch=2, heads=4, key_heads=key_heads)
        assert_equal(*both(tensors, is_causal=True), 1e-5)

    def test_half_precision(self):
        tensors = inputs(40, 40, 32, dtype=torch.float16)
        mine, plain = both(tensors, is_causal=True)
        assert {x.dtype for x in mine} == {torch.float16}
        assert_equal(mine, plain, 4e-3)

    def test_scores_that_overflow_without_a_maximum(self):
        query, key, value = inputs(20, 40, 16)
        tensors = [(30 * query).detach(), (30 * key).detach(), value]
        mine, plain = both(tensors)
        torch.testing.assert_close(mine[0].double(), plain[0], rtol=1e-4, atol=1e-4)
        assert all(x.isfinite().all() for x in mine)

    def test_heads_may_lie_anywhere_in_memory(self):
        split = [torch.randn(2, 20, 3, 16, device=DEVICE).transpose(1, 2) for _ in range(3)]
        assert not split[0].is_contiguous()
        assert_equal(*both(split), 1e-5)

    def test_a_single_head_without_batch(self):
        query, key, value = (x[0, 0].detach() for x in inputs(20, 40, 16))
        expected = scaled_dot_product_attention(query, key, value, backend="reference")
        torch.testing.assert_close(triton_attention(query, key, value), expected, rtol=1e-5, atol=1e-5)


@with_triton
class TestWhatItSkipsAndKeeps:
    def test_blocks_nobody_sees_are_never_read(self):
        query, key, value = (x.detach() for x in inputs(120, 120, 16))
        options = {"is_causal": True, "window": 3}
        expected = triton_attention(query, key, value, **options)[..., 70:, :]
        key[..., :20, :], value[..., :20, :] = torch.nan, torch.nan  # read and masked, it would spread
        got = triton_attention(query, key, value, **options)[..., 70:, :]
        assert torch.equal(got, expected)

    def test_a_blind_query_gets_nothing_and_sends_nothing(self):
        query, key, value = inputs(50, 20, 16)
        context = triton_attention(query, key, value, is_causal=True)
        assert not context[..., :30, :].any() and context[..., 30:, :].any()
        context.square().sum().backward()
        assert not query.grad[..., :30, :].any()
        assert all(x.grad.isfinite().all() for x in (query, key, value))

    def test_one_number_per_query_is_kept(self):
        tensors, kept = inputs(60, 90, 16), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
            triton_attention(*tensors)
        sizes = sorted(x.numel() for x in kept)
        assert sizes == sorted([60, *(T * 16 for T in (60, 60, 90, 90))])

    def test_inputs_are_not_changed_and_bits_repeat(self):
        tensors = inputs(40, 40, 16)
        before = [x.clone() for x in tensors]
        slope = torch.randn_like(tensors[0])
        first, second = (with_gradients(triton_attention, tensors, slope) for _ in range(2))
        assert all(map(torch.equal, tensors, before)) and all(map(torch.equal, first, second))


@with_triton
def test_second_derivatives_are_refused():
    query, key, value = inputs(16, 32, 16)
    context = triton_attention(query, key, value)
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(context.sum(), query, create_graph=True)


def good():
    return [x.detach() for x in inputs(20, 20, 16)]


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda q, k, v: (q.double(), k.double(), v.double()), "float32, float16 or bfloat16"),
            (lambda q, k, v: (q, k, v.half()), "dtypes must be equal"),
            (lambda q, k, v: (q[..., :8], k[..., :8], v[..., :8]), "width"),
            (lambda q, k, v: (q, k, torch.cat((v, v), -1)), "width"),
            (lambda q, k, v: (torch.cat((q, q)), k, v), "leading dimensions"),
            (lambda q, k, v: (torch.cat((q, q, q), 1), *(torch.cat((x, x), 1) for x in (k, v))), "leading"),
            (lambda q, k, v: (q[..., :0, :], k, v), "at least one query"),
            (lambda q, k, v: (q, k[..., :0, :], v[..., :0, :]), "at least one"),
        ],
    )  # fmt: skip
    @with_triton
    def test_what_the_kernels_cannot_take(self, change, reason, unchecked):
        bad = change(*good())
        assert reason in supports(*bad)
        with pytest.raises(ValueError, match=reason):
            triton_attention(*bad)

    @with_triton
    def test_what_they_can(self):
        assert supports(*good()) is None

    @with_triton
    def test_the_interpreter_and_bfloat16(self, monkeypatch):
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        assert "bfloat16" in supports(*(x.bfloat16() for x in good()))

    @with_triton
    def test_the_cpu_without_the_interpreter(self, monkeypatch):
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        assert "CUDA" in supports(*(x.cpu() for x in good()))

    def test_a_triton_below_the_floor(self, monkeypatch):
        """torch 2.5 for CUDA brings Triton 3.1, which does not compile the kernels."""
        monkeypatch.setattr(host, "find_spec", lambda name: True)
        monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.1.0"))
        assert supports(*good()) == "Triton 3.6 or newer is needed, 3.1.0 is installed"
        pyproject = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
        (line,) = pyproject["project"]["optional-dependencies"]["triton"]
        assert f"triton>={'.'.join(map(str, host.OLDEST))};" in line

    def test_without_triton_only_its_use_fails(self, monkeypatch):
        monkeypatch.setattr(host, "find_spec", lambda name: None)
        assert supports(*good()) == "Triton is not installed"
        with pytest.raises(ImportError, match="pip install triton"):
            triton_attention(*good())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # Triton 3.9 says what 3.10 will change
@with_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("T_q", "T_k", "d", "is_causal", "window"),
    [(1024, 1024, 64, True, None), (1000, 1000, 128, False, None), (300, 777, 64, True, 100)],
)
def test_as_exact_as_torchs_own_on_a_gpu(dtype, T_q, T_k, d, is_causal, window):
    """No further from float64 than twice what torch's kernels are, forward and backward."""
    tensors = inputs(T_q, T_k, d, dtype=dtype)
    slope = torch.randn_like(tensors[0])
    options = {"is_causal": is_causal, "window": window}
    exact = with_gradients(
        scaled_dot_product_attention, tensors, slope, torch.float64, backend="reference", **options
    )
    mine = with_gradients(triton_attention, tensors, slope, **options)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        mask = masks.with_structure(None, *tensors[:2], **options)
        torchs = with_gradients(F.scaled_dot_product_attention, tensors, slope, attn_mask=mask)
    for ours, theirs, truth in zip(mine, torchs, exact, strict=True):
        off, off_torch = ((x.double() - truth).norm() / truth.norm() for x in (ours, theirs))
        assert off < 2 * off_torch + 1e-4


def test_it_is_named_among_the_backends():
    assert "triton" in kernels.BACKENDS

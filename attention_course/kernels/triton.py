"""Attention by this package's own Triton kernels: what calls them, and when they can be called."""

import math
import os
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attention_course.kernels.once import once

WIDTHS = (16, 32, 64, 128)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OLDEST = (3, 6)  # of Triton; what CUDA builds of older torches bring along does not compile the kernels
_LOG2_E = math.log2(math.e)
_UNLIMITED = 2**30  # positions; longer than any sequence


def supports(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Return why the kernels cannot take these inputs, or ``None`` if they can.

    Shapes as in ``triton_attention``. They run on a CUDA device and, slowly, in Triton's interpreter on
    the CPU, if ``TRITON_INTERPRET=1`` is set before anything imports Triton.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if find_spec("triton") is None:
        return "Triton is not installed"
    if query.device.type != "cuda" and not (interpreted and query.device.type == "cpu"):
        return "the tensors must be on a CUDA device (or TRITON_INTERPRET=1 be set before Triton is imported)"
    if query.dtype not in DTYPES or {key.dtype, value.dtype} != {query.dtype}:
        dtypes = f"{query.dtype}, {key.dtype}, {value.dtype}"
        return f"the dtypes must be equal, and float32, float16 or bfloat16, got {dtypes}"
    if interpreted and query.dtype == torch.bfloat16:
        return "Triton's interpreter does not compute with bfloat16"
    if query.shape[-1] not in WIDTHS or {key.shape[-1], value.shape[-1]} != {query.shape[-1]}:
        widths = f"{query.shape[-1]}, {key.shape[-1]}, {value.shape[-1]}"
        return f"query, key and value must have the same width, one of {WIDTHS}, got {widths}"
    *batch, heads = query.shape[:-2] or (1,)
    *key_batch, key_heads = key.shape[:-2] or (1,)
    if value.shape != key.shape or batch != key_batch or key_heads == 0 or heads % key_heads:
        shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        return f"the kernels do not broadcast leading dimensions, got {shapes}"
    if 0 in query.shape or 0 in key.shape:
        return "there must be at least one query and one key"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST:
        return f"Triton {'.'.join(map(str, OLDEST))} or newer is needed, {triton.__version__} is installed"
    return None


def triton_attention(
    query: Float[Tensor, "... T_q d"],
    key: Float[Tensor, "... T_k d"],
    value: Float[Tensor, "... T_k d"],
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
) -> Float[Tensor, "... T_q d"]:
    """Return the context of scaled dot-product attention, computed by ``kernels.flash``.

    Shapes: query [..., H, T_q, d], key and value [..., H_kv, T_k, d] -> [..., H, T_q, d], with H a
    multiple of H_kv and d in ``WIDTHS``. ``is_causal`` and ``window`` mean what they mean in ``masks``;
    blocks that nobody sees are skipped. The backward pass keeps one number per query, and is not itself
    differentiable. Raises an ``ImportError`` without Triton and a ``ValueError`` for inputs that
    ``supports`` refuses. Source: Dao 2023, algorithms 1 and 2.
    """
    reason = supports(query, key, value)
    if find_spec("triton") is None:
        raise ImportError(f"{reason}: backend 'triton' needs it (pip install triton), the others do not")
    if reason is not None:
        raise ValueError(f"backend 'triton' cannot take these inputs: {reason}")
    if window is not None and window < 1:
        raise ValueError(f"the window's size must be at least 1, got {window}")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    back = _UNLIMITED if window is None else window - 1
    ahead = 0 if is_causal else back
    return _Attention.apply(query, key, value, scale, back, ahead)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, back: int, ahead: int
    ) -> Tensor:
        from attention_course.kernels import flash

        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        context = torch.empty_like(query)
        lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
        sizes = _sizes(query, key, back, ahead)
        with torch.cuda.device_of(query):
            flash.forward[_programs(query, "BLOCK_Q")](
                query, key, value, context, lse, scale * _LOG2_E, **sizes
            )
        ctx.save_for_backward(query, key, value, context, lse)
        ctx.scale, ctx.sizes = scale, sizes
        return context

    @staticmethod
    @once
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        from attention_course.kernels import flash

        query, key, value, context, lse = ctx.saved_tensors
        slope = slope.contiguous()
        total = (slope.float() * context.float()).sum(-1)  # D: one number per query
        d_query, d_key, d_value = (torch.empty_like(x) for x in (query, key, value))
        inputs, scales = (query, key, value, slope, lse, total), (ctx.scale, ctx.scale * _LOG2_E)
        with torch.cuda.device_of(query):
            flash.backward_query[_programs(query, "BLOCK_Q")](*inputs, d_query, *scales, **ctx.sizes)
            flash.backward_key[_programs(key, "BLOCK_K")](*inputs, d_key, d_value, *scales, **ctx.sizes)
        return d_query, d_key, d_value, None, None, None


def _sizes(query: Tensor, key: Tensor, back: int, ahead: int) -> dict[str, int]:
    """The kernels' integers; those in capitals are compiled in."""
    group = query.shape[:-2].numel() // key.shape[:-2].numel()
    T_q, T_k, width = query.shape[-2], key.shape[-2], query.shape[-1]
    return {"T_q": T_q, "T_k": T_k, "GROUP": group, "BACK": back, "AHEAD": ahead, "D": width}


def _programs(tensor: Tensor, block: str) -> Any:
    """How many programs to start: one for each block of each head."""
    heads, T = tensor.shape[:-2].numel(), tensor.shape[-2]
    return lambda chosen: (heads * math.ceil(T / chosen[block]),)

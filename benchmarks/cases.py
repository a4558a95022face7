"""What is compared with what: each case makes its contenders, the taught code first, then its rival."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_course import decoding
from attention_course.attention import scaled_dot_product_attention
from attention_course.interop import from_torch
from attention_course.lab.experiments.cost import plain
from attention_course.masks import window as window_mask
from attention_course.scores import Additive
from attention_course.transformer import gpt_like

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Two contenders: ``make(device)`` returns {name: call}; the second is what one would use otherwise."""

    name: str
    what: str
    make: Callable[[str], dict[str, Call]]
    #: what first / second is to stay below, and the first one's extra MB; None where nothing was promised
    time: float | None = None
    megabytes: float | None = None
    #: the share of the second's extra memory that the first may take
    share: float | None = None
    #: so slow that fewer rounds must do
    rounds: int = 7
    #: of the products in one call, where their rate is to be told; the last contender is then torch's fastest
    operations: float | None = None
    #: where it runs; None means everywhere
    device: str | None = None


def _forward_only(call: Callable[..., Tensor], *inputs: Tensor) -> Call:
    def run() -> None:
        with torch.no_grad():
            call(*inputs)

    return run


def _both_ways(call: Callable[..., Tensor], *inputs: Tensor) -> Call:
    inputs = tuple(x.detach().clone().requires_grad_() for x in inputs)
    d_out = torch.randn_like(inputs[0])  # query, key and value are of one shape here

    def run() -> None:
        torch.autograd.grad(call(*inputs), inputs, d_out)

    return run


WAYS = {"forward": _forward_only, "forward and backward": _both_ways}


def _qkv(
    device: str, T: int, d: int = 64, dtype: torch.dtype = torch.float32, H: int = 8, B: int = 1
) -> list[Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(B, H, T, d, device=device, dtype=dtype, generator=generator) for _ in range(3)]


def _against_torch(backend: str, T: int, way: str, is_causal: bool) -> Callable[[str], dict[str, Call]]:
    def make(device: str) -> dict[str, Call]:
        inputs = _qkv(device, T)
        ours = partial(scaled_dot_product_attention, backend=backend, is_causal=is_causal)
        theirs = partial(F.scaled_dot_product_attention, is_causal=is_causal)
        return {backend: WAYS[way](ours, *inputs), "torch": WAYS[way](theirs, *inputs)}

    return make


def _windowed(T: int, w: int, way: str) -> Callable[[str], dict[str, Call]]:
    def make(device: str) -> dict[str, Call]:
        inputs = _qkv(device, T)
        mask = window_mask(T, T, w, is_causal=True, device=device)
        ours = partial(scaled_dot_product_attention, is_causal=True, window=w)
        theirs = partial(F.scaled_dot_product_attention, attn_mask=mask)
        return {"windowed": WAYS[way](ours, *inputs), "torch": WAYS[way](theirs, *inputs)}

    return make


class _ConcatenateAndLinear(nn.Module):
    """What tutorials write: repeat, concatenate, Linear, tanh, Linear."""

    def __init__(self, score: Additive) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat((score.query_weight, score.key_weight)).detach())
        self.v = nn.Parameter(score.v.detach())

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        pairs = (len(query), query.shape[1], key.shape[1], -1)
        both = torch.cat((query.unsqueeze(2).expand(pairs), key.unsqueeze(1).expand(pairs)), dim=-1)
        return (both @ self.weight).tanh() @ self.v


def _additive(device: str) -> dict[str, Call]:
    B, T_q, T_k, H = 32, 32, 256, 256
    torch.manual_seed(0)
    ours = Additive(H, H, H).to(device)
    theirs = _ConcatenateAndLinear(ours)
    query, key = (torch.randn(B, T, H, device=device, requires_grad=True) for T in (T_q, T_k))
    value = torch.randn(B, T_k, H, device=device)
    d_out = torch.randn(B, T_q, H, device=device)

    def run(score: nn.Module) -> None:
        context = score(query, key).softmax(-1) @ value
        torch.autograd.grad(context, (query, key, *score.parameters()), d_out)

    return {"additive": partial(run, ours), "concatenate": partial(run, theirs)}


def _multi_head(device: str) -> dict[str, Call]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(512, 8, batch_first=True).to(device)
    ours = from_torch(theirs)
    x, d_out = (torch.randn(32, 100, 512, device=device) for _ in range(2))
    x.requires_grad_()

    def run_ours() -> None:
        torch.autograd.grad(ours(x)[0], (x, *ours.parameters()), d_out)

    def run_theirs() -> None:
        torch.autograd.grad(theirs(x, x, x, need_weights=False)[0], (x, *theirs.parameters()), d_out)

    def run_default() -> None:
        torch.autograd.grad(theirs(x, x, x)[0], (x, *theirs.parameters()), d_out)

    return {"MultiHeadAttention": run_ours, "torch": run_default, "torch, no weights": run_theirs}


def _decoding(device: str) -> dict[str, Call]:
    torch.manual_seed(0)
    sizes = {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048}
    model = gpt_like(256, 512, **sizes).to(device).eval()  # 19.3 M parameters
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=device)

    def recompute() -> None:
        tokens = prompt
        with torch.no_grad():
            while tokens.shape[1] < 512:
                tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)

    return {"cache": lambda: decoding.generate(model, prompt, steps=511), "recompute": recompute}


#: tokens in all and width of all heads together, as FlashAttention-2 was measured (Dao 2023, section 4.1)
TOKENS, WIDTH = 16_384, 2048


def _triton(
    T: int, d: int, way: str, is_causal: bool, dtype: torch.dtype = torch.bfloat16
) -> Callable[[str], dict[str, Call]]:
    def make(device: str) -> dict[str, Call]:
        inputs = _qkv(device, T, d, dtype, H=WIDTH // d, B=TOKENS // T)
        ours = partial(scaled_dot_product_attention, backend="triton", is_causal=is_causal)
        theirs = partial(F.scaled_dot_product_attention, is_causal=is_causal)

        def flash(*tensors: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return theirs(*tensors)

        calls = {"triton": ours, "FlashAttention-2": flash, "torch": theirs}
        return {name: WAYS[way](call, *inputs) for name, call in calls.items()}

    return make


def _operations(T: int, way: str, is_causal: bool) -> float:
    """4 T² d forward for each head, 2.5 times as much backward, half of it under a causal mask."""
    return 4.0 * TOKENS * T * WIDTH * (3.5 if "and" in way else 1.0) * (0.5 if is_causal else 1.0)


def _naive_against_torch(T: int, way: str, is_causal: bool) -> Callable[[str], dict[str, Call]]:
    def make(device: str) -> dict[str, Call]:
        inputs = _qkv(device, T)
        theirs = partial(F.scaled_dot_product_attention, is_causal=is_causal)
        return {
            "naive": WAYS[way](partial(plain, is_causal=is_causal), *inputs),
            "torch": WAYS[way](theirs, *inputs),
        }

    return make


FUSED = [
    Case(
        f"fused-{T}{'-causal' if is_causal else ''}{'-backward' if 'and' in way else ''}",
        f"fused, T={T}{', causal' if is_causal else ''}, {way}",
        _against_torch("fused", T, way, is_causal),
        time=1.02,
        rounds=40 if T < 4096 else 6,
    )
    for T in (256, 1024, 4096, 8192)
    for is_causal in (False, True)
    for way in WAYS
]
TILED = [
    Case(
        f"tiled-{T}{'-backward' if 'and' in way else ''}",
        f"tiled, T={T}, causal, {way}",
        _against_torch("tiled", T, way, True),
        time=promised if T == 8192 else None,
        megabytes=memory if T == 8192 else None,
        rounds=5,
    )
    for T in (1024, 8192)
    for way, promised, memory in zip(WAYS, (1.35, 1.25), (50, 140), strict=True)
]
NAIVE = [
    Case(
        f"naive-{T}{'-causal' if is_causal else ''}{'-backward' if 'and' in way else ''}",
        f"naive, T={T}{', causal' if is_causal else ''}, {way}",
        _naive_against_torch(T, way, is_causal),
        rounds=3,
    )
    for T in (1024, 4096)
    for is_causal in (False, True)
    for way in WAYS
]
WINDOWED = [
    Case(
        f"windowed-{T}{'-backward' if 'and' in way else ''}",
        f"windowed, T={T}, w=256, {way}",
        _windowed(T, 256, way),
        time=1 / 8,
        rounds=3,
    )
    for T in (8192,)
    for way in WAYS
]
OTHERS = [
    Case(
        "additive",
        "additive, B=32 T_q=32 T_k=256 H=256, forward and backward",
        _additive,
        time=1 / 5,
        share=1 / 6,
    ),
    Case(
        "multi-head",
        "MultiHeadAttention, B=32 T=100 d=512 h=8, forward and backward",
        _multi_head,
        time=1.0,
        share=1 / 2,
    ),
    Case("decoding", "512 tokens, 6 layers, d=512", _decoding, time=1 / 12, rounds=1),
]
TRITON = [
    Case(
        f"triton-{d}-{T}{'-causal' if is_causal else ''}{'-backward' if 'and' in way else ''}",
        f"triton, bfloat16, d={d}, T={T}{', causal' if is_causal else ''}, {way}",
        _triton(T, d, way, is_causal),
        time=1.0,
        operations=_operations(T, way, is_causal),
        device="cuda",
    )
    for d in (64, 128)
    for T in (2048, 4096, 8192, 16_384)
    for is_causal in (False, True)
    for way in WAYS
]
CASES = {case.name: case for case in (*FUSED, *TILED, *WINDOWED, *NAIVE, *OTHERS, *TRITON)}

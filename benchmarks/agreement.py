"""Do all kernels give the same answer?

    python benchmarks/agreement.py [--device cuda]

Prints, for every kernel and dtype, the worst error of the context and of the gradients of query, key
and value against the definition in float64, relative to the largest entry there, over inputs of many
shapes: full, causal, with a window, with more keys than queries.
"""

import argparse
import itertools
import os

import torch
from torch import Tensor

from attention_course.attention import scaled_dot_product_attention

BACKENDS = ("reference", "fused", "tiled", "windowed", "triton")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LENGTHS = ((64, 64), (300, 300), (70, 333), (1, 257))
RESULTS = ("context", "d query", "d key", "d value")


def answers(backend: str, inputs: list[Tensor], d_context: Tensor, **options: object) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in inputs]
    context = scaled_dot_product_attention(*inputs, backend=backend, **options)
    return [context, *torch.autograd.grad(context, inputs, d_context)]


def worst(backend: str, dtype: torch.dtype, device: str) -> list[float] | str:
    """The worst relative error of each of ``RESULTS``, or why the kernel does not take this."""
    errors = torch.zeros(len(RESULTS), dtype=torch.float64)
    structures = itertools.product(LENGTHS, (False, True), (None, 40))
    for number, ((T_q, T_k), is_causal, window) in enumerate(structures):
        if backend == "windowed" and window is None:
            continue
        generator = torch.Generator().manual_seed(number)
        tensors = [
            torch.randn(2, 4, T, 32, generator=generator, dtype=torch.float64) for T in (T_q, T_k, T_k, T_q)
        ]
        *inputs, d_context = (x.to(device, dtype) for x in tensors)
        options = {"is_causal": is_causal, "window": window}
        try:
            got = answers(backend, inputs, d_context, **options)
        except (ValueError, ImportError) as error:
            return str(error).rpartition(": ")[2]
        # The same rounded inputs, summed in float64: the kernel is measured, not the rounding of inputs.
        want = answers("reference", [x.double() for x in inputs], d_context.double(), **options)
        for i, (result, exact) in enumerate(zip(got, want, strict=True)):
            error = (result.double() - exact).abs().max() / exact.abs().max()
            errors[i] = torch.maximum(errors[i], error.detach().cpu())  # keeps a NaN, as max() does not
    return errors.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton
    print(f"torch {torch.__version__}, {device}; worst error relative to the largest entry")
    print(f"{'':10} {'':9} " + " ".join(f"{result:>9}" for result in RESULTS))
    for backend, dtype in itertools.product(BACKENDS, DTYPES):
        found = worst(backend, dtype, device)
        text = found if isinstance(found, str) else " ".join(f"{error:9.1e}" for error in found)
        print(f"{backend:10} {str(dtype).removeprefix('torch.'):9} {text}", flush=True)


if __name__ == "__main__":
    main()

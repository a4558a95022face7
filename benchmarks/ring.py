"""Ring attention over the processes that torchrun has started: is it exact, and what does it take?

    torchrun --nproc-per-node 4 benchmarks/ring.py
    torchrun --nproc-per-node 4 benchmarks/ring.py --lengths 2048 4096 8192

Every process computes with one thread. The peer is torch's own fused attention over the whole sequence,
in one process, with one thread.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F

from attention_course import ring
from attention_course.lab.experiments import machines
from attention_course.lab.measure.memory import LiveBytes, of_process
from attention_course.ring import ring_attention

HEADS, WIDTH = 4, 64


def say(text: str = "") -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def everybody(number: float) -> list[float]:
    """What each process says, in the order of their ranks."""
    own = torch.tensor([number], dtype=torch.float64)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    return [scalar.item() for scalar in gathered]


def worst(number: float) -> float:
    """The largest of what all processes say, or NaN if one of them does, which max() might lose."""
    return torch.tensor(everybody(number), dtype=torch.float64).max().item()


def drawn(T: int, dtype: torch.dtype, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, HEADS, T, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
        for _ in range(number)
    ]


def exactness(T: int) -> None:
    say(f"Worst difference from torch in float64 on one process, T = {T}, as a share of the largest entry")
    say(f"{'':34}{'context':>10}{'d query':>10}{'d key':>10}{'d value':>10}")
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for is_causal in (False, True):
            for zigzag in (False, True):
                *tensors, d_out = drawn(T, dtype, 4)
                leaves = [tensor.double().requires_grad_() for tensor in tensors]
                out = F.scaled_dot_product_attention(*leaves, is_causal=is_causal)
                wanted = [out, *torch.autograd.grad(out, leaves, d_out.double())]
                shards = [
                    ring.shard(tensor, rank, world, zigzag=zigzag).requires_grad_() for tensor in tensors
                ]
                out = ring_attention(*shards, is_causal=is_causal, zigzag=zigzag)
                gradients = torch.autograd.grad(out, shards, ring.shard(d_out, rank, world, zigzag=zigzag))
                errors = []
                for result, whole in zip((out, *gradients), wanted, strict=True):
                    part = ring.shard(whole, rank, world, zigzag=zigzag)
                    errors.append(worst((result - part).abs().max().item()) / whole.abs().max().item())
                name = f"{str(dtype)[6:]}, {'causal' if is_causal else 'full'}"
                name += f", {'zigzag' if zigzag else 'contiguous'}"
                say(f"{name:34}" + "".join(f"{error:10.1e}" for error in errors))


def forward_and_backward(T: int, dtype: torch.dtype, **options: bool) -> tuple[float, float]:
    """Seconds by the clock and of the processor; each process draws its own part and never sees the whole."""
    torch.manual_seed(dist.get_rank())
    n = T // dist.get_world_size()
    *leaves, d_out = (torch.randn(1, HEADS, n, WIDTH, dtype=dtype) for _ in range(4))
    leaves = [leaf.requires_grad_() for leaf in leaves]
    dist.barrier()
    clock, processor = time.perf_counter(), time.process_time()
    ring_attention(*leaves, **options).backward(d_out)
    return time.perf_counter() - clock, time.process_time() - processor


def memory(lengths: list[int]) -> None:
    world = dist.get_world_size()
    say(f"\nPeak memory of one process, forward and backward, float32, {HEADS} heads of {WIDTH}; MiB")
    say(f"The process as a whole held {max(everybody(of_process('VmHWM'))) / 2**20:.0f} before.")
    say(f"{'T':>8}{'tensors':>10}{'whole process':>16}{'own q, k, v':>14}{'all scores, once':>19}")
    for T in sorted(lengths):  # the system's peak never falls
        with LiveBytes() as live:
            forward_and_backward(T, torch.float32, is_causal=True, zigzag=True)
        own = 3 * 4 * HEADS * WIDTH * T // world
        whole = of_process("VmHWM")
        numbers = [max(everybody(n)) / 2**20 for n in (live.peak, whole, own, 4 * HEADS * T * T)]
        say(f"{T:8}{numbers[0]:10.1f}{numbers[1]:16.0f}{numbers[2]:14.1f}{numbers[3]:19.1f}")


def sent(T: int) -> None:
    world = dist.get_world_size()
    say(f"\nBytes that each process sends, T = {T}, {HEADS} heads of {WIDTH}; MiB")
    for dtype in (torch.float32, torch.bfloat16):
        with machines.SentBytes() as traffic:
            forward_and_backward(T, dtype, is_causal=True, zigzag=True)
        numbers = ", ".join(f"{n / 2**20:.2f}" for n in everybody(traffic.bytes))
        say(f"{str(dtype)[6:]:10} forward and backward: {numbers} (P = {world})")


def balance(T: int) -> None:
    world = dist.get_world_size()
    say(f"\nCausal work per process, T = {T}: pairs scored in thousands, seconds of its processor")
    for zigzag in (False, True):
        pairs = ring.work(world, T, is_causal=True, zigzag=zigzag)
        seconds = everybody(forward_and_backward(T, torch.float32, is_causal=True, zigzag=zigzag)[1])
        steps = pairs.amax(0).sum().item()
        say(
            f"{'zigzag' if zigzag else 'contiguous'}: if each step waits for the slowest, {steps / 1000:,.0f}"
        )
        for rank in range(world):
            say(f"  process {rank}: {pairs[rank].sum() / 1000:9,.0f} pairs {seconds[rank]:8.2f} s")


def speed(T: int) -> None:
    world = dist.get_world_size()
    say(f"\nSeconds forward and backward, causal, float32, T = {T}; {os.cpu_count()} processor cores")
    alone = float("nan")
    if dist.get_rank() == 0:
        *leaves, d_out = drawn(T, torch.float32, 4)
        leaves = [leaf.requires_grad_() for leaf in leaves]
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            F.scaled_dot_product_attention(*leaves, is_causal=True).backward(d_out)
            seconds.append(time.perf_counter() - start)
        alone = min(seconds)
    alone = everybody(alone)[0]
    say(f"{'torch, one process':24}{alone:8.2f}   (each the quickest of three)")
    for zigzag in (False, True):
        seconds = []
        for _ in range(3):
            clock, _processor = forward_and_backward(T, torch.float32, is_causal=True, zigzag=zigzag)
            seconds.append(max(everybody(clock)))
        name = f"ring of {world}, {'zigzag' if zigzag else 'contiguous'}"
        say(f"{name:24}{min(seconds):8.2f}   {min(seconds) / alone:5.1f} x torch on one process")


def peer(T: int) -> None:
    say(f"\ntorch's own context parallelism on this device, causal, T = {T}")
    query, key, value = drawn(T, torch.float32, 3)
    verdict = machines.context_parallel(query, key, value, True)
    if isinstance(verdict, str):
        say(f"  does not run: {verdict}")
        return
    want = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    say(f"  runs; worst difference from one process {worst((verdict - want).abs().max().item()):.1e}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096], metavar="T")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with: torchrun --nproc-per-node 4 benchmarks/ring.py")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    parts: list[Callable[[], None]] = [
        lambda: exactness(512 - 512 % (2 * dist.get_world_size())),
        lambda: memory(options.lengths),
        lambda: sent(options.lengths[-1]),
        lambda: balance(options.lengths[-1]),
        lambda: speed(options.lengths[-1]),
        lambda: peer(options.lengths[0]),
    ]
    for part in parts:
        part()
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())

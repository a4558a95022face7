"""Times as ratios within one run, and memory in a process of its own."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attention_course.lab.measure.memory import of_process

Call = Callable[[], object]
#: what ``roofline`` calls the rate that kernels in bfloat16 are held against
NARROW = "square product in bfloat16, GFLOP/s"


def seconds(
    calls: dict[str, Call], *, device: str, at_least: float = 1.0, rounds: int = 7
) -> tuple[dict[str, float], float]:
    """Return the median seconds of each call, and the median over rounds of first / second.

    The calls take turns, so that a slow moment slows all of them; a ratio is taken within a round. Every
    other round goes backwards, so that none profits from its place behind another. A round runs each
    call as often as fills ``at_least / rounds`` seconds, and counts its mean.
    """
    repeats = {}
    for name, call in calls.items():
        _timed(call, 1, device)  # the first call fills caches and reserves memory
        once = _timed(call, 1, device)
        repeats[name] = max(1, round(at_least / rounds / once))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in reversed(calls) if number % 2 else calls:
            taken[name].append(_timed(calls[name], repeats[name], device))
    ours, rival, *_ = taken.values()
    ratios = [first / second for first, second in zip(ours, rival, strict=True)]
    return {name: statistics.median(values) for name, values in taken.items()}, statistics.median(ratios)


def _timed(call: Call, repeats: int, device: str) -> float:
    _finish(device)
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    _finish(device)
    return (time.perf_counter() - began) / repeats


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def extra_megabytes(call: Call, *, device: str) -> float:
    """Return how far the memory of this process rose above what it held, while ``call`` ran once, in MB.

    On a CPU that is the peak of the resident pages, which the operating system counts, less those of
    the program's own code that were first needed here; call it in a fresh process. On a GPU it is
    torch's own count.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
    before = of_process("VmRSS") - of_process("RssFile")
    call()
    return (of_process("VmHWM") - of_process("RssFile") - before) / 1e6


def in_a_process(program: str, *arguments: str, **environment: str) -> str:
    """Return the last line that ``program`` prints when it is run alone with ``arguments``."""
    process = subprocess.run(
        [sys.executable, program, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{process.stderr[-2000:]}")
    return process.stdout.splitlines()[-1]


def roofline(device: str) -> dict[str, float]:
    """Return what this machine can do: GFLOP/s of two kinds of products, GB/s of a copy."""
    n = 2048 if device == "cpu" else 8192
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    out = torch.empty_like(a)
    q, k = (torch.randn(8, 1024, 64, device=device) for _ in range(2))
    s = torch.empty(8, 1024, 1024, device=device)
    big, copy = (torch.zeros(1 << 26, device=device) for _ in range(2))
    calls = {
        "square": lambda: torch.mm(a, b, out=out),
        "scores": lambda: torch.bmm(q, k.mT, out=s),
        "copy": lambda: copy.copy_(big),
    }
    if device == "cuda":
        narrow = a.bfloat16(), b.bfloat16()
        calls["narrow"] = lambda: torch.mm(*narrow)
    taken, _ = seconds(calls, device=device)
    rates = {NARROW: 2 * n**3 / taken["narrow"] / 1e9} if "narrow" in taken else {}
    return rates | {
        "square product, GFLOP/s": 2 * n**3 / taken["square"] / 1e9,
        "scores of 8 heads of 64, GFLOP/s": 2 * s.numel() * 64 / taken["scores"] / 1e9,
        "copy, GB/s read and written": 2 * big.numel() * 4 / taken["copy"] / 1e9,
    }

"""On which machine something was measured: seconds and accuracies mean little without it."""

import os
import platform
from functools import cache
from pathlib import Path

#: variables of the environment that give the same call other numbers: seeds moved, other instructions
MOVES = (
    "ATTENTION_COURSE_SEED_OFFSET",
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
)


@cache
def processor() -> str:
    """Return the processor's name as the system tells it, or at least its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf8")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return " ".join(value.replace("(R)", "").replace("(TM)", "").split())
    return platform.processor() or platform.machine() or "an unknown processor"


def cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

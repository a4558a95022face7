"""Answers of long runs on disk: the book is executed to be read, then once more to be tested.

Only the Makefile asks for this. While building, ``ATTENTION_COURSE_KEEP_RUNS`` names the folder where
answers are put; while testing, ``ATTENTION_COURSE_REUSE_RUNS`` the one where they are looked for. A
build never reads, so its measured seconds are real. A run is named by its arguments, the package's
own source and the versions beneath it; whatever differs means that it is run again.
"""

import functools
import hashlib
import os
import sys
from pathlib import Path

import numpy
import torch

KEEP, REUSE = "ATTENTION_COURSE_KEEP_RUNS", "ATTENTION_COURSE_REUSE_RUNS"


def reused(call: bytes) -> bytes | None:
    """Return the answer kept for ``call``, a pickled run, or ``None`` if there is none to be had."""
    folder = os.environ.get(REUSE)
    if not folder:
        return None
    try:
        return _path(folder, call).read_bytes()
    except FileNotFoundError:
        return None


def keep(call: bytes, answer: bytes) -> None:
    """Keep ``answer`` for ``call`` where somebody asked for it."""
    folder = os.environ.get(KEEP)
    if not folder:
        return
    path = _path(folder, call)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(answer)
    unfinished.replace(path)  # at once: nobody sees half an answer


def _path(folder: str, call: bytes) -> Path:
    return Path(folder) / f"{hashlib.sha256(_surroundings() + call).hexdigest()[:32]}.pickle"


@functools.cache
def _surroundings(package: Path = Path(__file__).parents[1]) -> bytes:
    """What else an answer depends on: the package's source, Python, torch, numpy."""
    result = hashlib.sha256(f"{sys.version} {torch.__version__} {numpy.__version__}".encode())
    for path in sorted(package.rglob("*.py")):
        result.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return result.digest()

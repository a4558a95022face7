"""Answers of long runs on disk: the book is executed to be read, and may be executed once more to be tested.

Only the Makefile asks for this. While building, ``ATTENTION_COURSE_KEEP_RUNS`` names the folder where
answers are put; while testing, ``ATTENTION_COURSE_REUSE_RUNS`` the one where they are looked for. A
build never reads, so its measured seconds are real. A run is named by its arguments, the source that its
function and its arguments can reach, what moves seeds and arithmetic, the processor, and the versions
beneath; whatever differs means that it is run again.
"""

import functools
import hashlib
import os
import pickletools
import sys
from pathlib import Path

import numpy
import torch

from attention_course.lab.measure import machine
from attention_course.lab.train import closure

KEEP, REUSE = "ATTENTION_COURSE_KEEP_RUNS", "ATTENTION_COURSE_REUSE_RUNS"
PACKAGE = Path(__file__).parents[2]


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
    named = hashlib.sha256(_surroundings(_modules(call)).encode() + call)
    return Path(folder) / f"{named.hexdigest()[:32]}.pickle"


def _modules(call: bytes) -> frozenset[str]:
    """The package's modules that a pickled call names: its function's, and those of its arguments."""
    words = (argument for _, argument, _ in pickletools.genops(call) if isinstance(argument, str))
    # an old protocol puts module and name into one string
    names = (word.split(" ")[0] for word in words)
    return frozenset(name for name in names if name.split(".")[0] == PACKAGE.name)


@functools.cache
def _surroundings(modules: frozenset[str], package: Path = PACKAGE) -> str:
    """What else an answer depends on: the source behind ``modules``, machine, Python, torch, numpy."""
    moved = [os.environ.get(name) for name in machine.MOVES]
    versions = (sys.version, torch.__version__, numpy.__version__, machine.processor())
    files = closure.files_behind_names(modules, package)
    return closure.digest(files, package, *versions, *map(repr, moved))

"""A process that has torch imported and knows nothing: it is forked for every submission.

Run as a program by :mod:`attention_course.grading.remote`, with the number of its socket and the
modules to import beforehand. The course's own answers are never imported here: its packages are made
without running their ``__init__``, and inside the sandbox their path leads to :data:`sandbox.COURSE`.
"""

import contextlib
import importlib
import importlib.machinery
import json
import os
import random
import signal
import socket
import sys
import types
from pathlib import Path

#: what is loaded from the course: the code of the sandbox's own side
_OURS = tuple(f"attention_course.grading.{name}" for name in ("child", "sandbox"))
_PACKAGES = tuple(f"attention_course{below}" for below in ("", ".checks", ".checks.engine", ".grading"))


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    _import(sys.argv[2:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the grader
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    control.sendall(b"r")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not request:
            return
        process = os.fork()
        if process == 0:
            _sandboxed(json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _import(modules: list[str]) -> None:
    folder = Path(__file__).parents[1]
    for name in _PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
        parent, _, own = name.rpartition(".")
        if parent:  # as after an import: attention_course.checks.check(...) is found
            setattr(sys.modules[parent], own, package)
    for name in _OURS:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)  # a forked process cannot use its parent's threads
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _sandboxed(request: dict, holder: int, channel: int, status: int) -> None:
    """The fork: enters the sandbox, has the child that runs the notebook, and tells how it ended."""
    ended = "the sandbox could not be entered"
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        from attention_course.grading import sandbox

        if request["safe"]:
            sandbox.enter(holder, request["user"] is None)
        process = os.fork()
        if process == 0:
            os.close(status)
            _notebook(request, channel)
        os.close(channel)
        os.write(status, f"started {process}\n".encode())
        _, code = os.waitpid(process, 0)
        ended = str(os.waitstatus_to_exitcode(code))
    except BaseException as error:
        ended = f"{type(error).__name__}: {error}"
    finally:
        with contextlib.suppress(OSError):
            os.write(status, ended.encode()[:1000])
        os._exit(0)


def _notebook(request: dict, number: int) -> None:
    code = 70
    try:
        from attention_course.grading import child, sandbox

        silence = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        os.dup2(number, 3)
        os.closerange(4, 1 << 16)
        channel = socket.socket(fileno=3)
        limits = sandbox.Limits(**request["limits"])
        os.setsid()
        _forget(request["course"])
        if request["safe"]:
            sandbox.confine(request["user"], limits)
        os.environ.clear()
        os.environ.update(
            HOME="/tmp", TMPDIR="/tmp", USER="learner", PATH="/usr/bin:/bin", LANG="C.UTF-8",
            MPLBACKEND="Agg", MPLCONFIGDIR="/tmp", OMP_NUM_THREADS="1",
            TORCHDYNAMO_DISABLE="1",  # there is no compiler inside
        )  # fmt: skip
        child.serve(channel)
        code = 0
    except BaseException:
        code = 71
    finally:
        os._exit(code)


def _forget(course: str) -> None:
    """No trace of where the grader lives; the same random numbers for everybody."""
    import numpy
    import torch

    for name, package in list(sys.modules.items()):
        if name in _PACKAGES:
            package.__path__ = ["/".join([course, *name.split(".")[1:]])]
    sys.path[:] = [path for path in sys.path if "attention_course" not in path]
    sys.argv = [""]
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


if __name__ == "__main__":
    main()

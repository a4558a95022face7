"""Several processes that talk to each other through ``torch.distributed``, for the length of one call."""

import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import connection, get_context
from typing import Any

import torch
import torch.distributed as dist

#: what torch imports late, at the first backward pass from a given gradient and in dispatch modes
_SLOW = ("torch.fx.experimental.symbolic_shapes", "torch._dynamo")
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def together(
    function: Callable[..., Any],
    per_process: Sequence[tuple[Any, ...]],
    *,
    backend: str = "gloo",
    timeout: float = 60.0,
) -> list[Any]:
    """Return ``[function(*arguments) for arguments in per_process]``, each in a process of its own.

    The processes run at the same time, with one thread each, and form the default group of
    ``torch.distributed``: process r gets ``per_process[r]``, and with the ``backend`` "nccl" GPU
    number r. ``function`` must be importable, not defined in a notebook. When one fails or ``timeout``
    seconds have passed, all are ended and a ``RuntimeError`` says why. A script must call this behind
    ``if __name__ == "__main__":``.
    """
    # A fork server imports torch once, before any thread runs; its children then start in an instant.
    # Where there is none (Windows), each process imports torch anew.
    method = "forkserver" if os.name == "posix" else "spawn"
    context = get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__, function.__module__, *_SLOW])
    world = len(per_process)
    with tempfile.TemporaryDirectory() as folder:
        # Pickled by hand, tensors travel as bytes; else torch would put them in shared memory.
        calls = [pickle.dumps((function, arguments)) for arguments in per_process]
        ends, processes = [], []
        try:
            for rank, call in enumerate(calls):
                mine, theirs = context.Pipe(duplex=False)
                setting = (backend, rank, world, folder, timeout)
                process = context.Process(target=_work, args=(theirs, call, *setting), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()
                ends.append(mine)
            return _answers(ends, timeout)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()


def _answers(ends: list[connection.Connection], timeout: float) -> list[Any]:
    until, answers = time.monotonic() + timeout, {}
    while len(answers) < len(ends):
        open_ends = [end for end in ends if end not in answers]
        ready = connection.wait(open_ends, max(0.0, until - time.monotonic()))
        if not ready:
            late = [rank for rank, end in enumerate(ends) if end not in answers]
            raise RuntimeError(f"after {timeout:g} s there is no answer from rank {late}")
        for end in ready:
            rank = ends.index(end)
            try:
                failed, content = pickle.loads(end.recv_bytes())
            except (EOFError, OSError):  # nothing, or half of it
                raise RuntimeError(f"the process of rank {rank} ended without an answer") from None
            if failed:
                raise RuntimeError(f"rank {rank} failed:\n{content}")
            answers[end] = content
    return [answers[end] for end in ends]


def _work(
    end: connection.Connection,
    call: bytes,
    backend: str,
    rank: int,
    world: int,
    folder: str,
    timeout: float,
) -> None:
    torch.set_num_threads(1)
    if sys.platform in _LOOPBACK:  # nothing has to leave this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    if backend == "nccl":
        torch.cuda.set_device(rank)
    try:
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/meeting-point",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout),
        )
        function, arguments = pickle.loads(call)
        answer = pickle.dumps((False, function(*arguments)))
        dist.barrier()  # whoever leaves early would break the others' connections
        dist.destroy_process_group()
    except Exception:
        answer = pickle.dumps((True, traceback.format_exc()))
    end.send_bytes(answer)
    end.close()

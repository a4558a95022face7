"""One training loop for the whole book, and a way to run several trainings side by side."""

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm.auto import tqdm

from attention_course.device import moved
from attention_course.lab.measure.machine import cores
from attention_course.lab.train import store

Loss = Callable[[nn.Module, Any], Float[Tensor, ""]]


@dataclass
class History:
    """What a training run leaves behind: the loss of every step, and the seconds it took."""

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0


def schedule(step: int, steps: int, *, warmup: int = 50, final: float = 0.02) -> float:
    """Return the factor on the learning rate: up over ``warmup`` steps, level to the half, then down.

    From the half on it falls linearly to ``final``.
    """
    rise = min(1.0, (step + 1) / max(warmup, 1))
    fall = min(1.0, 2 * (1 - step / steps))
    return rise * (final + (1 - final) * fall)


def train(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    *,
    steps: int,
    learning_rate: float,
    seed: int = 0,
    warmup: int = 50,
    clip: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.98),
    device: torch.device | str | None = None,
) -> History:
    """Train ``model`` in place with Adam and return its history.

    ``loss(model, batch)`` gives the number to make small. Gradients are clipped to norm ``clip``;
    the learning rate follows ``schedule``. ``seed`` fixes what is drawn while training (dropout);
    the model's first weights and the order of ``batches`` are the caller's. With a ``device``
    (``best_device()``) the model moves there and every batch follows; the book's models are so small
    that they stay where they are. Raises a ``ValueError`` when ``batches`` ends before ``steps``, or
    when the loss is no longer finite.
    """
    torch.manual_seed(seed)
    if device is not None:
        model.to(device)
        batches = (moved(batch, device) for batch in batches)
    # Fused: one pass over each weight. The default's many passes take a tenth of a small model's step.
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=betas, fused=True)
    history, began = History(), time.perf_counter()
    model.train()
    batch = iter(batches)
    for step in progress(range(steps), "training"):
        try:
            value = loss(model, next(batch))
        except StopIteration:
            raise ValueError(f"batches ended after {step} of steps={steps}") from None
        if not value.isfinite():
            raise ValueError(f"loss must stay finite, got {value.item()} at step {step}")
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * schedule(step, steps, warmup=warmup)
        optimiser.step()
        history.losses.append(value.item())
    model.eval()
    history.seconds = time.perf_counter() - began
    return history


def side_by_side(
    function: Callable[..., Any], jobs: Sequence[dict[str, Any]], *, workers: int | None = None
) -> list[Any]:
    """Return ``[function(**job) for job in jobs]``, each run in a process with one thread of its own.

    Small models gain more from two runs at once than from two threads in one. ``function`` must be
    importable: a package's function, not one defined in a notebook. ``workers`` is the number of
    processor cores unless given. A script must call this behind ``if __name__ == "__main__":``.
    """
    # Pickled by hand, tensors travel as bytes; left to the pool, torch would put them in shared memory.
    calls = [pickle.dumps((function, job)) for job in jobs]
    answers = [store.reused(call) for call in calls]
    missing = [i for i, answer in enumerate(answers) if answer is None]
    workers = min(len(missing), workers or cores())
    if workers > 0:
        # spawn, not fork: a forked child inherits the parent's thread pools in an unusable state.
        context = get_context("spawn")
        with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            order = {pool.submit(_call, calls[i]): i for i in missing}
            for finished in progress(as_completed(order), "runs", total=len(missing)):
                i = order[finished]
                answers[i] = finished.result()
                store.keep(calls[i], answers[i])
    return [pickle.loads(answer) for answer in answers]


def progress(items: Iterable[Any], what: str, total: int | None = None) -> Iterable[Any]:
    """Return ``items`` behind a progress bar where somebody watches, as they are where nobody does.

    A page built without a reader (the book, a test) stays free of half-drawn bars.
    """
    return tqdm(items, desc=what, total=total, leave=False) if watched() else items


def watched() -> bool:
    """Return whether a person sees the output as it comes: a terminal, JupyterLab, Colab, VS Code."""
    if "ipykernel" in sys.modules:
        # Set by Jupyter's server and by VS Code for a notebook somebody opened; nbclient sets neither.
        opened = "JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ
        return opened or "google.colab" in sys.modules
    return sys.stderr.isatty()


def _call(job: bytes) -> bytes:
    function, arguments = pickle.loads(job)
    return pickle.dumps(function(**arguments))

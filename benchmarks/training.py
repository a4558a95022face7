"""From which size on does a GPU pay? Seconds of a training step, the book's models and larger ones.

    python benchmarks/training.py                 # on the processor, and on a GPU where there is one
    python benchmarks/training.py --threads 1

A step is a batch that moves to the device, forward, backward, clipping and Adam, as in the book's loop.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from attention_course import best_device
from attention_course.device import moved
from attention_course.lab.data import translation
from attention_course.lab.data.pairs import collate
from attention_course.lab.data.text import SYMBOLS, Sample
from attention_course.lab.experiments import length, translators, writing
from attention_course.lab.measure.machine import processor
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.translators import token_loss
from attention_course.transformer import gpt_like


class Work(NamedTuple):
    """A model to train, a batch for it on the processor, and its loss."""

    model: nn.Module
    batch: tuple[Tensor, ...]
    loss: Callable[[nn.Module, Any], Tensor]


def translator() -> Work:
    task = translation.task(0, train=64, per_bucket=1)
    model = translators.build("additive", 64, len(task.source), len(task.target))
    return Work(model, collate(task.train[:64], task), token_loss)


def reader_of(pieces: int, places: int) -> Sample:
    tokens = torch.randint(len(SYMBOLS), (pieces, places + 1))
    return Sample(tokens[:, :-1], tokens[:, 1:])


def gpt(num_layers: int, d_model: int, pieces: int, places: int) -> Work:
    model = gpt_like(
        len(SYMBOLS),
        places,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=d_model // 64,
        d_ff=4 * d_model,
    )
    return Work(model, reader_of(pieces, places), writing.loss)


WORK: dict[str, Callable[[], Work]] = {
    "chapter 2: GRU translator, 64 sentences": translator,
    "chapter 6: rotary, 12 × 64 characters": lambda: Work(
        length.model_for("rotary"), reader_of(12, 64), length.loss
    ),
    "chapter 9: writer, 12 × 64 characters": lambda: Work(
        writing.model_with(4), reader_of(12, 64), writing.loss
    ),
    "GPT, 4 layers of 256, 16 × 128": lambda: gpt(4, 256, 16, 128),
    "GPT, 6 layers of 512, 16 × 256": lambda: gpt(6, 512, 16, 256),
}


def seconds(work: Work, device: torch.device, threads: int, *, at_least: float = 2.0) -> float:
    """Return the median seconds of one step; ``Timer`` waits for a GPU to finish."""
    model = work.model.to(device).train()
    optimiser = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        optimiser.zero_grad()
        work.loss(model, moved(work.batch, device)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    for _ in range(3):
        step()
    return (
        Timer("step()", globals={"step": step}, num_threads=threads)
        .blocked_autorange(min_run_time=at_least)
        .median
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    devices = [torch.device("cpu"), *({best_device()} - {torch.device("cpu")})]
    names = [f"{processor()}, {threads} threads"]
    if len(devices) > 1:
        names.append(torch.cuda.get_device_name() if devices[1].type == "cuda" else devices[1].type)
    print(f"torch {torch.__version__}, {' and '.join(names)}")
    if len(devices) == 1:
        print("There is no GPU here: the column beside stays empty.")
    print(f"\n{'':42} {'parameters':>11} {'ms, processor':>14} {'ms, GPU':>9} {'GPU is':>14}")
    for name, make in WORK.items():
        torch.manual_seed(0)
        work = make()
        spent = [seconds(work, device, threads) for device in devices]
        columns = f"{count_parameters(work.model):>11,} {1e3 * spent[0]:>14.1f}"
        if len(spent) > 1:
            columns += f" {1e3 * spent[1]:>9.1f} {spent[0] / spent[1]:>8.2f} × as quick"
        print(f"{name:42} {columns}", flush=True)


if __name__ == "__main__":
    main()

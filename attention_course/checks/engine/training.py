"""A function that trains, in two steps: it is given data, and what it returns is asked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attention_course.checks.engine.observe import Unfit


def trained(answer: Any, kept: dict[str, Any], *given: Tensor) -> None:
    """Let ``answer`` train, on one thread, and keep what it returns.

    Raises:
        Unfit: what it returns cannot be called.
    """
    with one_thread():
        predictor = answer(*numbers(given))
    if not callable(predictor):
        kind = "None" if predictor is None else f"a {type(predictor).__name__}"
        raise Unfit(
            f"It returned {kind}. Return what can be asked afterwards: a trained module, or a function that "
            "asks one."
        )
    kept["trained"] = predictor


def asked(kept: dict[str, Any], questions: Tensor) -> Any:
    """What the predictor says, which is forgotten then."""
    predictor = kept.pop("trained")
    with one_thread():
        return predictor(questions)


def numbers(tensors: Sequence[Tensor]) -> tuple:
    """The tensors; those without axes as numbers."""
    return tuple(tensor if tensor.dim() else tensor.item() for tensor in tensors)


@contextmanager
def one_thread() -> Iterator[None]:
    """As in the grader's sandbox: a processor second is then the same everywhere, but for the processor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

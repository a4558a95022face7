"""Which device to compute on, and how widely."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def best_device() -> torch.device:
    """Return the fastest device at hand: CUDA, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def moved(data: Any, device: torch.device | str) -> Any:
    """Return ``data`` with its tensors on ``device``: one, or tuples, lists and dictionaries of them."""
    if isinstance(data, torch.Tensor):
        return data.to(device)
    if isinstance(data, dict):
        return {name: moved(part, device) for name, part in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(moved(part, device) for part in data))
    if isinstance(data, list | tuple):
        return type(data)(moved(part, device) for part in data)
    return data


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating-point dtype that ``device`` has: float64, but on Apple's MPS."""
    return torch.float32 if device.type == "mps" else torch.float64


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Return a context in which nothing on ``device`` is narrowed, whatever is set around it."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)

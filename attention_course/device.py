"""Which device to compute on."""

import torch


def best_device() -> torch.device:
    """Return the fastest device at hand: CUDA, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")

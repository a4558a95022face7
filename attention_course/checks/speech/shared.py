"""What the exercises of this chapter share: what is real of a batch."""

import torch
from torch import Tensor

NAME = "15_speech"


def real(T: int, lengths: Tensor) -> Tensor:
    """[B, T]: True for a frame or state, False behind the clip's end."""
    return torch.arange(T) < lengths[:, None]

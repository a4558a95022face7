"""What the exercises of this chapter share: drawing inputs, and functions that several of them build on."""

import torch
from torch import Generator, Tensor

from attention_course.lab.data.pairs import EOS, PAD

NAME = "01_bottleneck"


def targets(generator: Generator, T: int, *words: int, vocabulary: int = 30) -> Tensor:
    """[batch, T]: sentence i has words[i] words, <eos> where there is room for it, then padding."""
    tokens = torch.randint(EOS + 1, vocabulary, (len(words), T), generator=generator)
    behind = torch.arange(T) - torch.tensor(words)[:, None]
    return tokens.masked_fill(behind == 0, EOS).masked_fill(behind > 0, PAD)


def mixed(weights: Tensor, states: Tensor) -> Tensor:
    return (weights.unsqueeze(-2) @ states).squeeze(-2)

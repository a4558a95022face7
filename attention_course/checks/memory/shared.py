"""What the exercises of this chapter share: drawing where episodes end."""

import torch
from torch import Generator, Tensor

NAME = "18_memory"


def ends(generator: Generator, B: int, T: int) -> Tensor:
    """[B, T], True where an episode ends with that step. Each row has an end at another place, in the
    first row two stand next to each other, and behind each there is at least one step more."""
    done = torch.rand(B, T, generator=generator) < 0.15
    first = torch.randint(1, T - 2, (), generator=generator)
    done[0, first : first + 2] = True
    for row in range(1, B):
        done[row, torch.randint(T - 1, (), generator=generator)] = True
    done[:, -1] = False
    # two rows that are alike would hide a mixing of rows
    return done if len(done.unique(dim=0)) == B or B >= T else ends(generator, B, T)

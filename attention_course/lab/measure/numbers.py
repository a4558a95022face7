"""Numbers that experiments report: parameters, mean and spread, growth, where two curves cross."""

import math
import statistics
from collections.abc import Sequence

import torch
from torch import nn


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable numbers in ``model``."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation; the latter is 0 for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent p of the best y = c·x^p: the slope of the least-squares line in log-log axes.

    Raises a ``ValueError`` for fewer than two points.
    """
    if len(x) < 2 or len(x) != len(y):
        raise ValueError(f"need at least two points and as many y as x, got {len(x)} and {len(y)}")
    log_x, log_y = (torch.tensor([math.log(value) for value in values]) for values in (x, y))
    log_x, log_y = log_x - log_x.mean(), log_y - log_y.mean()
    return ((log_x * log_y).sum() / log_x.square().sum()).item()


def crossing(x: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the x above which ``first`` stays larger than ``second``, between points by a power law.

    ``None`` if ``first`` is not larger at the last point, the first x if it is larger everywhere.
    """
    if first[-1] <= second[-1]:
        return None
    below = [i for i in range(len(x)) if first[i] <= second[i]]
    if not below:
        return x[0]
    i = below[-1]
    gap, next_gap = (math.log(first[j] / second[j]) for j in (i, i + 1))
    return x[i] * (x[i + 1] / x[i]) ** (-gap / (next_gap - gap))

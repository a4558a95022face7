"""``torch.func.vmap`` for functions with a backward pass of their own."""

from typing import Any

import torch
from torch import Tensor


class OneByOne(torch.autograd.Function):
    """A function that ``torch.func.vmap`` calls for one sample after the other: they are loops already."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        """Return the outputs with the samples in front, and where they lie."""
        samples = [
            cls.apply(
                *(x if dim is None else x.select(dim, n) for x, dim in zip(inputs, in_dims, strict=True))
            )
            for n in range(info.batch_size)
        ]
        if isinstance(samples[0], Tensor):
            return torch.stack(samples), 0
        outputs = tuple(torch.stack(output) for output in zip(*samples, strict=True))
        return outputs, (0,) * len(outputs)

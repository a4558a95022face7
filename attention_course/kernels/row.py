"""One row times a matrix: what a step of decoding consists of, shared among a processor's threads."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

#: Weights in a matrix from which sharing pays: below, a product takes less time than handing it out.
SHARED_FROM = 1 << 16


class Linear(nn.Linear):
    """``nn.Linear``, except that a single row on a CPU uses all of torch's threads.

    A product with one row reads every weight once and uses it once, so that memory sets its speed.
    torch's own leaves that to one thread, which cannot ask for as much as the memory would give.
    """

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        """Return x weightᵀ + bias: [..., d_in] -> [..., d_out]."""
        parts = _parts(x, self.weight)
        if parts == 1:
            return super().forward(x)
        # A product for each thread, with its share of the rows of the weight.
        row = x.reshape(1, 1, -1).expand(parts, 1, -1)
        shares = self.weight.view(parts, -1, self.in_features).mT  # [parts, d_in, d_out / parts]
        if self.bias is None:
            out = torch.bmm(row, shares)
        else:
            out = torch.baddbmm(self.bias.view(parts, 1, -1), row, shares)
        return out.view(*x.shape[:-1], self.out_features)


def spread(model: nn.Module) -> nn.Module:
    """Return a model on the same parameters and buffers in which every ``nn.Linear`` is a ``Linear``.

    The model itself stays as it is: what is trained, compiled, quantised or looked at is torch's own.
    """
    kept = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    result = copy.deepcopy(model, kept)
    for module in result.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear  # the same layer; it only multiplies otherwise
    return result


def _parts(x: Tensor, weight: Tensor) -> int:
    """Into how many products to cut; 1 where torch does as well in one."""
    d_out, d_in = weight.shape
    if x.device.type != "cpu" or x.numel() != d_in or weight.numel() < SHARED_FROM:
        return 1
    if x.shape[-1] != d_in or not weight.is_contiguous():
        return 1
    return next(parts for parts in range(torch.get_num_threads(), 0, -1) if d_out % parts == 0)

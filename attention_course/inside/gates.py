"""A gate on every head: 1 leaves it, 0 takes it out (Michel et al. 2019, section 2.3)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attention_course.heads import MultiHeadAttention

Gates = Float[Tensor, "layers h"] | Float[Tensor, "layers B h"]


def attentions(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Return the model's attention layers by their names, in the order of its modules, that of gates."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}


@contextmanager
def gated(model: nn.Module, gates: Gates) -> Iterator[None]:
    """Multiply each head's context by its gate while the block lasts.

    ``gates`` [layers, h], one row for each of ``attentions(model)``; or [layers, B, h], for each
    sentence its own. Raises a ``ValueError`` for gates that do not fit.
    """
    layers = list(attentions(model).values())
    heads = [layer.num_heads for layer in layers]
    if gates.dim() not in (2, 3) or len(gates) != len(layers) or any(n != gates.shape[-1] for n in heads):
        raise ValueError(
            f"gates must have shape [layers, h] or [layers, B, h] for layers with {heads} heads, "
            f"got {tuple(gates.shape)}"
        )
    with ExitStack() as hooks:
        for layer, gate in zip(layers, gates, strict=True):
            hook = layer.output_projection.register_forward_pre_hook(partial(_multiply, gate))
            hooks.callback(hook.remove)
        yield


def importance(
    model: nn.Module, losses: Callable[[], Float[Tensor, " B"]], *, sentences: int
) -> Float[Tensor, "layers h"]:
    """Return how much each head matters: the size of ∂loss/∂gate at gates of 1, a mean over ``sentences``.

    That is Michel et al.'s (2019) equation 2. ``losses`` calls the model on ``sentences`` sentences and
    returns a loss of each, [B]. Raises a ``ValueError`` for losses of another shape.
    """
    layers = attentions(model)
    if not layers:
        raise ValueError(f"model must have a MultiHeadAttention, got a {type(model).__name__}")
    first = next(iter(layers.values()))
    weight = first.output_projection.weight
    gates = torch.ones(len(layers), sentences, first.num_heads, dtype=weight.dtype, device=weight.device)
    gates.requires_grad_()
    with torch.enable_grad(), gated(model, gates):
        found = losses()
        if found.shape != (sentences,):
            raise ValueError(f"losses must have shape ({sentences},), got {tuple(found.shape)}")
        [gradient] = torch.autograd.grad(found.sum(), [gates])
    return gradient.abs().mean(1)


def _multiply(gate: Tensor, projection: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    context = args[0]  # [..., T_q, h · d_k]
    heads = context.unflatten(-1, (gate.shape[-1], -1))
    if gate.dim() == 2:
        gate = gate.unsqueeze(-2)  # [B, 1, h], for every query
    return ((heads * gate.unsqueeze(-1)).flatten(-2),)

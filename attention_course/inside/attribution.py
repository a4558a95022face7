"""More than weights: what each look adds to the stream, and what the answer would make of it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attention_course.inside.recording import Layer


def norms(layer: Layer, *, summed: bool = False) -> Float[Tensor, "..."]:
    """Return the length of what each key adds to each query's answer (Kobayashi et al. 2020, section 3).

    ‖α_ij v_j W_O‖ for each head, [..., h, T_q, T_k]; ``summed``, the length of the heads' sum,
    ‖Σ_h α_ij v_j W_O‖, [..., T_q, T_k], in which heads may cancel.
    """
    added = layer.value @ layer.output  # [..., h, T_k, d_model]
    if not summed:
        return layer.weights * added.norm(dim=-1).unsqueeze(-2)
    weights = layer.weights.transpose(-3, -2)  # [..., T_q, h, T_k]
    return (weights.unsqueeze(-1) * added.unsqueeze(-4)).sum(-3).norm(dim=-1)


def weights_times_gradient(
    layers: Sequence[Layer], answer: Float[Tensor, ""]
) -> list[Float[Tensor, "... h T_q T_k"]]:
    """Return α · ∂answer/∂α for each layer: what the answer would lose, to first order, with the look.

    Each weight is varied alone, the values staying as they are: ∂answer/∂α_ij is the gradient at
    query i's context times v_j. ``layers`` and ``answer`` come from one ``record``. Raises a
    ``ValueError`` for an answer that is no scalar or has no gradient.
    """
    if answer.dim() or not answer.requires_grad:
        raise ValueError(
            "answer must be a scalar with a gradient, got shape "
            f"{tuple(answer.shape)} and requires_grad={answer.requires_grad}"
        )
    gradients = torch.autograd.grad(
        answer,
        [layer.context for layer in layers],
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return [
        layer.weights * (gradient @ layer.value.mT) for layer, gradient in zip(layers, gradients, strict=True)
    ]

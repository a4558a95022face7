"""What every attention of a model did: ``record`` calls the model and returns it beside the answer."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attention_course.heads import MultiHeadAttention


class Layer(NamedTuple):
    """What one attention layer did with one input; h counts query heads.

    ``context`` is what the heads have mixed, weights · value, and ``output`` is what the output
    projection makes of it, head by head: Σ over the heads of context · output, plus the bias, is the
    layer's answer. The answer was computed from this very ``context``: gradients can be asked of it.
    """

    name: str
    weights: Float[Tensor, "... h T_q T_k"]
    value: Float[Tensor, "... h T_k d_k"]
    context: Float[Tensor, "... h T_q d_k"]
    output: Float[Tensor, "h d_k d_model"]


def record(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, list[Layer]]:
    """Call ``model``; return ``(answer, layers)``: what each ``MultiHeadAttention`` did, in order of use.

    Any model of this package will do; nothing is changed, and nothing is left on it. In training mode
    the contexts have lost what dropout took, and the weights have not. Raises a ``ValueError`` for a
    model without a ``MultiHeadAttention``, and for a call with a cache, whose layers see old values too.
    """
    named = [
        (name, module) for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)
    ]
    if not named:
        raise ValueError(f"model must have a MultiHeadAttention to look into, got a {type(model).__name__}")
    layers: list[Layer] = []
    with ExitStack() as hooks:
        for name, module in named:
            parts: dict[str, Any] = {}
            for hook in (
                module.register_forward_pre_hook(partial(_ask, parts), with_kwargs=True),
                module.value_projection.register_forward_hook(partial(_keep_output, parts)),
                module.output_projection.register_forward_pre_hook(
                    partial(_keep_context, parts, module.num_heads)
                ),
                module.register_forward_hook(partial(_finish, parts, name, layers)),
            ):
                hooks.callback(hook.remove)
        answer = model(*args, **kwargs)
    return answer, layers


def weights_of(layers: Sequence[Layer]) -> Float[Tensor, "layers ... h T_q T_k"]:
    """Return the weights of all ``layers`` in one tensor, [layers, ..., h, T_q, T_k].

    Raises a ``ValueError`` where they differ in shape, as self-attention and cross-attention may.
    """
    shapes = {tuple(layer.weights.shape) for layer in layers}
    if len(shapes) != 1:
        raise ValueError(f"layers must all have weights of one shape, got {sorted(shapes)}")
    return torch.stack([layer.weights for layer in layers])


def _ask(parts: dict, module: MultiHeadAttention, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Have the weights computed, whoever calls, and remember whether the caller wanted them."""
    if kwargs.get("cache") is not None:
        raise ValueError("record needs a call without caches: its layers see old values, too")
    parts["wanted"] = kwargs.get("need_weights", False)
    return args, {**kwargs, "need_weights": True}


def _keep_output(parts: dict, projection: nn.Module, args: tuple, output: Tensor) -> None:
    parts["value"] = output


def _keep_context(parts: dict, num_heads: int, projection: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    """Keep the heads apart, and hand on what is made of them: else no gradient would reach them."""
    parts["context"] = _split(args[0], num_heads)
    return (parts["context"].transpose(-2, -3).flatten(-2),)


def _finish(
    parts: dict,
    name: str,
    layers: list[Layer],
    module: MultiHeadAttention,
    args: tuple,
    answer: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor | None]:
    output, weights = answer
    groups = module.num_heads // module.num_kv_heads
    layers.append(
        Layer(
            name,
            weights,
            _split(parts["value"], module.num_kv_heads).repeat_interleave(groups, dim=-3),
            parts["context"],
            module.output_projection.weight.mT.unflatten(0, (module.num_heads, -1)),
        )
    )
    return output, weights if parts["wanted"] else None


def _split(x: Float[Tensor, "... T width"], num_heads: int) -> Float[Tensor, "... h T d_k"]:
    return x.unflatten(-1, (num_heads, -1)).transpose(-2, -3)

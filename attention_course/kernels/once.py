"""A backward pass of one's own can be differentiated once, and says so."""

import functools
from collections.abc import Callable
from typing import Any

import torch

REFUSED = 'this kernel can be differentiated once only; for second derivatives use backend="reference"'


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``backward`` with a ``RuntimeError`` where somebody wants its own gradient (create_graph=True).

    torch's ``once_differentiable`` raises only if the incoming gradient needs one; otherwise what
    depends on the inputs through the saved tensors would be left out without a word.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(REFUSED)
        return backward(ctx, *gradients)

    return checked


def refused(ctx: Any, *gradients: Any) -> Any:
    """Raise a ``RuntimeError``: the backward pass of a function that is itself a backward pass.

    ``torch.func.grad`` asks every backward pass for a graph, needed or not. A backward pass that is a
    function of its own gives one, and refuses only when somebody goes that way.
    """
    raise RuntimeError(REFUSED)

"""A course on attention that can be read, run and graded: the tested package under its notebooks.

Attention is score → mask → softmax → mix: see ``scores``, ``masks``, ``attention``, ``heads`` and
``positions``. ``check`` looks at an exercise's answer.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attention_course.attention import attend, masked_softmax, scaled_dot_product_attention
    from attention_course.device import best_device
    from attention_course.heads import MultiHeadAttention

__version__ = "0.1.0"

__all__ = [
    "MultiHeadAttention",
    "attend",
    "best_device",
    "masked_softmax",
    "scaled_dot_product_attention",
]

_HOMES = {
    "MultiHeadAttention": "heads",
    "attend": "attention",
    "best_device": "device",
    "masked_softmax": "attention",
    "scaled_dot_product_attention": "attention",
}


def __getattr__(name):
    """The five names, loaded when one is asked for: the command says what it can before torch is there."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""A course on attention that can be read, run and graded: the tested package under its notebooks.

Attention is score → mask → softmax → mix: see ``scores``, ``masks``, ``attention``, ``heads`` and
``positions``. ``check`` looks at an exercise's answer.
"""

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

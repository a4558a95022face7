"""Figures that move without a kernel: plain HTML and JavaScript, their numbers from the package."""

from attention_course.explorables.clock_hands import clock_hands
from attention_course.explorables.drag_an_edge import drag_an_edge
from attention_course.explorables.glimpse import Scene, glimpse
from attention_course.explorables.head_view import head_view
from attention_course.explorables.key_tones import Clip, key_tones
from attention_course.explorables.paint_a_mask import paint_a_mask
from attention_course.explorables.query_and_keys import query_and_keys
from attention_course.explorables.split_heads import split_heads
from attention_course.explorables.who_looks_at_whom import who_looks_at_whom

__all__ = [
    "Clip",
    "Scene",
    "clock_hands",
    "drag_an_edge",
    "glimpse",
    "head_view",
    "key_tones",
    "paint_a_mask",
    "query_and_keys",
    "split_heads",
    "who_looks_at_whom",
]

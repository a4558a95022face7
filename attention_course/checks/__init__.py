"""Checks for the exercises: they run on the learner's own machine and name the usual mistakes.

In a notebook::

    from attention_course.checks import check
    check("03_scaled_dot_product.scores", scores)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attention_course.checks.engine.exercise import Case, Chapter, Exercise, Mistake
    from attention_course.checks.engine.registry import chapters, find_chapter, find_exercise
    from attention_course.checks.engine.session import CheckFailed, check, hint, inputs, progress

__all__ = [
    "Case",
    "Chapter",
    "CheckFailed",
    "Exercise",
    "Mistake",
    "chapters",
    "check",
    "find_chapter",
    "find_exercise",
    "hint",
    "inputs",
    "progress",
]

_HOMES = {
    **dict.fromkeys(("Case", "Chapter", "Exercise", "Mistake"), "exercise"),
    **dict.fromkeys(("chapters", "find_chapter", "find_exercise"), "registry"),
    **dict.fromkeys(("CheckFailed", "check", "hint", "inputs", "progress"), "session"),
}


def __getattr__(name):
    """These names, loaded when one is asked for: the command reads a path before torch is there."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.engine.{_HOMES[name]}"), name)

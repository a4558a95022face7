"""Checks for the exercises: they run on the learner's own machine and name the usual mistakes.

In a notebook::

    from attention_course.checks import check
    check("03_scaled_dot_product.scores", scores)
"""

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

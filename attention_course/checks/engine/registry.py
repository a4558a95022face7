"""Which chapters have exercises, and how to find one by name."""

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # with it comes torch, which takes a second
    from attention_course.checks.engine.exercise import Chapter, Exercise

#: chapter -> the module of this package that holds its exercises
MODULES = {
    "01_bottleneck": "bottleneck",
    "02_score_functions": "score_functions",
    "03_scaled_dot_product": "scaled_dot_product",
    "04_multi_head": "multi_head",
    "05_masks": "masks",
    "06_positions": "positions",
    "07_transformer": "transformer",
    "08_kernels": "kernels",
    "09_decoding": "decoding",
    "10_linear": "linear",
    "11_ring": "ring",
    "12_seeing": "seeing",
    "13_probing": "probing",
    "14_vision": "vision",
    "15_speech": "speech",
    "16_senses": "senses",
    "17_graphs": "graphs",
    "18_memory": "memory",
    "19_capstone": "capstone",
}


def _nearest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"


def find_chapter(name: str) -> "Chapter":
    """The chapter called ``name``, as in ``"03_scaled_dot_product"``; ValueError for any other."""
    if name not in MODULES:
        raise ValueError(f"no chapter with exercises is called {name!r}; "
                         + _nearest(str(name), list(MODULES)))  # fmt: skip
    return import_module(f"attention_course.checks.{MODULES[name]}").CHAPTER


def chapters() -> "tuple[Chapter, ...]":
    """Every chapter that has exercises."""
    return tuple(find_chapter(name) for name in MODULES)


def find_exercise(name: str) -> "Exercise":
    """The exercise called ``name``, as in ``"03_scaled_dot_product.scores"``; else ValueError."""
    own = name.partition(".")[0] if isinstance(name, str) else ""
    if own in MODULES:  # the other chapters need not be loaded
        found = {exercise.name: exercise for exercise in find_chapter(own).exercises}.get(name)
        if found:
            return found
    known = [exercise.name for chapter in chapters() for exercise in chapter.exercises]
    raise ValueError(f"no exercise is called {name!r}; {_nearest(str(name), known)}")


def listed(chapter: str) -> list[tuple[str, int]]:
    """The name and the points of each exercise of ``chapter``, for a process that has no torch."""
    return [(exercise.name, exercise.points) for exercise in find_chapter(chapter).exercises]

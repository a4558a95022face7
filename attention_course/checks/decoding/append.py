"""Exercise 1: writing into a cache."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.decoding import shared
from attention_course.checks.decoding.shared import NAME
from attention_course.checks.engine.drawing import integer, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake


def _append(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    after, start = store.clone(), int(length)
    after[..., start : start + new.shape[-2], :] = new
    return after


def _appended(
    shift: int = 0, arrange: Callable[[Tensor], Tensor] = lambda new: new
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda store, new, length: _append(store, arrange(new), length + shift)


def _append_the_first(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    return _append(store, new[..., :1, :], length)


def _append_and_clear(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    after = _append(store, new, length)
    after[..., int(length) + new.shape[-2] :, :] = 0
    return after


def _in_front(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    start = int(length)
    return torch.cat((new, store[..., :start, :], store[..., start + new.shape[-2] :, :]), dim=-2)


def _squeezed_in(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    start = int(length)
    longer = torch.cat((store[..., :start, :], new, store[..., start:, :]), dim=-2)
    return longer[..., : store.shape[-2], :]


def _append_in_place(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    return store.copy_(_append(store, new, length))


def _filled(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    return _append(store, new, length)[..., : int(length) + new.shape[-2], :]


def _rows(
    generator: Generator,
    leading: tuple[int, ...],
    room: int,
    T: int,
    d_k: int,
    low: int,
    draw: Callable[..., Tensor] = normal,
) -> tuple[Tensor, Tensor, Tensor]:
    """A store with room for ``room`` rows, T new rows, and how many lie in it, from ``low`` on."""
    length = integer(generator, low, room - T - 1)
    return draw(generator, *leading, room, d_k), draw(generator, *leading, T, d_k), length


APPEND = Exercise(
    name=f"{NAME}.append",
    title="Into the cache",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_append,
    returns=("after",),
    cases=(
        Case("one decimal", lambda g: _rows(g, (), 6, 1, 2, 2, tenths)),
        Case("batch and heads", lambda g: _rows(g, (2, 3), 9, 2, 4, 3)),
        Case("as many heads as rows", lambda g: _rows(g, (2, 7), 7, 1, 4, 2)),
        Case("several rows, float64", lambda g: _rows(g, (2, 2), 12, 4, 3, 3, shared.double)),
        Case("empty", lambda g: (normal(g, 2, 5, 3), normal(g, 2, 2, 3), torch.tensor(0))),
        Case("gradient", lambda g: _rows(g, (2,), 8, 2, 3, 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "always at the front",
            lambda store, new, length: _append(store, new, torch.tensor(0)),
            "The new rows are written into rows 0, 1, ..., over the oldest tokens. The first free row "
            "is row length.",
        ),
        Mistake(
            "one row too early",
            lambda store, new, length: _append(store, new, (length - 1).clamp_min(0)),
            "The first new row lies on the last old one. Rows 0 to length - 1 are taken: begin at length.",
        ),
        Mistake(
            "one row too late",
            _appended(shift=1),
            "Row length stays empty. Rows are counted from 0, so with length rows taken, row length is "
            "the first free one.",
        ),
        Mistake(
            "at the end of the room",
            lambda store, new, length: torch.cat((store[..., : -new.shape[-2], :], new), dim=-2),
            "The new rows lie at the end of the store, far behind the old ones. They come directly "
            "after the length rows that are in use.",
        ),
        Mistake(
            "pushed through",
            lambda store, new, length: torch.cat((store[..., new.shape[-2] :, :], new), dim=-2),
            "The rows move up and the oldest fall out, as in a queue. Nothing moves in this cache: the "
            "old rows stay where they are.",
        ),
        Mistake(
            "store made longer",
            lambda store, new, length: torch.cat((store, new), dim=-2),
            "The new rows are put behind the whole store, which grows. The room is there already: "
            "write into it.",
        ),
        Mistake(
            "only what is filled",
            _filled,
            "You return the rows in use. Asked for is the whole store after writing, free rows included.",
        ),
        Mistake(
            "the newest first",
            _appended(arrange=lambda new: new.flip(-2)),
            "The new rows stand in reverse order. new[..., 0, :] is the earlier token and comes first.",
        ),
        Mistake(
            "only the first row",
            _append_the_first,
            "Of several new rows only the first is written. There may be more than one: a prompt comes "
            "in one piece.",
        ),
        Mistake(
            "added instead of written",
            lambda store, new, length: _append(
                store, new + store[..., int(length) : int(length) + new.shape[-2], :], length
            ),
            "The new rows are added to what was there. A free row holds whatever the memory held "
            "before: overwrite it.",
        ),
        Mistake(
            "free rows cleared",
            _append_and_clear,
            "The free rows behind are set to 0. That costs time at each step and is not asked for: "
            "nobody reads them.",
        ),
        Mistake(
            "store changed in place",
            _append_in_place,
            "The rows are right, but they are written into store itself. A real cache does just that; "
            "here whoever checks it still needs the old one. Begin with a clone.",
        ),
        Mistake(
            "in front of the old rows",
            _in_front,
            "The new rows come first, and the old ones have moved back. The old rows stay where they are, "
            "and the new ones come behind them.",
        ),
        Mistake(
            "free rows pushed back",
            _squeezed_in,
            "The free rows have moved back, and the last of them fell out. Nothing moves in this cache: new "
            "rows are written over the free ones.",
        ),
        Mistake(
            "all into one row",
            lambda store, new, length: _append(store, new[..., -1:, :], length),
            "All new rows are written into row length, one over the other, and the last one is left. Each "
            "has a row of its own.",
        ),
    ),
    hints=(
        "Which rows are taken, and which is the first free one, when length is 0? When it is 3?",
        "Make a clone of store, then assign the T new rows to its rows from start on, counted on the "
        "axis before the last.",
    ),
)

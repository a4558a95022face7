"""Exercise 4: a ring."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.decoding.shared import NAME
from attention_course.checks.engine.drawing import integer
from attention_course.checks.engine.exercise import Case, Exercise, Mistake


def _held(last: Tensor, window: Tensor) -> Tensor:
    slots = torch.arange(int(window))
    newest = last[..., None] - (last[..., None] - slots) % window
    return newest.clamp_min(-1)


def _visible(held: Tensor, query: Tensor, window: Tensor) -> Tensor:
    """What lies in a ring after token ``last``, which is not before the query, is never too old for it."""
    return (held >= 0) & (held <= query)


def _ring(last: Tensor, query: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
    held = _held(last, window)
    return held, _visible(held, query[..., None], window)


def _in_window(held: Tensor, query: Tensor, window: Tensor) -> Tensor:
    """The same with the other end of the window, which matters where what is held is wrong."""
    return _visible(held, query, window) & (held > query - window)


def _ringed(
    held: Callable[[Tensor, Tensor], Tensor] = _held,
    sees: Callable[[Tensor, Tensor, Tensor], Tensor] = _visible,
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def ring(last: Tensor, query: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        lying = held(last, window)
        return lying, sees(lying, query[..., None], window)

    return ring


def _held_raw(last: Tensor, window: Tensor) -> Tensor:
    slots = torch.arange(int(window))
    return last[..., None] - (last[..., None] - slots) % window


def _held_in_order(last: Tensor, window: Tensor) -> Tensor:
    return (last[..., None] - int(window) + 1 + torch.arange(int(window))).clamp_min(-1)


def _held_newest_first(last: Tensor, window: Tensor) -> Tensor:
    return (last[..., None] - torch.arange(int(window))).clamp_min(-1)


def _held_rounds(last: Tensor, window: Tensor) -> Tensor:
    return last[..., None] // window * window + torch.arange(int(window))


def _held_rounds_written(last: Tensor, window: Tensor) -> Tensor:
    held = _held_rounds(last, window)
    return held.where(held <= last[..., None], -1)


def _held_truncated(last: Tensor, window: Tensor) -> Tensor:
    slots = torch.arange(int(window))
    return (last[..., None] - torch.fmod(last[..., None] - slots, window)).clamp_min(-1)


def _held_for_ever(last: Tensor, window: Tensor) -> Tensor:
    slots = torch.arange(int(window))
    return slots.where(slots <= last[..., None], -1)


def _empty_as_0(last: Tensor, query: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
    held, visible = _ring(last, query, window)
    return held.clamp_min(0), visible


def _ring_drawn(generator: Generator, *shape: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries at most ``window`` - 1 tokens before the last one that was written."""
    window = integer(generator, 4, 7)
    last = torch.randint(0, most, shape, generator=generator)
    # Everywhere: a ring that is not full yet, one that is, and queries that are not the last.
    last[..., 0], last[..., -1] = 1, most
    back = torch.randint(0, 4, shape, generator=generator)
    back[..., -1] = 2
    return last, (last - back).clamp_min(0), window


RING = Exercise(
    name=f"{NAME}.ring",
    title="A ring of slots",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_ring,
    returns=("held", "visible"),
    cases=(
        Case(
            "window of 4",
            lambda g: (
                torch.tensor([2, 5, 9]),
                torch.tensor([2, 5, int(integer(g, 6, 8))]),
                torch.tensor(4),
            ),
        ),
        Case("batch", lambda g: _ring_drawn(g, 2, 5, most=20)),
        Case("three axes", lambda g: _ring_drawn(g, 2, 3, 4, most=60)),
        Case("long text", lambda g: _ring_drawn(g, 3, 4, most=int(integer(g, 1000, 2000)))),
    ),
    mistakes=(
        Mistake(
            "in the order of the tokens",
            _ringed(held=_held_in_order),
            "You list the last tokens from the oldest to the newest. In a ring nothing moves: token p "
            "lies in slot p % window.",
        ),
        Mistake(
            "the newest first",
            _ringed(held=_held_newest_first),
            "You list the last tokens from the newest to the oldest. The newest lies in slot "
            "last % window, wherever that is.",
        ),
        Mistake(
            "slots of this round only, unwritten ones too",
            _ringed(held=_held_rounds),
            "Slots behind the newest are said to hold tokens that are not written yet. They still "
            "hold those of the round before: window less.",
        ),
        Mistake(
            "the round before forgotten",
            _ringed(held=_held_rounds_written),
            "Slots behind the newest are said to be empty. They hold the tokens of the round before, "
            "if there was one.",
        ),
        Mistake(
            "empty slots with negative tokens",
            _ringed(held=_held_raw),
            "Slots that were never written hold tokens below -1. Write -1 for empty: there is no token -3.",
        ),
        Mistake(
            "remainder of a negative number",
            _ringed(held=_held_truncated),
            "As long as the ring is not full, last - slot can be negative, and your remainder keeps "
            "that sign, as in C and in torch.fmod. With % and torch.remainder it has the divisor's.",
        ),
        Mistake(
            "off by one token",
            _ringed(held=lambda last, window: _held(last - 1, window)),
            "You describe the ring before token last is written. last is in it already.",
        ),
        Mistake(
            "all that is there",
            _ringed(sees=lambda held, query, window: held >= 0),
            "Every filled slot is visible. That is right for the last token; an earlier query must not "
            "see what came after it.",
        ),
        Mistake(
            "window one too narrow",
            _ringed(
                sees=lambda held, query, window: (held >= 0) & (held <= query) & (held > query - window + 1)
            ),
            "A query does not see token query - window + 1. The window is the query itself and the "
            "window - 1 tokens before it.",
        ),
        Mistake(
            "blind to itself",
            _ringed(sees=lambda held, query, window: (held >= 0) & (held < query)),
            "A query does not see its own slot. Causal means up to and including itself.",
        ),
        Mistake(
            "empty slots visible",
            _ringed(sees=lambda held, query, window: held <= query),
            "Empty slots are visible, since -1 lies before every query. What is in them was never written.",
        ),
        Mistake(
            "slots compared with positions",
            _ringed(
                sees=lambda held, query, window: (held >= 0) & (torch.arange(int(window)) <= query % window)
            ),
            "You compare the number of a slot with the query's. A slot's number says nothing about "
            "how old its token is: compare held.",
        ),
        Mistake(
            "off by one token, seen through the window",
            _ringed(held=lambda last, window: _held(last - 1, window), sees=_in_window),
            "You describe the ring as it was after token last - 1. Token last is in it already.",
        ),
        Mistake(
            "query in the place of last",
            lambda last, query, window: _ring(query, query, window),
            "held is the ring as it was when token query had just been written. Since then the tokens up to "
            "last have come.",
        ),
        Mistake(
            "empty slots hold 0",
            _empty_as_0,
            "Slots that were never written hold 0. That is the first token: write -1 for empty.",
        ),
        Mistake(
            "empty slots hold a token 0 that is seen",
            _ringed(held=lambda last, window: _held(last, window).clamp_min(0)),
            "Slots that were never written hold 0, and are visible. That is the first token: write -1 for "
            "empty.",
        ),
        Mistake(
            "never written over",
            _ringed(held=_held_for_ever, sees=_in_window),
            "The slots hold the first tokens for ever. Token p goes into slot p mod w, over whatever lay "
            "there.",
        ),
    ),
    hints=(
        "Draw a ring of 4 slots and write tokens 0 to 9 into it. What lies in it when 9 is written? "
        "Which of these may token 9 see, and which may token 7 see?",
        "Slot s holds the newest token with token % window == s. From last, go back by "
        "(last - s) % window steps; below 0 there is nothing.",
        "last, with an axis of length 1 behind it, meets the row of all slots: [..., window]. visible "
        "joins two conditions on held by &: something lies in the slot, and it is not newer than query. "
        "Nothing there is too old: that has been written over.",
    ),
)

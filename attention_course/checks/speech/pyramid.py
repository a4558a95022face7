"""Exercise 1: half as many states."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.speech import shared
from attention_course.checks.speech.shared import NAME

Two = tuple[Tensor, Tensor]
Change = Callable[[Tensor], Tensor]


def _even(x: Tensor) -> Tensor:
    """One more frame of zeros behind the last where their number is odd."""
    return F.pad(x, (0, 0, 0, x.shape[1] % 2))


def _silent(x: Tensor, lengths: Tensor) -> Tensor:
    return x.masked_fill(~shared.real(x.shape[1], lengths)[..., None], 0.0)


def _side_by_side(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1, 2 * x.shape[-1])


def _halved(lengths: Tensor) -> Tensor:
    return (lengths + 1) // 2


def _built(
    *,
    quiet: Callable[[Tensor, Tensor], Tensor] = _silent,
    even: Change = _even,
    join: Change = _side_by_side,
    count: Change = _halved,
) -> Callable[[Tensor, Tensor], Two]:
    def pyramid(x: Tensor, lengths: Tensor) -> Two:
        return join(even(quiet(x, lengths))), count(lengths)

    return pyramid


def _by(change: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Frames 0, 2, 4, ... and 1, 3, 5, ..., joined in another way."""
    return lambda x: change(x[:, 0::2], x[:, 1::2])


def _halves(x: Tensor) -> Tensor:
    return torch.cat(x.chunk(2, 1), -1)


def _in_turns(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), -1).flatten(-2)


def _last_repeated(x: Tensor, lengths: Tensor) -> Tensor:
    """A clip's last frame stands for all behind its end: for one, where that joins a pair."""
    frames = torch.arange(x.shape[1] + x.shape[1] % 2)
    taken = frames.expand(len(x), -1).minimum(lengths[:, None] - 1)
    repeated = x.gather(1, taken[..., None].expand(-1, -1, x.shape[-1]))
    return repeated * (frames < lengths[:, None] + lengths[:, None] % 2)[..., None]


def _in_front(x: Tensor, lengths: Tensor) -> Tensor:
    """The zeros of an odd clip stand before its first frame."""
    shift = lengths % 2
    frames = torch.arange(x.shape[1] + x.shape[1] % 2) - shift[:, None]
    there = (frames >= 0) & (frames < lengths[:, None])
    index = frames.clamp(0, x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[-1])
    return x.gather(1, index).masked_fill(~there[..., None], 0.0)


def _dropped(x: Tensor, lengths: Tensor) -> Two:
    """floor(T / 2) states; the last frame of an odd clip is lost."""
    whole = lengths // 2
    x = _silent(x, 2 * whole)[:, : 2 * (x.shape[1] // 2)]
    return _side_by_side(x), whole


def _all_dropped(x: Tensor, lengths: Tensor) -> Two:
    """The same for the batch as a whole: its last frame is lost where T is odd."""
    B, T, d = x.shape
    return _silent(x, lengths)[:, : T // 2 * 2].reshape(B, T // 2, 2 * d), lengths // 2


def _last_of_all_repeated(x: Tensor) -> Tensor:
    return torch.cat((x, x[:, -1:]), 1) if x.shape[1] % 2 else x


def _in_place(x: Tensor, lengths: Tensor) -> Two:
    x.masked_fill_(~shared.real(x.shape[1], lengths)[..., None], 0.0)
    return _side_by_side(_even(x)), _halved(lengths)


def _drawn(g: Generator, T: int, d: int, *lengths: int, dtype: torch.dtype = torch.float32) -> Inputs:
    return normal(g, len(lengths), T, d, dtype=dtype), torch.tensor(lengths)


def _bands_first(g: Generator) -> Inputs:
    """As a spectrogram has it: a row in memory is a band, not a frame."""
    return normal(g, 3, 4, 7).mT, torch.tensor([7, 3, 5])


def _anything_behind(g: Generator) -> Inputs:
    """What lies behind the ends is infinite."""
    x, lengths = _drawn(g, 7, 3, 4, 7, 1)
    return x.masked_fill(~shared.real(7, lengths)[..., None], torch.inf), lengths


PYRAMID = Exercise(
    name=f"{NAME}.pyramid",
    title="Half as many states",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_built(),
    returns=("joined", "lengths"),
    unseen=("x",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 4, 2), torch.tensor([4, 3]))),
        Case("an odd number of frames", lambda g: _drawn(g, 7, 3, 7, 4, 5)),
        Case("an even number", lambda g: _drawn(g, 8, 3, 5, 8, 1, 2)),
        Case("room behind every clip, float64", lambda g: _drawn(g, 9, 4, 6, 3, dtype=torch.float64)),
        Case("as many clips as frames as bands", lambda g: _drawn(g, 4, 4, 3, 4, 1, 2)),
        Case("one frame", lambda g: _drawn(g, 1, 3, 1, 1)),
        Case("bands side by side in memory", _bands_first),
        Case("infinite behind the ends", _anything_behind),
        Case("gradient", lambda g: _drawn(g, 5, 3, 5, 2, 3), gradient=True),
    ),
    mistakes=(
        Mistake(
            "what lies behind the end joined",
            _built(quiet=lambda x, lengths: x),
            "What lies behind a clip's end goes into the result, into the last pair of an odd clip for one. "
            "A clip alone and the same clip beside a longer one would get two results. Put zeros there "
            "before you join.",
        ),
        Mistake(
            "multiplied by the mask",
            _built(quiet=lambda x, lengths: x * shared.real(x.shape[1], lengths)[..., None]),
            "What lies behind the end is multiplied by 0. That does not take away what is infinite: 0 · inf "
            "is NaN. masked_fill or torch.where puts a 0 in its place.",
        ),
        Mistake(
            "off by one: a frame from behind the end",
            _built(quiet=lambda x, lengths: _silent(x, lengths + 1)),
            "The first frame behind a clip's end is kept. Frames are counted from 0, so the last one is "
            "lengths - 1: look at < and <=.",
        ),
        Mistake(
            "only the pairs behind the end made 0",
            lambda x, lengths: (
                _silent(_side_by_side(_even(x)), _halved(lengths)),
                _halved(lengths),
            ),
            "The pairs behind the end are 0, but the last pair of an odd clip holds a frame from behind its "
            "end. Put zeros there before you join.",
        ),
        Mistake(
            "the last odd frame dropped",
            _dropped,
            "The last frame of an odd clip is lost. It is joined with zeros: round up, not down.",
        ),
        Mistake(
            "the last frame of all dropped",
            _all_dropped,
            "You round down. Where T is odd the last frame is lost, and an odd clip's length is too small, "
            "so that its last pair would count as padding. Round both up: such a frame is joined with zeros.",
        ),
        Mistake(
            "lengths rounded down",
            _built(count=lambda lengths: lengths // 2),
            "The pairs are right, and an odd clip's length is rounded down: its last pair would count as "
            "padding. Round up.",
        ),
        Mistake(
            "lengths rounded to even",
            _built(count=lambda lengths: (lengths / 2).round().long()),
            "round() rounds halves to the next even number: 2.5 to 2 and 3.5 to 4. Round up, always.",
        ),
        Mistake(
            "one more than half",
            _built(count=lambda lengths: lengths // 2 + 1),
            "An even clip's length is one too large. Half, rounded up, is (lengths + 1) // 2.",
        ),
        Mistake(
            "lengths left as they were",
            _built(count=lambda lengths: lengths.clone()),
            "The lengths still count frames. Behind a pyramid there are half as many states: whoever masks "
            "them with the old lengths hides nothing.",
        ),
        Mistake(
            "all lengths alike",
            lambda x, lengths: (
                _built()(x, lengths)[0],
                torch.full_like(lengths, (x.shape[1] + 1) // 2),
            ),
            "Every clip gets the length of the longest. Halve each clip's own.",
        ),
        Mistake(
            "the beginning joined with the middle",
            _built(join=_halves),
            "The first half of the clip is joined with its second half: frame 0 with frame T/2. Neighbours "
            "are joined, frame 0 with frame 1.",
        ),
        Mistake(
            "numbers in turns",
            _built(join=_by(_in_turns)),
            "Numbers of the two frames take turns. They stand side by side: all of the first, then all of "
            "the second.",
        ),
        Mistake(
            "the later frame first",
            _built(join=_by(lambda first, second: torch.cat((second, first), -1))),
            "The two are in the wrong order: the earlier frame comes first.",
        ),
        Mistake(
            "frames averaged",
            _built(join=_by(lambda first, second: (first + second) / 2)),
            "The two frames are averaged. They are put side by side, 2d numbers: nothing of them is lost.",
        ),
        Mistake(
            "frames added",
            _built(join=_by(torch.add)),
            "The two frames are added. They are put side by side, 2d numbers: nothing of them is lost.",
        ),
        Mistake(
            "the larger of two",
            _built(join=_by(torch.maximum)),
            "Of two frames you keep the larger numbers. They are put side by side, 2d numbers: nothing of "
            "them is lost.",
        ),
        Mistake(
            "every second frame",
            _built(join=_by(lambda first, second: first)),
            "Every second frame is dropped. Two neighbours are put side by side, 2d numbers.",
        ),
        Mistake(
            "one after the other",
            _built(join=lambda x: torch.cat((x[:, :-1], x[:, 1:]), -1)[:, :: 1 if x.shape[1] > 1 else 2]),
            "Every frame is joined with the next one, so there are as many states as before. Pairs do not "
            "overlap.",
        ),
        Mistake(
            "reshaped across the bands",
            _built(join=lambda x: x.mT.reshape(len(x), -1, 2 * x.shape[-1])),
            "You reshape while the bands stand before the frames, so that a row holds one band at several "
            "times. The frames are axis 1 of x already.",
        ),
        Mistake(
            "the last frame twice",
            _built(quiet=_last_repeated),
            "An odd clip's last frame is joined with itself. It is joined with zeros.",
        ),
        Mistake(
            "the last frame of all twice",
            _built(even=_last_of_all_repeated),
            "Where T is odd, the last frame is joined with itself. It is joined with zeros.",
        ),
        Mistake(
            "zeros in front of all",
            _built(even=lambda x: F.pad(x, (0, 0, x.shape[1] % 2, 0))),
            "Where T is odd, the zeros stand before the first frame, so that all pairs are others. They "
            "belong behind the last. F.pad takes two numbers for each axis: first how many in front.",
        ),
        Mistake(
            "zeros in front",
            _built(quiet=_in_front),
            "The zeros of an odd clip stand before its first frame, so that all its pairs are others. They "
            "belong behind the last.",
        ),
        Mistake(
            "a pair of zeros too many",
            _built(even=lambda x: F.pad(x, (0, 0, 0, 2 - x.shape[1] % 2))),
            "An even number of frames gets zeros as well, two of them: a state too many. T % 2 tells how "
            "many lack.",
        ),
        Mistake(
            "lengths first",
            lambda x, lengths: _built()(x, lengths)[::-1],
            "The two results are the wrong way round. Return (joined, lengths), in this order.",
        ),
        Mistake(
            "x changed in place",
            _in_place,
            "The result is right, but zeros are written into x itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Three steps: silence behind every clip's end, an even number of frames, then pairs. Which frames "
        "stand side by side in memory?",
        "torch.arange(T) < lengths[:, None] is True for frames of a clip; it needs one more axis to meet "
        "x. F.pad takes two numbers for each axis, the last axis first: the n frames of zeros behind are "
        "the fourth number.",
        "With the frames on axis 1 and their number even, one reshape to rows of 2d numbers joins "
        "neighbours. The lengths are halved and rounded up, and stay integers.",
    ),
)

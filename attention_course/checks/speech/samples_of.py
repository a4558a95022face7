"""Exercise 2: which samples a state stands for."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.speech.shared import NAME

Two = tuple[Tensor, Tensor]


def _times(levels: Tensor) -> Tensor:
    return 2**levels


def _samples(
    frames: Callable[[Tensor], Tensor] = _times,
    clip: Callable[[Tensor, Tensor], Tensor] = lambda last, lengths: last.minimum(lengths[:, None] - 1),
    first: Callable[..., Tensor] = lambda frame, window, hop: frame * hop,
    past: Callable[..., Tensor] = lambda frame, window, hop: frame * hop + window,
) -> Callable[..., Two]:
    """First and last frame of each state, then the first sample of the one and the end of the other."""

    def samples_of(states: Tensor, lengths: Tensor, window: Tensor, hop: Tensor, levels: Tensor) -> Two:
        of_each = frames(levels)
        last = clip((states + 1) * of_each - 1, lengths)
        return first(states * of_each, window, hop), past(last, window, hop)

    return samples_of


_samples_of = _samples()


def _counted_from_1(states: Tensor, *rest: Tensor) -> Two:
    return _samples_of(states - 1, *rest)


def _first_frame_alone(states: Tensor, lengths: Tensor, window: Tensor, hop: Tensor, levels: Tensor) -> Two:
    start = states * 2**levels * hop
    return start, start + window


def _length(states: Tensor, *rest: Tensor) -> Two:
    start, past = _samples_of(states, *rest)
    return start, past - start


def _cut_at_samples(states: Tensor, lengths: Tensor, window: Tensor, hop: Tensor, levels: Tensor) -> Two:
    start, past = _samples(clip=lambda last, lengths: last)(states, lengths, window, hop, levels)
    return start, past.minimum(lengths[:, None])


def _cut_where_frames_begin(
    states: Tensor, lengths: Tensor, window: Tensor, hop: Tensor, levels: Tensor
) -> Two:
    start, past = _samples(clip=lambda last, lengths: last)(states, lengths, window, hop, levels)
    return start, past.minimum((lengths * hop)[:, None])


def _in_place(states: Tensor, lengths: Tensor, window: Tensor, hop: Tensor, levels: Tensor) -> Two:
    right = _samples_of(states, lengths, window, hop, levels)
    states *= 2**levels
    return right


def _drawn(g: Generator, levels: int, hop: int, window: int, *lengths: int, S: int = 5) -> Inputs:
    """States in any order, the last of each clip among them."""
    of_each = 2**levels
    last = (torch.tensor(lengths) + of_each - 1) // of_each - 1
    states = (torch.rand(len(lengths), S, generator=g) * (last[:, None] + 1)).long()
    where = torch.randint(S, (len(lengths), 1), generator=g)
    states = states.scatter(1, where, last[:, None])
    return states, torch.tensor(lengths), *(torch.tensor(n) for n in (window, hop, levels))


SAMPLES_OF = Exercise(
    name=f"{NAME}.samples_of",
    title="Which samples a state stands for",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_samples_of,
    returns=("first", "past"),
    cases=(
        Case("two levels", lambda g: _drawn(g, 2, 160, 256, 23, 18, 20)),
        Case("one level", lambda g: _drawn(g, 1, 100, 250, 11, 8)),
        Case("three levels, as many states as clips", lambda g: _drawn(g, 3, 80, 200, 49, 32, 44, 61, S=4)),
        Case("no pyramid", lambda g: _drawn(g, 0, 160, 400, 9, 14)),
        Case("windows that do not overlap", lambda g: _drawn(g, 2, 300, 200, 30, 13)),
    ),
    mistakes=(
        Mistake(
            "a state taken for a frame",
            _samples(frames=lambda levels: 1),
            "You take a state's number for a frame's. That holds below the pyramid: behind it, a state "
            "stands for several frames, and the times come out too early by that factor.",
        ),
        Mistake(
            "two frames for each level",
            _samples(frames=lambda levels: 2 * levels),
            "Each level doubles what a state stands for: 2, 4, 8 frames, and 1 without a pyramid. You count "
            "2 for each: 2, 4, 6, and none without a pyramid.",
        ),
        Mistake(
            "two frames for each level, one for none",
            _samples(frames=lambda levels: (2 * levels).clamp_min(1)),
            "Each level doubles what a state stands for: 2, 4, 8 frames. You count 2 for each: 2, 4, 6.",
        ),
        Mistake(
            "one level counted",
            _samples(frames=lambda levels: 2 ** levels.clamp_max(1)),
            "A state stands for two frames, however many levels there are. Each level doubles that.",
        ),
        Mistake(
            "a level too few",
            _samples(frames=lambda levels: 2 ** (levels - 1).clamp_min(0)),
            "With a pyramid, a state stands for half as many frames as it should. The first level makes two "
            "of one already.",
        ),
        Mistake(
            "a level too many",
            _samples(frames=lambda levels: 2 ** (levels + 1)),
            "A state stands for twice as many frames as it should. Without a pyramid it is one frame.",
        ),
        Mistake(
            "the window forgotten",
            _samples(past=lambda frame, window, hop: (frame + 1) * hop),
            "You end where the next frame begins. The last frame reaches over window samples from where it "
            "begins, which may be further or less far.",
        ),
        Mistake(
            "steps of a window",
            _samples(
                first=lambda frame, window, hop: frame * window,
                past=lambda frame, window, hop: (frame + 1) * window,
            ),
            "You lay windows end to end. The next frame begins hop samples later, whether it overlaps or "
            "not.",
        ),
        Mistake(
            "only the first frame",
            _first_frame_alone,
            "You end where the state's first frame ends. It stands for several: take the end of the last.",
        ),
        Mistake(
            "beyond the end of the clip",
            _samples(clip=lambda last, lengths: last),
            "The last state of a clip may be joined with frames that do not exist. Its last frame is the "
            "clip's last one at most: lengths - 1.",
        ),
        Mistake(
            "one frame beyond the end",
            _samples(clip=lambda last, lengths: last.minimum(lengths[:, None])),
            "The last state of a clip reaches one frame too far. Frames are counted from 0, so the last one "
            "of a clip is lengths - 1.",
        ),
        Mistake(
            "frames compared with samples",
            _cut_at_samples,
            "You cut the end in samples at lengths, which counts frames. Cut the last frame, before you turn "
            "frames into samples.",
        ),
        Mistake(
            "the end cut at a hop for each frame",
            _cut_where_frames_begin,
            "You cut the end at lengths · hop. The last frame begins a hop before that, and is window "
            "samples long: it may end further on, or earlier. Cut the number of the last frame.",
        ),
        Mistake(
            "the first clip's length for all",
            _samples(clip=lambda last, lengths: last.minimum(lengths[:1, None] - 1)),
            "Every clip is cut where the first one ends. Look for an index 0, or for a batch axis that was "
            "lost.",
        ),
        Mistake(
            "lengths laid along the states",
            _samples(clip=lambda last, lengths: last.minimum(lengths - 1)),
            "lengths [B] lacks the axis of the states, so each state is cut by another clip's length; with "
            "as many states as clips nothing raises. lengths[:, None] is [B, 1].",
        ),
        Mistake(
            "the last sample",
            _samples(past=lambda frame, window, hop: frame * hop + window - 1),
            "That is the last sample of the state. The first one behind it is asked for, so that "
            "wave[first:past] is what was heard.",
        ),
        Mistake(
            "number of samples",
            _length,
            "The second result is how many samples there are. It is asked for the first sample behind them.",
        ),
        Mistake(
            "one frame too many",
            _samples(clip=lambda last, lengths: (last + 1).minimum(lengths[:, None] - 1)),
            "The last frame is that of the next state. A state u ends with the frame before (u + 1) · "
            "2^levels.",
        ),
        Mistake(
            "centres of the windows",
            _samples(first=lambda frame, window, hop: frame * hop + window // 2),
            "You begin in the middle of the first frame's window. It begins at frame times hop.",
        ),
        Mistake(
            "centred windows",
            _samples(
                first=lambda frame, window, hop: frame * hop - window // 2,
                past=lambda frame, window, hop: frame * hop + window // 2,
            ),
            "You take each window to be centred, as torch.stft does unless told center=False. Here frame f "
            "begins at sample f · hop.",
        ),
        Mistake(
            "states counted from 1",
            _counted_from_1,
            "Your first state begins before the clip. States are counted from 0.",
        ),
        Mistake(
            "past first",
            lambda *inputs: _samples_of(*inputs)[::-1],
            "The two results are the wrong way round. Return (first, past), in this order.",
        ),
        Mistake(
            "states changed in place",
            _in_place,
            "The result is right, but states is not what it was, as *= does. Make a new tensor.",
        ),
    ),
    hints=(
        "Two steps, which are best kept apart: from states to frames, then from frames to samples. How many "
        "frames are in a state after one level, after two?",
        "States u and u + 1 begin at frames u · 2^levels and (u + 1) · 2^levels. The last frame of u is the "
        "one before the next state's first, if the clip has it.",
        "Take the smaller of that last frame and lengths - 1, which needs an axis for the states. A frame "
        "begins at frame · hop and its window ends window samples later.",
    ),
)

"""Exercise 2: teacher forcing."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_course.checks.bottleneck import shared
from attention_course.checks.bottleneck.shared import NAME
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.lab.data.pairs import BOS, EOS, PAD


def _shifted(target: Tensor, first: int = BOS) -> Tensor:
    start = torch.full_like(target[:, :1], first)
    return torch.cat((start, target[:, :-1]), dim=1)


def _behind(first: int, target: Tensor) -> Tensor:
    """The target moved by one place, behind the token ``first``; padding where the target has it."""
    return _shifted(target, first).masked_fill(target == PAD, PAD)


def _previous_tokens(target: Tensor) -> Tensor:
    return _behind(BOS, target)


def _last_column_padded(target: Tensor) -> Tensor:
    previous = _previous_tokens(target)
    previous[:, -1] = PAD
    return previous


def _first_overwritten(target: Tensor) -> Tensor:
    previous = target.clone()
    previous[:, 0] = BOS
    return previous


def _first_overwritten_without_eos(target: Tensor) -> Tensor:
    previous = _first_overwritten(target)
    return previous.masked_fill(previous == EOS, PAD)


def _one_too_many(target: Tensor) -> Tensor:
    return torch.cat((torch.full_like(target[:, :1], BOS), target), dim=1)


def _shifted_along_the_batch(target: Tensor) -> Tensor:
    return torch.cat((torch.full_like(target[:1], BOS), target[:-1]), dim=0)


def _as_floats(target: Tensor) -> Tensor:
    start = torch.full((len(target), 1), float(BOS))
    return torch.cat((start, target[:, :-1]), dim=1).masked_fill(target == PAD, PAD)


def _target_in_place(target: Tensor) -> Tensor:
    padding = target == PAD
    target[:, 1:] = target[:, :-1].clone()
    target[:, 0] = BOS
    return target.masked_fill(padding, PAD)


PREVIOUS_TOKENS = Exercise(
    name=f"{NAME}.previous_tokens",
    title="What the teacher feeds in",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_previous_tokens,
    returns=("previous",),
    cases=(
        Case("two sentences", lambda g: (shared.targets(g, 4, 3, 1),)),
        Case("batch", lambda g: (shared.targets(g, 7, 3, 6, 0, 4),)),
        Case("as many sentences as columns", lambda g: (shared.targets(g, 4, 2, 3, 1, 3),)),
        Case("cut off before <eos>", lambda g: (shared.targets(g, 5, 5, 2, 5),)),
        Case("one column", lambda g: (shared.targets(g, 1, 1, 0, 1),)),
    ),
    mistakes=(
        Mistake(
            "not shifted",
            lambda target: target.clone(),
            "The decoder is fed the very word it has to write. It learns to copy: the loss falls to "
            "almost nothing, and without a teacher it writes nonsense. Where is word t - 1?",
        ),
        Mistake(
            "shifted left",
            lambda target: F.pad(target[:, 1:], (0, 1), value=PAD),
            "Position t holds the word after target t: the decoder is shown the future. It must see "
            "the word before. Look at the direction of the shift.",
        ),
        Mistake(
            "one token too many",
            _one_too_many,
            "<bos> is put in front and nothing is taken off at the end, so there is one input more "
            "than there are words to write. Nothing is written after the last target.",
        ),
        Mistake(
            "<bos> written over the first word",
            _first_overwritten,
            "Only the first word has become <bos>. The others still stand at their own place, where "
            "they are to be written. They have to move as well.",
        ),
        Mistake(
            "last column rolled to the front",
            lambda target: target.roll(1, dims=1),
            "roll brings the last column round to the front: <eos> or padding stands where <bos> "
            "should. At the first step nothing has been written yet.",
        ),
        Mistake(
            "<bos> written over the first word, <eos> taken out",
            _first_overwritten_without_eos,
            "<bos> and the padding are where they belong, but the words have not moved: each still stands "
            "where it is to be written. Which word is the right one of the step before?",
        ),
        Mistake(
            "padding in front instead of <bos>",
            lambda target: _behind(PAD, target),
            "The free place in front holds 0, which is padding. Writing starts with <bos>, so that "
            "the decoder can tell a beginning from nothing at all.",
        ),
        Mistake(
            "padding in front, and <eos> fed in",
            lambda target: _shifted(target, PAD),
            "The place in front holds 0, which is padding, where <bos> should start the writing. And after "
            "a short sentence <eos> is fed in, where the target is padding and so should be the input.",
        ),
        Mistake(
            "<eos> in front instead of <bos>",
            lambda target: _behind(EOS, target),
            "The place in front holds 2, which is <eos>: an end, where the writing starts. Which token says "
            "that nothing has been written yet?",
        ),
        Mistake(
            "padding where <eos> is to be written",
            lambda target: _shifted(target).masked_fill(target == EOS, PAD),
            "Where the target is <eos>, your input is padding. To write <eos> the decoder has to read the "
            "last word. And behind it <eos> is fed in, where nothing is to be written. Of which of the two "
            "rows does your mask ask what it is?",
        ),
        Mistake(
            "last column always padding",
            _last_column_padded,
            "The last column of the inputs is padding in every row. A target that fills its row has "
            "something to write there, and the decoder must read the word before it.",
        ),
        Mistake(
            "<eos> fed in",
            _shifted,
            "After a short sentence <eos> is fed in, where the target is padding. Nothing is to be "
            "written there any more: where the target is padding, the input is padding too.",
        ),
        Mistake(
            "shifted twice",
            lambda target: _previous_tokens(_previous_tokens(target)),
            "Everything has moved two places. Shift once, either here or in the model, not in both.",
        ),
        Mistake(
            "shifted along the sentences",
            _shifted_along_the_batch,
            "Each sentence is given the words of the sentence above it. The batch comes first here: "
            "words follow each other along the last axis.",
        ),
        Mistake(
            "tokens turned into floats",
            _as_floats,
            "The values are right, but they are floats, and an embedding wants integers. A new "
            "tensor is float32 unless told: torch.full_like and new_full keep the dtype.",
        ),
        Mistake(
            "target changed in place",
            _target_in_place,
            "You write into target itself, and the loss still needs it. Make a new tensor.",
        ),
    ),
    hints=(
        "Write both rows down for “I am a cat”: what has been written before “I”, before “am”, and "
        "before <eos>?",
        "A column of <bos>, beside target without its last column. torch.full_like makes a column of one "
        "number, in the shape and dtype of another.",
        "In a short sentence, <eos> has now moved on to where the target is padding. masked_fill takes "
        "it away; its mask asks the target, not what you have made of it.",
    ),
)

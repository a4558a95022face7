"""Exercise 1: the summary of a padded sentence."""

import torch
from torch import Tensor

from attention_course.checks.bottleneck.shared import NAME
from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake


def _summary(states: Tensor, lengths: Tensor) -> Tensor:
    return _ends(states, lengths - 1, 0)


def _halves(states: Tensor, forward_at: int | Tensor, backward_at: int | Tensor) -> tuple[Tensor, Tensor]:
    """The forward half of one column and the backward half of another, for each sentence."""
    rows = torch.arange(len(states))
    forward, backward = states.chunk(2, dim=-1)
    return forward[rows, forward_at], backward[rows, backward_at]


def _ends(states: Tensor, forward_at: int | Tensor, backward_at: int | Tensor) -> Tensor:
    return torch.cat(_halves(states, forward_at, backward_at), dim=-1)


def _every_length_for_every_sentence(states: Tensor, lengths: Tensor) -> Tensor:
    forward, backward = states.chunk(2, dim=-1)
    return torch.cat((forward[:, lengths - 1], backward[:, 0]), dim=-1)


SUMMARY = Exercise(
    name=f"{NAME}.summary",
    title="Where a padded sentence ends",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_summary,
    returns=("summary",),
    unseen=("states",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3, 4), torch.tensor([2, 3]))),
        Case("batch", lambda g: (normal(g, 4, 6, 6), torch.tensor([3, 6, 1, 5]))),
        Case(
            "room behind every sentence, float64",
            lambda g: (normal(g, 3, 7, 4, dtype=torch.float64), torch.tensor([4, 2, 5])),
        ),
        Case("one word each", lambda g: (normal(g, 3, 1, 4), torch.tensor([1, 1, 1]))),
        Case("gradient", lambda g: (normal(g, 3, 5, 8), torch.tensor([5, 2, 4])), gradient=True),
    ),
    mistakes=(
        Mistake(
            "last column for both halves",
            lambda states, lengths: _ends(states, -1, -1),
            "Both halves come from states[:, -1]. For a short sentence that column is padding, and "
            "for the backward direction it is where reading begins. Where has each direction read "
            "the whole sentence?",
        ),
        Mistake(
            "last column for the forward half",
            lambda states, lengths: _ends(states, -1, 0),
            "The forward half comes from the last column, which is padding for every sentence but "
            "the longest. Look for lengths: is it used?",
        ),
        Mistake(
            "the longest sentence's end for all",
            lambda states, lengths: _ends(states, lengths.max() - 1, 0),
            "The forward half of every sentence is read where the longest one ends. Each sentence "
            "has an end of its own: look for a max, or for padding that is cut off first.",
        ),
        Mistake(
            "the first sentence's end for all",
            lambda states, lengths: _ends(states, lengths[:1] - 1, 0),
            "The forward half of every sentence is read where the first one ends. Each sentence has an end "
            "of its own: look for an index 0, or for a batch axis that was lost.",
        ),
        Mistake(
            "backward half from the last column",
            lambda states, lengths: _ends(states, lengths - 1, -1),
            "The backward half comes from the last column. For a short sentence that is padding, and for the "
            "longest it is the word at which the backward direction begins. Where does it end?",
        ),
        Mistake(
            "each direction read where it begins",
            lambda states, lengths: _ends(states, 0, lengths - 1),
            "The forward half is read at the first word and the backward half at the last. There each "
            "direction has read one word only. Which of the two ends with which word?",
        ),
        Mistake(
            "backward half from the last word",
            lambda states, lengths: _ends(states, lengths - 1, lengths - 1),
            "Both halves are read at the last word. The backward direction has only begun there: it "
            "has read one word. Where does it end?",
        ),
        Mistake(
            "backward half in front",
            lambda states, lengths: torch.cat(_halves(states, lengths - 1, 0)[::-1], dim=-1),
            "Both halves are right, but the backward one stands first. Keep the order that the states have.",
        ),
        Mistake(
            "off by one: behind the last word",
            lambda states, lengths: _ends(states, lengths, 0),
            "The forward half is read one place behind the last word: that is padding, or, for the "
            "longest sentence, no column at all. Positions count from 0.",
        ),
        Mistake(
            "off by one: behind the last word where there is room",
            lambda states, lengths: _ends(states, lengths.clamp(max=states.shape[1] - 1), 0),
            "The forward half is read one place behind the last word, which is padding; only a sentence as "
            "long as the batch is wide has its last word read, because nothing is behind it. Positions "
            "count from 0: where does a sentence of three words end?",
        ),
        Mistake(
            "off by one: the last word but one",
            lambda states, lengths: _ends(states, lengths - 2, 0),
            "The forward half is read one word too early, so the last word is not in it; for a "
            "sentence of one word the index is -1, the last column. Positions count from 0.",
        ),
        Mistake(
            "every length for every sentence",
            _every_length_for_every_sentence,
            "states[:, lengths - 1] takes the columns of all sentences from each sentence, a third "
            "axis too many. Sentence i wants its own column only: index both axes, the first with "
            "torch.arange.",
        ),
        Mistake(
            "directions added",
            lambda states, lengths: sum(_halves(states, lengths - 1, 0)),
            "The two directions are added up. They stand side by side: the summary is as wide as a state.",
        ),
    ),
    hints=(
        "The forward direction has read the whole sentence after its last word, the backward one "
        "after its first. Which columns are these? Which half of each do you need?",
        "chunk cuts an axis into equal pieces: the last axis in two gives the halves. For the forward "
        "half, sentence i needs the row lengths[i] - 1 of forward[i].",
        "Two indices side by side, the sentence's number and the place of its last word, pick one entry "
        "for each sentence: [B, hidden]. Beside it, along the last axis, goes the backward half's first "
        "column.",
    ),
)

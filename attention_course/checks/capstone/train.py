"""Milestone 6: train it on running text."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.capstone.model import GPT
from attention_course.checks.capstone.shared import NAME
from attention_course.checks.capstone.update import _next, _update
from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.scenes import MeasuredScene
from attention_course.lab.data.text import SYMBOLS, documentation

#: characters that are read before one is asked for; the notebook says so
READ = 48
#: characters in a piece of the reference's. The last of a piece is only a target: a model that is trained on
#: pieces of just READ characters has never been asked at its last place
LENGTH = 64
#: parts of the text, a tenth of which is held back, and pieces of these that are asked
_PARTS, _QUESTIONS = 200, 1000
#: nats per character that are asked for. The best model of pairs, which needs no attention, has about 2.5
BOUND = 2.35


def _train(steps: int = 600, align: Callable = _next, pieces: int = 12) -> Callable[[Tensor, int, int], GPT]:
    """The reference, of so many steps, with its targets placed by ``align``."""

    def train(tokens: Tensor, vocabulary: int, seed: int) -> GPT:
        torch.manual_seed(seed)
        model = GPT(vocabulary, LENGTH, d_model=64, num_heads=4, num_layers=2, dropout=0.0)
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
        update = _update(align=align)
        for step in range(steps):
            start = torch.randint(len(tokens) - LENGTH + 1, (pieces, 1))
            update(model, optimizer, tokens[start + torch.arange(LENGTH)], step)
        return model.eval()

    return train


def _text(generator: Generator) -> Inputs:
    """The course's text without a tenth of its parts, which lie all over it; the questions are from these."""
    parts = torch.cat(documentation()).tensor_split(_PARTS)
    order = torch.randperm(_PARTS, generator=generator).tolist()
    held = torch.cat([parts[place] for place in sorted(order[: _PARTS // 10])])
    rest = torch.cat([parts[place] for place in sorted(order[_PARTS // 10 :])])
    seed = torch.randint(2**31, (), generator=generator)
    start = torch.randint(len(held) - READ, (_QUESTIONS, 1), generator=generator)
    pieces = held[start + torch.arange(READ + 1)]
    answers = F.one_hot(pieces[:, -1], len(SYMBOLS)).float()
    return rest, torch.tensor(len(SYMBOLS)), seed, pieces[:, :-1], answers


def _nats(said: Tensor, right: Tensor) -> float:
    return float(-(said.double().log_softmax(-1) * right).sum(-1).mean())


def _says_it_again(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    """Whether mostly the last character of the question is said once more."""
    return float((said.argmax(-1) == questions[:, -1]).double().mean()) > 0.5


TRAIN = Exercise(
    name=f"{NAME}.train",
    title="Train it",
    points=3,
    difficulty=3,
    minutes=40,
    reference=_train(),
    asks=MeasuredScene(
        scene="trained",
        given=("tokens", "vocabulary", "seed"),
        called="train(tokens, vocabulary, seed)",
        noun="function",
        handed_over="function",
        number="The loss on text that was held back, in nats per character,",
        measure=_nats,
        at_most=BOUND,
        guess=math.log(len(SYMBOLS)),
        seconds=90.0,
    ),
    returns=("logits",),
    cases=(Case("Python's manual", _text),),
    mistakes=(
        Mistake(
            "nothing learned",
            _train(0),
            "Your model guesses. Has the optimizer the parameters of the model that you return, and does "
            "each step call backward and step?",
            shows=lambda said, questions, right: 4 < _nats(said, right) < 5.5,
        ),
        Mistake(
            "targets not shifted",
            _train(80, lambda logits, tokens: (logits, tokens)),
            "Your model says the character that it has just read: it was asked for that one. Drop the last "
            "logits and the first token, as in the step of training.",
            shows=_says_it_again,
        ),
        Mistake(
            "letters only",
            _train(30),
            "Your model knows how frequent each character is, and little more: it has hardly begun. More "
            "steps, or a larger rate; print the loss every 100 steps and see whether it still falls. If it "
            "no longer does, look at zero_grad, at the start and at the rate.",
            shows=lambda said, questions, right: 2.9 < _nats(said, right) <= 4,
        ),
    ),
    hints=(
        "All parts are there: a model of your own, an optimizer, pieces of the text drawn at random, and the "
        "step of the milestone before. The rest is a loop. What is the loss after 100 steps, after 300?",
        "Two layers of width 64 with four heads are enough. A dozen pieces of 64 characters in a step, "
        "AdamW, and the rate of the milestone before: 600 steps take about ten seconds.",
        "Starts are drawn by torch.randint, as a column; with a row of 64 numbers from 0 on added they "
        "index the text. At the end the model goes into evaluation mode and is returned.",
    ),
)

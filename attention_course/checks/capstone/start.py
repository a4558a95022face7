"""Milestone 3: before anything is learned, the loss is that of guessing."""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attention_course.checks.capstone.model import GPT
from attention_course.checks.capstone.shared import BUILT, NAME, sizes, tokens
from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.scenes import MeasuredScene

_SIZES = sizes(50, 32, 48, 4)


def _drawn(generator: Generator) -> Inputs:
    """A seed, random tokens, and as their answers the next ones, marked with 1."""
    seed = torch.randint(2**31, (), generator=generator)
    drawn = tokens(generator, _SIZES["vocabulary"], 16, _SIZES["length"] + 1)
    return seed, drawn[:, :-1], F.one_hot(drawn[:, 1:], _SIZES["vocabulary"]).float()


def _loss(said: Tensor, right: Tensor) -> float:
    return float(-(said.double().log_softmax(-1) * right).sum(-1).mean())


def _distance(said: Tensor, right: Tensor) -> float:
    return abs(_loss(said, right) - math.log(said.shape[-1]))


class _AsDrawnByTorch(GPT):
    """nn.Embedding draws from N(0, 1), and nothing is drawn again."""

    def __init__(self, *sizes, **named) -> None:
        super().__init__(*sizes, **named)
        for part in self.modules():
            if isinstance(part, nn.Embedding | nn.Linear):
                part.reset_parameters()


START = Exercise(
    name=f"{NAME}.start",
    title="Before it has learned",
    points=1,
    difficulty=1,
    minutes=10,
    reference=GPT,
    asks=MeasuredScene(
        scene="started",
        given=("seed",),
        called=f"{BUILT}(tokens)",
        noun="model",
        number="The distance of the first loss from ln(vocabulary)",
        measure=_distance,
        at_most=0.2,
        seconds=10.0,
    ),
    returns=("logits",),
    cases=(Case("random tokens", _drawn, arguments=_SIZES),),
    mistakes=(
        Mistake(
            "drawn too large",
            _AsDrawnByTorch,
            "Before it has learned anything, your model is sure of something wrong: its logits are large. A "
            "logit is the product of d_model numbers of size 1 and a row of the token embedding; how large "
            "are its numbers? nn.Embedding draws them from N(0, 1) unless they are drawn again. Take a "
            "standard deviation of 0.02. If output and embedding are one, see which of the two is drawn "
            "last.",
            shows=lambda said, questions, right: _loss(said, right) > math.log(said.shape[-1]) + 0.5,
        ),
    ),
    hints=(
        "A model that knows nothing should give each token about the same share. What makes logits large "
        "before a single step?",
        "The last norm gives each token d_model numbers of size 1. A logit is their product with a row of "
        "the token embedding. How large may the numbers of that row be?",
        "nn.init.normal_ with std=0.02 for every embedding and every matrix, in a loop over self.modules(), "
        "after all of them exist.",
    ),
)

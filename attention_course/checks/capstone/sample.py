"""Milestone 8: it draws, and the shares are those that the logits say."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.capstone.model import GPT, with_model
from attention_course.checks.capstone.shared import BUILT, NAME, STATE, sizes, state, tokens
from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.scenes import MeasuredScene
from attention_course.checks.engine.surroundings import undisturbed

_SIZES = sizes(7, 8, 16, 2)
#: draws for each prompt; the temperatures
_DRAWS, _COLD, _HOT = 4000, 0.7, 1.6
#: standard errors that a share may be off: chance goes further once in ten million runs
_FAR = 6.0


def _drawn(generator: Generator, temperature: float) -> Inputs:
    """A state, a temperature, prompts, and for each the share of every token."""
    given = state(generator, _SIZES, spread=0.4)
    prompts = tokens(generator, _SIZES["vocabulary"], 4, 6)
    with undisturbed(), torch.no_grad():
        model = GPT(**_SIZES).eval()
        model.load(dict(zip(STATE, given, strict=True)))
        right = (model(prompts)[:, -1] / temperature).softmax(-1)
    return *given, torch.tensor(temperature, dtype=torch.float64), prompts, right


def _errors(said: Tensor, right: Tensor) -> float:
    """The largest deviation of any share, in standard errors; a share of nearly nothing may be one draw."""
    spread = (right * (1 - right) / _DRAWS + 1 / _DRAWS**2).sqrt()
    return float(((said - right).abs() / spread).max())


def _powers(*exponents: float) -> Callable[[Tensor, Tensor, Tensor], bool]:
    """Whether the shares are those at another temperature: the right ones to one of these powers."""

    def shows(said: Tensor, questions: Tensor, right: Tensor) -> bool:
        others = (right.log() * exponent for exponent in exponents)
        return any(_errors(said, other.softmax(-1)) < _FAR for other in others)

    return shows


def _softmax_of_shares(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    shares = [right, *((right.log() * t).softmax(-1) / t for t in (_COLD, _HOT))]
    return any(_errors(said, one.softmax(-1)) < _FAR for one in shares)


def _always_the_likeliest(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    return bool((said.amax(-1) == 1).all() and (said.argmax(-1) == right.argmax(-1)).all())


def _all_the_same(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    return bool((said.amax(-1) == 1).all())


def _one_for_all(self: GPT, logits: Tensor, temperature: float) -> Tensor:
    return GPT.chosen(self, logits[:1], temperature).expand(len(logits), 1)


SAMPLE = Exercise(
    name=f"{NAME}.sample",
    title="It draws",
    points=2,
    difficulty=2,
    minutes=15,
    reference=GPT,
    asks=MeasuredScene(
        scene="drawn",
        given=("temperature",),
        state=STATE,
        called=f"{BUILT}.generate(tokens, number, temperature)",
        noun="model",
        told={"draws": _DRAWS},
        number="The largest deviation of a token's share from what the logits say, in standard errors,",
        measure=_errors,
        at_most=_FAR,
        seconds=10.0,
    ),
    returns=("shares",),
    cases=(
        Case("cold", lambda g: _drawn(g, _COLD), arguments=_SIZES),
        Case("hot", lambda g: _drawn(g, _HOT), arguments=_SIZES),
    ),
    mistakes=(
        Mistake(
            "temperature multiplied",
            with_model(shares=lambda self, logits, temperature: (logits * temperature).softmax(-1)),
            "Cold is hot and hot is cold: the logits are multiplied by the temperature. Divide them by it.",
            shows=_powers(_COLD**2, _HOT**2),
        ),
        Mistake(
            "temperature forgotten",
            with_model(shares=lambda self, logits, temperature: logits.softmax(-1)),
            "The shares are those at temperature 1, whatever is asked for. Divide the logits by the "
            "temperature before the softmax.",
            shows=_powers(_COLD, _HOT),
        ),
        Mistake(
            "softmax taken twice",
            with_model(
                shares=lambda self, logits, temperature: (logits.softmax(-1) / temperature).softmax(-1)
            ),
            "What is drawn from is the softmax of probabilities: all tokens have about the same share. The "
            "temperature divides logits, and there is one softmax.",
            shows=_softmax_of_shares,
        ),
        Mistake(
            "always the likeliest",
            with_model(chosen=lambda self, logits, temperature: logits.argmax(-1, keepdim=True)),
            "Every draw is the likeliest token. That is what temperature 0 means; above 0 draw with "
            "torch.multinomial.",
            shows=_always_the_likeliest,
        ),
        Mistake(
            "one draw for the whole batch",
            with_model(chosen=_one_for_all),
            "All rows of a batch get the same token. Each row draws for itself.",
            shows=_all_the_same,
        ),
    ),
    hints=(
        "Try it on a batch of 4000 equal prompts and count what is drawn. At which temperature are the "
        "counts right, and how do they move when it rises?",
        "A temperature below 1 makes large differences of logits larger. Softmax comes once, behind that.",
        "torch.multinomial takes one row of probabilities for each row of the batch, [batch, vocabulary], "
        "and returns [batch, 1].",
    ),
)

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

#: so many tokens, and none of them rare, that whoever draws among the first 50 is seen
_SIZES = sizes(64, 8, 16, 2)
#: draws for each prompt, in how many calls, and of how many new tokens; the temperatures
_DRAWS, _CALLS, _NEW, _COLD, _HOT = 6000, 2, 2, 0.7, 1.6
#: standard errors that a share may be off: chance goes further about once in a million runs
_FAR = 6.0


def _drawn(generator: Generator, temperature: float) -> Inputs:
    """A state, a temperature, prompts, and for each the share of every token as the first and as the second
    new one."""
    given = state(generator, _SIZES, spread=0.3)
    vocabulary = _SIZES["vocabulary"]
    prompts = tokens(generator, vocabulary, 3, 6)
    with undisturbed(), torch.no_grad():
        model = GPT(**_SIZES).eval()
        model.load(dict(zip(STATE, given, strict=True)))
        first = (model(prompts)[:, -1] / temperature).softmax(-1)
        every = torch.arange(vocabulary).repeat(len(prompts))[:, None]
        longer = torch.cat((prompts.repeat_interleave(vocabulary, 0), every), 1)
        behind = (model(longer)[:, -1] / temperature).softmax(-1).unflatten(0, first.shape)
        right = torch.stack((first, (first[..., None] * behind).sum(1)), 1)
    return *given, torch.tensor(temperature, dtype=torch.float64), prompts, right


def _errors(said: Tensor, right: Tensor) -> float:
    """The largest deviation of any share, in standard errors; a rare one may be off by draws."""
    spread = (right * (1 - right) / _DRAWS + (3 / _DRAWS) ** 2).sqrt()
    return float(((said - right).abs() / spread).max())


def _powers(*exponents: float) -> Callable[[Tensor, Tensor, Tensor], bool]:
    """Whether the shares are those at another temperature: the right ones to one of these powers."""

    def shows(said: Tensor, questions: Tensor, right: Tensor) -> bool:
        others = (right[:, 0].log() * exponent for exponent in exponents)
        return any(_errors(said[:, 0], other.softmax(-1)) < _FAR for other in others)

    return shows


def _nearly_equal(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    return _errors(said, torch.full_like(said, 1 / said.shape[-1])) < 3 * _FAR


def _always_the_likeliest(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    first = said[:, 0].argmax(-1) == right[:, 0].argmax(-1)
    return bool((said.amax(-1) == 1).all() and first.all())


def _all_the_same(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    return bool(((said[:, 0] > 0).sum(-1) <= _CALLS).all())


def _one_for_all(self: GPT, logits: Tensor, temperature: float) -> Tensor:
    return GPT.chosen(self, logits[:1], temperature).expand(len(logits), 1)


def _one_share_for_all(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    mean = right[:, 0].mean(0, keepdim=True).expand_as(right[:, 0])
    return _errors(said[:, 0], mean) < _FAR


def _first_alone(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    return _errors(said[:, 0], right[:, 0]) <= _FAR


def _some_are_never_drawn(said: Tensor, questions: Tensor, right: Tensor) -> bool:
    return bool(((said == 0) & (right * _DRAWS > 40)).any())


@torch.no_grad()
def _likeliest_behind_the_first(self: GPT, tokens: Tensor, number: int, temperature: float) -> Tensor:
    first = GPT.generate(self, tokens, 1, temperature)
    return GPT.generate(self, first, number - 1, 0.0)


def _of_the_first(number: int) -> Callable[[GPT, Tensor, float], Tensor]:
    def shares(self: GPT, logits: Tensor, temperature: float) -> Tensor:
        logits = logits.masked_fill(logits < logits.topk(number).values[:, -1:], -torch.inf)
        return GPT.shares(self, logits, temperature)

    return shares


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
        told={"draws": _DRAWS, "calls": _CALLS, "number": _NEW},
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
            "all nearly alike",
            with_model(
                shares=lambda self, logits, temperature: (logits.softmax(-1) / temperature).softmax(-1)
            ),
            "All tokens have about the same share, whatever the logits say. Is a softmax taken of "
            "probabilities? The temperature divides logits, and there is one softmax.",
            shows=_nearly_equal,
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
            "All rows of a prompt get the same token. Each row draws for itself.",
            shows=_all_the_same,
        ),
        Mistake(
            "the same shares for all rows",
            with_model(
                shares=lambda self, logits, temperature: (
                    GPT.shares(self, logits, temperature).mean(0).expand_as(logits)
                )
            ),
            "Rows with different prompts draw from one mixture of their shares. Each has logits of its own.",
            shows=_one_share_for_all,
        ),
        Mistake(
            "only the first new token drawn",
            with_model(generate=_likeliest_behind_the_first),
            "The first new token has its right shares, and the one behind it has not. All are drawn in the "
            "same way.",
            shows=_first_alone,
        ),
        Mistake(
            "some are never drawn",
            with_model(shares=_of_the_first(50)),
            "Tokens that should come are never drawn. The draw is among all of them: no top-k, no top-p.",
            shows=_some_are_never_drawn,
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

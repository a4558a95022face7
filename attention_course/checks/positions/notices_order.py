"""Exercise 7: an experiment on who notices the order of the tokens."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.drawing import normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.positions import shared
from attention_course.checks.positions.rotate import ROTATE
from attention_course.checks.positions.shared import NAME

#: what moves by less is rounding; the notebook says so
NOTICED = 1e-3

Read = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _attended(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ value


def _plain(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    return _attended(x @ w_query, x @ w_key, x @ w_value)


def _added(x: Tensor, *matrices: Tensor) -> Tensor:
    return _plain(x + shared.encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype), *matrices)


def _turned(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    query, key = (ROTATE.reference(x @ w, torch.tensor(0)) for w in (w_query, w_key))
    return _attended(query, key, x @ w_value)


def _causal(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    return _attended(x @ w_query, x @ w_key, x @ w_value, is_causal=True)


READERS: tuple[Read, ...] = (_plain, _added, _turned, _causal)


def _largest(difference: Tensor) -> Tensor:
    return difference.abs().amax((-1, -2))


def _experiment(
    *,
    readers: tuple[Read, ...] = READERS,
    undone: Callable[[Tensor, Tensor], Tensor] = lambda out, order: out[..., order, :],
    largest: Callable[[Tensor], Tensor] = _largest,
    noticed: Callable[[Tensor], Tensor] = lambda moved: moved > NOTICED,
    held: Callable[[Tensor, Tensor], Tensor] = lambda predicted, noticed: predicted == noticed,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The reference with one of its parts replaced; ``undone`` makes what shuffled outputs stand beside."""

    def notices_order(x, order, w_query, w_key, w_value, predicted):
        matrices = w_query, w_key, w_value
        moved = [
            largest(read(x[..., order, :], *matrices) - undone(read(x, *matrices), order)) for read in readers
        ]
        moved = torch.stack(moved, -1)
        return moved, held(predicted, noticed(moved))

    return notices_order


def _order_of_tokens(x, order, w_query, w_key, w_value, predicted):
    """The shuffled output is shuffled again instead of put back."""
    matrices = w_query, w_key, w_value
    after = (read(x[..., order, :], *matrices)[..., order, :] for read in READERS)
    before = (read(x, *matrices) for read in READERS)
    moved = torch.stack([_largest(a - b) for a, b in zip(after, before, strict=True)], -1)
    return moved, predicted == (moved > NOTICED)


def _noticed_for_moved(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    moved, held = _experiment()(*inputs)
    return (moved > NOTICED).to(moved.dtype), held


def _all_held(predicted: Tensor, noticed: Tensor) -> Tensor:
    return torch.ones_like(noticed)


# Cases ----------------------------------------------------------------------------------------


def _run(
    generator: Generator,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    draw: Callable[..., Tensor] = normal,
    predicted: tuple[bool, ...] | None = None,
) -> Inputs:
    *_, T, d = shape
    order = torch.randperm(T, generator=generator).roll(1)
    order = torch.arange(T).roll(1) if bool((order[order] == torch.arange(T)).all()) else order
    guess = torch.rand(4, generator=generator) < 0.5 if predicted is None else torch.tensor(predicted)
    return (
        draw(generator, *shape).to(dtype),
        order,
        *(2 * weight(generator, d, d, dtype) for _ in range(3)),
        guess,
    )


def _one_word(generator: Generator) -> Inputs:
    """The second sentence is one word again and again: some readers notice in the first alone."""
    x, *others = _run(generator, 2, 5, 6)
    x[1] = x[1, 0]
    return x, *others


NOTICES_ORDER = Exercise(
    name=f"{NAME}.notices_order",
    title="Experiment: who notices the order?",
    points=2,
    difficulty=2,
    minutes=20,
    reference=_experiment(),
    returns=("moved", "held"),
    settings=("predicted",),
    cases=(
        Case("one decimal", lambda g: _run(g, 4, 4, draw=tenths)),
        Case("batch", lambda g: _run(g, 3, 5, 8)),
        Case("all said to notice", lambda g: _run(g, 2, 6, 8, predicted=(True,) * 4)),
        Case(
            "none said to notice, float64",
            lambda g: _run(g, 2, 6, 4, dtype=torch.float64, predicted=(False,) * 4),
        ),
        Case("a sentence that repeats one word", _one_word),
        Case("gradients", lambda g: _run(g, 5, 6), finite=True),
    ),
    mistakes=(
        Mistake(
            "not put back",
            _experiment(undone=lambda out, order: out),
            "The two outputs are compared row by row as they come, so every reader seems to notice: row i of "
            "the one belongs to another token than row i of the other. Compare token with token.",
        ),
        Mistake(
            "shuffled twice",
            _order_of_tokens,
            "The shuffled output is shuffled once more, which does not put it back. Shuffle the other one in "
            "the same way instead: read(x)[..., order, :].",
        ),
        Mistake(
            "the mean instead of the largest",
            _experiment(largest=lambda difference: difference.abs().mean((-1, -2))),
            "You measure the mean difference. The largest one is asked for.",
        ),
        Mistake(
            "the length instead of the largest",
            _experiment(largest=lambda difference: difference.flatten(-2).norm(dim=-1)),
            "You measure the root of all squared differences together. The largest single one is asked for.",
        ),
        Mistake(
            "squared",
            _experiment(largest=lambda difference: difference.square().amax((-1, -2))),
            "You measure the largest squared difference. The largest absolute one is asked for.",
        ),
        Mistake(
            "whether, not how far",
            _noticed_for_moved,
            "moved holds 0 and 1: who noticed. How far the outputs move is asked for; the bound belongs to "
            "held alone.",
        ),
        Mistake(
            "no absolute value",
            _experiment(largest=lambda difference: difference.amax((-1, -2))),
            "A difference below 0 is one as well: take absolute values first.",
        ),
        Mistake(
            "the last reader without its mask",
            _experiment(readers=(_plain, _added, _turned, _plain)),
            "The fourth reader has no positions, but it has a causal mask.",
        ),
        Mistake(
            "two readers exchanged",
            _experiment(readers=(_plain, _turned, _added, _causal)),
            "The order of the readers is: plain, sinusoids added, turned, causal.",
        ),
        Mistake(
            "everything held",
            _experiment(held=_all_held),
            "You say that every prediction held. What was predicted is compared with what was measured.",
        ),
        Mistake(
            "who noticed, not what held",
            _experiment(held=lambda predicted, noticed: noticed),
            "held is what was measured: who noticed. It asks whether the prediction was right.",
        ),
        Mistake(
            "whatever was predicted",
            _experiment(held=lambda predicted, noticed: ~noticed),
            "held is True wherever a reader has not noticed, whatever was predicted. Do you compare with the "
            "guesses of the notebook? The check brings its own, in predicted.",
        ),
        Mistake(
            "rounding taken for noticing",
            _experiment(noticed=lambda moved: moved > 0),
            "The numbers are right, and held counts every difference above 0 as noticed. Rounding leaves "
            "such differences too: noticed is what lies above 1e-3.",
        ),
        Mistake(
            "what failed",
            _experiment(held=lambda predicted, noticed: predicted != noticed),
            "held is True where the prediction was wrong.",
        ),
    ),
    hints=(
        "If a reader does not notice the order, what does it say of a token that has been moved? The same "
        "as before, in another row. So which two rows do you compare?",
        "For each reader: read x, and read x with its tokens in the given order. Row i of the second "
        "belongs to the token order[i]. Bring the first into that order, then take the largest absolute "
        "difference over tokens and columns.",
        "Stack the four numbers along a last axis. A reader has noticed where its number is above 1e-3, and "
        "a prediction has held where it equals that.",
    ),
)

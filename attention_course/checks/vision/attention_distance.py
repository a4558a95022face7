"""Exercise 4: how far a head looks."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.vision import shared
from attention_course.checks.vision.shared import NAME, number, side


def _grid(N: int, columns: int) -> Tensor:
    """[N, 2], row and column of each patch."""
    n = torch.arange(N)
    return torch.stack((n // columns, n % columns), -1)


def _steps(N: int, columns: int) -> Tensor:
    """[N, N, 2], how many rows and columns lie between any two."""
    places = _grid(N, columns)
    return (places[:, None] - places).abs().double()


def _euclidean(N: int, columns: int) -> Tensor:
    return _steps(N, columns).square().sum(-1).sqrt()


def _measured(
    apart: Callable[[int, int], Tensor] = _euclidean,
    finish: Callable[[Tensor], Tensor] = lambda weighed: weighed.sum(-1).mean(-1),
    weights_of: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> Callable[[Tensor, Tensor], Tensor]:
    def attention_distance(weights: Tensor, columns: Tensor) -> Tensor:
        far = apart(weights.shape[-1], int(columns)).to(weights.dtype)
        return finish(weights_of(weights) * far)

    return attention_distance


_attention_distance = _measured()


def _without_itself(weights: Tensor) -> Tensor:
    others = weights * (1 - torch.eye(weights.shape[-1], dtype=weights.dtype))
    left = others.sum(-1, keepdim=True)
    return others / left.masked_fill(left == 0, 1.0)


def _to_the_mean_place(weights: Tensor, columns: Tensor) -> Tensor:
    places = _grid(weights.shape[-1], int(columns)).to(weights.dtype)
    return (weights @ places - places).square().sum(-1).sqrt().mean(-1)


def _to_the_largest(weights: Tensor, columns: Tensor) -> Tensor:
    far = _euclidean(weights.shape[-1], int(columns)).to(weights.dtype)
    largest = weights.argmax(-1, keepdim=True)
    return far.expand(weights.shape).gather(-1, largest).squeeze(-1).mean(-1)


def _in_place(weights: Tensor, columns: Tensor) -> Tensor:
    weights *= _euclidean(weights.shape[-1], int(columns)).to(weights.dtype)
    return weights.sum(-1).mean(-1)


def _near(g: Generator, N: int, columns: int) -> Inputs:
    """A head that looks at neighbours, one that looks at itself alone, one that looks everywhere alike."""
    scores = -_steps(N, columns).sum(-1) + 0.5 * torch.randn(N, N, generator=g, dtype=torch.float64)
    heads = scores.softmax(-1).float(), torch.eye(N), torch.full((N, N), 1 / N)
    return torch.stack(heads), number(columns)


ATTENTION_DISTANCE = Exercise(
    name=f"{NAME}.attention_distance",
    title="How far a head looks",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_attention_distance,
    returns=("distance",),
    given_distributions=("weights",),
    cases=(
        Case("two rows of three, tenths", lambda g: (shared.tenths_of_1(g, 2, 6, 6), number(3))),
        Case("batch and heads", lambda g: (shared.weights(g, 2, 3, 12, 12), number(4))),
        Case("a tall grid", lambda g: (shared.weights(g, 4, 10, 10), number(2))),
        Case("a square", lambda g: (shared.weights(g, 2, 2, 9, 9), number(3))),
        Case("near, itself, everywhere", lambda g: _near(g, 15, 5)),
        Case("one head, float64", lambda g: (shared.weights(g, 8, 8, dtype=torch.float64), number(4))),
        Case("gradient", lambda g: (shared.weights(g, 2, 2, 6, 6), number(2)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "distance in the row of tokens",
            _measured(apart=lambda N, columns: (torch.arange(N)[:, None] - torch.arange(N)).abs().double()),
            "You count how many tokens lie between two patches. Patches one below the other are neighbours, "
            "and a whole row of tokens apart: find row and column of each.",
        ),
        Mistake(
            "rows and columns added",
            _measured(apart=lambda N, columns: _steps(N, columns).sum(-1)),
            "You add the rows and the columns between two patches. That is the way of a taxi; here it is the "
            "straight line, by Pythagoras.",
        ),
        Mistake(
            "the larger of rows and columns",
            _measured(apart=lambda N, columns: _steps(N, columns).amax(-1)),
            "You take the larger of the two differences, the moves of a king. Here it is the straight line, "
            "by Pythagoras.",
        ),
        Mistake(
            "the root is missing",
            _measured(apart=lambda N, columns: _euclidean(N, columns).square()),
            "These are squares of distances. Take the root of each, before the weights.",
        ),
        Mistake(
            "the root after the weights",
            _measured(
                apart=lambda N, columns: _euclidean(N, columns).square(),
                finish=lambda weighed: weighed.sum(-1).sqrt().mean(-1),
            ),
            "You weigh squares of distances and take the root of their sum: far patches count for more. Take "
            "the root first, then the weights.",
        ),
        Mistake(
            "the root at the end",
            _measured(
                apart=lambda N, columns: _euclidean(N, columns).square(),
                finish=lambda weighed: weighed.sum(-1).mean(-1).sqrt(),
            ),
            "You average squares of distances and take the root at the end: far patches count for more. Take "
            "the root first, then the weights.",
        ),
        Mistake(
            "divided by the number of rows",
            _measured(apart=lambda N, columns: _euclidean(N, N // columns)),
            "You take the number of columns for the number of rows. A row is full after as many patches as "
            "there are columns.",
        ),
        Mistake(
            "a square taken for granted",
            _measured(apart=lambda N, columns: _euclidean(N, side(N))),
            "You take the grid to be square. columns says how wide it is.",
        ),
        Mistake(
            "measured in widths of the grid",
            _measured(apart=lambda N, columns: _euclidean(N, columns) / columns),
            "The distances are divided by the number of columns: your unit is the width of the image. It is "
            "the width of a patch.",
        ),
        Mistake(
            "the columns' distance alone",
            _measured(apart=lambda N, columns: _steps(N, columns)[..., 1]),
            "You count the columns between two patches and not the rows.",
        ),
        Mistake(
            "the rows' distance alone",
            _measured(apart=lambda N, columns: _steps(N, columns)[..., 0]),
            "You count the rows between two patches and not the columns.",
        ),
        Mistake(
            "distance to the mean place",
            _to_the_mean_place,
            "You take the mean place that a query looks at, and the distance to that. A head that looks far "
            "to the left and far to the right would seem to look at itself: weigh distances, not places.",
        ),
        Mistake(
            "distance to the largest weight",
            _to_the_largest,
            "You take the distance to the patch with the largest weight. All weights count, each with its "
            "patch's distance; and argmax lets no gradient through.",
        ),
        Mistake(
            "weights not used",
            _measured(finish=lambda far: far.mean((-2, -1)), weights_of=torch.ones_like),
            "That is the mean distance between any two patches, whatever the head looks at. Weigh each "
            "distance.",
        ),
        Mistake(
            "the patch itself left out",
            _measured(weights_of=_without_itself),
            "You leave out what a patch gives to itself and share the rest out anew. It stays, with its "
            "distance of 0.",
        ),
        Mistake(
            "mean over the keys",
            _measured(finish=lambda weighed: weighed.mean((-2, -1))),
            "You divide by the number of keys as well. The weights of a query sum to 1, so the sum over the "
            "keys is a mean already.",
        ),
        Mistake(
            "sum over the queries",
            _measured(finish=lambda weighed: weighed.sum((-2, -1))),
            "The queries are added up. Take their mean: a larger image would make every head look further.",
        ),
        Mistake(
            "one number for each query",
            _measured(finish=lambda weighed: weighed.sum(-1)),
            "That is right for each query. Take the mean over them.",
        ),
        Mistake(
            "one number for everything",
            _measured(finish=lambda weighed: weighed.sum(-1).mean()),
            "Heads and images are averaged as well. One number for each is asked for: what stands in front "
            "of the last two axes stays.",
        ),
        Mistake(
            "weights changed in place",
            _in_place,
            "The result is right, but it is written into weights itself, as *= does. Make a new tensor.",
        ),
    ),
    hints=(
        "How far apart are patch 0 and patch 5 of a grid that is three columns wide? Write row and column of "
        "each, then think of a right triangle.",
        "n // columns and n % columns are row and column of patch n. With [:, None] in one of two copies you "
        "get all differences at once, [N, N].",
        "The [N, N] distances, roots taken, are the same for every head. Multiply, sum over the keys, and "
        "average what the queries have. Mind the dtype: distances come from integers.",
    ),
)

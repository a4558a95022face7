"""Exercise 3: through all layers."""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.seeing import shared
from attention_course.checks.seeing.shared import NAME

#: weights [L, h, T, T] -> one matrix for each layer [L, T, T]
Layers = Callable[[Tensor], Tensor]


def _eye(weights: Tensor) -> Tensor:
    return torch.eye(weights.shape[-1], dtype=weights.dtype)


def _half(mean: Tensor) -> Tensor:
    return (mean + _eye(mean)) / 2


def _to_1(matrix: Tensor, dim: int = -1) -> Tensor:
    return matrix / matrix.sum(dim, keepdim=True)


def _product(layers: Tensor) -> Tensor:
    """The top layer on the left."""
    return reduce(lambda below, layer: layer @ below, layers)


def _rollout(weights: Tensor) -> Tensor:
    layers = (weights.mean(1) + _eye(weights)) / 2
    rolled = layers[0]
    for layer in layers[1:]:
        rolled = layer @ rolled
    return rolled


def _rolled(
    layers: Layers = lambda weights: _half(weights.mean(1)), product: Callable[[Tensor], Tensor] = _product
) -> Callable[[Tensor], Tensor]:
    return lambda weights: product(layers(weights))


def _bottom_up(layers: Tensor) -> Tensor:
    return reduce(lambda product, layer: product @ layer, layers)


def _some_layers(kept: slice) -> Callable[[Tensor], Tensor]:
    """Leave layers out; of nothing the identity is left."""
    return lambda layers: reduce(lambda below, layer: layer @ below, layers[kept], _eye(layers))


def _first_without(weights: Tensor) -> Tensor:
    means = weights.mean(1)
    return torch.cat((means[:1], _half(means[1:])))


def _residual_of_the_input(weights: Tensor) -> Tensor:
    """Half of a layer's output is the input's token, not what has arrived in that token."""
    return reduce(lambda below, mean: _half(mean @ below), weights.mean(1), _eye(weights))


def _in_place(weights: Tensor) -> Tensor:
    result = _rollout(weights)
    weights += _eye(weights)
    weights /= 2
    return result


ROLLOUT = Exercise(
    name=f"{NAME}.rollout",
    title="Through all layers",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_rollout,
    given_distributions=("weights",),
    returns=("rolled",),
    distributions=("rolled",),
    cases=(
        Case("one decimal", lambda g: (shared.tenths_of_1(g, 2, 2, 3, 3),)),
        Case("three layers", lambda g: (shared.rows(g, 3, 2, 4, 4),)),
        Case("a single layer", lambda g: (shared.rows(g, 1, 3, 5, 5),)),
        Case("as many heads as layers", lambda g: (shared.rows(g, 3, 3, 5, 5),)),
        Case("causal, float64", lambda g: (shared.rows(g, 4, 2, 6, 6, causal=True, dtype=torch.float64),)),
        Case("gradient", lambda g: (shared.rows(g, 2, 3, 4, 4),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "order of the product",
            _rolled(product=_bottom_up),
            "The layers are multiplied in the wrong order: the first stands on the left. A row of the result "
            "is a token at the top, so the top layer comes first, and the first layer, which reads the "
            "input, last.",
        ),
        Mistake(
            "transposed",
            lambda weights: _rollout(weights).mT,
            "Rows and columns are swapped: a row is a token at the top, and sums to 1; a column is a token "
            "of the input.",
        ),
        Mistake(
            "no residual",
            _rolled(lambda weights: weights.mean(1)),
            "Each layer's weights are multiplied as they are. Half of what a token is comes by the residual "
            "connection, from itself: add the identity.",
        ),
        Mistake(
            "residual not made to sum to 1",
            _rolled(lambda weights: weights.mean(1) + _eye(weights)),
            "The identity is added, and the rows sum to 2, after L layers to 2 to the power of L. Half of "
            "each: every row of every layer sums to 1.",
        ),
        Mistake(
            "identity not halved",
            _rolled(lambda weights: weights.mean(1) / 2 + _eye(weights)),
            "The weights are halved and the identity is not: the rows sum to 3/2. Half of each.",
        ),
        Mistake(
            "half the weights, no residual",
            _rolled(lambda weights: weights.mean(1) / 2),
            "The weights are halved, and nothing is added in the place of the other half. It belongs to the "
            "residual connection: half the identity.",
        ),
        Mistake(
            "residual once, at the end",
            _rolled(lambda weights: weights.mean(1), lambda layers: _half(_product(layers))),
            "The identity is mixed in once, after the product. Each layer has a residual connection of its "
            "own: mix it in before you multiply.",
        ),
        Mistake(
            "first layer without residual",
            _rolled(_first_without),
            "The product starts with the first layer's weights as they are. That layer has a residual "
            "connection as well.",
        ),
        Mistake(
            "first layer skipped",
            _rolled(product=_some_layers(slice(1, None))),
            "The first layer is missing. With a single layer the result would be the identity. Where does "
            "your loop begin, and with what?",
        ),
        Mistake(
            "first layer twice",
            _rolled(product=lambda layers: _product(layers) @ layers[0]),
            "The first layer is in the product twice. What do you start with, and by what does your loop "
            "multiply it first?",
        ),
        Mistake(
            "two layers, however many there are",
            _rolled(product=lambda layers: _product(layers[:2])),
            "Right for one layer and for two. Of more, all above the second are missing: go through all of "
            "them.",
        ),
        Mistake(
            "residual from the input",
            _residual_of_the_input,
            "In every layer you add the identity to the product so far. But the residual connection hands "
            "on what has arrived in a token, which is a mixture already, and not the token of the input. Mix "
            "the identity with the layer's weights, and then multiply.",
        ),
        Mistake(
            "last layer skipped",
            _rolled(product=_some_layers(slice(None, -1))),
            "The last layer is missing. With a single layer the result would be the identity. Where does "
            "your loop end?",
        ),
        Mistake(
            "last layer alone",
            _rolled(product=lambda layers: layers[-1]),
            "That is the last layer alone: what a token at the top took from the layer below it, not from "
            "the input. Multiply all layers.",
        ),
        Mistake(
            "layers averaged",
            _rolled(product=lambda layers: layers.mean(0)),
            "The layers are averaged. They follow one after another, so a path through all of them has the "
            "product of its steps' weights: a matrix product.",
        ),
        Mistake(
            "layers added",
            _rolled(product=lambda layers: layers.sum(0)),
            "The layers are added. They follow one after another, so a path through all of them has the "
            "product of its steps' weights: a matrix product.",
        ),
        Mistake(
            "entry by entry",
            _rolled(product=lambda layers: layers.prod(0)),
            "The layers are multiplied entry by entry, with *. From a token at the top to one of the input "
            "lead paths over all tokens between: that sum is a matrix product, @.",
        ),
        Mistake(
            "each head by itself",
            lambda weights: torch.stack([_product(_half(head)) for head in weights.transpose(0, 1)]).mean(0),
            "Every head is rolled out by itself, and the results are averaged, as if head 2 of one layer "
            "read only what head 2 of the layer below wrote. Average the heads of each layer first.",
        ),
        Mistake(
            "heads added",
            _rolled(lambda weights: _to_1(weights.sum(1) + _eye(weights))),
            "The heads are added, not averaged, so h parts of attention meet one part of residual. Half of "
            "each layer is the residual.",
        ),
        Mistake(
            "heads added and not made to sum to 1",
            _rolled(lambda weights: _half(weights.sum(1))),
            "The heads are added, so the rows of a layer do not sum to 1. Take their mean.",
        ),
        Mistake(
            "maximum over the heads",
            _rolled(lambda weights: _half(weights.amax(1))),
            "Of the heads you take the largest weight, and the rows no longer sum to 1. That is a variant; "
            "here the heads are averaged.",
        ),
        Mistake(
            "maximum over the heads, made to sum to 1",
            _rolled(lambda weights: _to_1(weights.amax(1) + _eye(weights))),
            "Of the heads you take the largest weight. That is a variant; here the heads are averaged.",
        ),
        Mistake(
            "maximum over the heads, made to sum to 1 before the residual",
            _rolled(lambda weights: _half(_to_1(weights.amax(1)))),
            "Of the heads you take the largest weight, and make the rows sum to 1. That is a variant; here "
            "the heads are averaged, and need no such thing.",
        ),
        Mistake(
            "minimum over the heads",
            _rolled(lambda weights: _to_1(weights.amin(1) + _eye(weights))),
            "Of the heads you take the smallest weight, what all of them agree on. That is a variant; here "
            "the heads are averaged.",
        ),
        Mistake(
            "first head alone",
            _rolled(lambda weights: _half(weights[:, 0])),
            "Only the first head of each layer is used. Average all of them.",
        ),
        Mistake(
            "layers and heads swapped",
            _rolled(lambda weights: _half(weights.mean(0))),
            "You average over the layers and multiply the heads. The first axis is the layers, the second "
            "the heads.",
        ),
        Mistake(
            "columns made to sum to 1",
            _rolled(lambda weights: _to_1(weights.mean(1) + _eye(weights), dim=-2)),
            "Each column is divided by its sum. Rows are what sums to 1: dim=-1, with keepdim=True.",
        ),
        Mistake(
            "1 added everywhere",
            _rolled(lambda weights: _to_1(weights.mean(1) + 1)),
            "A 1 is added to every entry, as if each token were handed on to all. The residual connection "
            "hands it on to itself: torch.eye(T).",
        ),
        Mistake(
            "softmax",
            _rolled(lambda weights: (weights.mean(1) + _eye(weights)).softmax(-1)),
            "The rows go through a softmax so that they sum to 1. That changes their proportions: the sum of "
            "a row is 2, so divide by that.",
        ),
        Mistake(
            "identity in float32",
            lambda weights: reduce(
                lambda below, layer: _half(layer) @ below, weights.mean(1), torch.eye(weights.shape[-1])
            ),
            "torch.eye(T) is float32 whatever weights are, and a matrix product takes no two dtypes. Give it "
            "the dtype of weights.",
        ),
        Mistake(
            "weights changed in place",
            _in_place,
            "The result is right, but weights is overwritten. Make a new tensor.",
        ),
    ),
    hints=(
        "Take one layer first. What is in a token above it, if half comes from the token itself and half "
        "from what the heads have mixed?",
        "weights.mean(1) is [L, T, T], and torch.eye(T) is [T, T]. Every row of their mean sums to 1, layer "
        "by layer, and so does every row of a product of such matrices: print it.",
        "Start with the first layer's matrix and go up. What stands above reads what stands below, so each "
        "new layer is multiplied from the left.",
    ),
)

"""Exercise 5: what a head is worth to the loss, from one backward pass."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.probing.shared import NAME

Importance = Callable[[Tensor, Tensor], Tensor]


def _head_importance(context: Tensor, gradient: Tensor) -> Tensor:
    return (context * gradient).sum((-2, -1)).abs().mean(0)


def _of_sentences(of: Callable[[Tensor, Tensor], Tensor]) -> Importance:
    """The mean over the sentences of another number [B, L, h]."""
    return lambda context, gradient: of(context, gradient).mean(0)


def _product(context: Tensor, gradient: Tensor) -> Tensor:
    return (context * gradient).sum((-2, -1))


def _length(x: Tensor) -> Tensor:
    return x.square().sum((-2, -1)).sqrt()


def _by_layer(context: Tensor, gradient: Tensor) -> Tensor:
    right = _head_importance(context, gradient)
    return right / right.square().sum(-1, keepdim=True).sqrt()


def _shares(context: Tensor, gradient: Tensor) -> Tensor:
    right = _head_importance(context, gradient)
    return right / right.sum(-1, keepdim=True)


def _heads_and_layers(context: Tensor, gradient: Tensor) -> Tensor:
    return _head_importance(context, gradient).mT


def _in_place(context: Tensor, gradient: Tensor) -> Tensor:
    context *= gradient
    return context.sum((-2, -1)).abs().mean(0)


def _drawn(
    g: Generator, B: int, L: int, h: int, T: int, d_k: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    shape = B, L, h, T, d_k
    context, gradient = normal(g, *shape, dtype=torch.float64), normal(g, *shape, dtype=torch.float64)
    # each sentence pulls each head up or down: the products have a sign
    sign = torch.where(torch.rand(B, L, h, 1, 1, generator=g) < 0.5, -1.0, 1.0)
    return context.to(dtype), (gradient + 0.7 * sign * context).to(dtype)


HEAD_IMPORTANCE = Exercise(
    name=f"{NAME}.head_importance",
    title="What a head is worth to the loss",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_head_importance,
    returns=("importance",),
    cases=(
        Case("two sentences, one decimal", lambda g: (tenths(g, 2, 1, 2, 3, 2), tenths(g, 2, 1, 2, 3, 2))),
        Case("five sentences", lambda g: _drawn(g, 5, 2, 4, 6, 3)),
        Case("as many of everything", lambda g: _drawn(g, 3, 3, 3, 3, 3)),
        Case("one sentence", lambda g: _drawn(g, 1, 3, 2, 5, 4)),
        Case("float64", lambda g: _drawn(g, 4, 3, 2, 7, 5, dtype=torch.float64)),
        Case("gradient", lambda g: _drawn(g, 3, 2, 5, 4, 6), gradient=True),
    ),
    mistakes=(
        Mistake(
            "absolute value after the mean",
            lambda context, gradient: _product(context, gradient).mean(0).abs(),
            "The absolute value is taken after the mean over the sentences. A head that lowers the loss of "
            "one sentence and raises that of another would seem to do nothing: take it for each sentence.",
        ),
        Mistake(
            "no absolute value",
            _of_sentences(_product),
            "There is no absolute value, so sentences cancel each other, and heads can be worth less than "
            "nothing. Take it for each sentence, before the mean.",
        ),
        Mistake(
            "the wrong sign",
            _of_sentences(lambda c, g: -_product(c, g)),
            "You take the negative of the product: by how much the loss would rise without the head. Here "
            "the size alone is asked for: the absolute value, for each sentence.",
        ),
        Mistake(
            "absolute value before the sum",
            _of_sentences(lambda c, g: (c * g).abs().sum((-2, -1))),
            "Every number's absolute value is taken before the sum. Columns and tokens of one head may "
            "cancel: sum first, for each sentence, and then take the absolute value.",
        ),
        Mistake(
            "absolute value of each token",
            _of_sentences(lambda c, g: (c * g).sum(-1).abs().sum(-1)),
            "The absolute value is taken for each token. A gate opens or closes a head for the whole "
            "sentence: sum over the tokens first, and then take the absolute value.",
        ),
        Mistake(
            "absolute value of each token, averaged",
            _of_sentences(lambda c, g: (c * g).sum(-1).abs().mean(-1)),
            "The absolute value is taken for each token, and averaged over the tokens. A gate opens or "
            "closes a head for the whole sentence: sum over tokens and columns, and then take the absolute "
            "value.",
        ),
        Mistake(
            "absolute value over all sentences",
            lambda context, gradient: _product(context, gradient).sum(0).abs(),
            "You sum over the sentences and take the absolute value of that. Take it for each sentence, and "
            "then the mean.",
        ),
        Mistake(
            "gradient alone",
            _of_sentences(lambda c, g: g.sum((-2, -1)).abs()),
            "The context is not used. The gradient says how the loss changes with each number of the "
            "context; closing the gate takes the context itself away, so multiply by it.",
        ),
        Mistake(
            "size of the gradient",
            _of_sentences(lambda c, g: g.abs().sum((-2, -1))),
            "These are the absolute values of the gradient. Multiply it by the context, number by number.",
        ),
        Mistake(
            "length of the gradient",
            _of_sentences(lambda c, g: _length(g)),
            "This is the length of the gradient. Multiply it by the context, number by number.",
        ),
        Mistake(
            "context alone",
            _of_sentences(lambda c, g: c.sum((-2, -1)).abs()),
            "The gradient is not used. A head may write much that the loss does not depend on: multiply by "
            "the gradient.",
        ),
        Mistake(
            "length of the context",
            _of_sentences(lambda c, g: _length(c)),
            "This is the length of the context. A head may write much that the loss does not depend on: "
            "multiply by the gradient, number by number.",
        ),
        Mistake(
            "two lengths multiplied",
            _of_sentences(lambda c, g: _length(c) * _length(g)),
            "You multiply the lengths of context and gradient. Their directions matter: it is a dot product.",
        ),
        Mistake(
            "sums multiplied",
            _of_sentences(lambda c, g: (c.sum((-2, -1)) * g.sum((-2, -1))).abs()),
            "You sum context and gradient each for itself and multiply the sums. Multiply number by number, "
            "and then sum.",
        ),
        Mistake(
            "squared",
            _of_sentences(lambda c, g: _product(c, g).square()),
            "The products are squared. Take their absolute value.",
        ),
        Mistake(
            "root of the mean square",
            lambda context, gradient: _product(context, gradient).square().mean(0).sqrt(),
            "This is the root of the mean square over the sentences, in which large ones weigh more. Take "
            "the mean of the absolute values.",
        ),
        Mistake(
            "normalised by layer",
            _by_layer,
            "Each layer is divided by its length. The paper does that before it prunes, so that layers can "
            "be compared; here the plain number is asked for.",
        ),
        Mistake(
            "shares of a layer",
            _shares,
            "The heads of a layer add up to 1. The plain number is asked for: divide by nothing but the "
            "number of sentences.",
        ),
        Mistake(
            "shares of all heads",
            lambda context, gradient: (lambda right: right / right.sum())(
                _head_importance(context, gradient)
            ),
            "The numbers of all heads add up to 1. The plain numbers are asked for.",
        ),
        Mistake(
            "normalised over all heads",
            lambda context, gradient: (lambda right: right / right.norm())(
                _head_importance(context, gradient)
            ),
            "All numbers together are divided by their length. The plain numbers are asked for.",
        ),
        Mistake(
            "mean size of the products",
            _of_sentences(lambda c, g: (c * g).abs().mean((-2, -1))),
            "This is the mean size of the single products. The products of a sentence add up, signs and all; "
            "then take the absolute value of their sum.",
        ),
        Mistake(
            "sum over the sentences",
            lambda context, gradient: _product(context, gradient).abs().sum(0),
            "The sentences are added up. With more of them every head would be worth more: take their mean.",
        ),
        Mistake(
            "divided by the sentences twice",
            lambda context, gradient: _head_importance(context, gradient) / len(context),
            "You divide by the number of sentences twice: what you take the mean of is divided by it "
            "already. gradient is that of the sum of the losses, so it needs no such factor.",
        ),
        Mistake(
            "mean over tokens and columns",
            _of_sentences(lambda c, g: (c * g).mean((-2, -1)).abs()),
            "Within a sentence you take the mean over tokens and columns. A gate acts on all of them, so "
            "they add up.",
        ),
        Mistake(
            "mean over the tokens",
            _of_sentences(lambda c, g: (c * g).sum(-1).mean(-1).abs()),
            "Within a sentence you take the mean over the tokens. A gate acts on all of them, so they add "
            "up.",
        ),
        Mistake(
            "heads and layers exchanged",
            _heads_and_layers,
            "Heads lie where layers should: layers down, heads across.",
        ),
        Mistake(
            "context changed in place",
            _in_place,
            "The result is right, but the products are written into context itself. Make a new tensor.",
        ),
    ),
    hints=(
        "If a gate multiplies a head's context, then by how much does the loss change when the gate moves a "
        "little? The chain rule has one term for every number of the context.",
        "context * gradient has the shape of both. The gate of a head belongs to all tokens and columns of a "
        "sentence: which axes does its derivative sum over?",
        "Three steps, in this order: sum over the last two axes, the size of what comes out for each "
        "sentence, the mean over the first axis.",
    ),
)

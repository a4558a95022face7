"""Exercise 5: Luong's decoder."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import lifted, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.score_functions import shared
from attention_course.checks.score_functions.shared import NAME


def _look(decoder: Tensor, encoder: Tensor, lengths: Tensor) -> Tensor:
    """The weights of a dot-product attention over the words."""
    return shared.softmax_where(decoder @ encoder.mT, shared.real(encoder.shape[-2], lengths))


def _combine(context: Tensor, decoder: Tensor, weight: Tensor) -> Tensor:
    return (torch.cat((context, decoder), dim=-1) @ weight).tanh()


def _luong(
    look: Callable[[Tensor, Tensor, Tensor], Tensor] = _look,
    combine: Callable[[Tensor, Tensor, Tensor], Tensor] = _combine,
) -> Callable[..., tuple[Tensor, Tensor]]:
    def attentional(
        decoder: Tensor, encoder: Tensor, lengths: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        weights = look(decoder, encoder, lengths)
        return combine(weights @ encoder, decoder, weight), weights

    return attentional


def _masking_queries(decoder: Tensor, encoder: Tensor, lengths: Tensor) -> Tensor:
    steps = torch.arange(decoder.shape[-2]) < lengths[:, None]  # [B, T_q]
    return (decoder @ encoder.mT).masked_fill(~steps.unsqueeze(-1), -torch.inf).softmax(-1)


def _luong_inputs(
    generator: Generator,
    T_q: int,
    T_k: int,
    d: int,
    d_out: int,
    *lengths: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """Decoder states a little smaller than normal: their dot products saturate no softmax."""
    return (
        normal(generator, len(lengths), T_q, d, dtype=dtype) / d**0.25,
        normal(generator, len(lengths), T_k, d, dtype=dtype) / d**0.25,
        torch.tensor(lengths),
        shared.weight(generator, 2 * d, d_out, dtype),
    )


def _loud(generator: Generator) -> tuple[Tensor, ...]:
    decoder, encoder, lengths, weight = _luong_inputs(generator, 3, 6, 4, 5, 4, 2, dtype=torch.float64)
    weight[0] = 0.0  # or the tanh is 1 whatever the others say
    height = 400.0 - 800.0 * shared.real(6, lengths).squeeze(1)
    # these scores are not divided by the root of the width, which is 2
    return *lifted(decoder, encoder, height), lengths, weight


def _far_below(generator: Generator) -> tuple[Tensor, ...]:
    """Scores near -12000, in float64, where they still differ."""
    decoder, encoder, lengths, weight = _luong_inputs(generator, 3, 5, 4, 6, 3, 5, 2, dtype=torch.float64)
    weight[0] = 0.0
    return *lifted(decoder, encoder, -6000.0), lengths, weight


def _hidden_too_late(decoder: Tensor, encoder: Tensor, lengths: Tensor) -> Tensor:
    weights = (decoder @ encoder.mT).softmax(-1) * shared.real(encoder.shape[-2], lengths)
    return weights / weights.sum(-1, keepdim=True)


def _no_maximum(decoder: Tensor, encoder: Tensor, lengths: Tensor) -> Tensor:
    powers = (decoder @ encoder.mT).exp() * shared.real(encoder.shape[-2], lengths)
    return powers / powers.sum(-1, keepdim=True)


ATTENTIONAL = Exercise(
    name=f"{NAME}.attentional",
    title="Luong's order: all steps at once",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_luong(),
    returns=("attentional", "weights"),
    unseen=("encoder",),
    distributions=("weights",),
    hidden=("weights",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 1, 2, 2, most=9),
                tenths(g, 1, 3, 2, most=9),
                torch.tensor([2]),
                tenths(g, 4, 3, most=9),
            ),
        ),
        Case("batch", lambda g: _luong_inputs(g, 4, 6, 5, 7, 3, 6, 1)),
        # a transposed weight runs here, and shows
        Case("square weight", lambda g: _luong_inputs(g, 3, 5, 4, 8, 5, 2)),
        Case("no padding, float64", lambda g: _luong_inputs(g, 5, 5, 4, 6, 5, 5, dtype=torch.float64)),
        Case("padding scores high, float64", _loud),
        Case("scores far below 0, float64", _far_below),
        Case("gradient", lambda g: _luong_inputs(g, 3, 5, 4, 6, 4, 5), gradient=True),
    ),
    mistakes=(
        Mistake(
            "inverted mask",
            _luong(
                lambda decoder, encoder, lengths: shared.softmax_where(
                    decoder @ encoder.mT, ~shared.real(encoder.shape[-2], lengths)
                )
            ),
            "The words are hidden and the padding is seen. masked_fill fills where its mask is True: is "
            "yours True at words or at padding?",
        ),
        Mistake(
            "state in front of context",
            _luong(combine=lambda context, decoder, weight: _combine(decoder, context, weight)),
            "You put [h; c] through the weight. Both halves have the same width, so nothing raises, "
            "but each meets the other's rows. Luong's order is [c; h].",
        ),
        Mistake(
            "no tanh",
            _luong(combine=lambda context, decoder, weight: torch.cat((context, decoder), dim=-1) @ weight),
            "The tanh around the product is missing: values are not between -1 and 1.",
        ),
        Mistake(
            "tanh before the weight",
            _luong(
                combine=lambda context, decoder, weight: torch.cat((context, decoder), dim=-1).tanh() @ weight
            ),
            "tanh goes over [c; h] and the weight comes after it. First the weight, which mixes "
            "context and state, then the tanh.",
        ),
        Mistake(
            "weight transposed",
            _luong(combine=lambda context, decoder, weight: _combine(context, decoder, weight.mT)),
            "The product is with Wᵀ, as torch.nn.Linear stores it; that runs only when W is square. "
            "Here W has shape [2 d, d_out]: multiply from the right with W as it is.",
        ),
        Mistake(
            "context returned",
            _luong(combine=lambda context, decoder, weight: context),
            "This is the context. One step is missing: beside the decoder's state, through the "
            "weight and the tanh.",
        ),
        Mistake(
            "no mask",
            _luong(lambda decoder, encoder, lengths: (decoder @ encoder.mT).softmax(-1)),
            "Padding gets weight like any word. Look for lengths: is it used?",
        ),
        Mistake(
            "mask along the queries",
            _luong(_masking_queries),
            "Your mask hides queries: rows of [B, T_q, T_k], as if lengths counted the decoder's steps. "
            "They count encoder states, which are the keys. Along which axis does the mask change?",
        ),
        Mistake(
            "mask after softmax",
            _luong(
                lambda decoder, encoder, lengths: (
                    (decoder @ encoder.mT).softmax(-1) * shared.real(encoder.shape[-2], lengths)
                )
            ),
            "Padding gets no weight, but the rows no longer sum to 1: softmax has already shared "
            "out to padding. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "padding hidden too late",
            _luong(_hidden_too_late),
            "Padding is taken out too late. Where it scores far higher than the words, the maximum is its "
            "own, the words' exponentials are 0 beside it, and dividing by their sum is 0 / 0. Hide it "
            "before a maximum is looked for, as softmax does inside.",
        ),
        Mistake(
            "overflow",
            _luong(_no_maximum),
            "exp of a score far above 0 is infinite, and far below 0 it is 0, so the division gives NaN. "
            "Only differences of scores count: which number can be taken from every score of a row first?",
        ),
        Mistake(
            "off by one: some padding is seen",
            _luong(lambda decoder, encoder, lengths: _look(decoder, encoder, lengths + 1)),
            "One place behind the last word is seen as well. Positions count from 0, so the last word stands "
            "at lengths - 1: look at < and <=.",
        ),
        Mistake(
            "the longest sentence's length for all",
            _luong(lambda decoder, encoder, lengths: _look(decoder, encoder, lengths.max()[None])),
            "Every sentence is cut where the longest one ends, so the padding of the others is seen. Look "
            "for a max: each sentence has its own length.",
        ),
        Mistake(
            "softmax over the queries",
            _luong(
                lambda decoder, encoder, lengths: (
                    (decoder @ encoder.mT)
                    .masked_fill(~shared.real(encoder.shape[-2], lengths), -torch.inf)
                    .softmax(-2)
                )
            ),
            "The columns sum to 1, not the rows; a column of padding is -inf throughout, hence NaN. "
            "Each query shares its attention out among the keys, the last axis. Look at dim.",
        ),
        Mistake(
            "scaled by √d",
            _luong(
                lambda decoder, encoder, lengths: _look(decoder / decoder.shape[-1] ** 0.5, encoder, lengths)
            ),
            "The scores are divided by √d. That is chapter 3's score; here it is the plain dot product.",
        ),
        Mistake(
            "weights returned first",
            lambda *inputs: _luong()(*inputs)[::-1],
            "The two results are the wrong way round. Return (attentional, weights), in this order.",
        ),
    ),
    hints=(
        "The states of all steps are there already, so no loop is needed: attention first, [B, T_q, d] "
        "against [B, T_k, d], as one product.",
        "What is a word is a table [B, T_k]. With an axis of length 1 in its middle, [B, 1, T_k], it is "
        "the same for every query. Scores where it is False become -inf before the softmax.",
        "The context is the product of weights and encoder. Put it in front of the decoder's states, "
        "along the last axis; that times weight, and tanh of all.",
    ),
)

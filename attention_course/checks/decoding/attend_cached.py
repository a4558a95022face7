"""Exercise 2: attention with a cache."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.decoding import shared
from attention_course.checks.decoding.shared import NAME
from attention_course.checks.engine.drawing import lifted, normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake


def _sees(T: int, past: int) -> Tensor:
    """[T, past + T]: all of the past, and of the new tokens those up to itself."""
    return torch.ones(T, past + T, dtype=torch.bool).tril(past)


def _attended(
    mask: Callable[[int, int], Tensor] = _sees,
    join: Callable[[Tensor, Tensor], Tensor] = lambda old, new: torch.cat((old, new), dim=-2),
    join_values: Callable[[Tensor, Tensor], Tensor] | None = None,
    scale: Callable[[Tensor, Tensor, Tensor], float] = lambda query, keys, values: query.shape[-1] ** -0.5,
    axis: int = -1,
) -> Callable[..., tuple[Tensor, Tensor]]:
    def attend_cached(query, key, value, past_key, past_value):
        keys = join(past_key, key)
        values = (join_values or join)(past_value, value)
        scores = query @ keys.mT * scale(query, keys, values)
        hidden = ~mask(query.shape[-2], past_key.shape[-2])
        weights = scores.masked_fill(hidden, -torch.inf).softmax(axis)
        return weights @ values, weights

    return attend_cached


def _attend_cached(
    query: Tensor, key: Tensor, value: Tensor, past_key: Tensor, past_value: Tensor
) -> tuple[Tensor, Tensor]:
    keys, values = torch.cat((past_key, key), dim=-2), torch.cat((past_value, value), dim=-2)
    scores = query @ keys.mT * query.shape[-1] ** -0.5
    hidden = ~_sees(query.shape[-2], past_key.shape[-2])
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return weights @ values, weights


def _mask_after_softmax(query, key, value, past_key, past_value):
    keys, values = torch.cat((past_key, key), dim=-2), torch.cat((past_value, value), dim=-2)
    weights = (query @ keys.mT * query.shape[-1] ** -0.5).softmax(-1)
    weights = weights * _sees(query.shape[-2], past_key.shape[-2])
    return weights @ values, weights


def _two_softmaxes(query, key, value, past_key, past_value):
    """The past and the new tokens each get a whole share."""
    scale = query.shape[-1] ** -0.5
    old = (query @ past_key.mT * scale).softmax(-1)
    seen = _sees(query.shape[-2], 0)
    new = (query @ key.mT * scale).masked_fill(~seen, -torch.inf).softmax(-1)
    return old @ past_value + new @ value, torch.cat((old, new), dim=-1)


def _past_only(query, key, value, past_key, past_value):
    weights = (query @ past_key.mT * query.shape[-1] ** -0.5).softmax(-1)
    return weights @ past_value, weights


def _new_only(query, key, value, past_key, past_value):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~_sees(query.shape[-2], 0), -torch.inf).softmax(-1)
    return weights @ value, weights


def _new_first(old: Tensor, new: Tensor) -> Tensor:
    return torch.cat((new, old), dim=-2)


def _past_hidden(T: int, past: int) -> Tensor:
    return torch.cat((torch.zeros(T, past, dtype=torch.bool), _sees(T, 0)), dim=-1)


def _past_and_self(T: int, past: int) -> Tensor:
    return torch.cat((torch.ones(T, past, dtype=torch.bool), torch.eye(T, dtype=torch.bool)), dim=-1)


def _tokens(
    generator: Generator,
    leading: tuple[int, ...],
    past: int,
    T: int,
    d_k: int,
    d_v: int,
    draw: Callable[..., Tensor] = normal,
) -> tuple[Tensor, ...]:
    """query, key, value of T new tokens; keys and values of ``past`` old ones."""
    widths = ((T, d_k), (T, d_k), (T, d_v), (past, d_k), (past, d_v))
    return tuple(draw(generator, *leading, rows, width) for rows, width in widths)


def _loud(generator: Generator) -> tuple[Tensor, ...]:
    """Each key scores 20,000 more than the one before it, and all of them are far below 0."""
    query, key, value, past_key, past_value = _tokens(generator, (2,), 3, 3, 4, 2, shared.double)
    query, keys = lifted(query, torch.cat((past_key, key), -2), 20_000.0 * (torch.arange(6) - 6))
    return query, keys[:, 3:], value, keys[:, :3], past_value


ATTEND_CACHED = Exercise(
    name=f"{NAME}.attend_cached",
    title="Attention with a past",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_attend_cached,
    returns=("context", "weights"),
    unseen=("key",),
    distributions=("weights",),
    hidden=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", lambda g: _tokens(g, (), 3, 2, 4, 5, tenths)),
        Case("batch and heads", lambda g: _tokens(g, (2, 3), 5, 4, 8, 6)),
        Case("one new token", lambda g: _tokens(g, (2, 2), 6, 1, 4, 3)),
        Case("as many new as old, float64", lambda g: _tokens(g, (2, 3), 4, 4, 16, 8, shared.double)),
        Case("no past", lambda g: _tokens(g, (3,), 0, 3, 4, 2)),
        Case("the future scores high, float64", _loud),
        Case("gradient", lambda g: _tokens(g, (2,), 3, 2, 4, 3), gradient=True),
    ),
    mistakes=(
        Mistake(
            "inverted mask",
            _attended(mask=lambda T, past: ~_sees(T, past)),
            "What may be seen is hidden, and the future is seen; the last query sees nothing, hence the NaN. "
            "masked_fill fills where its mask is True: look for a missing ~.",
        ),
        Mistake(
            "mask from the first key",
            _attended(mask=lambda T, past: torch.ones(T, past + T, dtype=torch.bool).tril()),
            "The first new token sees the first old one only. Your lower triangle starts in the upper "
            "left corner; the new tokens are the last ones, so the last query stands at the last key: "
            "move the diagonal right by the length of the past.",
        ),
        Mistake(
            "no mask",
            _attended(mask=lambda T, past: torch.ones(T, past + T, dtype=torch.bool)),
            "The new tokens see each other in both directions. One new token needs no mask; several "
            "must not see what comes after them.",
        ),
        Mistake(
            "blind to itself",
            _attended(mask=lambda T, past: torch.ones(T, past + T, dtype=torch.bool).tril(past - 1)),
            "A token does not see its own key. It may: causal means up to and including itself.",
        ),
        Mistake(
            "one too many",
            _attended(mask=lambda T, past: torch.ones(T, past + T, dtype=torch.bool).tril(past + 1)),
            "Every token sees one token of its future. Shift the diagonal by the length of the past, "
            "and no further.",
        ),
        Mistake(
            "past hidden",
            _attended(mask=_past_hidden),
            "The old tokens are all masked. They lie in the past of every new token, so each of them "
            "may be seen.",
        ),
        Mistake(
            "new tokens strangers to each other",
            _attended(mask=_past_and_self),
            "A new token sees the past and itself, but not the new tokens before it. Among themselves "
            "the new tokens are causal as well.",
        ),
        Mistake(
            "new tokens in front",
            _attended(join=_new_first, mask=_sees),
            "The new keys and values stand in front of the old ones. Put them behind, as the mask expects.",
        ),
        Mistake(
            "values in another order",
            _attended(join_values=_new_first),
            "The keys are old, new and the values new, old. A weight then mixes another token's value.",
        ),
        Mistake(
            "past only",
            _past_only,
            "The new tokens' own keys and values are left out. A token may look at itself and at the "
            "new ones before it: extend the past first, then attend.",
        ),
        Mistake(
            "past forgotten",
            _new_only,
            "The old keys and values are not used at all: the model would begin anew with each call.",
        ),
        Mistake(
            "two softmaxes",
            _two_softmaxes,
            "Past and new tokens have a softmax of their own, so the weights sum to 2. They compete "
            "for one share: join the keys before the softmax.",
        ),
        Mistake(
            "mask after softmax",
            _mask_after_softmax,
            "Weights are set to 0 after the softmax, and rows no longer sum to 1. Hide scores, with "
            "-inf, before it.",
        ),
        Mistake(
            "no scale",
            _attended(scale=lambda query, keys, values: 1.0),
            "The scores are not divided by √d_k.",
        ),
        Mistake(
            "scaled by the number of keys",
            _attended(scale=lambda query, keys, values: keys.shape[-2] ** -0.5),
            "The scores are divided by the root of the number of keys. Then old scores change with "
            "every new token. Divide by √d_k.",
        ),
        Mistake(
            "softmax over queries",
            _attended(axis=-2),
            "The columns sum to 1, not the rows. Softmax runs over the keys, the last axis.",
        ),
        Mistake(
            "scaled with √d_v",
            _attended(scale=lambda query, keys, values: values.shape[-1] ** -0.5),
            "The scores are divided by √d_v, the width of the values. A score sums over d_k products: take "
            "the width of the keys.",
        ),
    ),
    hints=(
        "Write the shape of the scores. Which column belongs to the new token that stands in row i?",
        "Join past and new along the axis of the tokens, for the keys and for the values. With a past of "
        "P tokens, row i may see columns 0 to P + i.",
        "The mask has T rows and P + T columns: a lower triangle whose diagonal has moved to the right "
        "by the length of the past. What lies above it becomes -inf.",
    ),
)

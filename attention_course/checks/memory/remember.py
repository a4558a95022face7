"""Exercise 2: a memory that grows by a step."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.memory.shared import NAME

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _weigh(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _scale(keys: Tensor, values: Tensor) -> float:
    return keys.shape[-1] ** 0.5


def _behind(memory: Tensor, new: Tensor) -> Tensor:
    return torch.cat((memory, new[:, None]), 1)


def _in_front(memory: Tensor, new: Tensor) -> Tensor:
    return torch.cat((new[:, None], memory), 1)


def _forgotten(valid: Tensor, ended: Tensor) -> Tensor:
    return valid & ~ended[:, None]


def _remember(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, valid: Tensor, ended: Tensor
) -> Five:
    valid = valid & ~ended[:, None]
    keys, values = torch.cat((keys, key[:, None]), 1), torch.cat((values, value[:, None]), 1)
    valid = torch.cat((valid, torch.ones_like(ended)[:, None]), 1)
    scores = (keys @ query[..., None]).squeeze(-1) / keys.shape[-1] ** 0.5  # [B, t + 1]
    weights = scores.masked_fill(~valid, -torch.inf).softmax(-1)
    return (weights[:, None] @ values).squeeze(1), weights, keys, values, valid


def _made(
    forget: Callable[[Tensor, Tensor], Tensor] = _forgotten,
    append: Callable[[Tensor, Tensor], Tensor] = _behind,
    sees: Callable[[Tensor, Tensor], Tensor] = lambda valid, ended: valid,
    leaves: Callable[[Tensor, Tensor], Tensor] = lambda valid, ended: valid,
    weigh: Callable[[Tensor, Tensor], Tensor] = _weigh,
    scale: Callable[[Tensor, Tensor], float] = _scale,
) -> Callable[..., Five]:
    """The reference with one of its parts replaced: what is forgotten, where the new step is put, what of
    the grown memory is seen and what is left for the next step, how it is weighed."""

    def remember(
        query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, valid: Tensor, ended: Tensor
    ) -> Five:
        valid = append(forget(valid, ended), torch.ones_like(ended))
        keys, values = append(keys, key), append(values, value)
        scores = (keys @ query[..., None]).squeeze(-1) / scale(keys, values)
        weights = weigh(scores, sees(valid, ended))
        return (weights[:, None] @ values).squeeze(1), weights, keys, values, leaves(valid, ended)

    return remember


def _all_but_the_last(valid: Tensor, ended: Tensor) -> Tensor:
    return valid & (torch.arange(valid.shape[1]) < valid.shape[1] - 1)


def _for_this_look_alone(valid: Tensor, ended: Tensor) -> Tensor:
    """What may be seen at this step, of a memory that has forgotten nothing."""
    newest = torch.arange(valid.shape[1]) == valid.shape[1] - 1
    return valid & (newest | ~ended[:, None])


def _renormalised(scores: Tensor, seen: Tensor) -> Tensor:
    weights = scores.softmax(-1) * seen
    return weights / weights.sum(-1, keepdim=True)


def _too_late(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, valid: Tensor, ended: Tensor
) -> Five:
    """Looks, appends, and only then forgets: in time for the step after."""
    *found, valid = _remember(query, key, value, keys, values, valid, torch.zeros_like(ended))
    keep = torch.arange(valid.shape[1]) == valid.shape[1] - 1
    return *found, valid & (keep | ~ended[:, None])


def _wiped(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, valid: Tensor, ended: Tensor
) -> Five:
    """What is forgotten is made 0 in the memory, and hidden as well."""
    zeros = ended[:, None, None]
    return _remember(
        query, key, value, keys.masked_fill(zeros, 0.0), values.masked_fill(zeros, 0.0), valid, ended
    )


def _zeros_are_seen(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, valid: Tensor, ended: Tensor
) -> Five:
    """What is forgotten is made 0, and seen as such."""
    *_, keys_after, values_after, valid_after = _remember(query, key, value, keys, values, valid, ended)
    hidden = ~valid_after[..., None]
    seen_keys, seen_values = keys_after.masked_fill(hidden, 0.0), values_after.masked_fill(hidden, 0.0)
    weights = ((seen_keys @ query[..., None]).squeeze(-1) / _scale(keys, values)).softmax(-1)
    return (weights[:, None] @ seen_values).squeeze(1), weights, keys_after, values_after, valid_after


def _cut_off(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, valid: Tensor, ended: Tensor
) -> Five:
    context, weights, keys, values, valid = _remember(query, key, value, keys, values, valid, ended)
    seen = valid.any(0)
    return context, weights[:, seen], keys[:, seen], values[:, seen], valid[:, seen]


def _in_place(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, valid: Tensor, ended: Tensor
) -> Five:
    valid &= ~ended[:, None]
    return _remember(query, key, value, keys, values, valid, ended)


# Inputs ---------------------------------------------------------------------------------------


def _flags(generator: Generator, B: int, t: int) -> tuple[Tensor, Tensor]:
    """valid [B, t]: what lies behind a row's last end; ended [B]: some, and not all."""
    start = torch.randint(0, max(1, t - 1), (B, 1), generator=generator)
    start[0] = 0
    ended = torch.arange(B) % 2 == 1
    turn = torch.randperm(B, generator=generator)
    return (torch.arange(t) >= start)[turn], ended[turn]


def _drawn(
    generator: Generator, B: int, t: int, d: int, d_v: int, dtype: torch.dtype = torch.float32
) -> Inputs:
    return (
        normal(generator, B, d, dtype=dtype), normal(generator, B, d, dtype=dtype),
        normal(generator, B, d_v, dtype=dtype), normal(generator, B, t, d, dtype=dtype),
        normal(generator, B, t, d_v, dtype=dtype), *_flags(generator, B, t),
    )  # fmt: skip


def _by_hand(generator: Generator) -> Inputs:
    return (
        tenths(generator, 2, 1), tenths(generator, 2, 1), tenths(generator, 2, 2), tenths(generator, 2, 3, 1),
        tenths(generator, 2, 3, 2), *_flags(generator, 2, 3),
    )  # fmt: skip


def _oldest_unseen(generator: Generator) -> Inputs:
    *rest, valid, ended = _drawn(generator, 4, 6, 3, 2)
    return *rest, valid & (torch.arange(6) > 0), ended


def _tempting(generator: Generator) -> Inputs:
    """What is forgotten has scores in the hundreds."""
    query, key, value, keys, values, valid, ended = _drawn(generator, 4, 5, 3, 2)
    hidden = ~_forgotten(valid, ended)
    return query, key, value, torch.where(hidden[..., None], 300 * query[:, None], keys), values, valid, ended


def _below_all_numbers(generator: Generator) -> Inputs:
    """All that may be seen scores near -2e9, and what is forgotten as well."""
    query, key, value, *rest, ended = _drawn(generator, 3, 4, 4, 3, torch.float64)
    keys, values, valid = rest
    first = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    key, keys = (torch.where(first > 0, -2e4, x) for x in (key, keys))
    return query + 2e5 * first, key, value, keys, values, valid, ended


REMEMBER = Exercise(
    name=f"{NAME}.remember",
    title="A memory that grows, and forgets",
    points=3,
    difficulty=3,
    minutes=25,
    reference=_remember,
    returns=("context", "weights", "keys", "values", "valid"),
    distributions=("weights",),
    hidden=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", _by_hand),
        Case("five environments", lambda g: _drawn(g, 5, 4, 3, 2)),
        Case("nobody sees the oldest", _oldest_unseen),
        Case("as many of everything", lambda g: _drawn(g, 4, 3, 4, 4)),
        Case("the first step of all", lambda g: _drawn(g, 3, 0, 2, 4)),
        Case("what is forgotten scores high", _tempting),
        Case("all scores below -1e9, float64", _below_all_numbers),
        Case("gradient", lambda g: _drawn(g, 4, 3, 2, 3), gradient=True),
    ),
    mistakes=(
        Mistake(
            "nothing is forgotten",
            _made(forget=lambda valid, ended: valid),
            "Where an episode has ended, the memory goes on as if it had not: ended is not used. All that is "
            "old in that row must not be seen any more.",
        ),
        Mistake(
            "all forget when one episode ends",
            _made(forget=lambda valid, ended: valid & ~ended.any()),
            "As soon as one environment's episode has ended, all forget. Each row for itself: ended[:, None] "
            "is [B, 1].",
        ),
        Mistake(
            "those forget whose episode goes on",
            _made(forget=lambda valid, ended: valid & ended[:, None]),
            "Those whose episode has ended keep their memory, and the others forget. Look at the ~.",
        ),
        Mistake(
            "what was forgotten earlier comes back",
            _made(forget=lambda valid, ended: ~ended[:, None].expand_as(valid)),
            "What may be seen is decided by ended alone: what a row has forgotten at an earlier step comes "
            "back at the next. Keep what valid hides already.",
        ),
        Mistake(
            "the new step is forgotten as well",
            _made(forget=lambda valid, ended: valid, sees=_forgotten, leaves=_forgotten),
            "You forget after the new step is in: where an episode has ended nothing is left to look at, "
            "and a softmax of nothing but -inf is NaN. Forget first, then append.",
        ),
        Mistake(
            "forgotten one step too late",
            _too_late,
            "You look before you forget: the first step of an episode still sees the one before, and only "
            "the next does not.",
        ),
        Mistake(
            "forgotten for this look alone",
            _made(forget=lambda valid, ended: valid, sees=_for_this_look_alone),
            "This look is right, but in the valid that you hand on, what is forgotten is True as before: the "
            "next step sees it again.",
        ),
        Mistake(
            "the new step is not seen",
            _made(sees=_all_but_the_last),
            "The new step is put into the memory and not looked at. It sees itself: at the first step there "
            "is nothing else.",
        ),
        Mistake(
            "the new step is not kept",
            _made(leaves=_all_but_the_last),
            "The new step is looked at, and then marked as not valid: the next step will not see it.",
        ),
        Mistake(
            "valid without the new step",
            _made(leaves=lambda valid, ended: valid[:, :-1]),
            "The valid that you hand on has t entries, and keys and values have t + 1: the new step's True "
            "is missing.",
        ),
        Mistake(
            "appended in front",
            _made(append=_in_front),
            "The new step stands in front. The memory is in the order of time: it comes last.",
        ),
        Mistake(
            "zeros in the place of what is forgotten",
            _zeros_are_seen,
            "Keys that are made 0 have the score 0, and weigh like any other with that score. Hidden means a "
            "score of -inf.",
        ),
        Mistake(
            "scores multiplied by the mask",
            _made(weigh=lambda scores, seen: (scores * seen).softmax(-1)),
            "What is forgotten gets the score 0, and weighs like any other with that score. Hidden means a "
            "score of -inf.",
        ),
        Mistake(
            "mask added as a number",
            _made(weigh=lambda scores, seen: (scores + seen.to(scores.dtype)).softmax(-1)),
            "True is added as 1 and False as 0: what is forgotten scores a little less, and is seen. A "
            "boolean mask hides by masked_fill.",
        ),
        Mistake(
            "what nobody sees is cut off",
            _cut_off,
            "Entries that no row may see are taken out of the memory. That saves room, but here the memory "
            "grows by one entry each step, whatever is seen of it.",
        ),
        Mistake(
            "memory wiped",
            _wiped,
            "Context and weights are right. But you write zeros over what is forgotten. It stays where it "
            "is, and valid hides it.",
        ),
        Mistake(
            "weights taken away after the softmax",
            _made(weigh=lambda scores, seen: scores.softmax(-1) * seen),
            "The softmax is taken over everything, and then weights are made 0: the rest no longer sums to "
            "1. Hide the scores, before it.",
        ),
        Mistake(
            "weights taken away and the rest divided by its sum",
            _made(weigh=_renormalised),
            "The softmax is taken over everything, and what is left is divided by its sum. Where something "
            "forgotten scores high there is nothing left: 0/0. Hide the scores, before it.",
        ),
        Mistake(
            "a large negative number in the place of -inf",
            _made(weigh=lambda scores, seen: scores.masked_fill(~seen, -1e9).softmax(-1)),
            "What is forgotten gets a large negative score. Where all scores lie below it, just that is what "
            "is remembered. -inf lies below every number.",
        ),
        Mistake(
            "inverted mask",
            _made(weigh=lambda scores, seen: scores.masked_fill(seen, -torch.inf).softmax(-1)),
            "What may be seen is hidden, and the rest is not: masked_fill fills where its mask is True.",
        ),
        Mistake(
            "softmax over the environments",
            _made(weigh=lambda scores, seen: scores.masked_fill(~seen, -torch.inf).softmax(0)),
            "The softmax runs over the batch. It runs over the memory of each row: the last axis.",
        ),
        Mistake(
            "no scale",
            _made(scale=lambda keys, values: 1.0),
            "The scores are plain dot products. Divide them by √d_k.",
        ),
        Mistake(
            "divided by d_k",
            _made(scale=lambda keys, values: float(keys.shape[-1])),
            "The scores are divided by d_k. Divide by its root.",
        ),
        Mistake(
            "divided by the root of d_v",
            _made(scale=lambda keys, values: values.shape[-1] ** 0.5),
            "The scores are divided by the root of the width of values. They are made of keys: it is √d_k, "
            "the width of the keys.",
        ),
        Mistake(
            "valid changed in place",
            _in_place,
            "The result is right, but valid itself is overwritten, as &= does. Make a new tensor.",
        ),
    ),
    hints=(
        "Three things in the right order: forget, append, look. What must be done first, so that the new "
        "step sees itself and nothing of an episode that has ended?",
        "Forgetting touches only valid: a row whose episode has ended becomes False throughout. "
        "torch.cat along dim=1 appends; the new step needs an axis of length 1 there, and is valid in "
        "every row.",
        "The scores are [B, t + 1]: the query as a column leaves an axis too many at the end. Hide by "
        "-inf, then softmax over the last axis; for the context the weights are a row, [B, 1, t + 1].",
    ),
)

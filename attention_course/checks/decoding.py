"""Chapter 9: writing into a cache, attending with one, top-p, and the slots of a ring.

Inputs are drawn so that the usual mistakes show. The sizes of past, new tokens, heads and rows all
differ but in cases of their own, where a wrong axis would otherwise raise. Probabilities are drawn
without ties, and no sum of them lies on p.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.drawing import integer, normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake

NAME = "09_decoding"


# Drawing inputs -------------------------------------------------------------------------------


# 1. Writing into a cache ----------------------------------------------------------------------


def _append(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    after, start = store.clone(), int(length)
    after[..., start : start + new.shape[-2], :] = new
    return after


def _appended(
    shift: int = 0, arrange: Callable[[Tensor], Tensor] = lambda new: new
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda store, new, length: _append(store, arrange(new), length + shift)


def _append_the_first(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    return _append(store, new[..., :1, :], length)


def _append_and_clear(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    after = _append(store, new, length)
    after[..., int(length) + new.shape[-2] :, :] = 0
    return after


def _append_in_place(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    return store.copy_(_append(store, new, length))


def _filled(store: Tensor, new: Tensor, length: Tensor) -> Tensor:
    return _append(store, new, length)[..., : int(length) + new.shape[-2], :]


def _rows(
    generator: Generator,
    leading: tuple[int, ...],
    room: int,
    T: int,
    d_k: int,
    low: int,
    draw: Callable[..., Tensor] = normal,
) -> tuple[Tensor, Tensor, Tensor]:
    """A store with room for ``room`` rows, T new rows, and how many lie in it, from ``low`` on."""
    length = integer(generator, low, room - T - 1)
    return draw(generator, *leading, room, d_k), draw(generator, *leading, T, d_k), length


def _double(generator: Generator, *shape: int) -> Tensor:
    return normal(generator, *shape, dtype=torch.float64)


APPEND = Exercise(
    name=f"{NAME}.append",
    title="Into the cache",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_append,
    returns=("after",),
    cases=(
        Case("one decimal", lambda g: _rows(g, (), 6, 1, 2, 2, tenths)),
        Case("batch and heads", lambda g: _rows(g, (2, 3), 9, 2, 4, 3)),
        Case("as many heads as rows", lambda g: _rows(g, (2, 7), 7, 1, 4, 2)),
        Case("several rows, float64", lambda g: _rows(g, (2, 2), 12, 4, 3, 3, _double)),
        Case("empty", lambda g: (normal(g, 2, 5, 3), normal(g, 2, 2, 3), torch.tensor(0))),
        Case("gradient", lambda g: _rows(g, (2,), 8, 2, 3, 2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "always at the front",
            lambda store, new, length: _append(store, new, torch.tensor(0)),
            "The new rows are written into rows 0, 1, ..., over the oldest tokens. The first free row "
            "is row length.",
        ),
        Mistake(
            "one row too early",
            lambda store, new, length: _append(store, new, (length - 1).clamp_min(0)),
            "The first new row lies on the last old one. Rows 0 to length - 1 are taken: begin at length.",
        ),
        Mistake(
            "one row too late",
            _appended(shift=1),
            "Row length stays empty. Rows are counted from 0, so with length rows taken, row length is "
            "the first free one.",
        ),
        Mistake(
            "at the end of the room",
            lambda store, new, length: torch.cat((store[..., : -new.shape[-2], :], new), dim=-2),
            "The new rows lie at the end of the store, far behind the old ones. They come directly "
            "after the length rows that are in use.",
        ),
        Mistake(
            "pushed through",
            lambda store, new, length: torch.cat((store[..., new.shape[-2] :, :], new), dim=-2),
            "The rows move up and the oldest fall out, as in a queue. Nothing moves in this cache: the "
            "old rows stay where they are.",
        ),
        Mistake(
            "store made longer",
            lambda store, new, length: torch.cat((store, new), dim=-2),
            "The new rows are put behind the whole store, which grows. The room is there already: "
            "write into it.",
        ),
        Mistake(
            "only what is filled",
            _filled,
            "You return the rows in use. Asked for is the whole store after writing, free rows included.",
        ),
        Mistake(
            "the newest first",
            _appended(arrange=lambda new: new.flip(-2)),
            "The new rows stand in reverse order. new[..., 0, :] is the earlier token and comes first.",
        ),
        Mistake(
            "only the first row",
            _append_the_first,
            "Of several new rows only the first is written. There may be more than one: a prompt comes "
            "in one piece.",
        ),
        Mistake(
            "added instead of written",
            lambda store, new, length: _append(
                store, new + store[..., int(length) : int(length) + new.shape[-2], :], length
            ),
            "The new rows are added to what was there. A free row holds whatever the memory held "
            "before: overwrite it.",
        ),
        Mistake(
            "free rows cleared",
            _append_and_clear,
            "The free rows behind are set to 0. That costs time at each step and is not asked for: "
            "nobody reads them.",
        ),
        Mistake(
            "store changed in place",
            _append_in_place,
            "The rows are right, but they are written into store itself. A real cache does just that; "
            "here whoever checks it still needs the old one. Begin with a clone.",
        ),
    ),
    hints=(
        "Which rows are taken, and which is the first free one, when length is 0? When it is 3?",
        "after = store.clone(), then assign to after[..., start : start + T, :], where T is the number "
        "of new rows.",
    ),
)


# 2. Attention with a cache --------------------------------------------------------------------


def _sees(T: int, past: int) -> Tensor:
    """[T, past + T]: all of the past, and of the new tokens those up to itself."""
    return torch.ones(T, past + T, dtype=torch.bool).tril(past)


def _attended(
    mask: Callable[[int, int], Tensor] = _sees,
    join: Callable[[Tensor, Tensor], Tensor] = lambda old, new: torch.cat((old, new), dim=-2),
    join_values: Callable[[Tensor, Tensor], Tensor] | None = None,
    scale: Callable[[Tensor, Tensor], float] = lambda query, keys: query.shape[-1] ** -0.5,
    axis: int = -1,
) -> Callable[..., tuple[Tensor, Tensor]]:
    def attend_cached(query, key, value, past_key, past_value):
        keys = join(past_key, key)
        values = (join_values or join)(past_value, value)
        scores = query @ keys.mT * scale(query, keys)
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


ATTEND_CACHED = Exercise(
    name=f"{NAME}.attend_cached",
    title="Attention with a past",
    points=3,
    difficulty=2,
    minutes=15,
    reference=_attend_cached,
    returns=("context", "weights"),
    distributions=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", lambda g: _tokens(g, (), 3, 2, 4, 5, tenths)),
        Case("batch and heads", lambda g: _tokens(g, (2, 3), 5, 4, 8, 6)),
        Case("one new token", lambda g: _tokens(g, (2, 2), 6, 1, 4, 3)),
        Case("as many new as old, float64", lambda g: _tokens(g, (2, 3), 4, 4, 16, 8, _double)),
        Case("no past", lambda g: _tokens(g, (3,), 0, 3, 4, 2)),
        Case("gradient", lambda g: _tokens(g, (2,), 3, 2, 4, 3), gradient=True),
    ),
    mistakes=(
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
            _attended(scale=lambda query, keys: 1.0),
            "The scores are not divided by √d_k.",
        ),
        Mistake(
            "scaled by the number of keys",
            _attended(scale=lambda query, keys: keys.shape[-2] ** -0.5),
            "The scores are divided by the root of the number of keys. Then old scores change with "
            "every new token. Divide by √d_k.",
        ),
        Mistake(
            "softmax over queries",
            _attended(axis=-2),
            "The columns sum to 1, not the rows. Softmax runs over the keys, the last axis.",
        ),
    ),
    hints=(
        "Write the shape of the scores. Which column belongs to the new token that stands in row i?",
        "torch.cat((past_key, key), dim=-2) for the keys, the same for the values. With a past of P "
        "tokens, row i may see columns 0 to P + i.",
        "torch.ones(T, P + T, dtype=torch.bool).tril(P) is True where a new token may look.",
    ),
)


# 3. Top-p -------------------------------------------------------------------------------------


def _ordered(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted probabilities, what the more likely ones sum to, and the way back."""
    probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True)
    before = F.pad(probabilities.cumsum(-1)[..., :-1], (1, 0))
    return probabilities, before, order.argsort(-1)


def _renormalised(logits: Tensor, kept: Tensor) -> Tensor:
    return logits.masked_fill(~kept, -torch.inf).softmax(-1)


def _nucleus(logits: Tensor, p: Tensor) -> Tensor:
    _, before, back = _ordered(logits)
    return _renormalised(logits, (before < p).gather(-1, back))


def _nucleus_without_the_last(logits: Tensor, p: Tensor) -> Tensor:
    probabilities, before, back = _ordered(logits)
    kept = before + probabilities <= p
    kept[..., 0] = True
    return _renormalised(logits, kept.gather(-1, back))


def _nucleus_and_one(logits: Tensor, p: Tensor) -> Tensor:
    _, before, back = _ordered(logits)
    kept = F.pad((before < p)[..., :-1], (1, 0), value=True)
    return _renormalised(logits, kept.gather(-1, back))


def _nucleus_in_order(logits: Tensor, p: Tensor) -> Tensor:
    ordered = logits.sort(dim=-1, descending=True).values
    return _nucleus(ordered, p)


def _nucleus_forth_again(logits: Tensor, p: Tensor) -> Tensor:
    _, before, back = _ordered(logits)
    return _renormalised(logits, (before < p).gather(-1, back.argsort(-1)))


def _nucleus_from_below(logits: Tensor, p: Tensor) -> Tensor:
    probabilities, order = logits.softmax(-1).sort(dim=-1)
    before = F.pad(probabilities.cumsum(-1)[..., :-1], (1, 0))
    return _renormalised(logits, (before < p).gather(-1, order.argsort(-1)))


def _nucleus_unsorted(logits: Tensor, p: Tensor) -> Tensor:
    before = F.pad(logits.softmax(-1).cumsum(-1)[..., :-1], (1, 0))
    return _renormalised(logits, before < p)


def _nucleus_as_it_is(logits: Tensor, p: Tensor) -> Tensor:
    return logits.softmax(-1) * (_nucleus(logits, p) > 0)


def _softmax_twice(logits: Tensor, p: Tensor) -> Tensor:
    return _renormalised(logits.softmax(-1), _nucleus(logits, p) > 0)


def _zeros_as_logits(logits: Tensor, p: Tensor) -> Tensor:
    return logits.masked_fill(_nucleus(logits, p) == 0, 0.0).softmax(-1)


def _by_height(logits: Tensor, p: Tensor) -> Tensor:
    """All that have at least p times the probability of the most likely one."""
    probabilities = logits.softmax(-1)
    return _renormalised(logits, probabilities >= p * probabilities.amax(-1, keepdim=True))


def _by_share_of_the_vocabulary(logits: Tensor, p: Tensor) -> Tensor:
    _, _, back = _ordered(logits)
    return _renormalised(logits, back < p * logits.shape[-1])


def _count_of_the_first_row(logits: Tensor, p: Tensor) -> Tensor:
    _, before, back = _ordered(logits)
    kept = (before < p).flatten(0, -2)[0] if logits.dim() > 1 else before < p
    return _renormalised(logits, kept.expand_as(logits).gather(-1, back))


def _nucleus_in_place(logits: Tensor, p: Tensor) -> Tensor:
    kept = _nucleus(logits, p) > 0
    return logits.masked_fill_(~kept, -torch.inf).softmax(-1)


def _by_hand(generator: Generator) -> tuple[Tensor, Tensor]:
    shares = torch.tensor([0.45, 0.25, 0.16, 0.09, 0.05])
    return shares[torch.randperm(5, generator=generator)].log(), torch.tensor(0.8)


def _distribution(
    generator: Generator, *shape: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Logits whose rows are peaked to different degrees, and a p that no sum of them comes near."""
    sharp = torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64) * 2 + 0.7
    logits = (normal(generator, *shape, dtype=torch.float64) * sharp).to(dtype)
    sums = logits.double().softmax(-1).sort(descending=True).values.cumsum(-1)
    candidates = torch.rand(50, generator=generator, dtype=torch.float64) * 0.3 + 0.6
    gaps = (sums[..., None] - candidates).abs().flatten(0, -2).amin(0)
    return logits, candidates[gaps.argmax()].to(dtype)


NUCLEUS = Exercise(
    name=f"{NAME}.nucleus",
    title="Top-p",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_nucleus,
    returns=("probabilities",),
    distributions=("probabilities",),
    cases=(
        Case("five tokens", _by_hand),
        Case("batch", lambda g: _distribution(g, 3, 12)),
        Case("two axes in front", lambda g: _distribution(g, 2, 3, 9)),
        Case("forty tokens, float64", lambda g: _distribution(g, 4, 40, dtype=torch.float64)),
        Case("one token is enough", lambda g: (normal(g, 2, 6) + 9 * torch.eye(6)[1:3], torch.tensor(0.5))),
        Case("gradient", lambda g: _distribution(g, 2, 8), gradient=True),
    ),
    mistakes=(
        Mistake(
            "the last one missing",
            _nucleus_without_the_last,
            "The tokens you keep sum to less than p: the one with which the sum reaches p is dropped. "
            "Keep a token if those *before* it have not reached p yet.",
        ),
        Mistake(
            "one too many",
            _nucleus_and_one,
            "You keep one token more than needed: those before it sum to p already.",
        ),
        Mistake(
            "in sorted order",
            _nucleus_in_order,
            "The probabilities come out sorted: the first entry is the most likely token, whichever "
            "it was. Each must stand where its logit stood.",
        ),
        Mistake(
            "sorted forth, and forth again",
            _nucleus_forth_again,
            "You take the sorted decisions back with order itself. order says where each sorted entry "
            "comes from; the way back is its inverse, order.argsort(-1), or a scatter.",
        ),
        Mistake(
            "from the least likely",
            _nucleus_from_below,
            "You sum from the least likely token upwards, so the tail stays and the best fall out. "
            "Sort in descending order.",
        ),
        Mistake(
            "not sorted",
            _nucleus_unsorted,
            "You sum the probabilities in the order of the vocabulary. The fewest tokens that reach p "
            "are the most likely ones: sort first.",
        ),
        Mistake(
            "not made to sum to 1",
            _nucleus_as_it_is,
            "The kept probabilities are right, and sum to p or a little more. Divide them by their sum.",
        ),
        Mistake(
            "softmax of probabilities",
            _softmax_twice,
            "Softmax is applied to probabilities, which lie so near each other that the result is "
            "almost flat. Hide the logits, then apply softmax once.",
        ),
        Mistake(
            "dropped tokens at logit 0",
            _zeros_as_logits,
            "Dropped tokens get the logit 0, and with it a probability, often a large one. A token "
            "without probability has the logit -inf.",
        ),
        Mistake(
            "compared with the largest",
            _by_height,
            "You keep what has at least p times the largest probability. That is another filter, "
            "min-p. Here the kept ones must sum to p.",
        ),
        Mistake(
            "a share of the vocabulary",
            _by_share_of_the_vocabulary,
            "You keep the share p of the tokens, however likely they are. p is a share of the probability.",
        ),
        Mistake(
            "one number for all rows",
            _count_of_the_first_row,
            "Every row keeps as many tokens as the first one. A peaked row needs fewer than a flat one: "
            "decide row by row.",
        ),
        Mistake(
            "logits changed in place",
            _nucleus_in_place,
            "The result is right, but -inf is written into logits itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Do it by hand for the probabilities 0.45, 0.25, 0.16, 0.09, 0.05 and p = 0.8. Which tokens "
        "stay? For each of them, what do those before it sum to?",
        "probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True). The sum before each "
        "is the cumulative sum minus the token's own probability.",
        "(before < p).gather(-1, order.argsort(-1)) puts the decisions back in the order of the "
        "vocabulary. Then -inf where it is False, and softmax.",
    ),
)


# 4. A ring ------------------------------------------------------------------------------------


def _held(last: Tensor, window: Tensor) -> Tensor:
    slots = torch.arange(int(window))
    newest = last[..., None] - (last[..., None] - slots) % window
    return newest.clamp_min(-1)


def _visible(held: Tensor, query: Tensor, window: Tensor) -> Tensor:
    """What lies in a ring after token ``last``, which is not before the query, is never too old for it."""
    return (held >= 0) & (held <= query)


def _ring(last: Tensor, query: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
    held = _held(last, window)
    return held, _visible(held, query[..., None], window)


def _ringed(
    held: Callable[[Tensor, Tensor], Tensor] = _held,
    sees: Callable[[Tensor, Tensor, Tensor], Tensor] = _visible,
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def ring(last: Tensor, query: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        lying = held(last, window)
        return lying, sees(lying, query[..., None], window)

    return ring


def _held_raw(last: Tensor, window: Tensor) -> Tensor:
    slots = torch.arange(int(window))
    return last[..., None] - (last[..., None] - slots) % window


def _held_in_order(last: Tensor, window: Tensor) -> Tensor:
    return (last[..., None] - int(window) + 1 + torch.arange(int(window))).clamp_min(-1)


def _held_newest_first(last: Tensor, window: Tensor) -> Tensor:
    return (last[..., None] - torch.arange(int(window))).clamp_min(-1)


def _held_rounds(last: Tensor, window: Tensor) -> Tensor:
    return last[..., None] // window * window + torch.arange(int(window))


def _held_rounds_written(last: Tensor, window: Tensor) -> Tensor:
    held = _held_rounds(last, window)
    return held.where(held <= last[..., None], -1)


def _held_truncated(last: Tensor, window: Tensor) -> Tensor:
    slots = torch.arange(int(window))
    return (last[..., None] - torch.fmod(last[..., None] - slots, window)).clamp_min(-1)


def _ring_drawn(generator: Generator, *shape: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries at most ``window`` - 1 tokens before the last one that was written."""
    window = integer(generator, 4, 7)
    last = torch.randint(0, most, shape, generator=generator)
    # Everywhere: a ring that is not full yet, one that is, and queries that are not the last.
    last[..., 0], last[..., -1] = 1, most
    back = torch.randint(0, 4, shape, generator=generator)
    back[..., -1] = 2
    return last, (last - back).clamp_min(0), window


RING = Exercise(
    name=f"{NAME}.ring",
    title="A ring of slots",
    points=2,
    difficulty=3,
    minutes=20,
    reference=_ring,
    returns=("held", "visible"),
    cases=(
        Case(
            "window of 4",
            lambda g: (
                torch.tensor([2, 5, 9]),
                torch.tensor([2, 5, int(integer(g, 6, 8))]),
                torch.tensor(4),
            ),
        ),
        Case("batch", lambda g: _ring_drawn(g, 2, 5, most=20)),
        Case("three axes", lambda g: _ring_drawn(g, 2, 3, 4, most=60)),
        Case("long text", lambda g: _ring_drawn(g, 3, 4, most=int(integer(g, 1000, 2000)))),
    ),
    mistakes=(
        Mistake(
            "in the order of the tokens",
            _ringed(held=_held_in_order),
            "You list the last tokens from the oldest to the newest. In a ring nothing moves: token p "
            "lies in slot p % window.",
        ),
        Mistake(
            "the newest first",
            _ringed(held=_held_newest_first),
            "You list the last tokens from the newest to the oldest. The newest lies in slot "
            "last % window, wherever that is.",
        ),
        Mistake(
            "slots of this round only, unwritten ones too",
            _ringed(held=_held_rounds),
            "Slots behind the newest are said to hold tokens that are not written yet. They still "
            "hold those of the round before: window less.",
        ),
        Mistake(
            "the round before forgotten",
            _ringed(held=_held_rounds_written),
            "Slots behind the newest are said to be empty. They hold the tokens of the round before, "
            "if there was one.",
        ),
        Mistake(
            "empty slots with negative tokens",
            _ringed(held=_held_raw),
            "Slots that were never written hold tokens below -1. Write -1 for empty: there is no token -3.",
        ),
        Mistake(
            "remainder of a negative number",
            _ringed(held=_held_truncated),
            "As long as the ring is not full, last - slot can be negative, and your remainder keeps "
            "that sign, as in C and in torch.fmod. With % and torch.remainder it has the divisor's.",
        ),
        Mistake(
            "off by one token",
            _ringed(held=lambda last, window: _held(last - 1, window)),
            "You describe the ring before token last is written. last is in it already.",
        ),
        Mistake(
            "all that is there",
            _ringed(sees=lambda held, query, window: held >= 0),
            "Every filled slot is visible. That is right for the last token; an earlier query must not "
            "see what came after it.",
        ),
        Mistake(
            "window one too narrow",
            _ringed(
                sees=lambda held, query, window: (held >= 0) & (held <= query) & (held > query - window + 1)
            ),
            "A query does not see token query - window + 1. The window is the query itself and the "
            "window - 1 tokens before it.",
        ),
        Mistake(
            "blind to itself",
            _ringed(sees=lambda held, query, window: (held >= 0) & (held < query)),
            "A query does not see its own slot. Causal means up to and including itself.",
        ),
        Mistake(
            "empty slots visible",
            _ringed(sees=lambda held, query, window: held <= query),
            "Empty slots are visible, since -1 lies before every query. What is in them was never written.",
        ),
        Mistake(
            "slots compared with positions",
            _ringed(
                sees=lambda held, query, window: (held >= 0) & (torch.arange(int(window)) <= query % window)
            ),
            "You compare the number of a slot with the query's. A slot's number says nothing about "
            "how old its token is: compare held.",
        ),
    ),
    hints=(
        "Draw a ring of 4 slots and write tokens 0 to 9 into it. What lies in it when 9 is written? "
        "Which of these may token 9 see, and which may token 7 see?",
        "Slot s holds the newest token with token % window == s. From last, go back by "
        "(last - s) % window steps; below 0 there is nothing.",
        "held[..., None] is not needed: last[..., None] against torch.arange(window) is [..., window]. "
        "visible is two conditions on held, joined by &: what is too old for the window is overwritten.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="9. Decoding",
    exercises=(APPEND, ATTEND_CACHED, NUCLEUS, RING),
)

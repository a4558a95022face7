"""Exercise 6: writing on and on, with nothing computed twice."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.decoding.shared import NAME
from attention_course.checks.engine.asks import Effort, Function, Inputs
from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Mistake

#: a twentieth of what the way of the notebook does in the longest case; a test counts that
RATIO, WORK = 20, 1_000_000
#: what other ways do in that case, somewhat less; a test counts that too
USUAL = (
    (2_400_000, "So much it takes to make the keys and values of all tokens again at every step."),
    (14_000_000, "So much it takes to compute the contexts of all tokens at every step. Whose is read?"),
    (19_000_000, "So much it takes to make everything again at every step."),
)


def _row(context: Tensor) -> Tensor:
    """The next token: the context, brought to length √d."""
    return context / context.square().mean(-1, keepdim=True).sqrt()


def _written(
    *,
    row: Callable[[Tensor], Tensor] = _row,
    scale: Callable[[Tensor, Tensor], float] = lambda query, token: query.shape[-1] ** 0.5,
    asking: Callable[[Tensor, Tensor], Tensor] = lambda prompt, last: last,
    prompt: Callable[[Tensor], Tensor] = lambda x: x,
    seen: Callable[[Tensor, Tensor], Tensor] = lambda past, new: torch.cat((past, new), -2),
    cached: Callable[[Tensor, Tensor], Tensor] = lambda context, token: token,
) -> Callable[..., Tensor]:
    """The reference with one of its parts replaced."""

    def write(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, steps: Tensor) -> Tensor:
        keys, values, last = prompt(x) @ w_key, prompt(x) @ w_value, x[..., -1:, :]
        rows = []
        for _ in range(int(steps)):
            query = asking(x, last) @ w_query
            context = (query @ keys.mT / scale(query, last)).softmax(-1) @ values
            last = row(context)
            rows.append(last)
            new = cached(context, last)
            keys, values = seen(keys, new @ w_key), seen(values, new @ w_value)
        return torch.cat(rows, -2)

    return write


def _slowly(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, steps: Tensor) -> Tensor:
    """As the notebook has it: everything again for each new token."""
    rows = x
    for _ in range(int(steps)):
        query, key, value = rows @ w_query, rows @ w_key, rows @ w_value
        scores = query @ key.mT / query.shape[-1] ** 0.5
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights = scores.masked_fill(~past, -torch.inf).softmax(dim=-1)
        context = (weights @ value)[..., -1:, :]
        length = context.square().mean(dim=-1, keepdim=True).sqrt()
        rows = torch.cat((rows, context / length), dim=-2)
    return rows[..., x.shape[-2] :, :]


def _one_query(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, steps: Tensor) -> Tensor:
    """The last query alone, and all keys and values again."""
    rows = x
    for _ in range(int(steps)):
        query, key, value = rows[..., -1:, :] @ w_query, rows @ w_key, rows @ w_value
        context = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
        rows = torch.cat((rows, _row(context)), dim=-2)
    return rows[..., x.shape[-2] :, :]


def _with_the_prompt(x: Tensor, *others: Tensor) -> Tensor:
    return torch.cat((x, _write(x, *others)), -2)


def _last_only(*inputs: Tensor) -> Tensor:
    return _write(*inputs)[..., -1:, :]


def _one_late(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor, steps: Tensor) -> Tensor:
    """The first row that it returns is the prompt's last one."""
    written = _write(x, w_query, w_key, w_value, steps)
    return torch.cat((x[..., -1:, :], written[..., :-1, :]), -2)


def _twice_the_last(past: Tensor, new: Tensor) -> Tensor:
    return torch.cat((past, past[..., -1:, :]), -2)


def _length_afterwards(*inputs: Tensor) -> Tensor:
    """Contexts go on as they are, and have their length where they are returned."""
    return _row(_written(row=lambda context: context)(*inputs))


_write = _written()


# Cases ----------------------------------------------------------------------------------------


def _drawn(
    generator: Generator, *shape: int, d_k: int, steps: int, dtype: torch.dtype = torch.float32
) -> Inputs:
    d = shape[-1]
    return (
        normal(generator, *shape, dtype=dtype),
        2 * weight(generator, d, d_k, dtype), weight(generator, d, d_k, dtype),
        weight(generator, d, d, dtype), torch.tensor(steps),
    )  # fmt: skip


def _by_hand(generator: Generator) -> Inputs:
    return (
        tenths(generator, 3, 4), halves(generator, 4, 2), halves(generator, 4, 2),
        torch.eye(4) + halves(generator, 4, 4), torch.tensor(2),
    )  # fmt: skip


def _far_below(generator: Generator) -> Inputs:
    """Every score is near -800: it comes from what all rows have in common."""
    x, w_query, w_key, w_value, steps = _drawn(generator, 2, 4, 5, d_k=4, steps=3, dtype=torch.float64)
    x[..., 0] = 1.0
    for projection, common in ((w_query, 1.0), (w_key, -1600.0)):
        projection[:, 0] = 0.0
        projection[0, 0] = common
    return x, w_query, w_key, w_value, steps


WRITE = Exercise(
    name=f"{NAME}.write",
    title="Make it fast: nothing twice",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_write,
    asks=Function(effort=Effort(entries=50_000, operations=10_000, work=WORK, known=USUAL)),
    returns=("written",),
    settings=("steps",),
    cases=(
        Case("one decimal", _by_hand),
        Case("two sentences", lambda g: _drawn(g, 2, 5, 6, d_k=4, steps=3)),
        Case("one token, one step", lambda g: _drawn(g, 3, 1, 4, d_k=3, steps=1)),
        Case("64 steps, float64", lambda g: _drawn(g, 48, 16, d_k=16, steps=64, dtype=torch.float64)),
        Case("scores far below 0, float64", _far_below),
        Case("gradient", lambda g: _drawn(g, 2, 3, 4, d_k=5, steps=3), gradient=True),
    ),
    mistakes=(
        Mistake(
            "everything again",
            _slowly,
            "This is the slow way. For every new token all keys, all values and all contexts are made again, "
            "of which all but one row were there before or are read by nobody.",
        ),
        Mistake(
            "keys and values again",
            _one_query,
            "Only the last query is left, which is most of it. But the keys and values of all tokens are "
            "made again at every step: keep them, and add a row.",
        ),
        Mistake(
            "new tokens not in the cache",
            _written(seen=lambda past, new: past),
            "Every new token attends to the prompt alone. Its own key and value belong into the cache, for "
            "itself and for all after it.",
        ),
        Mistake(
            "new tokens in front",
            _written(seen=lambda past, new: torch.cat((past[..., :-1, :], new), -2)),
            "A new row takes the place of the last one in the cache. It comes behind it.",
        ),
        Mistake(
            "the last row again",
            _written(seen=_twice_the_last),
            "The row that is added to the cache is the one that stood last in it, not the new token's.",
        ),
        Mistake(
            "contexts in the cache",
            _written(cached=lambda context, token: context),
            "Keys and values are made from the context as it was before it was brought to its length. They "
            "are made from the token itself.",
        ),
        Mistake(
            "not brought to its length",
            _written(row=lambda context: context),
            "The context is the next token as it is. It is divided by the root of the mean of its squares.",
        ),
        Mistake(
            "divided by the root of the sum",
            _written(row=lambda context: context / context.norm(dim=-1, keepdim=True)),
            "The new tokens have length 1. It is the mean of the squares that is brought to 1, not their "
            "sum.",
        ),
        Mistake("no scale", _written(scale=lambda query, token: 1.0), "The scores are not divided by √d_k."),
        Mistake(
            "with the prompt",
            _with_the_prompt,
            "You return the prompt as well. Only the new tokens are asked for.",
        ),
        Mistake(
            "the last one only",
            _last_only,
            "You return one token. All new ones are asked for, in their order.",
        ),
        Mistake(
            "one late",
            _one_late,
            "What you return begins with the prompt's last token. It begins with the first new one.",
        ),
        Mistake(
            "the prompt's last query for ever",
            _written(asking=lambda prompt, last: prompt[..., -1:, :]),
            "Every step asks with the query of the prompt's last token. Each asks with that of the newest "
            "one.",
        ),
        Mistake(
            "the prompt's last token twice",
            _written(prompt=lambda x: torch.cat((x, x[..., -1:, :]), -2)),
            "The key and value of the prompt's last token lie in the cache twice. They are there before the "
            "first step: a step adds those of the token that it makes.",
        ),
        Mistake(
            "scaled with √d",
            _written(scale=lambda query, token: token.shape[-1] ** 0.5),
            "The scores are divided by √d, the width of the tokens. A score sums over d_k products: take the "
            "width of the keys.",
        ),
        Mistake(
            "the oldest forgotten",
            _written(seen=lambda past, new: torch.cat((past[..., 1:, :], new), -2)),
            "When a new row comes into the cache, the oldest falls out. A token sees all before it: the "
            "cache grows.",
        ),
        Mistake(
            "brought to its length at the end",
            _length_afterwards,
            "What you return has the right length, but the steps go on with contexts that have not. Query, "
            "key and value are made from the token as it is returned.",
        ),
    ),
    hints=(
        "Of the slow way's contexts, [T, d], which rows does a step read? Which rows of keys and values has "
        "the step before made already?",
        "Make the keys and values of the prompt once, before the loop. A step needs one query, that of the "
        "last token, and makes one new key and one new value.",
        "In the loop: query of the last token; softmax over all keys, without a mask, since all of them lie "
        "in its past; the context, brought to its length, is the next token; its key and value go behind the "
        "others.",
    ),
)

"""Exercise 5: a decoder layer with its cache, as a module."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attention_course.checks.decoding.shared import NAME
from attention_course.checks.engine.asks import Inputs, Module
from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Mistake

STATE = (
    "norm_1.weight", "norm_1.bias",
    "query.weight", "key.weight", "value.weight", "output.weight",
    "norm_2.weight", "norm_2.bias",
    "inner.weight", "inner.bias", "outer.weight", "outer.bias",
)  # fmt: skip


class DecoderLayer(nn.Module):
    """The reference; each of its mistakes is one of its parts, replaced."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = nn.LayerNorm(d_model)
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.norm_2 = nn.LayerNorm(d_model)
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor) -> Inputs:
        context, keys, values = self.attend(self.read(x), past_key, past_value)
        middle = x + self.output(context)
        return self.finish(x, middle), keys, values

    def read(self, x: Tensor) -> Tensor:
        """What the attention reads."""
        return self.norm_1(x)

    def attend(self, x: Tensor, past_key: Tensor, past_value: Tensor) -> Inputs:
        query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
        keys, values = self.joined(past_key, key), self.joined(past_value, value)
        scores = query @ keys.mT / self.scale(query)
        return self.merge(self.weights(scores) @ values), *self.kept(keys, values, key, value)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)

    def joined(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat((past, new), dim=-2)

    def scale(self, query: Tensor) -> float:
        return query.shape[-1] ** 0.5

    def weights(self, scores: Tensor) -> Tensor:
        return _hidden(scores, scores.shape[-1] - scores.shape[-2])

    def merge(self, context: Tensor) -> Tensor:
        return context.transpose(-2, -3).flatten(-2)

    def kept(self, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> Inputs:
        """What is returned beside the output."""
        return keys, values

    def finish(self, x: Tensor, middle: Tensor) -> Tensor:
        return middle + self.outer(self.inner(self.norm_2(middle)).relu())


def _hidden(scores: Tensor, diagonal: int) -> Tensor:
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _seen_hidden(self: DecoderLayer, scores: Tensor) -> Tensor:
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
    return scores.masked_fill(seen, -torch.inf).softmax(-1)


def _tail(weights: Tensor) -> Tensor:
    """What causal attention of the last tokens leaves of the weights."""
    return weights.tril(weights.shape[-1] - weights.shape[-2])


def _renormed(self: DecoderLayer, scores: Tensor) -> Tensor:
    weights = _tail(scores.softmax(-1))
    return weights / weights.sum(-1, keepdim=True)


def _with(**parts: Callable) -> type[DecoderLayer]:
    return type("DecoderLayer", (DecoderLayer,), parts)


def _post_norm(self: DecoderLayer, x: Tensor, past_key: Tensor, past_value: Tensor) -> Inputs:
    context, keys, values = self.attend(x, past_key, past_value)
    middle = self.norm_1(x + self.output(context))
    return self.norm_2(middle + self.outer(self.inner(middle).relu())), keys, values


def _residual_after_norm(self: DecoderLayer, x: Tensor, past_key: Tensor, past_value: Tensor) -> Inputs:
    x = self.norm_1(x)
    context, keys, values = self.attend(x, past_key, past_value)
    return self.finish(x, x + self.output(context)), keys, values


def _no_residual(self: DecoderLayer, x: Tensor, past_key: Tensor, past_value: Tensor) -> Inputs:
    context, keys, values = self.attend(self.norm_1(x), past_key, past_value)
    return self.finish(x, self.output(context)), keys, values


def _tokens_cached(self: DecoderLayer, x: Tensor, past_key: Tensor, past_value: Tensor) -> Inputs:
    """Keys and values are projected from x as it came, and only queries from the norm."""
    query = self.split(self.query(self.norm_1(x)))
    keys = self.joined(past_key, self.split(self.key(x)))
    values = self.joined(past_value, self.split(self.value(x)))
    weights = self.weights(query @ keys.mT / self.scale(query))
    middle = x + self.output(self.merge(weights @ values))
    return self.finish(x, middle), keys, values


def _past_normed(self: DecoderLayer, x: Tensor, past_key: Tensor, past_value: Tensor) -> Inputs:
    again = self.split(self.norm_1(self.merge(past_key)))
    return DecoderLayer.forward(self, x, again, past_value)


def _dealt(self: DecoderLayer, x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, self.num_heads)).movedim(-1, -3)


class _Remembers(DecoderLayer):
    """It keeps the cache itself, and reads it in the next call."""

    def attend(self, x: Tensor, past_key: Tensor, past_value: Tensor) -> Inputs:
        past_key, past_value = getattr(self, "cache", (past_key, past_value))
        context, keys, values = super().attend(x, past_key, past_value)
        self.cache = keys, values
        return context, keys, values


# Cases ----------------------------------------------------------------------------------------


def _drawn(
    generator: Generator,
    leading: tuple[int, ...],
    T: int,
    past: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    def gain_and_shift() -> Inputs:
        gain = 0.5 + 1.5 * torch.rand(d_model, generator=generator, dtype=torch.float64)
        return gain.to(dtype), normal(generator, d_model, dtype=dtype)

    rows = [weight(generator, d_model, d_model, dtype) for _ in range(4)]
    cached = (*leading, num_heads, past, d_model // num_heads)
    return (
        *gain_and_shift(), *rows, *gain_and_shift(),
        weight(generator, d_ff, d_model, dtype), normal(generator, d_ff, dtype=dtype),
        weight(generator, d_model, d_ff, dtype), normal(generator, d_model, dtype=dtype),
        normal(generator, *leading, T, d_model, dtype=dtype),
        normal(generator, *cached, dtype=dtype), normal(generator, *cached, dtype=dtype),
    )  # fmt: skip


def _by_hand(generator: Generator) -> Inputs:
    return (
        torch.ones(4), torch.zeros(4), *(halves(generator, 4, 4) for _ in range(4)),
        torch.ones(4), torch.zeros(4),
        halves(generator, 6, 4), halves(generator, 6), halves(generator, 4, 6), tenths(generator, 4),
        tenths(generator, 2, 4), tenths(generator, 1, 3, 4), tenths(generator, 1, 3, 4),
    )  # fmt: skip


def _loud_future(generator: Generator) -> Inputs:
    """The first token's own score is far below 0, and that of the second, which it may not see, far above:
    whoever hides weights instead of scores divides 0 by 0, and no finite penalty is enough by chance."""
    gain, shift, query, _, *others, x, past_key, past_value = _drawn(generator, (2,), 4, 0, 8, 2, 12)
    x[:, 1] = -x[:, 0]
    return gain, torch.zeros_like(shift), query, -64 * query, *others, x, past_key, past_value


DECODER_LAYER = Exercise(
    name=f"{NAME}.decoder_layer",
    title="Build it: a decoder layer with its cache",
    points=3,
    difficulty=3,
    minutes=25,
    reference=DecoderLayer,
    asks=Module(STATE),
    returns=("output", "keys", "values"),
    unseen=("x",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", _by_hand, arguments={"d_model": 4, "num_heads": 1, "d_ff": 6}),
        Case(
            "a prompt, no past",
            lambda g: _drawn(g, (2,), 5, 0, 12, 3, 20),
            arguments={"d_model": 12, "num_heads": 3, "d_ff": 20},
        ),
        Case(
            "one new token",
            lambda g: _drawn(g, (3,), 1, 4, 8, 2, 12),
            arguments={"d_model": 8, "num_heads": 2, "d_ff": 12},
        ),
        Case(
            "several new tokens",
            lambda g: _drawn(g, (2,), 3, 5, 16, 4, 24),
            arguments={"d_model": 16, "num_heads": 4, "d_ff": 24},
        ),
        Case(
            "as many heads as new tokens, float64",
            lambda g: _drawn(g, (2,), 2, 2, 8, 2, 12, torch.float64),
            arguments={"d_model": 8, "num_heads": 2, "d_ff": 12},
        ),
        Case("a loud future", _loud_future, arguments={"d_model": 8, "num_heads": 2, "d_ff": 12}),
        Case(
            "gradient",
            lambda g: _drawn(g, (2,), 2, 3, 8, 2, 10),
            gradient=True,
            arguments={"d_model": 8, "num_heads": 2, "d_ff": 10},
        ),
    ),
    mistakes=(
        Mistake(
            "mask from the first key",
            _with(weights=lambda self, scores: _hidden(scores, 0)),
            "The lower triangle starts at the first key. The new tokens are the last ones: move the diagonal "
            "by the length of the past.",
        ),
        Mistake(
            "no mask",
            _with(weights=lambda self, scores: scores.softmax(-1)),
            "New tokens see each other in both directions. With one new token at a time nothing shows; with "
            "a prompt each of them reads its own future.",
        ),
        Mistake(
            "mask after softmax",
            _with(weights=lambda self, scores: _tail(scores.softmax(-1))),
            "Weights are set to 0 after the softmax, and the rows that are left no longer sum to 1. Hide "
            "scores, with -inf, before it.",
        ),
        Mistake(
            "renormed after softmax",
            _with(weights=_renormed),
            "Weights are hidden after the softmax and divided by what is left of their sum. Where the hidden "
            "scores are far larger nothing is left, and 0 is divided by 0. Hide scores, before the softmax.",
        ),
        Mistake(
            "past forgotten",
            _with(joined=lambda self, past, new: new),
            "The keys and values of the past are not used: every call begins anew.",
        ),
        Mistake(
            "new tokens in front",
            _with(joined=lambda self, past, new: torch.cat((new, past), dim=-2)),
            "The new keys and values stand in front of the old ones. They come behind, in the order of the "
            "text.",
        ),
        Mistake(
            "only the new ones returned",
            _with(kept=lambda self, keys, values, key, value: (key, value)),
            "You return the keys and values of the new tokens alone. What you return is the past of the next "
            "call: old ones first, new ones behind them.",
        ),
        Mistake(
            "the old cache returned",
            _with(
                kept=lambda self, keys, values, k, v: (
                    keys[..., : -k.shape[-2], :],
                    values[..., : -v.shape[-2], :],
                )
            ),
            "You return the past as it came. The next call then knows nothing of these tokens: return it "
            "with their keys and values behind it.",
        ),
        Mistake(
            "keys and values exchanged",
            _with(kept=lambda self, keys, values, key, value: (values, keys)),
            "The output is right, and the cache comes back as (values, keys). The order is output, keys, "
            "values.",
        ),
        Mistake(
            "post-norm",
            _with(forward=_post_norm),
            "The sums are normed, and the layers read what is not. This layer is pre-norm: each half reads "
            "normed tokens and is added to what came.",
        ),
        Mistake(
            "keys from tokens that are not normed",
            _with(forward=_tokens_cached),
            "The queries are made from norm_1(x), the keys and values from x. All three read norm_1(x).",
        ),
        Mistake(
            "residual from the norm",
            _with(forward=_residual_after_norm),
            "What is added is norm_1(x). The residual path carries x as it came, from layer to layer.",
        ),
        Mistake(
            "residual missing",
            _with(forward=_no_residual),
            "The attention's output is not added to x: a token forgets what it was.",
        ),
        Mistake(
            "second residual from x",
            _with(finish=lambda self, x, middle: x + self.outer(self.inner(self.norm_2(middle)).relu())),
            "The second sum takes x, from before the attention. It takes the result of the first half.",
        ),
        Mistake(
            "second norm missing",
            _with(finish=lambda self, x, middle: middle + self.outer(self.inner(middle).relu())),
            "The feed-forward network reads tokens that are not normed. It reads norm_2 of them.",
        ),
        Mistake(
            "scaled by the whole width",
            _with(scale=lambda self, query: (self.num_heads * query.shape[-1]) ** 0.5),
            "The scores are divided by √d_model. A head's query has d_k numbers: divide by √d_k.",
        ),
        Mistake("no scale", _with(scale=lambda self, query: 1.0), "The scores are not divided by √d_k."),
        Mistake(
            "divided by d_k",
            _with(scale=lambda self, query: query.shape[-1]),
            "The scores are divided by d_k. Look at its power.",
        ),
        Mistake(
            "seen for hidden",
            _with(weights=_seen_hidden),
            "What may be seen is hidden, and the rest is seen; the last token sees nothing at all, hence "
            "NaN. masked_fill fills where its mask is True.",
        ),
        Mistake(
            "second residual missing",
            _with(finish=lambda self, x, middle: self.outer(self.inner(self.norm_2(middle)).relu())),
            "The output of the feed-forward network is not added to what the first half has made.",
        ),
        Mistake(
            "not transposed back",
            _with(merge=lambda self, c: c.reshape(*c.shape[:-3], c.shape[-2], -1)),
            "The heads are joined without bringing the tokens back in front of them. Exchange the two axes, "
            "then join.",
        ),
        Mistake(
            "rows cut into heads",
            _with(split=lambda self, x: x.reshape(*x.shape[:-2], self.num_heads, x.shape[-2], -1)),
            "One reshape to [..., h, T, d_k] mixes tokens into heads. The columns are cut: reshape to "
            "[..., T, h, d_k], then exchange two axes.",
        ),
        Mistake(
            "cache kept in the module",
            _Remembers,
            "Your module keeps the cache itself: the next sentence goes on where the last one ended. The "
            "past comes in, and goes out again, in the arguments.",
        ),
        Mistake(
            "blind to itself",
            _with(weights=lambda self, scores: _hidden(scores, scores.shape[-1] - scores.shape[-2] - 1)),
            "A token does not see its own key, and without a past the first one sees nothing, hence NaN. "
            "Causal means up to and including itself.",
        ),
        Mistake(
            "GELU instead of ReLU",
            _with(
                finish=lambda self, x, middle: middle + self.outer(F.gelu(self.inner(self.norm_2(middle))))
            ),
            "The activation is GELU, as in GPT-2. This exercise has ReLU.",
        ),
        Mistake(
            "norm_1 twice",
            _with(finish=lambda self, x, middle: middle + self.outer(self.inner(self.norm_1(middle)).relu())),
            "The feed-forward network reads norm_1 of its tokens. It has a norm of its own, norm_2.",
        ),
        Mistake(
            "the past normed again",
            _with(forward=_past_normed),
            "The keys that come back as the past are normed. They were made from normed tokens when they "
            "were new: use them as they are.",
        ),
        Mistake(
            "columns dealt to the heads in turn",
            _with(split=_dealt, merge=lambda self, context: context.movedim(-3, -1).flatten(-2)),
            "Column 0 goes to the first head, column 1 to the second, and so on round. The first d_k columns "
            "are the first head's: which of h and d_k comes first when the columns are cut?",
        ),
    ),
    hints=(
        "Without the past this is a pre-norm layer: x plus attention of norm_1(x), then that plus the "
        "feed-forward of norm_2 of it. At which two places does the past come in?",
        "Cut query, key and value into heads, [..., h, T, d_k]. Join the past and the new keys along the "
        "tokens, the values likewise: these are both what you attend to and what you return.",
        "The mask is that of exercise 2: of P + T columns, row i sees the first P + i + 1. Join the heads, "
        "self.output, add x; then self.norm_2, self.inner, ReLU, self.outer, and add what went in.",
    ),
)

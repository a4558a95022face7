"""Exercise 6: causal attention with rotary positions, as a module."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from attention_course.checks.engine.asks import Inputs, Module
from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.positions import shared
from attention_course.checks.positions.rotate import ROTATE
from attention_course.checks.positions.shared import NAME

STATE = ("query.weight", "key.weight", "value.weight", "output.weight")


def _turned(x: Tensor, start: int = 0) -> Tensor:
    return ROTATE.reference(x, torch.tensor(start))


class RotaryAttention(nn.Module):
    """The reference; each of its mistakes is one of its parts, replaced."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(x)
        scores = query @ key.mT / self.scale(query)
        context = self.weights(scores) @ value
        return self.out(self.merge(context))

    def heads(self, x: Tensor) -> Inputs:
        """Query, key and value, [..., h, T, d_k], turned where they are to be."""
        query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
        return self.turn(query, key, value)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)

    def turn(self, query: Tensor, key: Tensor, value: Tensor) -> Inputs:
        return _turned(query), _turned(key), value

    def scale(self, query: Tensor) -> float:
        return query.shape[-1] ** 0.5

    def weights(self, scores: Tensor) -> Tensor:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~seen, -torch.inf).softmax(-1)

    def merge(self, context: Tensor) -> Tensor:
        return context.transpose(-2, -3).flatten(-2)

    def out(self, x: Tensor) -> Tensor:
        return self.output(x)


def _with(**parts: Callable) -> type[RotaryAttention]:
    return type("RotaryAttention", (RotaryAttention,), parts)


def _turned_by(positions: Callable[[int], Tensor]) -> Callable[..., Inputs]:
    """Queries and keys, each token turned by its own number of positions."""

    def turned(x: Tensor) -> Tensor:
        places = positions(x.shape[-2])
        return torch.cat([_turned(x[..., t : t + 1, :], int(p)) for t, p in enumerate(places)], dim=-2)

    return lambda self, query, key, value: (turned(query), turned(key), value)


def _turned_slowly(self: RotaryAttention, query: Tensor, key: Tensor, value: Tensor) -> Inputs:
    """By frequencies with the exponent i/d: the first half of those of a head twice as wide."""

    def turned(x: Tensor) -> Tensor:
        wide = torch.cat((x, torch.zeros_like(x)), dim=-1)
        return _turned(wide)[..., : x.shape[-1]]

    return turned(query), turned(key), value


def _keys_times_queries(self: RotaryAttention, x: Tensor) -> Inputs:
    query, key, value = RotaryAttention.heads(self, x)
    return key, query, value


def _turned_before_the_split(self: RotaryAttention, x: Tensor) -> Inputs:
    query, key = (self.split(_turned(part(x))) for part in (self.query, self.key))
    return query, key, self.split(self.value(x))


def _halves_paired(query: Tensor, key: Tensor, value: Tensor) -> Inputs:
    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        x = _turned(shared.neighbours(first, second))
        return shared.halves(x[..., 0::2], x[..., 1::2])

    return turned(query), turned(key), value


def _tokens_turned(self: RotaryAttention, x: Tensor) -> Inputs:
    turned = _turned(x)
    return self.split(self.query(turned)), self.split(self.key(turned)), self.split(self.value(x))


def _from_the_right(self: RotaryAttention, x: Tensor) -> Inputs:
    parts = (self.query, self.key, self.value)
    return self.turn(*(self.split(x @ part.weight) for part in parts))


def _hidden(self: RotaryAttention, scores: Tensor, diagonal: int) -> Tensor:
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _own_token_hidden(self: RotaryAttention, scores: Tensor) -> Tensor:
    return _hidden(self, scores, -1).nan_to_num()


def _seen_hidden(self: RotaryAttention, scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf).softmax(-1)


def _renormed(self: RotaryAttention, scores: Tensor) -> Tensor:
    weights = scores.softmax(-1).tril()
    return weights / weights.sum(-1, keepdim=True)


class _SinusoidsAdded(RotaryAttention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + shared.encoding(torch.arange(x.shape[-2]), x.shape[-1]).to(x.dtype))

    def turn(self, query: Tensor, key: Tensor, value: Tensor) -> Inputs:
        return query, key, value


class _WithResidual(RotaryAttention):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class _WithBiases(RotaryAttention):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        for name in ("query", "key", "value", "output"):
            setattr(self, name, nn.Linear(d_model, d_model))


class _HeadsInAList(RotaryAttention):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.projections = [self.query, self.key, self.value]
        del self.query, self.key, self.value


# Cases ----------------------------------------------------------------------------------------


def _drawn(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Inputs:
    d_model = shape[-1]
    matrices = [weight(generator, d_model, d_model, dtype) for _ in range(4)]
    # larger queries and keys: the weights differ from key to key, and a wrong turn shows
    return 2 * matrices[0], 2 * matrices[1], *matrices[2:], normal(generator, *shape, dtype=dtype)


def _loud_future(generator: Generator) -> Inputs:
    """The first token's own score is far below 0, and that of the second, which it may not see, far above:
    whoever hides weights instead of scores divides 0 by 0, and no finite penalty is enough by chance."""
    query, _, value, output, x = _drawn(generator, 2, 4, 8)
    x[:, 1] = -x[:, 0]
    return query, -16 * query, value, output, x


ROTARY_ATTENTION = Exercise(
    name=f"{NAME}.rotary_attention",
    title="Build it: attention that knows where",
    points=3,
    difficulty=3,
    minutes=20,
    reference=RotaryAttention,
    asks=Module(STATE),
    returns=("output",),
    unseen=("x",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (*(halves(g, 4, 4) for _ in range(4)), tenths(g, 3, 4)),
            arguments={"d_model": 4, "num_heads": 1},
        ),
        Case("batch", lambda g: _drawn(g, 2, 5, 12), arguments={"d_model": 12, "num_heads": 3}),
        Case(
            "as many heads as tokens",
            lambda g: _drawn(g, 3, 4, 16),
            arguments={"d_model": 16, "num_heads": 4},
        ),
        Case("one token", lambda g: _drawn(g, 2, 1, 8), arguments={"d_model": 8, "num_heads": 2}),
        Case(
            "two leading axes, float64",
            lambda g: _drawn(g, 2, 3, 6, 8, dtype=torch.float64),
            arguments={"d_model": 8, "num_heads": 2},
        ),
        Case("a loud future", _loud_future, arguments={"d_model": 8, "num_heads": 2}),
        Case(
            "gradient",
            lambda g: _drawn(g, 2, 4, 12),
            gradient=True,
            arguments={"d_model": 12, "num_heads": 2},
        ),
    ),
    mistakes=(
        Mistake(
            "values turned too",
            _with(turn=lambda self, query, key, value: (_turned(query), _turned(key), _turned(value))),
            "The values are turned as well. A turn belongs into the scores, where only the difference of two "
            "positions is left; in the output it would say where the token stood.",
        ),
        Mistake(
            "only the queries turned",
            _with(turn=lambda self, query, key, value: (_turned(query), key, value)),
            "The keys stay as they are. The score then depends on the query's position, and not on the "
            "distance. Turn both.",
        ),
        Mistake(
            "only the keys turned",
            _with(turn=lambda self, query, key, value: (query, _turned(key), value)),
            "The queries stay as they are. The score then depends on the key's position, and not on the "
            "distance. Turn both.",
        ),
        Mistake(
            "keys times queries",
            _with(heads=_keys_times_queries),
            "The scores are transposed: row i holds the products of key i with all queries. Do the keys "
            "stand on the left of the product, or have query and key changed places?",
        ),
        Mistake(
            "turned backwards",
            _with(turn=_turned_by(lambda T: -torch.arange(T))),
            "Distances count with the other sign: queries and keys are both turned the other way round, or "
            "positions are counted from the end. The first token stands at 0, the next at 1.",
        ),
        Mistake(
            "turned twice",
            _with(turn=_turned_by(lambda T: 2 * torch.arange(T))),
            "Every distance counts double. Are queries and keys turned in two places?",
        ),
        Mistake(
            "exponent i/d",
            _with(turn=_turned_slowly),
            "The hands are too fast: pair i is turned with the exponent -i/d_k in the place of -2i/d_k. Does "
            "your rotate of exercise 3 pass its check?",
        ),
        Mistake(
            "nothing turned",
            _with(turn=lambda self, *parts: parts),
            "This is attention without positions. Are queries and keys turned before their scores are taken? "
            "And along the tokens? In [..., T, h, d_k] axis -2 are the heads: both are turned alike there, "
            "and the score is what it was.",
        ),
        Mistake(
            "sinusoids added",
            _SinusoidsAdded,
            "The sinusoids of exercise 1 are added to x, and nothing is turned. Here positions enter the "
            "scores alone: queries and keys are turned.",
        ),
        Mistake(
            "turned before the heads are split",
            _with(heads=_turned_before_the_split),
            "The turn is made over the whole width, d_model. Then the first head has the fast hands and the "
            "last one the slow ones. Split first: every head has all d_k / 2 frequencies.",
        ),
        Mistake(
            "the tokens turned",
            _with(heads=_tokens_turned),
            "x is turned, and then projected. A matrix between the turn and the score takes the distance "
            "out of it: project first, then turn.",
        ),
        Mistake(
            "halves paired",
            _with(turn=lambda self, *parts: _halves_paired(*parts)),
            "Column i is turned together with column i + d_k/2. Here neighbours make a pair, as in "
            "exercise 3.",
        ),
        Mistake(
            "rows cut into heads",
            _with(split=lambda self, x: x.reshape(*x.shape[:-2], self.num_heads, x.shape[-2], -1)),
            "One reshape to [..., h, T, d_k] mixes tokens into heads. The columns are cut: reshape to "
            "[..., T, h, d_k], then exchange two axes.",
        ),
        Mistake(
            "every num_heads-th column to a head",
            _with(split=lambda self, x: x.unflatten(-1, (-1, self.num_heads)).movedim(-1, -3)),
            "You take columns 0, h, 2h, ... for head 0. A head is d_k columns side by side: look at the "
            "order of the sizes when you split the last axis.",
        ),
        Mistake(
            "not transposed back",
            _with(merge=lambda self, c: c.reshape(*c.shape[:-3], c.shape[-2], -1)),
            "The heads are joined without bringing the tokens back in front of them. Exchange the two axes, "
            "then join.",
        ),
        Mistake(
            "scaled by the whole width",
            _with(scale=lambda self, query: (self.num_heads * query.shape[-1]) ** 0.5),
            "The scores are divided by √d_model. A head's query has d_k = d_model / num_heads numbers: "
            "divide by √d_k.",
        ),
        Mistake(
            "no scale",
            _with(scale=lambda self, query: 1.0),
            "The scores are not divided by √d_k.",
        ),
        Mistake(
            "divided by d_k",
            _with(scale=lambda self, query: query.shape[-1]),
            "The scores are divided by d_k. Look at its power.",
        ),
        Mistake(
            "divided by √T",
            _with(scale=lambda self, query: query.shape[-2] ** 0.5),
            "The scores are divided by the root of the number of tokens. Which axis is d_k?",
        ),
        Mistake(
            "seen for hidden",
            _with(weights=_seen_hidden),
            "What may be seen is hidden, and the rest is seen; the last token sees nothing at all, hence "
            "NaN. masked_fill fills where its mask is True.",
        ),
        Mistake(
            "no causal mask",
            _with(weights=lambda self, scores: scores.softmax(-1)),
            "Every token sees those behind it. Token i may look at tokens 0 to i.",
        ),
        Mistake(
            "mask after softmax",
            _with(weights=lambda self, scores: scores.softmax(-1).tril()),
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
            "one too many",
            _with(weights=lambda self, scores: _hidden(self, scores, 1)),
            "Every token sees one token of its future.",
        ),
        Mistake(
            "own token hidden",
            _with(weights=_own_token_hidden),
            "No token sees itself, and the first, which sees nothing, gets 0. Token i sees tokens 0 to i: "
            "keep the diagonal.",
        ),
        Mistake(
            "softmax over queries",
            _with(
                weights=lambda self, s: s.masked_fill(
                    ~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf
                ).softmax(-2)
            ),
            "The columns of the weights sum to 1, not the rows. Softmax runs over the keys, the last axis.",
        ),
        Mistake(
            "W_O missing",
            _with(out=lambda self, x: x),
            "The joined heads are returned as they are. They pass through self.output first.",
        ),
        Mistake(
            "x added",
            _WithResidual,
            "x is added to what comes out. A block around the layer does that; the layer itself returns what "
            "the last projection makes.",
        ),
        Mistake(
            "weights not transposed",
            _with(heads=_from_the_right),
            "The matrices stand on the right as they are: no shape tells. nn.Linear keeps its weight as "
            "[out, in] and computes x @ weight.mT. Call the layer, self.query(x).",
        ),
        Mistake(
            "biases in the projections",
            _WithBiases,
            "The four projections have no biases here. nn.Linear makes one unless told bias=False.",
        ),
        Mistake(
            "projections in a plain list",
            _HeadsInAList,
            "nn.Module registers what is assigned to self, not what lies in a list. Assign each projection "
            "to an attribute.",
        ),
    ),
    hints=(
        "Write the shapes from x to the output: [..., T, d_model], [..., h, T, d_k], [..., h, T, T], and "
        "back. At which of them does your rotate of exercise 3 find what its docstring asks for?",
        "Project, split, turn queries and keys (start 0), scores / √d_k, hide what lies above the diagonal, "
        "softmax, mix the values, join the heads, project. Values are not turned.",
        "To split, unflatten the last axis into heads and columns and swap heads and tokens; to join, "
        "swap them back and flatten. A lower triangle, [T, T], says who may look.",
    ),
)

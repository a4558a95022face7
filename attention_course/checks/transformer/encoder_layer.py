"""Exercise 6: a whole encoder layer, as a module."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attention_course.checks.engine.asks import Inputs, Module
from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME

STATE = (
    "query.weight", "key.weight", "value.weight", "output.weight",
    "norm_1.weight", "norm_1.bias",
    "inner.weight", "inner.bias", "outer.weight", "outer.bias",
    "norm_2.weight", "norm_2.bias",
)  # fmt: skip


class EncoderLayer(nn.Module):
    """The reference; each of its mistakes is one of its parts, replaced."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.norm_1 = nn.LayerNorm(d_model, eps=shared.EPSILON)
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.norm_2 = nn.LayerNorm(d_model, eps=shared.EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return self.wired(x, self.attend, self.norm_1, self.feed, self.norm_2)

    def wired(self, x: Tensor, attend: "Step", norm_1: "Step", feed: "Step", norm_2: "Step") -> Tensor:
        middle = norm_1(x + attend(x))
        return norm_2(middle + feed(middle))

    def attend(self, x: Tensor) -> Tensor:
        key = self.key(x)
        scores = self.query(x) @ key.mT / self.scale(key)
        return self.output(scores.softmax(-1) @ self.value(x))

    def scale(self, key: Tensor) -> float:
        return key.shape[-1] ** 0.5

    def feed(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x).relu())


Step = Callable[[Tensor], Tensor]


def _wired(wired: Callable[[Tensor, Step, Step, Step, Step], Tensor]) -> type[EncoderLayer]:
    """The reference with its parts put together by ``wired(x, attend, norm_1, feed, norm_2)``."""
    return type("EncoderLayer", (EncoderLayer,), {"wired": lambda self, *parts: wired(*parts)})


def _with(**parts: Callable) -> type[EncoderLayer]:
    """The reference with methods replaced."""
    return type("EncoderLayer", (EncoderLayer,), parts)


def _pre_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + attend(norm_1(x))
    return middle + feed(norm_2(middle))


def _second_residual_from_x(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    return norm_2(x + feed(norm_1(x + attend(x))))


def _no_first_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + attend(x)
    return norm_2(middle + feed(middle))


def _no_second_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(x + attend(x))
    return middle + feed(middle)


def _no_first_residual(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(attend(x))
    return norm_2(middle + feed(middle))


def _one_norm_twice(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(x + attend(x))
    return norm_1(middle + feed(middle))


def _norm_inside(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + norm_1(attend(x))
    return middle + norm_2(feed(middle))


def _without_output(self: EncoderLayer, x: Tensor) -> Tensor:
    key = self.key(x)
    return (self.query(x) @ key.mT / key.shape[-1] ** 0.5).softmax(-1) @ self.value(x)


def _feed_reads_x(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    return norm_2(norm_1(x + attend(x)) + feed(x))


def _norms_swapped(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_2(x + attend(x))
    return norm_1(middle + feed(middle))


def _attend_over_queries(self: EncoderLayer, x: Tensor) -> Tensor:
    key = self.key(x)
    scores = self.query(x) @ key.mT / self.scale(key)
    return self.output(scores.softmax(-2) @ self.value(x))


def _attend_over_axis_1(self: EncoderLayer, x: Tensor) -> Tensor:
    key = self.key(x)
    scores = self.query(x) @ key.mT / self.scale(key)
    return self.output(scores.softmax(1) @ self.value(x))


def _attend_to_the_past(self: EncoderLayer, x: Tensor) -> Tensor:
    key = self.key(x)
    scores = self.query(x) @ key.mT / self.scale(key)
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return self.output(scores.masked_fill(~past, -torch.inf).softmax(-1) @ self.value(x))


class _PlainList(EncoderLayer):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        self.norms = [self.norm_1, self.norm_2]
        del self.norm_1, self.norm_2


class _OneNorm(EncoderLayer):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        self.norm_2 = self.norm_1


class _Transposed(EncoderLayer):
    """Its matrices are [in, out] and stand on the right, as in the exercises before."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        self.inner = _Right(d_model, d_ff)
        self.outer = _Right(d_ff, d_model)


class _Right(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(rows, columns)), nn.Parameter(torch.zeros(columns))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def _attend_from_the_right(self: EncoderLayer, x: Tensor) -> Tensor:
    query, key, value = (x @ part.weight for part in (self.query, self.key, self.value))
    return (query @ key.mT / key.shape[-1] ** 0.5).softmax(-1) @ value @ self.output.weight


class _WithoutBiases(EncoderLayer):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        self.inner = nn.Linear(d_model, d_ff, bias=False)
        self.outer = nn.Linear(d_ff, d_model, bias=False)


class _WithBiases(EncoderLayer):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        for name in ("query", "key", "value", "output"):
            setattr(self, name, nn.Linear(d_model, d_model))


class _Remembers(EncoderLayer):
    """It attends to the tokens of the call before as well."""

    def attend(self, x: Tensor) -> Tensor:
        seen = x if getattr(self, "seen", None) is None else torch.cat((self.seen, x), -2)
        self.seen = seen
        key = self.key(seen)
        scores = self.query(x) @ key.mT / self.scale(key)
        return self.output(scores.softmax(-1) @ self.value(seen))


def _dropped(self: EncoderLayer, x: Tensor) -> Tensor:
    return F.dropout(self.outer(self.inner(x).relu()), 0.1)


def _in_place(self: EncoderLayer, x: Tensor) -> Tensor:
    return x.copy_(EncoderLayer.forward(self, x))


# Cases ----------------------------------------------------------------------------------------


def _drawn(generator: Generator, *shape: int, d_ff: int, dtype: torch.dtype = torch.float32) -> Inputs:
    d_model = shape[-1]

    def gain_and_shift() -> Inputs:
        return shared.gains(generator, d_model, dtype=dtype), normal(generator, d_model, dtype=dtype)

    projections = [weight(generator, d_model, d_model, dtype) for _ in range(4)]
    w_in, b_in, w_out, b_out = shared.two_layers(generator, d_model, d_ff, dtype)
    return (
        *projections, *gain_and_shift(), w_in.mT.contiguous(), b_in, w_out.mT.contiguous(), b_out,
        *gain_and_shift(), normal(generator, *shape, dtype=dtype),
    )  # fmt: skip


def _by_hand(generator: Generator) -> Inputs:
    return (
        *(halves(generator, 4, 4) for _ in range(4)),
        shared.gains(generator, 4), tenths(generator, 4),
        halves(generator, 6, 4), halves(generator, 6), halves(generator, 4, 6), tenths(generator, 4),
        shared.gains(generator, 4), tenths(generator, 4),
        tenths(generator, 3, 4),
    )  # fmt: skip


def _far_below(generator: Generator) -> Inputs:
    """Every score is near -800: it comes from what all tokens have in common."""
    query, key, *others, x = _drawn(generator, 2, 5, 4, d_ff=6, dtype=torch.float64)
    x[..., 0] = 1.0
    for projection, common in ((query, 1.0), (key, -1600.0)):
        projection[0] = 0.0
        projection[0, 0] = common
    return query, key, *others, x


ENCODER_LAYER = Exercise(
    name=f"{NAME}.encoder_layer",
    title="A whole layer, as a module",
    points=3,
    difficulty=3,
    minutes=25,
    reference=EncoderLayer,
    asks=Module(STATE),
    returns=("output",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", _by_hand, arguments={"d_model": 4, "d_ff": 6}),
        Case("batch", lambda g: _drawn(g, 2, 5, 8, d_ff=24), arguments={"d_model": 8, "d_ff": 24}),
        Case("one token", lambda g: _drawn(g, 3, 1, 6, d_ff=12), arguments={"d_model": 6, "d_ff": 12}),
        Case(
            "two leading axes, float64",
            lambda g: _drawn(g, 2, 3, 4, 8, d_ff=16, dtype=torch.float64),
            arguments={"d_model": 8, "d_ff": 16},
        ),
        Case("scores far below 0, float64", _far_below, arguments={"d_model": 4, "d_ff": 6}),
        Case(
            "gradient",
            lambda g: _drawn(g, 2, 4, 6, d_ff=9),
            gradient=True,
            arguments={"d_model": 6, "d_ff": 9},
        ),
    ),
    mistakes=(
        Mistake(
            "softmax over the queries",
            _with(attend=_attend_over_queries),
            "The columns of the weights sum to 1, not the rows: each query shares its attention out among "
            "the keys, the last axis. Look at dim.",
        ),
        Mistake(
            "norms swapped",
            _wired(_norms_swapped),
            "norm_2 comes after attention and norm_1 after the feed-forward network. They are built alike, "
            "and the state given to them is not.",
        ),
        Mistake(
            "modules in a plain list",
            _PlainList,
            "nn.Module registers what is assigned to self, not what lies in a list: model.parameters() does "
            "not know it, so no optimizer learns it and no file keeps it. Assign each norm to an attribute.",
        ),
        Mistake(
            "one norm under two names",
            _OneNorm,
            "norm_1 and norm_2 are one module with one gain and one shift, and whatever one learns the "
            "other has. Make two.",
        ),
        Mistake(
            "weights kept as [in, out]",
            _Transposed,
            "Your matrices stand on the right as they are, as in exercises 2 to 4. nn.Linear keeps its "
            "weight as [out, in] and computes x @ weight.mT + bias. Use nn.Linear.",
        ),
        Mistake(
            "weights not transposed",
            _with(attend=_attend_from_the_right),
            "The square matrices stand on the right as they are: no shape tells. nn.Linear keeps its weight "
            "as [out, in] and computes x @ weight.mT. Call the layer, self.query(x).",
        ),
        Mistake(
            "bias missing",
            _WithoutBiases,
            "The two layers of the feed-forward network have biases, b_in and b_out of exercise 2.",
        ),
        Mistake(
            "biases in the attention",
            _WithBiases,
            "The four projections of the attention have no biases here. nn.Linear makes one unless told "
            "bias=False.",
        ),
        Mistake(
            "state kept between calls",
            _Remembers,
            "Your module keeps the tokens of one call and reads them in the next: the second batch sees the "
            "first. What a call needs, it is given.",
        ),
        Mistake(
            "dropout that is always on",
            _with(feed=_dropped),
            "F.dropout drops in evaluation, too, unless it is told training=self.training. nn.Dropout knows.",
        ),
        Mistake(
            "pre-norm",
            _wired(_pre_norm),
            "Both layers read normed tokens, and the sums are not normed. That is pre-norm, as in "
            "exercise 3. The encoder of 2017 norms after each sum.",
        ),
        Mistake(
            "residual missing around attention",
            _wired(_no_first_residual),
            "After the first half a token knows what it gathered and no longer what it was. Add x "
            "before the first norm.",
        ),
        Mistake(
            "residual missing around feed-forward",
            _wired(lambda x, attend, norm_1, feed, norm_2: norm_2(feed(norm_1(x + attend(x))))),
            "The second half returns what the feed-forward layer says, alone. Add what it has read "
            "before the second norm.",
        ),
        Mistake(
            "second residual from x",
            _wired(_second_residual_from_x),
            "The second sum takes x, the tokens from before the attention. It takes what the "
            "feed-forward layer reads: the result of the first half.",
        ),
        Mistake(
            "first norm missing",
            _wired(_no_first_norm),
            "The first sum goes on without a norm. There is one after each of the two sums.",
        ),
        Mistake(
            "second norm missing",
            _wired(_no_second_norm),
            "The second sum is returned without a norm. There is one after each of the two sums.",
        ),
        Mistake(
            "one norm used twice",
            _wired(_one_norm_twice),
            "forward calls norm_1 after both sums. The second has a norm of its own, norm_2.",
        ),
        Mistake(
            "norm before the sum",
            _wired(_norm_inside),
            "Each norm is applied to what a layer says, and x is added after it. Add first, then norm.",
        ),
        Mistake(
            "W_O missing",
            _with(attend=_without_output),
            "The context goes straight into the sum. It passes through self.output first.",
        ),
        Mistake(
            "no scale",
            _with(scale=lambda self, key: 1.0),
            "The scores are plain dot products. Divide them by √d_k.",
        ),
        Mistake(
            "x changed in place",
            _with(forward=_in_place),
            "The result is right, but it is written into x itself, as x += ... does. Make a new tensor.",
        ),
        Mistake(
            "softmax over axis 1",
            _with(attend=_attend_over_axis_1),
            "The softmax runs over axis 1. In one sentence these are the keys, in a batch the queries. Count "
            "from the end: the last axis.",
        ),
        Mistake(
            "divided by d_k",
            _with(scale=lambda self, key: key.shape[-1]),
            "The scores are divided by d_k. Look at its power.",
        ),
        Mistake(
            "causal mask",
            _with(attend=_attend_to_the_past),
            "A token sees only itself and those before it. That is a decoder; in an encoder every token sees "
            "all others.",
        ),
        Mistake(
            "no activation",
            _with(feed=lambda self, x: self.outer(self.inner(x))),
            "There is no ReLU between inner and outer.",
        ),
        Mistake(
            "feed-forward reads x",
            _wired(_feed_reads_x),
            "The feed-forward network reads x, from before the attention. It reads the result of the first "
            "half.",
        ),
    ),
    hints=(
        "__init__ makes eight parts and assigns each to self under the name that the text gives it; forward "
        "is two halves of the same form: norm(something + layer(something)). What is “something” in the "
        "first half, and what in the second?",
        "nn.Linear without a bias four times, from d_model to d_model; one with a bias to d_ff and one "
        "back; nn.LayerNorm twice. First half: self.output of the attention of x with itself; add x; "
        "self.norm_1.",
        "Second half: the result y goes through self.inner, a ReLU and self.outer; add y, not x; "
        "self.norm_2. Assign nothing to self in forward.",
    ),
)

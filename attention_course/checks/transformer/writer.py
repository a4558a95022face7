"""Exercise 8: a language model whose positions are those of the batch, to be mended."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from attention_course.checks.engine.asks import Inputs, Module
from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME

STATE = (
    "token.weight", "place.weight",
    "norm_1.weight", "norm_1.bias",
    "query.weight", "key.weight", "value.weight", "output.weight",
    "norm_2.weight", "norm_2.bias",
    "inner.weight", "inner.bias", "outer.weight", "outer.bias",
    "words.weight", "words.bias",
)  # fmt: skip


class Writer(nn.Module):
    """The reference; what the notebook gives is one of its mistakes."""

    def __init__(self, vocabulary: int, length: int, d_model: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, d_model)
        self.place = nn.Embedding(length, d_model)
        self.norm_1 = nn.LayerNorm(d_model)
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.norm_2 = nn.LayerNorm(d_model)
        self.inner = nn.Linear(d_model, 4 * d_model)
        self.outer = nn.Linear(4 * d_model, d_model)
        self.words = nn.Linear(d_model, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.placed(tokens)
        x = x + self.output(self.attend(self.norm_1(x)))
        return self.words(self.feed(x))

    def placed(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.place(torch.arange(tokens.shape[-1]))

    def attend(self, x: Tensor) -> Tensor:
        key = self.key(x)
        scores = self.query(x) @ key.mT / self.scale(key)
        return self.weights(scores) @ self.value(x)

    def scale(self, key: Tensor) -> float:
        return key.shape[-1] ** 0.5

    def weights(self, scores: Tensor) -> Tensor:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~past, -torch.inf).softmax(-1)

    def feed(self, x: Tensor) -> Tensor:
        return x + self.outer(self.inner(self.norm_2(x)).relu())


def _with(**parts: Callable) -> type[Writer]:
    return type("Writer", (Writer,), parts)


def _no_first_residual(self: Writer, tokens: Tensor) -> Tensor:
    return self.words(self.feed(self.output(self.attend(self.norm_1(self.placed(tokens))))))


def _over_queries(self: Writer, scores: Tensor) -> Tensor:
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~past, -torch.inf).softmax(-2)


def _by_the_batch(self: Writer, tokens: Tensor) -> Tensor:
    return self.token(tokens) + self.place(torch.arange(tokens.shape[0]))[:, None]


def _from_1(self: Writer, tokens: Tensor) -> Tensor:
    length = self.place.num_embeddings
    return self.token(tokens) + self.place(torch.arange(1, tokens.shape[-1] + 1) % length)


def _from_the_end(self: Writer, tokens: Tensor) -> Tensor:
    return self.token(tokens) + self.place(torch.arange(tokens.shape[-1]).flip(0))


def _both(self: Writer, tokens: Tensor) -> Tensor:
    return Writer.placed(self, tokens) + self.place(torch.arange(tokens.shape[0]))[:, None]


def _by_the_word(self: Writer, tokens: Tensor) -> Tensor:
    return self.token(tokens) + self.place(tokens % self.place.num_embeddings)


# Cases ----------------------------------------------------------------------------------------


def _drawn(
    generator: Generator, batch: int, T: int, sizes: dict[str, int], dtype: torch.dtype = torch.float32
) -> Inputs:
    vocabulary, length, d_model = sizes.values()

    def gain_and_shift() -> Inputs:
        return shared.gains(generator, d_model, dtype=dtype), normal(generator, d_model, dtype=dtype)

    def linear(rows: int, columns: int) -> Tensor:
        return weight(generator, columns, rows, dtype).mT.contiguous()

    return (
        normal(generator, vocabulary, d_model, dtype=dtype), normal(generator, length, d_model, dtype=dtype),
        *gain_and_shift(), *(linear(d_model, d_model) for _ in range(4)), *gain_and_shift(),
        linear(4 * d_model, d_model), normal(generator, 4 * d_model, dtype=dtype),
        linear(d_model, 4 * d_model), normal(generator, d_model, dtype=dtype),
        linear(vocabulary, d_model), normal(generator, vocabulary, dtype=dtype),
        torch.randint(vocabulary, (batch, T), generator=generator),
    )  # fmt: skip


def _by_hand(generator: Generator) -> Inputs:
    return (
        tenths(generator, 5, 2), tenths(generator, 4, 2),
        torch.ones(2), torch.zeros(2), *(halves(generator, 2, 2) for _ in range(4)),
        torch.ones(2), torch.zeros(2),
        halves(generator, 8, 2), halves(generator, 8), halves(generator, 2, 8), tenths(generator, 2),
        halves(generator, 5, 2), tenths(generator, 5),
        torch.tensor([[3, 1, 4], [3, 1, 4]]),
    )  # fmt: skip


def _loud(generator: Generator) -> Inputs:
    """Each token scores thousands more than the one before it: the norm's first number is 1 everywhere, its
    second rises with the place."""
    inputs = _drawn(generator, 2, 4, _MIDDLE, torch.float64)
    _, place, gain, shift, query, key, *_ = inputs
    place[:4, 1] = torch.tensor([-40.0, -4.0, 4.0, 40.0], dtype=torch.float64)
    gain[:2], shift[:2] = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    query[0], key[0] = 0.0, 0.0
    query[0, 0] = 1.0
    key[0, :2] = torch.tensor([-3e4, 1e4])
    return inputs


_SMALL = {"vocabulary": 5, "length": 4, "d_model": 2}
_MIDDLE = {"vocabulary": 9, "length": 12, "d_model": 8}
_OTHER = {"vocabulary": 7, "length": 6, "d_model": 6}

WRITER = Exercise(
    name=f"{NAME}.writer",
    title="Mend it: a model that does not know where it is",
    points=2,
    difficulty=2,
    minutes=15,
    reference=Writer,
    asks=Module(STATE),
    returns=("logits",),
    unseen=("tokens",),
    cases=(
        Case("the same sentence twice", _by_hand, arguments=_SMALL),
        Case("three sentences", lambda g: _drawn(g, 3, 7, _MIDDLE), arguments=_MIDDLE),
        Case("as many sentences as tokens", lambda g: _drawn(g, 5, 5, _MIDDLE), arguments=_MIDDLE),
        Case(
            "as long as it may be, float64",
            lambda g: _drawn(g, 2, 6, _OTHER, torch.float64),
            arguments=_OTHER,
        ),
        Case("the future scores high, float64", _loud, arguments=_MIDDLE),
        Case("one token", lambda g: _drawn(g, 4, 1, _OTHER), arguments=_OTHER),
        Case("gradient", lambda g: _drawn(g, 2, 4, _OTHER), gradient=True, arguments=_OTHER),
    ),
    mistakes=(
        Mistake(
            "the fault is still there",
            _with(placed=_by_the_batch),
            "This is the model as it was: what is added says which sentence of the batch a token belongs to, "
            "and not where in it the token stands.",
        ),
        Mistake(
            "both added",
            _with(placed=_both),
            "The places along the sentence are added now, and those along the batch are still added as well. "
            "A sentence's logits must not depend on its row.",
        ),
        Mistake(
            "the positions taken out",
            _with(placed=lambda self, tokens: self.token(tokens)),
            "No place is added at all any more. Then a sentence's logits no longer depend on its row, and "
            "the model cannot tell in which order it has read.",
        ),
        Mistake(
            "one place for all",
            _with(placed=lambda self, tokens: self.token(tokens) + self.place(torch.tensor(0))),
            "Every token gets the first place. The places are 0 to T - 1, along the sentence.",
        ),
        Mistake(
            "counted from 1",
            _with(placed=_from_1),
            "The first token gets place 1. Places count from 0.",
        ),
        Mistake(
            "counted from the end",
            _with(placed=_from_the_end),
            "The last token gets place 0. Places count from the first one.",
        ),
        Mistake(
            "the word's number as its place",
            _with(placed=_by_the_word),
            "The place is looked up by the token's number, not by where it stands.",
        ),
        Mistake(
            "something else changed: the mask",
            _with(weights=lambda self, scores: scores.softmax(-1)),
            "The places are mended, and the causal mask is gone. It was right before.",
        ),
        Mistake(
            "something else changed: the scale",
            _with(scale=lambda self, key: 1.0),
            "The places are mended, and the scores are no longer divided by √d_model. That was right before.",
        ),
        Mistake(
            "something else changed: a residual",
            _with(feed=lambda self, x: self.outer(self.inner(self.norm_2(x)).relu())),
            "The places are mended, and what the feed-forward network has read is no longer added to what it "
            "says. That was right before.",
        ),
        Mistake(
            "something else changed: the first residual",
            _with(forward=_no_first_residual),
            "The places are mended, and what the attention has read is no longer added to what it says. That "
            "was right before.",
        ),
        Mistake(
            "something else changed: the second norm",
            _with(feed=lambda self, x: x + self.outer(self.inner(x).relu())),
            "The places are mended, and the feed-forward network reads tokens without norm_2. That was right "
            "before.",
        ),
        Mistake(
            "something else changed: the softmax",
            _with(weights=_over_queries),
            "The places are mended, and the softmax runs over the queries: the columns of the weights sum to "
            "1, not the rows. That was right before.",
        ),
        Mistake(
            "something else changed: probabilities",
            _with(forward=lambda self, tokens: Writer.forward(self, tokens).softmax(-1)),
            "The places are mended, and you return probabilities. The model returns logits, as it did "
            "before.",
        ),
    ),
    hints=(
        "What must not matter? Give the model one sentence twice in a batch, and then alone. What has to be "
        "the same, and what is not?",
        "Write the shape behind every line of the first three. One of them has the batch where the tokens "
        "belong, and broadcasting hides it.",
        "The places of T tokens are 0 to T - 1, and their vectors are [T, d_model]: they broadcast over the "
        "batch, which is in front.",
    ),
)

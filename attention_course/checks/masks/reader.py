"""Exercise 5: a language model that reads what it is to predict, to be mended."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from attention_course.checks.engine.asks import Inputs, Module
from attention_course.checks.engine.drawing import halves, normal, weight
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.masks.shared import NAME

#: the notebook says so
PAD = 0
STATE = ("token.weight", "query.weight", "key.weight", "value.weight", "output.weight", "words.weight")


class Reader(nn.Module):
    """The reference; what the notebook gives is one of its mistakes."""

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, d_model)
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.words = nn.Linear(d_model, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        scores = self.query(x) @ self.key(x).mT / self.scale(x)
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        word = (tokens != PAD)[..., None, :]
        context = self.weights(scores, past, word) @ self.value(x)
        return self.say(x, self.output(context))

    def scale(self, x: Tensor) -> float:
        return x.shape[-1] ** 0.5

    def weights(self, scores: Tensor, past: Tensor, word: Tensor) -> Tensor:
        return _seeing(scores, past & word)

    def say(self, x: Tensor, found: Tensor) -> Tensor:
        return self.words(x + found)


def _seeing(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _with(**parts: Callable) -> type[Reader]:
    return type("Reader", (Reader,), parts)


def _sees(seen: Callable[[Tensor, Tensor], Tensor]) -> type[Reader]:
    """A reader whose mask is made of the past and the words in another way."""
    return _with(weights=lambda self, scores, past, word: _seeing(scores, seen(past, word)))


def _renormed(self: Reader, scores: Tensor, past: Tensor, word: Tensor) -> Tensor:
    weights = scores.softmax(-1) * (past & word)
    return weights / weights.sum(-1, keepdim=True)


def _padding_says_nothing(self: Reader, tokens: Tensor) -> Tensor:
    return Reader.forward(self, tokens) * (tokens != PAD)[..., None]


# Cases ----------------------------------------------------------------------------------------


def _drawn(
    generator: Generator, tokens: Tensor, d_model: int, vocabulary: int, dtype: torch.dtype = torch.float32
) -> Inputs:
    matrices = [weight(generator, d_model, d_model, dtype) for _ in range(4)]
    return (
        normal(generator, vocabulary, d_model, dtype=dtype), 2 * matrices[0], *matrices[1:],
        weight(generator, d_model, vocabulary, dtype).mT.contiguous(), tokens,
    )  # fmt: skip


def _sentences(generator: Generator, T: int, vocabulary: int, *lengths: int) -> Tensor:
    """Words from 1 on, and ``PAD`` behind them."""
    words = torch.randint(1, vocabulary, (len(lengths), T), generator=generator)
    return words.masked_fill(torch.arange(T) >= torch.tensor(lengths)[:, None], PAD)


def _by_hand(generator: Generator) -> Inputs:
    tokens = torch.tensor([[3, 1, 2], [2, 4, PAD]])
    return (
        halves(generator, 5, 4), *(halves(generator, 4, 4) for _ in range(4)), halves(generator, 5, 4), tokens
    )  # fmt: skip


def _loud_future(generator: Generator) -> Inputs:
    """Scores of what is hidden far above those of what is seen, so that nothing hides it by chance."""
    tokens = torch.tensor([[1, 2, 3, 4, PAD], [3, 4, 1, PAD, PAD]])
    table, query, _, *others = _drawn(generator, tokens, 8, 6)
    table[PAD] = table[2] = -table[1]
    table[4] = -table[3]
    return table, query, -16 * query, *others


READER = Exercise(
    name=f"{NAME}.reader",
    title="Mend it: a loss too good to be true",
    points=2,
    difficulty=2,
    minutes=15,
    reference=Reader,
    asks=Module(STATE),
    returns=("logits",),
    unseen=("tokens",),
    cases=(
        Case("two sentences", _by_hand, arguments={"vocabulary": 5, "d_model": 4}),
        Case(
            "padded",
            lambda g: _drawn(g, _sentences(g, 6, 9, 6, 3, 1, 5), 8, 9),
            arguments={"vocabulary": 9, "d_model": 8},
        ),
        Case(
            "no padding",
            lambda g: _drawn(g, _sentences(g, 4, 7, 4, 4, 4), 6, 7),
            arguments={"vocabulary": 7, "d_model": 6},
        ),
        Case(
            "as many sentences as tokens, float64",
            lambda g: _drawn(g, _sentences(g, 4, 8, 2, 4, 3, 1), 8, 8, torch.float64),
            arguments={"vocabulary": 8, "d_model": 8},
        ),
        Case("a loud future", _loud_future, arguments={"vocabulary": 6, "d_model": 8}),
        Case(
            "gradient",
            lambda g: _drawn(g, _sentences(g, 5, 6, 5, 2), 6, 6),
            gradient=True,
            arguments={"vocabulary": 6, "d_model": 6},
        ),
    ),
    mistakes=(
        Mistake(
            "the fault is still there",
            _sees(lambda past, word: past | word),
            "This is the model as it was: a key is hidden only where it lies in the future and is padding as "
            "well. Every word of the sentence is in sight, from every position.",
        ),
        Mistake(
            "the padding in sight",
            _sees(lambda past, word: past.expand(*word.shape[:-2], *past.shape)),
            "The future is hidden now, and the padding is not: a padded position sees the padding before it. "
            "No word and no loss is affected, but the model meant to hide it: two masks hold at once here.",
        ),
        Mistake(
            "the future in sight",
            _sees(lambda past, word: word),
            "The padding is hidden now, and the future is not. Two masks hold at once here.",
        ),
        Mistake(
            "one too many",
            _with(
                weights=lambda self, s, past, word: _seeing(
                    s, past.logical_or(past.roll(1, -1).triu(1)) & word
                )
            ),
            "Each position still sees one token ahead: the one that it is asked for.",
        ),
        Mistake(
            "mask turned round",
            _sees(lambda past, word: past.mT & word),
            "Each position sees itself and what comes after it. The past are the columns up to the row's "
            "own: a lower triangle.",
        ),
        Mistake(
            "seen for hidden",
            _sees(lambda past, word: ~(past & word)),
            "What may be seen is hidden, and the rest is seen; a position that would see all sees nothing, "
            "hence NaN. masked_fill fills where its mask is True: `hidden` is to be True for a key of the "
            "future and for padding.",
        ),
        Mistake(
            "blind to itself",
            _sees(lambda past, word: past.tril(-1) & word),
            "A position does not see its own token. It may: only what is behind it is to be guessed. And the "
            "first one sees nothing at all: its softmax is 0/0.",
        ),
        Mistake(
            "padding along the queries",
            _sees(lambda past, word: past & word.mT),
            "The rows of padded queries are hidden, with or without the padded keys. Such a row sees "
            "nothing, and its logits are NaN. Padding is a matter of the keys: [batch, 1, T].",
        ),
        Mistake(
            "padded positions find nothing",
            _with(
                weights=lambda self, s, past, word: _seeing(s, past & word & word.mT).nan_to_num(),
            ),
            "The rows of padded positions are hidden as well, and their weights are 0. Padding is hidden as "
            "a key only: a padded position looks at the words before it, as it did.",
        ),
        Mistake(
            "the past hidden",
            _sees(lambda past, word: ~past & word),
            "The past is hidden, and the future is seen; the last position sees nothing, hence NaN. `past` "
            "is True where a position may look, and `hidden` is to be True where it may not.",
        ),
        Mistake(
            "the words hidden",
            _sees(lambda past, word: past & ~word),
            "The words are hidden, and the padding is seen; where there is none, nothing is left, hence NaN. "
            "`word` is True where a position may look, and `hidden` is to be True where it may not.",
        ),
        Mistake(
            "mask after softmax",
            _with(weights=lambda self, scores, past, word: scores.softmax(-1) * (past & word)),
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
            "something else changed: the scale",
            _with(scale=lambda self, x: 1.0),
            "The mask is mended, and the scores are no longer divided by √d_model. That was right before.",
        ),
        Mistake(
            "something else changed: the residual",
            _with(say=lambda self, x, found: self.words(found)),
            "The mask is mended, and x is no longer added to what attention has found. That was right "
            "before.",
        ),
        Mistake(
            "something else changed: the padded positions",
            _with(forward=_padding_says_nothing),
            "The mask is mended, and the logits of padded positions are 0 now. They were computed like any "
            "other before, and the loss leaves them out.",
        ),
    ),
    hints=(
        "A model without a leak does not move its logits at position t when token t + 1 is exchanged. Try "
        "that first with a sentence without padding, and then with padding. Which tokens are in sight?",
        "Print `hidden` for one sentence with padding, and say aloud when a key is to be hidden: it lies in "
        "the future, ___ it is padding. Which word belongs into the gap?",
        "One operator is wrong, in the line that makes `hidden`: a key that fails one of the two conditions "
        "is hidden.",
    ),
)

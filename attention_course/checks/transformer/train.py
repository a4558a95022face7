"""Exercise 7: train a small language model."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from attention_course.checks.engine.asks import Inputs, Training
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.transformer.shared import NAME

#: the words of the small language, and how many a half of a sentence has; the notebook says so
WORDS, LENGTH = 10, 6
#: what stands between the two halves
SEPARATOR = WORDS
#: at this place of the right answers nothing is asked
NOTHING = -1


class Model(nn.Module):
    """The model that the notebook gives: one pre-norm layer with one head."""

    def __init__(self, vocabulary: int, length: int, d_model: int = 32) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, d_model)
        self.place = nn.Embedding(length, d_model)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.project = nn.Linear(d_model, 3 * d_model, bias=False)
        self.mix = nn.Linear(d_model, d_model, bias=False)
        self.inner = nn.Linear(d_model, 4 * d_model)
        self.outer = nn.Linear(4 * d_model, d_model)
        self.words = nn.Linear(d_model, vocabulary)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        query, key, value = self.project(self.norms[0](x)).chunk(3, dim=-1)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.mix(context)
        return self.words(x + self.outer(self.inner(self.norms[1](x)).relu()))


def _next(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return logits[:, :-1], tokens[:, 1:]


def _train(
    *,
    steps: int = 200,
    align: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = _next,
    is_causal: bool = True,
    zero_grad: bool = True,
) -> Callable[[Tensor, int], Callable[[Tensor], Tensor]]:
    """The reference with one of its parts replaced."""

    def train(tokens: Tensor, seed: int) -> Callable[[Tensor], Tensor]:
        torch.manual_seed(seed)
        T = tokens.shape[1]
        model = Model(WORDS + 1, T)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        mask = torch.ones(T, T, dtype=torch.bool)
        mask = mask.tril() if is_causal else mask
        for _ in range(steps):
            batch = tokens[torch.randint(len(tokens), (64,))]
            logits, target = align(model(batch, mask), batch)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
            if zero_grad:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return lambda tokens: model(tokens, mask).argmax(-1)

    return train


# The language ---------------------------------------------------------------------------------


def _sentences(generator: Generator, table: Tensor, number: int, slips: float = 0.0) -> Tensor:
    """Words drawn at random, the separator, and the words that the table makes of them, but for ``slips``."""
    words = torch.randint(WORDS, (number, LENGTH), generator=generator)
    slip = torch.rand(words.shape, generator=generator) < slips
    others = torch.randint(WORDS, words.shape, generator=generator)
    separator = torch.full((number, 1), SEPARATOR)
    return torch.cat((words, separator, torch.where(slip, others, table[words])), 1)


def _run(generator: Generator) -> Inputs:
    """Sentences to learn from, a seed, questions, and their answers.

    A question is a new sentence that is asked for one word of its second half: what stands behind that
    place is drawn at random, so that whoever looks ahead is told something wrong. The slips in what is
    learned from make looking ahead the better way for whoever can: without them a model without a mask
    finds the table in some runs.
    """
    table = torch.randperm(WORDS, generator=generator)
    tokens = _sentences(generator, table, 1000, slips=0.2)
    new = _sentences(generator, table, 500)
    seed = torch.randint(2**31, (), generator=generator)
    asked = torch.randint(LENGTH, 2 * LENGTH, (len(new), 1), generator=generator)
    random = torch.randint(WORDS, new.shape, generator=generator)
    place = torch.arange(new.shape[1])
    questions = torch.where(place <= asked, new, random)
    answers = torch.where(place == asked, new.roll(-1, 1), NOTHING)
    return tokens, seed, questions, answers


def _share(said: Tensor, answers: Tensor) -> float:
    """Of the words that are asked for, how many are right."""
    asked = answers != NOTHING
    return float((said == answers)[asked].double().mean())


def _says(what: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], bool]:
    """Whether nearly all that is said where a word is asked for is what ``what`` makes of the question."""

    def shows(said: Tensor, questions: Tensor, answers: Tensor) -> bool:
        return float((said == what(questions))[answers != NOTHING].double().mean()) > 0.8

    return shows


def _knows_no_separator(said: Tensor, questions: Tensor, answers: Tensor) -> bool:
    """It stands at the same place in every sentence: whatever has learned anything says it there."""
    return float((said[:, LENGTH - 1] == SEPARATOR).double().mean()) < 0.8


TRAIN = Exercise(
    name=f"{NAME}.train",
    title="Train it",
    points=2,
    difficulty=2,
    minutes=20,
    reference=_train(),
    asks=Training(
        number="The share of new words that are right",
        measure=_share,
        at_least=0.9,
        guess=1 / WORDS,
        seconds=10.0,
    ),
    returns=("next words",),
    cases=(Case("a language of ten words", _run),),
    mistakes=(
        Mistake(
            "not shifted",
            _train(align=lambda logits, tokens: (logits, tokens)),
            "Every position says the word that it has just read. Either it was asked for that one while it "
            "learned: drop the last logits and the first token, as in exercise 5. Or the answers are moved: "
            "what stands at position t is to be token t + 1.",
            shows=_says(lambda questions: questions),
        ),
        Mistake(
            "shifted the wrong way",
            _train(align=lambda logits, tokens: (logits[:, 1:], tokens[:, :-1])),
            "Every position says the word before its own. Position t is asked for token t + 1: drop the last "
            "logits and the first token, not the other way round.",
            shows=_says(lambda questions: questions.roll(1, 1)),
        ),
        Mistake(
            "no causal mask",
            _train(is_causal=False),
            "Every position says what stands behind it in the question, which is drawn at random there. "
            "While it learned, the next token was in sight, and it copied. Position t may look at 0 to t. Is "
            "your mask True there and False elsewhere? One of floats hides nothing: it is added to the "
            "scores.",
            shows=_says(lambda questions: questions.roll(-1, 1)),
        ),
        Mistake(
            "nothing learned",
            _train(steps=0),
            "Not even the separator is said, which stands at the same place in every sentence. Did the loss "
            "fall? If not: has the optimizer the parameters of the model that you return? Are backward and "
            "step called for every batch, and the gradients of the step before set to zero? Is the rate too "
            "small? If it fell: does each row of logits meet its own target, and is the model asked under "
            "the mask with which it learned?",
            shows=_knows_no_separator,
        ),
        Mistake(
            "not enough learned",
            _train(steps=24),
            "Some of it is learned, and not enough. Are there enough steps? Is a new batch drawn for each? "
            "And is the most likely word said, not one that is drawn?",
            shows=lambda said, questions, answers: _share(said, answers) > 0.3,
        ),
    ),
    hints=(
        "Four things in a loop: draw some sentences, the loss of their next tokens, its gradients, one step "
        "of the optimizer. What has to be done before the gradients of the next batch come?",
        "The loss is that of exercise 5, with nothing to leave out: logits[:, :-1] against tokens[:, 1:]. "
        "The mask is a lower triangle, [T, T], while it learns and when it is asked.",
        "Rows drawn by torch.randint are a batch; with 64 of them, 200 steps of torch.optim.Adam at a "
        "rate of 5e-3 are enough. Return a function that gives sentences and the mask to the model and "
        "takes the argmax over the words.",
    ),
)

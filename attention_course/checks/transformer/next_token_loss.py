"""Exercise 5: the loss."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.transformer import shared
from attention_course.checks.transformer.shared import NAME

#: the token that fills sentences up (the notebook says so), and the one every sentence begins with
PAD, BEGIN = 0, 1


def _next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    target = tokens[:, 1:]
    surprise = -_picked(logits[:, :-1].log_softmax(-1), target)
    real = (target != PAD).to(surprise.dtype)
    return (surprise * real).sum(-1) / real.sum(-1)


def _picked(table: Tensor, target: Tensor) -> Tensor:
    """The column of every row that its target names: [..., T, V] and [..., T] -> [..., T]."""
    return table.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _rest(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return logits[:, :-1], tokens[:, 1:]


def _loss(
    *,
    align: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = _rest,
    log: Callable[[Tensor], Tensor] = lambda logits: logits.log_softmax(-1),
    counted: Callable[[Tensor, Tensor], Tensor] = lambda tokens, target: target != PAD,
    reduce: Callable[[Tensor, Tensor], Tensor] = lambda surprise, real: (
        (surprise * real).sum(-1) / real.sum(-1)
    ),
) -> Callable[[Tensor, Tensor], Tensor]:
    """The reference with one of its parts replaced."""

    def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
        predicted, target = align(logits, tokens)
        surprise = -_picked(log(predicted), target)
        return reduce(surprise, counted(tokens, target).to(surprise.dtype))

    return next_token_loss


def _reshaped(logits: Tensor) -> Tensor:
    """The words brought to axis 1 by reshape, which leaves every number where it lies."""
    B, T, V = logits.shape
    return logits.reshape(B, V, T).mT.log_softmax(-1)


def _over_all_positions(logits: Tensor, tokens: Tensor) -> Tensor:
    return _loss(log=lambda table: table)(logits.log_softmax(1), tokens)


def _targets(generator: Generator, T: int, vocabulary: int, *lengths: int) -> Tensor:
    """Sentences of ``lengths`` tokens, which begin with BEGIN and are filled up with PAD."""
    words = torch.randint(2, vocabulary, (len(lengths), T), generator=generator)
    words[:, 0] = BEGIN
    return words.masked_fill(shared.real(T, *lengths) == 0, PAD)


NEXT_TOKEN_LOSS = Exercise(
    name=f"{NAME}.next_token_loss",
    title="Predict the next token",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_next_token_loss,
    returns=("loss",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 1, 3, 4), _targets(g, 3, 4, 3))),
        Case("padded", lambda g: (2 * normal(g, 3, 6, 9), _targets(g, 6, 9, 6, 4, 2))),
        Case("as many tokens as words", lambda g: (2 * normal(g, 2, 7, 7), _targets(g, 7, 7, 7, 5))),
        Case("large logits", lambda g: (300 * normal(g, 2, 5, 8), _targets(g, 5, 8, 4, 5))),
        Case(
            "float64",
            lambda g: (2 * normal(g, 4, 5, 11, dtype=torch.float64), _targets(g, 5, 11, 5, 3, 4, 2)),
        ),
        Case("gradient", lambda g: (normal(g, 2, 4, 6), _targets(g, 4, 6, 4, 3)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "one mean over all tokens",
            _loss(reduce=lambda surprise, real: (surprise * real).sum() / real.sum()),
            "You return one number, the mean over all tokens of all sentences. Each sentence has a loss of "
            "its own here: sum over the words alone.",
        ),
        Mistake(
            "not shifted",
            _loss(align=lambda logits, tokens: (logits, tokens)),
            "Position t is asked for token t, which it has just read: the model would learn to copy. "
            "It must say token t + 1.",
        ),
        Mistake(
            "shifted the wrong way",
            _loss(align=lambda logits, tokens: (logits[:, 1:], tokens[:, :-1])),
            "Position t is asked for token t - 1, which lies behind it. Drop the last logits and the "
            "first token, not the other way round.",
        ),
        Mistake(
            "rolled round",
            _loss(align=lambda logits, tokens: (logits, tokens.roll(-1, 1))),
            "The tokens are rolled, so the last position is asked for the first token. It has no next "
            "token: drop its logits.",
        ),
        Mistake(
            "padding counted",
            _loss(counted=lambda tokens, target: torch.ones_like(target)),
            "Padding is predicted and counted like a word. It is no part of a sentence: leave out "
            "every position whose target is PAD.",
        ),
        Mistake(
            "divided by all positions",
            _loss(reduce=lambda surprise, real: (surprise * real).mean(-1)),
            "Padding adds 0 to the sum and still counts in the number you divide by, so short "
            "sentences look easy. Divide by the number of words that were asked for.",
        ),
        Mistake(
            "sum instead of mean",
            _loss(reduce=lambda surprise, real: (surprise * real).sum(-1)),
            "The surprises are added up, so long sentences weigh more. Divide by the number of words "
            "that were asked for.",
        ),
        Mistake(
            "mask from the input",
            _loss(counted=lambda tokens, target: tokens[:, :-1] != PAD),
            "You leave out positions that read padding, not those that are asked for it. The last "
            "word of a short sentence has padding as its target, and it is counted. Take the mask "
            "from the targets.",
        ),
        Mistake(
            "softmax twice",
            _loss(log=lambda logits: logits.softmax(-1).log_softmax(-1)),
            "The logits go through softmax before log_softmax, or before cross_entropy, which takes "
            "one itself. Two in a row flatten everything: pass the logits on as they are.",
        ),
        Mistake(
            "no softmax",
            _loss(log=lambda logits: logits),
            "You take the target's logit as if it were a log-probability. The other words must count: "
            "log_softmax subtracts the logarithm of their sum.",
        ),
        Mistake(
            "softmax over the positions",
            _loss(log=lambda logits: logits.log_softmax(-2)),
            "The positions of a sentence compete with each other. At every position the words of the "
            "vocabulary do: the last axis.",
        ),
        Mistake(
            "logarithm of a softmax",
            _loss(log=lambda logits: logits.softmax(-1).log()),
            "With large logits a probability is rounded to 0, and its logarithm is -inf. log_softmax "
            "takes both steps at once and stays finite.",
        ),
        Mistake(
            "sign missing",
            _loss(reduce=lambda surprise, real: -(surprise * real).sum(-1) / real.sum(-1)),
            "This is the mean log-probability, which is negative. A loss falls as the model gets "
            "better: look at the sign.",
        ),
        Mistake(
            "divided by one too many",
            _loss(reduce=lambda surprise, real: (surprise * real).sum(-1) / (real.sum(-1) + 1)),
            "You divide by the number of words in the sentence. The first one is never asked for, so there "
            "is one less: count the targets.",
        ),
        Mistake(
            "one mean for every sentence",
            _loss(reduce=lambda surprise, real: ((surprise * real).sum() / real.sum()).expand(len(real))),
            "Every sentence gets the mean over all tokens of the batch. Each has a loss of its own: sum over "
            "its words alone.",
        ),
        Mistake(
            "reshaped, not transposed",
            _loss(log=_reshaped),
            "The words are brought to axis 1 by reshape or view. That changes the shape and leaves the "
            "numbers where they lie, so words and positions are mixed. Exchange the two axes.",
        ),
        Mistake(
            "softmax over all positions",
            _over_all_positions,
            "The positions of a sentence compete with each other: dim=1 of [B, T, V] is theirs. At every "
            "position the words of the vocabulary compete: the last axis.",
        ),
        Mistake(
            "a small number in the logarithm",
            _loss(log=lambda logits: (logits.softmax(-1) + 1e-9).log()),
            "A small number is added to the probabilities before the logarithm. That keeps -inf away and "
            "makes every word that is very unlikely equally surprising. log_softmax needs no such help.",
        ),
    ),
    hints=(
        "Write a sentence of four tokens and below it what each position has to say. Which logits and "
        "which token have no partner?",
        "logits[:, :-1] belongs to tokens[:, 1:]. log_softmax over the last axis and gather pick the "
        "log-probability of each target: [B, T - 1].",
        "Multiply by what is no padding, sum over the last axis, and divide by the number of real tokens "
        "there. F.cross_entropy(..., reduction='none') may do the picking; it wants the words on axis 1.",
    ),
)

"""Exercise 3: the loss of a batch."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.bottleneck import shared
from attention_course.checks.bottleneck.shared import NAME
from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.lab.data.pairs import BOS, EOS, PAD


def _of_target(values: Tensor, target: Tensor) -> Tensor:
    """[runs, B, T_q, words] -> [runs, B, T_q]: the entry of the right word."""
    right = target.expand(values.shape[:-1]).unsqueeze(-1)
    return values.gather(-1, right).squeeze(-1)


def _losses(logits: Tensor, target: Tensor) -> Tensor:
    return -_of_target(logits.log_softmax(-1), target)


def _mean(losses: Tensor, counted: Tensor) -> Tensor:
    return (losses * counted).sum((-2, -1)) / counted.sum()


def _token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return _mean(_losses(logits, target), target != PAD)


def _from(losses: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The right mean of other losses per token."""
    return lambda logits, target: _mean(losses(logits, target), target != PAD)


def _divided_by_the_words_of_all_runs(logits: Tensor, target: Tensor) -> Tensor:
    return _token_loss(logits, target) / len(logits)


def _padding_in_the_sum(logits: Tensor, target: Tensor) -> Tensor:
    return _losses(logits, target).sum((-2, -1)) / (target != PAD).sum()


def _summed(divisor: Callable[[Tensor], int]) -> Callable[[Tensor, Tensor], Tensor]:
    """The sum over the words, divided by something else than their number."""
    return lambda logits, target: (_losses(logits, target) * (target != PAD)).sum((-2, -1)) / divisor(target)


def _mean_of_means(logits: Tensor, target: Tensor) -> Tensor:
    word = target != PAD
    return ((_losses(logits, target) * word).sum(-1) / word.sum(-1)).mean(-1)


def _large_logits(generator: Generator) -> tuple[Tensor, Tensor]:
    """Some words stand 200 above the rest: in float32 the probability of the rest is 0."""
    logits, target = normal(generator, 2, 3, 4, 6), shared.targets(generator, 4, 3, 1, 2, vocabulary=6)
    logits[0, ..., PAD] += 200
    logits[1, 0, :, BOS] += 200
    return logits, target


TOKEN_LOSS = Exercise(
    name=f"{NAME}.token_loss",
    title="A mean over words",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_token_loss,
    returns=("loss",),
    forbidden=("cross_entropy", "nll_loss"),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 1, 2, 3, 5), shared.targets(g, 3, 2, 0, vocabulary=5)),
        ),
        Case(
            "three runs",
            lambda g: (normal(g, 3, 4, 6, 9), shared.targets(g, 6, 2, 5, 0, 3, vocabulary=9)),
        ),
        Case(
            "no padding, float64",
            lambda g: (
                normal(g, 2, 3, 4, 7, dtype=torch.float64),
                shared.targets(g, 4, 3, 3, 3, vocabulary=7),
            ),
        ),
        Case("large logits", _large_logits),
        Case(
            "gradient",
            lambda g: (normal(g, 2, 3, 5, 6), shared.targets(g, 5, 4, 1, 2, vocabulary=6)),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "padding counted as a word",
            lambda logits, target: _losses(logits, target).mean((-2, -1)),
            "The mean runs over all positions, also those where the target is padding: the model is "
            "paid for writing <pad>. Only words and <eos> count.",
        ),
        Mistake(
            "divided by all positions",
            _summed(lambda target: target.numel()),
            "Padding adds nothing to the sum, but it is counted in the number you divide by: the "
            "more padding, the smaller the loss. mean() after a mask does this.",
        ),
        Mistake(
            "padding in the sum alone",
            _padding_in_the_sum,
            "You divide by the number of words, but the sum still holds the losses of the padding. Both "
            "run over the same positions.",
        ),
        Mistake(
            "logits of the padding made 0",
            lambda logits, target: _padding_in_the_sum(logits * (target != PAD).unsqueeze(-1), target),
            "The logits are 0 where the target is padding. That is no loss of 0: it is a model that knows "
            "nothing, and each such position adds the logarithm of the number of words. Leave the losses "
            "out, not the logits.",
        ),
        Mistake(
            "only the padding counted",
            lambda logits, target: _mean(_losses(logits, target), target == PAD),
            "Your mean runs over the padding and leaves out the words. Is your mask True at words or at "
            "padding, and which of the two does its use want?",
        ),
        Mistake(
            "divided by the words of all runs",
            _divided_by_the_words_of_all_runs,
            "Each run's sum is divided by the number of words of all runs together, so the losses shrink "
            "with every run beside them. How many words has one run read?",
        ),
        Mistake(
            "mean of the sentences' means",
            _mean_of_means,
            "You take a mean for each sentence and then the mean of these, so a word in a short "
            "sentence weighs more than one in a long sentence. Here every word weighs the same: "
            "one sum, one number of words.",
        ),
        Mistake(
            "sum instead of mean",
            _summed(lambda target: 1),
            "This is the sum over the words. It grows with the batch, and the best learning rate "
            "with it. By what do you divide?",
        ),
        Mistake(
            "divided by the number of sentences",
            _summed(len),
            "The sum is divided by the number of sentences, so long sentences make a larger loss. "
            "Divide by the number of words.",
        ),
        Mistake(
            "sign turned",
            lambda logits, target: -_token_loss(logits, target),
            "The loss is negative: a logarithm of a probability is. It must become smaller as the "
            "right word becomes likelier. Look for the minus.",
        ),
        Mistake(
            "softmax twice",
            _from(lambda logits, target: -_of_target(logits.softmax(-1).log_softmax(-1), target)),
            "The logits go through softmax, and the result through log_softmax, which holds a "
            "softmax of its own. Twice flattens: even a sure and right model keeps a large loss.",
        ),
        Mistake(
            "no softmax",
            _from(lambda logits, target: -_of_target(logits, target)),
            "You take the right word's logit itself. A logit says nothing alone: the loss compares "
            "it with those of all other words, which is what the softmax is for.",
        ),
        Mistake(
            "softmax over the positions",
            _from(lambda logits, target: -_of_target(logits.log_softmax(-2), target)),
            "The probabilities sum to 1 over the positions of a sentence. At each position the "
            "words of the vocabulary compete: they are the last axis. Look at dim.",
        ),
        Mistake(
            "softmax over axis 1",
            _from(lambda logits, target: -_of_target(logits.log_softmax(1), target)),
            "The probabilities sum to 1 over axis 1, which holds the sentences: the runs stand in front of "
            "them. The words of the vocabulary compete, and they are the last axis. Look at dim.",
        ),
        Mistake(
            "logarithm to base 2",
            lambda logits, target: _token_loss(logits, target) / math.log(2),
            "This is the loss in bits. It is asked for in nats, with the natural logarithm.",
        ),
        Mistake(
            "<eos> left out",
            lambda logits, target: _mean(_losses(logits, target), target > EOS),
            "<eos> is not counted, so the model never learns to stop. Only padding is left out.",
        ),
        Mistake(
            "shifted a second time",
            lambda logits, target: _token_loss(logits[..., :-1, :], target[:, 1:]),
            "Logits at t are compared with the target at t + 1. The inputs were shifted already, so "
            "logits and target stand at the same t.",
        ),
        Mistake(
            "one loss for all runs",
            lambda logits, target: _token_loss(logits, target).mean(),
            "All runs end up in one number. Each run is a model of its own and has its own loss: "
            "sum over sentences and positions, not over the first axis.",
        ),
        Mistake(
            "logarithm of 0",
            _from(lambda logits, target: -_of_target(logits.softmax(-1).log(), target)),
            "With large logits the right word's probability is rounded to 0, and log 0 is -inf. "
            "log_softmax never makes the probability: it takes log Σ exp away from the logit.",
        ),
        Mistake(
            "a small number added to the probability",
            _from(lambda logits, target: -_of_target((logits.softmax(-1) + 1e-9).log(), target)),
            "You add 1e-9 to the probability before the logarithm. With large logits the right word's is "
            "rounded to 0, and only the logarithm of that number is left: 21 where 200 is right. log_softmax "
            "never makes the probability, and needs nothing added.",
        ),
    ),
    hints=(
        "For each position: the logarithm of a softmax over the words, and of that the entry of the "
        "right word, with a minus. Then a mean over what is not padding.",
        "gather takes one entry of each row along an axis. Its index needs the shape [runs, B, T_q, 1]: "
        "the target, expanded to all runs, with an axis of length 1 behind.",
        "Multiply the losses by the mask of what is no padding, sum over sentences and positions, and "
        "divide by the number of words in the whole batch, which is the same for every run.",
    ),
)

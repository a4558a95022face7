"""Exercise 5: does a word look at what it names?"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.vision import shared
from attention_course.checks.vision.shared import NAME


def _at_target(weights: Tensor, target: Tensor) -> Tensor:
    """[B, T], the weight of the target; of the first cell where there is none."""
    return weights.gather(-1, target.clamp_min(0)[..., None]).squeeze(-1)


def _alone(weights: Tensor, target: Tensor) -> Tensor:
    """Is the target's weight larger than every other?"""
    others = weights.scatter(-1, target.clamp_min(0)[..., None], -1.0)
    return _at_target(weights, target) > others.amax(-1)


def _shared(weights: Tensor, target: Tensor) -> Tensor:
    return _at_target(weights, target) == weights.amax(-1)


def _first(weights: Tensor, target: Tensor) -> Tensor:
    return weights.argmax(-1) == target


def _last(weights: Tensor, target: Tensor) -> Tensor:
    return weights.shape[-1] - 1 - weights.flip(-1).argmax(-1) == target


def _share(hit: Tensor, asked: Tensor) -> Tensor:
    return (hit * asked).sum() / asked.sum()


def _accuracy(
    hits: Callable[[Tensor, Tensor], Tensor] = _alone,
    share: Callable[[Tensor, Tensor], Tensor] = _share,
) -> Callable[[Tensor, Tensor], Tensor]:
    def pointing_accuracy(weights: Tensor, target: Tensor) -> Tensor:
        return share(hits(weights, target).to(weights.dtype), (target >= 0).to(weights.dtype))

    return pointing_accuracy


def _by_sentence(hit: Tensor, asked: Tensor) -> Tensor:
    return (hit * asked).sum(-1) / asked.sum(-1)


def _over_words(weights: Tensor, target: Tensor) -> Tensor:
    """Which word gives this cell most?"""
    word = weights.argmax(-2)  # [B, N]
    return word.gather(-1, target.clamp_min(0)) == torch.arange(target.shape[1])


def _last_cell(weights: Tensor, target: Tensor) -> Tensor:
    """What -1 means as an index."""
    return _alone(weights, target % weights.shape[-1])


def _weight_there(weights: Tensor, target: Tensor) -> Tensor:
    asked = target >= 0
    return (_at_target(weights, target) * asked).sum() / asked.sum()


def _without_cell_0(weights: Tensor, target: Tensor) -> Tensor:
    return _accuracy()(weights, target.masked_fill(target == 0, -1))


def _in_place(weights: Tensor, target: Tensor) -> Tensor:
    right = _accuracy()(weights, target)
    target.clamp_min_(0)
    return right


def _drawn(g: Generator, B: int, T: int, N: int, dtype: torch.dtype = torch.float32) -> Inputs:
    """Every sentence asks for another number of words, at least one; about half of them point rightly."""
    while True:
        weights = shared.weights(g, B, T, N, dtype=dtype)
        target = torch.where(
            torch.rand(B, T, generator=g) < 0.5,
            weights.argmax(-1),
            torch.randint(N, (B, T), generator=g),
        )
        # some of those that are not asked look at the last cell, which is number -1
        asked = torch.rand(B, T, generator=g) < torch.linspace(0.9, 0.4, B)[:, None]
        rest = weights.argmax(-1) == N - 1
        if asked.any(-1).all() and _tells(weights, target.masked_fill(~asked, -1)) and (rest & ~asked).any():
            return weights, target.masked_fill(~asked, -1)


def _tells(weights: Tensor, target: Tensor) -> bool:
    """Whether the usual ways to count give different numbers."""
    asked, hit = (target >= 0).double(), _alone(weights, target).double()
    counts = asked.sum(-1)
    if len(counts) > 1 and bool((counts == counts[0]).all()):
        return False
    several = {
        round(float(one), 6)
        for one in (
            _share(hit, asked), _share(1 - hit, asked), (hit * asked).mean(),
            _share(_over_words(weights, target).double(), asked), _last_cell(weights, target).double().mean(),
            _by_sentence(hit, asked).mean(), 0.0,
        )
    }  # fmt: skip
    return len(several) == (7 if len(counts) > 1 else 6)


def _tied(g: Generator) -> Inputs:
    """Tenths, with ties for the largest weight: at the target and an earlier cell, at the target and a later
    one, at two others. And a flat row."""
    rows = torch.tensor(
        [
            [[4, 1, 4, 1], [1, 4, 1, 4], [3, 1, 3, 3], [1, 7, 1, 1]],
            [[0, 2, 8, 0], [5, 5, 0, 0], [0, 0, 5, 5], [2, 2, 4, 2]],
        ]
    )  # fmt: skip
    target = torch.tensor([[0, 3, 1, 1], [2, 1, 2, 0]])
    order = torch.randperm(4, generator=g)
    weights = torch.cat((rows / 10, torch.full((2, 1, 4), 0.25)), 1)
    target = torch.cat((target, torch.tensor([[0], [1]])), 1)
    kept = [*order.tolist(), 4]
    return weights[:, kept], target[:, kept]


POINTING_ACCURACY = Exercise(
    name=f"{NAME}.pointing_accuracy",
    title="Does a word look at what it names?",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_accuracy(),
    returns=("accuracy",),
    cases=(
        Case("five words, nine cells", lambda g: _drawn(g, 2, 5, 9)),
        Case("as many words as cells", lambda g: _drawn(g, 3, 6, 6)),
        Case("as many sentences as words", lambda g: _drawn(g, 4, 4, 5)),
        Case("one sentence", lambda g: _drawn(g, 1, 8, 4)),
        Case("ties", _tied),
        Case("float64", lambda g: _drawn(g, 3, 7, 5, dtype=torch.float64)),
    ),
    mistakes=(
        Mistake(
            "words without a target counted as misses",
            _accuracy(share=lambda hit, asked: (hit * asked).mean()),
            "You divide by the number of all words. Those with the target -1 name nothing that could be "
            "pointed at: divide by the number of those that are asked.",
        ),
        Mistake(
            "-1 taken for the last cell",
            _accuracy(hits=_last_cell, share=lambda hit, asked: hit.mean()),
            "A target of -1 is taken for the last cell, as an index counts. It says that the word is not "
            "asked: leave it out.",
        ),
        Mistake(
            "the first of equals",
            _accuracy(hits=_first),
            "Where two weights are the largest, argmax tells the first, and by luck that may be the target. "
            "A tie is a miss: the target's weight must be larger than every other.",
        ),
        Mistake(
            "argmax, and words without a target as misses",
            _accuracy(hits=_first, share=lambda hit, asked: (hit * asked).mean()),
            "You compare argmax with target for all words. A target of -1 is never met, so words that name "
            "nothing count as misses; and of equals argmax tells the first, so that a tie may count as a "
            "hit.",
        ),
        Mistake(
            "cell 0 taken for no target",
            _without_cell_0,
            "Words that name cell 0 are left out. -1 says that a word names nothing; cells are counted from "
            "0.",
        ),
        Mistake(
            "the last of equals",
            _accuracy(hits=_last),
            "Where two weights are the largest you take the last, and by luck that may be the target. A tie "
            "is a miss: the target's weight must be larger than every other.",
        ),
        Mistake(
            "a tie as a hit",
            _accuracy(hits=_shared),
            "A target that shares the largest weight with another cell counts as a hit: then a flat map is "
            "always right. It must be larger than every other.",
        ),
        Mistake(
            "mean of the sentences' shares",
            _accuracy(share=lambda hit, asked: _by_sentence(hit, asked).mean()),
            "You take each sentence's share and average these. A sentence that asks one word would weigh as "
            "much as one that asks ten: count all words together.",
        ),
        Mistake(
            "one share for each sentence",
            _accuracy(share=_by_sentence),
            "That is one share for each sentence. Count all words of the batch together.",
        ),
        Mistake(
            "the largest of the words",
            _accuracy(hits=_over_words),
            "You ask which word gives the target most. Ask which cell gets most of the word: the cells are "
            "the last axis.",
        ),
        Mistake(
            "the weight instead of a hit",
            _weight_there,
            "That is the mean weight on the targets. Here a word either points at its target or not.",
        ),
        Mistake(
            "more than half of the weight",
            _accuracy(hits=lambda weights, target: _at_target(weights, target) > 0.5),
            "You ask for more than half of the weight. The largest weight will do, however small it is.",
        ),
        Mistake(
            "misses counted",
            _accuracy(share=lambda hit, asked: _share(1 - hit, asked)),
            "That is the share of the misses.",
        ),
        Mistake(
            "number instead of share",
            _accuracy(share=lambda hit, asked: (hit * asked).sum()),
            "That is the number of hits. Divide by the number of words that are asked.",
        ),
        Mistake(
            "the smallest weight",
            _accuracy(hits=lambda weights, target: weights.argmin(-1) == target),
            "You look for the smallest weight.",
        ),
        Mistake(
            "target changed in place",
            _in_place,
            "The result is right, but target is not what it was. Make a new tensor.",
        ),
    ),
    hints=(
        "Two things for every word: is it asked, and if so, does its target have more than every other cell?",
        "gather(-1, target[..., None]) reads the weight at the target; an index of -1 raises there, so clamp "
        "it first and leave those words out afterwards.",
        "How many cells of a row have a weight at least as large as the target's? One, if it is a hit. "
        "Count the hits among the asked, and divide by the number of the asked, in the dtype of the weights.",
    ),
)

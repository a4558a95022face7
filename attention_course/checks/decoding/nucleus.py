"""Exercise 3: top-p."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.decoding.shared import NAME
from attention_course.checks.engine.drawing import normal
from attention_course.checks.engine.exercise import Case, Exercise, Mistake


def _ordered(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted probabilities, what the more likely ones sum to, and the way back."""
    probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True)
    before = F.pad(probabilities.cumsum(-1)[..., :-1], (1, 0))
    return probabilities, before, order.argsort(-1)


def _renormalised(logits: Tensor, kept: Tensor) -> Tensor:
    return logits.masked_fill(~kept, -torch.inf).softmax(-1)


def _nucleus(logits: Tensor, p: Tensor) -> Tensor:
    _, before, back = _ordered(logits)
    return _renormalised(logits, (before < p).gather(-1, back))


def _nucleus_without_the_last(logits: Tensor, p: Tensor) -> Tensor:
    probabilities, before, back = _ordered(logits)
    kept = before + probabilities <= p
    kept[..., 0] = True
    return _renormalised(logits, kept.gather(-1, back))


def _nucleus_and_one(logits: Tensor, p: Tensor) -> Tensor:
    _, before, back = _ordered(logits)
    kept = F.pad((before < p)[..., :-1], (1, 0), value=True)
    return _renormalised(logits, kept.gather(-1, back))


def _nucleus_in_order(logits: Tensor, p: Tensor) -> Tensor:
    ordered = logits.sort(dim=-1, descending=True).values
    return _nucleus(ordered, p)


def _nucleus_forth_again(logits: Tensor, p: Tensor) -> Tensor:
    _, before, back = _ordered(logits)
    return _renormalised(logits, (before < p).gather(-1, back.argsort(-1)))


def _nucleus_from_below(logits: Tensor, p: Tensor) -> Tensor:
    probabilities, order = logits.softmax(-1).sort(dim=-1)
    before = F.pad(probabilities.cumsum(-1)[..., :-1], (1, 0))
    return _renormalised(logits, (before < p).gather(-1, order.argsort(-1)))


def _nucleus_unsorted(logits: Tensor, p: Tensor) -> Tensor:
    before = F.pad(logits.softmax(-1).cumsum(-1)[..., :-1], (1, 0))
    return _renormalised(logits, before < p)


def _nucleus_as_it_is(logits: Tensor, p: Tensor) -> Tensor:
    return logits.softmax(-1) * (_nucleus(logits, p) > 0)


def _softmax_twice(logits: Tensor, p: Tensor) -> Tensor:
    return _renormalised(logits.softmax(-1), _nucleus(logits, p) > 0)


def _zeros_as_logits(logits: Tensor, p: Tensor) -> Tensor:
    return logits.masked_fill(_nucleus(logits, p) == 0, 0.0).softmax(-1)


def _by_height(logits: Tensor, p: Tensor) -> Tensor:
    """All that have at least p times the probability of the most likely one."""
    probabilities = logits.softmax(-1)
    return _renormalised(logits, probabilities >= p * probabilities.amax(-1, keepdim=True))


def _by_share_of_the_vocabulary(logits: Tensor, p: Tensor) -> Tensor:
    _, _, back = _ordered(logits)
    return _renormalised(logits, back < p * logits.shape[-1])


def _count_of_the_first_row(logits: Tensor, p: Tensor) -> Tensor:
    _, before, back = _ordered(logits)
    kept = (before < p).flatten(0, -2)[0] if logits.dim() > 1 else before < p
    return _renormalised(logits, kept.expand_as(logits).gather(-1, back))


def _back_by_the_order(logits: Tensor, p: Tensor) -> Tensor:
    ordered, order = logits.sort(dim=-1, descending=True)
    return _nucleus(ordered, p).gather(-1, order)


def _one_by_one(logits: Tensor, p: Tensor) -> Tensor:
    probabilities = logits.softmax(-1)
    return _renormalised(logits, (probabilities >= p) | (logits == logits.amax(-1, keepdim=True)))


def _tail(logits: Tensor, p: Tensor) -> Tensor:
    probabilities, before, back = _ordered(logits)
    return _renormalised(logits, (before + probabilities >= p).gather(-1, back))


def _over_the_rows(logits: Tensor, p: Tensor) -> Tensor:
    probabilities, _, back = _ordered(logits)
    before = probabilities.cumsum(0) - probabilities
    return _renormalised(logits, (before < p).gather(-1, back))


def _nucleus_in_place(logits: Tensor, p: Tensor) -> Tensor:
    kept = _nucleus(logits, p) > 0
    return logits.masked_fill_(~kept, -torch.inf).softmax(-1)


def _by_hand(generator: Generator) -> tuple[Tensor, Tensor]:
    shares = torch.tensor([0.45, 0.25, 0.16, 0.09, 0.05])
    return shares[torch.randperm(5, generator=generator)].log(), torch.tensor(0.75)


def _distribution(
    generator: Generator, *shape: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Logits whose rows are peaked to different degrees, and a p that no sum of them comes near."""
    sharp = torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64) * 2 + 0.7
    logits = (normal(generator, *shape, dtype=torch.float64) * sharp).to(dtype)
    sums = logits.double().softmax(-1).sort(descending=True).values.cumsum(-1)
    candidates = torch.rand(50, generator=generator, dtype=torch.float64) * 0.3 + 0.6
    gaps = (sums[..., None] - candidates).abs().flatten(0, -2).amin(0)
    return logits, candidates[gaps.argmax()].to(dtype)


def _far_below(generator: Generator) -> tuple[Tensor, Tensor]:
    logits, p = _distribution(generator, 2, 7, dtype=torch.float64)
    return logits - 800.0, p


NUCLEUS = Exercise(
    name=f"{NAME}.nucleus",
    title="Top-p",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_nucleus,
    returns=("probabilities",),
    distributions=("probabilities",),
    hidden=("probabilities",),
    cases=(
        Case("five tokens", _by_hand),
        Case("batch", lambda g: _distribution(g, 3, 12)),
        Case("two axes in front", lambda g: _distribution(g, 2, 3, 9)),
        Case("forty tokens, float64", lambda g: _distribution(g, 4, 40, dtype=torch.float64)),
        Case("one token is enough", lambda g: (normal(g, 2, 6) + 9 * torch.eye(6)[1:3], torch.tensor(0.5))),
        Case("logits far below 0, float64", _far_below),
        Case("gradient", lambda g: _distribution(g, 2, 8), gradient=True),
    ),
    mistakes=(
        Mistake(
            "the last one missing",
            _nucleus_without_the_last,
            "The tokens you keep sum to less than p: the one with which the sum reaches p is dropped. "
            "Keep a token if those *before* it have not reached p yet.",
        ),
        Mistake(
            "one too many",
            _nucleus_and_one,
            "You keep one token more than needed: those before it sum to p already.",
        ),
        Mistake(
            "in sorted order",
            _nucleus_in_order,
            "The probabilities come out sorted: the first entry is the most likely token, whichever "
            "it was. Each must stand where its logit stood.",
        ),
        Mistake(
            "sorted forth, and forth again",
            _nucleus_forth_again,
            "You take the sorted decisions back with order itself. order says where each sorted entry "
            "comes from; the way back is its inverse, order.argsort(-1), or a scatter.",
        ),
        Mistake(
            "from the least likely",
            _nucleus_from_below,
            "You sum from the least likely token upwards, so the tail stays and the best fall out. "
            "Sort in descending order.",
        ),
        Mistake(
            "not sorted",
            _nucleus_unsorted,
            "You sum the probabilities in the order of the vocabulary. The fewest tokens that reach p "
            "are the most likely ones: sort first.",
        ),
        Mistake(
            "not made to sum to 1",
            _nucleus_as_it_is,
            "The kept probabilities are right, and sum to p or a little more. Divide them by their sum.",
        ),
        Mistake(
            "softmax of probabilities",
            _softmax_twice,
            "Softmax is applied to probabilities, which lie so near each other that the result is "
            "almost flat. Hide the logits, then apply softmax once.",
        ),
        Mistake(
            "dropped tokens at logit 0",
            _zeros_as_logits,
            "Dropped tokens get the logit 0, and with it a probability, often a large one. A token "
            "without probability has the logit -inf.",
        ),
        Mistake(
            "compared with the largest",
            _by_height,
            "You keep what has at least p times the largest probability. That is another filter, "
            "min-p. Here the kept ones must sum to p.",
        ),
        Mistake(
            "a share of the vocabulary",
            _by_share_of_the_vocabulary,
            "You keep the share p of the tokens, however likely they are. p is a share of the probability.",
        ),
        Mistake(
            "one number for all rows",
            _count_of_the_first_row,
            "Every row keeps as many tokens as the first one. A peaked row needs fewer than a flat one: "
            "decide row by row.",
        ),
        Mistake(
            "logits changed in place",
            _nucleus_in_place,
            "The result is right, but -inf is written into logits itself. Make a new tensor.",
        ),
        Mistake(
            "taken back with the order itself",
            _back_by_the_order,
            "The sorted probabilities are right, and taken back by gather with order. order says where each "
            "sorted entry comes from: that is the way of a scatter, or of its inverse.",
        ),
        Mistake(
            "one by one",
            _one_by_one,
            "Only the most likely token of each row is left. It is the sum of those kept that reaches p, not "
            "each by itself.",
        ),
        Mistake(
            "the tail kept",
            _tail,
            "You keep what comes after the sum has reached p, and drop the most likely ones. Which of both "
            "is True in your mask?",
        ),
        Mistake(
            "divided by p",
            lambda logits, p: _nucleus_as_it_is(logits, p) / p,
            "The kept probabilities are divided by p. They sum to p or a little more: divide them by their "
            "sum.",
        ),
        Mistake(
            "summed over axis 0",
            _over_the_rows,
            "The sums run over axis 0. With one row that is the vocabulary, with several it is the rows. "
            "Count from the end: the last axis.",
        ),
    ),
    hints=(
        "Do it by hand for the probabilities 0.45, 0.25, 0.16, 0.09, 0.05 and p = 0.8. Which tokens "
        "stay? For each of them, what do those before it sum to?",
        "Sort the probabilities of each row, the largest first; sort returns the order as well. The sum "
        "before each is the cumulative sum minus the token's own probability.",
        "argsort of the order is the way back: gather with it, along the last axis, puts the decisions "
        "into the order of the vocabulary. Then -inf where a token is not kept, and softmax.",
    ),
)

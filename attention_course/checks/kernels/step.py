"""Exercise 1: one step of the online softmax."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.kernels.shared import NAME


def _state(
    generator: Generator, *shape: int, d_v: int, around: float = 0.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """A running maximum [...], a sum of at least 1, as it must be, and an answer [..., d_v]."""
    m = around + normal(generator, *shape, dtype=dtype)
    l = 1 + normal(generator, *shape, dtype=dtype).abs()
    return m, l, normal(generator, *shape, d_v, dtype=dtype)


def _nothing_yet(*shape: int, d_v: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.full(shape, -torch.inf), torch.zeros(shape), torch.zeros(*shape, d_v)


def _some_hidden(scores: Tensor) -> Tensor:
    """Every other score is -inf; every query still sees something."""
    hidden = torch.arange(scores.shape[-1]) % 2 == 1
    return scores.masked_fill(hidden, -torch.inf)


def _stepping(
    larger: Callable[[Tensor, Tensor], Tensor] = lambda m, scores: torch.maximum(m, scores.amax(-1)),
    powers: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda scores, new, old: (
        scores - new[..., None]
    ).exp(),
    worth: Callable[[Tensor, Tensor], Tensor] = lambda old, new: (old - new).exp(),
    old_sum: Callable[[Tensor, Tensor], Tensor] = lambda l, factor: l * factor,
    old_answer: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda o, factor, l: o * factor[..., None],
    divide: bool = False,
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def step(m: Tensor, l: Tensor, o: Tensor, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        new = larger(m, scores)
        p, factor = powers(scores, new, m), worth(m, new)
        total = old_sum(l, factor) + p.sum(-1)
        answer = old_answer(o, factor, l) + p @ value
        return new, total, answer / total[..., None] if divide else answer

    return step


def _step(m: Tensor, l: Tensor, o: Tensor, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    larger = torch.maximum(m, scores.amax(-1))
    p, factor = (scores - larger[..., None]).exp(), (m - larger).exp()
    return larger, l * factor + p.sum(-1), o * factor[..., None] + p @ value


def _rescaled_too(scores: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return (scores - new[..., None]).exp() * (old - new).exp()[..., None]


def _summing_to_1(scores: Tensor, new: Tensor, old: Tensor) -> Tensor:
    powers = (scores - new[..., None]).exp()
    return powers / powers.sum(-1, keepdim=True)


def _step_keeping_the_maximum(
    m: Tensor, l: Tensor, o: Tensor, scores: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    _, total, answer = _step(m, l, o, scores, value)
    return m.clone(), total, answer


def _step_in_place(
    m: Tensor, l: Tensor, o: Tensor, scores: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    new = _step(m, l, o, scores, value)
    for old_part, new_part in zip((m, l, o), new, strict=True):
        old_part.copy_(new_part)
    return m, l, o


STEP = Exercise(
    name=f"{NAME}.step",
    title="One more block",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_step,
    returns=("m", "l", "o"),
    forbidden=("softmax", "logsumexp"),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 2),
                1 + tenths(g, 2).abs(),
                tenths(g, 2, 2),
                tenths(g, 2, 3),
                tenths(g, 3, 2),
            ),
        ),
        Case(
            "the first block",
            lambda g: (*_nothing_yet(3, d_v=2), normal(g, 3, 4), normal(g, 4, 2)),
        ),
        Case(
            "a louder block",
            lambda g: (*_state(g, 3, d_v=2), 4 + normal(g, 3, 5), normal(g, 5, 2)),
        ),
        Case(
            "a quieter block",
            lambda g: (*_state(g, 3, d_v=2, around=4.0), normal(g, 3, 5), normal(g, 5, 2)),
        ),
        Case(
            "batch and heads",
            lambda g: (*_state(g, 2, 3, 4, d_v=5), normal(g, 2, 3, 4, 6), normal(g, 2, 3, 6, 5)),
        ),
        Case(
            "some keys hidden",
            lambda g: (*_state(g, 4, d_v=2), _some_hidden(normal(g, 4, 6)), normal(g, 6, 2)),
        ),
        Case(
            "scores in the hundreds, float64",
            lambda g: (
                *_state(g, 2, 3, d_v=2, around=900.0, dtype=torch.float64),
                900 + normal(g, 2, 3, 4, dtype=torch.float64),
                normal(g, 2, 4, 2, dtype=torch.float64),
            ),
        ),
        Case(
            "gradient",
            lambda g: (*_state(g, 2, 3, d_v=2), normal(g, 2, 3, 4), normal(g, 2, 4, 2)),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "maximum not updated",
            _stepping(larger=lambda m, scores: m.clone()),
            "m stays what it was, and all exponentials are taken against the old maximum. In the first "
            "block that is -∞. Take the larger of m and the block's own maximum, row by row.",
        ),
        Mistake(
            "new maximum used but not returned",
            _step_keeping_the_maximum,
            "l and o are right, but you return the old m. The next step would rescale by the wrong "
            "factor: return the maximum that l and o were made with.",
        ),
        Mistake(
            "maximum of the block alone",
            _stepping(larger=lambda m, scores: scores.amax(-1)),
            "The new m is the maximum of this block. When the block is quieter than what came before, "
            "the maximum falls, and the factor for the old sum can overflow. It must never fall.",
        ),
        Mistake(
            "one maximum for all queries",
            _stepping(
                larger=lambda m, scores: torch.maximum(m, scores.amax(-1)).amax(-1, keepdim=True).expand_as(m)
            ),
            "All queries of the block share the largest maximum of them all. Each query is a softmax of "
            "its own: look at the axes over which you take the maximum.",
        ),
        Mistake(
            "largest score of the whole block for all queries",
            _stepping(larger=lambda m, scores: torch.maximum(m, scores.max())),
            "The largest score of the whole block counts for every query: scores.max() knows no axis. Each "
            "query is a softmax of its own: take the maximum of its row, scores.amax(-1).",
        ),
        Mistake(
            "the block's powers relative to its own maximum",
            _stepping(powers=lambda scores, new, old: (scores - scores.amax(-1, keepdim=True)).exp()),
            "The block's powers are taken against the block's own maximum, and then added to a sum that is "
            "relative to the new m. Subtract the new m in both.",
        ),
        Mistake(
            "the block's powers relative to the old maximum",
            _stepping(powers=lambda scores, new, old: (scores - old[..., None]).exp()),
            "The block's powers are taken against the old m, and then added to a sum that is relative to the "
            "new one. In the first block the old m is -∞. Subtract the new m.",
        ),
        Mistake(
            "the block's powers rescaled as well",
            _stepping(powers=_rescaled_too),
            "The factor multiplies the new powers as well as the old ones. They are relative to the new m "
            "already: only what was there before has to be rescaled.",
        ),
        Mistake(
            "the block's powers made to sum to 1",
            _stepping(powers=_summing_to_1),
            "The block's powers are divided by their own sum, so every block counts the same. l and o are "
            "sums of powers; the division waits until the last block.",
        ),
        Mistake(
            "old sum not rescaled",
            _stepping(old_sum=lambda l, factor: l),
            "The old sum is added as it is. It counts powers of e relative to the old maximum; relative "
            "to the new one it is worth exp(old m - new m) times as much.",
        ),
        Mistake(
            "old answer not rescaled",
            _stepping(old_answer=lambda o, factor, l: o),
            "The old answer is added as it is. It is a sum with the same powers as l, so it needs the "
            "same factor.",
        ),
        Mistake(
            "neither rescaled",
            _stepping(old_sum=lambda l, factor: l, old_answer=lambda o, factor, l: o),
            "Neither the old sum nor the old answer is rescaled, as if the maximum had been the same "
            "from the beginning. Where does exp(old m - new m) belong?",
        ),
        Mistake(
            "rescaled the wrong way round",
            _stepping(worth=lambda old, new: (new - old).exp()),
            "The factor is exp(new m - old m). The maximum rises, so old powers become worth less, "
            "never more: the factor is at most 1.",
        ),
        Mistake(
            "old sum forgotten",
            _stepping(old_sum=lambda l, factor: torch.zeros_like(l)),
            "l is the sum of this block alone: += became =.",
        ),
        Mistake(
            "old answer forgotten",
            _stepping(old_answer=lambda o, factor, l: torch.zeros_like(o)),
            "o is the answer of this block alone: += became =.",
        ),
        Mistake(
            "divided in every step",
            _stepping(divide=True),
            "o is divided by l. Here the division waits until the last block: a divided o is no sum, "
            "and the next step cannot add to it.",
        ),
        Mistake(
            "old answer taken for divided",
            _stepping(old_answer=lambda o, factor, l: o * (l * factor)[..., None], divide=True),
            "You multiply the old o by l, and divide the new one. That is right for an o that was "
            "divided before (the first FlashAttention keeps it so); here it never is.",
        ),
        Mistake(
            "old answer multiplied by the old sum",
            _stepping(old_answer=lambda o, factor, l: o * (l * factor)[..., None]),
            "You multiply the old o by l, as if it had been divided before. It never was: o is a sum with "
            "the same powers as l.",
        ),
        Mistake(
            "no maximum anywhere",
            _stepping(
                powers=lambda scores, new, old: scores.exp(),
                old_sum=lambda l, factor: l,
                old_answer=lambda o, factor, l: o,
            ),
            "exp(scores) is added to the old l and o as they are. That overflows when scores are in the "
            "hundreds, and l and o count powers relative to m. Subtract the new m, and rescale what was "
            "there before.",
        ),
        Mistake(
            "exponentials without the maximum",
            _stepping(powers=lambda scores, new, old: scores.exp()),
            "The block's powers are exp(scores), not exp(scores - m). They overflow, and they do not fit "
            "the old sum, which is counted relative to m.",
        ),
        Mistake(
            "inputs changed in place",
            _step_in_place,
            "m, l and o are overwritten, as *= and += do. Make new tensors.",
        ),
    ),
    hints=(
        "Write down what l is a sum of: exp(s - m) over all scores s so far. What is exp(s - new m), "
        "expressed by exp(s - m)?",
        "The new maximum is the larger of m and of the block's largest score, row by row, and the factor "
        "is exp of the old one minus the new one. In the first block m is -∞, so the factor is 0: "
        "nothing special to do.",
        "p is exp of the scores minus the new maximum, which needs an axis for the keys. l and o are "
        "each multiplied by the factor before the block's own sum is added, of p and of p with value. "
        "Give the factor an axis for d_v.",
    ),
)

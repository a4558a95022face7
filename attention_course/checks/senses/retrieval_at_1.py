"""Exercise 3: does each image find its text?"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.senses.shared import NAME, unit

#: scores [..., B, B] -> whether each image finds its text [..., B]
Found = Callable[[Tensor], Tensor]


def _own(scores: Tensor) -> Tensor:
    return scores.diagonal(dim1=-2, dim2=-1)


def _others(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.eye(scores.shape[-1], dtype=torch.bool), -torch.inf)


def _alone(scores: Tensor) -> Tensor:
    return _own(scores) > _others(scores).amax(-1)


def _texts_look(scores: Tensor) -> Tensor:
    return _alone(scores.mT)


def _first(scores: Tensor) -> Tensor:
    return scores.argmax(-1) == torch.arange(scores.shape[-1])


def _last(scores: Tensor) -> Tensor:
    B = scores.shape[-1]
    return B - 1 - scores.flip(-1).argmax(-1) == torch.arange(B)


def _among_two(scores: Tensor) -> Tensor:
    return (_others(scores) >= _own(scores)[..., None]).sum(-1) < 2


def _mean(found: Tensor) -> Tensor:
    return found.mean(-1)


def _rate(
    found: Found = _alone,
    share: Callable[[Tensor], Tensor] = _mean,
    length: Callable[[Tensor], Tensor] = unit,
    score: Callable[[Tensor, Tensor], Tensor] = lambda image, text: image @ text.mT,
) -> Callable[[Tensor, Tensor], Tensor]:
    def retrieval_at_1(image: Tensor, text: Tensor) -> Tensor:
        return share(found(score(length(image), length(text))).to(image.dtype))

    return retrieval_at_1


def _of_both(image: Tensor, text: Tensor) -> Tensor:
    return (_rate()(image, text) + _rate()(text, image)) / 2


def _mean_cosine(image: Tensor, text: Tensor) -> Tensor:
    return _own(unit(image) @ unit(text).mT).mean(-1)


def _in_place(image: Tensor, text: Tensor) -> Tensor:
    right = _rate()(image, text)
    text /= text.square().sum(-1, keepdim=True).sqrt()
    return right


# Cases ----------------------------------------------------------------------------------------


def _tells(image: Tensor, text: Tensor) -> bool:
    """Nothing hangs on a rounding, and other ways to count give other numbers, batch by batch."""
    scores = unit(image) @ unit(text).mT
    ways = [
        _rate(found)(image, text)
        for found in (_alone, _texts_look, _among_two, lambda s: _alone(s) & _texts_look(s))
    ]
    ways += [
        _rate(length=lambda x: x)(image, text), 1 - ways[0], torch.zeros_like(ways[0]),
        _rate(score=lambda a, b: -torch.cdist(a, b), length=lambda x: x)(image, text),
    ]  # fmt: skip
    margins = torch.stack([(_own(s) - _others(s).amax(-1)).abs().min() for s in (scores, scores.mT)])
    tellings = torch.stack(ways).reshape(len(ways), -1)
    return bool((margins > 1e-3).all() and (tellings[1:] != tellings[0]).any(-1).all())


def _drawn(g: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Inputs:
    """Pairs that are somewhat alike; one length in ten is another than in the next."""
    while True:
        common = normal(g, *shape, dtype=torch.float64)
        both = [common + normal(g, *shape, dtype=torch.float64) for _ in range(2)]
        image, text = (
            (
                unit(x)
                * torch.logspace(-1, 1, shape[-2], dtype=x.dtype)[
                    torch.randperm(shape[-2], generator=g), None
                ]
            ).to(dtype)
            for x in both
        )
        if _tells(image, text):
            return image, text


def _signs(g: Generator, B: int) -> Tensor:
    """[B, 16] of 1 and -1, of which no two are alike: their lengths and cosines are exact."""
    while True:
        signs = torch.randint(2, (B, 16), generator=g) * 2.0 - 1
        if float(_others(signs @ signs.mT).amax()) < 16:
            return signs


def _said_alike(g: Generator) -> Inputs:
    """Some texts say the same, in a longer vector: nothing tells which of them belongs to whom."""
    image = _signs(g, 7)
    text = image * torch.tensor([1.0, 2.0, 4.0, 1.0, 2.0, 1.0, 1.0])[:, None]
    text[3] = text[0] * 2  # a tie of the first with a later one
    image[3] = image[2]  # whose text is nearer to it than its own, whatever was drawn
    text[6] = text[1] / 4
    image[6] = image[1]  # here the tie is with an earlier one as well
    return image, text


def _all_alike(g: Generator) -> Inputs:
    """What a loss may end in that knows no other pairs: all vectors are one, of several lengths."""
    signs = _signs(g, 1)
    lengths = 2.0 ** torch.randint(-2, 3, (2, 5, 1), generator=g)
    return lengths[0] * signs, lengths[1] * signs


RETRIEVAL_AT_1 = Exercise(
    name=f"{NAME}.retrieval_at_1",
    title="Does each image find its text?",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_rate(),
    returns=("rate",),
    cases=(
        Case("six pairs", lambda g: _drawn(g, 6, 3)),
        Case("as many pairs as numbers in one", lambda g: _drawn(g, 5, 5)),
        Case("several batches, float64", lambda g: _drawn(g, 2, 3, 7, 4, dtype=torch.float64)),
        Case("some texts say the same", _said_alike),
        Case("all vectors alike", _all_alike),
        Case("two batches", lambda g: _drawn(g, 2, 9, 4)),
    ),
    mistakes=(
        Mistake(
            "the first of equals",
            _rate(_first),
            "Where two texts are the nearest, argmax tells the first, and by luck that may be the right one: "
            "vectors that are all alike would find one of B. A tie is a miss.",
        ),
        Mistake(
            "the last of equals",
            _rate(_last),
            "Where two texts are the nearest you take the last, and by luck that may be the right one. A tie "
            "is a miss.",
        ),
        Mistake(
            "a tie as a hit",
            _rate(lambda scores: _own(scores) >= _others(scores).amax(-1)),
            "A tie counts as a hit: vectors that are all alike would find everything. The own text must be "
            "nearer than every other.",
        ),
        Mistake(
            "texts look for images",
            _rate(_texts_look),
            "Here the texts look for their images. The images look: rows of the scores, over the last axis.",
        ),
        Mistake(
            "both directions averaged",
            _of_both,
            "You average both directions. Only the images look here.",
        ),
        Mistake(
            "found in both directions",
            _rate(lambda scores: _alone(scores) & _texts_look(scores)),
            "A pair counts only where both find each other. Only the images look here.",
        ),
        Mistake(
            "lengths left in",
            _rate(length=lambda x: x),
            "The scores are plain dot products: a longer text is nearer to everybody. Take the lengths out.",
        ),
        Mistake(
            "distances with their lengths",
            _rate(score=lambda image, text: -torch.cdist(image, text), length=lambda x: x),
            "The nearest is the one at the smallest distance, lengths and all. A cosine takes the lengths "
            "out.",
        ),
        Mistake(
            "lengths over the batch",
            _rate(length=lambda x: x / x.square().sum(-2, keepdim=True).sqrt()),
            "Each column is brought to length 1, over the batch. Bring each row to length 1: the last axis.",
        ),
        Mistake(
            "among the two nearest",
            _rate(_among_two),
            "A text that is second counts as well. At 1: the nearest alone.",
        ),
        Mistake(
            "the mean cosine",
            _mean_cosine,
            "That is the mean cosine of the pairs. Here an image either finds its text or not.",
        ),
        Mistake(
            "number instead of share",
            _rate(share=lambda found: found.sum(-1)),
            "That is the number of images that find their text. Divide by how many there are.",
        ),
        Mistake(
            "misses counted",
            _rate(share=lambda found: 1 - found.mean(-1)),
            "That is the share of the misses.",
        ),
        Mistake(
            "one share for all batches",
            _rate(share=lambda found: found.mean()),
            "The batches in front are averaged as well. One share for each is asked for.",
        ),
        Mistake(
            "one answer for each image",
            _rate(share=lambda found: found),
            "That is right for each image. Take the share of a batch.",
        ),
        Mistake(
            "the farthest",
            _rate(lambda scores: scores.argmin(-1) == torch.arange(scores.shape[-1])),
            "You look for the smallest cosine.",
        ),
        Mistake(
            "texts changed in place",
            _in_place,
            "The result is right, but text is brought to length 1 itself, as /= does. Make a new tensor.",
        ),
    ),
    hints=(
        "The scores are those of the loss, without a temperature: cosines [B, B], images down. What has to "
        "hold of the diagonal's entry in row i?",
        "argmax hides ties. Compare the own score with the largest of the others, or count how many in the "
        "row are at least as large as it.",
        "Hide the diagonal with -inf to find the largest other one, and ask for > and not >=. Then the mean "
        "over the images, in the dtype of the images.",
    ),
)

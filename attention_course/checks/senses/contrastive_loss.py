"""Exercise 2: pairs that belong together."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.senses.shared import NAME, unit

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def _own(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1)


def _to_texts(scores: Tensor) -> Tensor:
    return -_own(scores.log_softmax(-1)).mean(-1)


def _to_images(scores: Tensor) -> Tensor:
    return -_own(scores.log_softmax(-2)).mean(-1)


def _both(scores: Tensor) -> Tensor:
    return (_to_texts(scores) + _to_images(scores)) / 2


def _loss(
    finish: Callable[[Tensor], Tensor] = _both,
    length: Callable[[Tensor], Tensor] = unit,
    scale: Callable[[Tensor, Tensor], Tensor] = lambda scores, temperature: scores / temperature,
    score: Callable[[Tensor, Tensor], Tensor] = lambda image, text: image @ text.mT,
) -> Loss:
    def contrastive_loss(image: Tensor, text: Tensor, temperature: Tensor) -> Tensor:
        return finish(scale(score(length(image), length(text)), temperature))

    return contrastive_loss


def _one_length(image: bool) -> Loss:
    """Only the images' lengths are taken out, or only the texts'."""

    def contrastive_loss(images: Tensor, texts: Tensor, temperature: Tensor) -> Tensor:
        left, right = (unit(images), texts) if image else (images, unit(texts))
        return _both(left @ right.mT / temperature)

    return contrastive_loss


def _naive(scores: Tensor) -> Tensor:
    powers = scores.exp()
    rows, columns = _own(powers) / powers.sum(-1), _own(powers) / powers.sum(-2)
    return -(rows.log() + columns.log()).mean(-1) / 2


def _log_of_softmax(scores: Tensor, more: float = 0.0) -> Tensor:
    rows, columns = _own(scores.softmax(-1)), _own(scores.softmax(-2))
    return -((rows + more).log() + (columns + more).log()).mean(-1) / 2


def _without_own(scores: Tensor) -> Tensor:
    """The right pair is left out below the fraction."""
    eye = torch.eye(scores.shape[-1], dtype=torch.bool)
    others = scores.masked_fill(eye, -torch.inf)
    return (others.logsumexp(-1) + others.logsumexp(-2)).mean(-1) / 2 - _own(scores).mean(-1)


def _first_is_right(scores: Tensor) -> Tensor:
    """Every image is to find the text of number 0."""
    return -(scores.log_softmax(-1)[..., :, 0] + scores.log_softmax(-2)[..., 0, :]).mean(-1) / 2


def _sigmoid(scores: Tensor) -> Tensor:
    signs = 2 * torch.eye(scores.shape[-1], dtype=scores.dtype) - 1
    return -F.logsigmoid(signs * scores).sum(-1).mean(-1)


def _all_pairs(scores: Tensor) -> Tensor:
    return scores.flatten(-2).logsumexp(-1) - _own(scores).mean(-1)


def _probabilities(scores: Tensor) -> Tensor:
    return -(_own(scores.softmax(-1)) + _own(scores.softmax(-2))).mean(-1) / 2


def _log_of_mean(scores: Tensor) -> Tensor:
    return -((_own(scores.softmax(-1)) + _own(scores.softmax(-2))) / 2).log().mean(-1)


def _wrong_way(scores: Tensor) -> Tensor:
    """The order of one side turned round: a pair no longer stands on the diagonal."""
    return _both(scores.flip(-1))


def _in_place(image: Tensor, text: Tensor, temperature: Tensor) -> Tensor:
    result = _loss()(image, text, temperature)
    image /= image.square().sum(-1, keepdim=True).sqrt()
    return result


def _drawn(g: Generator, *shape: int, temperature: float = 0.5, dtype: torch.dtype = torch.float32) -> Inputs:
    """Pairs that are somewhat alike, of lengths from 0.5 to 2."""
    common = normal(g, *shape, dtype=torch.float64)

    def one() -> Tensor:
        lengths = 0.5 + 1.5 * torch.rand(*shape[:-1], 1, generator=g, dtype=torch.float64)
        return (lengths * unit(common + normal(g, *shape, dtype=torch.float64))).to(dtype)

    return one(), one(), torch.tensor(temperature, dtype=dtype)


def _cold(g: Generator) -> Inputs:
    """Cosines divided by .01: the largest are 100, and their powers are no number."""
    image, text, _ = _drawn(g, 5, 6)
    return image, 0.1 * text + image, torch.tensor(0.01)


def _far_off(g: Generator) -> Inputs:
    """The text of one image points away from it, and that of another is nearer than any: cold again."""
    image, text, temperature = _cold(g)
    text[0], text[1] = -image[0], 2 * image[0]
    return image, text, temperature


CONTRASTIVE_LOSS = Exercise(
    name=f"{NAME}.contrastive_loss",
    title="Pairs that belong together",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_loss(),
    returns=("loss",),
    cases=(
        Case(
            "three pairs, one decimal",
            lambda g: (1 + tenths(g, 3, 2, most=8), 1 + tenths(g, 3, 2, most=8), torch.tensor(0.5)),
        ),
        Case("five pairs", lambda g: _drawn(g, 5, 8)),
        Case("as many pairs as numbers in one", lambda g: _drawn(g, 4, 4, temperature=0.3)),
        Case("several batches", lambda g: _drawn(g, 2, 3, 4, 6, temperature=0.7)),
        Case("one pair", lambda g: (*_drawn(g, 1, 5)[:2], torch.tensor(0.2))),
        Case("hot, float64", lambda g: _drawn(g, 6, 3, temperature=2.5, dtype=torch.float64)),
        Case("cold", _cold),
        Case("cold, and a pair that is far apart", _far_off),
        Case("gradient", lambda g: _drawn(g, 4, 5, temperature=0.4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "images look for texts alone",
            _loss(_to_texts),
            "Only one direction is there: each image finds its text among all texts. Each text finds its "
            "image as well, by a softmax over the other axis; the loss is the mean of the two.",
        ),
        Mistake(
            "texts look for images alone",
            _loss(_to_images),
            "Only one direction is there: each text finds its image among all images. Each image finds its "
            "text as well, by a softmax over the other axis; the loss is the mean of the two.",
        ),
        Mistake(
            "the sum of both directions",
            _loss(lambda scores: 2 * _both(scores)),
            "The two directions are added. Take their mean.",
        ),
        Mistake(
            "the sum over the pairs",
            _loss(lambda scores: _both(scores) * scores.shape[-1]),
            "The pairs are added. Take their mean.",
        ),
        Mistake(
            "one loss for each pair",
            _loss(lambda scores: -(_own(scores.log_softmax(-1)) + _own(scores.log_softmax(-2))) / 2),
            "That is right for each pair. Take the mean over a batch.",
        ),
        Mistake(
            "one loss for all batches",
            _loss(lambda scores: _both(scores).mean()),
            "The batches in front are averaged as well. One loss for each is asked for.",
        ),
        Mistake(
            "lengths left in",
            _loss(length=lambda x: x),
            "The scores are plain dot products: a longer vector is nearer to everything. Take the lengths "
            "out first.",
        ),
        Mistake(
            "the texts' lengths left in",
            _one_length(image=True),
            "Only the images are brought to length 1. The texts need it as well.",
        ),
        Mistake(
            "the images' lengths left in",
            _one_length(image=False),
            "Only the texts are brought to length 1. The images need it as well.",
        ),
        Mistake(
            "lengths over the batch",
            _loss(length=lambda x: x / x.square().sum(-2, keepdim=True).sqrt()),
            "Each column is brought to length 1, over the batch: what a vector is then depends on who stands "
            "beside it. Bring each row to length 1: the last axis.",
        ),
        Mistake(
            "lengths over the first axis",
            _loss(length=lambda x: x / x.square().sum(0, keepdim=True).sqrt()),
            "The lengths are taken along the first axis of all, over pairs or over batches. Bring each row "
            "to length 1: the last axis.",
        ),
        Mistake(
            "lengths over axis 1",
            _loss(length=lambda x: x / x.square().sum(1, keepdim=True).sqrt()),
            "The lengths are taken along axis 1, as F.normalize does unless told dim=-1. That is the last "
            "axis only where nothing stands in front of [B, d].",
        ),
        Mistake(
            "images beside images",
            _loss(score=lambda image, text: image @ image.mT),
            "Images are compared with images. They are to find texts.",
        ),
        Mistake(
            "one minus the mean cosine",
            _loss(lambda scores: 1 - _own(scores).mean(-1), scale=lambda scores, temperature: scores),
            "You pull pairs together and push nobody apart: all vectors alike would be best. Each image has "
            "to tell its text from the others of the batch.",
        ),
        Mistake(
            "squared length",
            _loss(length=lambda x: x / x.square().sum(-1, keepdim=True)),
            "The vectors are divided by the square of their length: the root is missing.",
        ),
        Mistake(
            "numbers that sum to 1",
            _loss(length=lambda x: x / x.abs().sum(-1, keepdim=True)),
            "The vectors are divided by the sum of their absolute numbers. Their length is the root of the "
            "sum of squares.",
        ),
        Mistake(
            "multiplied by the temperature",
            _loss(scale=torch.mul),
            "The cosines are multiplied by the temperature. Divide: a low temperature makes differences "
            "large.",
        ),
        Mistake(
            "temperature ignored",
            _loss(scale=lambda scores, temperature: scores),
            "The temperature is not used. Divide the cosines by it.",
        ),
        Mistake(
            "temperature as a logarithm",
            _loss(scale=lambda scores, temperature: scores * temperature.exp()),
            "You multiply by e to the power of temperature, as for CLIP's logit_scale, which is learned as a "
            "logarithm. Here the number itself is given: divide by it.",
        ),
        Mistake(
            "the temperature's root",
            _loss(scale=lambda scores, temperature: scores / temperature.sqrt()),
            "The cosines are divided by the root of the temperature. Divide by the temperature.",
        ),
        Mistake(
            "the right pair left out below",
            _loss(_without_own),
            "Below the fraction the right pair is left out, which leaves nothing at all with one pair. A "
            "softmax runs over all, the right one among them.",
        ),
        Mistake(
            "everybody looks for number 0",
            _loss(_first_is_right),
            "Every image is asked for text 0. Image i belongs to text i: the right ones stand on the "
            "diagonal.",
        ),
        Mistake(
            "pairs turned round",
            _loss(_wrong_way),
            "The last image is asked for the first text. Row i of one belongs to row i of the other.",
        ),
        Mistake(
            "one softmax over all pairs",
            _loss(_all_pairs),
            "One softmax goes over all pairs of the batch. Each image has its own, over the texts, and each "
            "text its own, over the images.",
        ),
        Mistake(
            "each pair by itself",
            _loss(_sigmoid),
            "Each pair is judged by itself, yes or no, with a sigmoid. Here texts compete: a softmax.",
        ),
        Mistake(
            "no logarithm",
            _loss(_probabilities),
            "You average probabilities. Take the negative logarithm of each first.",
        ),
        Mistake(
            "the logarithm of a mean",
            _loss(_log_of_mean),
            "You average the probabilities of both directions and take the logarithm of that. Take the "
            "logarithm of each.",
        ),
        Mistake(
            "the wrong sign",
            _loss(lambda scores: -_both(scores)),
            "The sign is wrong: the loss is below 0, and falls as pairs come apart.",
        ),
        Mistake(
            "distances instead of cosines",
            _loss(score=lambda image, text: torch.cdist(image, text)),
            "The scores are distances, which are small where two are alike. A softmax looks for the largest: "
            "take cosines.",
        ),
        Mistake(
            "powers that overflow",
            _loss(_naive),
            "The result is right until the temperature is low: exp(100) is no number in float32. "
            "log_softmax, logsumexp and cross_entropy subtract the largest score first.",
        ),
        Mistake(
            "logarithm of a softmax",
            _loss(_log_of_softmax),
            "A softmax, and then the logarithm: where a probability is too small for a number that is -inf. "
            "log_softmax does both in one.",
        ),
        Mistake(
            "a small number under the logarithm",
            _loss(lambda scores: _log_of_softmax(scores, 1e-8)),
            "A small number such as 1e-8 is added to a probability before its logarithm. That is no longer "
            "infinite, and is wrong where the probability is smaller still: a pair that is far apart seems "
            "near. log_softmax needs no such number.",
        ),
        Mistake(
            "images changed in place",
            _in_place,
            "The result is right, but image is brought to length 1 itself, as /= does. Make a new tensor.",
        ),
    ),
    hints=(
        "Write the scores [B, B]: images down, texts across. What do you want of row i, and what of column "
        "i?",
        "F.normalize over the last axis takes lengths out. -log softmax of the right entry, for each row "
        "and for each column: the right ones are the diagonal of the last two axes.",
        "log_softmax over the last axis for the images, over the axis before it for the texts. Take the "
        "diagonal of each, the mean over the pairs, and half of the sum; then the sign.",
    ),
)

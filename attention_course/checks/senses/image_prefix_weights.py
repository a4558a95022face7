"""Exercise 5: images in front of words, in one row."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.senses import shared
from attention_course.checks.senses.shared import NAME, Weigh

#: (queries [T, 1], keys [T], images [B, 1, 1], lengths [B, 1, 1]) -> who may look at whom [B, T, T]
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _may_look(i: Tensor, j: Tensor, images: Tensor, lengths: Tensor) -> Tensor:
    return (j < lengths) & ((j <= i) | (j < images))


def _each_sentence(numbers: Tensor) -> Tensor:
    return numbers[:, None, None]


def _prefixed(
    rule: Rule = _may_look,
    weigh: Weigh = shared.by_infinity,
    laid: Callable[[Tensor], Tensor] = _each_sentence,
    heads: Callable[[Tensor], Tensor] = lambda mask: mask[:, None],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def image_prefix_weights(scores: Tensor, images: Tensor, lengths: Tensor) -> Tensor:
        place = torch.arange(scores.shape[-1])
        return weigh(scores, heads(rule(place[:, None], place, laid(images), laid(lengths))))

    return image_prefix_weights


def _padded_rows_0(scores: Tensor, images: Tensor, lengths: Tensor) -> Tensor:
    real = torch.arange(scores.shape[-1]) < lengths[:, None]
    return _prefixed()(scores, images, lengths) * real[:, None, :, None]


def _in_place(scores: Tensor, images: Tensor, lengths: Tensor) -> Tensor:
    place = torch.arange(scores.shape[-1])
    mask = _may_look(place[:, None], place, images[:, None, None], lengths[:, None, None])
    return scores.masked_fill_(~mask[:, None], -torch.inf).softmax(-1)


# Cases ----------------------------------------------------------------------------------------


def _drawn(
    g: Generator, h: int, T: int, *each: tuple[int, int], dtype: torch.dtype = torch.float32
) -> Inputs:
    """``each`` says how many image tokens a row has, and how many tokens in all."""
    images, lengths = torch.tensor(each).T
    return normal(g, len(each), h, T, T, dtype=dtype), images.contiguous(), lengths.contiguous()


def _loud(g: Generator, loudness: float, dtype: torch.dtype) -> Inputs:
    """What is hidden scores ``2 * loudness`` more, in numbers that are exact."""
    images, lengths = torch.tensor([2, 0, 3]), torch.tensor([5, 4, 3])
    place = torch.arange(6)
    mask = _may_look(place[:, None], place, images[:, None, None], lengths[:, None, None])
    eighths = torch.randint(-16, 17, (3, 2, 6, 6), generator=g).to(dtype) / 8
    return torch.where(mask[:, None], eighths - loudness, eighths + loudness), images, lengths


IMAGE_PREFIX_WEIGHTS = Exercise(
    name=f"{NAME}.image_prefix_weights",
    title="Images in front of words",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_prefixed(),
    returns=("weights",),
    distributions=("weights",),
    hidden=("weights",),
    cases=(
        Case(
            "two image tokens, three words",
            lambda g: (tenths(g, 1, 1, 5, 5), torch.tensor([2]), torch.tensor([5])),
        ),
        Case("three rows", lambda g: _drawn(g, 2, 7, (3, 7), (1, 4), (2, 6))),
        Case("text alone beside an image alone", lambda g: _drawn(g, 2, 6, (0, 5), (4, 4), (0, 1))),
        Case("as many rows as heads", lambda g: _drawn(g, 3, 5, (2, 5), (3, 4), (1, 3))),
        Case("as many rows as tokens", lambda g: _drawn(g, 2, 4, (2, 4), (3, 4), (1, 2), (2, 3))),
        Case(
            "room behind every row, float64", lambda g: _drawn(g, 3, 8, (4, 6), (2, 7), dtype=torch.float64)
        ),
        Case("loud where nobody may look", lambda g: _loud(g, 120.0, torch.float32)),
        Case("louder than any number of yours, float64", lambda g: _loud(g, 2e9, torch.float64)),
        Case("gradient", lambda g: _drawn(g, 2, 5, (2, 5), (3, 4)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "causal for everybody",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & (j <= i)),
            "Everything is causal: an image token sees those before it alone. A picture has no before and "
            "after: all its tokens see each other.",
        ),
        Mistake(
            "everybody sees everything",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & (i == i)),
            "Words see later words, which they are to predict. Only image tokens are seen by everybody.",
        ),
        Mistake(
            "no mask",
            _prefixed(weigh=shared.unmasked),
            "Nothing is hidden: neither later words nor padding.",
        ),
        Mistake(
            "padding seen",
            _prefixed(lambda i, j, images, lengths: ((j <= i) | (j < images)).expand(len(lengths), -1, -1)),
            "The rows behind a row's end see its padding. That concerns nobody who is read; but the task "
            "asks for it to be hidden from all.",
        ),
        Mistake(
            "image tokens see all words",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & ((j <= i) | (j < images) | (i < images))),
            "Image tokens see the words, later ones among them: by way of an image token, in the layer "
            "above, a word would see what it is to predict. They see each other alone.",
        ),
        Mistake(
            "words do not see the image",
            _prefixed(
                lambda i, j, images, lengths: (
                    (j < lengths)
                    & (((i < images) & (j < images)) | ((i >= images) & (j >= images) & (j <= i)))
                )
            ),
            "Images see images and words see words: nothing passes from one to the other. Words see all "
            "image tokens.",
        ),
        Mistake(
            "words do not see themselves",
            _prefixed(
                lambda i, j, images, lengths: (j < lengths) & ((j < i) | (j < images) | ((i == 0) & (j == 0)))
            ),
            "A word sees the words before it, and not itself. Up to itself: look at < and <=.",
        ),
        Mistake(
            "words do not see themselves, and NaN",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & ((j < i) | (j < images))),
            "A word sees the words before it, and not itself; the first one, where no image stands before "
            "it, has nothing left: NaN. Up to itself: look at < and <=.",
        ),
        Mistake(
            "the next word seen",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & ((j <= i + 1) | (j < images))),
            "Every word sees the next one as well: look at the number behind tril, or at < and <=.",
        ),
        Mistake(
            "later words instead of earlier",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & ((j >= i) | (j < images))),
            "Words see later words instead of earlier ones: triu for tril, or rows and columns exchanged.",
        ),
        Mistake(
            "queries and keys exchanged",
            _prefixed(lambda i, j, images, lengths: _may_look(j, i, images, lengths)),
            "Your mask is the transpose of the right one, as if keys ran down and queries across. Queries "
            "run down and keys across.",
        ),
        Mistake(
            "one image token too many",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & ((j <= i) | (j <= images))),
            "The first word counts as an image token, and the image sees it. Places are counted from 0, so "
            "the first word stands at images.",
        ),
        Mistake(
            "one image token too few",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & ((j <= i) | (j < images - 1))),
            "The last image token counts as a word, and the others do not see it.",
        ),
        Mistake(
            "one place of padding seen",
            _prefixed(lambda i, j, images, lengths: (j <= lengths) & ((j <= i) | (j < images))),
            "One place behind the end is seen by those behind it. Places are counted from 0: look at < and "
            "<=.",
        ),
        Mistake(
            "the first row's image for all",
            _prefixed(
                lambda i, j, images, lengths: (j < lengths) & ((j <= i) | (j < images[:1])),
            ),
            "Every row has as many image tokens as the first. Look for an index 0, or for a batch axis that "
            "was lost.",
        ),
        Mistake(
            "the largest image for all",
            _prefixed(lambda i, j, images, lengths: (j < lengths) & ((j <= i) | (j < images.max()))),
            "Every row has as many image tokens as the row with most of them, so that words are seen as "
            "images. Each row has its own number.",
        ),
        Mistake(
            "the first row's length for all",
            _prefixed(lambda i, j, images, lengths: (j < lengths[:1]) & ((j <= i) | (j < images))),
            "Every row ends where the first one does. Look for an index 0, or for a batch axis that was "
            "lost.",
        ),
        Mistake(
            "the largest image for all, beyond the end as well",
            _prefixed(lambda i, j, images, lengths: ((j < lengths) & (j <= i)) | (j < images.max())),
            "Every row has as many image tokens as the row with most of them: words are seen as images, and "
            "in a shorter row padding too. Each row has its own number.",
        ),
        Mistake(
            "lengths taken for numbers of words",
            _prefixed(lambda i, j, images, lengths: _may_look(i, j, images, images + lengths)),
            "You see images + lengths places. lengths counts all tokens of a row, those of its image among "
            "them.",
        ),
        Mistake(
            "rows laid along the keys",
            _prefixed(laid=lambda numbers: numbers[None, None]),
            "images and lengths are laid along the keys, which runs only where there are as many rows as "
            "tokens. They need two axes behind the batch.",
        ),
        Mistake(
            "rows laid along the queries",
            _prefixed(laid=lambda numbers: numbers[None, :, None]),
            "images and lengths are laid along the queries, which runs only where there are as many rows as "
            "tokens. They need two axes behind the batch.",
        ),
        Mistake(
            "rows laid along the heads",
            _prefixed(heads=lambda mask: mask),
            "The mask [B, T, T] lacks the axis of the heads, so that each head has another row's mask; with "
            "as many rows as heads nothing raises.",
        ),
        Mistake(
            "inverted mask",
            _prefixed(lambda *numbers: ~_may_look(*numbers)),
            "What may be seen is hidden, and the other way round. masked_fill fills where its mask is True.",
        ),
        Mistake(
            "padded queries hidden as well",
            _prefixed(lambda i, j, images, lengths: _may_look(i, j, images, lengths) & (i < lengths)),
            "The rows of padded queries see nothing and become NaN. Nobody reads them: let them see what is "
            "real.",
        ),
        Mistake(
            "padded queries made 0",
            _padded_rows_0,
            "The rows of padded queries are 0. They have weights like any other row, and see what is real: "
            "nobody reads them.",
        ),
        Mistake(
            "mask after softmax",
            _prefixed(weigh=shared.zeroed_after),
            "What is hidden gets no weight, but the weights of the others no longer sum to 1: softmax has "
            "already shared out. Look at what comes first.",
        ),
        Mistake(
            "mask after softmax, divided by what is left",
            _prefixed(weigh=shared.renormalised),
            "You take the softmax over everything, put zeros and divide by what is left. Where the hidden "
            "scores are by far the largest nothing is left: 0 divided by 0. Hide before the softmax.",
        ),
        Mistake(
            "zero as a score",
            _prefixed(weigh=shared.filled(0.0)),
            "Hidden scores become 0, and exp(0) = 1: they still get weight.",
        ),
        Mistake(
            "a large negative number as a score",
            _prefixed(weigh=shared.filled(-1e9)),
            "Hidden scores become a number such as -1e9. One case has scores lower than that. Which score is "
            "lower than all others?",
        ),
        Mistake(
            "a large number subtracted",
            _prefixed(weigh=shared.lowered),
            "A large number is subtracted from hidden scores. One case has larger differences than that. "
            "Fill with -inf.",
        ),
        Mistake(
            "a small number subtracted",
            _prefixed(weigh=lambda scores, mask: (scores - 20.0 * ~mask).softmax(-1)),
            "A number such as 20 is subtracted from hidden scores: exp(-20) of them stays, and where they "
            "are far larger than the others they get all the weight. Fill with -inf: then it is exactly 0.",
        ),
        Mistake(
            "softmax over the queries",
            _prefixed(weigh=shared.over_queries),
            "The columns sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "scores changed in place",
            _in_place,
            "-inf is written into scores itself, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "Draw T by T for two image tokens and three words, and mark who may look. Which marks are there "
        "whatever the row, and which because of a triangle?",
        "With i counting queries down and j keys across, each of the three rules is a comparison: j with i, "
        "j with images, j with lengths. Which two are joined by or, and which by and?",
        "i is a column of places, j a row of the same, and images and lengths need three more axes to "
        "meet the heads, the queries and the keys. Fill with -inf where the rule is not True, then "
        "softmax.",
    ),
)

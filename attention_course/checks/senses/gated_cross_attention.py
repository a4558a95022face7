"""Exercise 4: a gate that starts shut."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import halves, normal, tenths, weight
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.senses import shared
from attention_course.checks.senses.shared import NAME, Weigh

Two = tuple[Tensor, Tensor]


def _gated(
    *,
    weigh: Weigh = shared.safely,
    see: Callable[[Tensor], Tensor] = lambda seen: seen,
    scale: Callable[[Tensor, Tensor], float] = lambda x, key: key.shape[-1] ** 0.5,
    score: Callable[[Tensor, Tensor], Tensor] = lambda scores, gate: scores,
    sources: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, image: (image, image),
    opened: Callable[[Tensor], Tensor] = torch.tanh,
    add: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda x, said, opened: x + opened * said,
    write: Callable[[Tensor, Tensor], Tensor] = lambda context, w_output: context @ w_output,
    finish: Callable[[Tensor, Tensor, Tensor], Two] = lambda output, weights, gate: (output, weights),
) -> Callable[..., Two]:
    def gated_cross_attention(
        x: Tensor, image: Tensor, seen: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor,
        w_output: Tensor, gate: Tensor,
    ) -> Two:  # fmt: skip
        for_key, for_value = sources(x, image)
        key = for_key @ w_key
        scores = score(x @ w_query @ key.mT / scale(x, key), gate)
        weights = weigh(scores, see(seen.bool()))
        said = write(weights @ (for_value @ w_value), w_output)
        return finish(add(x, said, opened(gate)), weights, gate)

    return gated_cross_attention


def _values_are_keys(
    x: Tensor, image: Tensor, seen: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor,
    w_output: Tensor, gate: Tensor,
) -> Two:  # fmt: skip
    return _gated()(x, image, seen, w_query, w_key, w_key, w_output, gate)


def _in_place(x: Tensor, *rest: Tensor) -> Two:
    output, weights = _gated()(x, *rest)
    return x.copy_(output), weights


# Cases ----------------------------------------------------------------------------------------


def _seen(*rows: str) -> Tensor:
    """A string for each batch member, a word for each token: "011 000"."""
    return torch.tensor([[[float(one) for one in word] for word in row.split()] for row in rows])


def _drawn(
    g: Generator, seen: Tensor, d: int, d_image: int, d_k: int, gate: float = 0.8, dtype=torch.float32
) -> Inputs:
    B, T, N = seen.shape
    return (
        normal(g, B, T, d, dtype=dtype), normal(g, B, N, d_image, dtype=dtype), seen,
        weight(g, d, d_k, dtype), weight(g, d_image, d_k, dtype),
        weight(g, d_image, d_k, dtype), weight(g, d_k, d, dtype),
        torch.tensor(gate, dtype=dtype),
    )  # fmt: skip


def _loud(g: Generator, loudness: float, dtype: torch.dtype) -> Inputs:
    """What is hidden scores ``2 * loudness`` more, in numbers that no order of a sum changes."""
    seen = _seen("1100 1100 1100", "0110 0110 0000")
    B, T, N = seen.shape
    x, _, _, _, _, w_value, w_output, gate = _drawn(g, seen, 3, 4, 4, dtype=dtype)
    # width 4, so that the scale is 2: scores are sums of eighths and loudness
    x = torch.cat((torch.ones(B, T, 1), torch.randint(1, 5, (B, T, 2), generator=g)), -1).to(dtype)
    w_query = torch.randint(-2, 3, (3, 4), generator=g).to(dtype) / 4
    w_query[:, 0] = torch.tensor([2 * loudness, 0.0, 0.0])
    signs = torch.randint(2, (B, N, 3), generator=g).to(dtype) * 2 - 1
    behind = 1 - 2 * seen[:, :1].mT
    image = torch.cat((behind.to(dtype), signs), -1)
    return x, image, seen, w_query, torch.eye(4, dtype=dtype), w_value, w_output, gate


GATED_CROSS_ATTENTION = Exercise(
    name=f"{NAME}.gated_cross_attention",
    title="A gate that starts shut",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_gated(),
    returns=("output", "weights"),
    unseen=("image",),
    hidden=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 1, 3, 2),
                tenths(g, 1, 4, 3),
                _seen("0000 1100 0011"),
                halves(g, 2, 2),
                halves(g, 3, 2),
                halves(g, 3, 2),
                halves(g, 2, 2),
                torch.tensor(0.5),
            ),
        ),
        Case(
            "two images, one after the other",
            lambda g: _drawn(
                g, _seen("111000 111000 000111 000111 000111", "000000 111000 111000 111000 000111"), 6, 5, 4
            ),
        ),
        Case(
            "as many tokens as images",
            lambda g: _drawn(
                g, _seen("100 110 111", "000 010 011", "111 111 001").long(), 4, 4, 4, gate=-1.2
            ),
        ),
        Case(
            "a shut gate",
            lambda g: _drawn(g, _seen("1100 0011", "0000 1111", "1000 1010"), 5, 3, 4, gate=0.0),
        ),
        Case(
            "wide open, float64",
            lambda g: _drawn(
                g, _seen("11100 11011 00000", "00011 10000 11111"), 4, 6, 3, gate=3.0, dtype=torch.float64
            ),
        ),
        Case(
            "an image for nobody", lambda g: _drawn(g, _seen("000 000 000 000", "000 100 011 111"), 3, 5, 6)
        ),
        Case("loud where nobody may look", lambda g: _loud(g, 120.0, torch.float32)),
        Case("louder than any number of yours, float64", lambda g: _loud(g, 2e9, torch.float64)),
        Case(
            "gradient",
            lambda g: _drawn(g, _seen("1100 0011 1111", "0000 1100 0010").long(), 4, 3, 5),
            gradient=True,
        ),
        Case(
            "gradient, shut",
            lambda g: _drawn(g, _seen("110 000", "011 100"), 3, 4, 2, gate=0.0),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "a gate without tanh",
            _gated(opened=lambda gate: gate),
            "What is said is multiplied by the gate itself. Take its tanh: it is 0 at 0, and never larger "
            "than 1.",
        ),
        Mistake(
            "a sigmoid gate",
            _gated(opened=torch.sigmoid),
            "The gate goes through a sigmoid, which is 1/2 at 0: the new layer would speak from its first "
            "day. tanh(0) is 0.",
        ),
        Mistake(
            "no gate",
            _gated(opened=torch.ones_like),
            "The gate is not used. Multiply what is said by its tanh.",
        ),
        Mistake(
            "open at 0",
            _gated(opened=lambda gate: 1 + gate.tanh()),
            "You multiply by 1 + tanh: at 0 the gate is open. It is shut there.",
        ),
        Mistake(
            "either x or what is said",
            _gated(add=lambda x, said, opened: (1 - opened) * x + opened * said),
            "As the gate opens, x is shut out: (1 - g) x + g said. x goes by untouched, whatever the gate "
            "is.",
        ),
        Mistake(
            "the sum through the gate",
            _gated(add=lambda x, said, opened: opened * (x + said)),
            "x goes through the gate as well, so that a shut gate leaves nothing. Only what is said does.",
        ),
        Mistake(
            "x left out",
            _gated(add=lambda x, said, opened: opened * said),
            "x is not added: a shut gate would leave nothing of the text.",
        ),
        Mistake(
            "tanh of what is said",
            _gated(opened=lambda gate: gate, add=lambda x, said, opened: x + (opened * said).tanh()),
            "tanh goes over what is said. It goes over the gate alone.",
        ),
        Mistake(
            "gate on the scores",
            _gated(score=lambda scores, gate: gate.tanh() * scores, opened=torch.ones_like),
            "The gate multiplies the scores: shut, every image weighs alike, and is read. It multiplies what "
            "is said, last of all.",
        ),
        Mistake(
            "gate on the weights",
            _gated(finish=lambda output, weights, gate: (output, weights * gate.tanh())),
            "The weights that you return went through the gate. Return them as the softmax gave them.",
        ),
        Mistake(
            "NaN where nothing is seen",
            _gated(weigh=shared.by_infinity),
            "A token that stands before all images sees none: its scores are all -inf, and their softmax is "
            "NaN. Its weights are 0: give such rows harmless scores before the softmax, and zeros behind it.",
        ),
        Mistake(
            "everything where nothing is seen",
            _gated(weigh=lambda scores, mask: shared.by_infinity(scores, mask | ~mask.any(-1, keepdim=True))),
            "A token that stands before all images looks at all of them. Its weights are 0: nothing is said "
            "to it.",
        ),
        Mistake(
            "a large negative number as a score",
            _gated(weigh=shared.filled(-1e9)),
            "Hidden scores become a number such as -1e9. A token that sees nothing then weighs all images "
            "alike, and where scores are lower still, the hidden ones get all the weight.",
        ),
        Mistake(
            "a large negative number, and 0 afterwards",
            _gated(weigh=lambda scores, mask: shared.filled(-1e9)(scores, mask) * mask),
            "Hidden scores become a number such as -1e9, and what is hidden is made 0 afterwards. One case "
            "has scores lower than that: there the hidden ones have taken all the weight before. Use -inf.",
        ),
        Mistake(
            "a large number subtracted",
            _gated(weigh=shared.lowered),
            "A large number is subtracted from hidden scores. A token that sees nothing then looks at all "
            "images, and one case has larger differences than that. Fill with -inf.",
        ),
        Mistake(
            "a small number subtracted",
            _gated(weigh=lambda scores, mask: (scores - 20.0 * ~mask).softmax(-1)),
            "A number such as 20 is subtracted from hidden scores: exp(-20) of them stays, and where they "
            "are far larger than the others they get all the weight. A token that sees nothing looks at all "
            "images. Fill with -inf.",
        ),
        Mistake(
            "a small number subtracted, and 0 where nothing is seen",
            _gated(
                weigh=lambda scores, mask: (scores - 20.0 * ~mask).softmax(-1) * mask.any(-1, keepdim=True)
            ),
            "A number such as 20 is subtracted from hidden scores: exp(-20) of them stays, and where they "
            "are far larger than the others they get all the weight. Fill with -inf: then it is exactly 0.",
        ),
        Mistake(
            "no mask",
            _gated(weigh=shared.unmasked),
            "Every token looks at every image. Look for seen: is it used?",
        ),
        Mistake(
            "inverted mask",
            _gated(see=lambda seen: ~seen),
            "Tokens look at what they may not see. masked_fill fills where its mask is True.",
        ),
        Mistake(
            "mask after softmax",
            _gated(weigh=shared.zeroed_after),
            "Hidden images get no weight, but the weights of the others no longer sum to 1: softmax has "
            "already shared out. Look at what comes first.",
        ),
        Mistake(
            "mask after softmax, divided by what is left",
            _gated(weigh=shared.renormalised_safely),
            "You take the softmax over everything, put zeros and divide by what is left. Where the hidden "
            "scores are by far the largest nothing is left: 0 divided by 0. Hide before the softmax.",
        ),
        Mistake(
            "the same, where nothing is seen too",
            _gated(weigh=shared.renormalised),
            "You take the softmax over everything, put zeros and divide by what is left. For a token that "
            "sees nothing that is 0 divided by 0, and where hidden scores are by far the largest as well.",
        ),
        Mistake(
            "zero as a score",
            _gated(weigh=shared.filled(0.0)),
            "Hidden scores become 0, and exp(0) = 1: they still get weight.",
        ),
        Mistake(
            "mask over whole images",
            _gated(see=lambda seen: seen.any(-2, keepdim=True).expand(seen.shape)),
            "Every token sees what any of its text sees. seen has a row for each token.",
        ),
        Mistake(
            "softmax over the text",
            _gated(weigh=shared.over_queries),
            "The columns of the weights sum to 1: tokens compete for an image. Look at dim.",
        ),
        Mistake(
            "no scale",
            _gated(scale=lambda x, key: 1.0),
            "The scores are plain dot products. Divide them by √d_k.",
        ),
        Mistake(
            "scaled with √d",
            _gated(scale=lambda x, key: x.shape[-1] ** 0.5),
            "The scale is the root of the text's width. A score sums over d_k products: take the width of a "
            "key.",
        ),
        Mistake(
            "w_output left out",
            _gated(write=lambda context, w_output: context),
            "The context goes into the sum as it is, which runs only where it is as wide as the text. It "
            "passes through w_output.",
        ),
        Mistake(
            "w_output transposed",
            _gated(write=lambda context, w_output: context @ w_output.mT),
            "You multiply by w_output.mT, as nn.Linear stores it, which runs only where it is square.",
        ),
        Mistake(
            "values of the keys",
            _values_are_keys,
            "The values went through w_key. They have a matrix of their own, w_value.",
        ),
        Mistake(
            "keys from the text",
            _gated(sources=lambda x, image: (x, image)),
            "Keys come from the text, which runs only where it is as long and as wide as the images. Text "
            "asks; images answer.",
        ),
        Mistake(
            "the text reads itself",
            _gated(sources=lambda x, image: (x, x)),
            "Keys and values come from the text: that is self-attention. They come from the images.",
        ),
        Mistake(
            "weights first",
            _gated(finish=lambda output, weights, gate: (weights, output)),
            "The two results are the wrong way round. Return (output, weights), in this order.",
        ),
        Mistake(
            "x changed in place",
            _in_place,
            "The result is right, but it is written into x itself, as += does. Make a new tensor.",
        ),
    ),
    hints=(
        "Cross-attention as in chapter 7, and then one line more. What is added to x when the gate is 0, and "
        "what must nobody who sees no image be given?",
        "blind = ~seen.bool().any(-1, keepdim=True) are the tokens that see nothing. No NaN arises if "
        "their scores are ordinary numbers before the softmax. And what are their weights behind it?",
        "Hide with -inf what may not be seen, but not in blind rows; softmax; then put 0 into the blind "
        "rows. What the context says through w_output is multiplied by the tanh of the gate, and x is "
        "added.",
    ),
)

"""Chapter 7: layer norm, feed-forward, one residual block, cross-attention, a loss, an encoder layer.

Inputs are drawn so that the usual mistakes show. Sentences, tokens and columns differ in number, and
agree in a case of their own where a wrong axis would otherwise raise; gains are not 1 and shifts and
biases not 0; one token has no variance at all.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.drawing import halves, normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Inputs, Mistake

NAME = "07_transformer"

#: what layer norm adds to a variance; the notebook says so
EPSILON = 1e-5
#: the token that fills sentences up (the notebook says so), and the one every sentence begins with
PAD, BEGIN = 0, 1


# Drawing inputs -------------------------------------------------------------------------------


def _weight(generator: Generator, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows times this matrix have about the variance they had before."""
    return (normal(generator, rows, columns, dtype=torch.float64) / rows**0.5).to(dtype)


def _gain(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Between 0.5 and 2."""
    return (0.5 + 1.5 * torch.rand(shape, generator=generator, dtype=torch.float64)).to(dtype)


def _real(T: int, *lengths: int) -> Tensor:
    """1.0 for a word, 0.0 for the padding behind the words.

    Some cases hand it over as integers, as tokenizers do; those with gradients always, so that
    a solution may multiply by it or take its logarithm and is asked for no gradient of it.
    """
    return (torch.arange(T) < torch.tensor(lengths)[:, None]).float()


# 1. Layer norm --------------------------------------------------------------------------------


def _layer_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + EPSILON).sqrt() * gain + shift


def _normed(
    axis: int | tuple[int, ...] = -1,
    *,
    centre: bool = True,
    spread: Callable[[Tensor, int | tuple[int, ...]], Tensor] = lambda x, axis: (
        x.var(axis, correction=0, keepdim=True) + EPSILON
    ).sqrt(),
    finish: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda x, gain, shift: x * gain + shift,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The reference with one of its parts replaced."""

    def layer_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        mean = x.mean(axis, keepdim=True) if centre else 0.0
        return finish((x - mean) / spread(x, axis), gain, shift)

    return layer_norm


def _normed_without_keepdim(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return (x - x.mean(-1)) / (x.var(-1, correction=0) + EPSILON).sqrt() * gain + shift


def _norm_in_place(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return x.copy_(_layer_norm(x, gain, shift))


def _with_constant_token(generator: Generator, length: int, width: int) -> Tensor:
    """The second token has eight times the same number, and no variance."""
    x = normal(generator, length, width)
    return torch.cat((x[:1], torch.full((1, width), 0.5), x[1:]))


LAYER_NORM = Exercise(
    name=f"{NAME}.layer_norm",
    title="Layer norm",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_layer_norm,
    returns=("normed",),
    forbidden=("layer_norm", "native_layer_norm"),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 4), tenths(g, 4), tenths(g, 4))),
        Case("batch", lambda g: (3 * normal(g, 2, 5, 8) + 2, _gain(g, 8), normal(g, 8))),
        Case("as many tokens as columns", lambda g: (normal(g, 6, 6), _gain(g, 6), normal(g, 6))),
        Case("small numbers", lambda g: (1e-3 * normal(g, 3, 8), _gain(g, 8), normal(g, 8))),
        Case("a constant token", lambda g: (_with_constant_token(g, 2, 8), _gain(g, 8), normal(g, 8))),
        Case(
            "two leading axes, float64",
            lambda g: tuple(
                one.double() for one in (2 * normal(g, 2, 3, 4, 6) - 1, _gain(g, 6), normal(g, 6))
            ),
        ),
        Case("gradient", lambda g: (normal(g, 2, 3, 5), _gain(g, 5), normal(g, 5)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "over the tokens",
            _normed(-2),
            "Mean and variance run over the tokens of a sentence, column by column. Layer norm takes "
            "them over the columns of one token: the last axis.",
        ),
        Mistake(
            "over the batch",
            _normed(0),
            "Mean and variance run over the sentences of the batch, as in batch norm. A token must "
            "come out the same whatever else is in the batch: use the last axis.",
        ),
        Mistake(
            "over the whole sentence",
            _normed((-1, -2)),
            "One mean and one variance serve all tokens of a sentence, so each token depends on all "
            "others. Every token has its own: use the last axis alone.",
        ),
        Mistake(
            "unbiased variance",
            _normed(spread=lambda x, axis: (x.var(axis, keepdim=True) + EPSILON).sqrt()),
            "The variance is divided by d_model - 1, as torch's var and std do unless told otherwise. "
            "Layer norm divides by d_model: correction=0, or the mean of the squares.",
        ),
        Mistake(
            "ε outside the root",
            _normed(spread=lambda x, axis: x.std(axis, correction=0, keepdim=True) + EPSILON),
            "ε is added to the standard deviation. It is added to the variance, under the root: for "
            "small numbers that makes a difference.",
        ),
        Mistake(
            "ε missing",
            _normed(spread=lambda x, axis: x.std(axis, correction=0, keepdim=True)),
            "Without ε a token whose columns are all equal is 0/0, hence NaN; and small numbers are "
            "blown up. Add ε to the variance, under the root.",
        ),
        Mistake(
            "mean not subtracted",
            _normed(centre=False),
            "Tokens are divided by their standard deviation, but their mean is still there. Subtract "
            "it first.",
        ),
        Mistake(
            "RMS norm",
            _normed(
                centre=False,
                spread=lambda x, axis: (x.square().mean(axis, keepdim=True) + EPSILON).sqrt(),
            ),
            "You divide by the root of the mean square and subtract no mean. That is RMS norm, which "
            "Llama uses; layer norm takes the mean out first.",
        ),
        Mistake(
            "divided by the variance",
            _normed(spread=lambda x, axis: x.var(axis, correction=0, keepdim=True) + EPSILON),
            "Tokens are divided by their variance. Its root is missing.",
        ),
        Mistake(
            "gain after shift",
            _normed(finish=lambda x, gain, shift: (x + shift) * gain),
            "The shift is multiplied by the gain as well. First the gain, then the shift.",
        ),
        Mistake(
            "gain and shift unused",
            _normed(finish=lambda x, gain, shift: x),
            "The tokens have mean 0 and variance 1, and are returned like that. Multiply by gain and "
            "add shift.",
        ),
        Mistake(
            "keepdim missing",
            _normed_without_keepdim,
            "The mean has lost its last axis. With as many tokens as columns nothing raises: the "
            "means are then laid along the columns. Use keepdim=True.",
        ),
        Mistake(
            "x changed in place",
            _norm_in_place,
            "x itself is overwritten. In a Transformer the residual still needs it. Make a new tensor.",
        ),
    ),
    hints=(
        "Take one token, a row of d_model numbers. Which numbers does its mean run over?",
        "x.mean(-1, keepdim=True) is [..., T, 1] and broadcasts against x. The variance is the mean "
        "of the squared differences from it.",
        "(x - mean) / torch.sqrt(variance + EPSILON), then times gain, plus shift.",
    ),
)


# 2. Feed-forward ------------------------------------------------------------------------------


def _feed_forward(x: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor) -> Tensor:
    return (x @ w_in + b_in).relu() @ w_out + b_out


def _two_layers(generator: Generator, width: int, hidden: int, dtype=torch.float32) -> Inputs:
    """w_in, b_in, w_out, b_out."""
    return (
        _weight(generator, width, hidden, dtype),
        normal(generator, hidden, dtype=dtype),
        _weight(generator, hidden, width, dtype),
        normal(generator, width, dtype=dtype),
    )


FEED_FORWARD = Exercise(
    name=f"{NAME}.feed_forward",
    title="Feed-forward",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_feed_forward,
    returns=("output",),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 2, 3), halves(g, 3, 4), halves(g, 4), halves(g, 4, 3), tenths(g, 3)),
        ),
        Case("batch", lambda g: (normal(g, 2, 5, 6), *_two_layers(g, 6, 24))),
        Case("narrow in the middle", lambda g: (normal(g, 3, 8), *_two_layers(g, 8, 5))),
        Case(
            "two leading axes, float64",
            lambda g: (
                normal(g, 2, 3, 4, 6, dtype=torch.float64),
                *_two_layers(g, 6, 12, torch.float64),
            ),
        ),
        Case("gradient", lambda g: (normal(g, 2, 3, 4), *_two_layers(g, 4, 8)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no activation",
            lambda x, w_in, b_in, w_out, b_out: (x @ w_in + b_in) @ w_out + b_out,
            "Two matrices in a row are one matrix: without an activation between them the second "
            "adds nothing. Where does the ReLU go?",
        ),
        Mistake(
            "activation at the end",
            lambda x, w_in, b_in, w_out, b_out: ((x @ w_in + b_in) @ w_out + b_out).relu(),
            "The ReLU comes last, so nothing negative is ever added to a token, and between the two "
            "matrices there is none. It stands between them.",
        ),
        Mistake(
            "activation twice",
            lambda x, w_in, b_in, w_out, b_out: _feed_forward(x, w_in, b_in, w_out, b_out).relu(),
            "There is a second ReLU behind the second matrix. What leaves may be negative: leave it "
            "as it is.",
        ),
        Mistake(
            "first bias missing",
            lambda x, w_in, b_in, w_out, b_out: (x @ w_in).relu() @ w_out + b_out,
            "b_in is never used.",
        ),
        Mistake(
            "second bias missing",
            lambda x, w_in, b_in, w_out, b_out: (x @ w_in + b_in).relu() @ w_out,
            "b_out is never used.",
        ),
        Mistake(
            "GELU instead of ReLU",
            lambda x, w_in, b_in, w_out, b_out: F.gelu(x @ w_in + b_in) @ w_out + b_out,
            "The activation is GELU, as in BERT and GPT-2. This exercise is the layer of 2017: ReLU.",
        ),
        Mistake(
            "residual added",
            lambda x, *weights: x + _feed_forward(x, *weights),
            "x is added at the end. That is the work of the block around this layer, in the next exercise.",
        ),
    ),
    hints=(
        "Two linear layers, each a matrix and a bias, and one activation. How many places are there "
        "where the activation makes a difference, and which of them is between the layers?",
        "A negative number becomes 0 under ReLU: torch.relu, or clamp(min=0). Apply it to [..., T, d_ff].",
    ),
)


# 3. One residual block ------------------------------------------------------------------------


def _pre_norm_block(
    x: Tensor, gain: Tensor, shift: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
) -> Tensor:
    return x + _feed_forward(_layer_norm(x, gain, shift), w_in, b_in, w_out, b_out)


def _block(
    wire: Callable[[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], Tensor],
) -> Callable[..., Tensor]:
    """A block of one norm and one feed-forward layer, put together by ``wire(x, norm, f)``."""

    def block(
        x: Tensor, gain: Tensor, shift: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor
    ) -> Tensor:
        return wire(
            x,
            lambda x: _layer_norm(x, gain, shift),
            lambda x: _feed_forward(x, w_in, b_in, w_out, b_out),
        )

    return block


def _block_in_place(x: Tensor, *weights: Tensor) -> Tensor:
    return x.copy_(_pre_norm_block(x, *weights))


def _block_inputs(generator: Generator, *shape: int, hidden: int, dtype=torch.float32) -> Inputs:
    width = shape[-1]
    return (
        2 * normal(generator, *shape, dtype=dtype) + 1,
        _gain(generator, width, dtype=dtype),
        normal(generator, width, dtype=dtype),
        *_two_layers(generator, width, hidden, dtype),
    )


PRE_NORM_BLOCK = Exercise(
    name=f"{NAME}.pre_norm_block",
    title="One residual block",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_pre_norm_block,
    returns=("output",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 2, 4),
                _gain(g, 4),
                tenths(g, 4),
                halves(g, 4, 3),
                halves(g, 3),
                halves(g, 3, 4),
                tenths(g, 4),
            ),
        ),
        Case("batch", lambda g: _block_inputs(g, 2, 5, 6, hidden=24)),
        Case(
            "two leading axes, float64",
            lambda g: _block_inputs(g, 2, 3, 4, 6, hidden=12, dtype=torch.float64),
        ),
        Case("gradient", lambda g: _block_inputs(g, 2, 3, 5, hidden=7), gradient=True),
    ),
    mistakes=(
        Mistake(
            "post-norm",
            _block(lambda x, norm, f: norm(x + f(x))),
            "The norm comes after the sum. That is post-norm, the order of 2017, and exercise 6. In "
            "pre-norm the layer reads normed tokens, and the sum is left alone.",
        ),
        Mistake(
            "residual forgotten",
            _block(lambda x, norm, f: f(norm(x))),
            "The tokens that came in are gone: only what the layer says is left. Add x.",
        ),
        Mistake(
            "residual from the normed tokens",
            _block(lambda x, norm, f: norm(x) + f(norm(x))),
            "The normed tokens are carried on, not x. The norm stands inside the branch; the residual "
            "goes around both. Look for an x = ... that overwrites x.",
        ),
        Mistake(
            "norm missing",
            _block(lambda x, norm, f: x + f(x)),
            "The layer reads x as it is. Norm it first.",
        ),
        Mistake(
            "norm behind the layer",
            _block(lambda x, norm, f: x + norm(f(x))),
            "The norm is applied to what the layer says. In pre-norm it is applied to what the layer reads.",
        ),
        Mistake(
            "norm at both ends",
            _block(lambda x, norm, f: norm(x + f(norm(x)))),
            "The sum is normed once more. In pre-norm nothing touches the sum: that is the road on "
            "which gradients travel back through all blocks.",
        ),
        Mistake(
            "x changed in place",
            _block_in_place,
            "The result is right, but it is written into x itself, as x += ... does. Make a new tensor.",
        ),
    ),
    hints=(
        "Draw it: a straight road from x to the output, and a branch that leaves the road and comes "
        "back. What stands on the branch, in which order, and what on the road?",
        "x + f(norm(x)), with your own functions for f and norm.",
    ),
)


# 4. Cross-attention ---------------------------------------------------------------------------


def _softmax_masked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


def _masked_over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-2)


def _cross(
    *,
    sources: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = lambda x, memory: (
        x,
        memory,
        memory,
    ),
    mask: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda scores, x_real, memory_real: memory_real[
        :, None
    ],
    scale: Callable[[Tensor, Tensor], float] = lambda x, key: key.shape[-1] ** 0.5,
    softmax: Callable[[Tensor, Tensor], Tensor] = _softmax_masked,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Cross-attention with one of its parts replaced; ``mask`` gets boolean x_real and memory_real."""

    def cross_attention(
        x: Tensor,
        memory: Tensor,
        x_real: Tensor,
        memory_real: Tensor,
        w_query: Tensor,
        w_key: Tensor,
        w_value: Tensor,
    ) -> tuple[Tensor, Tensor]:
        for_query, for_key, for_value = sources(x, memory)
        query, key, value = for_query @ w_query, for_key @ w_key, for_value @ w_value
        scores = query @ key.mT / scale(x, key)
        weights = softmax(scores, mask(scores, x_real.bool(), memory_real.bool()))
        return weights @ value, weights

    return cross_attention


def _lower_triangle(scores: Tensor) -> Tensor:
    T_q, T_k = scores.shape[-2:]
    return torch.ones(T_q, T_k, dtype=torch.bool).tril()


def _sentences(
    generator: Generator,
    x_real: Tensor,
    memory_real: Tensor,
    width: int,
    d_k: int,
    d_v: int,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    return (
        normal(generator, *x_real.shape, width, dtype=dtype),
        normal(generator, *memory_real.shape, width, dtype=dtype),
        x_real,
        memory_real,
        *(_weight(generator, width, columns, dtype) for columns in (d_k, d_k, d_v)),
    )


CROSS_ATTENTION = Exercise(
    name=f"{NAME}.cross_attention",
    title="Where each comes from",
    points=2,
    difficulty=2,
    minutes=15,
    reference=_cross(),
    returns=("context", "weights"),
    distributions=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 1, 2, 4),
                tenths(g, 1, 3, 4),
                _real(2, 2),
                _real(3, 2),
                *(halves(g, 4, columns) for columns in (2, 2, 3)),
            ),
        ),
        Case("longer source", lambda g: _sentences(g, _real(5, 4, 5), _real(7, 7, 3).long(), 12, 8, 6)),
        Case(
            "both of one length",
            lambda g: _sentences(g, _real(5, 5, 3, 2), _real(5, 2, 5, 4), 12, 8, 6),
        ),
        Case(
            "as many sentences as target tokens",
            lambda g: _sentences(g, _real(3, 3, 2, 3), _real(6, 6, 2, 4).long(), 8, 4, 5),
        ),
        Case(
            "shorter source, float64",
            lambda g: _sentences(g, _real(6, 3, 6), _real(4, 4, 3), 8, 4, 5, torch.float64),
        ),
        Case(
            "gradient",
            lambda g: _sentences(g, _real(3, 3, 2).long(), _real(4, 2, 4).long(), 6, 5, 4),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "memory never read",
            _cross(sources=lambda x, memory: (x, x, x)),
            "Queries, keys and values all come from x: that is self-attention. Without memory the "
            "decoder knows nothing of the source. Keys and values come from memory.",
        ),
        Mistake(
            "roles exchanged",
            _cross(sources=lambda x, memory: (memory, x, x)),
            "The source asks and the target answers: one row comes out per source token. The decoder "
            "asks: queries come from x, keys and values from memory.",
        ),
        Mistake(
            "values from x",
            _cross(sources=lambda x, memory: (x, memory, x)),
            "Keys come from memory, but values from x. A value is handed over by whoever was found "
            "by its key, so both come from the same tokens.",
        ),
        Mistake(
            "the target's padding",
            _cross(mask=lambda scores, x_real, memory_real: x_real[:, None]),
            "Keys are masked by the padding of the target. Keys are source tokens: it is their "
            "padding that nobody may read. With both of one length nothing raises.",
        ),
        Mistake(
            "padded queries hidden as well",
            _cross(mask=lambda scores, x_real, memory_real: x_real[:, :, None] & memory_real[:, None]),
            "The rows of padded target tokens see nothing and become NaN. Nobody reads such a row, "
            "and the loss leaves it out: mask keys only.",
        ),
        Mistake(
            "no mask",
            _cross(mask=lambda scores, x_real, memory_real: torch.ones_like(scores, dtype=torch.bool)),
            "Padding of the source gets weight like any word. Look for memory_real: is it used?",
        ),
        Mistake(
            "inverted mask",
            _cross(mask=lambda scores, x_real, memory_real: ~memory_real[:, None]),
            "The words are hidden and the padding is seen. masked_fill fills where its mask is True: "
            "is yours True at words or at padding?",
        ),
        Mistake(
            "causal mask in cross-attention",
            _cross(mask=lambda scores, x_real, memory_real: memory_real[:, None] & _lower_triangle(scores)),
            "Target token i sees source tokens up to i only. The source was read to its end before "
            "the first word is written, so nothing of it lies in the future. The causal mask belongs "
            "to the decoder's self-attention.",
        ),
        Mistake(
            "sentences laid along the queries",
            _cross(mask=lambda scores, x_real, memory_real: memory_real),
            "memory_real [B, T_k] lacks the axis of the queries, so broadcasting lays the sentences "
            "along them. With as many sentences as target tokens nothing raises. Where does the axis "
            "of length 1 belong?",
        ),
        Mistake(
            "no scale",
            _cross(scale=lambda x, key: 1.0),
            "The scores are plain dot products. Divide them by √d_k.",
        ),
        Mistake(
            "scaled with √d_model",
            _cross(scale=lambda x, key: x.shape[-1] ** 0.5),
            "The scale is √d_model, the width of the tokens. A score sums over d_k products: take the "
            "width of the keys.",
        ),
        Mistake(
            "softmax over the queries",
            _cross(softmax=_masked_over_queries),
            "The columns of the weights sum to 1, not the rows. Look at dim.",
        ),
    ),
    hints=(
        "The decoder is writing. Who asks, who is asked, and who hands something over? One row of "
        "weights belongs to one target token.",
        "scores is [B, T_q, T_k], T_q tokens of x and T_k tokens of memory. Which of the two paddings "
        "is about keys, and which axis does it lack?",
        "memory_real.bool()[:, None, :] is [B, 1, T_k]. Fill with -inf where it is False, then softmax "
        "over the last axis. x_real is not needed.",
    ),
)


# 5. The loss ----------------------------------------------------------------------------------


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


def _targets(generator: Generator, T: int, vocabulary: int, *lengths: int) -> Tensor:
    """Sentences of ``lengths`` tokens, which begin with BEGIN and are filled up with PAD."""
    words = torch.randint(2, vocabulary, (len(lengths), T), generator=generator)
    words[:, 0] = BEGIN
    return words.masked_fill(_real(T, *lengths) == 0, PAD)


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
    ),
    hints=(
        "Write a sentence of four tokens and below it what each position has to say. Which logits and "
        "which token have no partner?",
        "logits[:, :-1] belongs to tokens[:, 1:]. log_softmax over the last axis and gather pick the "
        "log-probability of each target: [B, T - 1].",
        "real = target != PAD. Multiply by it, sum over the last axis, and divide by real.sum(-1). "
        "F.cross_entropy(..., reduction='none') may do the picking; it wants the words on axis 1.",
    ),
)


# 6. A whole encoder layer ---------------------------------------------------------------------


def _attended(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    query, key = x @ w_query, x @ w_key
    return (query @ key.mT / key.shape[-1] ** 0.5).softmax(-1) @ (x @ w_value)


def _attended_unscaled(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    return (x @ w_query @ (x @ w_key).mT).softmax(-1) @ (x @ w_value)


Step = Callable[[Tensor], Tensor]


def _wire(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(x + attend(x))
    return norm_2(middle + feed(middle))


def _wire_pre_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + attend(norm_1(x))
    return middle + feed(norm_2(middle))


def _wire_no_first_residual(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(attend(x))
    return norm_2(middle + feed(middle))


def _wire_no_second_residual(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    return norm_2(feed(norm_1(x + attend(x))))


def _wire_second_residual_from_x(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    return norm_2(x + feed(norm_1(x + attend(x))))


def _wire_no_first_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + attend(x)
    return norm_2(middle + feed(middle))


def _wire_no_second_norm(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = norm_1(x + attend(x))
    return middle + feed(middle)


def _wire_one_norm_twice(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    return _wire(x, attend, norm_1, feed, norm_1)


def _wire_norm_inside(x: Tensor, attend: Step, norm_1: Step, feed: Step, norm_2: Step) -> Tensor:
    middle = x + norm_1(attend(x))
    return middle + norm_2(feed(middle))


def _encoder(
    wire: Callable[..., Tensor] = _wire,
    attended: Callable[..., Tensor] = _attended,
    project: Callable[[Tensor, Tensor], Tensor] = lambda context, w_output: context @ w_output,
) -> Callable[..., Tensor]:
    def encoder_layer(
        x: Tensor,
        w_query: Tensor,
        w_key: Tensor,
        w_value: Tensor,
        w_output: Tensor,
        w_in: Tensor,
        b_in: Tensor,
        w_out: Tensor,
        b_out: Tensor,
        gains: Tensor,
        shifts: Tensor,
    ) -> Tensor:
        return wire(
            x,
            lambda x: project(attended(x, w_query, w_key, w_value), w_output),
            lambda x: _layer_norm(x, gains[0], shifts[0]),
            lambda x: _feed_forward(x, w_in, b_in, w_out, b_out),
            lambda x: _layer_norm(x, gains[1], shifts[1]),
        )

    return encoder_layer


def _layer_inputs(generator: Generator, *shape: int, hidden: int, dtype=torch.float32) -> Inputs:
    width = shape[-1]
    return (
        normal(generator, *shape, dtype=dtype),
        *(_weight(generator, width, width, dtype) for _ in range(4)),
        *_two_layers(generator, width, hidden, dtype),
        _gain(generator, 2, width, dtype=dtype),
        normal(generator, 2, width, dtype=dtype),
    )


ENCODER_LAYER = Exercise(
    name=f"{NAME}.encoder_layer",
    title="A whole layer",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_encoder(),
    returns=("output",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 3, 4),
                *(halves(g, 4, 4) for _ in range(4)),
                halves(g, 4, 6),
                halves(g, 6),
                halves(g, 6, 4),
                tenths(g, 4),
                _gain(g, 2, 4),
                tenths(g, 2, 4),
            ),
        ),
        Case("batch", lambda g: _layer_inputs(g, 2, 5, 8, hidden=24)),
        Case("one token", lambda g: _layer_inputs(g, 3, 1, 6, hidden=12)),
        Case(
            "two leading axes, float64",
            lambda g: _layer_inputs(g, 2, 3, 4, 8, hidden=16, dtype=torch.float64),
        ),
        Case("gradient", lambda g: _layer_inputs(g, 2, 4, 6, hidden=9), gradient=True),
    ),
    mistakes=(
        Mistake(
            "pre-norm",
            _encoder(_wire_pre_norm),
            "Both layers read normed tokens, and the sums are not normed. That is pre-norm, as in "
            "exercise 3. The encoder of 2017 norms after each sum.",
        ),
        Mistake(
            "residual missing around attention",
            _encoder(_wire_no_first_residual),
            "After the first half a token knows what it gathered and no longer what it was. Add x "
            "before the first norm.",
        ),
        Mistake(
            "residual missing around feed-forward",
            _encoder(_wire_no_second_residual),
            "The second half returns what the feed-forward layer says, alone. Add what it has read "
            "before the second norm.",
        ),
        Mistake(
            "second residual from x",
            _encoder(_wire_second_residual_from_x),
            "The second sum takes x, the tokens from before the attention. It takes what the "
            "feed-forward layer reads: the result of the first half.",
        ),
        Mistake(
            "first norm missing",
            _encoder(_wire_no_first_norm),
            "The first sum goes on without a norm. There is one after each of the two sums.",
        ),
        Mistake(
            "second norm missing",
            _encoder(_wire_no_second_norm),
            "The second sum is returned without a norm. There is one after each of the two sums.",
        ),
        Mistake(
            "one norm used twice",
            _encoder(_wire_one_norm_twice),
            "Both norms use gains[0] and shifts[0]. The second has its own: gains[1] and shifts[1].",
        ),
        Mistake(
            "norm before the sum",
            _encoder(_wire_norm_inside),
            "Each norm is applied to what a layer says, and x is added after it. Add first, then norm.",
        ),
        Mistake(
            "W_O missing",
            _encoder(project=lambda context, w_output: context),
            "The context goes straight into the sum. It passes through w_output first.",
        ),
        Mistake(
            "no scale",
            _encoder(attended=_attended_unscaled),
            "The scores are plain dot products. Divide them by √d_k.",
        ),
    ),
    hints=(
        "Two halves of the same form: norm(something + layer(something)). What is “something” in the "
        "first half, and what in the second?",
        "First half: attention of x with itself, times w_output; add x; layer_norm with gains[0] and "
        "shifts[0].",
        "Second half: feed_forward of that result; add that result, not x; layer_norm with gains[1] "
        "and shifts[1].",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="7. The Transformer",
    exercises=(
        LAYER_NORM,
        FEED_FORWARD,
        PRE_NORM_BLOCK,
        CROSS_ATTENTION,
        NEXT_TOKEN_LOSS,
        ENCODER_LAYER,
    ),
)

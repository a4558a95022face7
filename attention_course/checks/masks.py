"""Chapter 5: the causal mask, padding, queries that may look nowhere, and the two masks together.

Inputs are drawn so that the usual mistakes show. The numbers of queries and keys differ where the
corner matters and agree where a transposed mask would otherwise raise; one batch has as many
sentences as heads; some scores lie below every finite fill value.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.drawing import normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake

NAME = "05_masks"


# Drawing inputs -------------------------------------------------------------------------------


def _far_below(generator: Generator, *shape: int) -> Tensor:
    """Scores below -1e9, in float64, where they still differ by tenths."""
    return tenths(generator, *shape).double() - 2e9


def _real(T: int, *lengths: int) -> Tensor:
    """1.0 for a word, 0.0 for padding, which stands behind the words.

    Some cases hand it over as integers, as tokenizers do; those with gradients always, so that
    a solution may multiply by it or take its logarithm and is asked for no gradient of it.
    """
    return (torch.arange(T) < torch.tensor(lengths)[:, None]).float()


# Masks, right and wrong -----------------------------------------------------------------------


def _filled(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A softmax in which masked scores become ``fill`` first."""
    return lambda scores, mask: scores.masked_fill(~mask, fill).softmax(-1)


_by_infinity = _filled(-torch.inf)


def _zeroed_after(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.softmax(-1).masked_fill(~mask, 0.0)


def _infinity_after(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.softmax(-1).masked_fill(~mask, -torch.inf)


def _zero_times_infinity(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores + (~mask).to(scores.dtype) * -torch.inf).softmax(-1)


def _billion_added(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores - 1e9 * (~mask).to(scores.dtype)).softmax(-1)


def _added_as_number(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores + mask.to(scores.dtype)).softmax(-1)


def _over_queries(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-2)


def _zeros_where_blind(scores: Tensor, mask: Tensor) -> Tensor:
    return _safe_softmax(scores.masked_fill(~mask, -torch.inf))


def _later(scores: Tensor) -> Tensor:
    """How far each key stands behind each query, last query at last key; above 0: the future."""
    T_q, T_k = scores.shape[-2:]
    return torch.arange(T_k) - torch.arange(T_k - T_q, T_k)[:, None]


def _later_from_the_first(scores: Tensor) -> Tensor:
    """The same, first query at first key."""
    T_q, T_k = scores.shape[-2:]
    return torch.arange(T_k) - torch.arange(T_q)[:, None]


# 1. The causal mask ---------------------------------------------------------------------------


def _causal(
    may_look: Callable[[Tensor], Tensor] = lambda scores: _later(scores) <= 0,
    softmax: Callable[[Tensor, Tensor], Tensor] = _by_infinity,
) -> Callable[[Tensor], Tensor]:
    return lambda scores: softmax(scores, may_look(scores))


def _causal_weights(scores: Tensor) -> Tensor:
    return scores.masked_fill(_later(scores) > 0, -torch.inf).softmax(-1)


def _causal_in_place(scores: Tensor) -> Tensor:
    return scores.masked_fill_(_later(scores) > 0, -torch.inf).softmax(-1)


CAUSAL_WEIGHTS = Exercise(
    name=f"{NAME}.causal_weights",
    title="Nobody reads the future",
    points=2,
    difficulty=1,
    minutes=10,
    reference=_causal_weights,
    returns=("weights",),
    distributions=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 3, 3),)),
        Case("batch and heads", lambda g: (normal(g, 2, 3, 5, 5),)),
        Case("fewer queries than keys", lambda g: (normal(g, 2, 3, 6),)),
        Case("one query", lambda g: (normal(g, 1, 5),)),
        Case("scores below -1e9, float64", lambda g: (_far_below(g, 4, 4),)),
        Case("gradient", lambda g: (normal(g, 3, 4, 4),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no mask",
            lambda scores: scores.softmax(-1),
            "Every query sees every key, also those after it. Look for the mask: is it made, and is it used?",
        ),
        Mistake(
            "inverted mask",
            _causal(lambda scores: _later(scores) > 0),
            "Each query sees the future and nothing else; the last one sees nothing at all, hence "
            "the NaN. Your mask is turned round: masked_fill fills where its mask is True.",
        ),
        Mistake(
            "upper instead of lower triangle",
            _causal(lambda scores: _later(scores) >= 0),
            "Each query sees itself and what comes after it. Queries go down and keys go across, so "
            "the past lies below the diagonal: look at triu and tril, or at a transpose.",
        ),
        Mistake(
            "off by one: the present is hidden",
            _causal(lambda scores: _later(scores) < 0),
            "A query does not see its own position. The first one then sees nothing, hence the NaN. "
            "Look at the diagonal.",
        ),
        Mistake(
            "off by one: one key of the future is seen",
            _causal(lambda scores: _later(scores) <= 1),
            "Each query sees one key too many: the next one, which is the word to predict. Look at "
            "the diagonal.",
        ),
        Mistake(
            "first query at first key",
            _causal(lambda scores: _later_from_the_first(scores) <= 0),
            "With fewer queries than keys your mask starts in the upper left corner. The queries are "
            "the last ones: the last query sees every key. How far does the diagonal move?",
        ),
        Mistake(
            "mask after softmax",
            _causal(softmax=_zeroed_after),
            "The future gets no weight, but the rows no longer sum to 1: softmax has already shared "
            "out to it. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "minus infinity after softmax",
            _causal(softmax=_infinity_after),
            "The weights themselves are -inf. A mask changes scores; softmax turns a score of -inf "
            "into a weight of 0. Look at what comes first.",
        ),
        Mistake(
            "zero as a score",
            _causal(softmax=_filled(0.0)),
            "The future has the score 0, which is a score like any other: exp(0) = 1. Which score "
            "has the exponential 0?",
        ),
        Mistake(
            "-1e9 as a score",
            _causal(softmax=_filled(-1e9)),
            "The future has the score -1e9. One case has scores lower than that, and there the "
            "future wins. Which score is lower than all others?",
        ),
        Mistake(
            "zero times infinity",
            _causal(softmax=_zero_times_infinity),
            "A mask of zeros and ones is multiplied by -inf, and 0 · -inf is NaN. Use masked_fill or "
            "torch.where, which choose and do not multiply.",
        ),
        Mistake(
            "mask added as a number",
            _causal(softmax=_added_as_number),
            "The mask is added as zeros and ones: what a query may see gains one point and nothing "
            "is hidden. A mask to be added holds 0 and -inf.",
        ),
        Mistake(
            "softmax over the queries",
            _causal(softmax=_over_queries),
            "The columns sum to 1, not the rows. Each query shares its attention out among the "
            "keys, the last axis. Look at dim.",
        ),
        Mistake(
            "scores changed in place",
            _causal_in_place,
            "-inf is written into scores itself, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "Write down the 3 × 3 table of who may look at whom. Row i is query i: which columns may it see?",
        "torch.ones(T_q, T_k, dtype=torch.bool).tril(d) is True on and below a diagonal that lies d "
        "to the right of the corner. For T_q = T_k, d is 0. Where must it lie so that the last row "
        "is all True?",
        "d is T_k - T_q. Then scores.masked_fill(~mask, -torch.inf), and softmax over the last axis.",
    ),
)


# 2. Padding -----------------------------------------------------------------------------------


def _keys(real: Tensor) -> Tensor:
    """[batch, T_k] -> [batch, 1, 1, T_k]: the same keys for every head and query."""
    return real.bool()[:, None, None, :]


def _padding(
    may_look: Callable[[Tensor], Tensor] = _keys,
    softmax: Callable[[Tensor, Tensor], Tensor] = _by_infinity,
) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, real: softmax(scores, may_look(real))


def _padding_weights(scores: Tensor, real: Tensor) -> Tensor:
    return _by_infinity(scores, _keys(real))


def _padding_in_place(scores: Tensor, real: Tensor) -> Tensor:
    return scores.masked_fill_(~_keys(real), -torch.inf).softmax(-1)


PADDING_WEIGHTS = Exercise(
    name=f"{NAME}.padding_weights",
    title="Nobody reads the padding",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_padding_weights,
    returns=("weights",),
    distributions=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 1, 1, 3, 3), _real(3, 2))),
        Case("as many queries as keys", lambda g: (normal(g, 3, 2, 5, 5), _real(5, 5, 3, 1))),
        Case("cross-attention", lambda g: (normal(g, 2, 3, 4, 7), _real(7, 6, 2))),
        Case("as many sentences as heads", lambda g: (normal(g, 3, 3, 4, 4), _real(4, 4, 1, 2))),
        Case(
            "padding in front",
            lambda g: (normal(g, 2, 3, 5, 5), _real(5, 3, 4).flip(-1).long()),
        ),
        Case(
            "scores below -1e9, float64",
            lambda g: (_far_below(g, 2, 3, 4, 4), _real(4, 2, 3)),
        ),
        Case("gradient", lambda g: (normal(g, 2, 3, 4, 6), _real(6, 4, 6).long()), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no mask",
            lambda scores, real: scores.softmax(-1),
            "Padding gets weight like any word. Look for real: is it used?",
        ),
        Mistake(
            "inverted mask",
            _padding(lambda real: ~_keys(real)),
            "The words are hidden and the padding is seen. masked_fill fills where its mask is True: "
            "is yours True at words or at padding?",
        ),
        Mistake(
            "padding over queries instead of keys",
            _padding(lambda real: real.bool()[:, None, :, None]),
            "Whole rows are hidden: those of the padded queries, which become NaN. What has to be "
            "hidden is a column, whoever asks. Look at which of the last two axes real is laid along.",
        ),
        Mistake(
            "padding over queries and keys",
            _padding(lambda real: real.bool()[:, None, :, None] & _keys(real)),
            "The padded keys are hidden, and the rows of the padded queries as well; those have "
            "nothing left and become NaN. Nobody reads a padded query's row: leave it alone.",
        ),
        Mistake(
            "sentences laid along the heads",
            _padding(lambda real: real.bool()[None, :, None, :]),
            "real has no axis for the heads, or has it at the wrong place, so broadcasting lays the "
            "sentences along the heads. With as many sentences as heads nothing raises. Where does "
            "the axis of length 1 belong?",
        ),
        Mistake(
            "the first sentence's padding for all",
            _padding(lambda real: _keys(real[:1])),
            "Every sentence is masked as the first one is. Look for an index 0 or a batch axis that "
            "was lost.",
        ),
        Mistake(
            "mask after softmax",
            _padding(softmax=_zeroed_after),
            "Padding gets no weight, but the rows no longer sum to 1: softmax has already shared "
            "out to it. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "zero as a score",
            _padding(softmax=_filled(0.0)),
            "Padding has the score 0, by filling or by multiplying, and exp(0) = 1. Which score has "
            "the exponential 0?",
        ),
        Mistake(
            "-1e9 as a score",
            _padding(softmax=_filled(-1e9)),
            "Padding has the score -1e9. One case has scores lower than that, and there padding "
            "gets all the weight. Which score is lower than all others?",
        ),
        Mistake(
            "zero times infinity",
            _padding(softmax=_zero_times_infinity),
            "Zeros and ones are multiplied by -inf, and 0 · -inf is NaN. Use masked_fill or "
            "torch.where, which choose and do not multiply.",
        ),
        Mistake(
            "mask added as a number",
            _padding(softmax=_added_as_number),
            "real is added to the scores: words gain one point and padding is still seen. A mask to "
            "be added holds 0 and -inf.",
        ),
        Mistake(
            "softmax over the queries",
            _padding(softmax=_over_queries),
            "The columns sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "scores changed in place",
            _padding_in_place,
            "-inf is written into scores itself, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "scores is [batch, heads, T_q, T_k] and real is [batch, T_k]. Which two axes does real lack?",
        "real.bool()[:, None, None, :] has shape [batch, 1, 1, T_k]: the same keys are hidden for "
        "every head and every query.",
        "scores.masked_fill(~mask, -torch.inf).softmax(-1), with that mask.",
    ),
)


# 3. A query that may look nowhere -------------------------------------------------------------


def _safe_softmax(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _zeros_where_anything_is_hidden(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).any(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _blind_keys(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(-2, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _powers_over_sum(scores: Tensor) -> Tensor:
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True).clamp_min(1e-9)


def _safe_in_place(scores: Tensor) -> Tensor:
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill_(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _with_blind_rows(scores: Tensor, *visible: int) -> Tensor:
    """Hide all but the first ``visible[i]`` keys of row i; 0 hides the whole row."""
    seen = torch.arange(scores.shape[-1]) < torch.tensor(visible)[:, None]
    return scores.masked_fill(~seen, -torch.inf)


SAFE_SOFTMAX = Exercise(
    name=f"{NAME}.safe_softmax",
    title="A query that may look nowhere",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_safe_softmax,
    returns=("weights",),
    cases=(
        Case("one decimal", lambda g: (_with_blind_rows(tenths(g, 3, 3), 2, 0, 3),)),
        Case("nobody is blind", lambda g: (normal(g, 4, 5),)),
        Case(
            "batch and heads, float64",
            lambda g: (_with_blind_rows(normal(g, 2, 3, 4, 6, dtype=torch.float64), 0, 1, 6, 0),),
        ),
        Case("keys nobody sees", lambda g: (_with_blind_rows(normal(g, 3, 4), 2, 0, 1),)),
        Case("large scores", lambda g: (_with_blind_rows(tenths(g, 3, 4) + 1e4, 4, 0, 2),)),
        Case(
            "gradient",
            lambda g: (_with_blind_rows(normal(g, 4, 5), 3, 0, 5, 1),),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "NaN rows",
            lambda scores: scores.softmax(-1),
            "A row of nothing but -inf is 0/0 in softmax, hence NaN. Such a row needs a score to "
            "work with first, and a weight of 0 afterwards.",
        ),
        Mistake(
            "uniform rows",
            lambda scores: scores.clamp_min(-1e9).softmax(-1),
            "A blind query spreads its attention evenly over what it must not see. That is what a "
            "large negative number in the place of -inf does: all masked scores are equal again.",
        ),
        Mistake(
            "zeros wherever anything is hidden",
            _zeros_where_anything_is_hidden,
            "Every row with a hidden key becomes 0. Only rows in which all keys are hidden may: look "
            "at any and all.",
        ),
        Mistake(
            "looking for hidden keys, not blind queries",
            _blind_keys,
            "You look for columns of -inf: keys nobody sees. A query that sees nothing is a row. "
            "Look at the axis.",
        ),
        Mistake(
            "softmax over the queries",
            lambda scores: _safe_softmax(scores.mT).mT,
            "The columns sum to 1, not the rows. Look at dim.",
        ),
        Mistake(
            "overflow",
            _powers_over_sum,
            "A small number under the fraction saves the blind rows, but without the row's maximum "
            "the exponential overflows. Use softmax, on rows that have something to work with.",
        ),
        Mistake(
            "scores changed in place",
            _safe_in_place,
            "scores itself is overwritten, as masked_fill_ or scores[...] = does. Make a new tensor.",
        ),
    ),
    hints=(
        "First find the blind rows: (scores == -torch.inf).all(-1, keepdim=True).",
        "Replacing NaN by 0 after softmax gives the right weights and NaN gradients: the derivative "
        "of softmax is taken at its own result, and that is NaN. The NaN must never arise.",
        "Give the blind rows a harmless score before softmax, masked_fill(blind, 0.0), and weights "
        "of 0 after it, by the same masked_fill.",
    ),
)


# 4. Both masks in a decoder -------------------------------------------------------------------


def _decoder(
    may_look: Callable[[Tensor, Tensor], Tensor] = lambda scores, real: (_later(scores) <= 0) & _keys(real),
    softmax: Callable[[Tensor, Tensor], Tensor] = _zeros_where_blind,
    scale: float = 0.5,
) -> Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def attention(query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        scores = query @ key.mT / query.shape[-1] ** scale
        weights = softmax(scores, may_look(scores, real))
        return weights @ value, weights

    return attention


DECODER_ATTENTION = Exercise(
    name=f"{NAME}.decoder_attention",
    title="Both masks at once",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_decoder(),
    returns=("context", "weights"),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (*(tenths(g, 1, 1, 3, 4) for _ in range(2)), tenths(g, 1, 1, 3, 2), _real(3, 2)),
        ),
        Case(
            "padding behind",
            lambda g: (
                *(normal(g, 3, 2, 5, 8) for _ in range(2)),
                normal(g, 3, 2, 5, 4),
                _real(5, 5, 3, 1),
            ),
        ),
        Case(
            "padding in front, float64",
            lambda g: (
                *(normal(g, 2, 3, 5, 8, dtype=torch.float64) for _ in range(2)),
                normal(g, 2, 3, 5, 4, dtype=torch.float64),
                _real(5, 3, 4).flip(-1).long(),
            ),
        ),
        Case(
            "two new words after four",
            lambda g: (
                normal(g, 2, 3, 2, 8),
                normal(g, 2, 3, 6, 8),
                normal(g, 2, 3, 6, 4),
                _real(6, 6, 4).flip(-1),
            ),
        ),
        Case(
            "as many sentences as heads",
            lambda g: (
                *(normal(g, 3, 3, 4, 8) for _ in range(2)),
                normal(g, 3, 3, 4, 5),
                _real(4, 4, 2, 3).flip(-1),
            ),
        ),
        Case(
            "gradient",
            lambda g: (
                *(normal(g, 2, 2, 4, 6) for _ in range(2)),
                normal(g, 2, 2, 4, 3),
                _real(4, 2, 3).flip(-1).long(),
            ),
            gradient=True,
        ),
    ),
    mistakes=(
        Mistake(
            "only the causal mask",
            _decoder(lambda scores, real: _later(scores) <= 0),
            "Padding is seen wherever it lies in the past. Look for real: is it used?",
        ),
        Mistake(
            "only the padding mask",
            _decoder(lambda scores, real: _keys(real)),
            "The future is seen. Look for the causal mask: is it used?",
        ),
        Mistake(
            "or instead of and",
            _decoder(lambda scores, real: (_later(scores) <= 0) | _keys(real)),
            "A key is seen if one of the two masks allows it. It must be allowed by both: look at "
            "the sign between them.",
        ),
        Mistake(
            "NaN rows",
            _decoder(softmax=_by_infinity),
            "With padding in front, the first queries see only themselves, and they are padding: "
            "nothing is left, hence NaN. Exercise 3 has the cure.",
        ),
        Mistake(
            "-1e9 as a score",
            _decoder(softmax=_filled(-1e9)),
            "Queries that see nothing spread their attention over all keys, future and padding "
            "alike: with -1e9 everywhere, all scores are equal. Fill with -inf, and treat such rows "
            "as in exercise 3.",
        ),
        Mistake(
            "-1e9 added to the scores",
            _decoder(softmax=_billion_added),
            "Queries that see nothing get weights all the same: -1e9 is added to all their scores, "
            "and softmax ignores a common shift. Fill with -inf, and treat such rows as in exercise 3.",
        ),
        Mistake(
            "zero as a score",
            _decoder(softmax=_filled(0.0)),
            "Hidden keys have the score 0, and exp(0) = 1. Which score has the exponential 0?",
        ),
        Mistake(
            "mask after softmax",
            _decoder(softmax=_zeroed_after),
            "Hidden keys get no weight, but the rest no longer sums to 1: softmax has already shared "
            "out to them. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "inverted mask",
            _decoder(lambda scores, real: ~((_later(scores) <= 0) & _keys(real))),
            "What may be seen is hidden, and the rest is seen. masked_fill fills where its mask is "
            "True: look for a missing ~.",
        ),
        Mistake(
            "upper instead of lower triangle",
            _decoder(lambda scores, real: (_later(scores) >= 0) & _keys(real)),
            "Each query sees itself and what comes after it. Queries go down and keys go across: "
            "look at triu and tril.",
        ),
        Mistake(
            "off by one: the present is hidden",
            _decoder(lambda scores, real: (_later(scores) < 0) & _keys(real)),
            "A query does not see its own position. Look at the diagonal.",
        ),
        Mistake(
            "off by one: one key of the future is seen",
            _decoder(lambda scores, real: (_later(scores) <= 1) & _keys(real)),
            "Each query sees the next word, the one to predict. Look at the diagonal.",
        ),
        Mistake(
            "first query at first key",
            _decoder(lambda scores, real: (_later_from_the_first(scores) <= 0) & _keys(real)),
            "With two new words after four, the two queries are treated as the first two words. They "
            "are the last two: how far does the diagonal move?",
        ),
        Mistake(
            "padding over queries instead of keys",
            _decoder(
                lambda scores, real: (_later(scores) <= 0) & real.bool()[:, None, -scores.shape[-2] :, None]
            ),
            "Rows of padded queries are hidden, and columns of padded keys are not. A key that is "
            "padding must be hidden whoever asks: look at the axis real is laid along.",
        ),
        Mistake(
            "sentences laid along the heads",
            _decoder(lambda scores, real: (_later(scores) <= 0) & real.bool()[None, :, None, :]),
            "Broadcasting lays the sentences along the heads. With as many sentences as heads "
            "nothing raises. Where does real need its axes of length 1?",
        ),
        Mistake(
            "no scale",
            _decoder(scale=0.0),
            "The softmax sees plain dot products. Divide them by √d_k first.",
        ),
        Mistake(
            "divided by d_k",
            _decoder(scale=1.0),
            "The scores are divided by d_k in all. Look at the power of d_k.",
        ),
    ),
    hints=(
        "Make both masks boolean with True for “may look”. A key is seen if both allow it: &.",
        "The causal one is [T_q, T_k], as in exercise 1, aligned at the last query and key. The one "
        "for padding is [batch, 1, 1, T_k]. They broadcast.",
        "Fill the scores with -inf where the mask is False, and hand them to your safe_softmax.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="5. Masks",
    exercises=(CAUSAL_WEIGHTS, PADDING_WEIGHTS, SAFE_SOFTMAX, DECODER_ATTENTION),
)

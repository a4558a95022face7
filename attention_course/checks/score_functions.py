"""Chapter 2: general, additive and concat scores, the cosine, Luong's decoder, and a window that moves.

Inputs are drawn so that the usual mistakes show. The widths of queries and keys differ where nothing
hides behind that, and agree in one case where a transposed or a wrong weight would otherwise raise.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.drawing import normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake

NAME = "02_score_functions"

#: D of the last exercise; the notebook says so
REACH = 3


# Drawing inputs -------------------------------------------------------------------------------


def _weight(generator: Generator, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A matrix that keeps the variance of the rows it is applied to, so that no tanh is saturated."""
    return normal(generator, rows, columns, dtype=dtype) / rows**0.5


def _real(T: int, lengths: Tensor) -> Tensor:
    """[batch, 1, T]: True for a word, False for the padding behind it, whichever query asks."""
    return (torch.arange(T) < lengths[:, None]).unsqueeze(1)


def _softmax_where(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


# 1. General -----------------------------------------------------------------------------------


def _general(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    return query @ weight @ key.mT


def _general_inputs(
    generator: Generator, query: tuple[int, ...], key: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(generator, *query, dtype=dtype),
        normal(generator, *key, dtype=dtype),
        _weight(generator, query[-1], key[-1], dtype),
    )


GENERAL = Exercise(
    name=f"{NAME}.general",
    title="A dot product with a matrix in between",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_general,
    returns=("scores",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3), tenths(g, 4, 2), tenths(g, 3, 2))),
        # a transposed or a forgotten weight runs here, and shows
        Case("square weight", lambda g: _general_inputs(g, (3, 4), (5, 4))),
        Case("batch, float64", lambda g: _general_inputs(g, (2, 3, 5), (2, 4, 6), torch.float64)),
        Case("batch and heads", lambda g: _general_inputs(g, (2, 3, 5, 6), (2, 3, 7, 4))),
        Case("gradient", lambda g: _general_inputs(g, (4, 3), (6, 5)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "weight transposed",
            lambda query, key, weight: query @ weight.mT @ key.mT,
            "The query is multiplied with Wᵀ, which runs only when W is square. W has shape "
            "[d_q, d_k], and rows are multiplied from the right: with W as it is.",
        ),
        Mistake(
            "weight left out",
            lambda query, key, weight: query @ key.mT,
            "This is the plain dot product. Look for weight: is it used?",
        ),
        Mistake(
            "weight on both sides",
            lambda query, key, weight: (query @ weight) @ (key @ weight).mT,
            "Query and key are both multiplied with W, so the score is q W Wᵀ kᵀ. One matrix stands "
            "between them: apply it to one side only.",
        ),
        Mistake(
            "keys down, queries across",
            lambda query, key, weight: (query @ weight @ key.mT).mT,
            "There is one row per key and one column per query. Queries go down, keys go across: "
            "look at the order of the product.",
        ),
        Mistake(
            "scaled by √d_k",
            lambda query, key, weight: query @ weight @ key.mT / key.shape[-1] ** 0.5,
            "The scores are divided by √d_k. That is chapter 3's scale for a bare dot product. "
            "Luong's general score has none: W can learn its own.",
        ),
        Mistake(
            "weights instead of scores",
            lambda query, key, weight: (query @ weight @ key.mT).softmax(-1),
            "The rows sum to 1: a softmax has gone over the scores already. A score function ends "
            "before that; it may give any number.",
        ),
        Mistake(
            "all axes reversed by .T",
            lambda query, key, weight: query @ weight @ key.T,
            "key.T reverses every axis, the batch too, and is right for a single matrix only. Look "
            "for the transpose that swaps just the last two axes.",
        ),
    ),
    hints=(
        "query is [..., T_q, d_q] and weight [d_q, d_k]. Which product makes queries as wide as keys?",
        "query @ weight is [..., T_q, d_k]: a query that speaks the keys' language. What is left is "
        "a dot product with every key.",
        "key.mT swaps the last two axes only: query @ weight @ key.mT.",
    ),
)


# 2. Additive, in two parts --------------------------------------------------------------------


def _additive(query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, v: Tensor) -> Tensor:
    return _pairs(query @ query_weight, key @ key_weight).tanh() @ v


def _pairs(query: Tensor, key: Tensor) -> Tensor:
    """[..., T_q, T_k, hidden]: every query plus every key."""
    return query.unsqueeze(-2) + key.unsqueeze(-3)


def _from_projected(score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Other scores of rightly projected queries and keys."""
    return lambda query, key, query_weight, key_weight, v: score(query @ query_weight, key @ key_weight, v)


def _additive_inputs(
    generator: Generator,
    query: tuple[int, ...],
    key: tuple[int, ...],
    hidden: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    return (
        normal(generator, *query, dtype=dtype),
        normal(generator, *key, dtype=dtype),
        _weight(generator, query[-1], hidden, dtype),
        _weight(generator, key[-1], hidden, dtype),
        normal(generator, hidden, dtype=dtype),
    )


ADDITIVE = Exercise(
    name=f"{NAME}.additive",
    title="A small network, each side projected once",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_additive,
    returns=("scores",),
    cases=(
        Case(
            "one decimal",
            lambda g: tuple(tenths(g, *shape, most=9) for shape in ((2, 3), (3, 2), (3, 2), (2, 2), (2,))),
        ),
        # exchanged, transposed and forgotten weights run here, and show
        Case("all widths equal", lambda g: _additive_inputs(g, (3, 4), (5, 4), 4)),
        Case("as many queries as keys", lambda g: _additive_inputs(g, (4, 3), (4, 5), 6)),
        Case("one query", lambda g: _additive_inputs(g, (2, 1, 3), (2, 5, 4), 6)),
        Case(
            "batch and heads, float64",
            lambda g: _additive_inputs(g, (2, 3, 5, 4), (2, 3, 7, 6), 8, torch.float64),
        ),
        Case("gradient", lambda g: _additive_inputs(g, (3, 4), (5, 6), 7), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no tanh",
            _from_projected(lambda query, key, v: _pairs(query, key) @ v),
            "Without the tanh the score falls apart into one number for the query and one for the "
            "key. The query's number is the same for all keys, and the softmax cancels it: what is "
            "asked would not matter.",
        ),
        Mistake(
            "tanh after v",
            _from_projected(lambda query, key, v: (_pairs(query, key) @ v).tanh()),
            "tanh goes over the finished score, which therefore lies between -1 and 1. It belongs "
            "inside, over each of the hidden numbers, before v sums them.",
        ),
        Mistake(
            "tanh before the sum",
            _from_projected(lambda query, key, v: _pairs(query.tanh(), key.tanh()) @ v),
            "Query and key each go through a tanh of their own and are added afterwards. Then the "
            "query adds the same number to every score. They must meet inside the tanh.",
        ),
        Mistake(
            "product instead of sum",
            _from_projected(lambda query, key, v: (query.unsqueeze(-2) * key.unsqueeze(-3)).tanh() @ v),
            "Query and key are multiplied. This score is called additive because they are added: "
            "look at the sign between them.",
        ),
        Mistake(
            "v left out",
            _from_projected(lambda query, key, v: _pairs(query, key).tanh().sum(-1)),
            "The hidden numbers are summed as they are. v says how much each of them counts, and in "
            "which direction.",
        ),
        Mistake(
            "queries not projected",
            lambda query, key, query_weight, key_weight, v: _pairs(query, key @ key_weight).tanh() @ v,
            "The queries go in as they are, which runs only when d_q is the hidden width. Look for "
            "query_weight: is it used?",
        ),
        Mistake(
            "keys not projected",
            lambda query, key, query_weight, key_weight, v: _pairs(query @ query_weight, key).tanh() @ v,
            "The keys go in as they are, which runs only when d_k is the hidden width. Keys that "
            "were projected beforehand come in another function; here it is your part.",
        ),
        Mistake(
            "weights exchanged",
            lambda query, key, query_weight, key_weight, v: _additive(
                query, key, key_weight, query_weight, v
            ),
            "Queries are multiplied with key_weight and keys with query_weight, which runs only "
            "when d_q = d_k. Look at which weight goes where.",
        ),
        Mistake(
            "weights transposed",
            lambda query, key, query_weight, key_weight, v: _additive(
                query, key, query_weight.mT, key_weight.mT, v
            ),
            "The projections are x @ W.T, as torch.nn.Linear stores them; that runs only when W is "
            "square. Here W has shape [d, hidden]: multiply from the right with W as it is.",
        ),
        Mistake(
            "keys down, queries across",
            _from_projected(lambda query, key, v: _pairs(key, query).tanh() @ v),
            "There is one row per key and one column per query. Queries go down, keys go across: "
            "look at which of the two gets its new axis where.",
        ),
        Mistake(
            "axes counted from the front",
            _from_projected(lambda query, key, v: (query.unsqueeze(2) + key.unsqueeze(1)).tanh() @ v),
            "unsqueeze(2) and unsqueeze(1) are right with exactly one batch axis in front. Here any "
            "number may stand there, or none: count the axes from the end.",
        ),
        Mistake(
            "queries paired with keys",
            _from_projected(lambda query, key, v: (query + key).tanh() @ v),
            "Query i is added to key i alone: broadcasting takes them in pairs, or raises where "
            "their numbers differ. There is a score for every query and every key: each side needs "
            "an axis of length 1 for the other.",
        ),
    ),
    hints=(
        "Project each side once: [..., T_q, hidden] and [..., T_k, hidden]. The sum of every query "
        "with every key has the shape [..., T_q, T_k, hidden].",
        "Two axes of length 1 make broadcasting do that: unsqueeze(-2) for the queries, "
        "unsqueeze(-3) for the keys.",
        "tanh over the sum, then @ v, which sums over the last axis and takes it away.",
    ),
)


# 3. Concat ------------------------------------------------------------------------------------


def _side_by_side(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Every query and every key, each [..., T_q, T_k, its width]."""
    T_q, T_k = query.shape[-2], key.shape[-2]
    return (
        query.unsqueeze(-2).expand(*query.shape[:-1], T_k, -1),
        key.unsqueeze(-3).expand(*key.shape[:-2], T_q, -1, -1),
    )


def _joined(query: Tensor, key: Tensor) -> Tensor:
    return torch.cat(_side_by_side(query, key), dim=-1)


def _concat(query: Tensor, key: Tensor, weight: Tensor, v: Tensor) -> Tensor:
    return (_joined(query, key) @ weight).tanh() @ v


def _concat_out_of_order(query: Tensor, key: Tensor, weight: Tensor, v: Tensor) -> Tensor:
    """The rows of pairs run through the queries fastest, and are cut as if through the keys."""
    T_q, T_k = query.shape[-2], key.shape[-2]
    queries = torch.cat([query] * T_k, dim=-2)  # q0 q1 q2 q0 q1 q2 ...
    keys = key.repeat_interleave(T_q, dim=-2)  # k0 k0 k0 k1 k1 k1 ...
    scores = (torch.cat((queries, keys), dim=-1) @ weight).tanh() @ v
    return scores.unflatten(-1, (T_q, T_k))


def _concat_inputs(
    generator: Generator,
    query: tuple[int, ...],
    key: tuple[int, ...],
    hidden: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    return (
        normal(generator, *query, dtype=dtype),
        normal(generator, *key, dtype=dtype),
        _weight(generator, query[-1] + key[-1], hidden, dtype),
        normal(generator, hidden, dtype=dtype),
    )


CONCAT = Exercise(
    name=f"{NAME}.concat",
    title="The same network with one matrix",
    points=1,
    difficulty=2,
    minutes=10,
    reference=_concat,
    returns=("scores",),
    cases=(
        Case(
            "one decimal",
            lambda g: tuple(tenths(g, *shape, most=9) for shape in ((2, 1), (3, 2), (3, 2), (2,))),
        ),
        Case("widths equal", lambda g: _concat_inputs(g, (3, 4), (5, 4), 6)),
        Case("as many queries as keys", lambda g: _concat_inputs(g, (4, 3), (4, 5), 6)),
        Case(
            "batch and heads, float64",
            lambda g: _concat_inputs(g, (2, 3, 5, 4), (2, 3, 7, 6), 8, torch.float64),
        ),
        Case("gradient", lambda g: _concat_inputs(g, (3, 4), (5, 6), 7), gradient=True),
    ),
    mistakes=(
        Mistake(
            "key in front of query",
            lambda query, key, weight, v: (
                (torch.cat(_side_by_side(query, key)[::-1], dim=-1) @ weight).tanh() @ v
            ),
            "Each row is [k; q]. That has the right width, so nothing raises, but the rows of "
            "weight that belong to the query are applied to the key. The order is [q; k].",
        ),
        Mistake(
            "no tanh",
            lambda query, key, weight, v: _joined(query, key) @ weight @ v,
            "Without the tanh, the query only adds the same number to every score of its row, and "
            "the softmax cancels it. Look between weight and v.",
        ),
        Mistake(
            "tanh before the weight",
            lambda query, key, weight, v: _joined(query, key).tanh() @ weight @ v,
            "tanh goes over query and key themselves, before weight has mixed them. It belongs "
            "over the hidden numbers, between weight and v.",
        ),
        Mistake(
            "tanh after v",
            lambda query, key, weight, v: (_joined(query, key) @ weight @ v).tanh(),
            "tanh goes over the finished score, which therefore lies between -1 and 1. It belongs "
            "over the hidden numbers, between weight and v.",
        ),
        Mistake(
            "v left out",
            lambda query, key, weight, v: (_joined(query, key) @ weight).tanh().sum(-1),
            "The hidden numbers are summed as they are. v says how much each of them counts.",
        ),
        Mistake(
            "keys down, queries across",
            lambda query, key, weight, v: _concat(query, key, weight, v).mT,
            "There is one row per key and one column per query. Queries go down, keys go across: "
            "look at which of the two gets its new axis where.",
        ),
        Mistake(
            "pairs out of order",
            _concat_out_of_order,
            "The pairs are all there, but in the order q0k0 q1k0 q2k0 …, and they are cut into rows "
            "as if it were q0k0 q0k1 q0k2 …: most scores stand at another pair's place. Look at "
            "repeat and repeat_interleave, or broadcast instead.",
        ),
    ),
    hints=(
        "The tensor of all pairs [q; k] has the shape [..., T_q, T_k, d_q + d_k]. torch.cat does not "
        "broadcast, so both parts need all leading axes first.",
        "query.unsqueeze(-2).expand(*query.shape[:-1], T_k, -1) repeats every query along a new axis "
        "for the keys. The keys need a new axis in front of theirs.",
        "Or never build the pairs: the first d_q rows of weight are a query_weight, the others a "
        "key_weight, and exercise 2 does the rest.",
    ),
)


# 4. Cosine ------------------------------------------------------------------------------------


def _unit(x: Tensor, dim: int = -1) -> Tensor:
    return x / x.norm(dim=dim, keepdim=True).clamp_min(1e-8)


def _cosine(query: Tensor, key: Tensor) -> Tensor:
    return _unit(query) @ _unit(key).mT


def _cosine_in_place(query: Tensor, key: Tensor) -> Tensor:
    query /= query.norm(dim=-1, keepdim=True).clamp_min(1e-8)
    return query @ _unit(key).mT


def _with_zero_vectors(generator: Generator) -> tuple[Tensor, Tensor]:
    query = normal(generator, 2, 3, 4, dtype=torch.float64)
    key = normal(generator, 2, 5, 4, dtype=torch.float64)
    query[0, 1] = 0
    key[1, 2] = 0
    return query, key


COSINE = Exercise(
    name=f"{NAME}.cosine",
    title="Direction without length",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_cosine,
    returns=("scores",),
    forbidden=("cosine_similarity",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3), tenths(g, 4, 3))),
        Case("batch and heads", lambda g: (normal(g, 2, 3, 5, 6), normal(g, 2, 3, 7, 6))),
        Case("long vectors", lambda g: (100 * normal(g, 3, 8), 100 * normal(g, 5, 8))),
        Case("zero vectors, float64", _with_zero_vectors),
        Case("gradient", lambda g: (normal(g, 4, 5), normal(g, 6, 5)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no length taken out",
            lambda query, key: query @ key.mT,
            "This is the plain dot product: a long key still wins over a short one. Divide by the "
            "lengths of both.",
        ),
        Mistake(
            "only the queries' length",
            lambda query, key: _unit(query) @ key.mT,
            "The queries have length 1, the keys have not, so a long key still wins. Both lengths go out.",
        ),
        Mistake(
            "only the keys' length",
            lambda query, key: query @ _unit(key).mT,
            "The keys have length 1, the queries have not, so a long query has larger scores. Both "
            "lengths go out.",
        ),
        Mistake(
            "0 / 0 at a zero vector",
            lambda query, key: (
                (query / query.norm(dim=-1, keepdim=True)) @ (key / key.norm(dim=-1, keepdim=True)).mT
            ),
            "A vector of zeros has length 0, and 0 / 0 is NaN. It points nowhere and should score 0 "
            "with everybody: keep the divisor above 0.",
        ),
        Mistake(
            "squared lengths",
            lambda query, key: (
                query
                @ key.mT
                / query.square().sum(-1, keepdim=True).clamp_min(1e-8)
                / key.square().sum(-1).clamp_min(1e-8).unsqueeze(-2)
            ),
            "You divide by q·q and k·k, which are the lengths squared. Look for the square root.",
        ),
        Mistake(
            "one length for all",
            lambda query, key: query @ key.mT / (query.norm() * key.norm()),
            "norm() without dim gives one length for the whole tensor. Every query and every key "
            "has its own: along the last axis.",
        ),
        Mistake(
            "lengths of the columns",
            lambda query, key: _unit(query, dim=-2) @ _unit(key, dim=-2).mT,
            "Each column of query and key has length 1, not each row. A vector is a row: look at dim.",
        ),
        Mistake(
            "query changed in place",
            _cosine_in_place,
            "The length is divided out of query itself, as query /= ... does. Make a new tensor.",
        ),
    ),
    hints=(
        "cos(q, k) = q·k / (|q| |k|). Which part can be done before the product, for each row alone?",
        "query.norm(dim=-1, keepdim=True) is [..., T_q, 1] and divides every row by its own length.",
        "clamp_min(1e-8) keeps a length of 0 from becoming a divisor. Then a product with .mT.",
    ),
)


# 5. Luong's decoder ---------------------------------------------------------------------------


def _look(decoder: Tensor, encoder: Tensor, lengths: Tensor) -> Tensor:
    """The weights of a dot-product attention over the words."""
    return _softmax_where(decoder @ encoder.mT, _real(encoder.shape[-2], lengths))


def _combine(context: Tensor, decoder: Tensor, weight: Tensor) -> Tensor:
    return (torch.cat((context, decoder), dim=-1) @ weight).tanh()


def _luong(
    look: Callable[[Tensor, Tensor, Tensor], Tensor] = _look,
    combine: Callable[[Tensor, Tensor, Tensor], Tensor] = _combine,
) -> Callable[..., tuple[Tensor, Tensor]]:
    def attentional(
        decoder: Tensor, encoder: Tensor, lengths: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        weights = look(decoder, encoder, lengths)
        return combine(weights @ encoder, decoder, weight), weights

    return attentional


def _luong_inputs(
    generator: Generator,
    T_q: int,
    T_k: int,
    d: int,
    d_out: int,
    *lengths: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """Decoder states a little smaller than normal: their dot products saturate no softmax."""
    return (
        normal(generator, len(lengths), T_q, d, dtype=dtype) / d**0.25,
        normal(generator, len(lengths), T_k, d, dtype=dtype) / d**0.25,
        torch.tensor(lengths),
        _weight(generator, 2 * d, d_out, dtype),
    )


ATTENTIONAL = Exercise(
    name=f"{NAME}.attentional",
    title="Luong's order: all steps at once",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_luong(),
    returns=("attentional", "weights"),
    distributions=("weights",),
    cases=(
        Case(
            "one decimal",
            lambda g: (
                tenths(g, 1, 2, 2, most=9),
                tenths(g, 1, 3, 2, most=9),
                torch.tensor([2]),
                tenths(g, 4, 3, most=9),
            ),
        ),
        Case("batch", lambda g: _luong_inputs(g, 4, 6, 5, 7, 3, 6, 1)),
        # a transposed weight runs here, and shows
        Case("square weight", lambda g: _luong_inputs(g, 3, 5, 4, 8, 5, 2)),
        Case("no padding, float64", lambda g: _luong_inputs(g, 5, 5, 4, 6, 5, 5, dtype=torch.float64)),
        Case("gradient", lambda g: _luong_inputs(g, 3, 5, 4, 6, 4, 5), gradient=True),
    ),
    mistakes=(
        Mistake(
            "state in front of context",
            _luong(combine=lambda context, decoder, weight: _combine(decoder, context, weight)),
            "You put [h; c] through the weight. Both halves have the same width, so nothing raises, "
            "but each meets the other's rows. Luong's order is [c; h].",
        ),
        Mistake(
            "no tanh",
            _luong(combine=lambda context, decoder, weight: torch.cat((context, decoder), dim=-1) @ weight),
            "The tanh around the product is missing: values are not between -1 and 1.",
        ),
        Mistake(
            "tanh before the weight",
            _luong(
                combine=lambda context, decoder, weight: torch.cat((context, decoder), dim=-1).tanh() @ weight
            ),
            "tanh goes over [c; h] and the weight comes after it. First the weight, which mixes "
            "context and state, then the tanh.",
        ),
        Mistake(
            "weight transposed",
            _luong(combine=lambda context, decoder, weight: _combine(context, decoder, weight.mT)),
            "The product is with Wᵀ, as torch.nn.Linear stores it; that runs only when W is square. "
            "Here W has shape [2 d, d_out]: multiply from the right with W as it is.",
        ),
        Mistake(
            "context returned",
            _luong(combine=lambda context, decoder, weight: context),
            "This is the context. One step is missing: beside the decoder's state, through the "
            "weight and the tanh.",
        ),
        Mistake(
            "no mask",
            _luong(lambda decoder, encoder, lengths: (decoder @ encoder.mT).softmax(-1)),
            "Padding gets weight like any word. Look for lengths: is it used?",
        ),
        Mistake(
            "mask after softmax",
            _luong(
                lambda decoder, encoder, lengths: (
                    (decoder @ encoder.mT).softmax(-1) * _real(encoder.shape[-2], lengths)
                )
            ),
            "Padding gets no weight, but the rows no longer sum to 1: softmax has already shared "
            "out to padding. Look at what comes first, mask or softmax.",
        ),
        Mistake(
            "softmax over the queries",
            _luong(
                lambda decoder, encoder, lengths: (
                    (decoder @ encoder.mT)
                    .masked_fill(~_real(encoder.shape[-2], lengths), -torch.inf)
                    .softmax(-2)
                )
            ),
            "The columns sum to 1, not the rows; a column of padding is -inf throughout, hence NaN. "
            "Each query shares its attention out among the keys, the last axis. Look at dim.",
        ),
        Mistake(
            "scaled by √d",
            _luong(
                lambda decoder, encoder, lengths: _look(decoder / decoder.shape[-1] ** 0.5, encoder, lengths)
            ),
            "The scores are divided by √d. That is chapter 3's score; here it is the plain dot product.",
        ),
        Mistake(
            "weights returned first",
            lambda *inputs: _luong()(*inputs)[::-1],
            "The two results are the wrong way round. Return (attentional, weights), in this order.",
        ),
    ),
    hints=(
        "The states of all steps are there already, so no loop is needed: attention first, [B, T_q, d] "
        "against [B, T_k, d], as one product.",
        "(torch.arange(T_k) < lengths[:, None]).unsqueeze(1) is [B, 1, T_k]: the same words for every "
        "query. Scores where it is False become -inf before the softmax.",
        "context = weights @ encoder, then torch.cat((context, decoder), dim=-1) @ weight, then tanh.",
    ),
)


# 6. A window that moves -----------------------------------------------------------------------


def _local(
    *,
    centres: Callable[[Tensor, Tensor, int], Tensor] = lambda place, lengths, T_k: (
        lengths[:, None] * place.sigmoid()
    ),
    seen: Callable[[Tensor, Tensor], Tensor] = lambda offsets, real: (offsets.abs() <= REACH) & real,
    twice_variance: float = 2 * (REACH / 2) ** 2,
    weigh: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda scores, seen, bell: (
        _softmax_where(scores, seen) * bell
    ),
    first: int = 0,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """local-p with one of its parts exchanged; offsets are how far each key lies behind the centre."""

    def local_p(scores: Tensor, place: Tensor, lengths: Tensor) -> Tensor:
        T_k = scores.shape[-1]
        positions = torch.arange(first, first + T_k)
        offsets = positions - centres(place, lengths, T_k).unsqueeze(-1)  # [B, T_q, T_k]
        bell = torch.exp(-(offsets**2) / twice_variance)
        return weigh(scores, seen(offsets, _real(T_k, lengths)), bell)

    return local_p


def _softmax_over_all_words(scores: Tensor, place: Tensor, lengths: Tensor) -> Tensor:
    """The window cuts after the softmax."""
    in_window = _local(weigh=lambda scores, seen, bell: seen * bell)(scores, place, lengths)
    return _softmax_where(scores, _real(scores.shape[-1], lengths)) * in_window


def _renormalised(scores: Tensor, seen: Tensor, bell: Tensor) -> Tensor:
    weights = _softmax_where(scores, seen) * bell
    return weights / weights.sum(-1, keepdim=True)


def _local_inputs(
    generator: Generator, T_q: int, T_k: int, *lengths: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Places all over the sentence, also near its two ends."""
    return (
        normal(generator, len(lengths), T_q, T_k, dtype=dtype),
        1.5 * normal(generator, len(lengths), T_q, dtype=dtype),
        torch.tensor(lengths),
    )


LOCAL_P = Exercise(
    name=f"{NAME}.local_p",
    title="A window that says itself where it lies",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_local(),
    returns=("weights",),
    cases=(
        # sigmoid(0) = 1/2: the window reaches from position 1 to 7, both included
        Case(
            "centre on a word",
            lambda g: (tenths(g, 1, 1, 9), torch.zeros(1, 1), torch.tensor([8])),
        ),
        Case("batch", lambda g: _local_inputs(g, 4, 12, 7, 12, 9)),
        Case("short sentences", lambda g: _local_inputs(g, 5, 10, 1, 2, 4)),
        Case("no padding, float64", lambda g: _local_inputs(g, 6, 11, 11, 11, dtype=torch.float64)),
        Case("gradient", lambda g: _local_inputs(g, 4, 10, 8, 10), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no window",
            _local(seen=lambda offsets, real: real.expand_as(offsets)),
            "The softmax runs over the whole sentence; the Gaussian makes far words small, but they "
            "have taken their share. Hide what lies more than D from p before the softmax.",
        ),
        Mistake(
            "window after the softmax",
            _softmax_over_all_words,
            "The softmax runs over the whole sentence, and only then the far words are cut off. The "
            "window comes first: the softmax shares out among its words only.",
        ),
        Mistake(
            "no Gaussian",
            _local(weigh=lambda scores, seen, bell: _softmax_where(scores, seen)),
            "These are the weights within the window, as in local-m. The Gaussian is missing: by "
            "it words near p count more, and only through it does a gradient reach p.",
        ),
        Mistake(
            "Gaussian times the scores",
            _local(weigh=lambda scores, seen, bell: _softmax_where(scores * bell, seen)),
            "The Gaussian multiplies the scores, before the softmax. A score near 0 is not a small "
            "one: a far word with a bad score would gain. It multiplies the weights, afterwards.",
        ),
        Mistake(
            "rows made to sum to 1 again",
            _local(weigh=_renormalised),
            "The rows sum to 1, because you divide once more, or because the Gaussian's exponent is "
            "added to the scores, which comes to the same. In equation 10 the Gaussian multiplies "
            "the finished weights: the rows sum to less.",
        ),
        Mistake(
            "σ = D",
            _local(twice_variance=2.0 * REACH**2),
            "The bell is twice as wide: σ is D. Luong takes D / 2, so that the window's rim lies at 2σ.",
        ),
        Mistake(
            "σ not squared",
            _local(twice_variance=2 * (REACH / 2)),
            "The squared distance is divided by 2σ instead of 2σ².",
        ),
        Mistake(
            "window without its rim",
            _local(seen=lambda offsets, real: (offsets.abs() < REACH) & real),
            "A word exactly D away from p is hidden. The window [p - D, p + D] has its rim: <=, not <.",
        ),
        Mistake(
            "padding counted in p",
            _local(centres=lambda place, lengths, T_k: T_k * place.sigmoid()),
            "p is T_k · sigmoid(place): the padded width. The same sentence in a wider batch would "
            "look elsewhere. S is each sentence's own length.",
        ),
        Mistake(
            "padding in the window",
            _local(seen=lambda offsets, real: offsets.abs() <= REACH),
            "Near a sentence's end the window sticks out into the padding, and padding gets weight "
            "there. A word is seen if it lies in the window and in the sentence.",
        ),
        Mistake(
            "positions counted from 1",
            _local(first=1),
            "Your first word stands at position 1, so everything lies one place too far to the "
            "right of p. Positions count from 0 here, as in torch.arange(T_k).",
        ),
        Mistake(
            "centre rounded",
            _local(centres=lambda place, lengths, T_k: (lengths[:, None] * place.sigmoid()).round()),
            "p is rounded to a position. It is a real number: rounding moves the window by up to half "
            "a place, and no gradient gets through it.",
        ),
    ),
    hints=(
        "First p, [B, T_q], from lengths[:, None] and the sigmoid. Then the distance of every "
        "position from every p, [B, T_q, T_k]: all else is made from it.",
        "offsets = torch.arange(T_k) - p.unsqueeze(-1). Seen is what has abs() <= D and is no "
        "padding; padding is [B, 1, T_k], the same for every query.",
        "weights = softmax of the scores filled with -inf where they are not seen; then times "
        "exp(-offsets² / (2σ²)) with σ = D / 2, and no division after that.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="2. Score functions",
    exercises=(GENERAL, ADDITIVE, CONCAT, COSINE, ATTENTIONAL, LOCAL_P),
)

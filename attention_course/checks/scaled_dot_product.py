"""Chapter 3: scores, softmax, attention, self-attention, and what a saturated softmax costs.

Inputs are drawn so that the usual mistakes show: the numbers of queries, keys and columns all
differ, no softmax is saturated unless the case is about that, and one head has d_k = 256, where a
wrong scale cannot hide.
"""

import torch
from torch import Generator, Tensor

from attention_course.checks.drawing import normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake

NAME = "03_scaled_dot_product"


# Drawing inputs -------------------------------------------------------------------------------


def _heads(generator: Generator, batch: int, length: int, heads: int, width: int) -> Tensor:
    """[batch, heads, length, width], laid out in memory as split heads are: not contiguous."""
    return normal(generator, batch, length, heads, width).transpose(1, 2)


# 1. Scores ------------------------------------------------------------------------------------


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / query.shape[-1] ** 0.5


def _scores_in_place(query: Tensor, key: Tensor) -> Tensor:
    query /= query.shape[-1] ** 0.5
    return query @ key.mT


SCORES = Exercise(
    name=f"{NAME}.scores",
    title="Scaled scores",
    points=1,
    difficulty=1,
    minutes=5,
    reference=_scores,
    returns=("scores",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 4), tenths(g, 3, 4))),
        Case("wide head", lambda g: (normal(g, 3, 256), normal(g, 5, 256))),
        Case(
            "batch, float64",
            lambda g: (
                normal(g, 2, 5, 6, dtype=torch.float64),
                normal(g, 2, 3, 6, dtype=torch.float64),
            ),
        ),
        Case("batch and heads", lambda g: (_heads(g, 2, 5, 3, 8), _heads(g, 2, 7, 3, 8))),
        Case("gradient", lambda g: (normal(g, 4, 7), normal(g, 6, 7)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no scale",
            lambda query, key: query @ key.mT,
            "These are the plain dot products. Nothing is divided yet: what keeps their variance "
            "at 1 when d_k grows?",
        ),
        Mistake(
            "divided by d_k",
            lambda query, key: query @ key.mT / query.shape[-1],
            "The scores are divided by d_k in all. That overshoots: their variance becomes 1/d_k. "
            "Either the power of d_k is wrong, or √d_k is divided out twice: once from query or key "
            "and once more from the other or from the product.",
        ),
        Mistake(
            "scaled by the number of keys",
            lambda query, key: query @ key.mT / key.shape[-2] ** 0.5,
            "The scale is √T_k, the number of keys. A score is a sum over d_k products, however "
            "many keys there are. Look at which axis you take the length of.",
        ),
        Mistake(
            "scaled by the number of queries",
            lambda query, key: query @ key.mT / query.shape[-2] ** 0.5,
            "The scale is √T_q, the number of queries. A score is a sum over d_k products, however "
            "many queries there are. Look at which axis you take the length of.",
        ),
        Mistake(
            "d_k read from axis 1",
            lambda query, key: query @ key.mT / query.shape[1] ** 0.5,
            "The scale is taken from shape[1]. That is d_k only as long as there is no batch and "
            "there are no heads in front. Count the axis from the end.",
        ),
        Mistake(
            "multiplied by √d_k",
            lambda query, key: query @ key.mT * query.shape[-1] ** 0.5,
            "The scores are multiplied by √d_k. That makes large heads worse instead of better. "
            "Look at the direction of the scale.",
        ),
        Mistake(
            "queries and keys swapped",
            lambda query, key: key @ query.mT / query.shape[-1] ** 0.5,
            "There is one row per key and one column per query. Queries go down, keys go across: "
            "look at the order of the product.",
        ),
        Mistake(
            "all axes reversed by .T",
            lambda query, key: query @ key.T / query.shape[-1] ** 0.5,
            "key.T reverses every axis, the batch too, and is right for a single matrix only. Look "
            "for the transpose that swaps just the last two axes.",
        ),
        Mistake(
            "query changed in place",
            _scores_in_place,
            "The scale is written into query itself, as query /= ... does. Whoever called your "
            "function now holds another query. Make a new tensor.",
        ),
        Mistake(
            "cosine instead of dot product",
            lambda query, key: (
                (query / query.norm(dim=-1, keepdim=True)) @ (key / key.norm(dim=-1, keepdim=True)).mT
            ),
            "Every vector is divided by its own length. Lengths count in a dot product: only √d_k, "
            "the same number for all, is taken out.",
        ),
    ),
    hints=(
        "There is one score for each pair of a query and a key: [..., T_q, T_k]. Which axis do the "
        "two inputs share, and what happens to it in a matrix product?",
        "A matrix product sums over the last axis of the left factor and the last but one of the "
        "right. key.mT swaps the last two axes of key and leaves the others alone.",
        "d_k is query.shape[-1]. Divide query @ key.mT once by its square root.",
    ),
)


# 2. Softmax -----------------------------------------------------------------------------------


def _softmax(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def _softmax_over(axis: int):
    def softmax(scores: Tensor) -> Tensor:
        powers = torch.exp(scores - scores.amax(axis, keepdim=True))
        return powers / powers.sum(axis, keepdim=True)

    return softmax


def _softmax_everywhere(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.max())
    return powers / powers.sum()


def _softmax_unstable(scores: Tensor) -> Tensor:
    powers = torch.exp(scores)
    return powers / powers.sum(-1, keepdim=True)


def _softmax_one_maximum(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.max())
    return powers / powers.sum(-1, keepdim=True)


def _softmax_by_max(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.amax(-1, keepdim=True)


def _softmax_no_keepdim(scores: Tensor) -> Tensor:
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum(-1)


def _softmax_in_place(scores: Tensor) -> Tensor:
    scores -= scores.amax(-1, keepdim=True)
    powers = torch.exp(scores)
    return powers / powers.sum(-1, keepdim=True)


def _softmax_log(scores: Tensor) -> Tensor:
    return scores - scores.logsumexp(-1, keepdim=True)


def _large(generator: Generator) -> tuple[Tensor]:
    """Rows near +10000 and near -10000, with a few units between the scores of a row."""
    height = torch.tensor([[1e4], [-1e4], [0.0]])
    return (height + tenths(generator, 3, 5),)


SOFTMAX = Exercise(
    name=f"{NAME}.softmax",
    title="A softmax that does not overflow",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_softmax,
    returns=("weights",),
    distributions=("weights",),
    forbidden=("softmax", "log_softmax", "softmin"),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 3),)),
        Case("one row", lambda g: (normal(g, 5),)),
        Case(
            "batch and heads, float64",
            lambda g: (normal(g, 2, 3, 4, 6, dtype=torch.float64),),
        ),
        Case("gradient", lambda g: (normal(g, 3, 5),), gradient=True),
        Case("large scores", _large),
    ),
    mistakes=(
        Mistake(
            "softmax over the queries",
            _softmax_over(-2),
            "The columns sum to 1, not the rows. Each query shares its attention out among the "
            "keys, and the keys are the last axis. Look at dim.",
        ),
        Mistake(
            "softmax over axis 1",
            _softmax_over(1),
            "The sum runs over axis 1. That is the last axis of a matrix only: with a batch and "
            "heads in front it is another one. Count from the end.",
        ),
        Mistake(
            "softmax over the first axis",
            _softmax_over(0),
            "The sum runs over axis 0. Each query shares its attention out among the keys, and the "
            "keys are the last axis. Look at dim.",
        ),
        Mistake(
            "one softmax over the whole tensor",
            _softmax_everywhere,
            "All entries together sum to 1, as if there were one query. Every row must sum to 1 by "
            "itself: look at the axis of your sum.",
        ),
        Mistake(
            "overflow",
            _softmax_unstable,
            "exp(10000) is infinite and exp(-10000) is 0, so the division gives NaN. Softmax does "
            "not change when the same number is taken from every score of a row: which number "
            "keeps exp within bounds?",
        ),
        Mistake(
            "one maximum for the whole tensor",
            _softmax_one_maximum,
            "The largest score of the whole tensor is taken from every row. A row that lies far "
            "below it becomes 0/0. Take each row's own maximum.",
        ),
        Mistake(
            "no exponential",
            lambda scores: scores / scores.sum(-1, keepdim=True),
            "The scores themselves are divided by their sum, so weights can be negative and the "
            "sum can be 0. Look for the exponential.",
        ),
        Mistake(
            "divided by the largest instead of the sum",
            _softmax_by_max,
            "The largest weight of each row is 1. Divide by the sum of the exponentials of a row, "
            "not by the largest of them.",
        ),
        Mistake(
            "keepdim missing",
            _softmax_no_keepdim,
            "The sum or the maximum of each row has lost its axis, so it meets the scores on the "
            "wrong one. Look at keepdim.",
        ),
        Mistake(
            "scores changed in place",
            _softmax_in_place,
            "The maximum is taken away from scores itself, as scores -= ... does. Whoever called "
            "your function now holds other scores. Make a new tensor.",
        ),
        Mistake(
            "sign turned",
            lambda scores: _softmax(-scores),
            "The lowest score gets the largest weight. Look at the sign in the exponent.",
        ),
        Mistake(
            "logarithms instead of weights",
            _softmax_log,
            "These are the logarithms of the weights. They are at most 0; weights lie between 0 and 1.",
        ),
        Mistake(
            "sigmoid instead of softmax",
            torch.sigmoid,
            "Each score is squeezed between 0 and 1 by itself. In a softmax the scores of a row "
            "compete: look at what you divide by.",
        ),
        Mistake(
            "powers of 2",
            lambda scores: _softmax(scores * 0.6931471805599453),
            "The base is 2 instead of e. Look at the function that raises to a power.",
        ),
    ),
    hints=(
        "Softmax of a row is exp(score) over the sum of exp(score) along that row. Which axis holds "
        "the scores of one query?",
        "Sum over dim=-1 and keep that axis (keepdim=True), so that each row is divided by its own "
        "sum. Then try torch.tensor([10000.0, 9999.0]).",
        "Before exp, take from each row its own maximum, scores.amax(-1, keepdim=True), and put the "
        "difference into a new tensor. The largest exponent is then 0.",
    ),
)


# 3. Attention ---------------------------------------------------------------------------------


def _attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = _softmax(_scores(query, key))
    return weights @ value, weights


def _mixed(weights_of):
    """An attention whose weights are ``weights_of(query, key)``."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        weights = weights_of(query, key)
        return weights @ value, weights

    return attention


def _attention_swapped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    context, weights = _attention(query, key, value)
    return weights, context


def _attention_mixes_keys(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = _softmax(_scores(query, key))
    return weights @ key, weights


def _attention_in_place(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    query /= query.shape[-1] ** 0.5
    weights = _softmax(query @ key.mT)
    return weights @ value, weights


def _attention_gives_scores(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key)
    return _softmax(scores) @ value, scores


def _attention_late_scale(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = _softmax(query @ key.mT) / query.shape[-1] ** 0.5
    return weights @ value, weights


def _attention_context_scaled(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = _softmax(query @ key.mT)
    return weights @ value / query.shape[-1] ** 0.5, weights


def _qkv(generator: Generator, queries: int, keys: int, d_k: int, d_v: int, dtype=torch.float32):
    return (
        normal(generator, queries, d_k, dtype=dtype),
        normal(generator, keys, d_k, dtype=dtype),
        normal(generator, keys, d_v, dtype=dtype),
    )


def _extreme(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Scores in the thousands: each query has one key that wins by far."""
    query, key, value = _qkv(generator, 3, 5, 4, 2)
    return 100 * query.sign() + query, 100 * key.sign() + key, value


ATTENTION = Exercise(
    name=f"{NAME}.attention",
    title="Score, softmax, mix",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_attention,
    returns=("context", "weights"),
    distributions=("weights",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 4), tenths(g, 3, 4), tenths(g, 3, 5))),
        Case("wide head", lambda g: _qkv(g, 3, 5, 256, 4)),
        Case(
            "batch and heads, float64",
            lambda g: tuple(
                one.double() for one in (_heads(g, 2, 5, 3, 8), _heads(g, 2, 7, 3, 8), _heads(g, 2, 7, 3, 6))
            ),
        ),
        Case("values as wide as keys", lambda g: _qkv(g, 5, 6, 3, 3)),
        Case("gradient", lambda g: _qkv(g, 4, 6, 7, 3), gradient=True),
        Case("large scores", _extreme),
    ),
    mistakes=(
        Mistake(
            "no scale",
            _mixed(lambda query, key: _softmax(query @ key.mT)),
            "The softmax sees plain dot products. Look at what has to happen to the scores before "
            "the softmax.",
        ),
        Mistake(
            "divided by d_k",
            _mixed(lambda query, key: _softmax(query @ key.mT / query.shape[-1])),
            "The scores are divided by d_k in all, so the weights are almost equal when d_k is "
            "large. Look at the power of d_k; and if your scores(query, key) scales already, "
            "attention must not do so again.",
        ),
        Mistake(
            "scaled by the number of keys",
            _mixed(lambda query, key: _softmax(query @ key.mT / key.shape[-2] ** 0.5)),
            "The scale is √T_k, the number of keys, where √d_k belongs. Look at which axis you take "
            "the length of.",
        ),
        Mistake(
            "softmax twice",
            _mixed(lambda query, key: _softmax(_softmax(_scores(query, key)))),
            "The weights go through softmax a second time, which evens them out. Look for a "
            "softmax of something that already sums to 1.",
        ),
        Mistake(
            "softmax over the queries",
            _mixed(lambda query, key: _softmax_over(-2)(_scores(query, key))),
            "The columns of the weights sum to 1, not the rows. Each query shares its attention "
            "out among the keys, the last axis. Look at dim.",
        ),
        Mistake(
            "softmax over axis 1",
            _mixed(lambda query, key: _softmax_over(1)(_scores(query, key))),
            "The softmax runs over axis 1, which is the axis of the keys only without a batch and "
            "heads in front. Count from the end.",
        ),
        Mistake(
            "no softmax",
            _mixed(_scores),
            "The values are mixed with the scores themselves. Scores can be negative and sum to "
            "anything: look for the step that turns them into shares.",
        ),
        Mistake(
            "scale after the softmax",
            _attention_late_scale,
            "The weights are divided by √d_k after the softmax, so their rows sum to 1/√d_k. The "
            "scale belongs to the scores: divide before the softmax.",
        ),
        Mistake(
            "context scaled instead of scores",
            _attention_context_scaled,
            "The weights come from unscaled scores, and the context is divided by √d_k instead. "
            "Divide the scores before the softmax.",
        ),
        Mistake(
            "keys mixed instead of values",
            _attention_mixes_keys,
            "The context is a mixture of keys. Keys decide how much, values are what is mixed: "
            "look at the right factor of the last product.",
        ),
        Mistake(
            "weights returned first",
            _attention_swapped,
            "The two results are the wrong way round. Return (context, weights), in this order, as "
            "the whole course does.",
        ),
        Mistake(
            "scores returned as weights",
            _attention_gives_scores,
            "The context is right, but what is returned beside it are the scores before the "
            "softmax. Return what you mixed the values with.",
        ),
        Mistake(
            "weights not returned",
            lambda query, key, value: _attention(query, key, value)[0],
            "The context alone is returned. The weights are asked for too: return (context, weights).",
        ),
        Mistake(
            "query changed in place",
            _attention_in_place,
            "The scale is written into query itself, as query /= ... does. Make a new tensor.",
        ),
        Mistake(
            "overflow",
            _mixed(lambda query, key: _softmax_unstable(_scores(query, key))),
            "exp of a large score is infinite, and the division gives NaN. Use a softmax that "
            "takes each row's maximum away first: your own from the exercise before will do.",
        ),
    ),
    hints=(
        "Three steps: score every query against every key, turn each row of scores into weights, "
        "mix the values with them. You wrote the first two already.",
        "weights is [..., T_q, T_k] and value is [..., T_k, d_v]. Which product sums over the keys?",
        "weights = softmax(scores(query, key)), context = weights @ value. Return both, context first.",
    ),
)


# 4. Self-attention ----------------------------------------------------------------------------


def _self_attention(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    return _attention(x @ w_query, x @ w_key, x @ w_value)[0]


def _projected(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor):
    return x @ w_query, x @ w_key, x @ w_value


def _self_attention_weights(change):
    """A self-attention whose weights are ``change(query, key, d_model)``."""

    def self_attention(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
        query, key, value = _projected(x, w_query, w_key, w_value)
        return change(query, key, x.shape[-1]) @ value

    return self_attention


def _self_attention_in_place(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    w_query /= w_query.shape[-1] ** 0.5
    return _softmax((x @ w_query) @ (x @ w_key).mT) @ (x @ w_value)


def _sequence(generator: Generator, *leading: int, d_model: int, d_k: int, d_v: int):
    """Tokens of unit variance, and weights that keep it so: no softmax is saturated."""
    return (
        normal(generator, *leading, d_model),
        normal(generator, d_model, d_k) / d_model**0.5,
        normal(generator, d_model, d_k) / d_model**0.5,
        normal(generator, d_model, d_v) / d_model**0.5,
    )


SELF_ATTENTION = Exercise(
    name=f"{NAME}.self_attention",
    title="Self-attention from one sequence",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_self_attention,
    returns=("context",),
    forbidden=("scaled_dot_product_attention",),
    cases=(
        Case(
            "one decimal",
            lambda g: (tenths(g, 6, 3), tenths(g, 3, 2), tenths(g, 3, 2), tenths(g, 3, 4)),
        ),
        # square weights: a transposed one runs here, and shows
        Case("square weights", lambda g: _sequence(g, 6, d_model=4, d_k=4, d_v=4)),
        Case("batch", lambda g: _sequence(g, 2, 7, d_model=6, d_k=4, d_v=3)),
        Case("wide head", lambda g: _sequence(g, 5, d_model=16, d_k=256, d_v=8)),
        Case("gradient", lambda g: _sequence(g, 4, d_model=6, d_k=3, d_v=5), gradient=True),
    ),
    mistakes=(
        Mistake(
            "weights of the projections transposed",
            lambda x, w_query, w_key, w_value: _self_attention(x, w_query.mT, w_key.mT, w_value.mT),
            "The projections are x @ W.T, as torch.nn.Linear stores them. Here tokens are rows and "
            "W has shape [d_model, d_k]: multiply from the right with W as it is.",
        ),
        Mistake(
            "keys from w_query",
            lambda x, w_query, w_key, w_value: _self_attention(x, w_query, w_query, w_value),
            "The keys are made with w_query, so every token is scored against the queries. Look at "
            "the line that makes the keys.",
        ),
        Mistake(
            "queries from w_key",
            lambda x, w_query, w_key, w_value: _self_attention(x, w_key, w_key, w_value),
            "The queries are made with w_key. Look at the line that makes the queries.",
        ),
        Mistake(
            "w_query and w_key swapped",
            lambda x, w_query, w_key, w_value: _self_attention(x, w_key, w_query, w_value),
            "The queries are made with w_key and the keys with w_query. Look at which weight goes where.",
        ),
        Mistake(
            "queries not projected",
            lambda x, w_query, w_key, w_value: _attention(x, x @ w_key, x @ w_value)[0],
            "The tokens themselves are used as queries. Look for w_query: is it used?",
        ),
        Mistake(
            "keys not projected",
            lambda x, w_query, w_key, w_value: _attention(x @ w_query, x, x @ w_value)[0],
            "The tokens themselves are used as keys. Look for w_key: is it used?",
        ),
        Mistake(
            "x mixed instead of the values",
            lambda x, w_query, w_key, w_value: _attention(x @ w_query, x @ w_key, x)[0],
            "The weights mix the tokens themselves: the value is not projected. Look for w_value: "
            "is it used?",
        ),
        Mistake(
            "keys mixed instead of values",
            lambda x, w_query, w_key, w_value: _attention(x @ w_query, x @ w_key, x @ w_key)[0],
            "The weights mix the keys. Look at what you hand over as value.",
        ),
        Mistake(
            "scaled by d_model",
            _self_attention_weights(lambda query, key, d_model: _softmax(query @ key.mT / d_model**0.5)),
            "The scale is √d_model, the width of a token. A score is a sum over the d_k columns of "
            "query and key: look at whose last axis you measure.",
        ),
        Mistake(
            "scaled by the sequence length",
            _self_attention_weights(
                lambda query, key, d_model: _softmax(query @ key.mT / key.shape[-2] ** 0.5)
            ),
            "The scale is √T, the length of the sequence. A score is a sum over d_k products, "
            "however long the sequence is. Look at which axis you measure.",
        ),
        Mistake(
            "no scale",
            _self_attention_weights(lambda query, key, d_model: _softmax(query @ key.mT)),
            "The softmax sees plain dot products. Divide them by √d_k first.",
        ),
        Mistake(
            "divided by d_k",
            _self_attention_weights(lambda query, key, d_model: _softmax(query @ key.mT / query.shape[-1])),
            "The scores are divided by d_k in all. Look at the power of d_k, and whether they are "
            "scaled a second time on the way.",
        ),
        Mistake(
            "softmax over the queries",
            _self_attention_weights(lambda query, key, d_model: _softmax_over(-2)(_scores(query, key))),
            "The columns of the weights sum to 1, not the rows. Each token shares its attention out "
            "among the keys, the last axis. Look at dim.",
        ),
        Mistake(
            "weights transposed",
            _self_attention_weights(lambda query, key, d_model: _softmax(_scores(query, key)).mT),
            "The weights are transposed before they mix the values. In a square matrix of weights "
            "this runs and goes unnoticed: rows belong to queries.",
        ),
        Mistake(
            "no softmax",
            _self_attention_weights(lambda query, key, d_model: _scores(query, key)),
            "The values are mixed with the scores themselves. Look for the softmax.",
        ),
        Mistake(
            "projection weights changed in place",
            _self_attention_in_place,
            "The scale is written into w_query itself, as w_query /= ... does. A second call would "
            "scale again. Make a new tensor.",
        ),
    ),
    hints=(
        "Queries, keys and values are three views of the same tokens. Each comes from x by one "
        "matrix product.",
        "Tokens are rows: query = x @ w_query, without a transpose. Do the same for key and value.",
        "Hand the three to your attention(query, key, value) and keep the first of its two results.",
    ),
)


# 5. The Jacobian of softmax -------------------------------------------------------------------


def _softmax_jacobian(weights: Tensor) -> Tensor:
    return torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]


def _outer(weights: Tensor) -> Tensor:
    return weights[..., :, None] * weights[..., None, :]


def _jacobian_shared_outer(weights: Tensor) -> Tensor:
    rows = weights.reshape(-1, weights.shape[-1])
    return torch.diag_embed(weights) - rows.mT @ rows


def _jacobian_flat_outer(weights: Tensor) -> Tensor:
    flat = weights.reshape(-1)
    return torch.diag(flat) - torch.outer(flat, flat)


def _jacobian_in_place(weights: Tensor) -> Tensor:
    outer = _outer(weights)
    weights *= 1 - weights
    off = 1 - torch.eye(weights.shape[-1], dtype=weights.dtype)
    return torch.diag_embed(weights) - outer * off


def _weights(generator: Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return _softmax(normal(generator, *shape, dtype=dtype))


def _shares(generator: Generator) -> tuple[Tensor]:
    """Four weights with one decimal that sum to 1: ten tenths, cut in three places."""
    cuts = (torch.randperm(9, generator=generator)[:3] + 1).sort().values.tolist()
    parts = [right - left for left, right in zip([0, *cuts], [*cuts, 10], strict=True)]
    return (torch.tensor(parts, dtype=torch.float32) / 10,)


def _nearly_certain(generator: Generator) -> tuple[Tensor]:
    """Almost all weight on one key: what an unscaled softmax gives at d_k = 256."""
    scores = normal(generator, 2, 5)
    scores[0, 3] += 20
    scores[1, 1] += 20
    return (_softmax(scores),)


SOFTMAX_JACOBIAN = Exercise(
    name=f"{NAME}.softmax_jacobian",
    title="What a saturated softmax lets through",
    points=3,
    difficulty=3,
    minutes=15,
    reference=_softmax_jacobian,
    returns=("jacobian",),
    cases=(
        Case("one decimal", _shares),
        Case("several queries", lambda g: (_weights(g, 2, 4),)),
        Case("batch and heads, float64", lambda g: (_weights(g, 2, 3, 4, 6, dtype=torch.float64),)),
        Case("nearly certain", _nearly_certain),
        Case("gradient", lambda g: (_weights(g, 3, 5),), gradient=True),
    ),
    mistakes=(
        Mistake(
            "diagonal only",
            lambda weights: torch.diag_embed(weights * (1 - weights)),
            "Off the diagonal there is nothing. Raising one score also lowers the weights of all "
            "the others: look at what depends on i and on j.",
        ),
        Mistake(
            "vector instead of matrix",
            lambda weights: weights * (1 - weights),
            "These are the diagonal entries, as for a sigmoid. Every weight depends on every score: "
            "the derivative is a matrix, [..., T, T].",
        ),
        Mistake(
            "plus instead of minus",
            lambda weights: torch.diag_embed(weights) + _outer(weights),
            "The outer product is added. When one score rises, the other weights fall: look at the sign.",
        ),
        Mistake(
            "sign turned",
            lambda weights: _outer(weights) - torch.diag_embed(weights),
            "Every sign is turned. When a score rises its own weight rises: the diagonal must be positive.",
        ),
        Mistake(
            "outer product missing",
            torch.diag_embed,
            "This is diag(w) alone. The rows of the Jacobian must sum to 0, because the weights "
            "always sum to 1: what has to be taken away?",
        ),
        Mistake(
            "diagonal term missing",
            lambda weights: -_outer(weights),
            "This is -wwᵀ alone. The rows of the Jacobian must sum to 0: what is missing on the diagonal?",
        ),
        Mistake(
            "identity instead of diag(w)",
            lambda weights: torch.eye(weights.shape[-1], dtype=weights.dtype) - _outer(weights),
            "The diagonal starts from 1 instead of w. Look at what δ is multiplied with.",
        ),
        Mistake(
            "1 instead of δ",
            lambda weights: weights[..., :, None] * (1 - weights[..., None, :]),
            "This is w_i (1 - w_j) everywhere. That holds on the diagonal only: 1 must be δ_ij, "
            "which is 0 elsewhere.",
        ),
        Mistake(
            "one outer product for all queries",
            _jacobian_shared_outer,
            "The outer product sums over all queries, as weights.mT @ weights does. Every row of "
            "weights needs its own T × T matrix: look for a product that keeps the leading axes.",
        ),
        Mistake(
            "queries flattened together",
            _jacobian_flat_outer,
            "All queries are treated as one long row, as torch.outer(weights.flatten(), ...) does. "
            "Every row of weights needs its own T × T matrix.",
        ),
        Mistake(
            "outer product is only a square",
            lambda weights: torch.diag_embed(weights) - (weights * weights)[..., None, :],
            "weights * weights multiplies entry by entry, w_j · w_j in every row. The outer product "
            "has w_i · w_j: give one factor an axis of its own.",
        ),
        Mistake(
            "weights changed in place",
            _jacobian_in_place,
            "weights itself is overwritten. Make a new tensor.",
        ),
    ),
    hints=(
        "Entry (i, j) says how weight i moves when score j moves: ∂w_i/∂s_j = w_i (δ_ij - w_j). "
        "Write down the 3 × 3 matrix for w = [0.2, 0.4, 0.4].",
        "Split it in two: w_i δ_ij is a diagonal matrix (torch.diag_embed keeps leading axes), and "
        "w_i w_j is an outer product.",
        "weights[..., :, None] * weights[..., None, :] is the outer product of every row with "
        "itself, with any leading axes.",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="3. Scaled dot-product attention",
    exercises=(SCORES, SOFTMAX, ATTENTION, SELF_ATTENTION, SOFTMAX_JACOBIAN),
)

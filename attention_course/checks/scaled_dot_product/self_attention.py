"""Exercise 4: self-attention."""

from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.scaled_dot_product import shared
from attention_course.checks.scaled_dot_product.shared import NAME


def _self_attention(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    return shared.attention(x @ w_query, x @ w_key, x @ w_value)[0]


def _projected(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor):
    return x @ w_query, x @ w_key, x @ w_value


def _self_attention_weights(change):
    """A self-attention whose weights are ``change(query, key, d_model)``."""

    def self_attention(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
        query, key, value = _projected(x, w_query, w_key, w_value)
        return change(query, key, x.shape[-1]) @ value

    return self_attention


def _by_the_values_width(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    query, key, value = _projected(x, w_query, w_key, w_value)
    return shared.softmax(query @ key.mT / value.shape[-1] ** 0.5) @ value


def _self_attention_in_place(x: Tensor, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> Tensor:
    w_query /= w_query.shape[-1] ** 0.5
    return shared.softmax((x @ w_query) @ (x @ w_key).mT) @ (x @ w_value)


def _sequence(generator: Generator, *leading: int, d_model: int, d_k: int, d_v: int):
    """Tokens of unit variance, and weights that keep it so: no softmax is saturated."""
    return (
        normal(generator, *leading, d_model),
        normal(generator, d_model, d_k) / d_model**0.5,
        normal(generator, d_model, d_k) / d_model**0.5,
        normal(generator, d_model, d_v) / d_model**0.5,
    )


def _far_below(generator: Generator):
    """Every score is near -800: it comes from what all tokens have in common."""
    x, w_query, w_key, w_value = (one.double() for one in _sequence(generator, 2, 5, d_model=6, d_k=4, d_v=3))
    x[..., 0] = 1.0
    for weight, common in ((w_query, 1.0), (w_key, -1600.0)):
        weight[:, 0] = 0.0
        weight[0, 0] = common
    return x, w_query, w_key, w_value


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
        Case("scores far below 0, float64", _far_below),
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
            lambda x, w_query, w_key, w_value: shared.attention(x, x @ w_key, x @ w_value)[0],
            "The tokens themselves are used as queries. Look for w_query: is it used?",
        ),
        Mistake(
            "keys not projected",
            lambda x, w_query, w_key, w_value: shared.attention(x @ w_query, x, x @ w_value)[0],
            "The tokens themselves are used as keys. Look for w_key: is it used?",
        ),
        Mistake(
            "x mixed instead of the values",
            lambda x, w_query, w_key, w_value: shared.attention(x @ w_query, x @ w_key, x)[0],
            "The weights mix the tokens themselves: the value is not projected. Look for w_value: "
            "is it used?",
        ),
        Mistake(
            "keys mixed instead of values",
            lambda x, w_query, w_key, w_value: shared.attention(x @ w_query, x @ w_key, x @ w_key)[0],
            "The weights mix the keys. Look at what you hand over as value.",
        ),
        Mistake(
            "scaled by d_model",
            _self_attention_weights(
                lambda query, key, d_model: shared.softmax(query @ key.mT / d_model**0.5)
            ),
            "The scale is √d_model, the width of a token. A score is a sum over the d_k columns of "
            "query and key: look at whose last axis you measure.",
        ),
        Mistake(
            "scaled by the sequence length",
            _self_attention_weights(
                lambda query, key, d_model: shared.softmax(query @ key.mT / key.shape[-2] ** 0.5)
            ),
            "The scale is √T, the length of the sequence. A score is a sum over d_k products, "
            "however long the sequence is. Look at which axis you measure.",
        ),
        Mistake(
            "scaled by the length of the first axis",
            _self_attention_weights(
                lambda query, key, d_model: shared.softmax(query @ key.mT / len(key) ** 0.5)
            ),
            "The scale is taken from len(x), which counts along the first axis: tokens, or with a batch in "
            "front sentences. A score is a sum over d_k products. Count from the end.",
        ),
        Mistake(
            "scaled by the values' width",
            _by_the_values_width,
            "The scale is √d_v, the width of a value. The values have no part in a score: it is a sum over "
            "the d_k columns of query and key.",
        ),
        Mistake(
            "no scale",
            _self_attention_weights(lambda query, key, d_model: shared.softmax(query @ key.mT)),
            "The softmax sees plain dot products. Divide them by √d_k first.",
        ),
        Mistake(
            "divided by d_k",
            _self_attention_weights(
                lambda query, key, d_model: shared.softmax(query @ key.mT / query.shape[-1])
            ),
            "The scores are divided by d_k in all. Look at the power of d_k, and whether they are "
            "scaled a second time on the way.",
        ),
        Mistake(
            "softmax over the queries",
            _self_attention_weights(
                lambda query, key, d_model: shared.softmax_over(-2)(shared.scaled_scores(query, key))
            ),
            "The columns of the weights sum to 1, not the rows. Each token shares its attention out "
            "among the keys, the last axis. Look at dim.",
        ),
        Mistake(
            "softmax over axis 1",
            _self_attention_weights(
                lambda query, key, d_model: shared.softmax_over(1)(shared.scaled_scores(query, key))
            ),
            "The softmax runs over axis 1, which is the axis of the keys only without a batch in front. "
            "Count from the end.",
        ),
        Mistake(
            "later tokens hidden",
            _self_attention_weights(
                lambda query, key, d_model: shared.softmax(shared.causal(shared.scaled_scores(query, key)))
            ),
            "No token sees those behind it. Nothing is hidden in this exercise: every token gathers from all "
            "tokens of its sequence. Look for a mask.",
        ),
        Mistake(
            "weights transposed",
            _self_attention_weights(
                lambda query, key, d_model: shared.softmax(shared.scaled_scores(query, key)).mT
            ),
            "The weights are transposed before they mix the values. In a square matrix of weights "
            "this runs and goes unnoticed: rows belong to queries.",
        ),
        Mistake(
            "no softmax",
            _self_attention_weights(lambda query, key, d_model: shared.scaled_scores(query, key)),
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
        "Hand the three to your attention, in the order of its parameters, and keep the first of its two "
        "results.",
    ),
)

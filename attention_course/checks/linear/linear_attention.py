"""Exercise 1: another order."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.linear import shared
from attention_course.checks.linear.shared import NAME
from attention_course.linear import elu_plus_one


def _linear(
    of_query: shared.Map = elu_plus_one,
    of_key: shared.Map = elu_plus_one,
    of_value: shared.Map = shared.as_it_is,
    finish: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda q, k, sums: shared.divided(
        sums, (q @ k.sum(-2).unsqueeze(-1)).squeeze(-1)
    ),
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = of_query(query), of_key(key)
        return finish(q, k, q @ (k.mT @ of_value(value)))

    return linear_attention


def _linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k = elu_plus_one(query), elu_plus_one(key)
    sums, normaliser = q @ (k.mT @ value), (q * k.sum(-2, keepdim=True)).sum(-1)
    return shared.divided(sums, normaliser)


def _linear_transposed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k = elu_plus_one(query), elu_plus_one(key)
    return shared.divided(q @ (value.mT @ k), (q * k.sum(-2, keepdim=True)).sum(-1))


def _map_of_scores(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = elu_plus_one(query @ key.mT)
    return weights / weights.sum(-1, keepdim=True) @ value


def _softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def _softmax_of_features(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (elu_plus_one(query) @ elu_plus_one(key).mT).softmax(-1) @ value


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = elu_plus_one(query) @ elu_plus_one(key).mT
    T_q, T_k = scores.shape[-2:]
    scores = scores.tril(T_k - T_q)
    return scores / scores.sum(-1, keepdim=True) @ value


def _causal_from_the_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (elu_plus_one(query) @ elu_plus_one(key).mT).tril()
    return scores / scores.sum(-1, keepdim=True) @ value


def _divided_along_the_queries(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = elu_plus_one(query) @ elu_plus_one(key).mT
    return scores / scores.sum(-2, keepdim=True) @ value


def _features_divided(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k = elu_plus_one(query), elu_plus_one(key)
    return (q / q.sum(-1, keepdim=True)) @ ((k / k.sum(-2, keepdim=True)).mT @ value)


def _far_below(generator: Generator) -> shared.Three:
    query, _, value = shared.tokens(generator, 2, T_q=3, T_k=4, d_k=2, d_v=3)
    return query, shared.far_below(generator, 2, 4, 2), value


LINEAR_ATTENTION = Exercise(
    name=f"{NAME}.linear_attention",
    title="Another order",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_linear_attention,
    returns=("context",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 2), tenths(g, 3, 2), tenths(g, 3, 4))),
        Case("batch and heads", lambda g: shared.tokens(g, 2, 3, T_q=4, T_k=5, d_k=6, d_v=3)),
        Case("as many of everything", lambda g: shared.tokens(g, 2, T_q=4, T_k=4, d_k=4, d_v=4)),
        Case("float64", lambda g: shared.tokens(g, 2, T_q=3, T_k=7, d_k=2, d_v=5, dtype=torch.float64)),
        Case("keys far below 0", _far_below),
        Case("gradient", lambda g: shared.tokens(g, 2, T_q=3, T_k=4, d_k=2, d_v=5), gradient=True),
    ),
    mistakes=(
        Mistake(
            "softmax",
            _softmax,
            "That is softmax attention. Here a score is φ(q)·φ(k) and is divided by the sum of the "
            "scores; nothing is exponentiated after the product.",
        ),
        Mistake(
            "softmax of the features' scores",
            _softmax_of_features,
            "The scores φ(q)·φ(k) go through a softmax. They are positive already: divide them by "
            "their sum. A softmax in between also forbids the other order.",
        ),
        Mistake(
            "not divided",
            _linear(finish=lambda q, k, sums: sums),
            "The values are summed with weights that do not add up to 1. Divide each query's sum by "
            "φ(q)·z, where z is the sum of all φ(k).",
        ),
        Mistake(
            "φ is 0 far below 0",
            _linear(shared.rounded, shared.rounded),
            "All is right but where keys are far below 0: there your φ(k) are 0, and 0 is divided by 0. In "
            "elu(x) + 1 the 1 takes the digits of a small e^x. elu_plus_one, imported above, keeps them.",
        ),
        Mistake(
            "0 where the sums are small",
            _linear(finish=lambda q, k, sums: sums / (q @ k.sum(-2, keepdim=True).mT + shared.SMALL)),
            "All is right but where keys are far below 0: there the context comes out as 0. Weights sum to 1 "
            "however small the scores are. A number that is added to the divisor, or bounds it, is large "
            "beside small ones; φ is never 0, so the divisor needs none.",
        ),
        Mistake(
            "query without features, not divided",
            _linear(of_query=shared.as_it_is, finish=lambda q, k, sums: sums),
            "The query is used as it is, and its sums are not divided. Send it through elu_plus_one, and "
            "divide by φ(q)·z.",
        ),
        Mistake(
            "features divided by their sums",
            _features_divided,
            "φ(q) and φ(k) are divided each by its own sum. The divisor belongs to a query and all keys "
            "together: the sum of φ(q)·φ(k) over the keys.",
        ),
        Mistake(
            "softmax as the feature map",
            lambda query, key, value: query.softmax(-1) @ (key.softmax(-2).mT @ value),
            "Queries and keys go each through a softmax. Here φ is elu_plus_one, and what is divided by is "
            "the sum of the scores φ(q)·φ(k).",
        ),
        Mistake(
            "divided by the number of keys",
            _linear(finish=lambda q, k, sums: sums / k.shape[-2]),
            "You divide by the number of keys. The weights are φ(q)·φ(k), and their sum is "
            "φ(q)·z: another number for each query.",
        ),
        Mistake(
            "one normaliser for all queries",
            _linear(finish=lambda q, k, sums: sums / k.sum((-2, -1), keepdim=True)),
            "Every query is divided by the same number, the sum of all of z. The normaliser is the "
            "dot product φ(q)·z.",
        ),
        Mistake(
            "divided by the sum over the queries",
            _linear(finish=lambda q, k, sums: shared.divided(sums, (q @ k.mT).sum((-2, -1)).unsqueeze(-1))),
            "The normaliser is summed over the queries too. Each query has its own: sum over the keys.",
        ),
        Mistake(
            "divided along the queries",
            _divided_along_the_queries,
            "Each key's weights sum to 1, over the queries. It is each query's weights that sum to 1, over "
            "the keys: the last axis of the scores.",
        ),
        Mistake(
            "no feature map",
            _linear(shared.as_it_is, shared.as_it_is),
            "The plain q·k is used. It can be negative, and the normaliser can be near 0. Send queries "
            "and keys through elu_plus_one.",
        ),
        Mistake(
            "keys without features",
            _linear(of_key=shared.as_it_is),
            "Only the queries go through the feature map. The keys have to as well.",
        ),
        Mistake(
            "queries without features",
            _linear(of_query=shared.as_it_is),
            "Only the keys go through the feature map. The queries have to as well.",
        ),
        Mistake(
            "values through the feature map",
            _linear(of_value=elu_plus_one),
            "The values go through the feature map too. It makes weights positive; values are mixed "
            "as they are.",
        ),
        Mistake(
            "elu without the 1",
            _linear(torch.nn.functional.elu, torch.nn.functional.elu),
            "elu(x) goes down to -1, so a weight can be negative. The feature map is elu(x) + 1.",
        ),
        Mistake(
            "relu",
            _linear(torch.relu, torch.relu),
            "The feature map is relu. A query with no positive entry then shares no feature with any "
            "key. Use elu_plus_one.",
        ),
        Mistake(
            "feature map after the product",
            _map_of_scores,
            "elu_plus_one is applied to the scores q·k. Then nothing can be summed before the query is "
            "known. Apply it to the queries and to the keys.",
        ),
        Mistake(
            "scaled by √d_k",
            _linear(of_query=lambda x: elu_plus_one(x / x.shape[-1] ** 0.5)),
            "The queries are divided by √d_k. That belongs to softmax; here scaling φ(q) changes nothing, "
            "and scaling q inside φ changes the weights.",
        ),
        Mistake(
            "causal",
            _causal,
            "Queries do not see the later keys. This exercise has no mask: every query sees every key.",
        ),
        Mistake(
            "causal from the first key",
            _causal_from_the_first,
            "Query i sees keys 0 to i alone. Running sums belong to the next exercise; in this one every "
            "query sees every key.",
        ),
        Mistake(
            "state transposed",
            _linear_transposed,
            "S is transposed. With as many features as columns of the value nothing raises. S is "
            "[..., m, d_v]: φ(K) transposed, times V.",
        ),
    ),
    hints=(
        "Two sums over the keys do not depend on the query: that of φ(k)ᵀv, a matrix, and that of "
        "φ(k), a vector. Make them first.",
        "φ of query and of key comes first. S is the product of keys and values that sums over the keys, "
        "[..., m, d_v], and z the sum of the keys alone, [..., m].",
        "The sums are the queries' product with S, the normalisers their product with z. With an axis of "
        "length 1 behind z, the normalisers are [..., T_q, 1] and divide row by row.",
    ),
)

"""Chapter 10: linear attention, its state token by token and chunk by chunk, and a strided mask.

Inputs are drawn so that the usual mistakes show. Keys and values differ in width, and agree in a case
of their own where a transposed state would otherwise raise. States given come from tokens that were
drawn before, as in use: a random state could make a normaliser 0.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.drawing import normal, tenths
from attention_course.checks.exercise import Case, Chapter, Exercise, Mistake
from attention_course.linear import elu_plus_one

NAME = "10_linear"

Three = tuple[Tensor, Tensor, Tensor]


# Drawing inputs -------------------------------------------------------------------------------


def _tokens(
    generator: Generator,
    *leading: int,
    T_q: int,
    T_k: int,
    d_k: int,
    d_v: int,
    dtype: torch.dtype = torch.float32,
) -> Three:
    shapes = ((T_q, d_k), (T_k, d_k), (T_k, d_v))
    query, key, value = (normal(generator, *leading, *shape, dtype=dtype) for shape in shapes)
    return query, key, value


def _state(
    generator: Generator, *leading: int, d_k: int, d_v: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """S [..., d_k, d_v] and z [..., d_k] after five tokens."""
    features = elu_plus_one(normal(generator, *leading, 5, d_k, dtype=dtype))
    value = normal(generator, *leading, 5, d_v, dtype=dtype)
    return features.mT @ value, features.sum(-2)


def _divided(sums: Tensor, normaliser: Tensor) -> Tensor:
    return sums / normaliser.unsqueeze(-1)


def _as_it_is(x: Tensor) -> Tensor:
    return x


Map = Callable[[Tensor], Tensor]


# 1. Another order -----------------------------------------------------------------------------


def _linear(
    of_query: Map = elu_plus_one,
    of_key: Map = elu_plus_one,
    of_value: Map = _as_it_is,
    finish: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda q, k, sums: _divided(
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
    return _divided(sums, normaliser)


def _linear_transposed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k = elu_plus_one(query), elu_plus_one(key)
    return _divided(q @ (value.mT @ k), (q * k.sum(-2, keepdim=True)).sum(-1))


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


LINEAR_ATTENTION = Exercise(
    name=f"{NAME}.linear_attention",
    title="Another order",
    points=2,
    difficulty=1,
    minutes=10,
    reference=_linear_attention,
    returns=("context",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 2), tenths(g, 3, 2), tenths(g, 3, 4))),
        Case("batch and heads", lambda g: _tokens(g, 2, 3, T_q=4, T_k=5, d_k=6, d_v=3)),
        Case("as many of everything", lambda g: _tokens(g, 2, T_q=4, T_k=4, d_k=4, d_v=4)),
        Case("float64", lambda g: _tokens(g, 2, T_q=3, T_k=7, d_k=2, d_v=5, dtype=torch.float64)),
        Case("gradient", lambda g: _tokens(g, 2, T_q=3, T_k=4, d_k=2, d_v=5), gradient=True),
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
            _linear(finish=lambda q, k, sums: _divided(sums, (q @ k.mT).sum((-2, -1)).unsqueeze(-1))),
            "The normaliser is summed over the queries too. Each query has its own: sum over the keys.",
        ),
        Mistake(
            "no feature map",
            _linear(_as_it_is, _as_it_is),
            "The plain q·k is used. It can be negative, and the normaliser can be near 0. Send queries "
            "and keys through elu_plus_one.",
        ),
        Mistake(
            "keys without features",
            _linear(of_key=_as_it_is),
            "Only the queries go through the feature map. The keys have to as well.",
        ),
        Mistake(
            "queries without features",
            _linear(of_query=_as_it_is),
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
            "state transposed",
            _linear_transposed,
            "S is transposed. With as many features as columns of the value nothing raises. S is "
            "[..., m, d_v]: φ(K) transposed, times V.",
        ),
    ),
    hints=(
        "Two sums over the keys do not depend on the query: that of φ(k)ᵀv, a matrix, and that of "
        "φ(k), a vector. Make them first.",
        "q, k = elu_plus_one(query), elu_plus_one(key). S = k.mT @ value is [..., m, d_v], and "
        "z = k.sum(-2) is [..., m].",
        "The sums are q @ S and the normalisers q @ z.unsqueeze(-1), which is [..., T_q, 1] and divides "
        "row by row.",
    ),
)


# 2. One token ---------------------------------------------------------------------------------


def _outer(k: Tensor, value: Tensor) -> Tensor:
    return k.unsqueeze(-1) * value.unsqueeze(-2)


def _look_up(q: Tensor, S: Tensor, z: Tensor) -> Tensor:
    return _divided((q.unsqueeze(-2) @ S).squeeze(-2), (q * z).sum(-1))


def _stepped(
    of_query: Map = elu_plus_one,
    of_key: Map = elu_plus_one,
    write: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda k, v, S, z: (
        S + _outer(k, v),
        z + k,
    ),
    read: Callable[[Tensor, Tensor, Tensor], Tensor] = _look_up,
) -> Callable[..., Three]:
    def step(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
        S, z = write(of_key(key), value, S, z)
        return read(of_query(query), S, z), S, z

    return step


def _step(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
    k = elu_plus_one(key)
    S, z = S + _outer(k, value), z + k
    return _look_up(elu_plus_one(query), S, z), S, z


def _read_too_early(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
    _, after_S, after_z = _step(query, key, value, S, z)
    return _look_up(elu_plus_one(query), S, z), after_S, after_z


def _old_state(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
    return _step(query, key, value, S, z)[0], S.clone(), z.clone()


def _step_in_place(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
    k = elu_plus_one(key)
    S += _outer(k, value)
    z += k
    return _look_up(elu_plus_one(query), S, z), S, z


def _step_inputs(
    generator: Generator, *leading: int, d_k: int, d_v: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    vectors = (normal(generator, *leading, width, dtype=dtype) for width in (d_k, d_k, d_v))
    return *vectors, *_state(generator, *leading, d_k=d_k, d_v=d_v, dtype=dtype)


STEP = Exercise(
    name=f"{NAME}.step",
    title="One token at a time",
    points=2,
    difficulty=2,
    minutes=10,
    reference=_step,
    returns=("context", "S_after", "z_after"),
    cases=(
        Case(
            "the first token, one decimal",
            lambda g: (tenths(g, 2), tenths(g, 2), tenths(g, 3), torch.zeros(2, 3), torch.zeros(2)),
        ),
        Case("one token", lambda g: _step_inputs(g, d_k=4, d_v=3)),
        Case("batch and heads", lambda g: _step_inputs(g, 2, 3, d_k=4, d_v=5)),
        Case("keys as wide as values", lambda g: _step_inputs(g, 2, d_k=4, d_v=4)),
        Case("float64", lambda g: _step_inputs(g, 3, 2, d_k=2, d_v=5, dtype=torch.float64)),
        Case("gradient", lambda g: _step_inputs(g, 2, d_k=3, d_v=4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "read before written",
            _read_too_early,
            "The query reads the state before the token's own key and value are in it. In the causal "
            "sum j goes up to i: write first, then read. (With no token before, that is 0 / 0.)",
        ),
        Mistake(
            "state not returned",
            _old_state,
            "The context is right, but you return the state as it came. The next token needs S and z with "
            "this token in them.",
        ),
        Mistake(
            "state replaced",
            _stepped(write=lambda k, v, S, z: (_outer(k, v), k.clone())),
            "The new token takes the place of all earlier ones. S and z are sums: add to them.",
        ),
        Mistake(
            "z forgotten",
            _stepped(write=lambda k, v, S, z: (S + _outer(k, v), z.clone())),
            "S gets the new token and z does not, so the weights no longer add up to 1. Add φ(k) to z.",
        ),
        Mistake(
            "S forgotten",
            _stepped(write=lambda k, v, S, z: (S.clone(), z + k)),
            "z gets the new token and S does not. Add the outer product of φ(k) and v to S.",
        ),
        Mistake(
            "key without features",
            _stepped(of_key=_as_it_is),
            "The key goes into the state as it is. It is φ(k) that is summed.",
        ),
        Mistake(
            "query without features",
            _stepped(of_query=_as_it_is),
            "The state is read with the query as it is. Read it with φ(q).",
        ),
        Mistake(
            "state transposed",
            _stepped(
                write=lambda k, v, S, z: (S + _outer(v, k), z + k),
            ),
            "The outer product is transposed. With keys as wide as values nothing raises. S is [m, d_v]: "
            "features down, columns of the value across.",
        ),
        Mistake(
            "read along the wrong axis",
            _stepped(read=lambda q, S, z: _divided((S @ q.unsqueeze(-1)).squeeze(-1), (q * z).sum(-1))),
            "S is multiplied by φ(q) on the right, which sums over the columns of the value. With keys as "
            "wide as values nothing raises. The features are S's rows: φ(q) stands on the left.",
        ),
        Mistake(
            "not divided",
            _stepped(read=lambda q, S, z: (q.unsqueeze(-2) @ S).squeeze(-2)),
            "The context is φ(q)S and is not divided. The weights add up to φ(q)·z: divide by that.",
        ),
        Mistake(
            "divided by the sum of z",
            _stepped(read=lambda q, S, z: _divided((q.unsqueeze(-2) @ S).squeeze(-2), z.sum(-1))),
            "You divide by the sum of z. The normaliser is the dot product φ(q)·z.",
        ),
        Mistake(
            "averaged state",
            _stepped(write=lambda k, v, S, z: ((S + _outer(k, v)) / 2, (z + k) / 2)),
            "The state is the mean of the old one and the new token, so older tokens fade. It is a sum. "
            "(The context is the same, since both halves cancel: the state gives it away.)",
        ),
        Mistake(
            "state changed in place",
            _step_in_place,
            "The result is right, but it is written into S and z themselves. Whoever wants to go on from "
            "the old state twice, as beam search does, has lost it. Make new tensors.",
        ),
    ),
    hints=(
        "Two sums have one summand more than before. Which?",
        "The outer product of φ(k) [..., m] and v [..., d_v] is k.unsqueeze(-1) * value.unsqueeze(-2).",
        "With the new S and z: (q.unsqueeze(-2) @ S).squeeze(-2) is [..., d_v], and (q * z).sum(-1) is "
        "what to divide it by; give that an axis of length 1.",
    ),
)


# 3. A strided mask ----------------------------------------------------------------------------


def _behind(scores: Tensor) -> Tensor:
    """How far each key stands behind each query; negative: in front."""
    positions = torch.arange(scores.shape[-1])
    return positions[:, None] - positions


def _strided(
    may_look: Callable[[Tensor, Tensor], Tensor],
    softmax: Callable[[Tensor, Tensor], Tensor] = lambda scores, mask: scores.masked_fill(
        ~mask, -torch.inf
    ).softmax(-1),
) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, stride: softmax(scores, may_look(_behind(scores), stride))


def _right_mask(behind: Tensor, stride: Tensor) -> Tensor:
    return (behind >= 0) & (behind % stride == 0)


def _strided_weights(scores: Tensor, stride: Tensor) -> Tensor:
    return scores.masked_fill(~_right_mask(_behind(scores), stride), -torch.inf).softmax(-1)


def _strided_in_place(scores: Tensor, stride: Tensor) -> Tensor:
    return scores.masked_fill_(~_right_mask(_behind(scores), stride), -torch.inf).softmax(-1)


def _grid(behind: Tensor, stride: Tensor) -> Tensor:
    return (behind >= 0) & (torch.arange(len(behind)) % stride == 0).expand_as(behind)


def _blocks(behind: Tensor, stride: Tensor) -> Tensor:
    block = torch.arange(len(behind)) // stride
    return (behind >= 0) & (block[:, None] == block)


def _strided_inputs(
    generator: Generator, *leading: int, T: int, stride: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    return normal(generator, *leading, T, T, dtype=dtype), torch.tensor(stride)


STRIDED_WEIGHTS = Exercise(
    name=f"{NAME}.strided_weights",
    title="Every so many words",
    points=2,
    difficulty=1,
    minutes=10,
    reference=_strided_weights,
    returns=("weights",),
    distributions=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 5, 5), torch.tensor(2))),
        Case("batch and heads", lambda g: _strided_inputs(g, 2, 3, T=8, stride=3)),
        Case("stride of 1", lambda g: _strided_inputs(g, 4, T=4, stride=1)),
        Case("stride longer than the text", lambda g: _strided_inputs(g, 2, T=4, stride=6)),
        Case("float64", lambda g: _strided_inputs(g, 2, T=9, stride=4, dtype=torch.float64)),
        Case("gradient", lambda g: _strided_inputs(g, 2, T=6, stride=2), gradient=True),
    ),
    mistakes=(
        Mistake(
            "future seen",
            _strided(lambda behind, stride: behind % stride == 0),
            "Keys in front of the query are seen as well. The pattern is causal: only keys up to the "
            "query, every stride-th of them.",
        ),
        Mistake(
            "keys on a fixed grid",
            _strided(lambda behind, stride: _grid(behind, stride) | (behind == 0)),
            "Every query sees the keys 0, stride, 2·stride, ... and itself. The steps are counted from "
            "the query: look at i - j, not at j.",
        ),
        Mistake(
            "window",
            _strided(lambda behind, stride: (behind >= 0) & (behind < stride)),
            "Each query sees the last few keys, one after the other. That is a window. The stride is the "
            "step from one visible key to the next.",
        ),
        Mistake(
            "window as well",
            _strided(lambda behind, stride: (behind >= 0) & ((behind < stride) | (behind % stride == 0))),
            "The keys near the query are visible too. That is the merged head, which sees both halves of "
            "the pattern; here only the strided half is asked for.",
        ),
        Mistake(
            "blocks",
            _strided(_blocks),
            "Each query sees the keys of its own block. That is half of the fixed pattern. Look at the "
            "remainder of i - j, not at the quotients.",
        ),
        Mistake(
            "step too long by one",
            _strided(lambda behind, stride: (behind >= 0) & (behind % (stride + 1) == 0)),
            "The step is stride + 1: that many keys lie between two visible ones. With a stride of 1 "
            "every earlier key is visible.",
        ),
        Mistake(
            "query itself hidden",
            _strided(lambda behind, stride: (behind > 0) & (behind % stride == 0)),
            "A query does not see itself, and the first ones see nothing, hence the NaN. Zero strides "
            "back is a whole number of strides.",
        ),
        Mistake(
            "upper triangle",
            _strided(lambda behind, stride: (behind <= 0) & (behind % stride == 0)),
            "Each query sees itself and keys after it. Queries go down and keys across, so the past lies "
            "below the diagonal.",
        ),
        Mistake(
            "inverted mask",
            _strided(lambda behind, stride: ~_right_mask(behind, stride)),
            "What should be visible is hidden and the other way round: masked_fill fills where its mask "
            "is True.",
        ),
        Mistake(
            "no stride",
            _strided(lambda behind, stride: behind >= 0),
            "That is the causal mask alone. Keep of each row only every stride-th key, counted back "
            "from the query.",
        ),
        Mistake(
            "mask after softmax",
            _strided(_right_mask, lambda scores, mask: scores.softmax(-1).masked_fill(~mask, 0.0)),
            "Hidden keys get no weight, but the rows no longer sum to 1. Look at what comes first, mask "
            "or softmax.",
        ),
        Mistake(
            "zero as a score",
            _strided(_right_mask, lambda scores, mask: scores.masked_fill(~mask, 0.0).softmax(-1)),
            "Hidden keys have the score 0, which is a score like any other: exp(0) = 1.",
        ),
        Mistake(
            "softmax over the queries",
            _strided(_right_mask, lambda scores, mask: scores.masked_fill(~mask, -torch.inf).softmax(-2)),
            "The columns sum to 1 and the rows do not. Softmax runs over the keys, the last axis.",
        ),
        Mistake(
            "scores changed in place",
            _strided_in_place,
            "The result is right, but -inf is written into scores itself. Make a new tensor.",
        ),
    ),
    hints=(
        "Write down the keys that query 7 sees with a stride of 3: 7, 4, 1. What have 7 - j in common?",
        "i = torch.arange(T)[:, None] and j = torch.arange(T) broadcast to [T, T]; (i - j) % stride == 0.",
        "And j <= i. Then scores.masked_fill(~mask, -torch.inf).softmax(-1).",
    ),
)


# 4. One chunk ---------------------------------------------------------------------------------


def _chunk(
    of_query: Map = elu_plus_one,
    of_key: Map = elu_plus_one,
    within: Callable[[Tensor], Tensor] = torch.tril,
    read: Callable[..., Tensor] = lambda q, scores, v, S, z: _divided(
        q @ S + scores @ v, (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    ),
    write: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda k, v, S, z: (
        S + k.mT @ v,
        z + k.sum(-2),
    ),
) -> Callable[..., Three]:
    def chunk(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
        q, k = of_query(query), of_key(key)
        return read(q, within(q @ k.mT), value, S, z), *write(k, value, S, z)

    return chunk


def _chunk_step(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
    q, k = elu_plus_one(query), elu_plus_one(key)
    scores = (q @ k.mT).tril()
    normaliser = (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    return _divided(q @ S + scores @ value, normaliser), S + k.mT @ value, z + k.sum(-2)


def _from_state(q: Tensor, S: Tensor, z: Tensor) -> Tensor:
    return _divided(q @ S, (q @ z.unsqueeze(-1)).squeeze(-1))


def _written_first(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
    q, k = elu_plus_one(query), elu_plus_one(key)
    scores = (q @ k.mT).tril()
    S, z = S + k.mT @ value, z + k.sum(-2)
    normaliser = (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    return _divided(q @ S + scores @ value, normaliser), S, z


def _chunk_in_place(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> Three:
    context, after_S, after_z = _chunk_step(query, key, value, S, z)
    return context, S.copy_(after_S), z.copy_(after_z)


def _chunk_inputs(
    generator: Generator, *leading: int, T: int, d_k: int, d_v: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    tokens = _tokens(generator, *leading, T_q=T, T_k=T, d_k=d_k, d_v=d_v, dtype=dtype)
    return *tokens, *_state(generator, *leading, d_k=d_k, d_v=d_v, dtype=dtype)


def _first_chunk(generator: Generator, T: int, d_k: int, d_v: int) -> tuple[Tensor, ...]:
    tokens = tenths(generator, T, d_k), tenths(generator, T, d_k), tenths(generator, T, d_v)
    return *tokens, torch.zeros(d_k, d_v), torch.zeros(d_k)


CHUNK_STEP = Exercise(
    name=f"{NAME}.chunk_step",
    title="Many tokens at a time",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_chunk_step,
    returns=("context", "S_after", "z_after"),
    cases=(
        Case("the first chunk, one decimal", lambda g: _first_chunk(g, 3, 2, 4)),
        Case("a later chunk", lambda g: _chunk_inputs(g, T=4, d_k=3, d_v=2)),
        Case("batch and heads", lambda g: _chunk_inputs(g, 2, 3, T=5, d_k=4, d_v=6)),
        Case("as many of everything", lambda g: _chunk_inputs(g, 2, T=4, d_k=4, d_v=4)),
        Case("float64", lambda g: _chunk_inputs(g, 2, T=6, d_k=2, d_v=3, dtype=torch.float64)),
        Case("gradient", lambda g: _chunk_inputs(g, 2, T=3, d_k=2, d_v=4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "future of the chunk seen",
            _chunk(within=_as_it_is),
            "Within the chunk every query sees every key, also later ones. Keep the lower triangle of the "
            "scores. (Or you write the chunk into the state first and let the queries read only that, which "
            "comes to the same: the state serves for what lies before the chunk.)",
        ),
        Mistake(
            "own token missing",
            _chunk(within=lambda scores: scores.tril(-1)),
            "A query does not see its own key and value. Keep the diagonal of the scores.",
        ),
        Mistake(
            "upper triangle",
            _chunk(within=torch.triu),
            "Each query sees itself and the later tokens of the chunk. The past lies below the diagonal.",
        ),
        Mistake(
            "chunk counted twice",
            _written_first,
            "The chunk is written into the state before the queries read it, and then added by its "
            "scores once more. Read the state as it came; write afterwards.",
        ),
        Mistake(
            "past forgotten",
            _chunk(read=lambda q, scores, v, S, z: scores @ v / scores.sum(-1, keepdim=True)),
            "The queries see their own chunk only. What came before is in S and z: add q @ S to the sums "
            "and q @ z to the normalisers.",
        ),
        Mistake(
            "chunk forgotten",
            _chunk(read=lambda q, scores, v, S, z: _from_state(q, S, z)),
            "The queries see what came before the chunk and nothing of the chunk itself. (In the first "
            "chunk that is 0 / 0.)",
        ),
        Mistake(
            "two contexts added",
            _chunk(
                read=lambda q, scores, v, S, z: (
                    _from_state(q, S, z).nan_to_num() + scores @ v / scores.sum(-1, keepdim=True)
                )
            ),
            "Past and chunk are divided each by its own sum and then added: the weights add up to 2. Add the "
            "two sums, add the two normalisers, and divide once.",
        ),
        Mistake(
            "normaliser without the past",
            _chunk(read=lambda q, scores, v, S, z: (q @ S + scores @ v) / scores.sum(-1, keepdim=True)),
            "The normaliser is the sum of the chunk's scores alone. The past has a share in it: q @ z.",
        ),
        Mistake(
            "normaliser without the chunk",
            _chunk(
                read=lambda q, scores, v, S, z: _divided(
                    q @ S + scores @ v, (q @ z.unsqueeze(-1)).squeeze(-1)
                )
            ),
            "The normaliser is q @ z alone. The chunk's own scores have a share in it: their sum over "
            "the keys. (In the first chunk that is a division by 0.)",
        ),
        Mistake(
            "not divided",
            _chunk(read=lambda q, scores, v, S, z: q @ S + scores @ v),
            "The sums are right and not divided. The weights add up to q @ z plus the sum of the chunk's "
            "scores.",
        ),
        Mistake(
            "minus infinity",
            _chunk(within=lambda scores: scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)),
            "The future's scores are -inf. That is right in front of a softmax, whose exponential makes 0 "
            "of it. Here there is none: a hidden score is 0.",
        ),
        Mistake(
            "softmax within the chunk",
            _chunk(
                within=lambda scores: scores.masked_fill(
                    torch.ones_like(scores).triu(1) > 0, -torch.inf
                ).softmax(-1)
            ),
            "The chunk's scores go through a softmax, the state's do not: the two cannot be added. Use the "
            "scores as they are, 0 above the diagonal.",
        ),
        Mistake(
            "z not written",
            _chunk(write=lambda k, v, S, z: (S + k.mT @ v, z.clone())),
            "The context is right, but z goes on without this chunk. Add the sum of its φ(k).",
        ),
        Mistake(
            "state of the chunk alone",
            _chunk(write=lambda k, v, S, z: (k.mT @ v, k.sum(-2))),
            "The context is right, but the state you return holds this chunk alone. Add it to S and z.",
        ),
        Mistake(
            "state not returned",
            _chunk(write=lambda k, v, S, z: (S.clone(), z.clone())),
            "The context is right, but you return the state as it came. The next chunk needs this one in it.",
        ),
        Mistake(
            "keys without features",
            _chunk(of_key=_as_it_is),
            "The keys are used as they are. Send queries and keys through elu_plus_one.",
        ),
        Mistake(
            "queries without features",
            _chunk(of_query=_as_it_is),
            "The queries are used as they are. Send queries and keys through elu_plus_one.",
        ),
        Mistake(
            "state transposed",
            _chunk(write=lambda k, v, S, z: (S + v.mT @ k, z + k.sum(-2))),
            "What you add to S is transposed. With keys as wide as values nothing raises. S is [m, d_v].",
        ),
        Mistake(
            "state changed in place",
            _chunk_in_place,
            "The result is right, but it is written into S and z themselves. Make new tensors.",
        ),
    ),
    hints=(
        "Each query's sum has two parts: tokens before the chunk, which only the state knows, and tokens "
        "of the chunk up to the query itself, which are few enough for a matrix.",
        "scores = (q @ k.mT).tril() is [..., C, C]. The sums are q @ S + scores @ value, both [..., C, d_v].",
        "The normalisers are (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1), both [..., C]. The new "
        "state is S + k.mT @ value and z + k.sum(-2).",
    ),
)


CHAPTER = Chapter(
    name=NAME,
    title="10. Cheaper attention",
    exercises=(LINEAR_ATTENTION, STEP, STRIDED_WEIGHTS, CHUNK_STEP),
)

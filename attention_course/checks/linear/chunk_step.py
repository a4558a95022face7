"""Exercise 4: one chunk."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.linear import shared
from attention_course.checks.linear.shared import NAME
from attention_course.linear import elu_plus_one


def _chunk(
    of_query: shared.Map = elu_plus_one,
    of_key: shared.Map = elu_plus_one,
    within: Callable[[Tensor], Tensor] = torch.tril,
    read: Callable[..., Tensor] = lambda q, scores, v, S, z: shared.divided(
        q @ S + scores @ v, (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    ),
    write: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda k, v, S, z: (
        S + k.mT @ v,
        z + k.sum(-2),
    ),
) -> Callable[..., shared.Three]:
    def chunk(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
        q, k = of_query(query), of_key(key)
        return read(q, within(q @ k.mT), value, S, z), *write(k, value, S, z)

    return chunk


def _chunk_step(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    q, k = elu_plus_one(query), elu_plus_one(key)
    scores = (q @ k.mT).tril()
    normaliser = (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    return shared.divided(q @ S + scores @ value, normaliser), S + k.mT @ value, z + k.sum(-2)


def _both_divided(q: Tensor, scores: Tensor, v: Tensor, S: Tensor, z: Tensor) -> Tensor:
    return _from_state(q, S, z).nan_to_num() + scores @ v / scores.sum(-1, keepdim=True)


def _from_state(q: Tensor, S: Tensor, z: Tensor) -> Tensor:
    return shared.divided(q @ S, (q @ z.unsqueeze(-1)).squeeze(-1))


def _written_first(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    q, k = elu_plus_one(query), elu_plus_one(key)
    scores = (q @ k.mT).tril()
    S, z = S + k.mT @ value, z + k.sum(-2)
    normaliser = (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    return shared.divided(q @ S + scores @ value, normaliser), S, z


def _divided_by_the_whole_chunk(
    query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor
) -> shared.Three:
    q, k = elu_plus_one(query), elu_plus_one(key)
    after_S, after_z = S + k.mT @ value, z + k.sum(-2)
    normaliser = (q @ after_z.unsqueeze(-1)).squeeze(-1)
    return shared.divided(q @ S + (q @ k.mT).tril() @ value, normaliser), after_S, after_z


def _plain_within(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    q, k = elu_plus_one(query), elu_plus_one(key)
    scores = (query @ key.mT).tril()
    normaliser = (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1)
    return shared.divided(q @ S + scores @ value, normaliser), S + k.mT @ value, z + k.sum(-2)


def _plain_written(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    context, _, _ = _chunk_step(query, key, value, S, z)
    return context, S + key.mT @ value, z + key.sum(-2)


def _chunk_in_place(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    context, after_S, after_z = _chunk_step(query, key, value, S, z)
    return context, S.copy_(after_S), z.copy_(after_z)


def _chunk_inputs(
    generator: Generator, *leading: int, T: int, d_k: int, d_v: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    tokens = shared.tokens(generator, *leading, T_q=T, T_k=T, d_k=d_k, d_v=d_v, dtype=dtype)
    return *tokens, *shared.state(generator, *leading, d_k=d_k, d_v=d_v, dtype=dtype)


def _first_chunk(generator: Generator, T: int, d_k: int, d_v: int) -> tuple[Tensor, ...]:
    tokens = tenths(generator, T, d_k), tenths(generator, T, d_k), tenths(generator, T, d_v)
    return *tokens, torch.zeros(d_k, d_v), torch.zeros(d_k)


def _far_below(generator: Generator) -> tuple[Tensor, ...]:
    """The first chunk, for its state would hide how small the φ(k) are."""
    query, _, value = shared.tokens(generator, 2, T_q=4, T_k=4, d_k=2, d_v=3)
    return query, shared.far_below(generator, 2, 4, 2), value, torch.zeros(2, 2, 3), torch.zeros(2, 2)


CHUNK_STEP = Exercise(
    name=f"{NAME}.chunk_step",
    title="Many tokens at a time",
    points=3,
    difficulty=3,
    minutes=20,
    reference=_chunk_step,
    returns=("context", "S_after", "z_after"),
    unseen=("key",),
    cases=(
        Case("the first chunk, one decimal", lambda g: _first_chunk(g, 3, 2, 4)),
        Case("a later chunk", lambda g: _chunk_inputs(g, T=4, d_k=3, d_v=2)),
        Case("batch and heads", lambda g: _chunk_inputs(g, 2, 3, T=5, d_k=4, d_v=6)),
        Case("as many of everything", lambda g: _chunk_inputs(g, 2, T=4, d_k=4, d_v=4)),
        Case("float64", lambda g: _chunk_inputs(g, 2, T=6, d_k=2, d_v=3, dtype=torch.float64)),
        Case("the first chunk, its keys far below 0", _far_below),
        Case("gradient", lambda g: _chunk_inputs(g, 2, T=3, d_k=2, d_v=4), gradient=True),
    ),
    mistakes=(
        Mistake(
            "future of the chunk seen",
            _chunk(within=shared.as_it_is),
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
            _chunk(read=_both_divided),
            "Past and chunk are divided each by its own sum and then added: the weights add up to 2. Add the "
            "two sums, add the two normalisers, and divide once.",
        ),
        Mistake(
            "mean of two contexts",
            _chunk(read=lambda q, scores, v, S, z: _both_divided(q, scores, v, S, z) / 2),
            "Past and chunk are divided each by its own sum, and then averaged: each gets half the weight, "
            "however many tokens it has. Add the two sums, add the two normalisers, and divide once.",
        ),
        Mistake(
            "normaliser sees the future",
            _divided_by_the_whole_chunk,
            "The sums are right; the divisor counts later tokens of the chunk as well. Is z read with the "
            "whole chunk in it, or are scores added up before the triangle is cut?",
        ),
        Mistake(
            "φ is 0 far below 0",
            _chunk(shared.rounded, shared.rounded),
            "All is right but where keys are far below 0: there your φ(k) are 0, and 0 is divided by 0. In "
            "elu(x) + 1 the 1 takes the digits of a small e^x. elu_plus_one, imported above, keeps them.",
        ),
        Mistake(
            "0 where the sums are small",
            _chunk(
                read=lambda q, scores, v, S, z: shared.divided(
                    q @ S + scores @ v, (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1) + shared.SMALL
                )
            ),
            "All is right but where the first keys are far below 0: there the context comes out as 0. "
            "Weights sum to 1 however small the scores are. A number that is added to the divisor, or bounds "
            "it, is large beside small ones; φ is never 0, so the divisor needs none.",
        ),
        Mistake(
            "normaliser without the past",
            _chunk(read=lambda q, scores, v, S, z: (q @ S + scores @ v) / scores.sum(-1, keepdim=True)),
            "The normaliser is the sum of the chunk's scores alone. The past has a share in it: q @ z.",
        ),
        Mistake(
            "normaliser without the chunk",
            _chunk(
                read=lambda q, scores, v, S, z: shared.divided(
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
            "the state's context and a softmax",
            _chunk(
                within=lambda scores: scores.masked_fill(
                    torch.ones_like(scores).triu(1) > 0, -torch.inf
                ).softmax(-1),
                read=lambda q, scores, v, S, z: _from_state(q, S, z).nan_to_num() + scores @ v,
            ),
            "A softmax over the chunk's scores is added to what the state gives. Both have weights that sum "
            "to 1 already, so that yours sum to 2. Scores stay as they are here; divide once, at the end.",
        ),
        Mistake(
            "plain scores within the chunk",
            _plain_within,
            "The chunk's scores are products of the queries and keys as they are, the state's of their "
            "features. One sum needs one kind of score: φ(q)·φ(k).",
        ),
        Mistake(
            "the chunk's scores scaled",
            _chunk(
                read=lambda q, scores, v, S, z: shared.divided(
                    q @ S + scores @ v / q.shape[-1] ** 0.5,
                    (q @ z.unsqueeze(-1)).squeeze(-1) + scores.sum(-1) / q.shape[-1] ** 0.5,
                )
            ),
            "The chunk's scores are divided by √d_k, those in the state are not. That belongs to softmax; "
            "here a token must not weigh less for being in the chunk.",
        ),
        Mistake(
            "keys written without features",
            _plain_written,
            "The context is right, but the state gets the chunk's keys as they are. It is φ(k) that is "
            "summed.",
        ),
        Mistake(
            "z not written",
            _chunk(write=lambda k, v, S, z: (S + k.mT @ v, z.clone())),
            "The context is right, but z goes on without this chunk. Add the sum of its φ(k).",
        ),
        Mistake(
            "last key alone in z",
            _chunk(write=lambda k, v, S, z: (S + k.mT @ v, z + k[..., -1, :])),
            "The context and S are right, but z gets the φ(k) of the chunk's last token alone. Add up all of "
            "them.",
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
            _chunk(of_key=shared.as_it_is),
            "The keys are used as they are. Send queries and keys through elu_plus_one.",
        ),
        Mistake(
            "queries without features",
            _chunk(of_query=shared.as_it_is),
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
        "The chunk's own scores are [..., C, C], not exponentiated, and 0 above the diagonal. With the "
        "state's share and with the chunk's, the sums are [..., C, d_v] each.",
        "The normalisers are [..., C]: the queries' products with z, plus the sum of each row of scores. "
        "The state grows by what all keys of the chunk add, whoever may see them.",
    ),
)

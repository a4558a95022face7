"""Exercise 2: one token."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.linear import shared
from attention_course.checks.linear.shared import NAME
from attention_course.linear import elu_plus_one


def _outer(k: Tensor, value: Tensor) -> Tensor:
    return k.unsqueeze(-1) * value.unsqueeze(-2)


def _look_up(q: Tensor, S: Tensor, z: Tensor) -> Tensor:
    return shared.divided((q.unsqueeze(-2) @ S).squeeze(-2), (q * z).sum(-1))


def _stepped(
    of_query: shared.Map = elu_plus_one,
    of_key: shared.Map = elu_plus_one,
    write: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda k, v, S, z: (
        S + _outer(k, v),
        z + k,
    ),
    read: Callable[[Tensor, Tensor, Tensor], Tensor] = _look_up,
) -> Callable[..., shared.Three]:
    def step(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
        S, z = write(of_key(key), value, S, z)
        return read(of_query(query), S, z), S, z

    return step


def _step(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    k = elu_plus_one(key)
    S, z = S + _outer(k, value), z + k
    return _look_up(elu_plus_one(query), S, z), S, z


def _read_too_early(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    _, after_S, after_z = _step(query, key, value, S, z)
    return _look_up(elu_plus_one(query), S, z), after_S, after_z


def _old_state(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    return _step(query, key, value, S, z)[0], S.clone(), z.clone()


def _old_state_read(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    context, after_S, after_z = _read_too_early(query, key, value, S, z)
    return context.nan_to_num(), after_S, after_z


def _read_from(new_S: bool, new_z: bool) -> Callable[..., shared.Three]:
    """Whether the query reads S and z as they become."""

    def step(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
        _, after_S, after_z = _step(query, key, value, S, z)
        read_S, read_z = after_S if new_S else S, after_z if new_z else z
        return _look_up(elu_plus_one(query), read_S, read_z), after_S, after_z

    return step


def _key_as_it_is(in_S: bool = False, in_z: bool = False) -> Callable[..., shared.Three]:
    def step(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
        k = elu_plus_one(key)
        S, z = S + _outer(key if in_S else k, value), z + (key if in_z else k)
        return _look_up(elu_plus_one(query), S, z), S, z

    return step


def _step_in_place(query: Tensor, key: Tensor, value: Tensor, S: Tensor, z: Tensor) -> shared.Three:
    k = elu_plus_one(key)
    S += _outer(k, value)
    z += k
    return _look_up(elu_plus_one(query), S, z), S, z


def _step_inputs(
    generator: Generator, *leading: int, d_k: int, d_v: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    vectors = (normal(generator, *leading, width, dtype=dtype) for width in (d_k, d_k, d_v))
    return *vectors, *shared.state(generator, *leading, d_k=d_k, d_v=d_v, dtype=dtype)


def _far_below(generator: Generator) -> tuple[Tensor, ...]:
    """The first token, for its state would hide how small its φ(k) is."""
    query, value = normal(generator, 2, 2), normal(generator, 2, 3)
    return query, shared.far_below(generator, 2, 2), value, torch.zeros(2, 2, 3), torch.zeros(2, 2)


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
        Case("the first token, its key far below 0", _far_below),
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
            "read before written, NaN replaced",
            _old_state_read,
            "The query reads the state before the token's own key and value are in it, and the NaN of the "
            "first token is made 0. It is no accident: its context is its own value. Write first, then read.",
        ),
        Mistake(
            "z read before it is written",
            _read_from(new_S=True, new_z=False),
            "The sum holds the new token and the divisor does not: you divide by φ(q)·z with the old z. The "
            "weights then do not sum to 1.",
        ),
        Mistake(
            "S read before it is written",
            _read_from(new_S=False, new_z=True),
            "The divisor holds the new token and the sum does not: φ(q) is multiplied by the old S. The "
            "token does not see its own value.",
        ),
        Mistake(
            "φ is 0 far below 0",
            _stepped(shared.rounded, shared.rounded),
            "All is right but where a key is far below 0: there your φ(k) is 0, and 0 is divided by 0. In "
            "elu(x) + 1 the 1 takes the digits of a small e^x. elu_plus_one, imported above, keeps them.",
        ),
        Mistake(
            "0 where the sums are small",
            _stepped(
                read=lambda q, S, z: shared.divided(
                    (q.unsqueeze(-2) @ S).squeeze(-2), (q * z).sum(-1) + shared.SMALL
                )
            ),
            "All is right but where the first key is far below 0: there the context comes out as 0. Weights "
            "sum to 1 however small the scores are. A number that is added to the divisor, or bounds it, is "
            "large beside small ones; φ is never 0, so the divisor needs none.",
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
            _stepped(of_key=shared.as_it_is),
            "The key goes into the state as it is. It is φ(k) that is summed.",
        ),
        Mistake(
            "S without features",
            _key_as_it_is(in_S=True),
            "The key goes into S as it is, and into z as φ(k). S is the sum of φ(k)ᵀv.",
        ),
        Mistake(
            "z without features",
            _key_as_it_is(in_z=True),
            "The key goes into z as it is, and into S as φ(k). z is the sum of φ(k): it has no negative "
            "entry.",
        ),
        Mistake(
            "no feature map",
            _stepped(shared.as_it_is, shared.as_it_is),
            "Query and key are used as they are. Send both through elu_plus_one.",
        ),
        Mistake(
            "query without features",
            _stepped(of_query=shared.as_it_is),
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
            _stepped(read=lambda q, S, z: shared.divided((S @ q.unsqueeze(-1)).squeeze(-1), (q * z).sum(-1))),
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
            _stepped(read=lambda q, S, z: shared.divided((q.unsqueeze(-2) @ S).squeeze(-2), z.sum(-1))),
            "You divide by the sum of z. The normaliser is the dot product φ(q)·z.",
        ),
        Mistake(
            "one divisor for all tokens",
            _stepped(read=lambda q, S, z: (q.unsqueeze(-2) @ S).squeeze(-2) / (q * z).sum()),
            "A single token is right. With leading axes all of them are divided by one number, summed over "
            "all tokens. Each has its own: sum over the last axis alone.",
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
        "The outer product of φ(k) [..., m] and v [..., d_v] is a column [..., m, 1] times a row [..., "
        "1, d_v].",
        "With the new S and z: q as a row, [..., 1, m], times S is [..., 1, d_v], with an axis to take "
        "away. What divides it is the sum of q times z over the last axis, kept with length 1.",
    ),
)

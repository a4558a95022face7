"""Chapter 11, query by query."""

import math

import numpy as np

import oracles
from oracles import each, pairwise


def _seen(query, key, value, seen):
    """Out and lse of every query over the keys it sees, 0 and -inf where there are none."""
    scores = pairwise(oracles.scaled_dot, query, key)
    out, _ = oracles.attend(scores, value, seen)
    lse = [
        oracles.log_sum(row[sees]) if sees.any() else -np.inf for row, sees in zip(scores, seen, strict=True)
    ]
    return out, np.array(lse)


@each(2, 2, 2)
def block(query, key, value):
    return _seen(query, key, value, np.ones((len(query), len(key)), dtype=bool))


@each(2, 1, 2, 1)
def merge(out_a, lse_a, out_b, lse_b):
    out, lse = np.zeros_like(out_a), np.full(len(out_a), -np.inf)
    for i in range(len(out)):
        largest = max(lse_a[i], lse_b[i])
        if largest > -np.inf:
            a, b = math.exp(lse_a[i] - largest), math.exp(lse_b[i] - largest)
            out[i] = (a * out_a[i] + b * out_b[i]) / (a + b)
            lse[i] = largest + math.log(a + b)
    return out, lse


@each(2, 2, 2, None, None, 2, 1)
def ring_step(query, key, value, query_at, key_at, out, lse):
    seen = np.array([[there <= here for there in key_at] for here in query_at])
    return merge(out, lse, *_seen(query, key, value, seen))


def deal(x, world):
    """[..., T, d] -> [world, ..., T / world, d]: token by token, whose chunk is it in?"""
    P, T = int(world), x.shape[-2]
    size = T // (2 * P)
    shards = [[] for _ in range(P)]
    for r in range(P):
        for chunk in (r, 2 * P - 1 - r):
            shards[r] += [x[..., t, :] for t in range(T) if t // size == chunk]
    return np.array([np.stack(shard, axis=-2) for shard in shards])

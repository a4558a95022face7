"""Chapter 8: what has to come out, from all keys at once or key by key."""

import math

import numpy as np

import oracles
from oracles import each, pairwise


@each(1, 1, 2, 2, 2)
def step(m, l, o, scores, value):
    """Every key is a block of its own."""
    largest, total, out = m.copy(), l.copy(), o.copy()
    for i in range(len(scores)):
        largest[i] = max(m[i], *scores[i])
        total[i] = l[i] * math.exp(m[i] - largest[i])
        out[i] = o[i] * math.exp(m[i] - largest[i])
        for j in range(len(value)):
            power = math.exp(scores[i, j] - largest[i])
            total[i] += power
            out[i] += power * value[j]
    return largest, total, out


@each(2, 1, 2, 1)
def merge(context_a, lse_a, context_b, lse_b):
    """Each half stands for a single key: its lse the score, its context the value."""
    contexts, lses = [], []
    for a, score_a, b, score_b in zip(context_a, lse_a, context_b, lse_b, strict=True):
        share = oracles.softmax(np.array([score_a, score_b]))
        contexts.append(share[0] * a + share[1] * b)
        lses.append(oracles.log_sum([score_a, score_b]))
    return np.array(contexts), np.array(lses)


@each(2, 2, 2, None)
def attend_block(query, key, value, start):
    scores = pairwise(oracles.scaled_dot, query, key)
    seen = np.array([[j <= int(start) + i for j in range(len(key))] for i in range(len(query))])
    context, _ = oracles.attend(scores, value, seen)
    return context, np.array([oracles.log_sum(row[sees]) for row, sees in zip(scores, seen, strict=True)])


@each(2, 2, 2, 2, 1, 2)
def backward(query, key, value, context, lse, d_context):
    scale = 1 / math.sqrt(query.shape[1])
    d_scores, d_query = np.zeros((len(query), len(key))), np.zeros_like(query)
    for i in range(len(query)):
        mean = oracles.dot(d_context[i], context[i])
        for j in range(len(key)):
            weight = math.exp(oracles.dot(query[i], key[j]) * scale - lse[i])
            d_scores[i, j] = weight * (oracles.dot(d_context[i], value[j]) - mean)
            d_query[i] += d_scores[i, j] * key[j] * scale
    return d_scores, d_query

"""Chapter 2, pair by pair."""

import math

import numpy as np

import oracles
from oracles import each, pairwise, softmax

REACH = 3


@each(2, 2, None)
def general(query, key, weight):
    return pairwise(oracles.general(weight), query, key)


@each(2, 2, None, None, None)
def additive(query, key, query_weight, key_weight, v):
    return pairwise(oracles.additive(query_weight, key_weight, v), query, key)


@each(2, 2, None, None)
def concat(query, key, weight, v):
    def score(q, k):
        both = np.concatenate((q, k))
        hidden = [math.tanh(oracles.dot(both, column)) for column in weight.T]
        return oracles.dot(hidden, v)

    return pairwise(score, query, key)


@each(2, 2)
def cosine(query, key):
    return pairwise(lambda q, k: oracles.cosine(q, k) if q.any() and k.any() else 0.0, query, key)


@each(2, 2, 0, None)
def attentional(decoder, encoder, length, weight):
    seen = np.array([[j < length for j in range(len(encoder))] for _ in decoder])
    context, weights = oracles.attend(pairwise(oracles.dot, decoder, encoder), encoder, seen)
    rows = [np.concatenate((c, h)) for c, h in zip(context, decoder, strict=True)]
    return np.array([[math.tanh(oracles.dot(row, column)) for column in weight.T] for row in rows]), weights


@each(2, 1, 0)
def local_p(scores, place, length):
    weights = np.zeros_like(scores)
    for i, row in enumerate(scores):
        centre = float(length) / (1 + math.exp(-place[i]))
        seen = [j for j in range(int(length)) if centre - REACH <= j <= centre + REACH]
        for j, weight in zip(seen, softmax(row[seen]), strict=True):
            weights[i, j] = weight * math.exp(-((j - centre) ** 2) / (2 * (REACH / 2) ** 2))
    return weights

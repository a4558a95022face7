"""Chapter 9, row by row, token by token."""

import numpy as np

import oracles
from oracles import each, pairwise


@each(2, 2, None)
def append(store, new, length):
    rows = list(store)
    for t, row in enumerate(new):
        rows[int(length) + t] = row
    return np.array(rows)


@each(2, 2, 2, 2, 2)
def attend_cached(query, key, value, past_key, past_value):
    past = len(past_key)
    keys, values = np.array([*past_key, *key]), np.array([*past_value, *value])
    seen = np.array([[j <= past + i for j in range(len(keys))] for i in range(len(query))])
    return oracles.attend(pairwise(oracles.scaled_dot, query, keys), values, seen)


@each(1, None)
def nucleus(logits, p):
    probabilities = oracles.softmax(logits)
    taken, total = [], 0.0
    for token in sorted(range(len(logits)), key=lambda token: -probabilities[token]):
        if total >= p:
            break
        taken.append(token)
        total += probabilities[token]
    result = np.zeros(len(logits))
    result[taken] = probabilities[taken] / total
    return result


@each(0, 0, None)
def ring(last, query, window):
    """Write all tokens, one after the other."""
    w, held = int(window), np.full(int(window), -1)
    for token in range(max(0, int(last) + 1 - 3 * w), int(last) + 1):  # older ones are long overwritten
        held[token % w] = token
    visible = [token >= 0 and query - w < token <= query for token in held]
    return held, np.array(visible)

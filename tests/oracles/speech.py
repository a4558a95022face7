"""Chapter 15, frame by frame and symbol by symbol."""

import math
from functools import cache

import numpy as np

import oracles
from oracles import each


def pyramid(x, lengths):
    B, T, d = x.shape
    joined = np.zeros((B, (T + 1) // 2, 2 * d))
    for b in range(B):
        for t in range(int(lengths[b])):
            joined[b, t // 2, (t % 2) * d : (t % 2 + 1) * d] = x[b, t]
    return joined, np.array([math.ceil(length / 2) for length in lengths])


def samples_of(states, lengths, window, hop, levels):
    """Frames are joined level by level, and each remembers the samples that it has seen."""
    first, past = np.zeros_like(states), np.zeros_like(states)
    for b, length in enumerate(lengths):
        heard = [(f * int(hop), f * int(hop) + int(window)) for f in range(int(length))]
        for _ in range(int(levels)):
            pairs = [heard[i : i + 2] for i in range(0, len(heard), 2)]
            heard = [(pair[0][0], pair[-1][1]) for pair in pairs]
        for s, state in enumerate(states[b]):
            first[b, s], past[b, s] = heard[int(state)]
    return first, past


@each(1, 2, 1, None, None, None, None, None, None)
def location_score(query, key, previous, query_weight, key_weight, location_weight, filters, bias, v):
    T_k, half = len(key), filters.shape[1] // 2
    scores = []
    for j in range(T_k):
        inner = query @ query_weight + key[j] @ key_weight + bias
        for n, one in enumerate(filters):
            for tap, number in enumerate(one):
                at = j + tap - half
                if 0 <= at < T_k:
                    inner = inner + number * previous[at] * location_weight[n]
        scores.append(sum(v[k] * math.tanh(inner[k]) for k in range(len(v))))
    return np.array(scores)


def spell(embedded, context, state, memory, lengths, w_state, w_query, w_out):
    results = []
    for b, length in enumerate(lengths):
        read = [*embedded[b], *context[b], *state[b]]
        after = np.array([math.tanh(oracles.dot(read, column)) for column in w_state.T])
        query = [oracles.dot(after, column) for column in w_query.T]
        heard = memory[b, : int(length)]
        weights = oracles.softmax(np.array([oracles.dot(query, one) for one in heard]))
        new = sum(weight * one for weight, one in zip(weights, heard, strict=True))
        logits = np.array([oracles.dot([*after, *new], column) for column in w_out.T])
        rest = np.zeros(memory.shape[1] - int(length))
        results.append((logits, after, new, np.concatenate((weights, rest))))
    return tuple(np.array(one) for one in zip(*results, strict=True))


def error_rate(said, said_lengths, right, right_lengths):
    total = 0
    for b in range(len(said)):
        one, other = said[b, : said_lengths[b]], right[b, : right_lengths[b]]

        @cache
        def edits(i, j, one=one, other=other):
            """From the ends to the beginnings."""
            if i == len(one) or j == len(other):
                return len(one) - i + len(other) - j
            if one[i] == other[j]:
                return edits(i + 1, j + 1)
            return 1 + min(edits(i + 1, j), edits(i, j + 1), edits(i + 1, j + 1))

        total += edits(0, 0)
    return np.float64(total / right_lengths.sum())

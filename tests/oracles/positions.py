"""Chapter 6, pair by pair: a pair of columns is a complex number, a turn is a product."""

import cmath

import numpy as np

import oracles
from oracles import each

NUM_HEADS = 2


def _turned(row, steps):
    """Every pair (a, b) of neighbours as a + ib, turned by steps / 10000^(2i / d)."""
    d = len(row)
    turned = np.zeros(d)
    for i in range(d // 2):
        hand = complex(row[2 * i], row[2 * i + 1]) * cmath.exp(1j * steps / 10000.0 ** (2 * i / d))
        turned[2 * i], turned[2 * i + 1] = hand.real, hand.imag
    return turned


@each(2)
def add_positions(x):
    return x + oracles.sinusoidal(*x.shape)


@each(2, None)
def shift(table, k):
    """A row is (sin, cos), so that its hand turns the other way round."""
    return np.array([_turned(row, -float(k)) for row in table])


@each(2, None)
def rotate(x, start):
    return np.array([_turned(row, int(start) + t) for t, row in enumerate(x)])


@each(2)
def to_half(w):
    d_k = w.shape[1] // NUM_HEADS
    result = np.zeros_like(w)
    for head in range(NUM_HEADS):
        for i in range(d_k // 2):
            result[:, head * d_k + i] = w[:, head * d_k + 2 * i]
            result[:, head * d_k + i + d_k // 2] = w[:, head * d_k + 2 * i + 1]
    return result


@each(3)
def alibi_weights(scores):
    h, T_q, T_k = scores.shape
    weights = np.zeros_like(scores)
    for n in range(1, h + 1):
        for i in range(T_q):
            at = i + T_k - T_q
            row = [scores[n - 1, i, j] - 2.0 ** (-8 * n / h) * abs(at - j) for j in range(T_k)]
            weights[n - 1, i] = oracles.softmax(np.array(row))
    return weights


def rotary_attention(query, key, value, output, x, num_heads):
    """Token by token and head by head; weights in nn.Linear's [out, in] layout."""

    @each(2)
    def attend(x):
        width = x.shape[1] // num_heads
        seen = np.array([[j <= i for j in range(len(x))] for i in range(len(x))])
        contexts = []
        for head in range(num_heads):
            rows = slice(head * width, (head + 1) * width)
            q, k = (
                np.array([_turned(matrix[rows] @ token, t) for t, token in enumerate(x)])
                for matrix in (query, key)
            )
            v = x @ value[rows].T
            contexts.append(oracles.attend(oracles.pairwise(oracles.scaled_dot, q, k), v, seen)[0])
        return np.concatenate(contexts, axis=1) @ output.T

    return attend(x)


def notices_order(x, order, w_query, w_key, w_value, predicted):
    """Reader by reader and token by token."""

    def attended(x, turn, causal):
        query, key = (
            np.array([_turned(token @ w, t if turn else 0) for t, token in enumerate(x)])
            for w in (w_query, w_key)
        )
        seen = np.array([[j <= i or not causal for j in range(len(x))] for i in range(len(x))])
        return oracles.attend(oracles.pairwise(oracles.scaled_dot, query, key), x @ w_value, seen)[0]

    def added(x):
        return attended(x + oracles.sinusoidal(*x.shape), False, False)

    readers = (
        lambda x: attended(x, False, False), added,
        lambda x: attended(x, True, False), lambda x: attended(x, False, True),
    )  # fmt: skip

    @each(2)
    def moved(x):
        found = []
        for read in readers:
            before, after = read(x), read(x[order])
            found.append(max(abs(a - before[order[i]]).max() for i, a in enumerate(after)))
        return np.array(found)

    numbers = moved(x)
    return numbers, (numbers > 1e-3) == predicted

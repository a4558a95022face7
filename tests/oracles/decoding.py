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


def decoder_layer(
    gain_1, shift_1, query, key, value, output, gain_2, shift_2, w_in, b_in, w_out, b_out,
    x, past_key, past_value, num_heads,
):  # fmt: skip
    """One head after the other; weights in nn.Linear's [out, in] layout."""

    def normed(token, gain, shift):
        mean = sum(token) / len(token)
        variance = sum((c - mean) ** 2 for c in token) / len(token)
        return (token - mean) / (variance + 1e-5) ** 0.5 * gain + shift

    @each(2, 3, 3)
    def layer(x, past_key, past_value):
        read = np.array([normed(token, gain_1, shift_1) for token in x])
        width, past = x.shape[1] // num_heads, past_key.shape[1]
        seen = np.array([[j <= past + i for j in range(past + len(x))] for i in range(len(x))])
        contexts, keys, values = [], [], []
        for head in range(num_heads):
            rows = slice(head * width, (head + 1) * width)
            keys.append(np.array([*past_key[head], *(read @ key[rows].T)]))
            values.append(np.array([*past_value[head], *(read @ value[rows].T)]))
            scores = pairwise(oracles.scaled_dot, read @ query[rows].T, keys[-1])
            contexts.append(oracles.attend(scores, values[-1], seen)[0])
        middle = x + np.concatenate(contexts, axis=1) @ output.T
        hidden = [np.maximum(0.0, w_in @ normed(token, gain_2, shift_2) + b_in) for token in middle]
        return middle + np.array(hidden) @ w_out.T + b_out, np.array(keys), np.array(values)

    return layer(x, past_key, past_value)


@each(2, None, None, None, None)
def write(x, w_query, w_key, w_value, steps):
    """Everything again for each token."""
    rows = list(x)
    for _ in range(int(steps)):
        scores = np.array([[oracles.scaled_dot(rows[-1] @ w_query, row @ w_key) for row in rows]])
        context = oracles.attend(scores, np.array(rows) @ w_value)[0][0]
        rows.append(context / (sum(c * c for c in context) / len(context)) ** 0.5)
    return np.array(rows[len(x) :])

"""Chapter 4, head by head."""

import numpy as np

import oracles
from oracles import each, pairwise

NUM_HEADS = 3


def _attend(query, key, value):
    return oracles.attend(pairwise(oracles.scaled_dot, query, key), value)[0]


@each(2)
def split_heads(x):
    d_k = x.shape[1] // NUM_HEADS
    return np.array([x[:, n * d_k : (n + 1) * d_k] for n in range(NUM_HEADS)])


@each(3)
def merge_heads(context):
    return np.concatenate(list(context), axis=1)


@each(2, 2, None, None, None, None)
def multi_head_attention(x, memory, w_query, w_key, w_value, w_output):
    d_k = w_query.shape[1] // NUM_HEADS
    heads = []
    for n in range(NUM_HEADS):
        columns = slice(n * d_k, (n + 1) * d_k)
        heads.append(
            _attend(x @ w_query[:, columns], memory @ w_key[:, columns], memory @ w_value[:, columns])
        )
    return np.concatenate(heads, axis=1) @ w_output


@each(3, None)
def head_contributions(context, w_output):
    """What is left of the output when all other heads say 0."""
    shares = []
    for n in range(len(context)):
        alone = np.zeros_like(context)
        alone[n] = context[n]
        shares.append(merge_heads(alone) @ w_output)
    return np.array(shares)


@each(3, 3, 3)
def grouped_query_attention(query, key, value):
    size = len(query) // len(key)
    return np.array([_attend(q, key[n // size], value[n // size]) for n, q in enumerate(query)])

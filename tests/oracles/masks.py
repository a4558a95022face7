"""Chapter 5, query by query: who may look at whom is said in words."""

import numpy as np

import oracles
from oracles import each, pairwise


def _weights(scores, may_look):
    """Softmax over the keys j that ``may_look(i, j)``; nothing where there are none."""
    T_q, T_k = scores.shape
    seen = np.array([[bool(may_look(i, j)) for j in range(T_k)] for i in range(T_q)])
    return oracles.attend(scores, np.zeros((T_k, 1)), seen)[1]


@each(2)
def causal_weights(scores):
    first = scores.shape[1] - scores.shape[0]  # where the first query stands
    return _weights(scores, lambda i, j: j <= first + i)


@each(3, 1)
def padding_weights(scores, real):
    return np.array([_weights(head, lambda i, j: real[j] == 1) for head in scores])


@each(2)
def safe_softmax(scores):
    return _weights(scores, lambda i, j: scores[i, j] > -np.inf)


@each(3, 3, 3, 1)
def decoder_attention(query, key, value, real):
    first = key.shape[1] - query.shape[1]
    contexts, weights = [], []
    for q, k, v in zip(query, key, value, strict=True):
        w = _weights(pairwise(oracles.scaled_dot, q, k), lambda i, j: real[j] == 1 and j <= first + i)
        contexts.append([sum(w[i, j] * v[j] for j in range(len(v))) for i in range(len(q))])
        weights.append(w)
    return np.array(contexts), np.array(weights)


def reader(table, query, key, value, output, words, tokens):
    """Logits of the next word; weights in nn.Linear's [out, in] layout."""

    @each(1)
    def read(tokens):
        x = np.array([table[token] for token in tokens])
        scores = pairwise(oracles.scaled_dot, x @ query.T, x @ key.T)
        weights = _weights(scores, lambda i, j: j <= i and tokens[j] != 0)
        return (x + weights @ (x @ value.T) @ output.T) @ words.T

    return read(tokens)

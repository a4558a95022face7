"""Chapter 16, token by token and pair by pair."""

import math

import numpy as np

import oracles


def _look(tokens, w):
    """Each token beside what all of them tell it."""
    scores = oracles.pairwise(oracles.general(w / math.sqrt(len(w))), tokens, tokens)
    return tokens + oracles.attend(scores, tokens)[0]


def divided(x, w_time, w_space):
    result = np.array(x)
    B, T, N, _ = x.shape
    for b in range(B):
        for n in range(N):
            result[b, :, n] = _look(x[b, :, n], w_time)
        for t in range(T):
            result[b, t] = _look(result[b, t].copy(), w_space)
    return result


def _leading(function, image, text, *rest):
    """A number for each batch."""
    if image.ndim == 2:
        return np.float64(function(image, text, *rest))
    return np.array([_leading(function, *pair, *rest) for pair in zip(image, text, strict=True)])


def contrastive_loss(image, text, temperature):
    def loss(image, text):
        scores = oracles.pairwise(oracles.cosine, image, text) / float(temperature)
        found = [-oracles.log_softmax(row)[i] for i, row in enumerate(scores)]
        found += [-oracles.log_softmax(column)[i] for i, column in enumerate(scores.T)]
        return sum(found) / len(found)

    return _leading(loss, image, text)


def retrieval_at_1(image, text):
    def rate(image, text):
        scores = oracles.pairwise(oracles.cosine, image, text)
        hits = [
            all(row[i] > other + 1e-9 for j, other in enumerate(row) if j != i)
            for i, row in enumerate(scores)
        ]
        return sum(hits) / len(hits)

    return _leading(rate, image, text)


def gated_cross_attention(x, image, seen, w_query, w_key, w_value, w_output, gate):
    outputs, all_weights = [], []
    for tokens, pictures, may in zip(x, image, seen, strict=True):
        scores = oracles.pairwise(oracles.scaled_dot, tokens @ w_query, pictures @ w_key)
        context, weights = oracles.attend(scores, pictures @ w_value, may == 1)
        outputs.append(tokens + math.tanh(float(gate)) * (context @ w_output))
        all_weights.append(weights)
    return np.array(outputs), np.array(all_weights)


def image_prefix_weights(scores, images, lengths):
    weights = np.zeros_like(scores)
    for b, head, i in np.ndindex(scores.shape[:3]):
        seen = set(range(int(images[b]))) | set(range(i + 1))
        seen = sorted(j for j in seen if j < int(lengths[b]))
        weights[b, head, i, seen] = oracles.softmax(scores[b, head, i, seen])
    return weights

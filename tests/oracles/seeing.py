"""Chapter 12, weight by weight."""

import math

import numpy as np


def _information(p):
    return -p * math.log(p) if p > 0 else 0.0


def head_entropy(weights, lengths):
    result = np.zeros(weights.shape[:2])
    for b, sentence in enumerate(weights):
        for h, head in enumerate(sentence):
            rows = [sum(_information(p) for p in head[i]) for i in range(int(lengths[b]))]
            result[b, h] = sum(rows) / len(rows)
    return result


def _kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def head_divergence(weights):
    number, T = weights.shape[:2]
    result = np.zeros((number, number))
    for a in range(number):
        for b in range(number):
            for p, q in zip(weights[a], weights[b], strict=True):
                m = [(one + other) / 2 for one, other in zip(p, q, strict=True)]
                result[a, b] += (_kl(p, m) + _kl(q, m)) / 2 / T
    return result


def rollout(weights):
    """Layer by layer upwards: half of what arrives in a token is its own, the rest comes by the heads."""
    number, T = weights.shape[1:3]
    arrived = [[float(i == j) for j in range(T)] for i in range(T)]
    for layer in weights:
        above = []
        for i in range(T):
            found = [0.5 * one for one in arrived[i]]
            for head in layer:
                for k in range(T):
                    for j in range(T):
                        found[j] += 0.5 / number * head[i, k] * arrived[k][j]
            above.append(found)
        arrived = above
    return np.array(arrived)


def value_weighted(weights, value, output):
    number, T = weights.shape[:2]
    result = np.zeros((T, T))
    for i in range(T):
        for j in range(T):
            added = [0.0] * output.shape[-1]
            for h in range(number):
                for k in range(value.shape[-1]):
                    for m in range(output.shape[-1]):
                        added[m] += weights[h, i, j] * value[h, j, k] * output[h, k, m]
            result[i, j] = math.sqrt(sum(one * one for one in added))
    return result


def without_key(weights, value, position):
    contexts = np.zeros_like(value)
    for h, head in enumerate(weights):
        for i, row in enumerate(head):
            others = [j for j in range(len(row)) if j != int(position)]
            left = sum(row[j] for j in others)
            if left > 0:
                contexts[h, i] = sum(row[j] / left * value[h, j] for j in others)
    return contexts

"""Chapter 18, step by step."""

import math

import numpy as np

import oracles


def same_episode(done):
    B, T = done.shape
    mask = np.zeros((B, T, T), dtype=bool)
    for b in range(B):
        for t in range(T):
            for s in range(t + 1):
                mask[b, t, s] = not any(done[b, u] for u in range(s, t))
    return mask


def remember(query, key, value, keys, values, valid, ended):
    B, t = valid.shape
    grown = [
        np.zeros((B, t + 1, key.shape[1])), np.zeros((B, t + 1, value.shape[1])),
        np.zeros((B, t + 1), dtype=bool),
    ]  # fmt: skip
    weights, context = np.zeros((B, t + 1)), np.zeros_like(value)
    for b in range(B):
        for s in range(t):
            grown[0][b, s], grown[1][b, s] = keys[b, s], values[b, s]
            grown[2][b, s] = valid[b, s] and not ended[b]
        grown[0][b, t], grown[1][b, t], grown[2][b, t] = key[b], value[b], True
        seen = [s for s in range(t + 1) if grown[2][b, s]]
        scores = [oracles.scaled_dot(query[b], grown[0][b, s]) for s in seen]
        for s, weight in zip(seen, oracles.softmax(np.array(scores)), strict=True):
            weights[b, s] = weight
            context[b] += weight * grown[1][b, s]
    return context, weights, *grown


def recurrent_states(x, start, done, weight):
    states = np.zeros_like(x)
    for b in range(len(x)):
        for t in range(x.shape[1]):
            before = states[b, t - 1] if t > 0 else start[b]
            if t > 0 and done[b, t - 1]:
                before = [0.0] * len(weight)
            for column in range(len(weight)):
                states[b, t, column] = math.tanh(x[b, t, column] + oracles.dot(before, weight[:, column]))
    return states


def returns(rewards, discount, done):
    """Forwards, each step's sum for itself, as far as its episode goes."""
    found = np.zeros_like(rewards)
    for place in np.ndindex(rewards.shape[1:]):
        for t in range(len(rewards)):
            for k, u in enumerate(range(t, len(rewards))):
                found[(t, *place)] += float(discount) ** k * rewards[(u, *place)]
                if done[(u, *place)]:
                    break
    return found


def policy_loss(logits, action, returns, alive):
    steps = [(t, b) for t, b in np.ndindex(alive.shape) if alive[t, b]]
    baseline = sum(returns[step] for step in steps) / len(steps)
    total = 0.0
    for step in steps:
        total -= oracles.log_softmax(logits[step])[action[step]] * (returns[step] - baseline)
    return np.array(total / alive.shape[1])

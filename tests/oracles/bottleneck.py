"""Chapter 1, sentence by sentence and word by word."""

import numpy as np

from oracles import dot, each, log_softmax, softmax

PAD, BOS = 0, 1


@each(2, 0)
def summary(states, length):
    half = states.shape[1] // 2
    return np.concatenate((states[int(length) - 1, :half], states[0, half:]))


@each(1)
def previous_tokens(target):
    moved = [BOS, *target[:-1]]
    return np.array([PAD if right == PAD else word for word, right in zip(moved, target, strict=True)])


@each(3, None)
def token_loss(logits, target):
    losses = []
    for b in range(target.shape[0]):
        for t in range(target.shape[1]):
            if target[b, t] != PAD:
                losses.append(-log_softmax(logits[b, t])[target[b, t]])
    return sum(losses) / len(losses)


@each(1, 2, 0)
def look_back(scores, states, length):
    weights = np.zeros(len(scores))
    weights[: int(length)] = softmax(scores[: int(length)])
    return sum(w * h for w, h in zip(weights, states, strict=True)), weights


@each(2, 1, 2, None)
def decode(embedded, start, states, v):
    state, decoder_states, rows = start, [], []
    for word in embedded:
        weights = softmax(np.array([dot(np.tanh(state + h), v) for h in states]))
        context = sum(w * h for w, h in zip(weights, states, strict=True))
        state = np.tanh(word + context + state)
        decoder_states.append(state)
        rows.append(weights)
    return np.array(decoder_states), np.array(rows)

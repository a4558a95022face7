"""Chapter 7, token by token."""

import math

import numpy as np

import oracles
from oracles import each, pairwise

EPSILON, PAD = 1e-5, 0


@each(1, None, None)
def layer_norm(token, gain, shift):
    mean = sum(token) / len(token)
    variance = sum((c - mean) ** 2 for c in token) / len(token)
    return np.array(
        [
            (c - mean) / math.sqrt(variance + EPSILON) * g + b
            for c, g, b in zip(token, gain, shift, strict=True)
        ]
    )


@each(1, None, None, None, None)
def feed_forward(token, w_in, b_in, w_out, b_out):
    hidden = [max(0.0, oracles.dot(token, column) + b) for column, b in zip(w_in.T, b_in, strict=True)]
    return np.array([oracles.dot(hidden, column) + b for column, b in zip(w_out.T, b_out, strict=True)])


@each(1, None, None, None, None, None, None)
def pre_norm_block(token, gain, shift, w_in, b_in, w_out, b_out):
    return token + feed_forward(layer_norm(token, gain, shift), w_in, b_in, w_out, b_out)


@each(2, 2, None, 1, None, None, None)
def cross_attention(x, memory, x_real, memory_real, w_query, w_key, w_value):
    scores = pairwise(oracles.scaled_dot, x @ w_query, memory @ w_key)
    seen = np.array([[word == 1 for word in memory_real] for _ in x])
    return oracles.attend(scores, memory @ w_value, seen)


@each(2, 1)
def next_token_loss(logits, tokens):
    losses = []
    for t in range(len(tokens) - 1):
        if tokens[t + 1] != PAD:
            losses.append(-oracles.log_softmax(logits[t])[tokens[t + 1]])
    return sum(losses) / len(losses)


@each(2, None, None, None, None, None, None, None, None, None, None)
def encoder_layer(x, w_query, w_key, w_value, w_output, w_in, b_in, w_out, b_out, gains, shifts):
    scores = pairwise(oracles.scaled_dot, x @ w_query, x @ w_key)
    context, _ = oracles.attend(scores, x @ w_value)
    y = layer_norm(x + context @ w_output, gains[0], shifts[0])
    return layer_norm(y + feed_forward(y, w_in, b_in, w_out, b_out), gains[1], shifts[1])

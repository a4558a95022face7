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


def encoder_layer(
    query, key, value, output, gain_1, shift_1, w_in, b_in, w_out, b_out, gain_2, shift_2, x
):  # fmt: skip
    """Weights in nn.Linear's [out, in] layout."""

    @each(2)
    def layer(x):
        scores = pairwise(oracles.scaled_dot, x @ query.T, x @ key.T)
        context, _ = oracles.attend(scores, x @ value.T)
        y = layer_norm(x + context @ output.T, gain_1, shift_1)
        return layer_norm(y + feed_forward(y, w_in.T, b_in, w_out.T, b_out), gain_2, shift_2)

    return layer(x)


def writer(
    table, places, gain_1, shift_1, query, key, value, output, gain_2, shift_2,
    w_in, b_in, w_out, b_out, words, bias, tokens,
):  # fmt: skip
    """Weights in nn.Linear's [out, in] layout."""

    @each(1)
    def write(tokens):
        x = np.array([table[token] + places[t] for t, token in enumerate(tokens)])
        read = layer_norm(x, gain_1, shift_1)
        scores = pairwise(oracles.scaled_dot, read @ query.T, read @ key.T)
        seen = np.array([[j <= i for j in range(len(x))] for i in range(len(x))])
        x = x + oracles.attend(scores, read @ value.T, seen)[0] @ output.T
        x = x + feed_forward(layer_norm(x, gain_2, shift_2), w_in.T, b_in, w_out.T, b_out)
        return x @ words.T + bias

    return write(tokens)


def encoder(*tensors, num_heads):
    """Two layers, twelve tensors each, in the order of torch's own; then the tokens and which are real."""
    *weights, x, real = tensors

    def layer(x, real, w, b, w_o, b_o, w_1, b_1, w_2, b_2, gain_1, shift_1, gain_2, shift_2):
        d_model = x.shape[1]
        seen = np.array([[word == 1 for word in real] for _ in x])
        contexts = []
        for head in range(num_heads):
            width = d_model // num_heads
            query, key, value = (
                np.array([w[rows] @ token + b[rows] for token in x])
                for rows in (
                    slice(k * d_model + head * width, k * d_model + (head + 1) * width) for k in range(3)
                )
            )
            contexts.append(oracles.attend(pairwise(oracles.scaled_dot, query, key), value, seen)[0])
        y = layer_norm(x + np.concatenate(contexts, axis=1) @ w_o.T + b_o, gain_1, shift_1)
        return layer_norm(y + feed_forward(y, w_1.T, b_1, w_2.T, b_2), gain_2, shift_2)

    @each(2, 1)
    def stack(x, real):
        for part in (weights[:12], weights[12:]):
            x = layer(x, real, *part)
        return x

    return stack(x, real)


def train(tokens, seed, questions, answers):
    """The answers, from counting: which word stands most often where another stood in the first half?

    Nothing is learned, and what stands behind the word that is asked for is not looked at.
    """
    half = tokens.shape[1] // 2
    counts = np.zeros((11, 11))
    for sentence in tokens:
        for i in range(half):
            counts[sentence[i], sentence[half + 1 + i]] += 1
    found = np.full_like(answers, -1)
    for n, question in enumerate(questions):
        for t in range(half, 2 * half):
            if answers[n, t] >= 0:
                found[n, t] = counts[question[t - half]].argmax()
    return found

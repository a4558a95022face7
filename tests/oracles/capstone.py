"""The capstone: a GPT token by token, and a step of training number by number."""

import math
from itertools import pairwise

import numpy as np

import oracles

#: parts of a layer, in the order of the given state
PARTS = ("norm_1", "query", "key", "value", "output", "norm_2", "inner", "outer")
PEAK, WARM_UP, LONGEST = 4e-3, 50, 1.0


def tokenizer(text, sample):
    characters = sorted({int(code) for code in text})
    return len(characters), np.array([characters.index(int(code)) for code in sample]), sample


def norm(token, gain, shift):
    mean = sum(token) / len(token)
    variance = sum((c - mean) ** 2 for c in token) / len(token)
    return (token - mean) / math.sqrt(variance + 1e-5) * gain + shift


def linear(token, weight, bias):
    return weight @ token + bias


def gelu(number):
    return number * 0.5 * (1 + math.erf(number / math.sqrt(2)))


def attend(layer, normed, heads):
    """For each token: each head's attention to it and to those before it, side by side."""
    names = "query", "key", "value"
    query, key, value = ([linear(token, *layer[name]) for token in normed] for name in names)
    width = len(query[0]) // heads
    told = []
    for t in range(len(normed)):
        context = []
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            scores = [oracles.dot(query[t][own], key[s][own]) / math.sqrt(width) for s in range(t + 1)]
            shares = [math.exp(score - max(scores)) for score in scores]
            context += list(sum(share * value[s][own] for s, share in enumerate(shares)) / sum(shares))
        told.append(linear(np.array(context), *layer["output"]))
    return told


def without_layers(state, sentence):
    """Logits where nothing of what the layers tell is left."""
    token, position, *_, gain, shift = state
    x = [token[index] + position[place] for place, index in enumerate(sentence)]
    return np.array([token @ norm(one, gain, shift) for one in x])


def speak(state, tokens):
    """Logits of one sentence, [T, vocabulary]; heads are as many as the cases have at this width."""
    token, position, *rest = state
    gain, shift = rest[-2:]
    heads = {8: 2, 24: 3}[token.shape[1]]
    x = [token[index] + position[place] for place, index in enumerate(tokens)]
    for start in range(0, len(rest) - 2, 2 * len(PARTS)):
        pairs = rest[start : start + 2 * len(PARTS)]
        layer = dict(zip(PARTS, zip(pairs[::2], pairs[1::2], strict=True), strict=True))
        told = attend(layer, [norm(one, *layer["norm_1"]) for one in x], heads)
        x = [one + new for one, new in zip(x, told, strict=True)]
        inner = [linear(norm(one, *layer["norm_2"]), *layer["inner"]) for one in x]
        fed = [linear(np.array([gelu(number) for number in one]), *layer["outer"]) for one in inner]
        x = [one + new for one, new in zip(x, fed, strict=True)]
    return np.array([token @ norm(one, gain, shift) for one in x])


def logits(*inputs):
    *state, tokens = inputs
    said = np.array([speak(state, sentence) for sentence in tokens])
    parameters = sum(one.size for one in state)
    dropped = np.array([without_layers(state, sentence) for sentence in tokens])
    return said, np.zeros((len(tokens), tokens.shape[1] - 1), np.float32), np.array(parameters), dropped


def generate(*inputs):
    *state, prompt, number = inputs
    found = [list(sentence) for sentence in prompt]
    for sentence in found:
        for _ in range(int(number)):
            sentence.append(int(speak(state, sentence)[-1].argmax()))
    return np.array(found)


def pairs_loss(rows, tokens):
    """Mean surprise at each next token, and its slope in every row: one for each token, the last for all."""
    slope, total, asked = np.zeros_like(rows), 0.0, 0
    for sentence in tokens:
        for one, following in pairwise(sentence):
            logits = rows[one] + rows[-1]
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
            total, asked = total - math.log(shares[following]), asked + 1
            for row in (one, -1):
                slope[row] += shares
                slope[row, following] -= 1
    return total / asked, slope / asked


def update(table, batches, adamw, first, times):
    moved, losses = [], []
    speed, square = np.zeros_like(table), np.zeros_like(table)
    for step, batch in enumerate(batches):
        loss, slope = pairs_loss(times * table, batch)
        slope = times * slope
        slope = slope / max(1.0, math.sqrt((slope**2).sum()) / LONGEST)
        rate = PEAK * min(1.0, (first + step + 1) / WARM_UP)
        before = table
        if adamw:
            speed, square = 0.9 * speed + 0.1 * slope, 0.999 * square + 0.001 * slope**2
            mean, spread = speed / (1 - 0.9 ** (step + 1)), square / (1 - 0.999 ** (step + 1))
            table = table - rate * 0.1 * table - rate * mean / (np.sqrt(spread) + 1e-8)
        else:
            speed = 0.5 * speed + slope
            table = table - rate * speed
        moved.append((table - before) / PEAK)
        losses.append(loss)
    return np.array(moved), np.array(losses)

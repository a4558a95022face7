"""Chapter 13, query by query and example by example."""

import numpy as np


def previous_token_score(weights, lengths):
    scores = []
    for head in range(weights.shape[1]):
        found = [
            weights[sentence, head, t, t - 1]
            for sentence in range(len(weights))
            for t in range(1, int(lengths[sentence]))
        ]
        scores.append(sum(found) / len(found))
    return np.array(scores)


def induction_score(weights, tokens):
    scores = []
    for head in range(weights.shape[1]):
        found = []
        for sentence, words in enumerate(tokens):
            for t in range(len(words)):
                earlier = [s for s in range(t) if words[s] == words[t]]
                if earlier:
                    found.append(sum(weights[sentence, head, t, s + 1] for s in earlier))
        scores.append(sum(found) / len(found))
    return np.array(scores)


def best_offset(source, target, train):
    def right(offset, examples):
        return [target[n] == source[n] + offset for n in examples]

    chosen = [n for n in range(len(train)) if train[n]]
    rest = [n for n in range(len(train)) if not train[n]]
    furthest = int(max(source.max(), target.max()))
    best = max(range(-furthest, furthest + 1), key=lambda offset: sum(right(offset, chosen)))  # the first
    return np.array(best), np.array(sum(right(best, rest)) / len(rest))


def best_head(weights, allowed, target, train):
    N, L, h, T = weights.shape

    def accuracy(layer, head, half):
        right = 0
        examples = [n for n in range(N) if bool(train[n]) is half]
        for n in examples:
            keys = [j for j in range(T) if allowed[n, j]]
            right += max(keys, key=lambda j: weights[n, layer, head, j]) == target[n]
        return right / len(examples)

    heads = [(layer, head) for layer in range(L) for head in range(h)]
    layer, head = max(heads, key=lambda one: accuracy(*one, True))
    return np.array(layer), np.array(head), np.array(accuracy(layer, head, False))


def head_importance(context, gradient):
    """Each sentence's gate has a derivative; its size, on average."""
    B, L, h, T, d_k = context.shape
    importance = np.zeros((L, h))
    for layer in range(L):
        for head in range(h):
            for sentence in range(B):
                slope = 0.0
                for t in range(T):
                    for column in range(d_k):
                        place = sentence, layer, head, t, column
                        slope += context[place] * gradient[place]
                importance[layer, head] += abs(slope) / B
    return importance

"""Each formula once more, loop by loop, in NumPy float64: slow, and hard to get wrong.

Here stand the formulas of the package; beside it one file a chapter, in which every exercise has a
function of its name, written from the notebook's text and from nothing of ``attention_course.checks``.
"""

import functools
import math
from importlib import import_module

import numpy as np


def of(exercise):
    """Return the oracle of an exercise: "05_masks.safe_softmax" -> ``oracles.masks.safe_softmax``."""
    chapter, _, name = exercise.name.partition(".")
    return getattr(import_module(f"oracles.{chapter.partition('_')[2]}"), name)


def each(*axes):
    """Let a function of one sample's arrays take arrays with any leading axes, sample after sample.

    ``axes`` has an entry for each argument: how many axes a sample of it has, or None for an argument
    that is the same for all samples.
    """

    def decorate(function):
        @functools.wraps(function)
        def looped(*inputs):
            first = next(position for position, number in enumerate(axes) if number is not None)
            leading = inputs[first].shape[: inputs[first].ndim - axes[first]]
            results = [
                function(*(x if n is None else x[index] for x, n in zip(inputs, axes, strict=True)))
                for index in np.ndindex(leading)
            ]
            if not isinstance(results[0], tuple):
                return np.array(results).reshape(*leading, *np.shape(results[0]))
            outputs = zip(*results, strict=True)
            return tuple(np.array(out).reshape(*leading, *np.shape(out[0])) for out in outputs)

        return looped

    return decorate


def softmax(row: np.ndarray) -> np.ndarray:
    shifted = np.exp(row - row.max())
    return shifted / shifted.sum()


def log_softmax(row: np.ndarray) -> np.ndarray:
    """A weight may be too small for a number, its logarithm is not."""
    return row - log_sum(row)


def log_sum(row: np.ndarray) -> float:
    """log Σ exp of numbers of which one at least is not -inf."""
    largest = max(row)
    return largest + math.log(sum(math.exp(one - largest) for one in row))


def pairwise(score, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """[T_q, d_q], [T_k, d_k] -> [T_q, T_k], one call of ``score`` for every pair."""
    result = np.zeros((len(query), len(key)))
    for i, q in enumerate(query):
        for j, k in enumerate(key):
            result[i, j] = score(q, k)
    return result


def dot(q: np.ndarray, k: np.ndarray) -> float:
    return sum(float(a) * float(b) for a, b in zip(q, k, strict=True))


def scaled_dot(q: np.ndarray, k: np.ndarray) -> float:
    return dot(q, k) / math.sqrt(len(q))


def cosine(q: np.ndarray, k: np.ndarray) -> float:
    return dot(q, k) / math.sqrt(dot(q, q) * dot(k, k))


def general(weight: np.ndarray):
    return lambda q, k: sum(
        q[a] * weight[a, b] * k[b] for a in range(weight.shape[0]) for b in range(weight.shape[1])
    )


def additive(query_weight: np.ndarray, key_weight: np.ndarray, v: np.ndarray):
    def score(q: np.ndarray, k: np.ndarray) -> float:
        total = 0.0
        for unit in range(len(v)):
            inner = sum(q[a] * query_weight[a, unit] for a in range(len(q)))
            inner += sum(k[b] * key_weight[b, unit] for b in range(len(k)))
            total += v[unit] * math.tanh(inner)
        return total

    return score


def attend(
    scores: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Context and weights of one head: scores [T_q, T_k], value [T_k, d_v], mask [T_q, T_k]."""
    weights = np.zeros_like(scores)
    for i, row in enumerate(scores):
        seen = [j for j in range(len(row)) if mask is None or mask[i, j]]
        if seen:
            weights[i, seen] = softmax(row[seen])
    context = np.zeros((len(scores), value.shape[1]))
    for i in range(len(scores)):
        for j in range(len(value)):
            context[i] += weights[i, j] * value[j]
    return context, weights


def multi_head(x_q, x_k, weights: dict[str, np.ndarray], num_heads: int, num_kv_heads: int, mask=None):
    """Output and weights [h, T_q, T_k], every head by itself; weights in nn.Linear's [out, in] layout."""
    project = {
        name: x @ weights[f"{name}_projection.weight"].T + weights[f"{name}_projection.bias"]
        for name, x in (("query", x_q), ("key", x_k), ("value", x_k))
    }
    width = project["query"].shape[1] // num_heads
    contexts, all_weights = [], []
    for head in range(num_heads):
        group = head * num_kv_heads // num_heads
        q = project["query"][:, head * width : (head + 1) * width]
        k = project["key"][:, group * width : (group + 1) * width]
        v = project["value"][:, group * width : (group + 1) * width]
        context, attention = attend(pairwise(scaled_dot, q, k), v, mask)
        contexts.append(context)
        all_weights.append(attention)
    joined = np.concatenate(contexts, axis=1)
    output = joined @ weights["output_projection.weight"].T + weights["output_projection.bias"]
    return output, np.stack(all_weights)


def sinusoidal(length: int, d_model: int, base: float = 10000.0) -> np.ndarray:
    table = np.zeros((length, d_model))
    for position in range(length):
        for i in range(d_model // 2):
            angle = position / base ** (2 * i / d_model)
            table[position, 2 * i] = math.sin(angle)
            table[position, 2 * i + 1] = math.cos(angle)
    return table

"""Chapter 17, edge by edge."""

import math

import numpy as np

import oracles

SLOPE = 0.2


def with_self_loops(edges, num_nodes):
    pairs = [(source, target) for source, target in edges.T.tolist() if source != target]
    pairs += [(node, node) for node in range(int(num_nodes))]
    return np.array(pairs, dtype=np.int64).T


def _ending_in(target):
    """node -> its edges."""
    found = {}
    for edge, node in enumerate(target.tolist()):
        found.setdefault(node, []).append(edge)
    return found


def segment_softmax(scores, target, num_nodes):
    weights = np.zeros_like(scores)
    for edges in _ending_in(target).values():
        for rest in np.ndindex(scores.shape[1:]):
            seen = [edge for edge in edges if scores[(edge, *rest)] > -math.inf]
            if seen:
                found = oracles.softmax(np.array([scores[(edge, *rest)] for edge in seen]))
                for edge, weight in zip(seen, found, strict=True):
                    weights[(edge, *rest)] = weight
    return weights


def _leaky(number):
    return number if number > 0 else SLOPE * number


def gat_scores(features, a_query, a_key, edges):
    scores = np.zeros((edges.shape[1], len(a_query)))
    for edge, (source, target) in enumerate(edges.T.tolist()):
        for head in range(len(a_query)):
            # one vector on query and key side by side
            side_by_side = [*features[target, head], *features[source, head]]
            scores[edge, head] = _leaky(oracles.dot(side_by_side, [*a_query[head], *a_key[head]]))
    return scores


def gatv2_scores(query, key, a, edges):
    scores = np.zeros((edges.shape[1], len(a)))
    for edge, (source, target) in enumerate(edges.T.tolist()):
        for head in range(len(a)):
            for column in range(a.shape[1]):
                joined = query[target, head, column] + key[source, head, column]
                scores[edge, head] += a[head, column] * _leaky(joined)
    return scores


def graph_attention(query, key, a, x, edges):
    """Weights in nn.Linear's [out, in] layout."""
    heads, width = a.shape
    q, k = ((x @ weight.T).reshape(len(x), heads, width) for weight in (query, key))
    weights = segment_softmax(gatv2_scores(q, k, a, edges), edges[1], len(x))
    context = np.zeros((len(x), heads * width))
    for edge, (source, target) in enumerate(edges.T.tolist()):
        for head in range(heads):
            for column in range(width):
                context[target, head * width + column] += weights[edge, head] * k[source, head, column]
    return context, weights

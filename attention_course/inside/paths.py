"""From single layers to the whole stack: attention rollout and attention flow (Abnar and Zuidema 2020)."""

import torch
from jaxtyping import Float
from torch import Tensor

from attention_course.inputs import check_share


def rollout(weights: Float[Tensor, "layers ... T T"], *, residual: float = 0.5) -> Float[Tensor, "... T T"]:
    """Return how much of each input token is in each top token, if weights were all that mixes them.

    Each layer becomes ``residual`` · identity + (1 − ``residual``) · weights, its rows divided by their
    sums, and the layers are multiplied, the top one at the left (Abnar and Zuidema 2020, section 3,
    where half is the stream's). Row i belongs to the top's token i, column j to the input's token j.
    Shapes: weights [layers, ..., T, T], bottom layer first, each layer's heads already averaged, or one
    of them chosen -> [..., T, T]. Raises a ``ValueError`` for a shape without layers or a residual
    below 0 or not below 1.
    """
    steps = _with_residual(weights, residual)
    mixed = steps[0]
    for step in steps[1:]:
        mixed = step @ mixed
    return mixed


def flow(weights: Float[Tensor, "layers T T"], *, residual: float = 0.5) -> Float[Tensor, "T T"]:
    """Return the largest flow from each top token down to each input token, weights being capacities.

    Layers are as in ``rollout`` (Abnar and Zuidema 2020, section 3). A row is no distribution: the flows
    to two tokens may use the same edge. Shapes: weights [layers, T, T] -> [T, T], for T² maximum flows
    in a graph of layers · T² edges: seconds for 12 tokens, far too long for 64. Needs ``networkx``, which
    torch brings along.
    """
    import networkx
    from networkx.algorithms.flow import build_residual_network, preflow_push

    steps = _with_residual(weights, residual).tolist()
    graph = networkx.DiGraph()
    for level, step in enumerate(steps):
        for i, row in enumerate(step):
            for j, weight in enumerate(row):
                if weight > 0:
                    graph.add_edge((level + 1, i), (level, j), capacity=weight)
    T = weights.shape[-1]
    graph.add_nodes_from((level, i) for level in range(len(steps) + 1) for i in range(T))
    network = build_residual_network(graph, "capacity")
    largest = torch.zeros(T, T, dtype=torch.float64)
    for i in range(T):
        for j in range(T):
            found = preflow_push(graph, (len(steps), i), (0, j), residual=network, value_only=True)
            largest[i, j] = found.graph["flow_value"]
    return largest.to(weights)


def _with_residual(
    weights: Float[Tensor, "layers ... T T"], residual: float
) -> Float[Tensor, "layers ... T T"]:
    """Each layer with its stream, rows summing to 1; a query that looks nowhere keeps what it has."""
    check_share("residual", residual)
    if weights.dim() < 3 or not len(weights) or weights.shape[-1] != weights.shape[-2]:
        raise ValueError(f"weights must have shape [layers, ..., T, T], got {tuple(weights.shape)}")
    identity = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    blind = weights.sum(-1, keepdim=True) == 0
    mixed = residual * identity + (1 - residual) * torch.where(blind, identity, weights)
    return mixed / mixed.sum(-1, keepdim=True)

"""Attention along the edges of a graph: score, mask, softmax and mix, at a cost that grows with the edges.

Edges are [2, E]: row 0 holds the sources, the nodes that are looked at (keys), row 1 the targets, the
nodes that look (queries). The edges are the mask: where there is none, nothing is computed. An
undirected graph lists each edge in both directions; an edge listed twice counts twice.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.inputs import check_alike, check_at_least, check_choice, check_range, check_share

SCORES = ("gat", "gatv2")


def segment_softmax(
    scores: Float[Tensor, "E ..."], target: Int[Tensor, " E"], num_nodes: int
) -> Float[Tensor, "E ..."]:
    """Return softmax over the edges that end in the same node (Veličković et al. 2018, equation 2).

    Shapes: scores [E, ...], target [E], the node each edge ends in -> weights [E, ...]; those of one
    node's incoming edges sum to 1. A score of -inf counts as masked, and a node whose edges are all
    masked gives them 0. Computed in float32 at least; the result has the dtype of ``scores``. Raises a
    ``TypeError`` or ``ValueError`` for scores that are not floating point, a target that is not whole
    numbers [E] on their device, or one outside 0 to ``num_nodes`` - 1.
    """
    if not scores.is_floating_point():
        raise TypeError(f"scores must be floating point, got {scores.dtype}")
    if scores.dim() < 1:
        raise ValueError(f"scores must have shape [E, ...], got {tuple(scores.shape)}")
    _check_whole("target", target, scores)
    if target.shape != scores.shape[:1]:
        raise ValueError(f"target must have shape [E={len(scores)}], got {tuple(target.shape)}")
    check_range("target", target, 0, num_nodes - 1, f"num_nodes - 1 = {num_nodes - 1}")

    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    nodes = (num_nodes, *scores.shape[1:])
    # Each node's own maximum: with one for all, a node far below it would come to 0/0. Subtracting any
    # constant changes no weight, so no gradient has to flow through it.
    index = target.view(-1, *[1] * (scores.dim() - 1)).expand_as(wide)
    highest = wide.new_full(nodes, -torch.inf).scatter_reduce(0, index, wide.detach(), "amax")
    highest = highest.masked_fill(highest == -torch.inf, 0.0)  # -inf minus -inf is NaN
    # index_select, not highest[target]: the same rows, and a backward pass that is twice as fast
    exponentials = (wide - highest.index_select(0, target)).exp()
    total = wide.new_zeros(nodes).index_add(0, target, exponentials)
    total = total.masked_fill(total == 0, 1.0)  # only where all is masked: else it is at least 1
    return (exponentials / total.index_select(0, target)).to(scores.dtype)


def mix_edges(
    weights: Float[Tensor, "E h"], value: Float[Tensor, "N h d"], edges: Int[Tensor, "2 E"]
) -> Float[Tensor, "N h d"]:
    """Return for each node the weighted sum of the values its incoming edges come from.

    Shapes: weights [E, h], value [N, h, d], edges [2, E] -> [N, h, d], in the dtype of ``value``. A
    node without incoming edges gets 0. Raises a ``TypeError`` or ``ValueError`` for edges that are not
    whole numbers [2, E] between 0 and N - 1 on the values' device, or weights that do not fit.
    """
    _check_edges(edges, value, len(value))
    shape = (edges.shape[1], value.shape[1])
    if weights.shape != shape:
        raise ValueError(f"weights must have shape [E, h] = {shape}, got {tuple(weights.shape)}")
    wide = torch.promote_types(torch.promote_types(weights.dtype, value.dtype), torch.float32)
    source, target = edges
    messages = weights.to(wide).unsqueeze(-1) * value.index_select(0, source).to(wide)  # [E, h, d]
    return torch.zeros_like(value, dtype=wide).index_add(0, target, messages).to(value.dtype)


def gat_scores(
    query_part: Float[Tensor, "N h"],
    key_part: Float[Tensor, "N h"],
    edges: Int[Tensor, "2 E"],
    negative_slope: float = 0.2,
) -> Float[Tensor, "E h"]:
    """Return LeakyReLU(q_i + k_j) for each edge from j to i (Veličković et al. 2018, equation 3).

    Shapes: query_part and key_part [N, h], one number a node and head (its features times one half of
    the vector a), edges [2, E] -> [E, h]. Raises a ``TypeError`` or ``ValueError`` for parts of two
    shapes, or edges that are not whole numbers [2, E] between 0 and N - 1 on their device.
    """
    _check_sides("query_part", query_part, "key_part", key_part, edges)
    return F.leaky_relu(_at_the_ends(query_part, key_part, edges), negative_slope)


def gatv2_scores(
    query: Float[Tensor, "N h d"],
    key: Float[Tensor, "N h d"],
    a: Float[Tensor, "h d"],
    edges: Int[Tensor, "2 E"],
    negative_slope: float = 0.2,
) -> Float[Tensor, "E h"]:
    """Return aᵀ LeakyReLU(q_i + k_j) for each edge from j to i (Brody et al. 2022, equation 7).

    Shapes: query and key [N, h, d], a [h, d], edges [2, E] -> [E, h]. Raises a ``TypeError`` or
    ``ValueError`` for a query and key of two shapes, an ``a`` that does not fit them, or edges that are
    not whole numbers [2, E] between 0 and N - 1 on their device.
    """
    _check_sides("query", query, "key", key, edges)
    if a.shape != query.shape[1:]:
        raise ValueError(f"a must have shape [h, d] = {tuple(query.shape[1:])}, got {tuple(a.shape)}")
    return (F.leaky_relu(_at_the_ends(query, key, edges), negative_slope) * a).sum(-1)


def with_self_loops(edges: Int[Tensor, "2 E"], num_nodes: int) -> Int[Tensor, "2 E_with"]:
    """Return the edges with one from every node to itself, behind all others.

    Shapes: [2, E] -> [2, E']. Loops that were there are not counted twice. Raises a ``TypeError`` or
    ``ValueError`` for edges that are not whole numbers [2, E] between 0 and ``num_nodes`` - 1.
    """
    _check_edges(edges, edges, num_nodes)
    others = edges[:, edges[0] != edges[1]]
    loops = torch.arange(num_nodes, dtype=edges.dtype, device=edges.device)
    return torch.cat((others, loops.expand(2, -1)), dim=1)


class GraphAttention(nn.Module):
    """Attention of ``num_heads`` heads of width ``d_out`` along a graph's edges.

    ``score="gat"`` is Veličković et al. (2018): one projection for all, and a score that adds a number of
    the query to one of the key. ``score="gatv2"`` is Brody et al. (2022): a projection for each side, and
    LeakyReLU before the vector a. In both the values are the keys. With ``concat`` the heads stand side by
    side, without it their mean is returned. ``dropout`` applies to the weights, in training only. The
    layer adds no self-loops (``with_self_loops``). Raises a ``ValueError`` for an unknown score, sizes
    below 1, or a dropout outside [0, 1).
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        num_heads: int = 1,
        *,
        score: Literal["gat", "gatv2"] = "gatv2",
        concat: bool = True,
        bias: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("score", score, SCORES)
        check_at_least(1, d_in=d_in, d_out=d_out, num_heads=num_heads)
        check_share("dropout", dropout)
        self.d_in, self.d_out, self.num_heads = d_in, d_out, num_heads
        self.score, self.concat = score, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        self.key_projection = nn.Linear(d_in, num_heads * d_out, bias=bias)
        if score == "gat":
            # the two halves of the paper's a: aᵀ[Wx_i ‖ Wx_j] is a sum of two products
            self.a_query = nn.Parameter(torch.empty(num_heads, d_out))
            self.a_key = nn.Parameter(torch.empty(num_heads, d_out))
        else:
            self.query_projection = nn.Linear(d_in, num_heads * d_out, bias=bias)
            self.a = nn.Parameter(torch.empty(num_heads, d_out))
        for parameter in (self.a_query, self.a_key) if score == "gat" else (self.a,):
            nn.init.xavier_uniform_(parameter)

    def forward(
        self, x: Float[Tensor, "N d_in"], edges: Int[Tensor, "2 E"]
    ) -> tuple[Float[Tensor, "N d"], Float[Tensor, "E h"]]:
        """Return ``(context, weights)``.

        Shapes: x [N, d_in], edges [2, E] -> context [N, h·d_out] (without ``concat`` [N, d_out]), weights
        [E, h]. A node without incoming edges gets a context of 0. Raises a ``TypeError`` or ``ValueError``
        for an x of another width, or edges that are not whole numbers [2, E] between 0 and N - 1.
        """
        if x.dim() != 2 or x.shape[-1] != self.d_in:
            raise ValueError(f"x must have shape [N, d_in={self.d_in}], got {tuple(x.shape)}")
        key = self._split(self.key_projection(x))  # [N, h, d_out]
        if self.score == "gat":
            query_part, key_part = (key * self.a_query).sum(-1), (key * self.a_key).sum(-1)  # [N, h]
            scores = gat_scores(query_part, key_part, edges, self.negative_slope)
        else:
            query = self._split(self.query_projection(x))
            scores = gatv2_scores(query, key, self.a, edges, self.negative_slope)
        weights = segment_softmax(scores, edges[1], len(x))
        context = mix_edges(F.dropout(weights, self.dropout, self.training), key, edges)
        return context.flatten(1) if self.concat else context.mean(1), weights

    def _split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (self.num_heads, self.d_out))


def _at_the_ends(query: Tensor, key: Tensor, edges: Tensor) -> Tensor:
    """Return for each edge the row of the query it leads to plus that of the key it comes from."""
    source, target = edges
    return query.index_select(0, target) + key.index_select(0, source)


def _check_whole(name: str, numbers: Tensor, other: Tensor) -> None:
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"{name} must be whole numbers, got {numbers.dtype}")
    if numbers.device != other.device:
        raise ValueError(f"{name} must be on the device {other.device}, got {numbers.device}")


def _check_edges(edges: Tensor, other: Tensor, num_nodes: int) -> None:
    _check_whole("edges", edges, other)
    if edges.dim() != 2 or len(edges) != 2:
        raise ValueError(f"edges must have shape [2, E] (sources, targets), got {tuple(edges.shape)}")
    check_range("edges", edges, 0, num_nodes - 1, f"the number of nodes - 1 = {num_nodes - 1}")


def _check_sides(name: str, query: Tensor, other: str, key: Tensor, edges: Tensor) -> None:
    if query.shape != key.shape:
        raise ValueError(
            f"{name} and {other} must have the same shape, "
            f"got {name} {tuple(query.shape)} and {other} {tuple(key.shape)}"
        )
    check_alike(other, key, f"{name}'s", query)
    _check_edges(edges, query, len(query))

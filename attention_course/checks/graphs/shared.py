"""What the exercises of this chapter share: drawing graphs, cases of scores, and the right softmax."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attention_course.checks.engine.asks import Effort
from attention_course.checks.engine.exercise import Case, Inputs

NAME = "17_graphs"
#: LeakyReLU's, for what is below 0; the notebook says so
SLOPE = 0.2
#: a case of so many nodes and edges tells a list of edges from a table of all pairs
NODES, EDGES = 400, 1000
#: no loop over nodes calls torch less often; one over heads does
EFFORT = Effort(entries=50_000, operations=NODES)


def edges(generator: Generator, N: int, E: int, *, deaf: tuple[int, ...] = ()) -> Tensor:
    """[2, E]: edges in no order, the last one a second time the first; none ends in a ``deaf`` node, one
    in each of the others if there are as many."""
    listening = torch.tensor([node for node in range(N) if node not in deaf])
    listening = listening[torch.randperm(len(listening), generator=generator)]
    more = torch.randint(len(listening), (max(0, E - 1 - len(listening)),), generator=generator)
    target = torch.cat((listening, listening[more]))[: E - 1]
    target = target[torch.randperm(len(target), generator=generator)]
    source = torch.randint(N, (E - 1,), generator=generator)
    drawn = torch.stack((source, target))
    return torch.cat((drawn, drawn[:, :1]), dim=1)


def many(generator: Generator) -> Tensor:
    return edges(generator, NODES, EDGES, deaf=(7, NODES - 1))


def cases_of_scores(
    by_hand: Callable[[Generator], Inputs], drawn: Callable[..., Inputs], *, per_node: int
) -> tuple[Case, ...]:
    """Inputs are ``drawn(generator, N, E, h, d)``: the first ``per_node`` of them [N, h, d], edges last."""

    def turned(generator: Generator) -> Inputs:
        """As many nodes as heads and columns, and rows that do not lie one behind the other."""
        inputs = drawn(generator, 4, 9, 4, 4)
        rows = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in inputs[:per_node])
        return *rows, *inputs[per_node:]

    def large(generator: Generator) -> Inputs:
        *rest, _ = drawn(generator, NODES, 5, 2, 3)
        return *rest, many(generator)

    return (
        Case("one decimal", by_hand),
        Case("three heads", lambda g: drawn(g, 5, 9, 3, 4)),
        Case("as many of everything", turned),
        Case("float64", lambda g: drawn(g, 6, 11, 2, 5, dtype=torch.float64)),
        Case(f"{NODES} nodes", large),
        Case("gradient", lambda g: drawn(g, 4, 8, 2, 3), gradient=True),
    )


def leaky(x: Tensor) -> Tensor:
    return F.leaky_relu(x, SLOPE)


def along(target: Tensor, other: Tensor) -> Tensor:
    """``target`` [E] as an index of the shape of ``other`` [E, ...]."""
    return target.view(-1, *[1] * (other.dim() - 1)).expand_as(other)


def highest(scores: Tensor, target: Tensor, number: int) -> Tensor:
    """[number, ...]: each node's largest score, 0 where it has none but -inf."""
    found = scores.new_full((number, *scores.shape[1:]), -torch.inf)
    found = found.scatter_reduce(0, along(target, scores), scores.detach(), "amax")
    return found.masked_fill(found == -torch.inf, 0.0)


def summed(per_edge: Tensor, target: Tensor, number: int) -> Tensor:
    """[number, ...]: the sum over each node's edges."""
    return per_edge.new_zeros(number, *per_edge.shape[1:]).index_add(0, target, per_edge)


def segment_softmax(scores: Tensor, target: Tensor, number: int) -> Tensor:
    powers = (scores - highest(scores, target, number)[target]).exp()
    total = summed(powers, target, number)
    return powers / total.where(total > 0, 1.0)[target]


def last_wins(per_edge: Tensor, target: Tensor, number: int) -> Tensor:
    """What ``table[target] += per_edge`` makes of a table of zeros: of several edges only the last counts."""
    table = per_edge.new_zeros(number, *per_edge.shape[1:])
    place = torch.arange(len(target))
    last = torch.full((number,), -1).scatter_reduce(0, target, place, "amax")
    return table.index_add(0, target[last[target] == place], per_edge[last[target] == place])

"""Exercise 1: every node looks at itself, once."""

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.drawing import integer
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.graphs import shared
from attention_course.checks.graphs.shared import NAME


def _loops(number: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + number).expand(2, -1)


def _others(edges: Tensor) -> Tensor:
    """Those that are no loops."""
    return edges[:, edges[0] != edges[1]]


def _with_self_loops(edges: Tensor, num_nodes: Tensor) -> Tensor:
    return torch.cat((_others(edges), _loops(int(num_nodes))), dim=1)


def _of_those_named(edges: Tensor, num_nodes: Tensor) -> Tensor:
    return torch.cat((_others(edges), edges.unique().expand(2, -1)), dim=1)


def _as_far_as_named(edges: Tensor, num_nodes: Tensor) -> Tensor:
    number = int(edges.max()) + 1 if edges.numel() else 0
    return torch.cat((_others(edges), _loops(number)), dim=1)


def _as_far_as_the_largest(edges: Tensor, num_nodes: Tensor) -> Tensor:
    """The same, which raises where there is no largest."""
    return torch.cat((_others(edges), _loops(int(edges.max()) + 1)), dim=1)


def _merged(edges: Tensor, num_nodes: Tensor) -> Tensor:
    once = list(dict.fromkeys(map(tuple, _others(edges).mT.tolist())))
    return torch.cat((torch.tensor(once, dtype=edges.dtype).view(-1, 2).mT, _loops(int(num_nodes))), dim=1)


def _all_merged(edges: Tensor, num_nodes: Tensor) -> Tensor:
    return torch.cat((edges, _loops(int(num_nodes))), dim=1).unique(dim=1)


def _only_loops(edges: Tensor, num_nodes: Tensor) -> Tensor:
    return torch.cat((edges[:, edges[0] == edges[1]], _loops(int(num_nodes))), dim=1)


def _only_lacking(edges: Tensor, num_nodes: Tensor) -> Tensor:
    loops = _loops(int(num_nodes))
    has = torch.isin(loops[0], edges[0, edges[0] == edges[1]])
    return torch.cat((edges, loops[:, ~has]), dim=1)


def _both_ways(edges: Tensor, num_nodes: Tensor) -> Tensor:
    others = _others(edges)
    return torch.cat((others, others.flip(0), _loops(int(num_nodes))), dim=1)


def _drawn(generator: Generator, N: int, E: int, loops: int, *, most: int | None = None) -> Inputs:
    """``loops`` loops among the edges, the first of them twice; some node is named by no edge but them."""
    drawn = _others(shared.edges(generator, most or N, 2 * E))[:, :E]
    # one twice, and it is no loop; never in the order in which unique() gives them
    drawn = torch.cat((drawn, drawn[:, :1]), dim=1)
    own = torch.randint(most or N, (loops,), generator=generator)
    own = torch.cat((own, own[:1])).expand(2, -1)
    together = torch.cat((drawn, own), dim=1)
    return together[:, torch.randperm(together.shape[1], generator=generator)], torch.tensor(N)


WITH_SELF_LOOPS = Exercise(
    name=f"{NAME}.with_self_loops",
    title="Look at yourself, once",
    points=1,
    difficulty=1,
    minutes=10,
    reference=_with_self_loops,
    returns=("with loops",),
    cases=(
        Case("four nodes", lambda g: _drawn(g, 4, 3, 1)),
        Case("no loops yet", lambda g: _drawn(g, 5, 6, 0)),
        Case("some loops already", lambda g: _drawn(g, 6, 8, 3)),
        Case("nodes that no edge names", lambda g: _drawn(g, 9, 5, 2, most=4)),
        Case("no edges at all", lambda g: (torch.zeros(2, 0, dtype=torch.int64), integer(g, 2, 9))),
    ),
    mistakes=(
        Mistake(
            "a second loop",
            lambda edges, num_nodes: torch.cat((edges, _loops(int(num_nodes))), dim=1),
            "A node that had a loop has two now, and its own value counts double in a softmax. Leave out the "
            "loops that are there before you put all N behind the rest.",
        ),
        Mistake(
            "old loops left where they were",
            _only_lacking,
            "The loops are the right ones, once each, but those that were there before stand among the other "
            "edges. Take them out: all N stand at the end, node 0 first.",
        ),
        Mistake(
            "loops in front",
            lambda edges, num_nodes: torch.cat((_loops(int(num_nodes)), _others(edges)), dim=1),
            "The loops stand in front. The other edges come first, in their order, and then the loops.",
        ),
        Mistake(
            "nodes counted by the edges",
            _as_far_as_named,
            "You take the largest number in edges for the last node. A node that no edge names is a node all "
            "the same: there are num_nodes.",
        ),
        Mistake(
            "nodes counted by the edges, also where there are none",
            _as_far_as_the_largest,
            "You take the largest number in edges for the last node. Where there are no edges there is no "
            "largest, and a node that no edge names is a node all the same: there are num_nodes.",
        ),
        Mistake(
            "only nodes that edges name",
            _of_those_named,
            "Only nodes that stand in some edge get a loop. A node without edges needs it most: it has "
            "nobody else to look at.",
        ),
        Mistake(
            "the others taken out",
            _only_loops,
            "You keep the loops that were there, and drop all other edges. It is the other way round: look "
            "at what your comparison is True for.",
        ),
        Mistake(
            "loops taken out, none put in",
            lambda edges, num_nodes: _others(edges),
            "The loops are gone, and that is all. Put one for each node behind the rest.",
        ),
        Mistake(
            "nothing added",
            lambda edges, num_nodes: edges.clone(),
            "These are the edges as they came. Each node needs one from itself to itself.",
        ),
        Mistake(
            "both directions",
            _both_ways,
            "Each edge is there in both directions now. These edges are directed: the source is looked at, "
            "the target looks.",
        ),
        Mistake(
            "each edge once",
            lambda edges, num_nodes: torch.cat((_others(edges).unique(dim=1), _loops(int(num_nodes))), dim=1),
            "unique() has dropped edges that are listed twice, and sorted the others. Only loops are not to "
            "count twice: everything else stays as it is.",
        ),
        Mistake(
            "each edge once, in order",
            _merged,
            "Edges that are listed twice stand there once. Only loops are not to count twice: everything "
            "else stays as it is.",
        ),
        Mistake(
            "each edge once, loops among them",
            _all_merged,
            "unique() over everything drops the second loops, and also edges that are listed twice; and it "
            "sorts, so that the loops stand among the others. The edges that are no loops stay as they are, "
            "and the loops come behind them.",
        ),
        Mistake(
            "counted from 1",
            lambda edges, num_nodes: torch.cat((_others(edges), _loops(int(num_nodes), 1)), dim=1),
            "The loops run from 1 to N. Nodes are counted from 0.",
        ),
        Mistake(
            "one edge a row",
            lambda edges, num_nodes: _with_self_loops(edges, num_nodes).mT,
            "There is one edge in each row, [E, 2]. Edges are [2, E]: a row of sources above a row of "
            "targets.",
        ),
    ),
    hints=(
        "Two pieces, put side by side: the edges that are no loops, and N loops. By what do you recognise a "
        "loop in a column of edges?",
        "Keep a column where its two nodes differ. The loops are the numbers 0 to N - 1, in both rows.",
        "A boolean index on the second axis keeps columns in their order. The numbers of all nodes, "
        "twice, by stack or expand, are [2, N]; torch.cat joins along dim=1.",
    ),
)

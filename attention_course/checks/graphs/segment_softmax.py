"""Exercise 2: a softmax for each node, over its own edges."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attention_course.checks.engine.asks import Function
from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Inputs, Mistake
from attention_course.checks.graphs import shared
from attention_course.checks.graphs.shared import NAME


def _segment_softmax(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    return shared.segment_softmax(scores, target, int(num_nodes))


def _whole(total: Tensor) -> Tensor:
    """A sum to divide by: 1 where there is nothing."""
    return total.where(total > 0, 1.0)


def _made(
    below: Callable[[Tensor, Tensor, int], Tensor] = shared.highest,
    add: Callable[[Tensor, Tensor, int], Tensor] = shared.summed,
    divisor: Callable[[Tensor], Tensor] = _whole,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The reference with one of its parts replaced: what is subtracted, how a node's edges are added up,
    what is divided by."""

    def segment_softmax(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
        number = int(num_nodes)
        powers = (scores - below(scores, target, number)[target]).exp()
        return powers / divisor(add(powers, target, number))[target]

    return segment_softmax


def _everywhere(number_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, int], Tensor]:
    """One number, taken from all scores, for every node."""
    return lambda scores, target, number: number_of(scores).expand(number, *scores.shape[1:])


def _nothing(scores: Tensor, target: Tensor, number: int) -> Tensor:
    return scores.new_zeros(number, *scores.shape[1:])


def _at_least_zero(scores: Tensor, target: Tensor, number: int) -> Tensor:
    return shared.highest(scores, target, number).clamp_min(0.0)


def _of_each_head(scores: Tensor, target: Tensor, number: int) -> Tensor:
    """Each head's largest score of all edges."""
    return scores.amax(0).expand(number, *scores.shape[1:])


def _all_heads(scores: Tensor, target: Tensor, number: int) -> Tensor:
    """A node's largest score, whichever head it is of."""
    found = shared.highest(scores, target, number)
    return (
        found.amax(tuple(range(1, found.dim())), keepdim=True).expand_as(found) if found.dim() > 1 else found
    )


def _last_score(scores: Tensor, target: Tensor, number: int) -> Tensor:
    return shared.last_wins(scores, target, number)


def _nan_where_hidden(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    """-inf minus -inf."""
    index = shared.along(target, scores)
    highest = scores.new_full((int(num_nodes), *scores.shape[1:]), -torch.inf)
    highest = highest.scatter_reduce(0, index, scores.detach(), "amax")
    powers = (scores - highest[target]).exp()
    return powers / shared.summed(powers, target, int(num_nodes))[target]


def _runs(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    """Each run of equal targets for itself: right where the edges are sorted by their target."""
    _, run = target.unique_consecutive(return_inverse=True)
    return shared.segment_softmax(scores, run, int(run.max()) + 1)


def _left_sorted(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    order = target.argsort(stable=True)
    return _segment_softmax(scores[order], target[order], num_nodes)


def _per_node(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    powers = (scores - shared.highest(scores, target, int(num_nodes))[target]).exp()
    return shared.summed(powers, target, int(num_nodes))


def _averaged(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    ones = torch.ones_like(scores)
    return _segment_softmax(scores, target, num_nodes) / shared.summed(ones, target, int(num_nodes))[target]


def _heads_together(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    powers = (scores - shared.highest(scores, target, int(num_nodes))[target]).exp()
    total = shared.summed(powers, target, int(num_nodes))
    if total.dim() > 1:
        total = total.sum(tuple(range(1, total.dim())), keepdim=True)
    return powers / _whole(total)[target]


def _even(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    ones = torch.ones_like(scores)
    return ones / shared.summed(ones, target, int(num_nodes))[target]


def _zeros_where_anything_is_hidden(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    hidden = shared.summed((scores == -torch.inf).to(scores.dtype), target, int(num_nodes))
    return _segment_softmax(scores, target, num_nodes).masked_fill(hidden[target] > 0, 0.0)


def _logarithms(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    return _segment_softmax(scores, target, num_nodes).log()


def _in_place(scores: Tensor, target: Tensor, num_nodes: Tensor) -> Tensor:
    highest = shared.highest(scores, target, int(num_nodes))
    scores -= highest[target]
    powers = scores.exp()
    return powers / _whole(shared.summed(powers, target, int(num_nodes)))[target]


# Inputs ---------------------------------------------------------------------------------------


def _drawn(
    generator: Generator,
    N: int,
    E: int,
    *rest: int,
    deaf: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    target = shared.edges(generator, N, E, deaf=deaf)[1]
    return normal(generator, E, *rest, dtype=dtype), target, torch.tensor(N)


def _turned(generator: Generator) -> Inputs:
    """Scores whose rows do not lie one behind the other."""
    scores, target, N = _drawn(generator, 5, 9, 3, deaf=(4,))
    return scores.mT.contiguous().mT, target, N


def _hidden(generator: Generator, dtype: torch.dtype = torch.float32) -> Inputs:
    """Edges of -inf: one of node 0's in one head, all of node 1's in both heads."""
    scores, target, N = _drawn(generator, 5, 12, 2, deaf=(3,), dtype=dtype)
    target[-4:] = torch.tensor([0, 0, 2, 0])
    scores[-2] = -torch.inf
    scores[-1, 0] = -torch.inf
    return scores.masked_fill((target == 1)[:, None], -torch.inf), target, N


def _far_apart(generator: Generator) -> Inputs:
    """One node's scores lie far below another's, and another's far above; one head's, too."""
    _, target, N = _drawn(generator, 4, 11, 2)
    # in float64, so that a way by the logarithm of the sum keeps its digits
    heights = torch.tensor([0.0, -3000.0, 5000.0, -2e4], dtype=torch.float64)
    heights = heights[target][:, None] + torch.tensor([0.0, -7000.0], dtype=torch.float64)
    return heights + tenths(generator, 11, 2), target, N


def _below_zero(generator: Generator) -> Inputs:
    _, target, N = _drawn(generator, 4, 9)
    return tenths(generator, 9) - 200.0, target, N


def _below_all_numbers(generator: Generator) -> Inputs:
    """So far below 0 that a large negative number in the place of -inf would be the largest of all."""
    scores, target, N = _hidden(generator)
    return scores.double() - 2e9, target, N


def _many(generator: Generator) -> Inputs:
    scores = normal(generator, shared.EDGES, 2)
    return scores, shared.many(generator)[1], torch.tensor(shared.NODES)


SEGMENT_SOFTMAX = Exercise(
    name=f"{NAME}.segment_softmax",
    title="A softmax for each node",
    points=3,
    difficulty=3,
    minutes=25,
    reference=_segment_softmax,
    asks=Function(effort=shared.EFFORT),
    returns=("weights",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 6), shared.edges(g, 3, 6)[1], torch.tensor(3))),
        Case("several heads, nodes without edges", _turned),
        Case("two axes behind the edges", lambda g: _drawn(g, 4, 8, 2, 3, deaf=(0,))),
        Case("hidden edges", _hidden),
        Case("nodes far apart, float64", _far_apart),
        Case("far below zero", _below_zero),
        Case("below -1e9, float64", _below_all_numbers),
        Case(f"{shared.NODES} nodes", _many),
        Case("gradient", lambda g: _drawn(g, 4, 9, 2, deaf=(3,)), gradient=True),
        Case("gradient with hidden edges", lambda g: _hidden(g, torch.float64), gradient=True),
    ),
    mistakes=(
        Mistake(
            "over all edges",
            lambda scores, target, num_nodes: scores.softmax(0),
            "All edges of the graph share one softmax: together they sum to 1. Each node has one of its own, "
            "over the edges that end in it.",
        ),
        Mistake(
            "over the heads",
            lambda scores, target, num_nodes: scores.softmax(-1),
            "The softmax runs along the last axis, that of the heads. Each head is a graph of weights of its "
            "own; what a softmax runs over are the edges of a node.",
        ),
        Mistake(
            "runs of equal targets",
            _runs,
            "Edges of one node that do not stand next to each other are treated as those of two. Nobody has "
            "sorted them: the target says whose an edge is, wherever it stands.",
        ),
        Mistake(
            "left in another order",
            _left_sorted,
            "The weights are right, and stand in the order of their targets: you have sorted the edges. The "
            "answer is in the order in which they came.",
        ),
        Mistake(
            "no maximum subtracted",
            _made(below=_nothing, divisor=lambda total: total),
            "exp() of a large score is infinite, and that of a score far below 0 is 0, for all edges of a "
            "node alike: 0/0. Subtract the node's largest score first.",
        ),
        Mistake(
            "no maximum subtracted, and sums of 0 made 1",
            _made(below=_nothing),
            "exp() of a large score is infinite, and that of a score far below 0 is 0. Subtract the node's "
            "largest score first: then one of its powers is 1.",
        ),
        Mistake(
            "one maximum for all",
            _made(below=_everywhere(torch.max), divisor=lambda total: total),
            "You subtract the largest score of all edges. For a node far below it, all powers are 0, and 0/0 "
            "is NaN. Each node needs its own maximum.",
        ),
        Mistake(
            "one maximum for all, and sums of 0 made 1",
            _made(below=_everywhere(torch.max)),
            "You subtract the largest score of all edges. A node far below it has powers of 0 only, and gets "
            "no weights. Each node needs its own maximum.",
        ),
        Mistake(
            "one maximum for each head",
            _made(below=_of_each_head),
            "You subtract each head's largest score of all edges. A node far below it has powers of 0 only, "
            "and gets no weights. Each node needs its own maximum.",
        ),
        Mistake(
            "one maximum for all heads",
            _made(below=_all_heads),
            "You subtract a node's largest score of all heads. Where another head's lie far above, the "
            "powers are all 0. Each head of each node needs its own maximum.",
        ),
        Mistake(
            "a maximum of at least 0",
            _made(below=_at_least_zero),
            "The maximum starts from 0 and not from -inf, as in a table of zeros: where all scores of a node "
            "are far below 0, its powers are all 0. include_self=False leaves the table's own numbers out, "
            "or start from -inf.",
        ),
        Mistake(
            "a node's last score subtracted",
            _made(below=_last_score),
            "table[target] = scores keeps the last score of each node, not the largest. scatter_reduce with "
            '"amax" keeps the largest.',
        ),
        Mistake(
            "the last edge alone is added",
            _made(add=shared.last_wins),
            "table[target] += powers reads, adds and writes once: where a node stands in target several "
            "times, only its last edge counts. index_add or scatter_add adds them all.",
        ),
        Mistake(
            "NaN where all is hidden",
            _nan_where_hidden,
            "A node with nothing but hidden edges has the maximum -inf, and -inf minus -inf is NaN. Subtract "
            "0 there, and see to it that nothing is divided by 0: the weights are 0.",
        ),
        Mistake(
            "a large negative number in the place of -inf",
            lambda scores, target, num_nodes: _segment_softmax(scores.clamp_min(-1e9), target, num_nodes),
            "-inf becomes a finite number: a node whose edges are all hidden spreads its attention evenly "
            "over them, and where the scores lie deeper still, the hidden edge wins. A hidden edge weighs 0.",
        ),
        Mistake(
            "zeros wherever anything is hidden",
            _zeros_where_anything_is_hidden,
            "A node with one hidden edge gets no weights at all. Only where all of a node's edges are hidden "
            "are all weights 0.",
        ),
        Mistake(
            "divided by the largest",
            _made(add=shared.highest),
            "You divide by the node's largest power, which is 1. Divide by the sum.",
        ),
        Mistake(
            "heads added up",
            _heads_together,
            "You divide by the sum over all heads of a node: together they sum to 1. Each head for itself.",
        ),
        Mistake(
            "divided by the number of edges as well",
            _averaged,
            "A node's weights sum to 1 divided by the number of its edges. The sum of its powers is all that "
            "is divided by.",
        ),
        Mistake(
            "all edges alike",
            _even,
            "Every edge of a node weighs the same, whatever its score: that is 1 over the number of edges.",
        ),
        Mistake(
            "one entry for each node",
            _per_node,
            "There is one entry for each node: its sum. Every edge is asked for: index the table of sums by "
            "target, and divide.",
        ),
        Mistake(
            "logarithms",
            _logarithms,
            "These are the logarithms of the weights.",
        ),
        Mistake(
            "scores changed in place",
            _in_place,
            "The result is right, but scores itself is overwritten, as -= does. Make a new tensor.",
        ),
    ),
    hints=(
        "Softmax in three steps: subtract the largest, take powers, divide by the sum. The largest and the "
        "sum are tables with an entry for each node, [N, ...]; how does an edge get at the entry of its "
        "node?",
        "table[target] is [E, ...]: an entry for each edge. The other way, from edges to a table: "
        'index_add(0, target, ...) adds, and scatter_reduce(0, index, ..., "amax") takes the largest; its '
        "index has the shape of scores.",
        "Start the table of maxima from -inf, and put 0 where it stays -inf: -inf minus 0 is -inf, and its "
        "power 0. A sum is 0 for such a node only: divide by 1 there. No gradient need flow through the "
        "maxima, since what all scores of a node share changes no weight.",
    ),
)

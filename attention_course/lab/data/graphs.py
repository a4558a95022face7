"""Graphs that experiments read: planted dictionaries, the karate club, and random edges in any number.

Edges are [2, E] as in ``attention_course.beyond.graphs``: sources (keys) over targets (queries).
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

#: how many words a dictionary has
WORDS = 10


class Dictionaries(NamedTuple):
    """Dictionaries as one graph without edges between them; each has ``words`` entries, then questions.

    An entry is a word and its value. A question is a word alone: its value is ``words``, "unknown".
    Every question has an edge from every entry of its own dictionary.
    """

    word: Int[Tensor, " N"]
    value: Int[Tensor, " N"]
    edges: Int[Tensor, "2 E"]
    asking: Int[Tensor, " Q"]  # the nodes that are questions
    answer: Int[Tensor, " Q"]


def dictionaries(size: int, generator: torch.Generator, *, words: int = WORDS) -> Dictionaries:
    """Return ``size`` dictionaries in which all words have other values, drawn anew (Brody et al. 2022).

    Each is the complete bipartite graph of their section 4.1: ``words`` entries, as many questions, one
    for each word, and words² edges from entries to questions.
    """
    value = torch.rand(size, words, generator=generator).argsort(-1)
    unknown = torch.full_like(value, words)
    first = 2 * words * torch.arange(size)[:, None]  # the first node of each dictionary
    entry, question = torch.meshgrid(torch.arange(words), words + torch.arange(words), indexing="xy")
    edges = torch.stack([(first + ends.flatten()).flatten() for ends in (entry, question)])
    return Dictionaries(
        word=torch.arange(words).repeat(2 * size),
        value=torch.cat((value, unknown), dim=1).flatten(),
        edges=edges,
        asking=(first + words + torch.arange(words)).flatten(),
        answer=value.flatten(),
    )


class Club(NamedTuple):
    """Zachary's karate club: who met whom, in both directions, and on whose side each stood later."""

    edges: Int[Tensor, "2 E"]
    side: Int[Tensor, " N"]  # 0: with the instructor, 1: with the officers


def karate_club() -> Club:
    """Return networkx's copy of the club (Zachary 1977): 34 members, 78 friendships, 156 edges."""
    import networkx

    graph = networkx.karate_club_graph()
    pairs = torch.tensor(list(graph.edges)).T  # each friendship once
    sides = [int(graph.nodes[node]["club"] == "Officer") for node in graph.nodes]
    return Club(torch.cat((pairs, pairs.flip(0)), dim=1), torch.tensor(sides))


def random_edges(num_nodes: int, degree: int, generator: torch.Generator) -> Int[Tensor, "2 E"]:
    """Return ``degree`` edges into every node, from sources drawn with replacement, in random order."""
    source = torch.randint(num_nodes, (num_nodes * degree,), generator=generator)
    target = torch.randperm(num_nodes * degree, generator=generator) % num_nodes
    return torch.stack((source, target))

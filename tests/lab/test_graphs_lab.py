"""Chapter 17's graphs and experiments, on tiny models; what training does is claimed on the page."""

import pytest
import torch

from attention_course.beyond.graphs import GraphAttention, with_self_loops
from attention_course.lab.data import graphs as data
from attention_course.lab.experiments import graphs


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_question_hears_its_own_dictionary_and_nobody_else():
    words = 4
    batch = data.dictionaries(3, generator(), words=words)
    dictionary = torch.arange(len(batch.word)) // (2 * words)
    source, target = batch.edges
    assert (dictionary[source] == dictionary[target]).all()
    assert (batch.value[source] < words).all()  # only entries are heard,
    assert (batch.value[batch.asking] == words).all()  # and a question's value is unknown
    assert target.unique(return_counts=True)[1].tolist() == [words] * len(batch.asking)
    assert torch.equal(target.unique(), batch.asking)
    assert len(set(zip(source.tolist(), target.tolist(), strict=True))) == 3 * words**2


def test_the_answer_is_the_value_of_the_word_asked_for():
    batch = data.dictionaries(20, generator())
    source, target = batch.edges
    same = batch.word[source] == batch.word[target]  # one edge for each question
    found = dict(zip(target[same].tolist(), batch.value[source[same]].tolist(), strict=True))
    assert [found[node] for node in batch.asking.tolist()] == batch.answer.tolist()
    answers = batch.answer.view(20, data.WORDS)
    assert torch.equal(answers.sort(-1).values, torch.arange(data.WORDS).expand(20, -1))
    assert len(answers.unique(dim=0)) == 20  # drawn anew


def test_the_club():
    club = data.karate_club()
    assert club.edges.shape == (2, 156) and club.side.bincount().tolist() == [17, 17]
    assert club.side[0] == 0 and club.side[33] == 1  # the instructor and the officer
    there = set(zip(*club.edges.tolist(), strict=True))
    assert len(there) == 156 and {(b, a) for a, b in there} == there


def test_random_edges():
    edges = data.random_edges(50, 3, generator())
    assert edges[1].bincount().tolist() == [3] * 50 and edges[0].max() < 50
    assert not torch.equal(edges[1], edges[1].sort().values)


def test_tables_have_questions_down_and_entries_across():
    batch = data.dictionaries(2, generator(), words=3)
    names = torch.stack(tuple(batch.edges), dim=-1).double()  # each edge carries its own two ends
    tables = graphs.as_tables(names, words=3)
    first = torch.tensor([[[0.0, 1, 2]] * 3, [[3.0] * 3, [4.0] * 3, [5.0] * 3]]).double()
    assert torch.equal(tables[0], first) and torch.equal(tables[1], first + 6)


def test_favourites():
    tables = torch.stack((torch.eye(4), torch.eye(4)[[1, 1, 1, 1]], torch.eye(4)[[0, 0, 2, 2]]))
    assert graphs.favourites(tables).tolist() == [4, 1, 2]


def test_gat_has_one_favourite_whatever_its_weights():
    """And GATv2 has not: this is algebra, and needs no training."""
    batch = data.dictionaries(20, generator())
    for _ in range(3):
        many = {}
        for score in ("gat", "gatv2"):
            with torch.no_grad():
                tables = graphs.as_tables(graphs.LookUp(score, 3, 16)(batch)[1])
            many[score] = graphs.favourites(tables)
        assert (many["gat"] == 1).all() and many["gatv2"].max() > 1


def test_look_up():
    few = {"steps": 2, "held_out": 10}
    first = graphs.look_up("gatv2", 1, 8, seed=0, **few)
    again = graphs.look_up("gatv2", 1, 8, seed=0, **few)
    assert first["accuracy"] == again["accuracy"] and torch.equal(first["weights"], again["weights"])
    assert not torch.equal(first["weights"], graphs.look_up("gatv2", 1, 8, seed=1, **few)["weights"])
    assert first["weights"].shape == (1, 10, 10)
    assert 0 < first["on_word"] < 1 <= first["favourites"] == first["reached"] <= 10
    torch.testing.assert_close(first["weights"].sum(-1), torch.ones(1, 10))


def test_learning_begins():
    model, unseen = graphs.LookUp("gatv2", 1, 16), data.dictionaries(20, generator(9))
    before = graphs.loss(model, unseen).item()
    graphs.train(model, graphs.batches(8, 1), graphs.loss, steps=10, learning_rate=0.01, warmup=1)
    assert graphs.loss(model, unseen) < before


def test_averaging_by_hand():
    edges = with_self_loops(torch.tensor([[1, 2], [0, 0]]), 3)
    x = torch.randn(3, 4)
    mean, gcn = graphs.Averaging(4, 2, "mean"), graphs.Averaging(4, 2, "gcn")
    got, _ = mean(x, edges)
    torch.testing.assert_close(got[0], mean.projection(x).mean(0))
    torch.testing.assert_close(got[1:], mean.projection(x)[1:])
    degree = torch.tensor([3.0, 1.0, 1.0])
    adjacency = torch.tensor([[1.0, 1, 1], [0, 1, 0], [0, 0, 1]]) / (degree[:, None] * degree).sqrt()
    torch.testing.assert_close(gcn(x, edges)[0], adjacency @ gcn.projection(x))


def test_the_club_is_judged_on_the_others():
    kinds = {kind: graphs.club(kind, 4, 0, steps=2) for kind in ("mean", "gcn", "gat")}
    assert kinds["mean"]["entropy"] == pytest.approx(1)
    assert 0 < kinds["gat"]["entropy"] <= 1
    for found in kinds.values():
        assert round(found["accuracy"] * 30) == pytest.approx(found["accuracy"] * 30, abs=1e-4)


def test_over_all_pairs_is_the_same_layer():
    layer, x = GraphAttention(6, 4, 2, score="gat"), torch.randn(20, 6)
    edges = torch.stack(((places := torch.randperm(400)[:60]) % 20, places // 20))
    context, weights = graphs.over_all_pairs(layer, x, graphs.as_mask(edges, 20))
    got, along = layer(x, edges)
    torch.testing.assert_close(got, context)
    torch.testing.assert_close(along, weights[:, edges[1], edges[0]].T)
    assert weights.sum().item() == pytest.approx(along.sum().item(), rel=1e-5)


@pytest.mark.parametrize("way", ["gat", "gatv2"])
def test_memory_grows_with_the_edges(way):
    """Sixteen times the bytes: along edges for sixteen times the nodes, over all pairs for four times."""
    small, large = (graphs.cost(way, n, repeats=1) for n in (64, 1024))
    assert large.num_edges == 16 * small.num_edges == 1024 * graphs.DEGREE
    assert large.bytes / small.bytes == pytest.approx(16, rel=0.05)
    dense = [graphs.cost("dense", n, repeats=1).bytes for n in (64, 256)]
    assert dense[1] / dense[0] == pytest.approx(16, rel=0.1)
    assert large.seconds > 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: graphs.work("sparse", 4), "way"),
        (lambda: graphs.Averaging(2, 2, "max"), "kind"),
        (
            lambda: graphs.over_all_pairs(
                GraphAttention(2, 2), torch.ones(3, 2), torch.ones(3, 3, dtype=torch.bool)
            ),
            "score",
        ),
    ],
)
def test_bad_input(call, words, unchecked):
    with pytest.raises(ValueError, match=words):
        call()

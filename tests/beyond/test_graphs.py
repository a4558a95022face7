"""Attention along edges: by hand, its gradients, against a dense masked table and torch-geometric."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from attention_course.attention import masked_softmax, mix
from attention_course.beyond import graphs
from attention_course.beyond.graphs import GraphAttention, segment_softmax, with_self_loops

# node 2 has no incoming edge, node 4 no edge at all; the sources are never the targets' order
EDGES = torch.tensor([[2, 0, 3, 1, 2, 0, 3], [0, 1, 1, 3, 3, 3, 0]])
N = 5


def drawn(N, E, seed=0):
    """Distinct edges, a few of them loops."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(N * N, generator=generator)[:E]
    return torch.stack((places % N, places // N))


def table(edges, N):
    """The mask [N, N] with queries down, keys across: True where an edge leads from the key to the query."""
    mask = torch.zeros(N, N, dtype=torch.bool)
    mask[edges[1], edges[0]] = True
    return mask


def dense(layer, x, edges):
    """The same layer with all N × N scores and a mask: (context, weights [E, h])."""
    key = layer.key_projection(x).unflatten(-1, (layer.num_heads, layer.d_out)).transpose(0, 1)  # [h, N, d]
    if layer.score == "gat":
        q, k = (key * layer.a_query[:, None]).sum(-1), (key * layer.a_key[:, None]).sum(-1)
        scores = F.leaky_relu(q[:, :, None] + k[:, None, :], layer.negative_slope)
    else:
        query = layer.query_projection(x).unflatten(-1, (layer.num_heads, layer.d_out)).transpose(0, 1)
        pairs = F.leaky_relu(query[:, :, None] + key[:, None], layer.negative_slope)  # [h, N, N, d]
        scores = (pairs * layer.a[:, None, None]).sum(-1)
    weights = masked_softmax(scores, table(edges, len(x)))
    context = mix(weights, key).transpose(0, 1)  # [N, h, d]
    context = context.flatten(1) if layer.concat else context.mean(1)
    return context, weights[:, edges[1], edges[0]].T


def test_segment_softmax_by_hand():
    scores = torch.tensor([0.0, math.log(2), 5.0, math.log(3), 0.0, math.log(4)])
    target = torch.tensor([1, 1, 0, 3, 3, 3])
    want = torch.tensor([1 / 3, 2 / 3, 1.0, 3 / 8, 1 / 8, 4 / 8])
    torch.testing.assert_close(segment_softmax(scores, target, 4), want)


def test_segment_softmax_is_the_softmax_of_each_node():
    scores, target = torch.randn(40, 3, 2, dtype=torch.float64), torch.randint(0, 6, (40,))
    got = segment_softmax(scores, target, 8)
    for node in range(8):
        torch.testing.assert_close(got[target == node], scores[target == node].softmax(0))


def test_segment_softmax_is_stable():
    """One node's scores lie 2,000 above another's: neither overflows, neither comes to 0/0."""
    scores, target = torch.randn(20), torch.arange(20) % 2
    far = scores + torch.where(target == 0, 1000.0, -1000.0).double()
    got = segment_softmax(far.double(), target, 2)
    torch.testing.assert_close(got, segment_softmax(scores.double(), target, 2))


def test_masked_edges():
    scores = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf], requires_grad=True)
    weights = segment_softmax(scores, torch.tensor([0, 0, 1, 1]), 3)
    assert weights.tolist() == [1, 0, 0, 0]
    (weights * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("tied", [False, True])
def test_segment_softmax_gradients(tied):
    """Also where a node's highest score is there twice: the maximum that is subtracted adds nothing."""
    scores = torch.randn(9, 2, dtype=torch.float64)
    if tied:
        scores = scores.round()
        scores[:3] = 7.0
    target = torch.tensor([0, 0, 0, 2, 2, 3, 3, 3, 3])
    inputs = (scores.requires_grad_(), target, 5)
    assert torch.autograd.gradcheck(segment_softmax, inputs)
    assert torch.autograd.gradgradcheck(segment_softmax, inputs)


def test_segment_softmax_backward_is_each_softmax_jacobian():
    scores = torch.randn(12, dtype=torch.float64, requires_grad=True)
    target = torch.arange(12) % 3
    jacobian = torch.autograd.functional.jacobian(lambda s: segment_softmax(s, target, 3), scores)
    weights = segment_softmax(scores, target, 3).detach()
    same = target[:, None] == target[None, :]
    want = torch.diag(weights) - weights[:, None] * weights[None, :] * same
    torch.testing.assert_close(jacobian, want)
    assert (jacobian[~same] == 0).all()  # no node hears of another's scores


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_scores_are_summed_wide(dtype):
    """3,000 equal edges: their sum does not fit bfloat16's 8 bits."""
    weights = segment_softmax(torch.zeros(3000, dtype=dtype), torch.zeros(3000, dtype=torch.long), 1)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights, torch.full((3000,), 1 / 3000, dtype=dtype))


def test_order_of_edges_does_not_matter():
    layer, x, edges = GraphAttention(4, 3, 2), torch.randn(9, 4), drawn(9, 30)
    order = torch.randperm(30)
    context, weights = layer(x, edges)
    again, shuffled = layer(x, edges[:, order])
    torch.testing.assert_close(again, context)
    torch.testing.assert_close(shuffled, weights[order])


def test_an_edge_leads_from_source_to_target():
    """Only the targets hear of a node that is changed."""
    layer, x = GraphAttention(4, 3), torch.randn(N, 4)
    other = x.clone()
    other[2] += 1.0
    moved = (layer(x, EDGES)[0] - layer(other, EDGES)[0]).abs().amax(1) > 0
    assert moved.tolist() == [True, False, False, True, False]


def test_scores_by_hand():
    edges = torch.tensor([[0, 1], [1, 0]])
    query, key = torch.tensor([[1.0], [-3.0]]), torch.tensor([[0.5], [1.0]])
    assert graphs.gat_scores(query, key, edges).flatten().tolist() == pytest.approx([-0.5, 2.0])
    assert graphs.gat_scores(query, key, edges, 0.5).flatten().tolist() == pytest.approx([-1.25, 2.0])
    query = torch.tensor([[[1.0, -1.0]], [[-3.0, 2.0]]])
    key = torch.tensor([[[0.5, 0.0]], [[1.0, 1.0]]])
    a = torch.tensor([[1.0, 10.0]])
    # from 0 to 1: LeakyReLU(-2.5, 2) = (-0.5, 2); from 1 to 0: LeakyReLU(2, 0) = (2, 0)
    got = graphs.gatv2_scores(query, key, a, edges)
    assert got.flatten().tolist() == pytest.approx([-0.5 + 20, 2.0])


@pytest.mark.parametrize("score", graphs.SCORES)
@pytest.mark.parametrize("concat", [True, False])
def test_equals_the_dense_table(score, concat):
    """Values and gradients, with loops, isolated nodes and three heads."""
    layer = GraphAttention(5, 4, 3, score=score, concat=concat).double()
    x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    edges = drawn(11, 40)  # node 11 is isolated
    got, want = layer(x, edges), dense(layer, x, edges)
    probe = torch.randn_like(got[0])
    gradients = [
        torch.autograd.grad((context * probe).sum() + (weights**2).sum(), [x, *layer.parameters()])
        for context, weights in (got, want)
    ]
    for ours, theirs in zip((*got, *gradients[0]), (*want, *gradients[1]), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("score", graphs.SCORES)
def test_layer_gradients(score):
    layer = GraphAttention(3, 2, 2, score=score).double()
    x = torch.randn(N, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, EDGES), (x,))


@pytest.mark.parametrize("score", graphs.SCORES)
def test_isolated_nodes(score):
    """They get a context of 0, and nothing becomes NaN."""
    layer, x = GraphAttention(3, 4, 2, score=score), torch.randn(N, 3, requires_grad=True)
    context, weights = layer(x, EDGES)
    assert (context[[2, 4]] == 0).all() and (context[[0, 1, 3]] != 0).any(1).all()
    context.square().sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in layer.parameters())
    context, weights = layer(x, EDGES[:, :0])
    assert weights.shape == (0, 2) and (context == 0).all()


def test_with_self_loops():
    got = with_self_loops(torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]]), 3)
    assert got.tolist() == [[0, 1, 0, 1, 2], [1, 0, 0, 1, 2]]
    assert torch.equal(with_self_loops(got, 3), got)
    assert with_self_loops(EDGES.int(), N).dtype == torch.int32
    layer, x = GraphAttention(3, 4), torch.randn(N, 3)
    context, _ = layer(x, with_self_loops(EDGES, N))
    torch.testing.assert_close(context[4], layer.key_projection(x[4]))  # an isolated node keeps itself


def test_dropout_and_inputs():
    layer, x = GraphAttention(3, 4, dropout=0.5), torch.randn(N, 3)
    before = x.clone(), EDGES.clone()
    one, weights = layer(x, EDGES)
    two, again = layer(x, EDGES)
    assert not torch.equal(one, two) and torch.equal(weights, again)
    layer.eval()
    assert torch.equal(layer(x, EDGES)[0], layer(x, EDGES)[0])
    assert torch.equal(x, before[0]) and torch.equal(EDGES, before[1])


def test_float16():
    layer, x = GraphAttention(3, 4).half(), torch.randn(N, 3).half()
    context, weights = layer(x, EDGES)
    assert context.dtype == weights.dtype == torch.float16
    want, _ = layer.float()(x.float(), EDGES)
    torch.testing.assert_close(context.float(), want, atol=5e-3, rtol=0)


@pytest.mark.parametrize("heads", [1, 3])
def test_equals_torch_geometric(heads):
    """GATConv and GATv2Conv under shared weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn of is theirs
        nn = pytest.importorskip("torch_geometric.nn")
    x, edges = torch.randn(10, 5), drawn(9, 30)
    theirs = nn.GATConv(5, 4, heads, bias=False, add_self_loops=False)
    ours = GraphAttention(5, 4, heads, score="gat", bias=False)
    with torch.no_grad():
        ours.key_projection.weight.copy_(theirs.lin.weight)
        ours.a_query.copy_(theirs.att_dst[0])
        ours.a_key.copy_(theirs.att_src[0])
    _same(ours, theirs, x, edges)
    # with loops of their own adding
    theirs.add_self_loops = True
    torch.testing.assert_close(ours(x, with_self_loops(edges, 10))[0], theirs(x, edges))

    theirs = nn.GATv2Conv(5, 4, heads, bias=True, add_self_loops=False)
    torch.nn.init.normal_(theirs.lin_r.bias)
    ours = GraphAttention(5, 4, heads, score="gatv2")
    with torch.no_grad():
        ours.key_projection.load_state_dict(theirs.lin_l.state_dict())
        ours.query_projection.load_state_dict(theirs.lin_r.state_dict())
        ours.a.copy_(theirs.att[0])
    _same(ours, theirs, x, edges)


def _same(ours, theirs, x, edges):
    context, (kept, weights) = theirs(x, edges, return_attention_weights=True)
    assert torch.equal(kept, edges)
    got = ours(x, edges)
    torch.testing.assert_close(got[0], context)
    torch.testing.assert_close(got[1], weights)


@pytest.mark.gpu
def test_on_a_gpu():
    layer, x, edges = GraphAttention(5, 4, 2), torch.randn(50, 5), drawn(50, 400)
    context, weights = layer(x, edges)
    there = layer.cuda()(x.cuda(), edges.cuda())
    torch.testing.assert_close(there[0].cpu(), context, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(there[1].cpu(), weights, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: segment_softmax(torch.ones(3, dtype=torch.long), torch.zeros(3).long(), 1),
            TypeError,
            "scores",
        ),
        (lambda: segment_softmax(torch.tensor(1.0), torch.zeros(1).long(), 1), ValueError, "scores"),
        (lambda: segment_softmax(torch.ones(3), torch.zeros(3), 1), TypeError, "target must be whole"),
        (lambda: segment_softmax(torch.ones(3), torch.zeros(2).long(), 1), ValueError, "target must have"),
        (lambda: segment_softmax(torch.ones(3), torch.zeros(3).long() - 1, 1), ValueError, "-1 to -1"),
        (lambda: segment_softmax(torch.ones(3), torch.arange(3), 2), ValueError, "between 0 and num_nodes"),
        (lambda: segment_softmax(torch.ones(1), torch.zeros(1).long().to("meta"), 1), ValueError, "device"),
        (lambda: with_self_loops(EDGES.T, N), ValueError, r"\[2, E\]"),
        (lambda: with_self_loops(EDGES.float(), N), TypeError, "edges must be whole"),
        (lambda: with_self_loops(EDGES, 2), ValueError, "edges must lie"),
        (lambda: graphs.gat_scores(torch.ones(N, 2), torch.ones(N, 1), EDGES), ValueError, "query_part"),
        (
            lambda: graphs.gat_scores(torch.ones(N, 2), torch.ones(N, 2).double(), EDGES),
            TypeError,
            "key_part",
        ),
        (lambda: graphs.gat_scores(torch.ones(3, 2), torch.ones(3, 2), EDGES), ValueError, "edges must lie"),
        (
            lambda: graphs.gatv2_scores(torch.ones(N, 2, 3), torch.ones(N, 2, 3), torch.ones(2, 2), EDGES),
            ValueError,
            "a must have",
        ),
        (
            lambda: graphs.gatv2_scores(torch.ones(N, 2, 3), torch.ones(N, 2, 2), torch.ones(2, 3), EDGES),
            ValueError,
            "same shape",
        ),
        (
            lambda: graphs.mix_edges(torch.ones(7, 1), torch.ones(2, 1, 3), EDGES),
            ValueError,
            "edges must lie",
        ),
        (lambda: graphs.mix_edges(torch.ones(7, 1), torch.ones(N, 2, 3), EDGES), ValueError, "weights"),
        (lambda: GraphAttention(3, 4, score="dot"), ValueError, "score"),
        (lambda: GraphAttention(3, 4, 0), ValueError, "num_heads"),
        (lambda: GraphAttention(3, 4, dropout=1.0), ValueError, "dropout"),
        (lambda: GraphAttention(3, 4)(torch.ones(N, 2), EDGES), ValueError, "x must have"),
        (lambda: GraphAttention(3, 4)(torch.ones(N, 3), EDGES + 2), ValueError, "edges must lie"),
    ],
)
def test_bad_input(call, error, words, unchecked):
    with pytest.raises(error, match=words):
        call()

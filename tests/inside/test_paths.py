"""Rollout and flow: by hand, against loops, and where they must agree."""

import itertools

import pytest
import torch

from attention_course import inside

LOOK_LEFT = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64).softmax(-1)


def test_two_layers_by_hand():
    got = inside.rollout(torch.stack((LOOK_LEFT, LOOK_LEFT)))
    half = 0.5 * torch.eye(3) + 0.5 * LOOK_LEFT
    assert torch.equal(got, half @ half)
    assert got[2].tolist() == [0.25, 0.5, 0.25]  # the last token has heard of the first through the second


def test_the_top_layer_stands_at_the_left():
    first, second = drawn(2, 4, 4)
    got = inside.rollout(torch.stack((first, second)), residual=0.0)
    torch.testing.assert_close(got, second @ first)
    assert not torch.allclose(got, first @ second)


def test_rows_sum_to_one_also_where_a_query_is_blind():
    weights = drawn(3, 2, 5, 5)
    weights[1, 0, 2] = 0
    got = inside.rollout(weights)
    assert got.shape == (2, 5, 5)
    torch.testing.assert_close(got.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    for residual in (0.5, 0.0):
        assert torch.equal(inside.rollout(torch.zeros(2, 3, 3), residual=residual), torch.eye(3))


def test_rollout_sums_over_paths():
    layers, T = 3, 3
    weights = drawn(layers, T, T)
    steps = 0.3 * torch.eye(T) + 0.7 * weights
    want = torch.zeros(T, T, dtype=torch.float64)
    for path in itertools.product(range(T), repeat=layers + 1):  # from the top down
        share = 1.0
        for level in range(layers):
            share *= steps[layers - 1 - level, path[level], path[level + 1]].item()
        want[path[0], path[-1]] += share
    torch.testing.assert_close(inside.rollout(weights, residual=0.3), want)


def test_flow_of_one_layer_is_the_layer():
    weights = drawn(1, 4, 4)
    torch.testing.assert_close(inside.flow(weights), 0.5 * torch.eye(4) + 0.5 * weights[0])


def test_flow_by_hand():
    """From the last token to the first: only through the second, so no more than that carries."""
    got = inside.flow(torch.stack((LOOK_LEFT, LOOK_LEFT)))
    assert got[2].tolist() == [0.5, 1.0, 0.5]
    assert got[0].tolist() == [1.0, 0.0, 0.0]


def test_flow_is_a_minimum_cut():
    """The largest flow equals the smallest cut, tried out over all of them."""
    weights = drawn(2, 3, 3).float().double()
    steps = 0.5 * torch.eye(3) + 0.5 * weights
    got = inside.flow(weights)
    for i, j in itertools.product(range(3), repeat=2):
        cuts = []
        for kept in itertools.product((False, True), repeat=3):  # middle tokens on the source's side
            # the other top tokens have no way in, the other input tokens no way out: both cost nothing
            down = sum(steps[1, i, m].item() for m in range(3) if not kept[m])
            cuts.append(down + sum(steps[0, m, j].item() for m in range(3) if kept[m]))
        assert got[i, j].item() == pytest.approx(min(cuts))


@pytest.mark.parametrize("function", [inside.rollout, inside.flow])
def test_refusals(function, unchecked):
    with pytest.raises(ValueError, match=r"\[layers, ..., T, T\], got \(3, 3\)"):
        function(LOOK_LEFT)
    with pytest.raises(ValueError, match=r"got \(2, 3, 4\)"):
        function(torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="residual must be at least 0 and below 1, got 1"):
        function(LOOK_LEFT[None], residual=1.0)

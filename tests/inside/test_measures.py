"""Entropy, distance and divergence, against loops and by hand."""

import math

import pytest
import torch

from attention_course import inside

ONE, HALF = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.5, 0.5, 0.0])
THIRD = torch.full((3,), 1 / 3)


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64).softmax(-1)


def padded(lengths, h, T):
    """Weights of a batch in which no real query looks at padding; padded queries look at all words."""
    keys = torch.arange(T) < torch.tensor(lengths)[:, None]
    scores = torch.randn(len(lengths), h, T, T, dtype=torch.float64)
    return scores.masked_fill(~keys[:, None, None], -torch.inf).softmax(-1)


def test_by_hand():
    weights = torch.stack((ONE, HALF, THIRD)).unsqueeze(0)  # one head
    torch.testing.assert_close(inside.entropy(weights), torch.tensor([(math.log(2) + math.log(3)) / 3]))
    # query 0 looks at 0; query 1 half at 0, half at itself; query 2 a third each at 2, 1 and 0 away
    torch.testing.assert_close(inside.distance(weights), torch.tensor([(0 + 0.5 + 1) / 3]))


def test_divergence_by_hand():
    apart = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]])  # three heads, one query
    got = inside.divergence(apart)
    assert torch.equal(got, got.T) and torch.equal(got.diag(), torch.zeros(3))
    middle = -0.75 * math.log(0.75) - 0.25 * math.log(0.25) - 0.5 * math.log(2)
    torch.testing.assert_close(got[0, 1:], torch.tensor([math.log(2), middle]))


def test_divergence_is_never_negative():
    """Of heads that are nearly alike, rounding alone would make it so."""
    scores = torch.randn(50, 1, 4, 8)
    alike = (scores + 1e-4 * torch.randn(50, 2, 4, 8)).softmax(-1)
    assert inside.divergence(alike).min() == 0


def test_padding_counts_nowhere():
    lengths, h, T = [5, 2, 1], 3, 5
    weights = padded(lengths, h, T)
    counted = torch.tensor(lengths)
    for b, n in enumerate(lengths):
        alone = weights[b, :, :n, :n]
        for measure in (inside.entropy, inside.distance, inside.divergence):
            torch.testing.assert_close(measure(weights, counted)[b], measure(alone))
    # with a leading axis for the layers
    stacked = torch.stack((weights, weights))
    torch.testing.assert_close(inside.entropy(stacked, counted)[1], inside.entropy(weights, counted))


def test_loops():
    weights = drawn(2, 4, 4)
    for head in range(2):
        rows = weights[head].tolist()
        entropy = sum(-sum(w * math.log(w) for w in row) for row in rows) / 4
        away = sum(sum(w * abs(i - j) for j, w in enumerate(row)) for i, row in enumerate(rows)) / 4
        assert inside.entropy(weights)[head].item() == pytest.approx(entropy)
        assert inside.distance(weights)[head].item() == pytest.approx(away)


def test_a_query_that_looks_nowhere_does_not_count():
    weights = torch.stack((torch.zeros(3), THIRD, THIRD)).unsqueeze(0)
    torch.testing.assert_close(inside.entropy(weights), torch.tensor([math.log(3)]))
    assert torch.equal(inside.entropy(torch.zeros(2, 3, 3)), torch.zeros(2))
    assert torch.equal(inside.divergence(torch.zeros(2, 3, 3)), torch.zeros(2, 2))


def test_the_last_query_stands_at_the_last_key():
    assert inside.distance(ONE[None, None]).item() == 2  # one query of three tokens: the last one


def test_gradients_are_finite_at_zero():
    weights = torch.stack((ONE, HALF, THIRD)).unsqueeze(0).requires_grad_()
    inside.distance(weights).sum().backward()
    assert weights.grad.isfinite().all()


def test_refuses_lengths_that_do_not_fit():
    weights = padded([3, 2], 2, 3)
    with pytest.raises(ValueError, match=r"lengths \(3,\) and weights \(2, 2, 3, 3\)"):
        inside.entropy(weights, torch.tensor([3, 2, 1]))
    with pytest.raises(ValueError, match=r"weights \[..., B, h, T, T\]"):
        inside.distance(weights[0], torch.tensor([3, 2]))
    with pytest.raises(ValueError, match=r"0 on padding, got up to .* was the mask passed on"):
        inside.entropy(drawn(2, 2, 3, 3), torch.tensor([3, 2]))

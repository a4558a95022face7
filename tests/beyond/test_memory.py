"""Acting with memory: returns, the policy gradient, who may look at whom, and the two policies."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_course import masks
from attention_course.beyond.memory import (
    AttentionPolicy,
    RecurrentPolicy,
    policy_loss,
    returns,
    same_episode,
)
from attention_course.lab.measure.numbers import count_parameters
from attention_course.positions import Sinusoidal

F64 = torch.float64
ENDS = torch.tensor(
    [[False, False, True, False, True, False, False], [True, False, False, False, False, True, True]]
)


def policies():
    return [
        AttentionPolicy(3, 2).double(),
        AttentionPolicy(3, 2, num_heads=4).double(),
        RecurrentPolicy(3, 2).double(),
    ]


class TestReturns:
    def test_by_hand(self):
        rewards = torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]])
        assert returns(rewards, 0.5).tolist() == [[2.0, 1.0], [2.0, 2.0], [4.0, 0.0]]

    @given(T=st.integers(1, 6), B=st.integers(1, 3), discount=st.floats(0, 1), seed=st.integers(0, 99))
    def test_each_episode_is_summed_alone(self, T, B, discount, seed):
        generator = torch.Generator().manual_seed(seed)
        rewards = torch.randn(T, B, dtype=F64, generator=generator)
        done = torch.rand(T, B, generator=generator) < 0.4
        found = returns(rewards, discount, done)
        for t in range(T):
            for b in range(B):
                total, factor = 0.0, 1.0
                for later in range(t, T):
                    total += factor * rewards[later, b].item()
                    factor *= discount
                    if done[later, b]:
                        break
                assert found[t, b].item() == pytest.approx(total, abs=1e-12)

    def test_without_discount_there_is_only_the_present(self):
        rewards = torch.randn(4, 2)
        assert torch.equal(returns(rewards, 0.0), rewards)

    def test_the_rewards_stay_as_they_are(self):
        rewards = torch.ones(3, 1)
        returns(rewards, 1.0)
        assert torch.equal(rewards, torch.ones(3, 1))

    def test_nothing_lived_brings_nothing(self):
        assert returns(torch.zeros(0, 3), 1.0).shape == (0, 3)

    @pytest.mark.parametrize("discount", [-0.1, 1.1, math.nan])
    def test_a_discount_lies_between_0_and_1(self, discount):
        with pytest.raises(ValueError, match="discount must lie between 0 and 1"):
            returns(torch.zeros(2, 2), discount)

    def test_shapes_and_kinds(self, unchecked):
        with pytest.raises(ValueError, match=r"rewards must have shape \[T, B\], got \(3,\)"):
            returns(torch.zeros(3), 1.0)
        with pytest.raises(ValueError, match=r"done must have shape \(2, 3\), got \(3, 2\)"):
            returns(torch.zeros(2, 3), 1.0, torch.zeros(3, 2, dtype=torch.bool))
        with pytest.raises(TypeError, match="done must be boolean"):
            returns(torch.zeros(2, 3), 1.0, torch.zeros(2, 3))


class TestPolicyLoss:
    def test_by_hand(self):
        log_probs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
        gains = torch.tensor([[1.0, 0.0], [5.0, 9.0]])
        alive = torch.tensor([[True, True], [True, False]])  # baseline (1 + 0 + 5) / 3 = 2
        expected = -(-1 * (1 - 2) + -2 * (0 - 2) + -3 * (5 - 2)) / 2
        assert policy_loss(log_probs, gains, alive).item() == pytest.approx(expected)
        assert policy_loss(log_probs, gains, alive, baseline=False).item() == pytest.approx(8.0)

    def test_its_gradient_is_that_of_the_expected_return(self):
        """Every action once, each as often as it is likely: the estimate's mean against autograd's."""
        logits = torch.randn(4, dtype=F64, requires_grad=True)
        gain = torch.randn(4, dtype=F64)
        expected = torch.autograd.grad(logits.softmax(0) @ gain, logits)[0]
        estimate = torch.zeros(4, dtype=F64)
        for action in range(4):
            loss = policy_loss(
                logits.log_softmax(0)[action].view(1, 1),
                gain[action].view(1, 1),
                torch.ones(1, 1, dtype=torch.bool),
                baseline=False,
            )
            estimate -= logits.softmax(0)[action].item() * torch.autograd.grad(loss, logits)[0]
        torch.testing.assert_close(estimate, expected)

    def test_the_batch_mean_makes_it_smaller_by_one_part_in_b_and_no_other(self):
        """All pairs of actions of two episodes: half of the policy gradient, because B = 2."""
        logits = torch.randn(3, dtype=F64, requires_grad=True)
        gain = torch.randn(3, dtype=F64)
        expected = torch.autograd.grad(logits.softmax(0) @ gain, logits)[0]
        alive, mean = torch.ones(1, 2, dtype=torch.bool), torch.zeros(3, dtype=F64)
        for pair in torch.cartesian_prod(torch.arange(3), torch.arange(3)):
            loss = policy_loss(logits.log_softmax(0)[pair][None], gain[pair][None], alive)
            mean -= logits.softmax(0)[pair].prod().item() * torch.autograd.grad(loss, logits)[0]
        torch.testing.assert_close(mean, expected / 2)

    def test_no_gradient_through_the_returns(self):
        log_probs = torch.randn(3, 2, requires_grad=True)
        gains = torch.randn(3, 2, requires_grad=True)
        policy_loss(log_probs, gains, torch.ones(3, 2, dtype=torch.bool)).backward()
        assert gains.grad is None and log_probs.grad is not None

    def test_padding_says_nothing(self):
        log_probs, gains = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2)
        alive = torch.tensor([[True, True], [True, False], [False, False]])
        before = policy_loss(log_probs, gains, alive)
        before.backward()
        assert (log_probs.grad[~alive] == 0).all() and (log_probs.grad[alive] != 0).all()
        other = torch.where(alive, log_probs.detach(), -torch.inf)
        for hidden in (7.0, torch.inf, torch.nan):
            assert torch.equal(policy_loss(other, gains.where(alive, hidden), alive), before.detach())

    def test_shapes_and_kinds(self, unchecked):
        grid, alive = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"same shape \[T, B\], got \(2, 3\) and \(3, 2\)"):
            policy_loss(grid, grid.mT, alive)
        with pytest.raises(ValueError, match=r"alive must have shape \(2, 3\), got \(3, 2\)"):
            policy_loss(grid, grid, alive.mT)
        with pytest.raises(TypeError, match="alive must be boolean"):
            policy_loss(grid, grid, alive.float())
        with pytest.raises(ValueError, match="alive must be True at one step at least"):
            policy_loss(grid, grid, ~alive)


class TestSameEpisode:
    def test_by_hand(self):
        seen = same_episode(torch.tensor([[False, True, False, False]]))
        assert seen[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]

    def test_one_episode_is_the_causal_mask(self):
        assert torch.equal(same_episode(torch.zeros(2, 5, dtype=torch.bool)), masks.causal(5).expand(2, 5, 5))

    @given(st.lists(st.booleans(), min_size=1, max_size=8))
    def test_nothing_later_and_no_end_between(self, ends):
        seen = same_episode(torch.tensor([ends]))[0]
        for query in range(len(ends)):
            for key in range(len(ends)):
                assert seen[query, key] == (key <= query and not any(ends[key:query]))

    def test_shapes_and_kinds(self, unchecked):
        with pytest.raises(TypeError, match="done must be boolean"):
            same_episode(torch.zeros(2, 3))
        with pytest.raises(ValueError, match=r"done must have shape \[B, T\], got \(3,\)"):
            same_episode(torch.zeros(3, dtype=torch.bool))


class TestPolicies:
    def test_equal_size(self):
        one, other = count_parameters(AttentionPolicy(3, 2)), count_parameters(RecurrentPolicy(3, 2))
        assert (one, other) == (3194, 3212) and abs(one / other - 1) < 0.02

    @pytest.mark.parametrize("which", range(3))
    def test_packed_episodes_equal_episodes_alone(self, which):
        policy, seen = policies()[which], torch.randn(2, 7, 3, dtype=F64)
        packed, _ = policy(seen, ENDS)
        for row, ends in enumerate(ENDS):
            bounds = [0, *(ends.nonzero().flatten() + 1).tolist(), 7]
            for start, end in pairwise(bounds):
                if start < end:
                    alone, _ = policy(seen[row : row + 1, start:end])
                    torch.testing.assert_close(packed[row : row + 1, start:end], alone)

    @pytest.mark.parametrize("which", range(3))
    def test_the_past_decides_and_the_future_does_not(self, which):
        policy, seen = policies()[which], torch.randn(1, 6, 3, dtype=F64, requires_grad=True)
        policy(seen)[0][0, 3].sum().backward()
        moved = seen.grad[0].abs().sum(-1)
        assert (moved[:4] > 0).all() and (moved[4:] == 0).all()

    def test_weights_are_those_of_the_steps_own_episode(self):
        _, weights = AttentionPolicy(3, 2, num_heads=2)(torch.randn(2, 7, 3), ENDS, need_weights=True)
        assert weights.shape == (2, 2, 7, 7)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 7))
        assert (weights[~same_episode(ENDS)[:, None].expand_as(weights)] == 0).all()
        assert AttentionPolicy(3, 2)(torch.randn(2, 7, 3))[1] is None

    def test_without_positions_the_order_of_the_past_does_not_matter(self):
        seen = torch.randn(1, 6, 3, dtype=F64)
        swapped = seen[:, [2, 1, 0, 3, 4, 5]]
        plain, placed = AttentionPolicy(3, 2), AttentionPolicy(3, 2, positions=Sinusoidal(24))
        for policy, same in ((plain, True), (placed, False)):
            policy.double()
            assert torch.allclose(policy(seen)[0][:, -1], policy(swapped)[0][:, -1]) is same

    @pytest.mark.parametrize("build", [AttentionPolicy, RecurrentPolicy])
    def test_shapes_and_sizes(self, build, unchecked):
        with pytest.raises(ValueError, match="observations must have shape"):
            build(3, 2)(torch.zeros(1, 4, 5))
        with pytest.raises(ValueError, match="num_actions must be at least 1, got 0"):
            build(3, 0)
        with pytest.raises(TypeError, match="done must be boolean"):
            build(3, 2)(torch.zeros(1, 4, 3), torch.zeros(1, 4))

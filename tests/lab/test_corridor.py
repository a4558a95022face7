"""The corridor: one agent's environment, and its twin that makes whole batches, walked side by side."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from attention_course.lab.data import corridor
from attention_course.lab.data.corridor import Corridor, draw, rewards


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class TestCorridor:
    @pytest.mark.parametrize(
        "settings", [{}, {"length": 5, "shortest": 0}, {"length": 0}, {"flagged": False}]
    )
    def test_gymnasium_finds_no_fault(self, settings):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(Corridor(**settings), skip_render_check=True)

    def test_a_walk_by_hand(self):
        env = Corridor(length=2)
        seen, _ = env.reset(options={"signals": [-1, 1, -1]})
        walk = [seen.tolist()]
        for action in (1, 1, 1):
            seen, reward, terminated, truncated, _ = env.step(action)
            assert (reward, terminated, truncated) == (0, False, False)
            walk.append(seen.tolist())
        assert walk == [[-1, 1, 0], [1, 0, 0], [-1, 0, 0], [0, 0, 1]]
        _, reward, terminated, truncated, _ = env.step(0)
        assert (reward, terminated, truncated) == (1, True, False)

    @pytest.mark.parametrize(("cue", "action", "reward"), [(1, 1, 1), (1, 0, 0), (-1, 1, 0), (-1, 0, 1)])
    def test_only_the_way_of_the_cue_is_rewarded(self, cue, action, reward):
        env = Corridor(length=0)
        env.reset(options={"signals": [cue]})
        env.step(action)
        assert env.step(action)[1:3] == (reward, True)

    def test_the_same_seed_walks_the_same_way(self):
        first, other = Corridor(length=6, shortest=1), Corridor(length=6, shortest=1)
        first.reset(seed=3), other.reset(seed=3)
        assert first.signals == other.signals
        lengths, cues = set(), set()
        for _ in range(100):
            first.reset()
            lengths.add(len(first.signals) - 1)
            cues.add(first.signals[0])
        assert lengths == set(range(1, 7)) and cues == {-1, 1}

    def test_no_step_without_a_walk(self):
        env = Corridor(length=0)
        with pytest.raises(gymnasium.error.ResetNeeded, match="call reset before step"):
            env.step(0)
        env.reset()
        env.step(0), env.step(0)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(0)


class TestTwin:
    @pytest.mark.parametrize("flagged", [True, False])
    @pytest.mark.parametrize(("length", "shortest", "walks"), [(5, None, 1), (6, 0, 1), (4, 1, 3), (0, 0, 2)])
    def test_step_by_step_they_are_the_same(self, length, shortest, walks, flagged):
        rows = draw(12, generator(), length, shortest=shortest, walks=walks, flagged=flagged)
        actions = torch.randint(corridor.ACTIONS, rows.way.shape, generator=generator(1))
        reward = rewards(rows, actions)
        env = Corridor(length, shortest=shortest, flagged=flagged)
        assert rows.way.shape == (12, walks * (length + 2))
        for b in range(12):
            t = 0
            for _ in range(walks):
                end = t + rows.junction[b, t:].int().argmax().item()
                signals = rows.observations[b, t:end, 0].int().tolist()
                assert env.shortest <= len(signals) - 1 <= env.length
                seen, _ = env.reset(options={"signals": signals})
                terminated = False
                while not terminated:
                    assert np.array_equal(seen, rows.observations[b, t].numpy())
                    assert rows.alive[b, t] and rows.way[b, t] == (signals[0] == 1)
                    seen, gained, terminated, _, _ = env.step(actions[b, t].item())
                    assert gained == reward[b, t].item() and terminated == rows.junction[b, t].item()
                    t += 1
            assert not rows.alive[b, t:].any() and not rows.junction[b, t:].any()
            assert (rows.observations[b, t:] == 0).all() and (reward[b, t:] == 0).all()

    def test_cues_lengths_and_signals_are_drawn_alike(self):
        rows = draw(4000, generator(), 4, shortest=2)
        assert rows.way[:, 0].float().mean().item() == pytest.approx(0.5, abs=0.05)
        lengths = rows.alive.sum(1) - 2
        assert torch.bincount(lengths).tolist()[:2] == [0, 0]
        assert torch.bincount(lengths)[2:].float().div(4000).tolist() == pytest.approx([1 / 3] * 3, abs=0.04)
        product = rows.observations[:, 0, 0] * rows.observations[:, 1, 0]
        assert product.mean().item() == pytest.approx(0, abs=0.08)  # what the corridor shows says nothing

    @pytest.mark.parametrize("build", [Corridor, lambda *a, **k: draw(2, generator(), *a, **k)])
    @pytest.mark.parametrize(("length", "shortest"), [(3, 4), (3, -1), (-1, None)])
    def test_lengths_lie_in_order(self, build, length, shortest):
        with pytest.raises(ValueError, match="shortest must lie between 0 and length"):
            build(length, shortest=shortest)

    def test_a_row_holds_a_walk_at_least(self):
        with pytest.raises(ValueError, match="walks must be at least 1, got 0"):
            draw(2, generator(), 3, walks=0)

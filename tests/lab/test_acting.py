"""Chapter 18's experiment: what is drawn, what is learned from, and that training learns."""

import pytest
import torch

from attention_course.lab.data.corridor import draw, rewards
from attention_course.lab.experiments import memory


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_actions_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([0.0, 2.0]).expand(4000, 2, 2)
    drawn = memory.chosen(logits, generator())
    assert drawn.shape == (4000, 2)
    assert drawn.float().mean().item() == pytest.approx(torch.tensor(2.0).sigmoid().item(), abs=0.03)


def test_only_junctions_teach():
    rows = draw(6, generator(), 4, shortest=1, walks=2)
    logits = torch.randn(*rows.way.shape, 2, requires_grad=True)
    actions = memory.chosen(logits, generator())
    memory.loss_of(logits, rows, actions).backward()
    moved = logits.grad.abs().sum(-1) > 0
    assert torch.equal(moved, rows.junction)


def test_the_loss_raises_what_was_rewarded_above_the_mean():
    rows = draw(8, generator(), 2)
    logits = torch.zeros(*rows.way.shape, 2, requires_grad=True)
    actions = memory.chosen(logits, generator())
    gained = rewards(rows, actions)
    memory.loss_of(logits, rows, actions).backward()
    taken = -logits.grad.gather(-1, actions[..., None])[..., 0][rows.junction]  # which way a step moves it
    assert torch.equal(taken > 0, gained[rows.junction] > gained[rows.junction].mean())


def test_a_walk_is_judged_by_its_own_reward_alone():
    rows = draw(6, generator(), 3, shortest=1, walks=2)
    logits = torch.randn(*rows.way.shape, 2)
    actions = memory.chosen(logits, generator())
    taken = logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0][rows.junction]
    gained = rewards(rows, actions)[rows.junction]
    expected = -(taken * (gained - gained.mean())).sum() / 6
    torch.testing.assert_close(memory.loss_of(logits, rows, actions), expected)


def test_the_mean_return_is_that_of_a_walk():
    rows = draw(5, generator(), 3, shortest=1, walks=3)
    assert memory.mean_return(rows, rows.way) == 1
    assert memory.mean_return(rows, 1 - rows.way) == 0


def test_attention_learns_a_short_corridor():
    found = memory.trial("attention", 3, seed=0, updates=100, learning_rate=0.01)
    assert found["solved"] is not None and found["return"] > 0.95
    assert len(found["returns"]) == found["solved"] and found["parameters"] == 3194


def test_what_is_not_learned_is_not_called_so():
    found = memory.trial("GRU", 5, seed=0, updates=12, learning_rate=0.0)
    assert found["solved"] is None and len(found["returns"]) == 12 and 0.3 < found["return"] < 0.7


@pytest.mark.parametrize("kind", ["attention", "GRU"])
def test_without_a_reset_memory_runs_on(kind):
    rows = draw(4, generator(), 3, walks=2)
    torch.manual_seed(0)
    policy = memory.policy_for(kind)
    whole, _ = policy(rows.observations)
    cut, _ = policy(rows.observations, rows.junction)
    torch.testing.assert_close(whole[:, :5], cut[:, :5])
    assert not torch.allclose(whole[:, 5:], cut[:, 5:])


@pytest.mark.parametrize("reset", [True, False])
def test_trying_out_hands_on_whether_to_reset(reset):
    rows, seen = draw(4, generator(), 3, walks=2), []

    class Spy(torch.nn.Module):
        def forward(self, observations, done=None):
            seen.append(done)
            return torch.zeros(*observations.shape[:2], 2), None

    memory.tried(Spy(), rows, generator(), reset=reset)
    assert (seen[0] is not None) is reset


def test_a_kind_that_is_none(unchecked):
    with pytest.raises(ValueError, match="kind must be"):
        memory.policy_for("LSTM")
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        memory.trial("GRU", 3, 0, updates=0)

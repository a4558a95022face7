import math

import pytest
import torch

from attention_course.heads import MultiHeadAttention
from attention_course.lab.experiments import relations
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_slot_asks_for_the_value_of_the_item_it_names():
    batch = relations.draw(20, generator())
    slots = batch.asked.unflatten(-1, (relations.RELATIONS, relations.KEY_WIDTH))
    for scene in range(20):
        for asked, answer in zip(slots[scene], batch.answer[scene], strict=True):
            found = (asked[:, None] == batch.key[scene]).all(-1)  # [relations, items]
            assert found.sum(-1).tolist() == [1] * relations.RELATIONS
            item = found.int().argmax(-1)
            assert len(set(item.tolist())) == relations.RELATIONS  # four different items
            assert torch.equal(batch.value[scene, item], answer)


def test_keys_are_new_in_every_scene_and_values_are_all_used():
    batch = relations.draw(200, generator())
    assert batch.key.flatten(0, 1).unique(dim=0).shape[0] == 200 * relations.ITEMS
    assert batch.answer.flatten().bincount(minlength=relations.VALUES).min() > 0


def test_the_same_seed_gives_the_same_batches():
    one, other = relations.batches(4, seed=1), relations.batches(4, seed=1)
    first = next(one)
    assert all(torch.equal(a, b) for a, b in zip(first, next(other), strict=True))
    assert not torch.equal(first.key, next(one).key)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_number_of_relations_is_free(count):
    batch = relations.draw(3, generator(), relations=count)
    assert batch.answer.shape == (3, relations.QUERIES, count)
    model = relations.OneLayer(1, 4, seed=0, relations=count)
    assert model(batch)[0].shape == (1, 3, relations.QUERIES, count, relations.VALUES)


def test_every_number_of_heads_has_the_same_number_of_parameters():
    counts = {count_parameters(relations.OneLayer(1, h, seed=0)) for h in (1, 2, 4, 8, 16, 32)}
    assert counts == {24_064}
    assert count_parameters(relations.OneLayer(1, 16, d_k=16, seed=0)) == 24_064 + 4 * 64 * (256 - 64)


def test_it_is_the_packages_multi_head_attention():
    model = relations.OneLayer(2, 4, seed=0)
    batch = relations.draw(3, generator())
    logits, weights = model(batch)
    for run in range(2):
        heads = MultiHeadAttention(64, 4, bias=False)
        names = ("query", "key", "value", "output")
        heads.load_state_dict(
            {f"{name}_projection.weight": getattr(model, f"w_{name}")[run].T for name in names}
        )
        items = torch.cat((batch.key, torch.eye(relations.VALUES)[batch.value]), dim=-1)
        x, asked = items @ model.item[run], batch.asked @ model.asked[run]
        output, expected = heads(asked, x, need_weights=True)
        torch.testing.assert_close(weights[run], expected)
        torch.testing.assert_close(logits[run].flatten(-2), output @ model.w_answer[run])


def test_runs_do_not_see_each_other():
    model = relations.OneLayer(3, 4, seed=0)
    batch = relations.draw(8, generator())
    relations.loss(model, batch).backward()
    together = model.w_query.grad[1].clone()
    alone = relations.OneLayer(1, 4, seed=0)
    alone.load_state_dict({name: p[1:2] for name, p in model.state_dict().items()})
    relations.loss(alone, batch).backward()
    torch.testing.assert_close(alone.w_query.grad[0], together)


def test_every_run_starts_elsewhere():
    model = relations.OneLayer(2, 4, seed=0)
    assert not torch.equal(model.w_query[0], model.w_query[1])


def test_the_prediction_is_a_line_up_to_the_number_of_relations():
    assert [relations.predicted(h) for h in (1, 2, 4, 8)] == pytest.approx([0.34375, 0.5625, 1, 1])
    assert relations.predicted(4, relations=8) == pytest.approx(0.5625)


@pytest.mark.usefixtures("unchecked")
def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="num_heads must divide d_model, got d_model=64, num_heads=5"):
        relations.OneLayer(1, 5, seed=0)


def test_guessing_is_right_once_in_eight_and_training_does_better():
    model = relations.OneLayer(1, 4, seed=0)
    unseen = relations.draw(200, generator(9))
    assert relations.slot_accuracy(model, unseen).shape == (1, relations.RELATIONS)
    assert relations.slot_accuracy(model, unseen).mean().item() == pytest.approx(1 / 8, abs=0.05)
    train(model, relations.batches(32, seed=0), relations.loss, steps=300, learning_rate=0.006, clip=math.inf)
    assert relations.slot_accuracy(model, unseen).mean().item() > 0.5


def test_a_trial_is_the_same_every_time():
    once, again = (relations.trial(2, steps=3, runs=2) for _ in range(2))
    assert once["loss"] == again["loss"] and torch.equal(once["slots"], again["slots"])
    assert once["accuracy"].shape == (2,) and once["slots"].shape == (2, relations.RELATIONS)
    assert once["parameters"] == 24_064

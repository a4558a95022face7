import math

import pytest
import torch

from attention_course.lab.experiments import lookup
from attention_course.lab.train.loop import train


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_answer_is_the_value_of_the_key_asked_for():
    batch = lookup.draw(500, generator())
    for key, value, asked, answer in zip(*batch, strict=True):
        assert len(set(key.tolist())) == lookup.ITEMS  # distinct keys: one right answer
        assert value[(key == asked).nonzero().item()] == answer
    assert batch.answer.bincount(minlength=lookup.VALUES).min() > 0


def test_the_same_seed_gives_the_same_batches():
    one, other = lookup.batches(4, seed=1), lookup.batches(4, seed=1)
    first = next(one)
    assert all(torch.equal(a, b) for a, b in zip(first, next(other), strict=True))
    assert not torch.equal(first.key, next(one).key)


def test_queries_and_keys_start_with_variance_one():
    model = lookup.OneHead(4, 64, scale=1.0, seed=0)
    items = model.key_embedding[:, :, None] + model.value_embedding[:, None]
    key = items @ model.w_key.unsqueeze(1)
    query = model.asked_embedding @ model.w_query
    assert key.var().item() == pytest.approx(1, abs=0.1)
    assert query.var().item() == pytest.approx(1, abs=0.1)


def test_runs_do_not_see_each_other():
    model = lookup.OneHead(3, 8, scale=1.0, seed=0)
    batch = lookup.draw(16, generator())
    lookup.loss(model, batch).backward()
    together = model.w_query.grad[1].clone()
    alone = lookup.OneHead(1, 8, scale=1.0, seed=0)
    alone.load_state_dict({name: p[1:2] for name, p in model.state_dict().items()})
    lookup.loss(alone, batch).backward()
    torch.testing.assert_close(alone.w_query.grad[0], together)


def test_every_run_starts_elsewhere():
    model = lookup.OneHead(2, 8, scale=1.0, seed=0)
    assert not torch.equal(model.w_query[0], model.w_query[1])


def test_training_answers_and_guessing_does_not():
    model = lookup.OneHead(1, 16, scale=1 / math.sqrt(16), seed=0)
    unseen = lookup.draw(500, generator(9))
    assert lookup.accuracy(model, unseen).item() < 0.2
    train(
        model,
        lookup.batches(32, seed=0),
        lookup.loss,
        steps=250,
        learning_rate=0.005,
        clip=math.inf,
    )
    assert lookup.accuracy(model, unseen).item() > 0.9


def test_a_trial_is_the_same_every_time_and_depends_on_the_scale():
    once, again = (lookup.trial(8, True, 0.003, steps=3, runs=2) for _ in range(2))
    assert once["loss"] == again["loss"]
    assert torch.equal(once["accuracy"], again["accuracy"])
    assert once["accuracy"].shape == (2,)
    assert lookup.trial(8, False, 0.003, steps=1, runs=2)["entropy"] < once["entropy"]

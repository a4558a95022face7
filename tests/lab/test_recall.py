import math

import pytest
import torch

from attention_course import scaled_dot_product_attention
from attention_course.lab.experiments import recall
from attention_course.lab.train.loop import train
from attention_course.linear import linear_attention

CHOICES = ({}, {"window": 20}, {"linear": True})


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("pairs", [1, 4, 64])
def test_every_question_has_its_pair_and_keys_are_distinct(pairs):
    batch = recall.draw(30, pairs, generator())
    assert batch.asked.shape == batch.answer.shape == (30, recall.QUESTIONS)
    for key, value, asked, answer in zip(*batch, strict=True):
        assert len(key.unique()) == pairs
        found = asked[:, None] == key  # [questions, pairs]
        assert found.sum(-1).eq(1).all()
        assert torch.equal(value[found.int().argmax(-1)], answer)


def test_batches_take_the_lengths_in_turn_and_repeat_with_their_seed():
    one, other = recall.batches(2, seed=1), recall.batches(2, seed=1)
    drawn = [next(one) for _ in range(6)]
    assert [batch.key.shape[1] for batch in drawn] == [4, 8, 16, 32, 4, 8]
    assert all(torch.equal(a.key, next(other).key) for a in drawn)


def test_questions_stand_behind_the_pairs():
    assert recall.seen(3, 2, 2).tolist() == [[False, False, True], [False, False, False]]
    assert recall.seen(4, 2, 3).tolist() == [[False, False, True, True], [False, False, False, True]]
    assert recall.seen(3, 2, 5).all()


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_the_head_is_the_packages_attention(options):
    model, batch = recall.OneHead(2, 4, seed=0, **options), recall.draw(3, 8, generator())
    logits, weights = model(batch), model.weights(batch)
    for run in range(2):
        pairs = model.key_embedding[run][batch.key] + model.value_embedding[run][batch.value]
        query = model.asked_embedding[run][batch.asked] @ model.w_query[run]
        key, value = pairs @ model.w_key[run], pairs @ model.w_value[run]
        if options.get("linear"):
            context = linear_attention(query, key, value)
        else:
            mask = recall.seen(8, recall.QUESTIONS, options["window"]) if options else None
            context = scaled_dot_product_attention(query, key, value, mask)
        torch.testing.assert_close(logits[run], context @ model.w_answer[run])
        torch.testing.assert_close(weights[run] @ value, context)


def test_runs_do_not_see_each_other():
    model, batch = recall.OneHead(3, 4, seed=0, linear=True), recall.draw(8, 6, generator())
    recall.loss(model, batch).backward()
    alone = recall.OneHead(1, 4, seed=0, linear=True)
    alone.load_state_dict({name: p[1:2] for name, p in model.state_dict().items()})
    recall.loss(alone, batch).backward()
    torch.testing.assert_close(alone.w_query.grad[0], model.w_query.grad[1])


def test_every_key_is_asked_for_once():
    batch = recall.every_key(10, generator())
    assert torch.equal(batch.asked, batch.key) and torch.equal(batch.answer, batch.value)


@pytest.mark.usefixtures("unchecked")
def test_a_window_of_a_sum_is_refused():
    with pytest.raises(ValueError, match="a window is for softmax, got linear=True and window=8"):
        recall.OneHead(1, 4, seed=0, linear=True, window=8)


def test_guessing_is_right_once_in_128_and_training_does_better():
    model, unseen = recall.OneHead(1, 16, seed=0), recall.draw(250, 4, generator(9))
    assert recall.accuracy(model, unseen).item() < 0.05
    train(
        model,
        recall.batches(32, seed=0, lengths=(4,)),
        recall.loss,
        steps=60,
        learning_rate=0.01,
        clip=math.inf,
    )
    assert recall.accuracy(model, unseen).item() > 0.2


def test_a_trial_is_the_same_every_time():
    once, again = (recall.trial(4, learning_rate=0.01, linear=True, steps=3, runs=2) for _ in range(2))
    assert once["loss"] == again["loss"] and torch.equal(once["accuracy"], again["accuracy"])
    assert once["accuracy"].shape == (len(recall.TESTED), 2) and once["weights"].shape == (2, 64, 64)
    assert once["parameters"] == 3 * 128 * 64 + 2 * 64 * 4 + 64 * 64 + 64 * 128

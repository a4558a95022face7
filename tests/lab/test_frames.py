"""Chapter 16's clips: three ways to pool of equal size, what they answer, what looking costs."""

import pytest
import torch

from attention_course.lab.data.clips import Clips
from attention_course.lab.experiments import video
from attention_course.lab.measure.numbers import count_parameters


def build(pool, seed=0):
    torch.manual_seed(seed)
    return video.ClipReader(pool).eval()


def test_the_three_have_equally_many_parameters_within_two_percent():
    sizes = [count_parameters(build(pool)) for pool in video.HIDDEN]
    assert max(sizes) < 1.02 * min(sizes)


class TestPools:
    @pytest.mark.parametrize("pool", ["mean", "attention"])
    def test_weights_sum_to_one_and_the_order_of_frames_is_nothing_to_them(self, pool):
        model, frames = build(pool), torch.rand(3, 7, 8, 8)
        logits, weights = model(frames)
        torch.testing.assert_close(weights.sum(1), torch.ones(3))
        order = torch.randperm(7)
        shuffled, turned = model(frames[:, order])
        torch.testing.assert_close(shuffled, logits)
        torch.testing.assert_close(turned, weights[:, order])

    def test_the_order_of_frames_counts_for_a_gru(self):
        model, frames = build("GRU"), torch.rand(3, 7, 8, 8)
        assert model(frames)[1] is None
        assert not torch.allclose(model(frames)[0], model(frames.flip(1))[0])

    def test_attention_is_one_query_over_all_frames(self):
        pool, x = build("attention").pool, torch.randn(2, 5, video.WIDTH)
        context, weights = pool(x)
        scores = torch.stack([(pool.key(x[b]) @ pool.query[0]) / video.WIDTH**0.5 for b in range(2)])
        torch.testing.assert_close(weights, scores.softmax(-1))
        expected = torch.stack([weights[b] @ pool.value(x[b]) for b in range(2)])
        torch.testing.assert_close(context, expected)


def test_the_loss_is_that_of_the_right_sum():
    model = build("mean")
    clip = Clips(torch.rand(2, 4, 8, 8), torch.zeros(2, 4, dtype=torch.bool), torch.tensor([0, 18]))
    chances = model(clip.frames)[0].log_softmax(-1)
    assert video.loss(model, clip).item() == pytest.approx(-(chances[0, 0] + chances[1, 18]).item() / 2)


def test_a_short_trial_is_the_same_every_time_and_measures_three_lengths():
    pytest.importorskip("sklearn")
    once, again = (video.trial("attention", 0, steps=5, batch_size=8) for _ in range(2))
    assert once["right"] == again["right"] and once["on_clear"] == again["on_clear"]
    assert set(once["right"]) == {16, 32, 64}
    assert once["rescaled"][16] == once["right"][16]
    mean = video.trial("mean", 0, steps=2, batch_size=8)
    for length in video.LENGTHS:
        assert mean["on_clear"][length] == pytest.approx(2 / length)


def test_cost_counts_scores_and_measures_both():
    (cost,) = video.cost([(3, 9)], repeats=1)
    assert (cost.joint_scores, cost.divided_scores) == (729, 324)
    assert cost.joint > 0 and cost.divided > 0


@pytest.mark.usefixtures("unchecked")
def test_a_pool_that_is_none():
    with pytest.raises(ValueError, match=r'pool must be "mean" or "attention" or "GRU", got .max.'):
        video.ClipReader("max")

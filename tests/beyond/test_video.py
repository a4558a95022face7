"""Chapter 16's attention over clips: who looks at whom, by perturbation, and the same sums by loops."""

import pytest
import torch

from attention_course.beyond.video import divided, joint
from attention_course.heads import MultiHeadAttention
from attention_course.transformer import EncoderLayer, LayerConfig


def attention(seed=0):
    torch.manual_seed(seed)
    return MultiHeadAttention(8, 2)


def moved(function, x, t, n):
    """[T, N]: which tokens of the output move when token (t, n) of the input does."""
    changed = x.clone()
    changed[0, t, n] += 1
    return ((function(changed) - function(x)).abs() > 1e-6).any(-1)[0]


class TestJoint:
    def test_it_is_attention_over_the_clip_as_one_sequence(self):
        layer, x = attention(), torch.randn(2, 3, 5, 8)
        rows = torch.stack([x[:, t, n] for t in range(3) for n in range(5)], 1)  # frame by frame
        expected, _ = layer(rows)
        found = joint(layer, x)
        for t in range(3):
            for n in range(5):
                torch.testing.assert_close(found[:, t, n], expected[:, t * 5 + n])

    def test_everyone_hears_of_everyone(self):
        assert moved(lambda x: joint(attention(), x), torch.randn(1, 3, 4, 8), 1, 2).all()


class TestDivided:
    def test_it_is_a_loop_over_places_and_then_over_frames(self):
        time, space, x = attention(0), attention(1), torch.randn(2, 3, 5, 8)
        after_time = torch.zeros_like(x)
        for n in range(5):
            after_time[:, :, n] = time(x[:, :, n])[0]
        found = divided(time, space, x)
        for t in range(3):
            torch.testing.assert_close(found[:, t], space(after_time[:, t])[0])

    def test_time_alone_stays_at_its_place_and_space_alone_in_its_frame(self):
        def nothing(x):
            return x, None

        x = torch.randn(1, 3, 4, 8)
        seen = moved(lambda x: divided(attention(), nothing, x), x, 1, 2)
        assert seen.tolist() == [[n == 2 for n in range(4)]] * 3
        seen = moved(lambda x: divided(nothing, attention(), x), x, 1, 2)
        assert seen.tolist() == [[t == 1] * 4 for t in range(3)]

    def test_one_after_the_other_reach_everyone(self):
        x = torch.randn(1, 3, 4, 8)
        assert moved(lambda x: divided(attention(0), attention(1), x), x, 1, 2).all()

    def test_with_one_frame_space_does_all_and_with_one_place_time(self):
        time, space = attention(0), attention(1)
        x = torch.randn(2, 1, 5, 8)

        def nothing(x):
            return x, None

        torch.testing.assert_close(divided(nothing, space, x), joint(space, x))
        x = x.transpose(1, 2)
        torch.testing.assert_close(divided(time, nothing, x), joint(time, x))


def test_layers_of_a_transformer_fit_and_more_leading_axes_too():
    layer = EncoderLayer(LayerConfig(d_model=8, num_heads=2, d_ff=16, norm="pre"))
    x = torch.randn(2, 2, 3, 4, 8, requires_grad=True)
    out = divided(layer, layer, x) + joint(layer, x)
    assert out.shape == x.shape
    torch.testing.assert_close(divided(layer, layer, x)[1, 0], divided(layer, layer, x[1, 0]))
    out.square().sum().backward()
    assert x.grad.isfinite().all() and x.grad.abs().sum() > 0


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    def test_no_axis_of_time(self):
        with pytest.raises(ValueError, match=r"x must have shape \[..., T, N, d\], got \(4, 8\)"):
            joint(attention(), torch.randn(4, 8))
        with pytest.raises(ValueError, match=r"x must have shape \[..., T, N, d\], got \(4, 8\)"):
            divided(attention(), attention(), torch.randn(4, 8))

    def test_a_layer_that_changes_the_shape(self):
        def pooled(x):
            return x.mean(-2), None

        x = torch.randn(1, 3, 4, 8)
        with pytest.raises(ValueError, match=r"attention must keep the shape \(1, 12, 8\), got \(1, 8\)"):
            joint(pooled, x)
        with pytest.raises(ValueError, match=r"time must keep the shape \(1, 4, 3, 8\), got \(1, 4, 8\)"):
            divided(pooled, attention(), x)
        with pytest.raises(ValueError, match=r"space must keep the shape \(1, 3, 4, 8\), got \(1, 3, 8\)"):
            divided(attention(), pooled, x)

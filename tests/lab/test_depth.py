"""Chapter 7's deep stacks: four kinds of one stack, and what is measured on them."""

import pytest
import torch
import torch.nn.functional as F

from attention_course.lab.experiments import depth
from attention_course.lab.measure.numbers import count_parameters


def test_each_kind_is_what_its_formula_says():
    x = torch.randn(2, 5, depth.WIDTH)
    for kind in depth.KINDS:
        torch.manual_seed(1)
        stack = depth.Stack(1, kind)
        (layer,) = stack.encoder.layers
        want = x
        for f, around in (
            (lambda y, layer=layer: layer.attention(y)[0], layer.around_attention),
            (layer.feed_forward, layer.around_feed_forward),
        ):
            after = around.norm if kind in ("post", "norm alone") else lambda y: y
            seen = around.norm(want) if kind == "pre" else want
            added = f(seen) + want if kind in ("post", "pre") else f(seen)
            want = after(added)
        want = F.layer_norm(want, (depth.WIDTH,)) if kind == "pre" else want
        torch.testing.assert_close(stack(x), want)


def test_kinds_start_from_the_same_weights_and_differ_by_the_final_norm_alone():
    sizes = {kind: count_parameters(depth.Stack(2, kind)) for kind in depth.KINDS}
    assert sizes["post"] == sizes["norm alone"] == sizes["neither"] == sizes["pre"] - 2 * depth.WIDTH
    first = []
    for kind in depth.KINDS:
        torch.manual_seed(3)
        first.append(depth.Stack(2, kind).encoder.layers[1].feed_forward.inner.weight)
    assert all(torch.equal(first[0], weight) for weight in first)


def test_the_gradient_is_that_of_each_layer():
    norms = depth.gradients(3, "post", seed=0)
    assert len(norms) == 3 and min(norms) > 0
    assert norms == depth.gradients(3, "post", seed=0) != depth.gradients(3, "post", seed=1)


def test_without_norm_and_residual_the_gradient_vanishes():
    deep = depth.gradients(12, "neither", seed=0)
    assert deep[0] < 0.05 * deep[-1]
    assert depth.gradients(12, "pre", seed=0)[0] > 0.2


def test_likeness_is_one_for_equal_tokens_and_about_zero_for_random_ones(monkeypatch):
    monkeypatch.setattr(depth.Stack, "forward", lambda self, x: x)
    assert depth.likeness(1, "pre", seed=0) == pytest.approx(0, abs=0.02)
    monkeypatch.setattr(depth.Stack, "forward", lambda self, x: x[:, :1].expand_as(x))
    assert depth.likeness(1, "pre", seed=0) == pytest.approx(1)


def test_the_share_is_one_for_what_came_through_and_zero_for_anything_else(monkeypatch):
    monkeypatch.setattr(depth.Stack, "forward", lambda self, x: 3 * x)
    assert depth.share(1, "post", seed=0) == pytest.approx(1)
    monkeypatch.setattr(depth.Stack, "forward", lambda self, x: x.flip(-1))
    assert depth.share(1, "post", seed=0) == pytest.approx(0, abs=0.05)


def test_the_variance_of_the_answers_adds_up_in_the_stream():
    """The stream's variance is what came in and what was added, if the answers are independent enough."""
    before = 1 + 2 * 4 * depth.answer_variance(4, seed=0)
    torch.manual_seed(0)
    stack = depth.Stack(4, "pre").double()
    x = torch.randn(8, 16, depth.WIDTH, dtype=torch.float64)
    for layer in stack.encoder.layers:
        x, _ = layer(x)
    assert x.var().item() == pytest.approx(before, rel=0.25)


def test_the_same_seed_gives_the_same_symbols():
    one, other = depth.symbols(8, 4, seed=1), depth.symbols(8, 4, seed=1)
    first = next(one)
    assert torch.equal(first, next(other)) and not torch.equal(first, next(one))
    assert next(depth.symbols(8, 500, seed=0)).flatten().bincount(minlength=depth.CLASSES).min() > 0


def test_naming_oneself_is_learned_where_the_input_comes_through():
    learned = depth.name_yourself(1, "pre", seed=0, steps=30, learning_rate=0.02)
    assert learned["accuracy"] > 0.95 and len(learned["losses"]) == 30
    guessed = depth.name_yourself(1, "pre", seed=0, steps=1, learning_rate=0.0)
    assert guessed["accuracy"] < 0.3


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="kind must be one of post, pre, norm alone, neither, got 'both'"):
        depth.Stack(1, "both")

"""``record``: the same answer, and every head's weights, values and contexts."""

import pytest
import torch

from attention_course import decoding, inside, masks
from attention_course.heads import MultiHeadAttention
from attention_course.positions import Rotary
from attention_course.transformer import LayerConfig, Transformer, bert_like, gpt_like

SIZES = {"num_layers": 2, "d_model": 16, "num_heads": 4, "d_ff": 24}


def tokens(*shape):
    return torch.randint(11, shape)


def adds_up(layer, answer):
    """The heads' shares, summed, with the bias."""
    mixed = layer.weights @ layer.value
    torch.testing.assert_close(mixed, layer.context)
    return (layer.context @ layer.output).sum(-3) + answer


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_one_layer_adds_up_to_its_answer(kv_heads):
    attention = MultiHeadAttention(16, 4, num_kv_heads=kv_heads, rotation=Rotary(4)).eval()
    x = torch.randn(3, 5, 16)
    (output, weights), [layer] = inside.record(attention, x, is_causal=True)
    assert weights is None and layer.name == ""
    assert layer.weights.shape == (3, 4, 5, 5) and layer.value.shape == layer.context.shape == (3, 4, 5, 4)
    torch.testing.assert_close(adds_up(layer, attention.output_projection.bias), output)
    torch.testing.assert_close(output, attention(x, is_causal=True)[0])


def test_weights_are_those_of_the_trace():
    model, source = bert_like(11, 9, **SIZES).eval(), tokens(3, 7)
    lengths = torch.tensor([7, 4, 1])
    logits, layers = inside.record(model, source, lengths)
    traced = model.trace(source, lengths)
    assert torch.equal(logits, model(source, lengths))
    assert [layer.name for layer in layers] == ["stack.layers.0.attention", "stack.layers.1.attention"]
    torch.testing.assert_close(inside.weights_of(layers), torch.stack(traced.weights))


def test_an_encoder_decoder_in_order_of_use():
    config = LayerConfig(d_model=16, num_heads=2, d_ff=8, norm="pre")
    model = Transformer(11, 13, 1, config).eval()
    lengths, previous = torch.tensor([6, 3]), tokens(2, 4)
    _, layers = inside.record(model, tokens(2, 6), lengths, previous)
    shapes = {layer.name: tuple(layer.weights.shape) for layer in layers}
    assert list(shapes.items()) == [
        ("encoder.stack.layers.0.attention", (2, 2, 6, 6)),
        ("decoder.stack.layers.0.attention", (2, 2, 4, 4)),
        ("decoder.stack.layers.0.cross_attention", (2, 2, 4, 6)),
    ]
    assert (layers[2].weights[1, ..., 3:] == 0).all()  # the padding of the second source
    with pytest.raises(ValueError, match=r"weights of one shape, got \[\(2, 2, 4, 4\)"):
        inside.weights_of(layers)


def test_a_caller_who_asked_for_weights_gets_them():
    attention, x = MultiHeadAttention(8, 2).eval(), torch.randn(4, 8)
    (_, weights), [layer] = inside.record(attention, x, need_weights=True)
    assert torch.equal(weights, layer.weights)


def test_nothing_is_left_on_the_model():
    model, source = gpt_like(11, 9, **SIZES).eval(), tokens(1, 5)
    before = model(source)
    inside.record(model, source)
    with pytest.raises(IndexError):
        inside.record(model, source, torch.tensor([5]), segments=tokens(1, 5)[0][9])
    assert not any(
        m._forward_hooks or m._forward_pre_hooks or m._forward_hooks_with_kwargs for m in model.modules()
    )
    assert torch.equal(model(source), before)


def test_the_graph_is_the_calls_own():
    model = gpt_like(11, 9, **SIZES)
    logits, layers = inside.record(model, tokens(1, 5))
    [slope] = torch.autograd.grad(logits.sum(), [layers[0].context])
    assert slope.abs().sum() > 0


def test_refuses_what_it_cannot_see():
    with pytest.raises(ValueError, match="MultiHeadAttention to look into, got a Linear"):
        inside.record(torch.nn.Linear(2, 2), torch.randn(1, 2))
    model = gpt_like(11, 9, **SIZES).eval()
    with pytest.raises(ValueError, match="without caches"):
        inside.record(model, tokens(1, 1), caches=decoding.caches_for(model, batch=1, max_length=5))


def test_a_mask_of_the_caller_is_kept():
    attention, x = MultiHeadAttention(8, 2).eval(), torch.randn(2, 4, 8)
    _, [layer] = inside.record(attention, x, attn_mask=masks.padding(torch.tensor([4, 2]), 4))
    assert (layer.weights[1, ..., 2:] == 0).all() and (layer.weights[0] > 0).all()

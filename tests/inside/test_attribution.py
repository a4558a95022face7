"""What a look adds, and what the answer would make of it."""

import pytest
import torch

from attention_course import inside
from attention_course.heads import MultiHeadAttention
from attention_course.transformer import bert_like


def recorded(**options):
    attention = MultiHeadAttention(12, 3, **options).double().eval()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    (output, _), [layer] = inside.record(attention, x)
    return output, layer


@pytest.mark.parametrize("kv_heads", [3, 1])
def test_norms_against_loops(kv_heads):
    _, layer = recorded(num_kv_heads=kv_heads)
    single, summed = inside.norms(layer), inside.norms(layer, summed=True)
    assert single.shape == (2, 3, 5, 5) and summed.shape == (2, 5, 5)
    for b, i, j in [(0, 0, 0), (0, 4, 2), (1, 3, 4)]:
        added = [layer.weights[b, h, i, j] * (layer.value[b, h, j] @ layer.output[h]) for h in range(3)]
        torch.testing.assert_close(single[b, :, i, j], torch.stack(added).norm(dim=-1))
        torch.testing.assert_close(summed[b, i, j], sum(added).norm())


def test_heads_may_cancel():
    _, layer = recorded()
    twice = layer._replace(
        weights=layer.weights[:, :1].expand(-1, 2, -1, -1),
        value=torch.cat((layer.value[:, :1], -layer.value[:, :1]), dim=1),
        output=layer.output[:1].expand(2, -1, -1),
    )
    assert inside.norms(twice).min() > 0
    torch.testing.assert_close(inside.norms(twice, summed=True), torch.zeros(2, 5, 5, dtype=torch.float64))


def test_the_gradient_is_that_of_the_weights():
    """Against autograd with the weights as leaves: softmax(…) replaced by what it gave."""
    output, layer = recorded()
    aim = torch.randn(12, dtype=torch.float64)
    [got] = inside.weights_times_gradient([layer], (output[:, 0] @ aim).sum())
    weights = layer.weights.detach().requires_grad_()
    again = ((weights @ layer.value.detach()) @ layer.output.detach()).sum(1)
    [slope] = torch.autograd.grad((again[:, 0] @ aim).sum(), weights)
    torch.testing.assert_close(got, weights.detach() * slope)
    assert (got[:, :, 1:] == 0).all() and got[:, :, 0].abs().min() > 0  # only the first query was asked


def test_through_several_layers():
    model = bert_like(7, 6, num_layers=2, d_model=8, num_heads=2, d_ff=8).double().eval()
    logits, layers = inside.record(model, torch.randint(7, (1, 6)))
    found = inside.weights_times_gradient(layers, logits[0, 2, 3])
    assert [tuple(each.shape) for each in found] == [(1, 2, 6, 6)] * 2
    # the top layer's other queries do not reach this logit; the bottom layer's do
    assert (found[1][0, :, [0, 1, 3, 4, 5]] == 0).all() and (found[0] != 0).all()


def test_a_layer_that_the_answer_does_not_use_gets_zeros():
    model = bert_like(7, 6, num_layers=2, d_model=8, num_heads=2, d_ff=8).double().eval()
    _, layers = inside.record(model, torch.randint(7, (1, 6)))
    below, above = inside.weights_times_gradient(layers, layers[0].context.sum())
    assert below.abs().sum() > 0 and (above == 0).all()


def test_refuses_an_answer_without_a_gradient(unchecked):
    output, layer = recorded()
    with pytest.raises(ValueError, match=r"scalar with a gradient, got shape \(2, 5, 12\)"):
        inside.weights_times_gradient([layer], output)
    with pytest.raises(ValueError, match="requires_grad=False"):
        inside.weights_times_gradient([layer], output.sum().detach())

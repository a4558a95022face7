"""Gates: 1 leaves a head, 0 takes it out, the slope says how much it matters."""

import pytest
import torch

from attention_course import inside
from attention_course.heads import MultiHeadAttention
from attention_course.transformer import bert_like


def model():
    return bert_like(7, 6, num_layers=2, d_model=12, num_heads=3, d_ff=8).double().eval()


def test_a_gate_multiplies_its_head_alone():
    attention = MultiHeadAttention(12, 3).double().eval()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    (output, _), [layer] = inside.record(attention, x)
    shares = (layer.context @ layer.output).unbind(1)
    with inside.gated(attention, torch.tensor([[1.0, 0.0, 2.0]], dtype=torch.float64)):
        got, _ = attention(x)
    torch.testing.assert_close(got, output - shares[1] + shares[2])
    each = torch.tensor([[[1.0, 1, 1], [0, 1, 1]]], dtype=torch.float64)  # a row for each sentence
    with inside.gated(attention, each):
        got, _ = attention(x)
    torch.testing.assert_close(got[0], output[0])
    torch.testing.assert_close(got[1], output[1] - shares[0][1])
    assert torch.equal(attention(x)[0], output)  # nothing is left


def test_gates_go_when_a_call_fails():
    bert = model()
    before = bert(torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(RuntimeError, match="stop"), inside.gated(bert, torch.zeros(2, 3).double()):
        raise RuntimeError("stop")
    assert torch.equal(bert(torch.ones(1, 3, dtype=torch.long)), before)


def test_importance_is_the_slope_of_each_sentences_loss():
    bert, tokens = model(), torch.randint(7, (4, 6))

    def losses():
        return bert(tokens)[:, 0, 0]

    got = inside.importance(bert, losses, sentences=4)
    step, want = 1e-6, torch.zeros(2, 3, dtype=torch.float64)
    for layer in range(2):
        for head in range(3):
            gates = torch.ones(2, 3, dtype=torch.float64)
            gates[layer, head] += step
            with inside.gated(bert, gates):
                want[layer, head] = ((losses() - bert_alone(bert, tokens)) / step).abs().mean()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-7)
    # one sentence's loss may go up where another's goes down: the mean of the slopes would be smaller
    assert (got > 0).all()


def bert_alone(bert, tokens):
    hooks = [dict(layer.output_projection._forward_pre_hooks) for layer in inside.attentions(bert).values()]
    for layer in inside.attentions(bert).values():
        layer.output_projection._forward_pre_hooks.clear()
    logits = bert(tokens)[:, 0, 0]
    for layer, kept in zip(inside.attentions(bert).values(), hooks, strict=True):
        layer.output_projection._forward_pre_hooks.update(kept)
    return logits


def test_importance_under_no_grad():
    bert, tokens = model(), torch.randint(7, (2, 6))
    with torch.no_grad():
        assert (inside.importance(bert, lambda: bert(tokens)[:, 0, 0], sentences=2) > 0).any()


def test_refusals(unchecked):
    bert = model()
    for wrong in (torch.ones(2, 4), torch.ones(3, 3), torch.ones(3)):
        with (
            pytest.raises(ValueError, match=r"for layers with \[3, 3\] heads, got"),
            inside.gated(bert, wrong),
        ):
            pass
    with pytest.raises(ValueError, match=r"losses must have shape \(2,\), got \(\)"):
        inside.importance(bert, lambda: bert(torch.ones(2, 3, dtype=torch.long)).sum(), sentences=2)
    with pytest.raises(ValueError, match="got a Linear"):
        inside.importance(torch.nn.Linear(1, 1), lambda: torch.ones(1), sentences=1)

"""Chapter 7c's blocks: one change each, of one size, and scores that are the layers' own."""

import math

import pytest
import torch
from torch import nn

from attention_course.lab.data.text import SYMBOLS, documentation
from attention_course.lab.experiments import block
from attention_course.lab.measure.numbers import count_parameters
from attention_course.positions import Learned, Rotary
from attention_course.transformer import GatedFeedForward


def found(model):
    """Which of the changes a model has, told from its parts."""
    (layer, *_), names = model.stack.layers, [name for name, _ in model.named_parameters()]
    heads = layer.attention
    answers = (
        isinstance(model.stack.final_norm, nn.RMSNorm)
        and isinstance(layer.around_attention.norm, nn.RMSNorm),
        not any(name.endswith("bias") for name in names),
        isinstance(layer.feed_forward, GatedFeedForward),
        isinstance(heads.rotation, Rotary) and model.embedding.positions is None,
        heads.num_kv_heads < heads.num_heads,
        isinstance(heads.query_norm, nn.RMSNorm) and isinstance(heads.key_norm, nn.RMSNorm),
    )
    return {change for change, answer in zip(block.CHANGES, answers, strict=True) if answer}


def test_each_block_has_its_changes_and_no_other():
    for name in block.BLOCKS:
        assert found(block.model_of(name)) == set(block.changes_of(name))
    assert block.changes_of("GPT-2") == () and block.changes_of("Llama 2") == block.CHANGES[:5]
    assert [block.changes_of(change) for change in block.CHANGES] == [(change,) for change in block.CHANGES]


def test_gpt_2s_block_is_chapter_7s():
    model = block.model_of("GPT-2")
    d, layers = block.D_MODEL, block.LAYERS
    tables = (len(SYMBOLS) + block.LENGTH) * d
    assert count_parameters(model) == layers * (12 * d * d + 13 * d) + tables + 2 * d
    assert isinstance(model.embedding.positions, Learned)


def test_all_are_of_one_size():
    sizes = [count_parameters(block.model_of(name)) for name in block.BLOCKS]
    assert max(sizes) < 1.01 * min(sizes)


@pytest.mark.usefixtures("unchecked")
def test_unknown_blocks_are_refused():
    with pytest.raises(ValueError, match=r"block must be one of GPT-2, .*, got 'GPT-4'"):
        block.changes_of("GPT-4")


@pytest.mark.parametrize("name", ["GPT-2", "Llama 2, QK-norm"])
def test_the_scores_are_those_that_the_weights_come_from(name):
    torch.manual_seed(0)
    model, text = block.model_of(name), documentation().test[:500]
    future = torch.ones(block.LENGTH, block.LENGTH, dtype=torch.bool).triu(1)
    _, states, weights = model.trace(torch.stack((text[:64], text[320:384])))
    seen = [block.scores(layer, x) for layer, x in zip(model.stack.layers, states[:-1], strict=True)]
    for each, want in zip(seen, weights, strict=True):
        torch.testing.assert_close(each.masked_fill(future, -math.inf).softmax(-1), want)
    largest = max(each[..., ~future].abs().max().item() for each in seen)
    assert block.largest_score(model, text) == pytest.approx(largest)


def test_qk_norm_bounds_the_largest_score():
    torch.manual_seed(0)
    model, text = block.model_of("QK-norm"), documentation().test[:300]
    for layer in model.stack.layers:
        layer.attention.query_projection.weight.data *= 1000
    bound = math.sqrt(block.D_MODEL / block.HEADS)
    assert 0.5 * bound < block.largest_score(model, text) <= bound * (1 + 1e-5)


def test_a_model_that_knows_nothing_loses_log_of_the_vocabulary():
    model = block.model_of("GPT-2").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert block.nats(model, documentation().test[:1000]) == pytest.approx(math.log(len(SYMBOLS)), rel=1e-5)


def test_a_trial_learns(monkeypatch):
    monkeypatch.setattr(block, "EVERY", 40)
    result = block.trial("Llama 2", 0, steps=8, judged_on="validation")
    untrained = block.nats(block.model_of("Llama 2"), documentation().validation)
    assert 2 < result["nats"] < untrained - 0.2 and result["score"] > 0
    assert result["parameters"] == count_parameters(block.model_of("Llama 2"))

import math

import pytest
import torch
import torch.nn.functional as F

from attention_course import inside
from attention_course.inside.pretrained import BertEncoder
from attention_course.lab.experiments import seeing
from attention_course.positions import Learned
from attention_course.transformer import Embedding, Encoder, LayerConfig


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def encoder(layers=2):
    """A small encoder with random weights, large enough ones for its heads to differ."""
    torch.manual_seed(0)
    embedding = Embedding(50, 12, Learned(20, 12))
    model = BertEncoder(
        embedding, Encoder(layers, LayerConfig(d_model=12, num_heads=3, d_ff=24, norm="post"))
    ).eval()
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    return model


@pytest.mark.parametrize("cues", [1, 3, 6])
def test_cue_words_are_those_of_the_class_and_no_word_comes_twice(cues):
    tokens, label = seeing.cued(100, cues, generator())
    assert tokens.shape == (100, seeing.LENGTH) and 0 < label.float().mean() < 1
    is_cue = tokens < 2 * seeing.CUES
    assert is_cue.sum(-1).eq(cues).all()
    assert torch.equal((tokens // seeing.CUES)[is_cue], label.repeat_interleave(cues))
    assert all(len(row.unique()) == seeing.LENGTH for row in tokens)
    places = is_cue.float().mean(0)
    assert places.min() > 0  # cue words stand anywhere


@pytest.mark.parametrize("cues", [0, 7])
def test_refuses_cue_words_that_there_are_not(unchecked, cues):
    with pytest.raises(ValueError, match=f"cues must lie in 1 to 4, got {cues}|cues must .*{cues}"):
        seeing.cued(2, cues, generator())


def test_divergence_by_hand():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.5, 0.0, 0.5])
    assert math.isclose(seeing.jensen_shannon(p, q), math.log(2) / 2, rel_tol=1e-6)
    assert math.isclose(seeing.jensen_shannon(p[[0, 2]] * 2, p[[2, 0]] * 2), math.log(2), rel_tol=1e-6)
    assert seeing.jensen_shannon(p, p) == 0
    weights = torch.rand(2, 1, 5).softmax(-1)
    pair = inside.divergence(weights)[0, 1]
    assert torch.isclose(seeing.jensen_shannon(weights[0, 0], weights[1, 0]), pair, atol=1e-6)


def test_a_single_cue_forces_its_weight_and_two_do_not():
    weights = torch.tensor([[0.8, 0.1, 0.1], [0.5, 0.3, 0.2]]).double()
    scores = torch.tensor([[4.0, -1, -1], [4.0, 4, -1]]).double()
    answer = torch.tensor([3.0, 3.0]).double()
    _, other = seeing.most_different(weights, scores, answer, answer)
    torch.testing.assert_close(other[0, 0], torch.tensor(0.8).double())
    torch.testing.assert_close(other[1], torch.tensor([0, 0.8, 0.2]).double())
    assert seeing.can_lose_top(weights, scores, answer, answer).tolist() == [False, True]


def test_no_allowed_weights_are_farther_away():
    """Against many random weights with an answer in the same range."""
    torch.manual_seed(0)
    weights, scores = torch.randn(6, 5).double().softmax(-1), torch.randn(6, 5).double()
    answer = (weights * scores).sum(-1)
    low, high = answer - 0.05, answer + 0.05
    divergence, other = seeing.most_different(weights, scores, low, high)
    torch.testing.assert_close(other.sum(-1), torch.ones(6).double())
    assert (other > 0).sum(-1).max() <= 2 and other.min() >= 0
    found = (other * scores).sum(-1)
    assert (found >= low - 1e-12).all() and (found <= high + 1e-12).all()
    torch.testing.assert_close(divergence, seeing.jensen_shannon(other, weights))

    tried = torch.distributions.Dirichlet(torch.full((5,), 0.3).double()).sample((20000, 6))
    # most of them miss: move each towards a single token until it hits
    for token in range(5):
        end = scores[:, token]
        start = (tried * scores).sum(-1)
        step = ((answer - start) / (end - start)).clamp(0, 1).unsqueeze(-1)
        hit = (1 - step) * tried + step * F.one_hot(torch.tensor(token), 5)
        inside_range = ((hit * scores).sum(-1) - answer).abs() <= 0.05
        assert inside_range.any(0).sum() >= 1
        away = seeing.jensen_shannon(hit, weights).masked_fill(~inside_range, 0)
        assert (away <= divergence + 1e-9).all()


def test_a_wide_range_lets_all_weight_go_to_one_token():
    weights = torch.tensor([[0.7, 0.2, 0.1]])
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    _, other = seeing.most_different(weights, scores, torch.tensor([0.0]), torch.tensor([9.0]))
    assert other.tolist() == [[0, 0, 1]]


def test_refuses_an_answer_that_no_weights_give():
    weights, scores = torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 2.0]])
    with pytest.raises(ValueError, match="low and high must enclose an answer"):
        seeing.most_different(weights, scores, torch.tensor([3.0]), torch.tensor([4.0]))


def test_an_erased_token_is_gone():
    """Another token in the erased place changes nothing; anywhere else it does."""
    model = encoder()
    tokens = torch.tensor([1, 5, 7, 9, 11, 2])
    states, _ = model(tokens[None])
    whole = F.normalize(states[0].mean(0), dim=-1)
    moved = seeing.erasure(model, tokens)
    assert moved.shape == (6,) and moved.min() > 0
    for place in range(6):
        other = tokens.clone()
        other[place] = 30
        mask = torch.arange(6) != place
        states, _ = model(other[None], attn_mask=mask[None, None])
        embedding = F.normalize(states[0, mask].sum(0), dim=-1)
        torch.testing.assert_close(moved[place], 1 - embedding @ whole)


def test_importances_against_loops():
    model = encoder()
    tokens = torch.tensor([1, 5, 7, 9, 2])
    found = seeing.importances(model, tokens)
    assert all(one.shape == (5,) and not one.requires_grad for one in found.values())
    _, layers = inside.record(model, tokens[None])
    column = torch.zeros(5)
    length = torch.zeros(5)
    for layer in layers:
        for i in range(5):
            for j in range(5):
                column[j] += layer.weights[0, :, i, j].sum() / (2 * 3 * 5)
                added = sum(
                    layer.weights[0, h, i, j] * layer.value[0, h, j] @ layer.output[h] for h in range(3)
                )
                length[j] += added.norm() / (2 * 5)
    torch.testing.assert_close(found["weights, all layers"], column.detach())
    torch.testing.assert_close(found["norms of what is added"], length.detach())
    below, top = [(torch.eye(5) + layer.weights[0].detach().mean(0)) / 2 for layer in layers]
    rolled = [sum(top[i, k] * below[k, j] for i in range(5) for k in range(5)) / 5 for j in range(5)]
    torch.testing.assert_close(found["rollout"], torch.stack(rolled))
    torch.testing.assert_close(found["weights, last layer"].sum(), torch.tensor(1.0))
    assert (found["weights × gradient"] > 0).all()
    assert found["control: rarity"].tolist() == tokens.tolist()
    assert found["control: place"].tolist() == [0, 1, 2, 3, 4]


def test_rank_correlation_by_hand():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert seeing.spearman(x, x**3) == 1 and seeing.spearman(x, -x) == -1
    # d² = 0 + 0 + 1 + 1: 1 − 6 · 2 / (4 · 15)
    assert math.isclose(seeing.spearman(x, torch.tensor([1.0, 2, 4, 3])), 0.8, rel_tol=1e-6)
    tied = torch.tensor([1.0, 1.0, 2.0, 3.0])  # ranks 1.5, 1.5, 3, 4
    assert math.isclose(seeing.spearman(x, tied), 4.5 / math.sqrt(5 * 4.5), rel_tol=1e-6)
    assert seeing.spearman(x, torch.ones(4)) == 0


@pytest.mark.parametrize("y", [torch.ones(3), torch.ones(2, 2)])
def test_rank_correlation_refuses_what_is_no_pair_of_lists(unchecked, y):
    with pytest.raises(ValueError, match="equally long"):
        seeing.spearman(torch.ones(4), y)


def test_agreement_leaves_special_tokens_out_and_knows_chance():
    model = encoder()
    sentences = [torch.tensor([1, 5, 7, 9, 11, 2]), torch.tensor([1, 8, 6, 4, 2])]
    correlation, first, chance = seeing.agreement(model, sentences)
    assert chance.tolist() == [0.25, pytest.approx(1 / 3)]
    for number, tokens in enumerate(sentences):
        moved = seeing.erasure(model, tokens)[1:-1]
        rarity = tokens[1:-1].float()
        got = correlation["control: rarity"][number]
        torch.testing.assert_close(got, seeing.spearman(rarity, moved))
        assert first["control: rarity"][number] == (rarity.argmax() == moved.argmax())


def test_shares_of_a_token():
    model = encoder(layers=3)
    _, layers = inside.record(model, torch.tensor([[1, 5, 7, 2]]))
    shares = [seeing.share_of(layers, place) for place in range(4)]
    for kind in range(2):
        torch.testing.assert_close(sum(share[kind] for share in shares), torch.ones(3))
    by_weight, by_length = shares[0]
    torch.testing.assert_close(by_weight[1], layers[1].weights[0, :, :, 0].mean().detach())
    assert not torch.allclose(by_weight, by_length)

    short = [layer._replace(value=layer.value.clone()) for layer in layers]
    for layer in short:
        layer.value[..., 0, :] = 0  # a sink that adds nothing
    again, nothing = seeing.share_of(short, 0)
    torch.testing.assert_close(again, by_weight)
    assert (nothing == 0).all()

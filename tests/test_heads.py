import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attention_course import masks
from attention_course.heads import MultiHeadAttention
from attention_course.interop import from_torch, to_torch
from attention_course.lab.experiments.cost import peak_bytes
from attention_course.positions import ALiBi, Rotary


def module(d_model=12, num_heads=4, **options):
    return MultiHeadAttention(d_model, num_heads, **options).double().eval()


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_no_table_of_weights_is_ever_held():
    """Nine tensors of the input's size are: query, key, value, context, their slopes, and the output.

    Weights for 256 tokens and 4 heads would be 16 more. Between the two lies what a version of torch
    may take for itself.
    """
    ours = MultiHeadAttention(64, 4)
    x, d_out = torch.randn(2, 8, 256, 64).unbind(0)
    x.requires_grad_()

    def peak(**options):
        return peak_bytes(lambda: torch.autograd.grad(ours(x, **options)[0], (x, *ours.parameters()), d_out))

    table = 8 * 4 * 256 * 256 * 4
    assert table == 16 * x.nbytes
    assert peak() < 12 * x.nbytes
    assert peak(need_weights=True) > table


@given(
    num_heads=st.sampled_from([1, 2, 4, 6]),
    groups=st.sampled_from([1, 2]),
    T_q=st.integers(1, 4),
    T_k=st.integers(1, 5),
    is_causal=st.booleans(),
)
def test_equals_the_loop_over_heads(num_heads, groups, T_q, T_k, is_causal):
    num_kv_heads = num_heads // groups if num_heads % groups == 0 else num_heads
    ours = module(12, num_heads, num_kv_heads=num_kv_heads)
    query, key = draw(T_q, 12), draw(T_k, 12)
    output, weights = ours(query, key, is_causal=is_causal, need_weights=True)
    mask = masks.causal(T_q, T_k).numpy() if is_causal else None
    state = {name: tensor.numpy() for name, tensor in ours.state_dict().items()}
    want, want_weights = oracles.multi_head(query.numpy(), key.numpy(), state, num_heads, num_kv_heads, mask)
    torch.testing.assert_close(output, torch.from_numpy(want))
    torch.testing.assert_close(weights, torch.from_numpy(want_weights))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
class TestAgainstTorch:
    def both(self, bias):
        theirs = nn.MultiheadAttention(12, 4, bias=bias, batch_first=True).double().eval()
        if bias:
            nn.init.normal_(theirs.in_proj_bias)
            nn.init.normal_(theirs.out_proj.bias)
        return from_torch(theirs), theirs

    def test_self_attention(self, bias, need_weights):
        ours, theirs = self.both(bias)
        x = draw(2, 5, 12)
        want, want_weights = theirs(x, x, x, need_weights=need_weights, average_attn_weights=False)
        output, weights = ours(x, need_weights=need_weights)
        torch.testing.assert_close(output, want)
        if need_weights:
            torch.testing.assert_close(weights, want_weights)
        else:
            assert weights is None

    def test_cross_attention_with_padding(self, bias, need_weights):
        ours, theirs = self.both(bias)
        query, key, value = draw(2, 3, 12), draw(2, 5, 12), draw(2, 5, 12)
        seen = masks.padding(torch.tensor([2, 5]), 5)
        want, _ = theirs(
            query,
            key,
            value,
            key_padding_mask=masks.from_torch_blocked(seen.squeeze(1)),
            need_weights=need_weights,
        )
        output, _ = ours(query, key, value, attn_mask=seen, need_weights=need_weights)
        torch.testing.assert_close(output, want)

    def test_causal(self, bias, need_weights):
        ours, theirs = self.both(bias)
        x = draw(2, 5, 12)
        blocked = masks.from_torch_blocked(masks.causal(5))
        want, _ = theirs(x, x, x, attn_mask=blocked, need_weights=need_weights)
        output, _ = ours(x, is_causal=True, need_weights=need_weights)
        torch.testing.assert_close(output, want)

    def test_there_and_back(self, bias, need_weights):
        _, theirs = self.both(bias)
        back = to_torch(from_torch(theirs))
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(back.state_dict()[name], tensor), name
        x = draw(2, 5, 12)
        torch.testing.assert_close(
            back(x, x, x, need_weights=need_weights)[0], theirs(x, x, x, need_weights=need_weights)[0]
        )


@pytest.mark.parametrize("training", [True, False])
def test_conversion_keeps_the_mode_and_copies_the_weights(training):
    theirs = nn.MultiheadAttention(12, 4, dropout=0.5, batch_first=True).train(training)
    ours = from_torch(theirs)
    assert ours.training == training
    assert to_torch(ours).training == training
    with torch.no_grad():
        theirs.out_proj.weight.zero_()
    assert ours.output_projection.weight.abs().max() > 0


@pytest.mark.parametrize("shape", [(5, 5), (1, 5, 5), (2, 1, 5), (2, 1, 1, 5), (2, 1, 5, 5)], ids=str)
def test_a_mask_without_heads_holds_for_every_head(shape):
    ours, x = module(num_heads=4), draw(2, 5, 12)
    allowed = torch.rand(shape) > 0.3
    every = (allowed.unsqueeze(1) if len(shape) == 3 else allowed).expand(2, 4, 5, 5)
    _, shared = ours(x, attn_mask=allowed, need_weights=True)
    _, spelled = ours(x, attn_mask=every, need_weights=True)
    torch.testing.assert_close(shared, spelled)
    assert (shared[~every] == 0).all()


@pytest.mark.parametrize("B", [2, 4])
@pytest.mark.parametrize("rows", [2, 4])
def test_a_mask_for_each_sentence_or_each_head_says_which(B, rows):
    ours, x = module(num_heads=4), draw(B, 5, 12)
    mask = torch.rand(rows, 5, 5) > 0.3
    with pytest.raises(ValueError, match=r"4 dimensions, \[\.\.\., num_heads or 1, T_q, T_k\], got"):
        ours(x, attn_mask=mask)
    with pytest.raises(ValueError, match=r"5 dimensions"):
        ours(x[None], attn_mask=mask)
    with pytest.raises(ValueError, match=r"5 dimensions"):
        ours(x[None], attn_mask=mask[None])


def test_a_mask_for_each_head_hides_from_that_head_alone():
    ours, x = module(num_heads=4), draw(2, 5, 12)
    one_head_blind = torch.ones(2, 4, 5, 5, dtype=torch.bool)
    one_head_blind[:, 1] = False
    _, weights = ours(x, attn_mask=one_head_blind, need_weights=True)
    assert weights[:, 1].abs().max() == 0
    torch.testing.assert_close(weights[:, 0].sum(-1), torch.ones(2, 5, dtype=torch.float64))
    of_one_sentence = ours(x[0], attn_mask=one_head_blind[0])[0]  # [T, d_model] and [h, T, T]
    torch.testing.assert_close(of_one_sentence, ours(x, attn_mask=one_head_blind)[0][0])


def test_float_masks_are_added_for_every_head():
    ours, x = module(), draw(2, 5, 12)
    bias = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~masks.causal(5), -torch.inf)
    torch.testing.assert_close(ours(x, attn_mask=bias)[0], ours(x, is_causal=True)[0])


def test_weights_do_not_change_the_output():
    ours, x = module(num_kv_heads=2), draw(2, 5, 12)
    torch.testing.assert_close(ours(x)[0], ours(x, need_weights=True)[0])


def test_any_leading_dimensions():
    ours, x = module(), draw(2, 3, 5, 12)
    output, weights = ours(x, need_weights=True)
    assert weights.shape == (2, 3, 4, 5, 5)
    torch.testing.assert_close(output[1, 2], ours(x[1, 2])[0])
    assert ours(draw(0, 5, 12))[0].shape == (0, 5, 12)


def test_swapping_two_tokens_swaps_two_outputs():
    ours, x = module(), draw(5, 12)
    order = [0, 3, 2, 1, 4]
    torch.testing.assert_close(ours(x[order])[0], ours(x)[0][order])


def test_dropout_acts_in_training_only():
    ours, x = module(dropout=0.5), draw(2, 5, 12)
    assert torch.equal(ours(x)[0], ours(x)[0])
    ours.train()
    assert not torch.equal(ours(x)[0], ours(x)[0])


def test_queries_and_keys_are_normed_in_each_head_before_they_turn():
    ours = module(16, num_kv_heads=2, qk_norm=nn.RMSNorm, rotation=Rotary(4))
    for norm in (ours.query_norm, ours.key_norm):
        nn.init.normal_(norm.weight, 1, 0.3)
    x = draw(2, 5, 16)

    def split(projection, norm):
        each = norm(projection(x).view(2, 5, -1, 4)).transpose(1, 2)
        return Rotary(4)(each)

    query, key = split(ours.query_projection, ours.query_norm), split(ours.key_projection, ours.key_norm)
    want = (query @ key.repeat_interleave(2, 1).mT / 2).softmax(-1)
    torch.testing.assert_close(ours(x, need_weights=True)[1], want)


def test_normed_queries_and_keys_bound_the_scores():
    """Cauchy and Schwarz: rows of length √d_k cannot meet in more than √d_k · √d_k / √d_k."""
    ours, x = module(qk_norm=nn.RMSNorm), draw(2, 5, 12)
    ours.query_projection.weight.data *= 1000
    _, weights = ours(x, need_weights=True)
    highest, lowest = weights.log().amax(-1), weights.log().amin(-1)
    assert (highest - lowest).max() <= 2 * math.sqrt(3)
    wild = module()
    wild.query_projection.weight.data *= 1000
    assert wild(x, need_weights=True)[1].amin() < math.exp(-100)


def test_gradients_reach_every_weight():
    ours, x = module(num_kv_heads=2), draw(2, 5, 12)
    ours(x)[0].square().sum().backward()
    assert all(
        parameter.grad.abs().max() > 0
        for name, parameter in ours.named_parameters()
        if name != "key_projection.bias"
    )
    # A bias on the keys adds the same to every score of a query: softmax does not see it.
    assert ours.key_projection.bias.grad.abs().max() < 1e-12


def test_autocast():
    ours, x = module().float(), torch.randn(2, 5, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = ours(x, need_weights=True)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), ours(x)[0], rtol=0, atol=5e-2)
    torch.testing.assert_close(weights.float().sum(-1), torch.ones(2, 4, 5), rtol=0, atol=1e-2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.usefixtures("compiler")
def test_compile():
    ours, x = module().float(), torch.randn(2, 5, 12)
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, is_causal=True)[0], ours(x, is_causal=True)[0])


@pytest.mark.gpu
def test_on_a_gpu():
    ours, x = module().float(), torch.randn(2, 5, 12)
    want = ours(x, is_causal=True)[0]
    got = ours.cuda()(x.cuda(), is_causal=True)[0]
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    @pytest.mark.parametrize("num_heads", [0, 5, 24])
    def test_heads_that_do_not_divide(self, num_heads):
        with pytest.raises(ValueError, match=f"got d_model=12, num_heads={num_heads}"):
            MultiHeadAttention(12, num_heads)

    @pytest.mark.parametrize("num_kv_heads", [0, 3])
    def test_key_heads_that_do_not_divide(self, num_kv_heads):
        with pytest.raises(ValueError, match=f"num_heads=4, num_kv_heads={num_kv_heads}"):
            MultiHeadAttention(12, 4, num_kv_heads=num_kv_heads)

    def test_dropout(self):
        with pytest.raises(ValueError, match=r"below 1, got 1.0"):
            MultiHeadAttention(12, 4, dropout=1.0)

    @pytest.mark.parametrize("name", ["query", "key", "value"])
    def test_widths(self, name):
        x = {"query": draw(2, 5, 12), "key": draw(2, 5, 12), "value": draw(2, 5, 12)}
        x[name] = draw(2, 5, 11)
        with pytest.raises(ValueError, match=rf"{name} must have shape .*12\], got \(2, 5, 11\)"):
            module()(**x)

    def test_grouped_heads_have_no_counterpart_in_torch(self):
        with pytest.raises(ValueError, match="num_heads=4, num_kv_heads=2"):
            to_torch(module(num_kv_heads=2))

    def test_positions_have_no_counterpart_in_torch(self):
        for options in ({"rotation": Rotary(4)}, {"score_bias": ALiBi(3)}):
            with pytest.raises(ValueError, match="neither rotation nor score_bias"):
                to_torch(MultiHeadAttention(12, 3, **options))

    def test_normed_queries_have_no_counterpart(self):
        with pytest.raises(ValueError, match="no qk_norm"):
            to_torch(MultiHeadAttention(12, 3, qk_norm=nn.RMSNorm))

    def test_other_modules_have_no_counterpart(self):
        with pytest.raises(TypeError, match=r"from_torch takes nn.MultiheadAttention, .* got Linear"):
            from_torch(nn.Linear(3, 3))

    def test_torch_modules_without_counterpart(self):
        with pytest.raises(ValueError, match="kdim and vdim"):
            from_torch(nn.MultiheadAttention(12, 4, kdim=6))
        with pytest.raises(ValueError, match="add_bias_kv"):
            from_torch(nn.MultiheadAttention(12, 4, add_bias_kv=True))

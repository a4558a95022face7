"""The core on a GPU beside the same on the processor: ``make gpu`` runs what is marked so."""

import copy

import pytest
import torch
from torch import nn

from attention_course import decoding, masks, scores
from attention_course.attention import attention_weights, scaled_dot_product_attention
from attention_course.beyond import graphs, memory, speech, video
from attention_course.heads import MultiHeadAttention
from attention_course.linear import chunked, linear_attention
from attention_course.positions import ALiBi, BucketedBias, RelativeKeys, Rotary
from attention_course.transformer import Embedding, GatedFeedForward, LanguageModel, LayerConfig, gpt_like

pytestmark = pytest.mark.gpu

B, H, T, D = 2, 4, 37, 16
#: how far apart two orders of one sum may lie, relative to the largest entry
CLOSE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}

MASKS = {
    "none": dict,
    "causal": lambda: {"is_causal": True},
    "window": lambda: {"is_causal": True, "window": 5},
    "padding": lambda: {"attn_mask": masks.padding(torch.tensor([T, 9]), T).unsqueeze(1)},
    "blind rows": lambda: {"attn_mask": masks.padding(torch.tensor([T, 0]), T).unsqueeze(1)},
    "added": lambda: {"attn_mask": torch.randn(B, H, T, T)},
    "added, blind rows": lambda: {
        "attn_mask": torch.zeros(T, T).masked_fill(torch.arange(T)[:, None] < 3, -torch.inf)
    },
}


def there(x):
    return x.cuda() if torch.is_tensor(x) else x


def assert_near(got, want, dtype=torch.float32):
    assert got.isfinite().all()
    assert (got.cpu().double() - want.double()).abs().max() <= CLOSE[dtype] * max(
        1.0, want.abs().max().item()
    )


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("backend", ["auto", "fused", "reference", "tiled"])
@pytest.mark.parametrize("name", MASKS)
def test_attention_and_its_gradients(name, backend, dtype):
    inputs = [torch.randn(B, H, T, D) for _ in range(3)]
    options = MASKS[name]()
    exact = [x.to(dtype).double().requires_grad_() for x in inputs]
    wide = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in options.items()}
    want = scaled_dot_product_attention(*exact, **wide, backend="reference")
    d_out = torch.randn_like(want)
    wanted = torch.autograd.grad(want, exact, d_out)
    mine = [x.to("cuda", dtype).requires_grad_() for x in inputs]
    narrow = {
        k: v.to("cuda", dtype) if torch.is_tensor(v) and v.is_floating_point() else there(v)
        for k, v in options.items()
    }
    got = scaled_dot_product_attention(*mine, **narrow, backend=backend)
    assert got.is_cuda and got.dtype == dtype
    assert_near(got, want.detach(), dtype)
    for gradient, expected in zip(
        torch.autograd.grad(got, mine, d_out.to("cuda", dtype)), wanted, strict=True
    ):
        assert_near(gradient, expected, dtype)


@pytest.mark.parametrize("name", MASKS)
def test_weights(name):
    query, key = torch.randn(B, H, T, D), torch.randn(B, H, T, D)
    options = MASKS[name]()
    want = attention_weights(query, key, **options)
    got = attention_weights(query.cuda(), key.cuda(), **{k: there(v) for k, v in options.items()})
    assert_near(got, want)


def test_dropout_drops_there_too():
    query, key, value = (torch.randn(B, H, T, D, device="cuda") for _ in range(3))
    torch.manual_seed(0)
    one = scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    torch.manual_seed(0)
    again = scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    whole = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(one, again)
    assert (one - whole).abs().max() > 0.1


PARTS = {
    "gpt_like": lambda: gpt_like(11, T, num_layers=2, d_model=32, num_heads=4, d_ff=48),
    "window, grouped": lambda: gpt_like(
        11, T, num_layers=2, d_model=32, num_heads=4, d_ff=48, num_kv_heads=2, window=5
    ),
    "rotary, gated, RMSNorm": lambda: _model(
        rotation=Rotary(8), feed_forward=GatedFeedForward, norm_layer=nn.RMSNorm
    ),
    "ALiBi": lambda: _model(score_bias=ALiBi(4)),
    "buckets": lambda: _model(score_bias=BucketedBias(4, is_causal=True)),
    "relative keys": lambda: _model(score_bias=RelativeKeys(8, 3)),
}


def _model(**parts):
    config = LayerConfig(d_model=32, num_heads=4, d_ff=48, norm="pre", **parts)
    return LanguageModel(Embedding(11, 32), 2, config, is_causal=True)


@pytest.mark.parametrize("name", PARTS)
class TestModels:
    def both(self, name):
        torch.manual_seed(0)
        model = PARTS[name]().eval()
        return model, copy.deepcopy(model).cuda(), torch.randint(11, (B, 20))

    def test_logits_with_padding(self, name):
        model, theirs, tokens = self.both(name)
        lengths = torch.tensor([20, 7])
        want, got = model(tokens, lengths), theirs(tokens.cuda(), lengths.cuda())
        assert_near(got[1, :7].detach(), want[1, :7].detach())

    def test_a_cache(self, name):
        _, theirs, tokens = self.both(name)
        tokens = tokens.cuda()
        with torch.no_grad():
            whole = theirs(tokens)
            caches = decoding.caches_for(theirs, batch=B, max_length=20)
            steps = [theirs(new, caches=caches) for new in tokens.split([9, *[1] * 11], dim=1)]
        assert_near(torch.cat(steps, dim=1), whole.cpu())

    def test_writing(self, name):
        model, theirs, tokens = self.both(name)
        generator = torch.Generator("cuda").manual_seed(0)
        choose = decoding.sample(top_k=5, top_p=0.9, generator=generator)
        assert decoding.generate(theirs, tokens.cuda(), steps=5, choose=choose).is_cuda
        want = decoding.generate(model.double(), tokens, steps=5)
        assert torch.equal(decoding.generate(theirs.double(), tokens.cuda(), steps=5).cpu(), want)

    def test_an_unknown_token_stops_nothing_for_good(self, name):
        _, theirs, tokens = self.both(name)
        with pytest.raises(ValueError, match="tokens must lie between 0 and 10"):
            theirs(tokens.cuda() + 11)
        assert theirs(tokens.cuda()).isfinite().all()


@pytest.mark.parametrize("numbers", [1 << 10, 1 << 40], ids=["in blocks", "as a table"])
def test_additive_scores(monkeypatch, numbers):
    monkeypatch.setattr("attention_course.kernels.BLOCKWISE_ELSEWHERE", numbers)
    score = scores.Additive(D, D, 8)
    query, key = torch.randn(B, T, D), torch.randn(B, T, D)
    want = score(query, key).detach()
    assert_near(score.cuda()(query.cuda(), key.cuda()).detach(), want)


def test_linear_attention():
    query, key, value = (torch.randn(B, T, D) for _ in range(3))
    inputs = [x.cuda() for x in (query, key, value)]
    assert_near(
        linear_attention(*inputs, is_causal=True), linear_attention(query, key, value, is_causal=True)
    )
    assert_near(chunked(*inputs, chunk=8)[0], chunked(query, key, value, chunk=8)[0])


@pytest.mark.parametrize("score", graphs.SCORES)
def test_graph_attention(score):
    """Sums over edges are made by atomic adds there: in another order, to the same number."""
    torch.manual_seed(0)
    layer = graphs.GraphAttention(D, 8, H, score=score)
    x, edges = torch.randn(50, D, requires_grad=True), torch.randint(50, (2, 400))
    context, weights = layer(x, edges)
    (wanted,) = torch.autograd.grad(context.square().sum(), x)
    theirs = x.detach().cuda().requires_grad_()
    got, got_weights = copy.deepcopy(layer).cuda()(theirs, edges.cuda())
    (gradient,) = torch.autograd.grad(got.square().sum(), theirs)
    for mine, yours in ((got, context), (got_weights, weights), (gradient, wanted)):
        assert_near(mine.detach(), yours.detach())


def test_divided_attention_a_listener_and_a_policy():
    torch.manual_seed(0)
    time, space = MultiHeadAttention(D, H), MultiHeadAttention(D, H)
    clip = torch.randn(B, 3, 5, D)
    aware, policy = speech.LocationAware(D, D, 8), memory.AttentionPolicy(3, 2)
    query, key, before = torch.randn(B, 1, D), torch.randn(B, T, D), torch.rand(B, 1, T)
    seen, done = torch.randn(B, 9, 3), torch.rand(B, 9) < 0.3
    with torch.no_grad():
        want = video.divided(time, space, clip), aware(query, key, before), policy(seen, done)[0]
        parts = [copy.deepcopy(module).cuda() for module in (time, space, aware, policy)]
        got = (
            video.divided(parts[0], parts[1], clip.cuda()),
            parts[2](query.cuda(), key.cuda(), before.cuda()),
            parts[3](seen.cuda(), done.cuda())[0],
        )
    for mine, yours in zip(got, want, strict=True):
        assert_near(mine, yours)

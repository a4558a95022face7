"""The core where nothing can be read (``meta``), and in the hands of torch's compilers and converters."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from attention_course import attention, decoding, heads, inside, linear, local, masks, positions, scores
from attention_course.attention import scaled_dot_product_attention
from attention_course.beyond import graphs, memory, senses, speech, video, vision
from attention_course.interop import from_torch, to_torch
from attention_course.transformer import (
    CrossAttentionLayer,
    Embedding,
    GatedFeedForward,
    LanguageModel,
    LayerConfig,
    Transformer,
    bert_like,
    gpt_like,
    t5_like,
)

B, H, T, D, TOKENS = 2, 4, 6, 8, 11
META = torch.device("meta")
SIZES = {"num_layers": 2, "d_model": 16, "num_heads": 4, "d_ff": 24}


def draw(*shape):
    return torch.randn(*shape, device=META)


def qkv(*leading):
    return tuple(draw(*leading, T, D) for _ in range(3))


def config(norm="pre", **options):
    return LayerConfig(d_model=16, num_heads=4, d_ff=24, norm=norm, **options)


def tokens(*shape):
    return torch.zeros(*shape, dtype=torch.long, device=META)


def lengths(*numbers):
    return torch.tensor(numbers, device=META)


def looked_into():
    """What is asked of the recorded layers of a model."""
    model = bert_like(TOKENS, 20, **SIZES)
    logits, layers = inside.record(model, tokens(B, T), lengths(6, 3))
    slopes = inside.weights_times_gradient(layers, logits.sum())
    seen = inside.weights_of(layers)
    matters = inside.importance(model, lambda: model(tokens(B, T)).sum((1, 2)), sentences=B)
    return inside.norms(layers[0]), inside.norms(layers[0], summed=True), slopes[1], seen, matters


def cached():
    model = gpt_like(TOKENS, 20, **SIZES).eval()
    caches = decoding.caches_for(model, batch=B, max_length=T)
    with torch.no_grad():
        model(tokens(B, T - 1), caches=caches)
        return model(tokens(B, 1), caches=caches)


#: every public function and module of the core: called under ``torch.device("meta")``
CALLS = {
    "attend": lambda: attention.attend(*qkv(B)),
    "masked_softmax": lambda: attention.masked_softmax(draw(B, T, T), masks.causal(T, device=META)),
    "mix": lambda: attention.mix(draw(B, T, T), draw(B, T, D)),
    "attention_weights": lambda: attention.attention_weights(*qkv(B)[:2], is_causal=True, window=2),
    **{
        f"scaled_dot_product_attention, {backend}": partial(
            lambda kernel: scaled_dot_product_attention(*qkv(B, H), is_causal=True, window=2, backend=kernel),
            backend,
        )
        for backend in ("auto", "fused", "reference", "tiled", "windowed")
    },
    "causal": lambda: masks.causal(T, device=META),
    "padding": lambda: masks.padding(lengths(3, 6), T),
    "window": lambda: masks.window(T, T, 2, device=META),
    "with_bias": lambda: masks.with_bias(masks.causal(T, device=META), draw(H, T, T), draw(B, H, T, D)),
    "dot": lambda: scores.dot(*qkv(B)[:2]),
    "scaled_dot": lambda: scores.scaled_dot(*qkv(B)[:2]),
    "cosine": lambda: scores.cosine(*qkv(B)[:2]),
    **{
        name: partial(lambda make: make()(*qkv(B)[:2]), make)
        for name, make in {
            "General": partial(scores.General, D, D),
            "Additive": partial(scores.Additive, D, D, 5),
            "Concat": partial(scores.Concat, D, D, 5),
            "Location": partial(scores.Location, D, 20),
        }.items()
    },
    "local.window": lambda: local.window(draw(B, T), T, 2),
    "local.gaussian": lambda: local.gaussian(draw(B, T), T, 2),
    "attend_window": lambda: local.attend_window(*qkv(B), centres=draw(B, T), reach=2),
    "attend_gaussian": lambda: local.attend_gaussian(*qkv(B), centres=draw(B, T), reach=2),
    "sinusoidal": lambda: positions.sinusoidal(T, D, device=META),
    "Sinusoidal": lambda: positions.Sinusoidal(D)(draw(B, T, D)),
    "Learned": lambda: positions.Learned(T, D)(draw(B, T, D)),
    "Rotary": lambda: positions.Rotary(D)(draw(B, H, T, D)),
    "alibi_bias": lambda: positions.alibi_bias(H, T, device=META),
    "ALiBi": lambda: positions.ALiBi(H)(*qkv(B, H)[:2]),
    "BucketedBias": lambda: positions.BucketedBias(H, is_causal=False)(*qkv(B, H)[:2]),
    "RelativeKeys": lambda: positions.RelativeKeys(D, 2)(*qkv(B, H)[:2]),
    "linear_attention": lambda: linear.linear_attention(*qkv(B)),
    "recurrent": lambda: linear.recurrent(*qkv(B))[0],
    "chunked": lambda: linear.chunked(*qkv(B), chunk=4)[0],
    "linear_attention_quadratic": lambda: linear.linear_attention_quadratic(*qkv(B), is_causal=True),
    "MultiHeadAttention": lambda: heads.MultiHeadAttention(16, 4, num_kv_heads=2)(
        draw(B, T, 16), is_causal=True, need_weights=True
    ),
    "from_torch": lambda: from_torch(nn.TransformerDecoderLayer(16, 4, 24, batch_first=True))(
        draw(B, T, 16), draw(B, T, 16)
    ),
    "to_torch": lambda: to_torch(heads.MultiHeadAttention(16, 4))(*[draw(B, T, 16)] * 3, need_weights=False),
    "CrossAttentionLayer": lambda: CrossAttentionLayer(config(), gated=True)(draw(B, T, 16), draw(B, 3, 16)),
    "LanguageModel": lambda: LanguageModel(
        Embedding(TOKENS, 16, num_segments=2, norm_layer=nn.LayerNorm),
        2,
        config(rotation=positions.Rotary(4), feed_forward=GatedFeedForward, norm_layer=nn.RMSNorm),
        is_causal=True,
    )(tokens(B, T), lengths(6, 3)),
    "LanguageModel.trace": lambda: gpt_like(TOKENS, 20, **SIZES).trace(tokens(B, T)).weights[1],
    "bert_like": lambda: bert_like(TOKENS, 20, **SIZES)(tokens(B, T), lengths(6, 3)),
    "t5_like": lambda: t5_like(TOKENS, **SIZES)(tokens(B, T), lengths(6, 3), tokens(B, 4)),
    "Transformer": lambda: Transformer(TOKENS, 9, 2, config("post"))(
        tokens(B, T), lengths(6, 3), tokens(B, 4)
    ),
    "caches": cached,
    "entropy": lambda: inside.entropy(draw(B, H, T, T), lengths(6, 3)),
    "distance": lambda: inside.distance(draw(2, B, H, T, T), lengths(6, 3)),
    "divergence": lambda: inside.divergence(draw(B, H, T, T), lengths(6, 3)),
    "rollout": lambda: inside.rollout(draw(2, B, T, T)),
    "record": looked_into,
    "patches": lambda: vision.from_patches(vision.patches(draw(B, 3, 4, 6), 2), 4, 6, 2),
    "grid_positions": lambda: vision.grid_positions(2, 3, D, device=META),
    "attention_distance": lambda: vision.attention_distance(draw(B, H, T, T), 3),
    "pointing": lambda: vision.pointing(draw(B, T, T), tokens(B, T)),
    "spectrogram": lambda: speech.spectrogram(draw(B, 900)),
    "frames_of": lambda: speech.frames_of(lengths(900, 300)),
    "pyramid": lambda: speech.pyramid(draw(B, T, D), lengths(6, 3)),
    "LocationAware": lambda: speech.LocationAware(D, D, 5)(draw(B, 1, D), draw(B, T, D), draw(B, 1, T)),
    "joint": lambda: video.joint(heads.MultiHeadAttention(16, 4), draw(B, 3, T, 16)),
    "divided": lambda: video.divided(
        heads.MultiHeadAttention(16, 4), heads.MultiHeadAttention(16, 4), draw(B, 3, T, 16)
    ),
    "contrastive_loss": lambda: senses.contrastive_loss(draw(B, D), draw(B, D), 0.1),
    "image_prefix_mask": lambda: senses.image_prefix_mask(3, T, device=META),
    "segment_softmax": lambda: graphs.segment_softmax(draw(T, H), tokens(T), 4),
    **{
        name: partial(
            lambda score: graphs.GraphAttention(D, 5, H, score=score)(draw(T, D), tokens(2, 9)), name
        )
        for name in graphs.SCORES
    },
    "returns": lambda: memory.returns(draw(T, B), 0.9, tokens(T, B).bool()),
    "policy_loss": lambda: memory.policy_loss(draw(T, B), draw(T, B), tokens(T, B).bool()),
    "same_episode": lambda: memory.same_episode(tokens(B, T).bool()),
    "AttentionPolicy": lambda: memory.AttentionPolicy(3, 2)(draw(B, T, 3), tokens(B, T).bool()),
    "RecurrentPolicy": lambda: memory.RecurrentPolicy(3, 2)(draw(B, T, 3)),
    "filters": lambda: decoding.top_p(decoding.top_k(decoding.temperature(draw(B, TOKENS), 0.7), 5), 0.9),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_tensor_of_another_device_is_hidden_inside(name):
    """On ``meta`` a tensor has a shape and no numbers: to mix it with a CPU's, or to read it, fails."""
    with META:
        result = CALLS[name]()
    tensors = [result] if isinstance(result, torch.Tensor) else [x for x in result if torch.is_tensor(x)]
    assert tensors and all(tensor.is_meta for tensor in tensors)


MODELS = {
    "gpt_like": lambda: gpt_like(TOKENS, 20, **SIZES),
    "bert_like": lambda: bert_like(TOKENS, 20, **SIZES),
    "window, grouped": lambda: gpt_like(TOKENS, 20, **SIZES, num_kv_heads=2, window=3),
    **{
        name: partial(
            lambda options: LanguageModel(Embedding(TOKENS, 16), 2, config(**options()), is_causal=True),
            options,
        )
        for name, options in {
            "rotary, gated, RMSNorm": lambda: {
                "rotation": positions.Rotary(4),
                "feed_forward": GatedFeedForward,
                "norm_layer": nn.RMSNorm,
            },
            "QK-norm": lambda: {"qk_norm": nn.RMSNorm},
            "ALiBi": lambda: {"score_bias": positions.ALiBi(4)},
            "buckets": lambda: {"score_bias": positions.BucketedBias(4, is_causal=True)},
            "relative keys": lambda: {"score_bias": positions.RelativeKeys(4, 3)},
        }.items()
    },
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", MODELS)
class TestWholeModels:
    def model(self, name):
        torch.manual_seed(0)
        return MODELS[name]().eval(), torch.randint(TOKENS, (B, T))

    def test_compiled_as_one_graph(self, name, compiler):
        model, given = self.model(name)
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(given), model(given))
        torch._dynamo.reset()

    def test_exported(self, name):
        model, given = self.model(name)
        program = torch.export.export(model, (given,))
        torch.testing.assert_close(program.module()(given), model(given))

    @pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
    def test_quantised(self, name):
        model, given = self.model(name)
        linear_layers = sum(type(module) is nn.Linear for module in model.modules())
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        kinds = [type(module) for module in quantised.modules()]
        assert nn.Linear not in kinds
        assert kinds.count(torch.ao.nn.quantized.dynamic.Linear) == linear_layers > 10
        want = model(given).log_softmax(-1)
        divergence = F.kl_div(quantised(given).log_softmax(-1), want, log_target=True, reduction="batchmean")
        assert divergence < 0.05

    def test_pruned(self, name):
        model, given = self.model(name)
        layer = model.stack.layers[0].attention.output_projection
        prune.random_unstructured(layer, "weight", amount=0.5)
        assert not torch.allclose(model(given), self.model(name)[0](given))

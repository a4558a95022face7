"""The Transformer: equal to torch's layers, blind to the future and to padding, and able to translate."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attention_course import masks
from attention_course.decoding import caches_for
from attention_course.heads import MultiHeadAttention
from attention_course.interop import from_torch
from attention_course.lab.data import translation
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.measure.translations import exact_match, translate
from attention_course.lab.train.translators import learn
from attention_course.positions import (
    ALiBi,
    BucketedBias,
    Learned,
    RelativeKeys,
    Rotary,
    Sinusoidal,
    sinusoidal,
)
from attention_course.seq2seq import greedy
from attention_course.transformer import (
    CrossAttentionLayer,
    Decoder,
    DecoderLayer,
    Embedding,
    Encoder,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    LanguageModel,
    LayerConfig,
    Residual,
    Transformer,
    bert_like,
    gpt_like,
    llama_like,
    t5_like,
)

PAD, BOS, EOS = 0, 1, 2
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 4, "d_ff": 20}
each_norm = pytest.mark.parametrize("norm", ["pre", "post"])


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def shaken(module):
    """The module in float64 with nothing left at 0 or 1: a norm or bias in the wrong place then shows."""
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def config(norm="pre", **options):
    return LayerConfig(**{"d_model": 12, "num_heads": 4, "d_ff": 20} | options, norm=norm)


def small(norm="post", *, tied=True, **options):
    return shaken(Transformer(11, 9, 2, config(norm, **options), tied=tied))


def language_model(norm="post", *, is_causal):
    return shaken(LanguageModel(Embedding(9, 12, Learned(6, 12)), 2, config(norm), is_causal=is_causal))


def inputs(lengths=(5, 3, 1), T_q=4):
    lengths = torch.tensor(lengths)
    source = torch.randint(3, 11, (len(lengths), int(lengths.max())))
    return source, lengths, torch.randint(3, 9, (len(lengths), T_q))


def another(tokens, index):
    """The tokens with another word at ``index``, which is none of the special ones."""
    tokens = tokens.clone()
    tokens[index] = (tokens[index] - 2) % 6 + 3
    return tokens


# Against torch


@each_norm
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "slow path"])
class TestEncoderLayerAgainstTorch:
    def both(self, norm, activation, fast):
        theirs = nn.TransformerEncoderLayer(
            12, 4, 20, 0.1, activation, layer_norm_eps=1e-3, batch_first=True, norm_first=norm == "pre"
        )
        theirs = shaken(theirs).requires_grad_(not fast)  # torch's fast path wants no gradients
        return from_torch(theirs), theirs

    def test_without_a_mask(self, norm, activation, fast):
        ours, theirs = self.both(norm, activation, fast)
        x = draw(2, 5, 12)
        torch.testing.assert_close(ours(x)[0], theirs(x), rtol=1e-10, atol=1e-10)

    def test_causal_with_padding(self, norm, activation, fast):
        ours, theirs = self.both(norm, activation, fast)
        x, lengths = draw(3, 5, 12), torch.tensor([5, 3, 1])
        seen = masks.padding(lengths, 5)
        want = theirs(
            x,
            src_mask=masks.from_torch_blocked(masks.causal(5)),
            src_key_padding_mask=masks.from_torch_blocked(seen.squeeze(1)),
        )
        got, _ = ours(x, attn_mask=seen, is_causal=True)
        words = seen.squeeze(1)  # what torch leaves in the padding depends on the path
        torch.testing.assert_close(got[words], want[words], rtol=1e-10, atol=1e-10)

    def test_padding_alone(self, norm, activation, fast):
        ours, theirs = self.both(norm, activation, fast)
        x, seen = draw(3, 5, 12), masks.padding(torch.tensor([5, 3, 1]), 5)
        want = theirs(x, src_key_padding_mask=masks.from_torch_blocked(seen.squeeze(1)))
        got, _ = ours(x, attn_mask=seen)
        torch.testing.assert_close(got[seen.squeeze(1)], want[seen.squeeze(1)], rtol=1e-10, atol=1e-10)


@each_norm
class TestDecoderLayerAgainstTorch:
    def both(self, norm):
        theirs = nn.TransformerDecoderLayer(
            12, 4, 20, 0.1, "gelu", layer_norm_eps=1e-3, batch_first=True, norm_first=norm == "pre"
        )
        theirs = shaken(theirs)
        return from_torch(theirs), theirs

    def test_causal(self, norm):
        ours, theirs = self.both(norm)
        x, memory = draw(2, 4, 12), draw(2, 5, 12)
        want = theirs(x, memory, tgt_mask=masks.from_torch_blocked(masks.causal(4)))
        torch.testing.assert_close(ours(x, memory)[0], want, rtol=1e-10, atol=1e-10)

    def test_not_causal(self, norm):
        ours, theirs = self.both(norm)
        x, memory = draw(2, 4, 12), draw(2, 5, 12)
        got, _ = ours(x, memory, is_causal=False)
        torch.testing.assert_close(got, theirs(x, memory), rtol=1e-10, atol=1e-10)

    def test_padding_on_both_sides(self, norm):
        ours, theirs = self.both(norm)
        x, memory = draw(3, 4, 12), draw(3, 5, 12)
        own, source = masks.padding(torch.tensor([4, 2, 1]), 4), masks.padding(torch.tensor([1, 5, 3]), 5)
        want = theirs(
            x,
            memory,
            tgt_mask=masks.from_torch_blocked(masks.causal(4)),
            tgt_key_padding_mask=masks.from_torch_blocked(own.squeeze(1)),
            memory_key_padding_mask=masks.from_torch_blocked(source.squeeze(1)),
        )
        got, _ = ours(x, memory, attn_mask=own, memory_mask=source)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@each_norm
def test_whole_stacks_equal_torchs(norm):
    """Layers in their order, every one of them, and a norm behind the last if it is pre-norm."""
    options = {"batch_first": True, "norm_first": norm == "pre"}
    last = partial(nn.LayerNorm, 12) if norm == "pre" else lambda: None
    theirs = shaken(
        nn.ModuleList(
            [
                nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(12, 4, 20, **options), 3, last(), enable_nested_tensor=False
                ),
                nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 4, 20, **options), 3, last()),
            ]
        )
    )
    ours = Encoder(3, config(norm)).double(), Decoder(3, config(norm)).double()
    for stack, like in zip(ours, theirs, strict=True):
        stack.layers = nn.ModuleList(map(from_torch, like.layers))
        if norm == "pre":
            stack.final_norm.load_state_dict(like.norm.state_dict())
    source, x = draw(2, 5, 12), draw(2, 4, 12)
    seen = masks.padding(torch.tensor([5, 3]), 5)
    hidden = masks.from_torch_blocked(seen.squeeze(1))
    want_memory = theirs[0](source, src_key_padding_mask=hidden)
    want = theirs[1](
        x, want_memory, masks.from_torch_blocked(masks.causal(4)), memory_key_padding_mask=hidden
    )
    memory, _ = ours[0](source, attn_mask=seen)
    torch.testing.assert_close(memory[seen.squeeze(1)], want_memory[seen.squeeze(1)], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours[1](x, memory, memory_mask=seen)[0], want, rtol=1e-9, atol=1e-9)


CONVERTERS = [
    (EncoderLayer, nn.TransformerEncoderLayer, (12, 4, 20)),
    (DecoderLayer, nn.TransformerDecoderLayer, (12, 4, 20)),
]
each_converter = pytest.mark.parametrize(("ours", "theirs", "sizes"), CONVERTERS)


@each_converter
@pytest.mark.parametrize("training", [True, False])
def test_conversion_copies_the_weights_and_keeps_mode_dtype_and_dropout(ours, theirs, sizes, training):
    layer = theirs(*sizes, dropout=0.25, dtype=torch.float64).train(training)
    converted = from_torch(layer)
    assert type(converted) is ours
    assert converted.training == training
    assert {p.dtype for p in converted.parameters()} == {torch.float64}
    assert converted.around_feed_forward.dropout.p == 0.25
    before = [p.clone() for p in converted.parameters()]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, converted.parameters(), strict=True))


@each_converter
def test_every_weight_of_torchs_is_taken_over(ours, theirs, sizes):
    layer = theirs(*sizes)
    count = count_parameters
    assert count(from_torch(layer)) == count(layer)


@each_converter
def test_layers_without_biases_have_no_counterpart(ours, theirs, sizes):
    with pytest.raises(ValueError, match="bias=False has no counterpart"):
        from_torch(theirs(*sizes, bias=False))


# The parts


def test_feed_forward_works_on_each_token_alone():
    layer, x = FeedForward(12, 20).double(), draw(2, 5, 12)
    W_1, b_1, W_2, b_2 = layer.parameters()
    torch.testing.assert_close(layer(x), (x @ W_1.T + b_1).clamp(min=0) @ W_2.T + b_2)
    torch.testing.assert_close(layer(x)[1, 3], layer(x[1, 3:4])[0])


def test_both_orders_of_norm_and_sum():
    x, answer = draw(2, 5, 12), draw(2, 5, 12)
    for norm in ("pre", "post"):
        around = shaken(Residual(12, norm=norm))
        normed = partial(
            F.layer_norm, normalized_shape=(12,), weight=around.norm.weight, bias=around.norm.bias
        )
        shown, written = (normed(x), x + answer) if norm == "pre" else (x, normed(x + answer))
        torch.testing.assert_close(around.read(x), shown)
        torch.testing.assert_close(around.write(x, answer), written)


@pytest.mark.parametrize("layer", [EncoderLayer, DecoderLayer])
def test_a_pre_norm_layer_whose_sub_layers_are_silent_changes_nothing(layer):
    silent = layer(config("pre")).double()
    for module in silent.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.zeros_(module.output_projection.weight)
            nn.init.zeros_(module.output_projection.bias)
    nn.init.zeros_(silent.feed_forward.outer.weight)
    nn.init.zeros_(silent.feed_forward.outer.bias)
    x, memory = draw(2, 4, 12), draw(2, 5, 12)
    got, _ = silent(x, memory) if layer is DecoderLayer else silent(x)
    assert torch.equal(got, x)


def test_the_parts_that_are_handed_in_arrive_in_every_layer():
    norm_layer, feed_forward = partial(nn.LayerNorm, eps=0.5), partial(FeedForward, activation=torch.tanh)
    for stack in (Encoder, Decoder):
        built = stack(2, config(norm_layer=norm_layer, feed_forward=feed_forward, bias=False))
        assert [layer.feed_forward.activation for layer in built.layers] == [torch.tanh] * 2
        assert {m.eps for m in built.modules() if isinstance(m, nn.LayerNorm)} == {0.5}
        assert not any("projection.bias" in name for name, _ in built.named_parameters())
        modern = stack(2, config(norm_layer=nn.RMSNorm, feed_forward=GatedFeedForward))
        assert not any(isinstance(m, nn.LayerNorm | FeedForward) for m in modern.modules())


def test_only_a_pre_norm_stack_has_a_norm_at_its_end():
    for stack in (Encoder, Decoder):
        assert isinstance(stack(1, config("pre")).final_norm, nn.LayerNorm)
        assert not list(stack(1, config("post")).final_norm.parameters())


@each_norm
def test_any_leading_dimensions(norm):
    encoder, decoder = (shaken(kind(2, config(norm, dropout=0.1))) for kind in (Encoder, Decoder))
    x, memory = draw(2, 3, 4, 12), draw(2, 3, 5, 12)
    torch.testing.assert_close(encoder(x)[0][1, 2], encoder(x[1, 2])[0])
    torch.testing.assert_close(decoder(x, memory)[0][1, 2], decoder(x[1, 2], memory[1, 2])[0])


def test_embeddings_are_scaled_before_positions_are_added():
    embedding = Embedding(7, 12, Sinusoidal(12), scale=math.sqrt(12)).double()
    tokens = torch.tensor([[3, 3, 5]])
    want = embedding.table.weight[tokens] * 12**0.5 + sinusoidal(3, 12)
    torch.testing.assert_close(embedding(tokens), want)
    assert not torch.allclose(embedding(tokens)[0, 0], embedding(tokens)[0, 1])


def test_scaled_embeddings_and_tied_logits_start_with_variance_one():
    model = Transformer(2000, 2000, 1, config("post", d_model=64, d_ff=64))
    vectors = 8 * model.encoder.embedding.table.weight
    assert vectors.var().item() == pytest.approx(1, abs=0.05)
    logits = model.decoder.output(F.layer_norm(torch.randn(50, 64), (64,)))
    assert logits.var().item() == pytest.approx(1, abs=0.05)


def test_a_gated_network_multiplies_what_it_hands_on():
    network, x = GatedFeedForward(12, 20).double(), draw(2, 5, 12)
    gate, inner, outer = network.parameters()
    want = (F.silu(x @ gate.T) * (x @ inner.T)) @ outer.T
    torch.testing.assert_close(network(x), want)


def test_segments_and_a_norm_of_the_embedding_as_in_bert():
    embedding = shaken(Embedding(7, 12, Learned(5, 12), num_segments=2, norm_layer=nn.LayerNorm))
    tokens, segments = torch.tensor([[3, 3, 5]]), torch.tensor([[0, 1, 1]])
    rows = embedding.table.weight[tokens] + embedding.segments.weight[segments]
    torch.testing.assert_close(
        embedding(tokens, segments=segments), embedding.norm(embedding.positions(rows))
    )
    torch.testing.assert_close(embedding(tokens), embedding(tokens, segments=torch.zeros_like(tokens)))


def test_a_gated_cross_attention_is_silent_until_it_has_learned():
    layer = CrossAttentionLayer(config("pre"), gated=True).double()
    x, memory = draw(2, 4, 12), draw(2, 5, 12)
    got, weights = layer(x, memory, need_weights=True)
    assert torch.equal(got, x) and weights.shape == (2, 4, 4, 5)
    got.square().sum().backward()
    gates = [layer.around_cross_attention.gate, layer.around_feed_forward.gate]
    assert all(gate.grad.abs() > 1e-6 for gate in gates)  # but it can learn
    with torch.no_grad():
        for gate in gates:
            gate.fill_(0.5)
    assert not torch.allclose(layer(x, memory)[0], x)
    hidden = torch.arange(5) != 2
    moved = memory.clone()
    moved[:, 2] += 1.0
    torch.testing.assert_close(
        layer(x, memory, memory_mask=hidden[None])[0], layer(x, moved, memory_mask=hidden[None])[0]
    )


@each_norm
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_trace_holds_the_states_and_weights_of_every_layer(norm, is_causal):
    model, lengths = language_model(norm, is_causal=is_causal), torch.tensor([6, 2])
    tokens = torch.randint(3, 9, (2, 6))
    logits, states, weights = model.trace(tokens, lengths)
    torch.testing.assert_close(logits, model(tokens, lengths))
    assert len(states) == 3 and len(weights) == 2
    assert torch.equal(states[0], model.embedding(tokens))
    mask = masks.padding(lengths, 6)
    for layer, below, above, seen in zip(model.stack.layers, states, states[1:], weights, strict=False):
        want, wanted = layer(below, attn_mask=mask, is_causal=is_causal, need_weights=True)
        assert torch.equal(above, want) and torch.equal(seen, wanted)


POSITIONS = {
    "rotary": lambda: {"rotation": Rotary(4)},
    "alibi": lambda: {"score_bias": ALiBi(4)},
    "buckets": lambda: {"score_bias": BucketedBias(4, is_causal=True, num_buckets=4, max_distance=4)},
    "relative keys": lambda: {"score_bias": RelativeKeys(4, 2)},
}


@pytest.mark.parametrize("kind", POSITIONS)
class TestPositionsInsideTheLayers:
    """A model whose embedding knows of no positions, d_model = 16 in 4 heads of width 4."""

    def model(self, kind, **options):
        layers = config(d_model=16, **POSITIONS[kind](), **options)
        return shaken(LanguageModel(Embedding(9, 16), 2, layers, is_causal=True))

    def test_order_matters_and_the_future_does_not(self, kind):
        model, tokens = self.model(kind), torch.tensor([[3, 4, 5, 6, 7]])
        swapped = tokens[:, [1, 0, 2, 3, 4]]
        logits = model(tokens)
        assert not torch.allclose(logits[:, 2:], model(swapped)[:, 2:], rtol=1e-3)
        assert torch.equal(logits[:, :4], model(another(tokens, (slice(None), 4)))[:, :4])

    def test_only_the_distance_counts(self, kind):
        """The same weights wherever a pair stands: padding in front moves nothing that may be seen."""
        model = self.model(kind)
        tokens = torch.tensor([[3, 4, 5, 6, 7]])
        x = model.embedding(tokens)
        shifted = torch.cat((x[:, :1], x), dim=1)
        mask = torch.ones(6, 6, dtype=torch.bool)
        mask[:, 0] = False
        want, _ = model.stack(x, is_causal=True)
        got, _ = model.stack(shifted, attn_mask=mask, is_causal=True)
        torch.testing.assert_close(got[:, 1:], want)

    @pytest.mark.parametrize("options", [{}, {"window": 3}, {"num_kv_heads": 2}])
    def test_a_cache_changes_nothing(self, kind, options):
        model, tokens = self.model(kind, **options), torch.randint(3, 9, (2, 8))
        whole = model(tokens)
        with torch.no_grad():
            caches = caches_for(model, batch=2, max_length=8)
            steps = [model(tokens[:, :3], caches=caches)]
            steps += [model(tokens[:, t : t + 1], caches=caches) for t in range(3, 8)]
        torch.testing.assert_close(torch.cat(steps, dim=1), whole.detach())

    def test_gradients_reach_what_it_has_learned(self, kind):
        model = self.model(kind)
        model(torch.randint(9, (2, 6))).square().sum().backward()
        silent = [name for name, p in model.named_parameters() if p.grad.abs().max() < 1e-12]
        # What a bias of the keys adds is the same for all keys, unless each is turned in its own way.
        keys = [name for name, _ in model.named_parameters() if name.endswith("key_projection.bias")]
        assert silent == ([] if kind == "rotary" else keys)

    def test_another_sequence_is_at_no_distance(self, kind):
        layer = self.model(kind).stack.layers[0]
        with pytest.raises(ValueError, match="key must be None with rotation or score_bias"):
            layer.attention(draw(2, 3, 16), draw(2, 4, 16))
        decoder = shaken(Decoder(1, config(d_model=16, **POSITIONS[kind]())))
        assert decoder(draw(2, 3, 16), draw(2, 4, 16))[0].shape == (2, 3, 16)


# Who sees whom


@each_norm
@given(t=st.integers(0, 5))
def test_a_later_token_moves_nothing_before_it_and_everything_from_it_on(norm, t):
    gpt = language_model(norm, is_causal=True)
    tokens = torch.randint(3, 9, (2, 6))
    before, after = gpt(tokens), gpt(another(tokens, (slice(None), t)))
    assert torch.equal(before[:, :t], after[:, :t])
    assert ((before - after)[:, t:].abs().amax(-1) > 1e-6).all()


@each_norm
@given(t=st.integers(0, 3))
def test_no_written_word_depends_on_later_ones(norm, t):
    model, (source, lengths, previous) = small(norm), inputs()
    before = model(source, lengths, previous)[0]
    after = model(source, lengths, another(previous, (slice(None), t)))[0]
    assert torch.equal(before[:, :t], after[:, :t])
    assert ((before - after)[:, t:].abs().amax(-1) > 1e-6).all()


@given(t=st.integers(0, 5))
def test_without_the_causal_mask_every_token_moves_everything(t):
    bert = language_model(is_causal=False)
    tokens = torch.randint(3, 9, (2, 6))
    moved = (bert(tokens) - bert(another(tokens, (slice(None), t)))).abs().amax(-1)
    assert (moved > 1e-6).all()


def test_every_source_word_reaches_every_written_word():
    model, (source, lengths, previous) = small(), inputs((4, 4))
    for j in range(4):
        changed = another(source, (slice(None), j))
        moved = (model(source, lengths, previous)[0] - model(changed, lengths, previous)[0]).abs().amax(-1)
        assert (moved > 1e-7).all()


def test_swapping_two_words_changes_the_translation():
    model, (source, lengths, previous) = small(), inputs((4,))
    source[0, 1], source[0, 2] = 4, 7
    swapped = source[:, [0, 2, 1, 3]]
    assert not torch.allclose(model(source, lengths, previous)[0], model(swapped, lengths, previous)[0])


@each_norm
@settings(max_examples=12)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), extra=st.integers(0, 3))
def test_source_padding_and_the_rest_of_the_batch_change_nothing(norm, lengths, extra):
    model = small(norm)
    source, lengths, previous = inputs(lengths)
    padded = F.pad(source, (0, extra), value=PAD)
    logits, _ = model(padded, lengths, previous)
    for b, length in enumerate(lengths.tolist()):
        alone, _ = model(source[b : b + 1, :length], lengths[b : b + 1], previous[b : b + 1])
        torch.testing.assert_close(logits[b], alone[0])


def test_what_stands_in_the_padding_changes_nothing():
    model, (source, lengths, previous) = small(), inputs((5, 3))
    other = source.clone()
    other[1, 3:] = 10
    assert torch.equal(model(source, lengths, previous)[0], model(other, lengths, previous)[0])


def test_target_padding_needs_no_mask():
    model, (source, lengths, previous) = small(), inputs()
    padded = F.pad(previous, (0, 3), value=PAD)
    torch.testing.assert_close(model(source, lengths, padded)[0][:, :4], model(source, lengths, previous)[0])


@pytest.mark.parametrize("make", [bert_like, gpt_like])
def test_padding_of_a_language_model_changes_nothing(make):
    model, lengths = shaken(make(9, 6, **SIZES)), torch.tensor([6, 2, 4])
    tokens = torch.randint(3, 9, (3, 6))
    logits = model(tokens, lengths)
    for b, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(logits[b, :length], model(tokens[b : b + 1, :length])[0])


@each_norm
def test_a_source_of_nothing_but_padding_stays_finite(norm):
    model, (source, _, previous) = small(norm), inputs()
    logits, _ = model(source, torch.tensor([5, 0, 1]), previous)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("j", range(5))
def test_cross_attention_reads_the_memory(j):
    layer = shaken(DecoderLayer(config("post")))
    x, memory = draw(1, 3, 12), draw(1, 5, 12)
    moved = memory.clone()
    moved[0, j] += 1.0
    (before, seen), (after, seen_after) = (layer(x, m, need_weights=True) for m in (memory, moved))
    assert ((seen.source - seen_after.source)[..., j].abs() > 1e-6).all()
    assert ((before - after).abs().amax(-1) > 1e-6).all()
    assert torch.equal(seen.past, seen_after.past)
    hidden = torch.arange(5) != j
    torch.testing.assert_close(
        layer(x, memory, memory_mask=hidden[None]), layer(x, moved, memory_mask=hidden[None])
    )


# Training and decoding


@each_norm
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_reach_every_parameter(norm, tied):
    model = small(norm, tied=tied)
    F.cross_entropy(model(*inputs())[0].flatten(0, 1), torch.randint(9, (12,))).backward()
    # A bias on the keys adds the same to every score of a query: softmax does not see it.
    silent = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-12]
    assert silent == [name for name, _ in model.named_parameters() if name.endswith("key_projection.bias")]


@pytest.mark.parametrize("make", [bert_like, gpt_like])
def test_gradients_reach_every_parameter_of_a_language_model(make):
    model = shaken(make(9, 6, **SIZES))
    F.cross_entropy(model(torch.randint(9, (2, 6))).flatten(0, 1), torch.randint(9, (12,))).backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-12]
    assert silent == [name for name, _ in model.named_parameters() if name.endswith("key_projection.bias")]


def test_dropout_acts_in_training_only():
    model, batch = small(dropout=0.5), inputs()
    assert torch.equal(model(*batch)[0], model(*batch)[0])
    model.train()
    assert not torch.equal(model(*batch)[0], model(*batch)[0])


def test_dropout_is_in_every_sub_layer_and_behind_both_embeddings():
    model = small(dropout=0.25)
    # two sub-layers in each encoder layer, three in each decoder layer, two embeddings
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.25] * (2 * 2 + 2 * 3 + 2)
    around = Residual(12, norm="pre", dropout=0.5)
    x, ones = torch.zeros(1, 1000, 12), torch.ones(1, 1000, 12)
    assert set(around.write(x, ones).unique().tolist()) == {0.0, 2.0}
    assert torch.equal(around.write(ones, x), ones)  # the stream itself is never dropped


@each_norm
def test_step_by_step_equals_all_at_once(norm):
    model, (source, lengths, previous) = small(norm), inputs()
    memory, state, steps = model.read(source, lengths), None, []
    for t in range(previous.shape[1]):
        logits, _, state = model.decoder(previous[:, t : t + 1], memory, state)
        assert logits.shape == (3, 1, 9)
        steps.append(logits)
    assert torch.equal(state, previous)
    whole, _ = model(source, lengths, previous)
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    _, _, state = model.decoder(previous[:, :1], memory)
    later, _, _ = model.decoder(previous[:, 1:], memory, state)  # several at once, after some
    torch.testing.assert_close(later, whole[:, 1:])


def test_weights_are_those_of_every_layer_and_head():
    model, (source, lengths, previous) = small(), inputs()
    memory = model.read(source, lengths)
    logits, weights, _ = model.decoder(previous, memory, need_weights=True)
    torch.testing.assert_close(logits, model(source, lengths, previous)[0])
    assert len(weights) == 2
    for past, across in weights:
        assert past.shape == (3, 4, 4, 4) and across.shape == (3, 4, 4, 5)
        torch.testing.assert_close(past.sum(-1), torch.ones(3, 4, 4, dtype=torch.float64))
        torch.testing.assert_close(across.sum(-1), torch.ones(3, 4, 4, dtype=torch.float64))
        assert not past.triu(1).any() and not across[1, ..., 3:].any() and not across[2, ..., 1:].any()
    _, _, state = model.decoder(previous[:, :3], memory)
    _, last, _ = model.decoder(previous[:, 3:], memory, state, need_weights=True)
    for (past, across), (all_past, all_across) in zip(last, weights, strict=True):
        torch.testing.assert_close(past, all_past[..., 3:, :])
        torch.testing.assert_close(across, all_across[..., 3:, :])
    states, own = model.encoder.stack(model.encoder.embedding(source), need_weights=True)
    assert [w.shape for w in own] == [(3, 4, 5, 5)] * 2
    torch.testing.assert_close(states, model.encoder.stack(model.encoder.embedding(source))[0])


def test_greedy_feeds_back_its_own_words():
    model, (source, lengths, _) = small(), inputs()
    tokens, weights = greedy(model, source, lengths, bos=BOS, eos=EOS, max_length=7)
    assert weights is None
    previous = torch.cat((torch.full((3, 1), BOS), tokens[:, :-1]), 1)
    choices = model(source, lengths, previous)[0].argmax(-1)
    for b in range(3):
        end = (tokens[b] == EOS).nonzero().flatten().tolist()
        stop = end[0] + 1 if end else tokens.shape[1]
        assert choices[b, :stop].tolist() == tokens[b, :stop].tolist()
        assert (tokens[b, stop:] == EOS).all()


def test_it_learns_and_translates_by_the_same_means_as_the_recurrent_models():
    task = translation.task(0, train=40, per_bucket=1)
    short = tuple(pair for pair in task.train if len(pair.source) <= 6)[:4]
    layers = config("post", d_model=32, num_heads=2, d_ff=32)
    build = partial(Transformer, len(task.source), len(task.target), 1, layers)
    run = learn(build, replace(task, train=short), seed=0, steps=60, learning_rate=0.01, batch_size=4)
    assert run.history.losses[0] > math.log(len(task.target)) - 1  # knows nothing yet
    translations = translate(run.model, short, task)
    assert exact_match(translations, short) == 1.0  # four sentences by heart
    assert all(t.weights is None for t in translations)


# Sizes


def encoder_layer_size(d, d_ff):
    return 4 * d * d + 4 * d + 2 * d * d_ff + d_ff + d + 4 * d


def test_tied_weights_are_one_parameter_with_two_uses():
    tied, untied = small(tied=True), small(tied=False)
    assert tied.decoder.output.weight is tied.decoder.embedding.table.weight
    assert count_parameters(untied) == count_parameters(tied) + 9 * 12
    assert tied.encoder.embedding.table.weight is not tied.decoder.embedding.table.weight
    again = copy.deepcopy(tied)
    assert again.decoder.output.weight is again.decoder.embedding.table.weight


def test_t5_has_one_embedding_for_source_target_and_output():
    model = t5_like(9, **SIZES)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    assert tables == {id(model.decoder.output.weight)}
    model(torch.randint(9, (2, 5)), torch.tensor([5, 3]), torch.randint(9, (2, 4)))


def test_the_three_wirings_are_what_they_are_called():
    bert, gpt, t5 = bert_like(9, 6, **SIZES), gpt_like(9, 6, **SIZES), t5_like(9, **SIZES)
    first = [m.stack.layers[0] for m in (bert, gpt, t5.encoder, t5.decoder)]
    assert [layer.around_attention.norm_first for layer in first] == [False, True, True, True]
    assert [bert.is_causal, gpt.is_causal] == [False, True]
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(first[0].feed_forward.activation(x), F.gelu(x))
    torch.testing.assert_close(first[1].feed_forward.activation(x), F.gelu(x, approximate="tanh"))
    assert [type(m.embedding.positions) for m in (bert, gpt, t5.decoder)] == [Learned, Learned, Sinusoidal]
    assert [m.embedding.scale for m in (bert, gpt, t5.decoder)] == [1.0, 1.0, math.sqrt(12)]


@pytest.mark.parametrize("wiring", [partial(bert_like, 9, 6), partial(gpt_like, 9, 6), partial(t5_like, 9)])
def test_every_wiring_takes_fewer_key_heads_and_a_window(wiring):
    sizes = SIZES | {"num_layers": 1}
    full, grouped = wiring(**sizes), wiring(**sizes, num_kv_heads=2)
    count = count_parameters
    layers = 2 if wiring.func is t5_like else 1
    saved = 2 * (12 * 6 + 6)  # the weights and biases of half the key and half the value heads
    assert count(full) - count(grouped) == layers * saved  # not in the cross-attention
    windowed = wiring(**sizes, window=3)
    windowed.load_state_dict(full.state_dict())
    assert {layer.window for layer in windowed.modules() if hasattr(layer, "window")} == {3}
    for refused in ({"window": 0}, {"num_kv_heads": 3}):
        with pytest.raises(ValueError, match=r"window must be at least 1|num_kv_heads must divide"):
            wiring(**sizes, **refused)


def test_a_decoders_window_hides_its_own_past_and_nothing_of_the_source():
    layer = DecoderLayer(config("pre", window=2, num_kv_heads=2)).double()
    _, weights = layer(draw(2, 5, 12), draw(2, 7, 12), need_weights=True)
    near = masks.window(5, 5, 2, is_causal=True)
    assert ((weights.past > 0) == near).all()
    assert (weights.source > 0).all()


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_fewer_key_heads_in_a_t5_are_repeated_ones(num_kv_heads):
    """Write each shared head out as often as it is shared: the same model."""
    grouped = shaken(t5_like(9, **SIZES, num_kv_heads=num_kv_heads)).double().eval()
    full = t5_like(9, **SIZES).double().eval()
    state = full.state_dict()
    for name, weight in grouped.state_dict().items():
        if name.rpartition(".")[0].endswith((".attention.key_projection", ".attention.value_projection")):
            heads = weight.unflatten(0, (num_kv_heads, -1)).repeat_interleave(4 // num_kv_heads, 0)
            weight = heads.flatten(0, 1)
        state[name] = weight
    full.load_state_dict(state)
    arguments = torch.randint(9, (2, 5)), torch.tensor([5, 3]), torch.randint(9, (2, 4))
    torch.testing.assert_close(grouped(*arguments)[0], full(*arguments)[0])


def test_parameters_are_counted_by_formula():
    d, f, n = 12, 20, 2
    enc = encoder_layer_size(d, f)
    dec = enc + 4 * d * d + 4 * d + 2 * d
    size = count_parameters
    assert size(small("post")) == n * (enc + dec) + 20 * d
    assert size(small("pre")) == n * (enc + dec) + 20 * d + 4 * d
    assert size(bert_like(9, 6, **SIZES)) == n * enc + 15 * d
    assert size(gpt_like(9, 6, **SIZES)) == n * enc + 15 * d + 2 * d
    assert size(t5_like(9, **SIZES)) == n * (enc + dec) + 9 * d + 4 * d


def test_the_smallest_gpt_2_has_124_million_parameters():
    with torch.device("meta"):
        model = gpt_like(50257, 1024, num_layers=12, d_model=768, num_heads=12, d_ff=3072)
    assert count_parameters(model) == 124_439_808


SIZES_OF_LLAMA_2 = {
    6_738_415_616: {"num_layers": 32, "d_model": 4096, "num_heads": 32, "d_ff": 11008},
    68_976_648_192: {"num_layers": 80, "d_model": 8192, "num_heads": 64, "num_kv_heads": 8, "d_ff": 28672},
}


@pytest.mark.parametrize("parameters", SIZES_OF_LLAMA_2)
def test_llama_2_has_7_and_70_billion_parameters(parameters):
    with torch.device("meta"):
        model = llama_like(32000, **SIZES_OF_LLAMA_2[parameters])
    assert count_parameters(model) == parameters


def test_a_llama_is_what_it_is_called():
    model = shaken(llama_like(9, **(SIZES | {"num_heads": 2}), num_kv_heads=1, window=3))
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)]
    assert [type(norm) for norm in norms] == [nn.RMSNorm] * 5 and {norm.eps for norm in norms} == {1e-5}
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())
    assert model.output.weight is not model.embedding.table.weight
    for layer in model.stack.layers:
        assert isinstance(layer.feed_forward, GatedFeedForward) and layer.feed_forward.activation is F.silu
        assert isinstance(layer.attention.rotation, Rotary) and layer.attention.num_kv_heads == 1
        assert layer.window == 3 and layer.around_attention.norm_first
    tokens = torch.randint(9, (2, 6))
    moved = tokens.clone()
    moved[:, 3] = (moved[:, 3] + 1) % 9
    same = (model(tokens) == model(moved)).all(-1)
    assert same[:, :3].all() and not same[:, 3].any()


def test_norms_of_queries_arrive_in_self_attention_alone():
    layer = DecoderLayer(config(qk_norm=nn.RMSNorm))
    assert isinstance(layer.attention.query_norm, nn.RMSNorm)
    assert layer.attention.query_norm is not layer.attention.key_norm
    assert not list(layer.cross_attention.query_norm.parameters())


# Around them


def test_autocast():
    model, batch = small().float(), inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, _ = model(*batch)
    torch.testing.assert_close(logits.float(), model(*batch)[0], rtol=0.1, atol=0.5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.usefixtures("compiler")
def test_compile():
    model, (source, lengths, previous) = small().float(), inputs()
    memory = model.read(source, lengths)
    compiled = torch.compile(model.decoder.stack, fullgraph=True, backend="eager")
    x, states = model.decoder.embedding(previous).detach(), memory.states.detach()
    want = model.decoder.stack(x, states, memory_mask=memory.mask)[0]
    torch.testing.assert_close(compiled(x, states, memory_mask=memory.mask)[0], want)
    gpt = shaken(gpt_like(9, 6, **SIZES))
    tokens = torch.randint(9, (2, 6))
    torch.testing.assert_close(torch.compile(gpt, fullgraph=True, backend="eager")(tokens), gpt(tokens))


@pytest.mark.gpu
def test_on_a_gpu():
    model, batch = small().float(), inputs()
    expected, _ = model(*batch)
    logits, _ = model.cuda()(*(x.cuda() for x in batch))
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_inputs_are_not_changed():
    layer, x, memory = shaken(DecoderLayer(config("post"))), draw(2, 4, 12), draw(2, 5, 12)
    kept = x.clone(), memory.clone()
    layer(x, memory)
    assert torch.equal(x, kept[0]) and torch.equal(memory, kept[1])


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    @pytest.mark.parametrize("make", [EncoderLayer, DecoderLayer])
    def test_heads_that_do_not_divide(self, make):
        with pytest.raises(ValueError, match="num_heads must divide d_model, got d_model=12, num_heads=5"):
            make(config(num_heads=5))

    @pytest.mark.parametrize("make", [config, partial(Residual, 12)])
    def test_an_unknown_norm(self, make):
        with pytest.raises(ValueError, match='norm must be "pre" or "post", got \'none\''):
            make(norm="none")

    @pytest.mark.parametrize("make", [Encoder, Decoder])
    def test_no_layers(self, make):
        with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
            make(0, config())

    def test_no_width(self):
        with pytest.raises(ValueError, match="d_ff must be at least 1, got 0"):
            EncoderLayer(config(d_ff=0))

    @pytest.mark.parametrize("dropout", [-0.1, 1.0])
    def test_dropout(self, dropout):
        with pytest.raises(ValueError, match=rf"dropout must be at least 0 and below 1, got {dropout}"):
            config(dropout=dropout)

    @each_norm
    def test_another_width(self, norm):
        with pytest.raises(ValueError, match=r"x must have shape .*d_model=12\], got \(2, 5, 11\)"):
            EncoderLayer(config(norm)).double()(draw(2, 5, 11))
        with pytest.raises(ValueError, match=r"memory must have shape .*d_model=12\], got \(2, 5, 11\)"):
            DecoderLayer(config(norm)).double()(draw(2, 4, 12), draw(2, 5, 11))

    @each_norm
    def test_a_vector_alone(self, norm):
        with pytest.raises(ValueError, match=r"x must have shape .*, got \(12,\)"):
            EncoderLayer(config(norm)).double()(draw(12))

    @each_norm
    def test_another_dtype(self, norm):
        with pytest.raises(
            TypeError, match=r"x must have the layer's dtype torch.float32, got torch.float64"
        ):
            EncoderLayer(config(norm))(draw(2, 5, 12))
        with pytest.raises(
            TypeError, match=r"memory must have the layer's dtype torch.float64, got torch.float32"
        ):
            DecoderLayer(config(norm)).double()(draw(2, 4, 12), draw(2, 5, 12).float())

    def test_tokens_that_are_no_integers(self):
        with pytest.raises(TypeError, match=r"tokens must be integers .* got torch.float32"):
            gpt_like(9, 6, **SIZES)(torch.zeros(2, 5))

    @pytest.mark.parametrize("token", [-1, 9])
    def test_unknown_tokens(self, token):
        tokens = torch.tensor([[3, token, 4]])
        with pytest.raises(ValueError, match=r"tokens must lie between 0 and 8, got (3 to 9|-1 to 4)"):
            gpt_like(9, 6, **SIZES)(tokens)

    def test_more_tokens_than_positions(self):
        with pytest.raises(ValueError, match="do not lie within the 6 learned ones"):
            gpt_like(9, 6, **SIZES)(torch.zeros(2, 7, dtype=torch.long))

    def test_lengths_outside_the_source(self):
        source, _, previous = inputs((5, 5))
        with pytest.raises(ValueError, match="lengths must lie between 0 and T = 5, got 3 to 6"):
            small()(source, torch.tensor([3, 6]), previous)

    def test_options_that_do_not_exist(self):
        with pytest.raises(TypeError, match="normalise"):
            config(normalise=True)

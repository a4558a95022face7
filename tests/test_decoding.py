"""Decoding: a cache changes nothing but the time, and filters keep what they say."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_course.decoding import (
    KeyValueCache,
    WindowCache,
    bytes_of,
    bytes_per_token,
    caches_for,
    generate,
    greedy,
    sample,
    temperature,
    top_k,
    top_p,
)
from attention_course.heads import Cache, MultiHeadAttention
from attention_course.transformer import LayerConfig, bert_like, gpt_like

SIZES = {"num_layers": 2, "d_model": 16, "num_heads": 4, "d_ff": 24}
TOKENS, POSITIONS = 11, 24
each_cache = pytest.mark.parametrize("make", [KeyValueCache, WindowCache])


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def model_of(dtype=torch.float64, **options):
    """A model in which no norm or bias is at its first value."""
    model = gpt_like(TOKENS, POSITIONS, **SIZES, **options).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.requires_grad_(False)


def some_tokens(T, batch=2):
    return torch.randint(TOKENS, (batch, T))


def in_chunks(model, tokens, sizes, max_length=None):
    caches = caches_for(model, batch=len(tokens), max_length=max_length or tokens.shape[1])
    return torch.cat([model(chunk, caches=caches) for chunk in tokens.split(sizes, dim=1)], dim=1)


def written_slowly(model, prompt, steps):
    """Greedy decoding that computes everything again for every token."""
    tokens = prompt
    for _ in range(steps):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    return tokens[:, prompt.shape[1] :]


# Cached is uncached


@st.composite
def chunkings(draw_, longest=16):
    return draw_(
        st.lists(st.integers(1, 7), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) <= longest)
    )


@settings(max_examples=25)
@given(sizes=chunkings(), num_kv_heads=st.sampled_from([1, 2, 4]), window=st.none() | st.integers(1, 9))
def test_any_chunking_gives_the_uncached_logits(sizes, num_kv_heads, window):
    options = {"num_kv_heads": num_kv_heads} | ({} if window is None else {"window": window})
    model, tokens = model_of(**options), some_tokens(sum(sizes))
    torch.testing.assert_close(in_chunks(model, tokens, sizes), model(tokens), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"num_kv_heads": 1}, {"window": 5}], ids=str)
def test_float32_agrees_to_its_rounding(options):
    model, tokens = model_of(torch.float32, **options), some_tokens(POSITIONS)
    torch.testing.assert_close(
        in_chunks(model, tokens, [9] + [1] * (POSITIONS - 9)), model(tokens), rtol=1e-4, atol=2e-5
    )


@settings(max_examples=25)
@given(sizes=chunkings(), window=st.integers(1, 9))
def test_a_ring_sees_what_a_mask_would_show(sizes, window):
    """One layer of attention alone, weights too: each new token sees exactly its window."""
    attention = MultiHeadAttention(8, 4, num_kv_heads=2).double().requires_grad_(False)
    x = draw(2, sum(sizes), 8)
    want, want_weights = attention(x, is_causal=True, window=window, need_weights=True)
    for cache in (WindowCache, KeyValueCache):
        size = window if cache is WindowCache else len(x[0])
        cache, seen = cache(2, 2, size, 2, dtype=torch.float64), 0
        for chunk in x.split(sizes, dim=1):
            output, weights = attention(chunk, is_causal=True, window=window, need_weights=True, cache=cache)
            now = slice(seen, seen + chunk.shape[1])
            seen = now.stop
            torch.testing.assert_close(output, want[:, now])
            torch.testing.assert_close(weights, want_weights[:, :, now, :seen])
        assert cache.length == seen


def test_a_layer_hands_back_the_weights_over_all_tokens_so_far():
    model, tokens = model_of(window=3), some_tokens(8)
    x = model.embedding(tokens)
    _, want = model.stack(x, is_causal=True, need_weights=True)
    caches = caches_for(model, batch=2, max_length=8)
    model.stack(x[:, :7], is_causal=True, caches=caches)
    _, got = model.stack(x[:, 7:], is_causal=True, need_weights=True, caches=caches)
    for one, whole in zip(got, want, strict=True):
        torch.testing.assert_close(one, whole[:, :, 7:])


def test_the_order_of_slots_does_not_matter_but_what_lies_in_them_does():
    attention = MultiHeadAttention(8, 2).double().requires_grad_(False)
    x, cache = draw(1, 6, 8), WindowCache(1, 2, 4, 4, dtype=torch.float64)
    for token in x.split(1, dim=1):
        last, _ = attention(token, is_causal=True, window=4, cache=cache)
    torch.testing.assert_close(last, attention(x[:, 2:], is_causal=True)[0][:, -1:])
    in_order = torch.cat((cache.keys[:, :, 2:], cache.keys[:, :, :2]), dim=-2)  # slots 2, 3, 0, 1
    projected = attention.key_projection(x[:, 2:]).unflatten(-1, (2, -1)).transpose(1, 2)
    torch.testing.assert_close(in_order, projected)


def test_old_keys_stay_in_a_causal_model_and_change_where_all_see_all():
    tokens = some_tokens(9)

    def keys(model, tokens):
        """The keys of every layer, [B, T, d_model] each."""
        seen, x = [], model.embedding(tokens)
        for layer in model.stack.layers:
            seen.append(layer.attention.key_projection(layer.around_attention.read(x)))
            x, _ = layer(x, is_causal=model.is_causal)
        return seen

    for causal in (True, False):
        model = model_of()
        model.is_causal = causal
        short, long = keys(model, tokens[:, :8]), keys(model, tokens)
        moved = [float((a - b[:, :8]).abs().max()) for a, b in zip(short, long, strict=True)]
        assert moved[0] < 1e-12
        assert moved[1] < 1e-12 if causal else moved[1] > 1e-3


# The stores


@each_cache
def test_a_cache_is_a_cache(make):
    assert isinstance(make(1, 2, 4, 3), Cache)


def test_a_full_store_returns_views_of_all_so_far():
    cache, key, value = KeyValueCache(2, 3, 6, 4, dtype=torch.float64), draw(2, 3, 6, 4), draw(2, 3, 6, 4)
    cache.extend(key[:, :, :4], value[:, :, :4])
    keys, values = cache.extend(key[:, :, 4:], value[:, :, 4:])
    assert torch.equal(keys, key) and torch.equal(values, value)
    assert keys.data_ptr() == cache.keys.data_ptr() and values.data_ptr() == cache.values.data_ptr()
    assert cache.length == 6


def test_a_ring_takes_the_room_of_its_window_however_long_the_text():
    model, tokens = model_of(window=4), some_tokens(POSITIONS)
    caches = caches_for(model, batch=2, max_length=POSITIONS)
    before = bytes_of(caches)
    model(tokens, caches=caches)
    assert bytes_of(caches) == before
    assert all(type(cache) is WindowCache and cache.length == POSITIONS for cache in caches)


def test_one_token_is_not_copied_out_of_a_ring():
    cache = WindowCache(1, 1, 3, 2, dtype=torch.float64)
    for _ in range(5):
        keys, _ = cache.extend(draw(1, 1, 1, 2), draw(1, 1, 1, 2))
    assert keys.data_ptr() == cache.keys.data_ptr() and keys.shape[-2] == 3


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"num_kv_heads": 1}], ids=str)
def test_bytes_are_counted_by_formula(options):
    model = model_of(torch.float32, **options)
    caches = caches_for(model, batch=3, max_length=10)
    per_token = bytes_per_token(
        num_layers=2, num_kv_heads=options.get("num_kv_heads", 4), d_k=4, dtype=torch.float32
    )
    assert bytes_of(caches) == 3 * 10 * per_token


def test_caches_take_after_the_model():
    model = model_of(torch.float32, window=4)
    assert {type(cache) for cache in caches_for(model, batch=1, max_length=4)} == {KeyValueCache}
    [cache, _] = caches_for(model, batch=1, max_length=5)
    assert (type(cache), cache.keys.dtype, cache.keys.shape) == (WindowCache, torch.float32, (1, 4, 4, 4))
    [cache, _] = caches_for(model, batch=1, max_length=4, dtype=torch.bfloat16)
    assert cache.keys.dtype == torch.bfloat16


# Writing


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}, {"window": 3}], ids=str)
def test_generate_writes_what_recomputing_writes(options):
    model, prompt = model_of(**options), some_tokens(5)
    assert torch.equal(generate(model, prompt, steps=8), written_slowly(model, prompt, 8))


def test_generate_reads_the_prompt_in_one_call_and_each_token_in_one():
    model, prompt, lengths = model_of(), some_tokens(5), []
    model.embedding.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    assert generate(model, prompt, steps=4).shape == (2, 4)
    assert lengths == [5, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_generate_under_autocast(dtype):
    model, prompt = model_of(dtype), some_tokens(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert generate(model, prompt, steps=3).shape == (2, 3)
    torch.testing.assert_close(generate(model, prompt, steps=3), written_slowly(model, prompt, 3))


def test_what_follows_the_end_is_the_end():
    model, prompt = model_of(), some_tokens(5, batch=3)
    script = iter(torch.tensor([[1, 0, 2], [0, 3, 4], [5, 6, 0], [7, 7, 7]]))
    got = generate(model, prompt, steps=4, choose=lambda logits: next(script), eos=0)
    assert got.tolist() == [[1, 0, 0], [0, 0, 0], [2, 4, 0]]


def test_generate_leaves_no_graph_and_the_model_as_it_was():
    model = model_of().requires_grad_(True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert not generate(model, some_tokens(3), steps=3).requires_grad
    assert not model.training and torch.is_grad_enabled()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_sampling_follows_the_generator_and_the_probabilities():
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(6000, 3)
    drawn = [sample(generator=torch.Generator().manual_seed(seed))(logits) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    shares = drawn[0].bincount(minlength=3) / 6000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.2]), rtol=0, atol=0.03)


def test_filters_apply_in_the_order_temperature_top_k_top_p():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().expand(4000, 4)
    choose = sample(temperature=0.5, top_k=3, top_p=0.8)  # .53 .30 .13 .03, then .55 .31 .14, then two stay
    assert set(choose(logits).tolist()) == {0, 1}
    assert set(sample(temperature=0.5, top_k=3)(logits).tolist()) == {0, 1, 2}
    assert set(sample(top_p=0.8)(logits).tolist()) == {0, 1, 2}
    one = sample(top_k=1)(logits)
    assert torch.equal(one, greedy(logits))


# Filters


@given(
    logits=st.lists(st.integers(-4, 4), min_size=1, max_size=8),
    k=st.integers(1, 9),
    p=st.floats(0.01, 1.0),
)
def test_filters_keep_the_fewest_that_fit(logits, k, p):
    row = torch.tensor(logits, dtype=torch.float64)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))  # likely first, of equals the first
    assert (top_k(row, k) > -torch.inf).nonzero().flatten().tolist() == sorted(order[:k])
    kept = (top_p(row, p) > -torch.inf).nonzero().flatten().tolist()
    assert kept == sorted(order[: len(kept)]) and kept
    probability = row.softmax(-1)
    assert sum(float(probability[i]) for i in kept) >= p - 1e-12
    if p < 1:
        assert sum(float(probability[i]) for i in order[: len(kept) - 1]) < p + 1e-12
    for filtered in (top_k(row, k), top_p(row, p)):
        stays = filtered > -torch.inf
        assert torch.equal(filtered[stays], row[stays])


def test_filters_work_row_by_row_and_on_what_was_filtered_before():
    logits = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]]).log()
    assert (top_k(logits, 2) > -torch.inf).tolist() == [[False, True, True], [True, True, False]]
    assert (top_p(logits, 0.65) > -torch.inf).tolist() == [[False, False, True], [True, True, False]]
    twice = top_p(top_k(logits, 2), 0.9999)
    assert torch.equal(twice, top_k(logits, 2))
    assert torch.equal(top_p(logits, 1.0), logits)
    rounded = torch.tensor([0.0, -100.0])  # the first token's probability is 1 to rounding
    assert torch.equal(top_p(rounded, 1.0), rounded)
    torch.testing.assert_close(temperature(logits, 2.0), logits / 2)


def test_greedy_takes_the_first_of_equals():
    assert greedy(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]])).tolist() == [1, 0]


# A window without a cache


def test_a_window_in_the_model_is_the_mask():
    model, tokens = model_of(window=3), some_tokens(9)
    _, weights = model.stack(model.embedding(tokens), is_causal=True, need_weights=True)
    near = torch.ones(9, 9).tril().triu(-2).bool()
    for layer in weights:
        assert (layer[..., ~near] == 0).all() and (layer[..., near] > 0).all()
    both_sides = bert_like(TOKENS, POSITIONS, **SIZES, window=3).double()
    _, weights = both_sides.stack(both_sides.embedding(tokens), need_weights=True)
    near = torch.ones(9, 9).tril(2).triu(-2).bool()
    assert (weights[0][..., ~near] == 0).all() and (weights[0][..., near] > 0).all()


def test_no_mask_is_built_for_one_new_token(monkeypatch):
    from attention_course import masks

    model, tokens = model_of(num_kv_heads=2, window=3), some_tokens(8)
    caches = caches_for(model, batch=2, max_length=9)
    model(tokens, caches=caches)
    monkeypatch.setattr(masks, "_places", None)  # every structured mask is made from it
    model(tokens[:, :1], caches=caches)
    with pytest.raises(TypeError, match="not callable"):
        model(tokens[:, :4])


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"window": 5}], ids=str)
def test_on_a_gpu(options):
    model, prompt = model_of(torch.float32, **options), some_tokens(5)
    want = generate(model, prompt, steps=9)
    assert torch.equal(generate(model.cuda(), prompt.cuda(), steps=9).cpu(), want)


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    @each_cache
    @pytest.mark.parametrize("index", range(4))
    def test_sizes(self, make, index):
        sizes = [1, 1, 1, 1]
        sizes[index] = 0
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            make(*sizes)

    def test_a_full_cache(self):
        cache = KeyValueCache(1, 2, 4, 3)
        cache.extend(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3))
        with pytest.raises(ValueError, match="room for max_length=4 tokens and holds 3, got 2 more"):
            cache.extend(torch.zeros(1, 2, 2, 3), torch.zeros(1, 2, 2, 3))
        assert cache.length == 3

    @each_cache
    @pytest.mark.parametrize("name", ["key", "value"])
    @pytest.mark.parametrize("shape", [(2, 2, 1, 3), (1, 4, 1, 3), (1, 2, 1, 4), (2, 1, 3)])
    def test_shapes(self, make, name, shape):
        rows = {"key": torch.zeros(1, 2, 1, 3), "value": torch.zeros(1, 2, 1, 3)}
        rows[name] = torch.zeros(shape)
        with pytest.raises(
            ValueError, match=rf"{name} must have shape \[B=1, num_kv_heads=2, T, d_k=3\], got"
        ):
            make(1, 2, 4, 3).extend(**rows)

    @each_cache
    def test_another_length_dtype_device_or_a_gradient(self, make):
        rows, cache = torch.zeros(1, 2, 1, 3), make(1, 2, 4, 3)
        with pytest.raises(ValueError, match=r"same length, got key \(1, 2, 1, 3\) and value \(1, 2, 2, 3\)"):
            cache.extend(rows, torch.zeros(1, 2, 2, 3))
        with pytest.raises(
            TypeError, match=r"value must have the cache's dtype torch.float32, got torch.float64"
        ):
            cache.extend(rows, rows.double())
        with pytest.raises(ValueError, match="key must be on the cache's device cpu, got meta"):
            cache.extend(rows.to("meta"), rows)
        with pytest.raises(ValueError, match="value must not require a gradient"):
            cache.extend(rows, rows.clone().requires_grad_())
        assert cache.length == 0

    def test_attention_that_a_cache_cannot_serve(self):
        attention, x = MultiHeadAttention(6, 2).requires_grad_(False), torch.zeros(1, 2, 6)
        cached = partial(attention, x, cache=KeyValueCache(1, 2, 4, 3))
        with pytest.raises(ValueError, match="is_causal must be True with a cache"):
            cached()
        with pytest.raises(ValueError, match="key must be None with a cache"):
            attention(x, x, is_causal=True, cache=KeyValueCache(1, 2, 4, 3))
        with pytest.raises(ValueError, match="value must be None with a cache"):
            cached(value=x, is_causal=True)
        with pytest.raises(ValueError, match="attn_mask must be None with a cache"):
            cached(attn_mask=torch.ones(2, 2).bool(), is_causal=True)

    @pytest.mark.parametrize("window", [None, 3, 5])
    def test_a_ring_of_another_size(self, window):
        attention = MultiHeadAttention(6, 2).requires_grad_(False)
        with pytest.raises(ValueError, match=rf"window must be 4, .* got {window}"):
            attention(torch.zeros(1, 2, 6), is_causal=True, window=window, cache=WindowCache(1, 2, 4, 3))

    def test_a_sentence_without_a_batch(self):
        attention = MultiHeadAttention(6, 2).requires_grad_(False)
        with pytest.raises(ValueError, match=r"key must have shape .* got \(2, 5, 3\)"):
            attention(torch.zeros(5, 6), is_causal=True, cache=KeyValueCache(1, 2, 8, 3))

    def test_caches_that_do_not_fit_the_model(self):
        model, tokens = model_of(), some_tokens(3)
        with pytest.raises(ValueError, match="caches must be one per layer, 2, got 1"):
            model(tokens, caches=caches_for(model, batch=2, max_length=9)[:1])
        with pytest.raises(ValueError, match="caches must be one per layer, 2, got 0"):
            model(tokens, caches=[])
        with pytest.raises(ValueError, match="one of them twice"):
            model(tokens, caches=caches_for(model, batch=2, max_length=9)[:1] * 2)
        ahead = caches_for(model, batch=2, max_length=9)
        ahead[1].length = 2
        with pytest.raises(ValueError, match=r"same number of tokens, got \[0, 2\]"):
            model(tokens, caches=ahead)
        with pytest.raises(ValueError, match="lengths must be None with caches"):
            model(tokens, torch.tensor([3, 2]), caches=caches_for(model, batch=2, max_length=9))

    def test_a_model_that_is_not_causal(self):
        model = bert_like(TOKENS, POSITIONS, **SIZES).eval().requires_grad_(False)
        with pytest.raises(ValueError, match="is_causal must be True with a cache"):
            model(some_tokens(3), caches=caches_for(model, batch=2, max_length=9))
        with pytest.raises(ValueError, match="model must be causal"):
            generate(model, some_tokens(3), steps=1)

    def test_training(self):
        with pytest.raises(ValueError, match="evaluation mode"):
            generate(model_of().train(), some_tokens(3), steps=1)
        with pytest.raises(ValueError, match=r"under torch.no_grad\(\)"):
            model = model_of().requires_grad_(True)
            model(some_tokens(3), caches=caches_for(model, batch=2, max_length=9))

    @pytest.mark.parametrize("shape", [(2, 0), (3,)])
    def test_prompts(self, shape):
        with pytest.raises(ValueError, match=r"prompt must have shape .* at least one token, got"):
            generate(model_of(), torch.zeros(shape, dtype=torch.long), steps=1)

    def test_steps(self):
        with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
            generate(model_of(), some_tokens(3), steps=0)
        with pytest.raises(ValueError, match="3 tokens and steps=23 need 25 positions, the model has 24"):
            generate(model_of(), some_tokens(3), steps=23)

    @pytest.mark.parametrize("t", [0.0, -1.0, math.inf, math.nan])
    def test_temperature(self, t):
        for call in (partial(temperature, torch.zeros(3), t), partial(sample, temperature=t)):
            with pytest.raises(ValueError, match=r"above 0 and finite, got .*; for the limit 0 use greedy"):
                call()

    def test_top_k(self):
        for call in (partial(top_k, torch.zeros(3), 0), partial(sample, top_k=0)):
            with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
                call()

    @pytest.mark.parametrize("p", [0.0, -0.1, 1.1, math.nan])
    def test_top_p(self, p):
        for call in (partial(top_p, torch.zeros(3), p), partial(sample, top_p=p)):
            with pytest.raises(ValueError, match=f"top_p must be above 0 and at most 1, got {p}"):
                call()

    def test_windows(self):
        with pytest.raises(ValueError, match="window must be at least 1, got 0"):
            LayerConfig(d_model=16, num_heads=4, d_ff=24, norm="pre", window=0)

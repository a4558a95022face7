import functools
import itertools
import math
import multiprocessing
import os
import pickle
import sys
import time

import numpy as np
import oracles
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_course import masks, ring, scaled_dot_product_attention
from attention_course.kernels.online import Partial, merge
from attention_course.lab.experiments import machines
from attention_course.lab.measure.memory import LiveBytes
from attention_course.lab.measure.processes import together

T = 24  # divisible by 2 P for P = 1, 2, 3, 4


def case(dtype=torch.float64, heads=(2, 2), size=1.0, **options):
    generator = torch.Generator().manual_seed(0)
    num_heads, num_kv_heads = heads
    shapes = ((num_heads, T, 4), (num_kv_heads, T, 4), (num_kv_heads, T, 3), (num_heads, T, 3))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    drawn[0] *= size
    return machines.Case(*drawn, options)


CASES = {
    f"{'causal' if is_causal else 'full'}, {'zigzag' if zigzag else 'contiguous'}, {name}": case(
        is_causal=is_causal, zigzag=zigzag, **settings
    )
    for is_causal, zigzag in itertools.product((False, True), repeat=2)
    for name, settings in {
        "float64": {},
        "float32": {"dtype": torch.float32},
        "bfloat16": {"dtype": torch.bfloat16},
        "small tiles": {"tile": 2},
        "uneven tiles": {"tile": 5},
        "fewer key heads": {"heads": (4, 2), "enable_gqa": True},
        "another scale": {"scale": 0.3},
        "large scores": {"size": 1e3},
    }.items()
}
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6, torch.bfloat16: 2e-2}


@functools.cache
def whole(name: str) -> list[torch.Tensor]:
    """Context and gradients in one process, in float64."""
    one = CASES[name]
    leaves = [tensor.detach().double().clone().requires_grad_() for tensor in one[:3]]
    options = {name: one.options.get(name) for name in ("scale",)}
    out = scaled_dot_product_attention(
        *leaves,
        is_causal=one.options["is_causal"],
        enable_gqa=one.options.get("enable_gqa", False),
        backend="reference",
        **options,
    )
    return [out.detach(), *torch.autograd.grad(out, leaves, one.d_out.double())]


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def results(request):
    return dict(zip(CASES, machines.run(request.param, list(CASES.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_ring_equals_one_process(results, name):
    one = CASES[name]
    for what, got, want in zip(machines.Result._fields, results[name], whole(name), strict=False):
        assert got.dtype == one.query.dtype
        size = max(1.0, want.abs().max().item())
        error = (got.double() - want).abs().max().item() / size
        assert error < TOLERANCE[one.query.dtype], f"{what}: {error}"


def test_the_reference_is_the_loop():
    one = CASES["causal, contiguous, float64"]
    for head in range(2):
        query, key, value = (tensor[head].numpy() for tensor in one[:3])
        scores = oracles.pairwise(oracles.scaled_dot, query, key)
        context, _ = oracles.attend(scores, value, masks.causal(T).numpy())
        np.testing.assert_allclose(
            whole("causal, contiguous, float64")[0][head].numpy(), context, rtol=1e-10, atol=1e-12
        )


def test_what_travels(results):
    for name, result in results.items():
        one, world = CASES[name], len(result.seconds)
        if world == 1:
            assert result.bytes_sent == [0]
            continue
        numbers = (one.key.numel() + one.value.numel()) // world
        size = one.key.element_size()
        # Keys and values twice, P - 1 hops each; their gradients P hops, to be home again.
        expected = numbers * (2 * (world - 1) * size + world * max(size, 4))
        assert result.bytes_sent == [expected] * world, name


def test_memory_falls_with_the_number_of_processes():
    torch.manual_seed(0)
    one = machines.Case(*torch.randn(4, 2048, 64), {"tile": 32})
    peaks = {world: machines.run(world, [one], count=True)[0].peak_bytes for world in (1, 2, 4)}
    shard = 4 * 2048 * 64  # bytes of all queries
    for world, peak in peaks.items():
        assert len(set(peak)) == 1
        # q, k, v, out, d_out, d_q, and ten under way (one process: none, and d_k and d_v); a few tiles.
        most = {1: 8, 2: 14, 4: 16}[world]
        assert 8 * shard / world < peak[0] < most * shard / world + 10 * 4 * 32 * 64, peaks
    assert peaks[1][0] > peaks[2][0] > peaks[4][0]
    assert 10 < (peaks[2][0] - peaks[4][0]) / (shard / 4) < 16  # the tiles are the same in both


# One process, with the shape checks of conftest.py ------------------------------------------------


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
class TestAlone:
    @pytest.mark.parametrize("name", ["causal, zigzag, small tiles", "full, contiguous, fewer key heads"])
    def test_equals_the_reference(self, name):
        one = CASES[name]
        leaves = [tensor.clone().requires_grad_() for tensor in one[:3]]
        out = ring.ring_attention(*leaves, **one.options)
        gradients = torch.autograd.grad(out, leaves, one.d_out)
        for got, want in zip((out, *gradients), whole(name), strict=True):
            torch.testing.assert_close(got, want)

    def test_gradcheck(self):
        leaves = [torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        torch.autograd.gradcheck(lambda *x: ring.ring_attention(*x, is_causal=True, tile=3), leaves)

    def test_no_second_derivative(self):
        x = torch.randn(2, 3, requires_grad=True)
        with pytest.raises(RuntimeError, match="differentiated once only"):
            torch.autograd.grad(ring.ring_attention(x, x, x).sum(), x, create_graph=True)

    def test_autocast_does_not_narrow_the_scores(self):
        x = torch.randn(3, 8, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(ring.ring_attention(x, x, x), expected := ring.ring_attention(x, x, x))
        assert torch.equal(ring.ring_attention(x, x, x), expected)

    def test_autocast_does_not_narrow_the_gradients(self):
        x = torch.randn(3, 8, 4, requires_grad=True)
        out, d_out = ring.ring_attention(x, x, x), torch.randn(3, 8, 4)
        (expected,) = torch.autograd.grad(out, x, d_out, retain_graph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (got,) = torch.autograd.grad(out, x, d_out)
        assert torch.equal(got, expected)

    def test_inputs_are_not_changed(self):
        tensors = [torch.randn(8, 4) for _ in range(3)]
        before = [one.clone() for one in tensors]
        ring.ring_attention(*tensors, is_causal=True, zigzag=True)
        assert all(map(torch.equal, tensors, before))


# Who holds what -----------------------------------------------------------------------------------

WORLDS = st.integers(1, 6)


@given(world=WORLDS, size=st.integers(1, 4), zigzag=st.booleans())
def test_shards_part_the_sequence_and_come_together_again(world, size, zigzag):
    length = 2 * world * size
    x = torch.arange(length * 2).reshape(length, 2)
    shards = [ring.shard(x, rank, world, zigzag=zigzag) for rank in range(world)]
    assert all(len(one) == 2 * size for one in shards)
    assert torch.equal(ring.unshard(shards, zigzag=zigzag), x)
    for rank, one in enumerate(shards):
        where = ring.positions(rank, world, length, zigzag=zigzag)
        assert torch.equal(one, x[where])
        assert torch.equal(where, where.sort().values)


def test_zigzag_takes_one_chunk_from_either_end():
    held = [ring.positions(rank, 3, 12, zigzag=True).tolist() for rank in range(3)]
    assert held == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]
    assert [ring.positions(rank, 3, 12).tolist() for rank in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]


def test_shards_along_another_axis_are_copies():
    tokens = torch.arange(12).reshape(2, 6)
    mine = ring.shard(tokens, 1, 3, dim=-1)
    assert mine.tolist() == [[2, 3], [8, 9]]
    mine.zero_()
    assert tokens[0, 2] == 2
    assert mine.untyped_storage().nbytes() == mine.nbytes  # the whole is not kept alive


@given(world=WORLDS, size=st.integers(1, 3), zigzag=st.booleans())
def test_work_with_tiles_of_one_counts_what_may_be_looked_at(world, size, zigzag):
    length = 2 * world * size
    at = [ring.positions(rank, world, length, zigzag=zigzag) for rank in range(world)]
    got = ring.work(world, length, is_causal=True, zigzag=zigzag, tile=1)
    for rank, step in itertools.product(range(world), repeat=2):
        source = (rank - step) % world
        assert got[rank, step] == (at[source] <= at[rank][:, None]).sum()
    assert got.sum() == length * (length + 1) // 2
    full = ring.work(world, length, is_causal=False, zigzag=zigzag)
    assert (full == (length // world) ** 2).all()


@given(world=st.integers(2, 6), size=st.integers(1, 4))
def test_zigzag_gives_everybody_the_same_work_at_every_step(world, size):
    got = ring.work(world, 2 * world * size, is_causal=True, zigzag=True, tile=size)
    assert (got == got[0]).all()
    contiguous = ring.work(world, 2 * world * size, is_causal=True, tile=size).sum(1)
    assert (contiguous.diff() > 0).all()  # the later, the more


# Two parts become one -----------------------------------------------------------------------------


def parts_of(scores, value, cuts):
    """Attention over the keys between the cuts, each part by itself."""
    bounds = [0, *sorted(cuts), scores.shape[-1]]
    found = []
    for start, stop in itertools.pairwise(bounds):
        piece = scores[:, start:stop]
        lse = piece.logsumexp(-1)
        weights = (piece - lse.masked_fill(lse == -torch.inf, 0.0)[:, None]).exp()
        found.append(Partial(weights @ value[start:stop], lse))
    return found


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(0, 7), max_size=4),
    size=st.sampled_from([1.0, 30.0, 1e4]),
    hidden=st.floats(0, 1),
    data=st.data(),
)
def test_merged_parts_equal_the_whole(seed, cuts, size, hidden, data):
    generator = torch.Generator().manual_seed(seed)
    scores = size * torch.randn(5, 7, generator=generator, dtype=torch.float64)
    scores = scores.masked_fill(torch.rand(5, 7, generator=generator) < hidden, -torch.inf)
    value = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    parts = data.draw(st.permutations(parts_of(scores, value, cuts)))
    got = parts[0]
    for one in parts[1:]:
        got = merge(got, one)
    [expected] = parts_of(scores, value, [])
    torch.testing.assert_close(got.out, expected.out)
    torch.testing.assert_close(got.lse, expected.lse)
    tree = merge(parts[0], Partial(torch.zeros(5, 3).double(), torch.full((5,), -torch.inf).double()))
    torch.testing.assert_close(tree.out, parts[0].out, rtol=0, atol=0)


def test_merging_nothing_with_nothing_is_nothing_with_finite_gradients():
    out = torch.zeros(2, 3, requires_grad=True)
    lse = torch.tensor([-torch.inf, 1.0], requires_grad=True)
    merged = merge(Partial(out, lse), Partial(out * 2, torch.tensor([-torch.inf, -torch.inf])))
    assert merged.lse.tolist() == [-torch.inf, 1.0]
    assert torch.equal(merged.out, torch.zeros(2, 3))
    (merged.out.sum() + merged.lse[1]).backward()
    assert out.grad.isfinite().all() and lse.grad.isfinite().all()


def test_merging_differentiates():
    leaves = [torch.randn(*shape, dtype=torch.float64) for shape in ((2, 3), (2,), (2, 3), (2,))]
    torch.autograd.gradcheck(
        lambda a, b, c, d: merge(Partial(a, b), Partial(c, d)), [leaf.requires_grad_() for leaf in leaves]
    )


def test_merging_does_not_overflow():
    lse = torch.tensor([1e30])
    merged = merge(Partial(torch.ones(1, 1), lse), Partial(torch.full((1, 1), 3.0), lse))
    assert merged.out.item() == pytest.approx(2.0)
    assert merged.lse.item() == pytest.approx(1e30)


def test_a_block_and_its_backward():
    query, key, value = (torch.randn(2, n, 4).double().requires_grad_() for n in (3, 5, 5))
    mask = torch.rand(3, 5) < 0.5
    mask[1] = False  # a query that may look nowhere
    got = ring.block(query, key, value, scale=0.5, attn_mask=mask)
    expected = scaled_dot_product_attention(query, key, value, mask, scale=0.5)
    torch.testing.assert_close(got.out, expected)
    assert (got.lse[:, 1] == -torch.inf).all()
    d_out = torch.randn_like(expected)
    gradients = ring.block_backward(d_out, query, key, value, got.out, got.lse, scale=0.5, attn_mask=mask)
    for mine, autograd in zip(
        gradients, torch.autograd.grad(expected, (query, key, value), d_out), strict=True
    ):
        torch.testing.assert_close(mine, autograd)


def test_a_block_is_computed_in_float32():
    query, key, value = (torch.randn(3, 4).bfloat16() for _ in range(3))
    out, lse = ring.block(query, key, value, scale=0.5)
    assert out.dtype == lse.dtype == torch.float32


# Processes ----------------------------------------------------------------------------------------


def fail_if_first():
    if dist.get_rank() == 0:
        raise KeyError("the first is out of order")
    dist.barrier()


def leave_without_a_word():
    os._exit(3)


def sleep():
    time.sleep(60)


class TestTogether:
    def test_a_failure_is_told(self):
        with pytest.raises(RuntimeError, match=r"rank 0 failed:(.|\n)*the first is out of order"):
            together(fail_if_first, [(), ()])

    def test_a_process_that_ends(self):
        with pytest.raises(RuntimeError, match="rank 0 ended without an answer"):
            together(leave_without_a_word, [()])

    def test_what_cannot_be_sent_starts_nobody(self):
        with pytest.raises((AttributeError, pickle.PicklingError), match=r"[Pp]ickle"):
            together(sleep, [(), (lambda: 0,)])
        assert not multiprocessing.active_children()

    def test_a_process_that_hangs(self):
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"after 3 s there is no answer from rank \[0\]"):
            together(sleep, [()], timeout=3.0)
        assert time.monotonic() - began < 30


def in_a_subgroup(query):
    """Processes 2 and 0 of three work together, the one in between sits by."""
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        try:
            ring.ring_attention(query, query, query, group=group)
        except ValueError as error:
            return str(error)
    return ring.ring_attention(query, query, query, is_causal=True, group=group)


def test_in_a_subgroup():
    x = torch.randn(8, 4)
    parts = [ring.shard(x, 0, 2), x, ring.shard(x, 1, 2)]
    first, other, last = together(in_a_subgroup, [(part,) for part in parts])
    expected = scaled_dot_product_attention(x, x, x, is_causal=True)
    torch.testing.assert_close(ring.unshard([first, last]), expected)
    assert "got a group without it" in other


def attend_each(shapes, dtypes):
    rank = dist.get_rank()
    x = torch.zeros(shapes[rank], dtype=dtypes[rank])
    try:
        ring.ring_attention(x, x, x, is_causal=True)
    except ValueError as error:
        return str(error)


def test_processes_that_do_not_agree():
    other_length = ([(4, 2), (6, 2)], [torch.float32] * 2)
    for message in together(attend_each, [other_length] * 2):
        assert message.startswith("all processes must agree, got rank")
        assert "query (4, 2)" in message and "query (6, 2)" in message
    other_dtype = ([(4, 2)] * 2, [torch.float32, torch.float64])
    for message in together(attend_each, [other_dtype] * 2):
        assert "torch.float32" in message and "torch.float64" in message


def test_rates():
    found = together(machines.rates, [((4, 8), 2, 2)] * 2)
    for rates in found:
        assert [rate.size for rate in rates] == [4, 8]
        assert all(rate.compute > 0 and rate.pass_on > 0 for rate in rates)


def test_torchs_own_says_why_not_or_is_right():
    query, key, value = torch.randn(3, 1, 2, 8, 4).unbind()
    for said in together(machines.context_parallel, [(query, key, value, True)] * 2):
        if isinstance(said, str):
            assert "Error: " in said
        else:
            torch.testing.assert_close(said, scaled_dot_product_attention(query, key, value, is_causal=True))


def test_a_torch_without_its_own_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor.experimental", None)  # importing it fails
    x = torch.randn(1, 2, 8, 4)
    assert "offers no context_parallel" in machines.context_parallel(x, x, x, is_causal=True)


def on_gpus(one):
    tensors = [tensor.cuda().requires_grad_() for tensor in one[:3]]
    out = ring.ring_attention(*tensors, **one.options)
    gradients = torch.autograd.grad(out, tensors, one.d_out.cuda())
    return [tensor.detach().cpu() for tensor in (out, *gradients)]


@pytest.mark.gpu
@pytest.mark.parametrize("zigzag", [False, True])
def test_on_gpus(zigzag):
    """As many processes as GPUs: the ring itself turns only where there are two."""
    world = next(n for n in (4, 3, 2, 1) if n <= torch.cuda.device_count())
    name = f"causal, {'zigzag' if zigzag else 'contiguous'}, float64"
    one = CASES[name]
    shards = [
        machines.Case(*(ring.shard(x, rank, world, zigzag=zigzag) for x in one[:4]), one.options)
        for rank in range(world)
    ]
    answers = together(on_gpus, [(mine,) for mine in shards], backend="nccl")
    for parts, want in zip(zip(*answers, strict=True), whole(name), strict=True):
        torch.testing.assert_close(ring.unshard(parts, zigzag=zigzag), want)


def test_live_bytes():
    with LiveBytes() as live:
        x = torch.zeros(10, dtype=torch.float64)
        view = x[2:]
        assert live.now == live.peak == 80
        y = x + 1
        assert live.now == 160
        del x
        assert live.now == 160  # the view holds it
        del view
        assert live.now == 80
        del y
        assert (live.now, live.peak) == (0, 160)


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    def test_without_processes(self):
        x = torch.randn(4, 2)
        with pytest.raises(ValueError, match="must be initialised: call"):
            ring.ring_attention(x, x, x)

    @pytest.mark.parametrize(
        ("zigzag", "needs"), [(False, "world = 4"), (True, "2 x world for zigzag order = 8")]
    )
    def test_lengths_that_cannot_be_divided(self, zigzag, needs):
        x = torch.randn(12 if zigzag else 10, 2)
        for call in (
            lambda: ring.shard(x, 0, 4, zigzag=zigzag),
            lambda: ring.positions(0, 4, len(x), zigzag=zigzag),
            lambda: ring.work(4, len(x), is_causal=True, zigzag=zigzag),
        ):
            with pytest.raises(ValueError, match=f"T must be a positive multiple of {needs}, got {len(x)}"):
                call()

    @pytest.mark.parametrize("rank", [-1, 4])
    def test_rank(self, rank):
        with pytest.raises(ValueError, match=f"between 0 and world - 1 = 3, got {rank}"):
            ring.shard(torch.zeros(8, 1), rank, 4)

    def test_shards(self):
        with pytest.raises(ValueError, match=r"at least one, all of the same length, got lengths \[\]"):
            ring.unshard([])
        with pytest.raises(ValueError, match=r"got lengths \[2, 4\]"):
            ring.unshard([torch.zeros(2, 1), torch.zeros(4, 1)])

    @pytest.mark.usefixtures("alone")
    @pytest.mark.parametrize(
        ("shapes", "options", "message"),
        [
            (((4, 2), (4, 3), (4, 2)), {}, "the same width, got query (4, 2) and key (4, 3)"),
            (((4, 2), (6, 2), (6, 2)), {}, "the same length"),
            (((4, 2), (4, 2), (1, 4, 2)), {}, "the same leading dimensions"),
            (((2, 4, 2), (3, 4, 2), (3, 4, 2)), {}, "leading dimensions must broadcast"),
            (((3, 4, 2), (2, 4, 2), (2, 4, 2)), {"enable_gqa": True}, "a divisor of the query's"),
            (((4, 2), (4, 2), (4, 2)), {"enable_gqa": True}, "enable_gqa needs a dimension for the heads"),
            (((3, 2), (3, 2), (3, 2)), {"zigzag": True}, "T / P must be even, got 3"),
            (((4, 2), (4, 2), (4, 2)), {"tile": 0}, "tile must be at least 1, got 0"),
        ],
    )
    def test_shapes_and_options(self, shapes, options, message):
        with pytest.raises(ValueError) as caught:
            ring.ring_attention(*map(torch.randn, shapes), **options)
        assert message in str(caught.value)

    @pytest.mark.usefixtures("alone")
    def test_dtypes_and_devices(self):
        x = torch.randn(4, 2)
        with pytest.raises(
            TypeError, match=r"key must have the query's dtype torch.float32, got torch.float64"
        ):
            ring.ring_attention(x, x.double(), x)
        with pytest.raises(TypeError, match=r"query must be floating point, got torch.int64"):
            ring.ring_attention(x.long(), x, x)
        with pytest.raises(ValueError, match="value must be on the query's device cpu, got meta"):
            ring.ring_attention(x, x, x.to("meta"))


def test_the_usual_scale_is_that_of_the_package():
    assert CASES["full, contiguous, float64"].options.get("scale") is None
    query = torch.randn(1, 16)
    [lse] = ring.block(query, query, query, scale=1 / math.sqrt(16)).lse
    assert lse == pytest.approx((query @ query.T / 4).item(), abs=1e-5)

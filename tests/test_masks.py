import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_course import masks
from attention_course.lab.measure.memory import LiveBytes

LENGTHS = st.integers(0, 6)


def test_padding_hides_what_lies_behind_each_length():
    mask = masks.padding(torch.tensor([2, 0, 3]), 3)
    assert mask.tolist() == [[[True, True, False]], [[False] * 3], [[True] * 3]]


@given(T_q=LENGTHS, T_k=LENGTHS)
def test_causal_equals_the_loop_and_torch(T_q, T_k):
    mask = masks.causal(T_q, T_k)
    assert mask.shape == (T_q, T_k)
    for i in range(T_q):
        for j in range(T_k):
            assert mask[i, j] == (j - (T_k - 1) <= i - (T_q - 1))
    torch_lower_right = torch.ones(T_q, T_k, dtype=torch.bool).tril(T_k - T_q)
    assert torch.equal(mask, torch_lower_right)


def test_causal_of_one_length_is_the_lower_triangle():
    assert torch.equal(masks.causal(4), torch.ones(4, 4).tril().bool())


@given(T_q=LENGTHS, T_k=LENGTHS, size=st.integers(1, 8), is_causal=st.booleans())
def test_window_equals_the_loop(T_q, T_k, size, is_causal):
    mask = masks.window(T_q, T_k, size, is_causal=is_causal)
    for i in range(T_q):
        for j in range(T_k):
            distance = (i + T_k - T_q) - j
            assert mask[i, j] == (abs(distance) < size and (distance >= 0 or not is_causal))


def test_a_window_of_one_is_the_diagonal():
    assert torch.equal(masks.window(3, 3, 1), torch.eye(3, dtype=torch.bool))


def test_combine_is_and_and_none_allows_everything():
    padding, causal = masks.padding(torch.tensor([1, 3]), 3), masks.causal(3)
    both = masks.combine(padding, None, causal)
    assert torch.equal(both, padding & causal)
    assert masks.combine() is None
    assert masks.combine(None, None) is None


def test_from_torch_blocked_turns_the_meaning_round():
    blocked = torch.tensor([True, False])
    assert masks.from_torch_blocked(blocked).tolist() == [False, True]
    assert blocked.tolist() == [True, False]


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_with_structure_says_the_same_in_bool_and_float(is_causal, window):
    query, key, allowed = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.rand(2, 3, 5) > 0.3
    added = torch.zeros(2, 3, 5).masked_fill(~allowed, -torch.inf)
    boolean = masks.with_structure(allowed, query, key, is_causal=is_causal, window=window)
    floating = masks.with_structure(added, query, key, is_causal=is_causal, window=window)
    assert torch.equal(boolean, floating == 0)
    assert torch.equal(~boolean, floating == -torch.inf)


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    def test_lengths_of_another_kind(self):
        with pytest.raises(TypeError, match=r"integers, got torch.float32"):
            masks.padding(torch.tensor([1.0]), 3)

    def test_lengths_of_another_shape(self):
        with pytest.raises(ValueError, match=r"shape \[batch\], got \(1, 1\)"):
            masks.padding(torch.tensor([[1]]), 3)

    @pytest.mark.parametrize("length", [-1, 4])
    def test_lengths_outside(self, length):
        with pytest.raises(ValueError, match=f"between 0 and T = 3, got {length} to {length}"):
            masks.padding(torch.tensor([length]), 3)

    def test_negative_length(self):
        with pytest.raises(ValueError, match="T_q must be at least 0, got -1"):
            masks.causal(-1)

    @pytest.mark.parametrize("size", [0, -2])
    def test_empty_window(self, size):
        with pytest.raises(ValueError, match=f"at least 1, got {size}"):
            masks.window(3, 3, size)

    def test_combining_floats(self):
        with pytest.raises(TypeError, match=r"boolean \(True = may look\), got torch.float32"):
            masks.combine(torch.zeros(2, 2))

    def test_combining_shapes_that_do_not_fit(self):
        with pytest.raises(ValueError, match=r"broadcast, got \(2, 2\) and \(3, 3\)"):
            masks.combine(masks.causal(2), masks.causal(3))

    def test_turning_a_float_mask(self):
        with pytest.raises(TypeError, match=r"boolean, got torch.float32"):
            masks.from_torch_blocked(torch.zeros(2))


# Patterns -------------------------------------------------------------------------------------


@given(T=LENGTHS, size=st.integers(1, 8), is_causal=st.booleans())
def test_strided_and_blocks_equal_the_loop(T, size, is_causal):
    stride, block = (f(T, size, is_causal=is_causal) for f in (masks.strided, masks.blocks))
    for i in range(T):
        for j in range(T):
            allowed = j <= i or not is_causal
            assert stride[i, j] == (allowed and (i - j) % size == 0)
            assert block[i, j] == (allowed and i // size == j // size)


@given(T=LENGTHS, size=st.integers(1, 8), count=st.integers(1, 8), is_causal=st.booleans())
def test_summaries_equal_the_loop(T, size, count, is_causal):
    count = min(count, size)
    mask = masks.summaries(T, size, count, is_causal=is_causal)
    for i in range(T):
        for j in range(T):
            assert mask[i, j] == (j % size >= size - count and (j <= i or not is_causal))


@pytest.mark.parametrize("T", [16, 20, 23])
def test_both_patterns_of_the_sparse_transformer_reach_all_of_the_past_in_two_layers(T):
    everything, options = masks.causal(T), {"is_causal": True}
    near, far = masks.window(T, T, 5, **options), masks.strided(T, 4, **options)
    assert torch.equal(masks.reached(near, far), everything)
    assert torch.equal(masks.reached(far, near), everything)
    assert masks.path_length(near | far, everything) == 2
    own, last = masks.blocks(T, 4, **options), masks.summaries(T, 4, 2, **options)
    assert torch.equal(masks.reached(own, last), everything)
    assert not torch.equal(masks.reached(last, own), everything)  # summaries of what they have not read
    assert masks.path_length(own | last, everything) == 2


def test_half_a_pattern_never_gets_there():
    for mask in (masks.strided(12, 3), masks.blocks(12, 3)):
        assert masks.path_length(mask) is None
    assert masks.path_length(masks.window(12, 12, 3)) == 6  # 11 positions, 2 in each layer
    assert masks.path_length(masks.window(12, 12, 3, is_causal=True)) is None  # the future stays unseen
    assert masks.path_length(masks.window(12, 12, 3, is_causal=True), masks.causal(12)) == 6
    assert masks.path_length(torch.ones(5, 5, dtype=torch.bool)) == 1
    assert masks.path_length(torch.ones(1, 1, dtype=torch.bool)) == 0
    assert masks.path_length(torch.zeros(0, 0, dtype=torch.bool)) == 0


@given(T=st.integers(1, 6), layers=st.integers(1, 3))
def test_reached_follows_every_path(T, layers):
    stack = torch.rand(layers, T, T) < 0.3
    known = [{i} for i in range(T)]
    for mask in stack:
        known = [known[i].union(*(known[j] for j in range(T) if mask[i, j])) for i in range(T)]
    assert [set(row.nonzero().flatten().tolist()) for row in masks.reached(*stack)] == known


def test_patterns_do_not_share_memory():
    mask = masks.summaries(4, 2)
    mask[0, 1] = False
    assert mask[1, 1]


@pytest.mark.usefixtures("unchecked")
class TestBadPatterns:
    @pytest.mark.parametrize("size", [0, -1])
    def test_sizes(self, size):
        with pytest.raises(ValueError, match=f"the stride must be at least 1, got {size}"):
            masks.strided(3, size)
        with pytest.raises(ValueError, match=f"the block's size must be at least 1, got {size}"):
            masks.blocks(3, size)

    @pytest.mark.parametrize("count", [0, 4])
    def test_counts(self, count):
        with pytest.raises(ValueError, match=f"between 1 and the block's size 3, got {count}"):
            masks.summaries(6, 3, count)

    def test_reach_of_floats_and_of_other_shapes(self):
        square = masks.causal(3)
        with pytest.raises(TypeError, match=r"boolean .*, got torch.float32"):
            masks.reached(square, torch.ones(3, 3))
        with pytest.raises(ValueError, match=r"\[3, 3\], got \(4, 4\)"):
            masks.path_length(square, masks.causal(4))
        with pytest.raises(ValueError, match=r"got \(2, 3\)"):
            masks.path_length(masks.causal(2, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda T: masks.causal(T),
        lambda T: masks.causal(T, 2 * T),
        lambda T: masks.window(T, T, 9),
        lambda T: masks.window(T, T, 9, is_causal=True),
        lambda T: masks.strided(T, 7),
        lambda T: masks.blocks(T, 9),
    ],
    ids=["causal", "causal, more keys", "window", "causal window", "strided", "blocks"],
)
def test_a_mask_is_made_in_the_memory_of_two(make):
    """A table of distances, eight bytes for each pair, would be eight masks by itself."""
    T = 500
    with LiveBytes() as live:
        mask = make(T)
    rows = 4 * 8 * (mask.shape[0] + mask.shape[1])  # positions of queries and of keys
    assert live.peak <= 2 * mask.nbytes + rows

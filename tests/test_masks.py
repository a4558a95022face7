import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_course import masks

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

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_course.positions import (
    Learned,
    Rotary,
    Sinusoidal,
    alibi_bias,
    alibi_slopes,
    rotate,
    sinusoidal,
)

LAYOUTS = ("interleaved", "half")


@given(length=st.integers(0, 20), half=st.integers(1, 8))
def test_sinusoidal_equals_the_loop(length, half):
    got = sinusoidal(length, 2 * half)
    np.testing.assert_allclose(got.numpy(), oracles.sinusoidal(length, 2 * half), rtol=0, atol=1e-7)


def test_sinusoidal_is_exact_far_out():
    # In float32 these angles, near 10 million, are known to half a radian only.
    got = sinusoidal(1, 8, start=10_000_001)[0]
    angles = 10_000_001 / 10000 ** (np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(got[0::2].numpy(), np.sin(angles), atol=1e-6)


def test_a_shift_is_a_rotation_that_knows_no_position():
    table, shift = sinusoidal(50, 8).double(), 7
    for pair in range(4):
        angle = shift / 10000 ** (2 * pair / 8)
        rotation = torch.tensor(
            [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]], dtype=torch.float64
        )
        columns = slice(2 * pair, 2 * pair + 2)
        torch.testing.assert_close(
            table[:-shift, columns] @ rotation.T, table[shift:, columns], rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("make", [lambda: Sinusoidal(8), lambda: Learned(20, 8)])
class TestAddedPositions:
    def test_positions_run_along_the_tokens_not_the_batch(self, make):
        encode = make()
        x = torch.zeros(3, 5, 8)
        assert torch.equal(encode(x)[0], encode(x)[2])
        assert not torch.equal(encode(x)[:, 0], encode(x)[:, 1])

    def test_start_continues_a_sequence(self, make):
        encode, x = make(), torch.randn(2, 9, 8)
        torch.testing.assert_close(encode(x[:, 4:], start=4), encode(x)[:, 4:])

    def test_dtype_and_inputs_are_kept(self, make):
        encode, x = make(), torch.randn(2, 5, 8, dtype=torch.bfloat16)
        before = x.clone()
        assert encode(x).dtype == torch.bfloat16
        assert torch.equal(x, before)


def rotated_by_loop(x, base, layout):
    result = np.zeros_like(x)
    width = x.shape[1]
    for position, vector in enumerate(x):
        for i in range(width // 2):
            a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + width // 2)
            turn = np.exp(1j * position / base ** (2 * i / width)) * complex(vector[a], vector[b])
            result[position, a], result[position, b] = turn.real, turn.imag
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
class TestRotary:
    def test_equals_the_loop(self, layout):
        x = torch.randn(6, 8, dtype=torch.float64)
        got = rotate(x, torch.arange(6), base=100.0, layout=layout)
        np.testing.assert_allclose(got.numpy(), rotated_by_loop(x.numpy(), 100.0, layout), atol=1e-6)

    def test_products_depend_on_the_distance_alone(self, layout):
        query, key = torch.randn(1, 8).double(), torch.randn(1, 8).double()

        def product(i, j):
            turned = rotate(query, torch.tensor([i]), layout=layout)
            return (turned * rotate(key, torch.tensor([j]), layout=layout)).sum().item()

        assert product(7, 3) == pytest.approx(product(104, 100), abs=1e-4)
        assert product(7, 3) != pytest.approx(product(7, 4), abs=1e-3)

    def test_lengths_stay(self, layout):
        x = torch.randn(2, 3, 5, 8)
        torch.testing.assert_close(Rotary(8, layout=layout)(x).norm(dim=-1), x.norm(dim=-1))

    def test_start_and_positions_agree(self, layout):
        x = torch.randn(2, 5, 8)
        got = Rotary(8, layout=layout)(x, start=3)
        torch.testing.assert_close(got, rotate(x, torch.arange(3, 8), layout=layout))

    def test_positions_per_sequence(self, layout):
        x, positions = torch.randn(2, 3, 8), torch.tensor([[0, 1, 2], [5, 6, 7]])
        got = rotate(x, positions, layout=layout)
        torch.testing.assert_close(got[1], rotate(x[1], torch.arange(5, 8), layout=layout))

    def test_bfloat16_is_turned_in_float32(self, layout):
        x = torch.randn(4, 8)
        got = rotate(x.bfloat16(), torch.arange(4), layout=layout)
        assert got.dtype == torch.bfloat16
        wide = rotate(x.bfloat16().float(), torch.arange(4), layout=layout)
        assert torch.equal(got, wide.bfloat16())  # rounded once, at the end


def test_the_layouts_differ_by_a_permutation():
    x = torch.randn(5, 8)
    to_half = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    positions = torch.arange(5)
    torch.testing.assert_close(
        rotate(x, positions, layout="interleaved")[:, to_half],
        rotate(x[:, to_half], positions, layout="half"),
    )
    assert not torch.allclose(rotate(x, positions, layout="interleaved"), rotate(x, positions, layout="half"))


def test_alibi_slopes():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    # Twelve heads: eight as above, then every other one of sixteen.
    assert alibi_slopes(12).tolist() == pytest.approx(
        [2.0**-n for n in range(1, 9)] + [2.0 ** -(n + 0.5) for n in range(4)]
    )


@given(num_heads=st.integers(1, 40))
def test_alibi_gives_every_head_its_own_slope(num_heads):
    slopes = alibi_slopes(num_heads)
    assert slopes.shape == (num_heads,)
    assert len(set(slopes.tolist())) == num_heads
    assert ((slopes > 0) & (slopes < 1)).all()


@pytest.mark.parametrize(("T_q", "T_k"), [(3, 3), (1, 5), (4, 2)])
def test_alibi_bias_counts_from_the_last_key(T_q, T_k):
    bias, slopes = alibi_bias(4, T_q, T_k), alibi_slopes(4)
    assert bias.shape == (4, T_q, T_k)
    for head in range(4):
        for i in range(T_q):
            for j in range(T_k):
                assert bias[head, i, j] == -slopes[head] * abs(i + T_k - T_q - j)


@pytest.mark.gpu
def test_on_a_gpu():
    x = torch.randn(2, 5, 8)
    for encode in (Sinusoidal(8), Rotary(8)):
        torch.testing.assert_close(encode(x.cuda()).cpu(), encode(x), rtol=1e-4, atol=1e-4)
    assert alibi_bias(4, 3, device="cuda").is_cuda


@pytest.mark.usefixtures("unchecked")
class TestBadInput:
    @pytest.mark.parametrize("make", [lambda w: sinusoidal(3, w), Sinusoidal, Rotary])
    @pytest.mark.parametrize("width", [0, 5])
    def test_odd_widths(self, make, width):
        with pytest.raises(ValueError, match=f"must be even and at least 2 .* got {width}"):
            make(width)

    def test_negative_length(self):
        with pytest.raises(ValueError, match="at least 0, got -1"):
            sinusoidal(-1, 4)

    @pytest.mark.parametrize("make", [Sinusoidal, Rotary, lambda width: Learned(9, width)])
    def test_width_of_x(self, make):
        with pytest.raises(ValueError, match=r"\[..., T, 8\], got \(2, 3, 6\)"):
            make(8)(torch.randn(2, 3, 6))

    def test_beyond_the_learned_positions(self):
        with pytest.raises(ValueError, match="positions 2 to 5 do not lie within the 5 learned ones"):
            Learned(5, 8)(torch.randn(4, 8), start=2)
        with pytest.raises(ValueError, match="positions -1"):
            Learned(5, 8)(torch.randn(4, 8), start=-1)

    def test_empty_table(self):
        with pytest.raises(ValueError, match="at least 1, got 0 and 8"):
            Learned(0, 8)

    @pytest.mark.parametrize(
        "call",
        [lambda: Rotary(8, layout="full"), lambda: rotate(torch.randn(3, 8), torch.arange(3), layout="full")],
    )
    def test_layout(self, call):
        with pytest.raises(ValueError, match='"interleaved" or "half", got \'full\''):
            call()

    def test_positions_that_do_not_fit(self):
        with pytest.raises(ValueError, match=r"broadcast to \(2, 3\), got \(4,\)"):
            rotate(torch.randn(2, 3, 8), torch.arange(4))

    def test_no_heads(self):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            alibi_slopes(0)

"""Where does a token stand?

Attention treats its keys as a set. Positions come in by adding a vector to each token (sinusoidal,
learned), by turning queries and keys (rotary) or by a bias on the scores (ALiBi, T5's, Shaw's). Which of
them a model has is for whoever builds it to say: see ``heads.MultiHeadAttention`` and ``transformer``.
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from attention_course.device import widest
from attention_course.inputs import check_at_least, check_choice, check_width

Layout = Literal["interleaved", "half"]  # which entries of a vector make a pair: see ``rotate``
LAYOUTS = get_args(Layout)


def sinusoidal(
    length: int,
    d_model: int,
    *,
    base: float = 10000.0,
    start: int = 0,
    device: torch.device | str | None = None,
) -> Float[Tensor, "length d_model"]:
    """Return sin(pos·ω_i) in the even and cos(pos·ω_i) in the odd columns, ω_i = base^(-2i/d_model).

    Shape [length, d_model], for positions ``start`` to ``start + length - 1`` (Vaswani et al. 2017,
    section 3.5). Computed in float64 where the device has it, returned in float32. Raises a
    ``ValueError`` for an odd ``d_model`` or a negative length.
    """
    if length < 0:
        raise ValueError(f"length must be at least 0, got {length}")
    frequencies = _frequencies("d_model", d_model, base, torch.empty(0, device=device).device)
    positions = torch.arange(start, start + length, dtype=frequencies.dtype, device=frequencies.device)
    angles = positions[:, None] * frequencies  # [length, d_model / 2]
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # [length, d_model]
    return table.to(torch.float32)


class Sinusoidal(nn.Module):
    """Adds the sinusoidal encoding to a sequence of any length (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, d_model: int, *, base: float = 10000.0) -> None:
        super().__init__()
        _check_even("d_model", d_model)
        self.d_model, self.base = d_model, base

    def forward(self, x: Float[Tensor, "... T d_model"], *, start: int = 0) -> Float[Tensor, "... T d_model"]:
        """Return x plus the encoding of positions ``start`` onwards, in the dtype of x."""
        check_width("x", x, self.d_model)
        table = sinusoidal(x.shape[-2], self.d_model, base=self.base, start=start, device=x.device)
        return x + table.to(x.dtype)


class Learned(nn.Module):
    """Adds one learned vector per position, up to ``max_length`` (Gehring et al. 2017)."""

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        if max_length < 1 or d_model < 1:
            raise ValueError(f"max_length and d_model must be at least 1, got {max_length} and {d_model}")
        self.table = nn.Parameter(torch.randn(max_length, d_model) * 0.02)

    def forward(self, x: Float[Tensor, "... T d_model"], *, start: int = 0) -> Float[Tensor, "... T d_model"]:
        """Return x plus the vectors of positions ``start`` onwards.

        Raises a ``ValueError`` for positions that have no vector.
        """
        max_length, d_model = self.table.shape
        check_width("x", x, d_model)
        end = start + x.shape[-2]
        if start < 0 or end > max_length:
            raise ValueError(
                f"positions {start} to {end - 1} do not lie within the {max_length} learned ones"
            )
        return x + self.table[start:end].to(x.dtype)


def rotate(
    x: Float[Tensor, "... T d_k"],
    positions: Shaped[Tensor, "... T"],
    *,
    base: float = 10000.0,
    layout: Layout = "interleaved",
) -> Float[Tensor, "... T d_k"]:
    """Turn pair i of each vector by the angle pos·ω_i, ω_i = base^(-2i/d_k) (Su et al. 2021, equation 34).

    Shapes: x [..., T, d_k], positions broadcastable to [..., T] -> [..., T, d_k]. The layout says
    which entries make a pair: "interleaved" pairs 2i with 2i + 1 (the paper, GPT-J), "half" pairs i
    with i + d_k/2 (GPT-NeoX, Llama in Hugging Face's library). Weights trained with one are useless
    with the other. Raises a ``ValueError`` for an odd d_k, another layout, or positions that do not fit.
    """
    _check_positions(positions, x)
    check_choice("layout", layout, LAYOUTS)
    frequencies = _frequencies("d_k", x.shape[-1], base, x.device).to(torch.float32)
    angles = positions[..., None] * frequencies  # [..., T, d_k / 2]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    cos, sin = angles.cos().to(wide.dtype), angles.sin().to(wide.dtype)
    if layout == "interleaved":
        first, second = wide[..., 0::2], wide[..., 1::2]
    else:
        first, second = wide.chunk(2, dim=-1)
    turned = (first * cos - second * sin, first * sin + second * cos)
    both = torch.stack(turned, dim=-1).flatten(-2) if layout == "interleaved" else torch.cat(turned, dim=-1)
    return both.to(x.dtype)


class Rotary(nn.Module):
    """Turns queries or keys by their position; q·k then depends on the distance only (Su et al. 2021)."""

    def __init__(self, d_k: int, *, base: float = 10000.0, layout: Layout = "interleaved") -> None:
        super().__init__()
        _check_even("d_k", d_k)
        check_choice("layout", layout, LAYOUTS)
        self.d_k, self.base, self.layout = d_k, base, layout

    def forward(self, x: Float[Tensor, "... T d_k"], *, start: int = 0) -> Float[Tensor, "... T d_k"]:
        """Return x turned for positions ``start`` onwards."""
        check_width("x", x, self.d_k)
        positions = torch.arange(start, start + x.shape[-2], device=x.device)
        return rotate(x, positions, base=self.base, layout=self.layout)


def alibi_slopes(num_heads: int) -> Float[Tensor, " num_heads"]:
    """Return one slope per head, 2^(-8/h), 2^(-16/h), … (Press et al. 2022, section 3).

    For h that is no power of two: the slopes of the power below, then every other one of the power
    above, as in the authors' code. Raises a ``ValueError`` for fewer than one head.
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (head + 1) / count) for head in range(count)]

    below = 2 ** int(math.log2(num_heads))
    return torch.tensor(geometric(below) + geometric(2 * below)[0::2][: num_heads - below])


def alibi_bias(
    num_heads: int, T_q: int, T_k: int | None = None, *, device: torch.device | str | None = None
) -> Float[Tensor, "num_heads T_q T_k"]:
    """Return -slope · distance for every head, query and key, to be added to the scores.

    Shape [num_heads, T_q, T_k]. The last query stands at the last key, as in ``masks.causal``. The
    distance counts in both directions; a causal mask hides the later keys.
    """
    T_k = T_q if T_k is None else T_k
    query = torch.arange(T_k - T_q, T_k, device=device)
    key = torch.arange(T_k, device=device)
    distance = (query[:, None] - key).abs()
    return -alibi_slopes(num_heads).to(device)[:, None, None] * distance


class ALiBi(nn.Module):
    """A price on the score for each position between query and key (Press et al. 2022, section 3)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def forward(
        self, query: Float[Tensor, "... h T_q d_k"], key: Float[Tensor, "... h_kv T_k d_k"]
    ) -> Float[Tensor, "h T_q T_k"]:
        """Return minus slope times distance, in the dtype of ``query``."""
        distance = _offsets(query, key).abs()
        return -self.slopes.to(query.dtype)[:, None, None] * distance


class BucketedBias(nn.Module):
    """One learned number for each head and range of distances, added to the scores (Raffel et al. 2020).

    Half of ``num_buckets`` are for one distance each, the others for ranges that grow geometrically up
    to ``max_distance``; the last holds all beyond. Unless ``is_causal``, either direction has half of
    them. One module shared by all layers is T5's way. Raises a ``ValueError`` for too few buckets.
    """

    def __init__(
        self, num_heads: int, *, is_causal: bool, num_buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__()
        ways = 1 if is_causal else 2
        if num_buckets < 2 * ways or num_buckets % (2 * ways) or max_distance <= num_buckets // (2 * ways):
            raise ValueError(
                f"num_buckets must be a multiple of {2 * ways} and max_distance above half of a direction's, "
                f"got num_buckets={num_buckets}, max_distance={max_distance}"
            )
        self.is_causal, self.max_distance = is_causal, max_distance
        self.table = nn.Embedding(num_buckets, num_heads)

    def forward(
        self, query: Float[Tensor, "... h T_q d_k"], key: Float[Tensor, "... h_kv T_k d_k"]
    ) -> Float[Tensor, "h T_q T_k"]:
        """Return each pair's number, by the range its distance lies in."""
        return self.table(self._buckets(_offsets(query, key))).movedim(-1, 0).to(query.dtype)

    def _buckets(self, offset: Int[Tensor, "T_q T_k"]) -> Int[Tensor, "T_q T_k"]:
        """The range of each offset, key minus query: as in T5, later keys come behind the earlier ones."""
        ways = 1 if self.is_causal else 2
        size = self.table.num_embeddings // ways  # ranges in one direction
        first = 0 if self.is_causal else (offset > 0) * size
        distance = (-offset).clamp_min(0) if self.is_causal else offset.abs()
        single = size // 2
        growth = (distance.clamp_min(1).to(widest(offset.device)) / single).log() / math.log(
            self.max_distance / single
        )
        ranged = (single + (growth * (size - single)).long()).clamp_max(size - 1)
        return first + torch.where(distance < single, distance, ranged)


class RelativeKeys(nn.Module):
    """A learned vector for each offset, which queries meet beside the key (Shaw et al. 2018, equation 4).

    Offsets beyond ``max_distance`` share the last vector. The paper's vectors for the values (equation
    3) are left out: it measures no gain by them (table 3). Raises a ``ValueError`` for a size below 1.
    """

    def __init__(self, d_k: int, max_distance: int) -> None:
        super().__init__()
        check_at_least(1, d_k=d_k, max_distance=max_distance)
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.randn(2 * max_distance + 1, d_k) / math.sqrt(d_k))

    def forward(
        self, query: Float[Tensor, "... h T_q d_k"], key: Float[Tensor, "... h_kv T_k d_k"]
    ) -> Float[Tensor, "... h T_q T_k"]:
        """Return q·a / √d_k, a being the vector of the pair's offset."""
        met = query @ self.table.to(query.dtype).T / math.sqrt(query.shape[-1])  # [..., h, T_q, offsets]
        index = _offsets(query, key).clamp(-self.max_distance, self.max_distance) + self.max_distance
        return met.gather(-1, index.expand(*met.shape[:-2], -1, -1))


def _offsets(query: Tensor, key: Tensor) -> Int[Tensor, "T_q T_k"]:
    """How many positions each key stands behind each query, the last two side by side."""
    T_q, T_k = query.shape[-2], key.shape[-2]
    places = torch.arange(T_k, device=query.device)
    return places - torch.arange(T_k - T_q, T_k, device=query.device)[:, None]


def _frequencies(name: str, width: int, base: float, device: torch.device) -> Float[Tensor, " pairs"]:
    """ω_i of every pair, in float64 where the device has it: far positions need the digits."""
    _check_even(name, width)
    return base ** (-torch.arange(0, width, 2, dtype=widest(device), device=device) / width)


def _check_even(name: str, width: int) -> None:
    if width < 2 or width % 2:
        raise ValueError(f"{name} must be even and at least 2 (sines and cosines pair up), got {width}")


def _check_positions(positions: Tensor, x: Tensor) -> None:
    try:
        torch.broadcast_shapes(positions.shape, x.shape[:-1])
    except RuntimeError as error:
        raise ValueError(
            f"positions must broadcast to {tuple(x.shape[:-1])}, got {tuple(positions.shape)}"
        ) from error

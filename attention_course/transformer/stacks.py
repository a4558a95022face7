"""Stacks of layers, and what stands below the first of them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course.heads import Cache
from attention_course.inputs import check_at_least, check_range
from attention_course.transformer.layers import (
    DecoderLayer,
    DecoderWeights,
    EncoderLayer,
    LayerConfig,
    Mask,
)

Tokens = Int[Tensor, "B T"]


class Trace(NamedTuple):
    """What happened in a stack: the stream below each layer and above the last, and each layer's weights."""

    output: Float[Tensor, "... T width"]
    states: list[Float[Tensor, "... T d_model"]]
    weights: list[Float[Tensor, "... h T T"]]


class Encoder(nn.Module):
    """A stack of encoder layers.

    A pre-norm stack ends with a norm of its own, because nothing else has normalised its stream.
    """

    def __init__(self, num_layers: int, config: LayerConfig) -> None:
        super().__init__()
        check_at_least(1, num_layers=num_layers)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(num_layers))
        self.final_norm = config.final_norm()

    def forward(
        self,
        x: Float[Tensor, "... T d_model"],
        *,
        attn_mask: Mask | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        caches: Sequence[Cache] | None = None,
    ) -> tuple[Float[Tensor, "... T d_model"], list[Float[Tensor, "... h T T_k"]] | None]:
        """Return ``(states, weights)``, the weights as a list with one entry per layer, if asked for.

        ``caches`` has one entry per layer too, each a cache of its own with the same past; anything
        else is a ``ValueError``.
        """
        if caches is not None:
            _check_caches(caches, len(self.layers))
        seen = []
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            x, weights = layer(
                x, attn_mask=attn_mask, is_causal=is_causal, need_weights=need_weights, cache=cache
            )
            seen.append(weights)
        return self.final_norm(x), seen if need_weights else None

    def trace(
        self, x: Float[Tensor, "... T d_model"], *, attn_mask: Mask | None = None, is_causal: bool = False
    ) -> Trace:
        """Return what ``forward`` returns first, with the states and weights of every layer.

        There is one state more than layers: the first is ``x``, the last is what the final norm reads.
        """
        states, seen = [x], []
        for layer in self.layers:
            x, weights = layer(x, attn_mask=attn_mask, is_causal=is_causal, need_weights=True)
            states.append(x)
            seen.append(weights)
        return Trace(self.final_norm(x), states, seen)


class Decoder(nn.Module):
    """A stack of decoder layers, each with cross-attention to the same memory."""

    def __init__(self, num_layers: int, config: LayerConfig) -> None:
        super().__init__()
        check_at_least(1, num_layers=num_layers)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(num_layers))
        self.final_norm = config.final_norm()

    def forward(
        self,
        x: Float[Tensor, "... T_q d_model"],
        memory: Float[Tensor, "... T_k d_model"],
        *,
        memory_mask: Mask | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "... T_q d_model"], list[DecoderWeights] | None]:
        """Return ``(states, weights)``, the weights as a list with one entry per layer, if asked for."""
        seen = []
        for layer in self.layers:
            x, weights = layer(x, memory, memory_mask=memory_mask, need_weights=need_weights)
            seen.append(weights)
        return self.final_norm(x), seen if need_weights else None


class Embedding(nn.Module):
    """From tokens to vectors: ``scale`` times a learned row per token, then ``positions``, then dropout.

    Rows start with variance 1/d_model, so that a scale of √d_model (Vaswani et al. 2017, section 3.4)
    gives entries of variance 1, and so does the product with a normalised vector at a tied output.
    ``positions`` is a module such as ``positions.Sinusoidal``; without one nothing is added here. With
    ``num_segments`` a learned row for each token's segment is added, and ``norm_layer`` makes a norm in
    front of the dropout, both as in BERT (Devlin et al. 2019, figure 2).
    """

    def __init__(
        self,
        num_tokens: int,
        d_model: int,
        positions: nn.Module | None = None,
        *,
        num_segments: int = 0,
        norm_layer: Callable[[int], nn.Module] | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(num_tokens, d_model)
        nn.init.normal_(self.table.weight, std=1 / math.sqrt(d_model))
        self.positions = positions
        self.segments = _segments(num_segments, d_model)
        self.norm = nn.Identity() if norm_layer is None else norm_layer(d_model)
        self.scale = scale
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Tokens, *, segments: Tokens | None = None, start: int = 0
    ) -> Float[Tensor, "B T d_model"]:
        """Return the stream's first state: [B, T] -> [B, T, d_model], for positions ``start`` onwards.

        ``segments`` [B, T] are 0 unless given. Raises a ``TypeError`` for tokens or segments that are no
        integers and a ``ValueError`` for unknown ones.
        """
        vectors = self.scale * _rows("tokens", tokens, self.table)
        if self.segments is not None:
            segments = torch.zeros_like(tokens) if segments is None else segments
            vectors = vectors + _rows("segments", segments, self.segments)
        elif segments is not None:
            raise ValueError("segments must be None for an embedding with num_segments=0")
        if self.positions is not None:
            # A model that never uses a cache may have positions that know of no start.
            vectors = self.positions(vectors, start=start) if start else self.positions(vectors)
        return self.dropout(self.norm(vectors))


def _segments(number: int, d_model: int) -> nn.Embedding | None:
    if not number:
        return None
    table = nn.Embedding(number, d_model)
    nn.init.normal_(table.weight, std=1 / math.sqrt(d_model))
    return table


def _rows(name: str, indices: Tokens, table: nn.Embedding) -> Float[Tensor, "B T d_model"]:
    if indices.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be integers (int64 or int32), got {indices.dtype}")
    check_range(name, indices, 0, table.num_embeddings - 1)
    return table(indices)


def _check_caches(caches: Sequence[Cache], num_layers: int) -> None:
    if len(caches) != num_layers:
        raise ValueError(f"caches must be one per layer, {num_layers}, got {len(caches)}")
    if len(set(map(id, caches))) != num_layers:
        raise ValueError("caches must be a cache of its own for every layer, got one of them twice")
    lengths = [cache.length for cache in caches]
    if len(set(lengths)) != 1:
        raise ValueError(f"caches must all have seen the same number of tokens, got {lengths}")

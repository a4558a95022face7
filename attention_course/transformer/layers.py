"""The layers of a Transformer, and the parts that one may hand in.

Every token has a vector, and the sub-layers of the model take turns at it: attention reads other
tokens, the feed-forward network thinks about one, and each adds its answer to what is there. That
sum is the residual stream. A *post*-norm model normalises it behind every addition, as Vaswani et
al. (2017) do; a *pre*-norm model normalises what a sub-layer reads, as GPT-2 and most models since.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attention_course.heads import Cache, MultiHeadAttention, Rotation, ScoreBias
from attention_course.inputs import check_at_least, check_choice, check_share, check_width

Norm = Literal["pre", "post"]
Activation = Callable[[Tensor], Tensor]
Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]


class FeedForward(nn.Module):
    """Two linear maps with a bend in between, for each token alone (Vaswani et al. 2017, equation 2)."""

    def __init__(
        self, d_model: int, d_ff: int, *, activation: Activation = F.relu, bias: bool = True
    ) -> None:
        super().__init__()
        check_at_least(1, d_ff=d_ff)
        self.inner = nn.Linear(d_model, d_ff, bias=bias)
        self.outer = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation

    def forward(self, x: Float[Tensor, "... T d_model"]) -> Float[Tensor, "... T d_model"]:
        """Return outer(activation(inner(x))): [..., T, d_model] -> [..., T, d_ff] -> [..., T, d_model]."""
        return self.outer(self.activation(self.inner(x)))


class GatedFeedForward(nn.Module):
    """A feed-forward network whose inner layer is multiplied by a gate (Shazeer 2020, equation 6: SwiGLU).

    With three matrices instead of two, d_ff is usually taken a third smaller. ``F.gelu`` makes it GEGLU.
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: Activation = F.silu, bias: bool = False
    ) -> None:
        super().__init__()
        check_at_least(1, d_ff=d_ff)
        self.gate = nn.Linear(d_model, d_ff, bias=bias)
        self.inner = nn.Linear(d_model, d_ff, bias=bias)
        self.outer = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation

    def forward(self, x: Float[Tensor, "... T d_model"]) -> Float[Tensor, "... T d_model"]:
        """Return outer(activation(gate(x)) · inner(x)): [..., T, d_model] -> [..., T, d_model]."""
        return self.outer(self.activation(self.gate(x)) * self.inner(x))


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """All that the layers of a stack have in common.

    ``norm`` says where the norm stands, "pre" or "post", and ``norm_layer`` makes one for a width
    (``nn.RMSNorm``; ``partial(nn.LayerNorm, eps=1e-12)``). ``feed_forward`` makes the network for d_model
    and d_ff (``GatedFeedForward``; ``partial(FeedForward, activation=F.gelu)``). ``num_kv_heads``,
    ``qk_norm``, ``rotation``, ``score_bias`` and ``window`` are for self-attention and as in
    ``MultiHeadAttention``;
    all layers of a stack share the modules handed in here, and what these have learned. ``bias`` is
    that of the attentions' projections; ``dropout`` applies to each sub-layer's answer, in training
    only. Raises a ``ValueError`` for what no layer can have.
    """

    d_model: int
    num_heads: int
    d_ff: int
    norm: Norm
    norm_layer: Callable[[int], nn.Module] = nn.LayerNorm
    feed_forward: Callable[[int, int], nn.Module] = FeedForward
    num_kv_heads: int | None = None
    bias: bool = True
    qk_norm: Callable[[int], nn.Module] | None = None
    rotation: Rotation | None = None
    score_bias: ScoreBias | None = None
    window: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, ("pre", "post"))
        check_share("dropout", self.dropout)
        if self.window is not None:
            check_at_least(1, window=self.window)

    def self_attention(self) -> MultiHeadAttention:
        """Return a new self-attention."""
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            num_kv_heads=self.num_kv_heads,
            bias=self.bias,
            qk_norm=self.qk_norm,
            rotation=self.rotation,
            score_bias=self.score_bias,
        )

    def cross_attention(self) -> MultiHeadAttention:
        """Return a new attention to another sequence, from which no position is at any distance."""
        return MultiHeadAttention(self.d_model, self.num_heads, bias=self.bias)

    def network(self) -> nn.Module:
        """Return a new feed-forward network."""
        return self.feed_forward(self.d_model, self.d_ff)

    def residual(self, *, gated: bool = False) -> "Residual":
        """Return a new place on the stream for one sub-layer."""
        return Residual(
            self.d_model, norm=self.norm, norm_layer=self.norm_layer, dropout=self.dropout, gated=gated
        )

    def final_norm(self) -> nn.Module:
        """Return the norm at the end of a stack: nothing else has normalised a pre-norm stream."""
        return self.norm_layer(self.d_model) if self.norm == "pre" else nn.Identity()


class Residual(nn.Module):
    """Where one sub-layer f meets the stream: x + f(norm(x)) if pre-norm, norm(x + f(x)) if post-norm.

    See Xiong et al. (2020), figure 1. ``dropout`` applies to the sub-layer's answer, in training only
    (Vaswani et al. 2017, section 5.4). ``gated``, the answer is multiplied by tanh of a number that
    starts at 0, so that the stream is at first what it was (Alayrac et al. 2022, section 2.2).
    """

    def __init__(
        self,
        d_model: int,
        *,
        norm: Norm,
        norm_layer: Callable[[int], nn.Module] = nn.LayerNorm,
        dropout: float = 0.0,
        gated: bool = False,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, ("pre", "post"))
        check_share("dropout", dropout)
        self.d_model, self.norm_first = d_model, norm == "pre"
        self.norm = norm_layer(d_model)
        self.dropout = nn.Dropout(dropout)
        self.gate = nn.Parameter(torch.zeros(())) if gated else None

    def read(self, x: Float[Tensor, "... T d_model"]) -> Float[Tensor, "... T d_model"]:
        """Return what the sub-layer is shown of the stream."""
        self.check("x", x)
        return self.norm(x) if self.norm_first else x

    def write(
        self, x: Float[Tensor, "... T d_model"], answer: Float[Tensor, "... T d_model"]
    ) -> Float[Tensor, "... T d_model"]:
        """Return the stream with the sub-layer's answer added."""
        answer = self.dropout(answer)
        x = x + (answer if self.gate is None else self.gate.tanh() * answer)
        return x if self.norm_first else self.norm(x)

    def check(self, name: str, x: Tensor) -> None:
        """Refuse what is not of this stream's width and dtype."""
        check_width(name, x, self.d_model, axis="d_model=")
        weight = next(self.norm.parameters(), x)
        # Under autocast some inputs come from narrowed layers and others do not.
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"{name} must have the layer's dtype {weight.dtype}, got {x.dtype}")


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (Vaswani et al. 2017, section 3.1).

    With ``is_causal`` it is also the layer of a GPT: a decoder's layer without cross-attention. With
    the config's ``window``, tokens that many positions away, or more, are not seen. Raises a
    ``ValueError`` when the heads do not divide d_model.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.window = config.window
        self.attention = config.self_attention()
        self.feed_forward = config.network()
        self.around_attention = config.residual()
        self.around_feed_forward = config.residual()

    def forward(
        self,
        x: Float[Tensor, "... T d_model"],
        *,
        attn_mask: Mask | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        cache: Cache | None = None,
    ) -> tuple[Float[Tensor, "... T d_model"], Float[Tensor, "... h T T_k"] | None]:
        """Return ``(stream, weights)``; weights [..., h, T, T_k] are None unless asked for.

        ``attn_mask``, ``is_causal`` and ``cache`` as in ``MultiHeadAttention``; T_k is T, or with a
        cache the number of all tokens so far. Raises a ``ValueError`` or ``TypeError`` for an x of
        another width or dtype than the layer's.
        """
        answer, weights = self.attention(
            self.around_attention.read(x),
            attn_mask=attn_mask,
            is_causal=is_causal,
            window=self.window,
            need_weights=need_weights,
            cache=cache,
        )
        x = self.around_attention.write(x, answer)
        answer = self.feed_forward(self.around_feed_forward.read(x))
        return self.around_feed_forward.write(x, answer), weights


class DecoderWeights(NamedTuple):
    """A decoder layer's weights: over the tokens written so far, and over the source."""

    past: Float[Tensor, "... h T_q T_q"]
    source: Float[Tensor, "... h T_q T_k"]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward (Vaswani et al. 2017, section 3.1).

    What the config says of key heads, positions and window is for the self-attention alone: a word of
    the target is at no distance from a word of the source. Raises a ``ValueError`` when the heads do
    not divide d_model.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.window = config.window
        self.attention = config.self_attention()
        self.cross_attention = config.cross_attention()
        self.feed_forward = config.network()
        self.around_attention = config.residual()
        self.around_cross_attention = config.residual()
        self.around_feed_forward = config.residual()

    def forward(
        self,
        x: Float[Tensor, "... T_q d_model"],
        memory: Float[Tensor, "... T_k d_model"],
        *,
        attn_mask: Mask | None = None,
        memory_mask: Mask | None = None,
        is_causal: bool = True,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "... T_q d_model"], DecoderWeights | None]:
        """Return ``(stream, weights)``; weights are None unless asked for.

        ``memory`` is the encoder's output: keys and values of the cross-attention, whose queries come
        from x. ``memory_mask`` [..., T_q or 1, T_k] says which source tokens may be looked at,
        ``attn_mask`` which of the decoder's own, besides ``is_causal``. True = may look.
        Raises a ``ValueError`` or ``TypeError`` for x or memory of another width or dtype.
        """
        answer, past = self.attention(
            self.around_attention.read(x),
            attn_mask=attn_mask,
            is_causal=is_causal,
            window=self.window,
            need_weights=need_weights,
        )
        x = self.around_attention.write(x, answer)
        self.around_cross_attention.check("memory", memory)
        answer, source = self.cross_attention(
            self.around_cross_attention.read(x), memory, attn_mask=memory_mask, need_weights=need_weights
        )
        x = self.around_cross_attention.write(x, answer)
        answer = self.feed_forward(self.around_feed_forward.read(x))
        x = self.around_feed_forward.write(x, answer)
        return x, DecoderWeights(past, source) if need_weights else None


class CrossAttentionLayer(nn.Module):
    """Cross-attention, then feed-forward: what lets a model of one sequence look at another one.

    ``gated``, both answers start at 0, so that a trained model into which such layers are put is at
    first what it was (Alayrac et al. 2022, section 2.2: Flamingo). Raises a ``ValueError`` when the heads
    do not divide d_model.
    """

    def __init__(self, config: LayerConfig, *, gated: bool = False) -> None:
        super().__init__()
        self.cross_attention = config.cross_attention()
        self.feed_forward = config.network()
        self.around_cross_attention = config.residual(gated=gated)
        self.around_feed_forward = config.residual(gated=gated)

    def forward(
        self,
        x: Float[Tensor, "... T_q d_model"],
        memory: Float[Tensor, "... T_k d_model"],
        *,
        memory_mask: Mask | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "... T_q d_model"], Float[Tensor, "... h T_q T_k"] | None]:
        """Return ``(stream, weights)``; ``memory_mask`` [..., T_q or 1, T_k] is True where one may look."""
        self.around_cross_attention.check("memory", memory)
        answer, weights = self.cross_attention(
            self.around_cross_attention.read(x), memory, attn_mask=memory_mask, need_weights=need_weights
        )
        x = self.around_cross_attention.write(x, answer)
        answer = self.feed_forward(self.around_feed_forward.read(x))
        return self.around_feed_forward.write(x, answer), weights

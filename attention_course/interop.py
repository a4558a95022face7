"""From and to other libraries: modules that compute the same, with a copy of the weights."""

from functools import partial, singledispatch

import torch
from torch import Tensor, nn

from attention_course.heads import MultiHeadAttention
from attention_course.transformer.layers import DecoderLayer, EncoderLayer, FeedForward, LayerConfig

_INPUTS = ("query_projection", "key_projection", "value_projection")


@singledispatch
def from_torch(module: nn.Module) -> nn.Module:
    """Return our module that computes what torch's computes, with a copy of its weights.

    For ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer``. torch
    reads boolean masks the other way round (see ``masks.from_torch_blocked``). In training its layers
    also drop entries inside the feed-forward network. Our decoder layer is causal unless told, theirs
    only if it is handed a mask. Raises a ``ValueError`` for an option that has no counterpart here and a
    ``TypeError`` for another module.
    """
    raise TypeError(
        "from_torch takes nn.MultiheadAttention, nn.TransformerEncoderLayer or "
        f"nn.TransformerDecoderLayer, got {type(module).__name__}"
    )


@from_torch.register
def _(module: nn.MultiheadAttention) -> MultiHeadAttention:
    if module.in_proj_weight is None:
        raise ValueError("kdim and vdim must equal embed_dim to be converted")
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError("add_bias_kv and add_zero_attn have no counterpart here")
    bias = module.in_proj_bias is not None
    ours = MultiHeadAttention(module.embed_dim, module.num_heads, bias=bias, dropout=module.dropout)
    ours.to(module.in_proj_weight)  # dtype and device
    ours.load_state_dict(state_from_torch(module.state_dict()))
    return ours.train(module.training)


@from_torch.register
def _(layer: nn.TransformerEncoderLayer) -> EncoderLayer:
    ours = EncoderLayer(_config_of(layer)).to(layer.linear1.weight)
    ours.attention = from_torch(layer.self_attn)
    _copy(layer.norm1, ours.around_attention.norm)
    _copy(layer.linear1, ours.feed_forward.inner)
    _copy(layer.linear2, ours.feed_forward.outer)
    _copy(layer.norm2, ours.around_feed_forward.norm)
    return ours.train(layer.training)


@from_torch.register
def _(layer: nn.TransformerDecoderLayer) -> DecoderLayer:
    ours = DecoderLayer(_config_of(layer)).to(layer.linear1.weight)
    ours.attention = from_torch(layer.self_attn)
    ours.cross_attention = from_torch(layer.multihead_attn)
    _copy(layer.norm1, ours.around_attention.norm)
    _copy(layer.norm2, ours.around_cross_attention.norm)
    _copy(layer.linear1, ours.feed_forward.inner)
    _copy(layer.linear2, ours.feed_forward.outer)
    _copy(layer.norm3, ours.around_feed_forward.norm)
    return ours.train(layer.training)


def to_torch(module: MultiHeadAttention) -> nn.MultiheadAttention:
    """Return the ``nn.MultiheadAttention`` (batch first) with a copy of the module's weights.

    Raises a ``ValueError`` for grouped heads, norms of queries and keys, a rotation or a bias of the
    scores, which torch's lacks.
    """
    if module.num_kv_heads != module.num_heads:
        raise ValueError(
            "nn.MultiheadAttention has as many key heads as query heads, got "
            f"num_heads={module.num_heads}, num_kv_heads={module.num_kv_heads}"
        )
    if module.rotation is not None or module.score_bias is not None:
        raise ValueError("nn.MultiheadAttention has neither rotation nor score_bias")
    if not isinstance(module.query_norm, nn.Identity):
        raise ValueError("nn.MultiheadAttention has no qk_norm")
    weight = module.query_projection.weight
    theirs = nn.MultiheadAttention(
        module.d_model,
        module.num_heads,
        dropout=module.dropout,
        bias=module.query_projection.bias is not None,
        batch_first=True,
    ).to(weight)
    theirs.load_state_dict(state_to_torch(module.state_dict()))
    return theirs.train(module.training)


def state_from_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return an ``nn.MultiheadAttention``'s state dict under ``MultiHeadAttention``'s names.

    torch stacks the three input projections, each [d_model, d_model], into one.
    """
    ours = {}
    for kind in ("weight", "bias"):
        if f"in_proj_{kind}" in state:
            ours |= zip(
                (f"{name}.{kind}" for name in _INPUTS),
                state[f"in_proj_{kind}"].chunk(3),
                strict=True,
            )
            ours[f"output_projection.{kind}"] = state[f"out_proj.{kind}"]
    return ours


def state_to_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a ``MultiHeadAttention``'s state dict under ``nn.MultiheadAttention``'s names."""
    theirs = {}
    for kind in ("weight", "bias"):
        if f"output_projection.{kind}" in state:
            theirs[f"in_proj_{kind}"] = torch.cat([state[f"{name}.{kind}"] for name in _INPUTS])
            theirs[f"out_proj.{kind}"] = state[f"output_projection.{kind}"]
    return theirs


def _config_of(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> LayerConfig:
    """What makes one of our layers of the size and kind of torch's."""
    if layer.linear1.bias is None:
        raise ValueError("a layer with bias=False has no counterpart here")
    return LayerConfig(
        d_model=layer.self_attn.embed_dim,
        num_heads=layer.self_attn.num_heads,
        d_ff=layer.linear1.out_features,
        norm="pre" if layer.norm_first else "post",
        norm_layer=partial(nn.LayerNorm, eps=layer.norm1.eps),
        feed_forward=partial(FeedForward, activation=layer.activation),
        dropout=layer.dropout1.p,
    )


def _copy(theirs: nn.Module, ours: nn.Module) -> None:
    ours.load_state_dict(theirs.state_dict())

"""The Transformer, from top to bottom: layers on a residual stream, stacks of layers, models.

Every token has a vector, and the sub-layers of the model take turns at it: attention reads other
tokens, the feed-forward network thinks about one, and each adds its answer to what is there. That
sum is the residual stream. A *post*-norm model normalises it behind every addition, as Vaswani et
al. (2017) do; a *pre*-norm model normalises what a sub-layer reads, as GPT-2 and most models since.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_course import masks
from attention_course.heads import Cache, MultiHeadAttention
from attention_course.kernels.row import Linear
from attention_course.positions import Learned, Sinusoidal
from attention_course.seq2seq import EncoderDecoder

Norm = Literal["pre", "post"]
Activation = Callable[[Tensor], Tensor]
Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]
Tokens = Int[Tensor, "B T"]
Lengths = Int[Tensor, " B"]
Logits = Float[Tensor, "B T vocabulary"]


class FeedForward(nn.Module):
    """Two linear maps with a bend in between, for each token alone (Vaswani et al. 2017, equation 2)."""

    def __init__(self, d_model: int, d_ff: int, *, activation: Activation = F.relu) -> None:
        super().__init__()
        if d_ff < 1:
            raise ValueError(f"d_ff must be at least 1, got {d_ff}")
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x: Float[Tensor, "... T d_model"]) -> Float[Tensor, "... T d_model"]:
        """Return outer(activation(inner(x))): [..., T, d_model] -> [..., T, d_ff] -> [..., T, d_model]."""
        return self.outer(self.activation(self.inner(x)))


class Residual(nn.Module):
    """Where one sub-layer f meets the stream: x + f(norm(x)) if pre-norm, norm(x + f(x)) if post-norm.

    See Xiong et al. (2020), figure 1. ``dropout`` applies to the sub-layer's answer, in training only
    (Vaswani et al. 2017, section 5.4). Raises a ``ValueError`` for another norm or dropout.
    """

    def __init__(self, d_model: int, *, norm: Norm, dropout: float = 0.0, eps: float = 1e-5) -> None:
        super().__init__()
        _check_norm(norm)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.norm_first = norm == "pre"
        self.norm = nn.LayerNorm(d_model, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def read(self, x: Float[Tensor, "... T d_model"]) -> Float[Tensor, "... T d_model"]:
        """Return what the sub-layer is shown of the stream."""
        _check_stream("x", x, self.norm)
        return self.norm(x) if self.norm_first else x

    def write(
        self, x: Float[Tensor, "... T d_model"], answer: Float[Tensor, "... T d_model"]
    ) -> Float[Tensor, "... T d_model"]:
        """Return the stream with the sub-layer's answer added."""
        x = x + self.dropout(answer)
        return x if self.norm_first else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (Vaswani et al. 2017, section 3.1).

    With ``is_causal`` it is also the layer of a GPT: a decoder's layer without cross-attention.
    ``norm`` is "pre" or "post"; ``num_kv_heads`` as in ``MultiHeadAttention``; with ``window``, tokens
    that many positions away, or more, are not seen. Raises a ``ValueError`` when the heads do not
    divide d_model, and for a window below 1.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        norm: Norm,
        dropout: float = 0.0,
        activation: Activation = F.relu,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        _check_window(window)
        self.window = window
        self.attention = MultiHeadAttention(d_model, num_heads, num_kv_heads=num_kv_heads)
        self.feed_forward = FeedForward(d_model, d_ff, activation=activation)
        self.around_attention = Residual(d_model, norm=norm, dropout=dropout, eps=eps)
        self.around_feed_forward = Residual(d_model, norm=norm, dropout=dropout, eps=eps)

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

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> "EncoderLayer":
        """Return the layer that computes what ``layer`` computes, with a copy of its weights.

        torch reads boolean masks the other way round: see ``masks.from_torch_blocked``. In training
        it also drops entries inside the feed-forward network. Raises a ``ValueError`` for bias=False.
        """
        ours = cls(**_options_of(layer))
        ours.to(layer.linear1.weight)  # dtype and device
        ours.attention = MultiHeadAttention.from_torch(layer.self_attn)
        _copy(layer.norm1, ours.around_attention.norm)
        _copy(layer.linear1, ours.feed_forward.inner)
        _copy(layer.linear2, ours.feed_forward.outer)
        _copy(layer.norm2, ours.around_feed_forward.norm)
        return ours.train(layer.training)


class DecoderWeights(NamedTuple):
    """A decoder layer's weights: over the tokens written so far, and over the source."""

    past: Float[Tensor, "... h T_q T_q"]
    source: Float[Tensor, "... h T_q T_k"]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward (Vaswani et al. 2017, section 3.1).

    Options as in ``EncoderLayer``. ``num_kv_heads`` and ``window`` are for the self-attention alone: a
    word of the target is at no distance from a word of the source. Raises a ``ValueError`` when the
    heads do not divide d_model, and for a window below 1.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        norm: Norm,
        dropout: float = 0.0,
        activation: Activation = F.relu,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        _check_window(window)
        self.window = window
        self.attention = MultiHeadAttention(d_model, num_heads, num_kv_heads=num_kv_heads)
        self.cross_attention = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff, activation=activation)
        self.around_attention = Residual(d_model, norm=norm, dropout=dropout, eps=eps)
        self.around_cross_attention = Residual(d_model, norm=norm, dropout=dropout, eps=eps)
        self.around_feed_forward = Residual(d_model, norm=norm, dropout=dropout, eps=eps)

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
        _check_stream("memory", memory, self.around_cross_attention.norm)
        answer, source = self.cross_attention(
            self.around_cross_attention.read(x), memory, attn_mask=memory_mask, need_weights=need_weights
        )
        x = self.around_cross_attention.write(x, answer)
        answer = self.feed_forward(self.around_feed_forward.read(x))
        x = self.around_feed_forward.write(x, answer)
        return x, DecoderWeights(past, source) if need_weights else None

    @classmethod
    def from_torch(cls, layer: nn.TransformerDecoderLayer) -> "DecoderLayer":
        """Return the layer that computes what ``layer`` computes, with a copy of its weights.

        Ours is causal unless told, theirs only if it is handed a mask. Masks, dropout and bias=False
        as in ``EncoderLayer.from_torch``.
        """
        ours = cls(**_options_of(layer))
        ours.to(layer.linear1.weight)
        ours.attention = MultiHeadAttention.from_torch(layer.self_attn)
        ours.cross_attention = MultiHeadAttention.from_torch(layer.multihead_attn)
        _copy(layer.norm1, ours.around_attention.norm)
        _copy(layer.norm2, ours.around_cross_attention.norm)
        _copy(layer.linear1, ours.feed_forward.inner)
        _copy(layer.linear2, ours.feed_forward.outer)
        _copy(layer.norm3, ours.around_feed_forward.norm)
        return ours.train(layer.training)


class Encoder(nn.Module):
    """A stack of encoder layers; options as in ``EncoderLayer``.

    A pre-norm stack ends with a norm of its own, because nothing else has normalised its stream.
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        norm: Norm,
        dropout: float = 0.0,
        activation: Activation = F.relu,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        layer = partial(
            EncoderLayer,
            d_model,
            num_heads,
            d_ff,
            norm=norm,
            dropout=dropout,
            activation=activation,
            eps=eps,
            num_kv_heads=num_kv_heads,
            window=window,
        )
        self.layers = nn.ModuleList(layer() for _ in range(num_layers))
        self.final_norm = _final_norm(num_layers, d_model, norm, eps)

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


class Decoder(nn.Module):
    """A stack of decoder layers, each with cross-attention to the same memory; options as in ``Encoder``."""

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        norm: Norm,
        dropout: float = 0.0,
        activation: Activation = F.relu,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        layer = partial(
            DecoderLayer,
            d_model,
            num_heads,
            d_ff,
            norm=norm,
            dropout=dropout,
            activation=activation,
            eps=eps,
            num_kv_heads=num_kv_heads,
            window=window,
        )
        self.layers = nn.ModuleList(layer() for _ in range(num_layers))
        self.final_norm = _final_norm(num_layers, d_model, norm, eps)

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
    """

    def __init__(
        self,
        num_tokens: int,
        d_model: int,
        positions: nn.Module,
        *,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(num_tokens, d_model)
        nn.init.normal_(self.table.weight, std=1 / math.sqrt(d_model))
        self.positions = positions
        self.scale = scale
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tokens, *, start: int = 0) -> Float[Tensor, "B T d_model"]:
        """Return the stream's first state: [B, T] -> [B, T, d_model], for positions ``start`` onwards.

        Raises a ``TypeError`` for tokens that are no integers and a ``ValueError`` for unknown ones.
        """
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"tokens must be integers (int64 or int32), got {tokens.dtype}")
        try:
            vectors = self.table(tokens)
        except IndexError as error:
            raise ValueError(
                f"tokens must lie between 0 and {self.table.num_embeddings - 1}, "
                f"got {tokens.min()} to {tokens.max()}"
            ) from error
        vectors = self.scale * vectors
        # A model that never uses a cache may have positions that know of no start.
        placed = self.positions(vectors, start=start) if start else self.positions(vectors)
        return self.dropout(placed)


class Reader(nn.Module):
    """The encoder of a ``Transformer``: source tokens in, one state per token out."""

    def __init__(self, embedding: Embedding, stack: Encoder) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack

    def forward(self, source: Tokens, lengths: Lengths) -> tuple[Float[Tensor, "B T d_model"], None]:
        """Return the states, which no padding changes, and None: nobody asks for a summary here."""
        states, _ = self.stack(self.embedding(source), attn_mask=masks.padding(lengths, source.shape[1]))
        return states, None


class Memory(NamedTuple):
    """What a ``Writer`` keeps of the source: the encoder's states, and who of them is padding."""

    states: Float[Tensor, "B T_k d_model"]
    mask: Bool[Tensor, "B 1 T_k"]


class Writer(nn.Module):
    """The decoder of a ``Transformer``: the tokens written so far in, the next one's logits out."""

    def __init__(self, embedding: Embedding, stack: Decoder, *, tied: bool) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.output = _output(embedding, tied)

    def remember(self, states: Float[Tensor, "B T_k d_model"], summary: None, lengths: Lengths) -> Memory:
        """Return the states with the mask that hides their padding."""
        return Memory(states, masks.padding(lengths, states.shape[1]))

    def forward(
        self,
        previous: Int[Tensor, "B T_q"],
        memory: Memory,
        state: Int[Tensor, "B T"] | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T_q vocabulary"], list[DecoderWeights] | None, Int[Tensor, "B T_all"]]:
        """Return the next tokens' logits, the weights if asked for, and all tokens so far.

        Shapes: previous [B, T_q], state [B, T] or ``None`` at the start -> logits [B, T_q,
        num_tokens], one entry of weights per layer, tokens [B, T + T_q]. The state is no more than
        the tokens before ``previous``: all of them are computed again, which a cache would save.
        Padding behind the words of ``previous`` needs no mask, as it lies in every word's future.
        """
        tokens = previous if state is None else torch.cat((state, previous), dim=1)
        x, weights = self.stack(
            self.embedding(tokens), memory.states, memory_mask=memory.mask, need_weights=need_weights
        )
        new = tokens.shape[1] - previous.shape[1]
        if weights is not None:
            weights = [DecoderWeights(past[..., new:, :], source[..., new:, :]) for past, source in weights]
        return self.output(x[:, new:]), weights, tokens


class Transformer(EncoderDecoder):
    """An encoder-decoder of attention alone (Vaswani et al. 2017), with sinusoidal positions.

    It takes the place of a recurrent ``EncoderDecoder``: ``seq2seq.greedy`` decodes with both. Both
    sides have ``num_layers`` layers, with options as in ``EncoderLayer`` and ``DecoderLayer``. ``tied``
    makes the output the transpose of the target embedding; the paper, with one vocabulary for both
    languages, ties the source embedding as well.
    """

    def __init__(
        self,
        num_source: int,
        num_target: int,
        *,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        norm: Norm,
        tied: bool = True,
        dropout: float = 0.0,
        activation: Activation = F.relu,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
        window: int | None = None,
    ) -> None:
        sizes = (num_layers, d_model, num_heads, d_ff)
        options = {
            "norm": norm,
            "dropout": dropout,
            "activation": activation,
            "eps": eps,
            "num_kv_heads": num_kv_heads,
            "window": window,
        }
        embedding = partial(
            Embedding,
            d_model=d_model,
            positions=Sinusoidal(d_model),
            scale=math.sqrt(d_model),
            dropout=dropout,
        )
        super().__init__(
            Reader(embedding(num_source), Encoder(*sizes, **options)),
            Writer(embedding(num_target), Decoder(*sizes, **options), tied=tied),
        )


class LanguageModel(nn.Module):
    """An encoder's stack between an embedding and its transpose, with learned positions.

    Causal, it predicts the next token at every place (GPT); otherwise every token sees all others,
    and it can fill in tokens that were blotted out (BERT). Options as in ``EncoderLayer``.
    """

    def __init__(
        self,
        num_tokens: int,
        max_length: int,
        *,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        is_causal: bool,
        norm: Norm,
        dropout: float = 0.0,
        activation: Activation = F.relu,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(num_tokens, d_model, Learned(max_length, d_model), dropout=dropout)
        self.stack = Encoder(
            num_layers,
            d_model,
            num_heads,
            d_ff,
            norm=norm,
            dropout=dropout,
            activation=activation,
            eps=eps,
            num_kv_heads=num_kv_heads,
            window=window,
        )
        self.output = _output(self.embedding, tied=True)
        self.is_causal = is_causal

    def forward(
        self, tokens: Tokens, lengths: Lengths | None = None, *, caches: Sequence[Cache] | None = None
    ) -> Logits:
        """Return logits [B, T, num_tokens] for tokens [B, T], of which ``lengths`` [B] are no padding.

        With ``caches``, one per layer (``decoding.caches_for``), ``tokens`` are the new ones, which
        follow those that the caches hold. Only a causal model without ``lengths`` can use them;
        anything else is a ``ValueError``.
        """
        if caches is not None and lengths is not None:
            raise ValueError("lengths must be None with caches: all sentences of the batch grow together")
        mask = None if lengths is None else masks.padding(lengths, tokens.shape[1])
        start = caches[0].length if caches else 0
        x = self.embedding(tokens, start=start)
        states, _ = self.stack(x, attn_mask=mask, is_causal=self.is_causal, caches=caches)
        return self.output(states)


def bert_like(
    num_tokens: int,
    max_length: int,
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_kv_heads: int | None = None,
    window: int | None = None,
) -> LanguageModel:
    """Return an encoder alone, wired as BERT (Devlin et al. 2019): all see all, post-norm, GELU.

    Options as in ``EncoderLayer``. Left out: segments, the norm behind the embedding, the pooler, the
    extra layer before the output.
    """
    return LanguageModel(
        num_tokens,
        max_length,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        is_causal=False,
        norm="post",
        activation=F.gelu,
        num_kv_heads=num_kv_heads,
        window=window,
    )


def gpt_like(
    num_tokens: int,
    max_length: int,
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_kv_heads: int | None = None,
    window: int | None = None,
) -> LanguageModel:
    """Return a decoder without cross-attention, wired as GPT-2 (Radford et al. 2019): causal, pre-norm.

    Options as in ``EncoderLayer``. Left out: smaller first weights for deeper models.
    """
    return LanguageModel(
        num_tokens,
        max_length,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        is_causal=True,
        norm="pre",
        activation=partial(F.gelu, approximate="tanh"),
        num_kv_heads=num_kv_heads,
        window=window,
    )


def t5_like(
    num_tokens: int,
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_kv_heads: int | None = None,
    window: int | None = None,
) -> Transformer:
    """Return an encoder-decoder, wired as T5 (Raffel et al. 2020): pre-norm, one embedding for all.

    Options as in ``EncoderLayer`` and ``DecoderLayer``. Left out: T5 has a learned bias for each
    distance in place of sinusoids, norms without a mean, and no biases in its linear maps.
    """
    model = Transformer(
        num_tokens,
        num_tokens,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        norm="pre",
        num_kv_heads=num_kv_heads,
        window=window,
    )
    model.encoder.embedding = model.decoder.embedding
    return model


def _output(embedding: Embedding, tied: bool) -> nn.Linear:
    output = Linear(embedding.table.embedding_dim, embedding.table.num_embeddings, bias=False)
    if tied:
        output.weight = embedding.table.weight  # one parameter with two uses (Press and Wolf 2017)
    return output


def _final_norm(num_layers: int, d_model: int, norm: Norm, eps: float) -> nn.Module:
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    return nn.LayerNorm(d_model, eps=eps) if norm == "pre" else nn.Identity()


def _check_caches(caches: Sequence[Cache], num_layers: int) -> None:
    if len(caches) != num_layers:
        raise ValueError(f"caches must be one per layer, {num_layers}, got {len(caches)}")
    if len(set(map(id, caches))) != num_layers:
        raise ValueError("caches must be a cache of its own for every layer, got one of them twice")
    lengths = [cache.length for cache in caches]
    if len(set(lengths)) != 1:
        raise ValueError(f"caches must all have seen the same number of tokens, got {lengths}")


def _options_of(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> dict[str, Any]:
    """The arguments that make one of our layers of the size and kind of torch's."""
    if layer.linear1.bias is None:
        raise ValueError("a layer with bias=False has no counterpart here")
    return {
        "d_model": layer.self_attn.embed_dim,
        "num_heads": layer.self_attn.num_heads,
        "d_ff": layer.linear1.out_features,
        "norm": "pre" if layer.norm_first else "post",
        "dropout": layer.dropout1.p,
        "activation": layer.activation,
        "eps": layer.norm1.eps,
    }


def _copy(theirs: nn.Module, ours: nn.Module) -> None:
    ours.load_state_dict(theirs.state_dict())


def _check_norm(norm: str) -> None:
    if norm not in ("pre", "post"):
        raise ValueError(f'norm must be "pre" or "post", got {norm!r}')


def _check_window(window: int | None) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")


def _check_stream(name: str, x: Tensor, norm: nn.LayerNorm) -> None:
    (d_model,) = norm.normalized_shape
    if x.dim() < 2 or x.shape[-1] != d_model:
        raise ValueError(f"{name} must have shape [..., T, d_model={d_model}], got {tuple(x.shape)}")
    # Under autocast some inputs come from narrowed layers and others do not.
    if x.dtype != norm.weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"{name} must have the layer's dtype {norm.weight.dtype}, got {x.dtype}")

"""Models of layers: encoder and decoder for translation, and one stack for BERT and GPT."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_course import masks
from attention_course.heads import Cache
from attention_course.positions import Learned, Rotary, Sinusoidal
from attention_course.seq2seq import EncoderDecoder
from attention_course.transformer.layers import DecoderWeights, FeedForward, GatedFeedForward, LayerConfig
from attention_course.transformer.stacks import Decoder, Embedding, Encoder, Tokens, Trace

Lengths = Int[Tensor, " B"]
Logits = Float[Tensor, "B T vocabulary"]


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
    sides have ``num_layers`` layers of ``config``, whose dropout is the embeddings' too. ``tied`` makes
    the output the transpose of the target embedding; the paper, with one vocabulary for both languages,
    ties the source embedding as well.
    """

    def __init__(
        self, num_source: int, num_target: int, num_layers: int, config: LayerConfig, *, tied: bool = True
    ) -> None:
        embedding = partial(
            Embedding,
            d_model=config.d_model,
            positions=Sinusoidal(config.d_model),
            scale=math.sqrt(config.d_model),
            dropout=config.dropout,
        )
        super().__init__(
            Reader(embedding(num_source), Encoder(num_layers, config)),
            Writer(embedding(num_target), Decoder(num_layers, config), tied=tied),
        )


class LanguageModel(nn.Module):
    """An embedding, a stack of encoder layers, and logits for every token.

    Causal, it predicts the next token at every place (GPT); otherwise every token sees all others,
    and it can fill in tokens that were blotted out (BERT). Positions are the embedding's, or the
    config's ``rotation`` or ``score_bias``. ``tied``, the output is the embedding's transpose.
    """

    def __init__(
        self,
        embedding: Embedding,
        num_layers: int,
        config: LayerConfig,
        *,
        is_causal: bool,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = Encoder(num_layers, config)
        self.output = _output(embedding, tied)
        self.is_causal = is_causal

    def forward(
        self,
        tokens: Tokens,
        lengths: Lengths | None = None,
        *,
        segments: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
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
        x = self.embedding(tokens, segments=segments, start=start)
        states, _ = self.stack(x, attn_mask=mask, is_causal=self.is_causal, caches=caches)
        return self.output(states)

    def trace(
        self, tokens: Tokens, lengths: Lengths | None = None, *, segments: Tokens | None = None
    ) -> Trace:
        """Return the logits with the states and weights of every layer; arguments as in ``forward``."""
        mask = None if lengths is None else masks.padding(lengths, tokens.shape[1])
        x = self.embedding(tokens, segments=segments)
        top, states, weights = self.stack.trace(x, attn_mask=mask, is_causal=self.is_causal)
        return Trace(self.output(top), states, weights)


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

    Options as in ``LayerConfig``. Left out: segments, the norm behind the embedding, the pooler, the
    extra layer before the output.
    """
    config = LayerConfig(
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        norm="post",
        feed_forward=partial(FeedForward, activation=F.gelu),
        num_kv_heads=num_kv_heads,
        window=window,
    )
    embedding = Embedding(num_tokens, d_model, Learned(max_length, d_model))
    return LanguageModel(embedding, num_layers, config, is_causal=False)


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

    Options as in ``LayerConfig``. Left out: smaller first weights for deeper models.
    """
    config = LayerConfig(
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        norm="pre",
        feed_forward=partial(FeedForward, activation=partial(F.gelu, approximate="tanh")),
        num_kv_heads=num_kv_heads,
        window=window,
    )
    embedding = Embedding(num_tokens, d_model, Learned(max_length, d_model))
    return LanguageModel(embedding, num_layers, config, is_causal=True)


def llama_like(
    num_tokens: int,
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_kv_heads: int | None = None,
    window: int | None = None,
) -> LanguageModel:
    """Return a decoder without cross-attention, wired as Llama 2 (Touvron et al. 2023): no bias anywhere.

    Causal and pre-norm as ``gpt_like``, with root-mean-square norms, SwiGLU, rotary positions and an
    output of its own. Options as in ``LayerConfig``; ``d_ff`` is the width of each of the gated
    network's two inner layers.
    """
    config = LayerConfig(
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        norm="pre",
        norm_layer=partial(nn.RMSNorm, eps=1e-5),
        feed_forward=GatedFeedForward,
        num_kv_heads=num_kv_heads,
        bias=False,
        rotation=Rotary(d_model // num_heads),
        window=window,
    )
    return LanguageModel(Embedding(num_tokens, d_model), num_layers, config, is_causal=True, tied=False)


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

    Options as in ``LayerConfig``. Left out: T5 has a learned bias for each
    distance in place of sinusoids, norms without a mean, and no biases in its linear maps.
    """
    config = LayerConfig(
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        norm="pre",
        num_kv_heads=num_kv_heads,
        window=window,
    )
    model = Transformer(num_tokens, num_tokens, num_layers, config)
    model.encoder.embedding = model.decoder.embedding
    return model


def _output(embedding: Embedding, tied: bool) -> nn.Linear:
    output = nn.Linear(embedding.table.embedding_dim, embedding.table.num_embeddings, bias=False)
    if tied:
        output.weight = embedding.table.weight  # one parameter with two uses (Press and Wolf 2017)
    return output

"""The Transformer, from top to bottom: layers on a residual stream, stacks of layers, models."""

from attention_course.transformer.layers import (
    CrossAttentionLayer,
    DecoderLayer,
    DecoderWeights,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    LayerConfig,
    Residual,
)
from attention_course.transformer.models import (
    LanguageModel,
    Memory,
    Reader,
    Transformer,
    Writer,
    bert_like,
    gpt_like,
    llama_like,
    t5_like,
)
from attention_course.transformer.stacks import Decoder, Embedding, Encoder, Trace

__all__ = [
    "CrossAttentionLayer",
    "Decoder",
    "DecoderLayer",
    "DecoderWeights",
    "Embedding",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GatedFeedForward",
    "LanguageModel",
    "LayerConfig",
    "Memory",
    "Reader",
    "Residual",
    "Trace",
    "Transformer",
    "Writer",
    "bert_like",
    "gpt_like",
    "llama_like",
    "t5_like",
]

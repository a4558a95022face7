"""What weights say of an answer: other weights with the same answer, erased tokens, and sinks.

Chapter 12 asks these of a small classifier that it trains, and of a pretrained encoder.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attention_course.inputs import check_range
from attention_course.inside.attribution import norms, weights_times_gradient
from attention_course.inside.paths import rollout
from attention_course.inside.pretrained import BertEncoder
from attention_course.inside.recording import Layer, record, weights_of

#: cue words of each class, the first tokens of the vocabulary; all others say nothing
CUES = 6
WORDS = 2 * CUES + 72
LENGTH = 16


class Cued(NamedTuple):
    """Sentences without order or grammar, and the class that their cue words give away."""

    tokens: Int[Tensor, "B T"]
    label: Int[Tensor, " B"]


def cued(size: int, cues: int, generator: torch.Generator) -> Cued:
    """Return ``size`` sentences of 16 different words, ``cues`` of them cue words of the sentence's class.

    Tokens 0 to 5 are the cue words of class 0, 6 to 11 those of class 1. Raises a ``ValueError`` for
    fewer than one cue word or more than there are.
    """
    check_range("cues", torch.tensor(cues), 1, CUES)
    label = torch.randint(2, (size,), generator=generator)
    plain = torch.rand(size, WORDS - 2 * CUES, generator=generator).argsort(-1)[:, :LENGTH] + 2 * CUES
    chosen = torch.rand(size, CUES, generator=generator).argsort(-1)[:, :cues] + CUES * label[:, None]
    place = torch.rand(size, LENGTH, generator=generator).argsort(-1)[:, :cues]
    return Cued(plain.scatter(1, place, chosen), label)


def most_different(
    weights: Float[Tensor, "B T"],
    scores: Float[Tensor, "B T"],
    low: Float[Tensor, " B"],
    high: Float[Tensor, " B"],
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B T"]]:
    """Return ``(divergence, alternative)``: other weights β, as unlike ``weights`` as can be, same answer.

    The answer Σ β_j scores_j has to lie from ``low`` to ``high``. The Jensen–Shannon divergence is convex
    in β, so a corner of what is allowed is farthest away; a corner is one token alone, or two that give
    ``low`` or ``high`` exactly. All of them are tried, in float64. Raises a ``ValueError`` where no weights
    give such an answer.
    """
    weights, scores, low, high = (x.double() for x in (weights, scores, low, high))
    T = weights.shape[-1]
    alone = torch.eye(T, dtype=weights.dtype, device=weights.device)
    corners = [alone.expand(len(weights), T, T)]
    allowed = [(scores >= low[:, None]) & (scores <= high[:, None])]
    for answer in (low[:, None, None], high[:, None, None]):
        one, other = scores[:, :, None], scores[:, None, :]
        across = (one <= answer) & (answer < other)
        share = torch.where(across, (answer - one) / torch.where(across, other - one, 1.0), 0.0).unsqueeze(-1)
        pair = (1 - share) * alone[:, None] + share * alone  # [B, T, T, T]
        corners.append(pair.flatten(1, 2))
        allowed.append(across.flatten(1))
    corner, possible = torch.cat(corners, 1), torch.cat(allowed, 1)
    if not possible.any(-1).all():
        raise ValueError("low and high must enclose an answer that some weights give, in every sentence")
    found = jensen_shannon(corner, weights[:, None]).masked_fill(~possible, -1)
    divergence, index = found.max(-1)
    return divergence, corner[torch.arange(len(corner), device=index.device), index]


def jensen_shannon(p: Float[Tensor, "... T"], q: Float[Tensor, "... T"]) -> Float[Tensor, "..."]:
    """Return the Jensen–Shannon divergence of two distributions, in nats: from 0 to log 2."""
    between = torch.special.entr((p + q) / 2) - (torch.special.entr(p) + torch.special.entr(q)) / 2
    return between.sum(-1).clamp(min=0)


def can_lose_top(
    weights: Float[Tensor, "B T"],
    scores: Float[Tensor, "B T"],
    low: Float[Tensor, " B"],
    high: Float[Tensor, " B"],
) -> Bool[Tensor, " B"]:
    """Return whether the same answer can be had with nothing on the token that has most weight."""
    top = weights.argmax(-1, keepdim=True)
    largest = scores.scatter(1, top, -torch.inf).amax(-1)
    least = scores.scatter(1, top, torch.inf).amin(-1)
    return (largest >= low) & (least <= high)


@torch.no_grad()
def erasure(model: BertEncoder, tokens: Int[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Return how far the sentence's embedding turns, 1 − cosine, when each token is erased by itself.

    An erased token is masked in every layer, so that nobody reads it, and left out of the mean; the
    others keep their places. One batch of T + 1 sentences, the whole one last.
    """
    T = len(tokens)
    kept = torch.cat((~torch.eye(T, dtype=torch.bool), torch.ones(1, T, dtype=torch.bool))).to(tokens.device)
    states, _ = model(tokens.expand(T + 1, T), attn_mask=kept.unsqueeze(1))
    embedding = F.normalize((states * kept.unsqueeze(-1)).sum(1), dim=-1)
    return 1 - embedding[:-1] @ embedding[-1]


def importances(model: BertEncoder, tokens: Int[Tensor, " T"]) -> dict[str, Float[Tensor, " T"]]:
    """Return what each way of reading weights, and two that read none, says of every token of a sentence.

    All are means over queries, heads and layers, but for the last layer's. The gradient is that of the
    mean state's length along its own direction. Rollout is that of the weights, of the weights without
    the first token's column, and of the norms. The controls are the token's place and its number, which
    is its rank in a vocabulary sorted by frequency.
    """
    with torch.enable_grad():
        (states, _), layers = record(model, tokens[None])
        pooled = states[0].mean(0)
        gradient = weights_times_gradient(layers, pooled @ F.normalize(pooled.detach(), dim=-1))
    with torch.no_grad():
        weights = weights_of(layers)[:, 0].detach()  # [layers, h, T, T]
        added = torch.stack([norms(layer, summed=True)[0] for layer in layers])  # [layers, T, T]
        looks = torch.stack([one[0].abs().sum(0) for one in gradient])
        no_sink = torch.arange(len(tokens), device=tokens.device) > 0
        return {
            "norms of what is added": added.mean((0, 1)),
            "weights, all layers": weights.mean((0, 1, 2)),
            "weights, last layer": weights[-1].mean((0, 1)),
            "weights × gradient": looks.mean((0, 1)),
            "rollout": rollout(weights.mean(1)).mean(0),
            "rollout, without [CLS]": rollout(_shares(weights.mean(1) * no_sink)).mean(0),
            "rollout of norms": rollout(_shares(added)).mean(0),
            "control: rarity": tokens.float(),
            "control: place": torch.arange(len(tokens), device=tokens.device).float(),
        }


def _shares(looks: Float[Tensor, "layers T T"]) -> Float[Tensor, "layers T T"]:
    """Rows divided by their sums."""
    return looks / looks.sum(-1, keepdim=True)


def spearman(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return the rank correlation of two lists, equal values sharing their mean rank; 0 for a constant list.

    Raises a ``ValueError`` for lists of fewer than two or of different lengths.
    """
    if x.shape != y.shape or x.dim() != 1 or len(x) < 2:
        raise ValueError(
            f"x and y must be equally long, with two values at least, got {tuple(x.shape)}, {tuple(y.shape)}"
        )
    one, other = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    size = one.norm() * other.norm()
    return (one @ other) / size if size > 0 else size


def agreement(
    model: BertEncoder, sentences: Sequence[Int[Tensor, " _"]]
) -> tuple[dict[str, Float[Tensor, " n"]], dict[str, Bool[Tensor, " n"]], Float[Tensor, " n"]]:
    """Return ``(correlation, first, chance)`` of each way of reading weights with erasure, by sentence.

    ``correlation`` is Spearman's, over a sentence's tokens but [CLS] and [SEP]; ``first`` says whether
    the token named first is the one whose erasure moves the embedding most; ``chance`` is one in as many.
    """
    correlation: dict[str, list] = {}
    first: dict[str, list] = {}
    for tokens in sentences:
        moved = erasure(model, tokens)[1:-1]
        for name, importance in importances(model, tokens).items():
            inner = importance[1:-1]
            correlation.setdefault(name, []).append(spearman(inner, moved))
            first.setdefault(name, []).append(inner.argmax() == moved.argmax())
    chance = torch.tensor([1 / (len(tokens) - 2) for tokens in sentences])
    return (
        {name: torch.stack(values) for name, values in correlation.items()},
        {name: torch.stack(values) for name, values in first.items()},
        chance,
    )


@torch.no_grad()
def share_of(
    layers: Sequence[Layer], place: int
) -> tuple[Float[Tensor, " layers"], Float[Tensor, " layers"]]:
    """Return a token's share of the weights, and of what is added, layer by layer.

    For one sentence without padding, averaged over heads and queries; what is added is measured by
    ‖α_ij v_j W_O‖ (Kobayashi et al. 2020), as a share of its row's sum.
    """
    weights, added = [], []
    for layer in layers:
        length = norms(layer)
        weights.append(layer.weights[..., place].mean())
        added.append((length / length.sum(-1, keepdim=True))[..., place].mean())
    return torch.stack(weights), torch.stack(added)


def _ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    below = (values[:, None] > values).sum(-1)
    same = (values[:, None] == values).sum(-1)
    return below + (same + 1) / 2

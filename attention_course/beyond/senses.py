"""Two senses: matching what was seen with what was said, and letting words look at images.

Matching needs no attention between the two, only a vector of each (CLIP). Where words are to look at
images there are two ways: cross-attention beside the words' own (``transformer.CrossAttentionLayer``, with
Flamingo's gates if one likes), or image tokens in front of the words and one self-attention for all, in
which case a mask says who may look at whom (LLaVA's order, with images that see each other).
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_course.inputs import check_alike, check_at_least
from attention_course.transformer import CrossAttentionLayer, LanguageModel, LayerConfig


def contrastive_loss(
    image: Float[Tensor, "B d"], text: Float[Tensor, "B d"], temperature: float | Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Return the cross-entropy of finding each image's text and each text's image, the mean of the two.

    Shapes: image and text [B, d], row i of one belonging to row i of the other -> a scalar. The scores
    are cosines divided by ``temperature`` (Radford et al. 2021, figure 3, where they are multiplied by
    its inverse). All other rows of the batch count as wrong, also one that says the same. Raises a
    ``ValueError`` for shapes that differ, for no pair at all, or a temperature that is not above 0.
    """
    _check_pairs(image, text)
    if isinstance(temperature, Tensor) and temperature.numel() != 1:
        raise ValueError(f"temperature must be a single number, got shape {tuple(temperature.shape)}")
    # What only has a shape cannot be read, and what is being compiled must not be.
    unread = isinstance(temperature, Tensor) and (temperature.is_meta or torch.compiler.is_compiling())
    if not unread and not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {float(temperature)}")
    scores = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).mT / temperature  # [B, B]
    own = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.mT, own)) / 2


def own_is_nearest(image: Float[Tensor, "B d"], text: Float[Tensor, "B d"]) -> Bool[Tensor, " B"]:
    """Return for each image whether its own text is nearer, by cosine, than every other one.

    Shapes: image and text [B, d], row i of one belonging to row i of the other -> [B]. A tie counts as
    a miss, so that vectors which are all alike find nothing. Raises a ``ValueError`` for shapes that
    differ, or fewer than two pairs, among which there is nothing to find.
    """
    _check_pairs(image, text)
    check_at_least(2, **{"the number of pairs": len(image)})
    scores = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).mT  # [B, B]
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return scores.diagonal() > scores.masked_fill(own, -math.inf).amax(-1)


def retrieval_at_1(image: Float[Tensor, "B d"], text: Float[Tensor, "B d"]) -> float:
    """Return which share of all images has its own text as the nearest one, as in ``own_is_nearest``.

    Exchange the two to look for images. Raises a ``ValueError`` as ``own_is_nearest`` does.
    """
    return own_is_nearest(image, text).double().mean().item()


def image_prefix_mask(
    images: int, words: int, *, device: torch.device | str | None = None
) -> Bool[Tensor, "T T"]:
    """Return who may look at whom where image tokens stand in front of words, T = images + words.

    Shape [images + words, images + words], True = may look: image tokens see all image tokens and no word;
    a word sees all image tokens and the words up to itself (Raffel et al. 2020, figure 3: "causal
    with prefix"). Raises a ``ValueError`` for a negative number.
    """
    check_at_least(0, images=images, words=words)
    place = torch.arange(images + words, device=device)
    return (place < images) | (place <= place[:, None])


class TextWithCrossAttention(nn.Module):
    """A causal text model with one more layer below each of its own, which lets words look at images.

    ``config`` is that of the text model's layers; images of width ``d_image`` are brought to its width
    first. ``gated``, the new layers say nothing until their gates open (Alayrac et al. 2022, figure 4). The
    text model is shared, not copied: whether it learns too is the caller's to say.
    """

    def __init__(self, text: LanguageModel, config: LayerConfig, d_image: int, *, gated: bool) -> None:
        super().__init__()
        self.text = text
        self.projection = nn.Linear(d_image, config.d_model)
        self.looks = nn.ModuleList(CrossAttentionLayer(config, gated=gated) for _ in text.stack.layers)

    def forward(
        self, words: Int[Tensor, "B T"], image: Float[Tensor, "B I d_image"] | None = None
    ) -> Float[Tensor, "B T vocabulary"]:
        """Return the next words' logits; without an image the new layers are left out.

        Shapes: words [B, T], image [B, I, d_image] -> [B, T, vocabulary].
        """
        x = self.text.embedding(words)
        seen = None if image is None else self.projection(image)
        for look, layer in zip(self.looks, self.text.stack.layers, strict=True):
            if seen is not None:
                x, _ = look(x, seen)
            x, _ = layer(x, is_causal=True)
        return self.text.output(self.text.stack.final_norm(x))


class TextWithPrefix(nn.Module):
    """A causal text model that reads image tokens in front of its words (Liu et al. 2023, section 4.1).

    Nothing is new but a linear map from ``d_image`` to the text model's width: its own self-attention
    looks at images, as ``image_prefix_mask`` allows. Words keep the positions that they had without an
    image. The text model is shared, not copied: whether it learns too is the caller's to say.
    """

    def __init__(self, text: LanguageModel, d_image: int) -> None:
        super().__init__()
        self.text = text
        self.projection = nn.Linear(d_image, text.embedding.table.embedding_dim)

    def forward(
        self, words: Int[Tensor, "B T"], image: Float[Tensor, "B I d_image"] | None = None
    ) -> Float[Tensor, "B T vocabulary"]:
        """Return the next words' logits, with an image in front of them or without.

        Shapes: words [B, T], image [B, I, d_image] -> [B, T, vocabulary].
        """
        x = self.text.embedding(words)
        images = 0 if image is None else image.shape[1]
        if image is not None:
            x = torch.cat((self.projection(image), x), 1)  # [B, I + T, d_model]
        mask = image_prefix_mask(images, words.shape[1], device=words.device)
        states, _ = self.text.stack(x, attn_mask=mask)
        return self.text.output(states[:, images:])


def _check_pairs(image: Tensor, text: Tensor) -> None:
    if image.dim() != 2 or image.shape != text.shape:
        raise ValueError(
            "image and text must have the same shape [B, d], got "
            f"image {tuple(image.shape)} and text {tuple(text.shape)}"
        )
    check_at_least(1, **{"the number of pairs": len(image)})
    check_alike("text", text, "the image's", image)

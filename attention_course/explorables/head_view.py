"""Chapter 12's explorable: every head of a model on a sentence, and where each token looks."""

import base64
import html
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attention_course.explorables.base import Explorable, explorable

#: How far a row of weights may be from 1: half precision rounds sums of many small weights.
_TOLERANCE = 1e-2


def head_view(
    sentences: Sequence[tuple[Sequence[str], Float[Tensor, "L h _T _T"]]],
    *,
    names: Sequence[str] | None = None,
    start: tuple[int, int, int] = (0, 0, 0),
) -> Explorable:
    """Return the figure in which a reader picks a head and steps through a sentence's tokens.

    ``sentences`` holds pairs of tokens (T strings) and the weights of all heads ([L, h, T, T],
    queries before keys); T may differ between sentences, L and h may not. ``names`` is what the
    sentences are called, otherwise their tokens. ``start`` is the layer, head and token that the
    figure begins with, counted from 0 as the weights are; the figure itself counts from 1.

    Raises ``TypeError`` for weights that are no floating-point tensor, and ``ValueError`` for
    weights whose shape does not fit the tokens or the other sentences, that are not finite, or
    whose rows sum to neither 1 nor 0; for names that are too few or too many, and for a ``start``
    outside. Source: after the head view of Vig 2019, "A multiscale visualization of attention".
    """
    if not sentences:
        raise ValueError("sentences must hold at least one pair (tokens, weights), got none")
    for number, (tokens, weights) in enumerate(sentences, 1):
        _check(number, tokens, weights)
    layers, heads = sentences[0][1].shape[:2]
    for number, (_, weights) in enumerate(sentences, 1):
        if weights.shape[:2] != (layers, heads):
            raise ValueError(
                f"all sentences must have as many layers and heads as sentence 1, which has {layers} and "
                f"{heads}; sentence {number} has weights of shape {tuple(weights.shape)}"
            )
    if names is not None and len(names) != len(sentences):
        raise ValueError(
            f"names must hold one name for each of the {len(sentences)} sentences, got {len(names)}"
        )
    bounds = (layers, heads, len(sentences[0][0]))
    if len(start) != 3 or not all(0 <= place < bound for place, bound in zip(start, bounds, strict=True)):
        raise ValueError(
            f"start must be (layer, head, token) below {bounds}, counted from 0, got {tuple(start)}"
        )
    data = {
        "sentences": [
            {
                "name": " ".join(tokens) if names is None else names[number],
                "tokens": list(tokens),
                **_packed(weights),
            }
            for number, (tokens, weights) in enumerate(sentences)
        ],
        "layers": layers,
        "heads": heads,
        "start": list(start),
    }
    tokens, weights = sentences[0]
    return explorable("head_view", data, _fallback(tokens, weights, start))


def _check(number: int, tokens: Sequence[str], weights: Tensor) -> None:
    """Raise an error that says what is wrong with sentence ``number`` (counted from 1), if anything is."""
    of = f"weights of sentence {number}"
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        kind = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"{of} must be a floating-point tensor, got {kind}")
    if weights.ndim != 4 or 0 in weights.shape:
        raise ValueError(
            f"{of} must have the four dimensions [L, h, T, T], none of them empty, "
            f"got shape {tuple(weights.shape)}"
        )
    T = len(tokens)
    if weights.shape[2:] != (T, T):
        raise ValueError(
            f"{of} must be [L, h, {T}, {T}] for its {T} tokens, got shape {tuple(weights.shape)}"
        )
    if not weights.isfinite().all():
        raise ValueError(f"{of} must be finite, got {weights[~weights.isfinite()][0].item()}")
    if (weights < 0).any():
        raise ValueError(f"{of} must not be negative, got {weights.min().item():.3g}")
    sums = weights.detach().float().sum(-1)
    wrong = torch.minimum((sums - 1).abs(), sums.abs()) > _TOLERANCE
    if wrong.any():
        layer, head, query = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"every row of the {of} must sum to 1, or to 0 where a query may look nowhere; "
            f"weights[{layer}, {head}, {query}] sums to {sums[layer, head, query]:.3f}"
        )


def _packed(weights: Float[Tensor, "L h T T"]) -> dict[str, str]:
    """Return the weights and what each key receives from all queries, as base64.

    A weight takes 8 bits: it is wrong by at most 1/510. The T errors of a column may add up, so
    its sum, at most T, is sent beside it in 16 bits.
    """
    weights = weights.detach().float().clamp(max=1)
    T = weights.shape[-1]
    bytes_of_weights = (weights * 255).round().to(torch.uint8).cpu().numpy().tobytes()
    received = (weights.sum(-2) * (65535 / T)).round().cpu().numpy().astype("<u2").tobytes()
    return {
        "weights": base64.b64encode(bytes_of_weights).decode(),
        "received": base64.b64encode(received).decode(),
    }


def _fallback(tokens: Sequence[str], weights: Tensor, start: tuple[int, int, int]) -> str:
    """Return in words what one head does, for wherever the picture cannot move."""
    layer, head, _ = start
    largest, places = weights[layer, head].detach().float().max(-1)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(token)}</th><td>{html.escape(tokens[place])}</td>'
        f"<td>{weight:.2f}</td></tr>"
        for token, weight, place in zip(tokens, largest.tolist(), places.tolist(), strict=True)
    )
    return (
        "<p><em>Here stands a figure that needs JavaScript: all heads of a model, and where each token "
        "looks. It moves in the built book, in Jupyter and in Colab.</em></p>"
        f"<table><caption>Where each token looks most in layer {layer + 1}, head {head + 1}</caption>"
        '<tr><th scope="col">token</th><th scope="col">looks most at</th><th scope="col">weight</th></tr>'
        f"{rows}</table>"
    )

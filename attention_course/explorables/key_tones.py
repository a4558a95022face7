"""Chapter 15's explorable: key tones in noise, heard and seen, and where the model looked for each key."""

import base64
import html
import io
import wave
from collections.abc import Sequence
from typing import NamedTuple

from numpy.typing import ArrayLike
from torch import Tensor

from attention_course.explorables.base import Explorable, explorable, in_bytes, numbers

#: A page carries every clip: no more than so many bytes each.
_MOST = 20_000


class Clip(NamedTuple):
    """A clip whose tones stand ``decibels`` above the noise, and what a model made of it.

    ``wave`` [samples] from -1 to 1, ``spectrogram`` [frames, bands], ``weights`` [keys, states] with
    one row for each key that was ``said``; a state stands for ``frames_per_state`` frames.
    """

    decibels: float
    wave: ArrayLike
    sample_rate: int
    spectrogram: ArrayLike
    weights: ArrayLike
    frames_per_state: float
    said: Sequence[str]
    right: Sequence[str]


def key_tones(clips: Sequence[Clip]) -> Explorable:
    """Return the figure that plays the clips and shows spectrogram, alignment and what was said.

    The spectrograms share one scale, up from the lowest of their 5 % quantiles. Raises
    ``ValueError`` for no clip, for arrays with other dimensions or numbers outside their bounds, for
    weights that are not one row a key said or whose rows do not sum to 1, and for a wave of more than
    20 kB at 8 bits a sample. Source: after figure 2 of Chan et al. 2016, "Listen, attend and spell".
    """
    if not clips:
        raise ValueError("clips must hold at least one Clip, got none")
    pictures = [
        numbers(f"spectrogram of clip {i}", clip.spectrogram, "frames bands")
        for i, clip in enumerate(clips, 1)
    ]
    low = min(picture.quantile(0.05).item() for picture in pictures)
    high = max(picture.max().item() for picture in pictures)
    data = []
    for i, (clip, picture) in enumerate(zip(clips, pictures, strict=True), 1):
        weights = _weights(i, clip)
        if clip.frames_per_state <= 0:
            raise ValueError(f"frames_per_state of clip {i} must be above 0, got {clip.frames_per_state}")
        data.append(
            {
                "decibels": clip.decibels,
                "wave": _wav(i, clip),
                "seconds": len(clip.wave) / clip.sample_rate,
                "spectrogram": in_bytes(((picture - low) / max(high - low, 1e-9)).clamp(0, 1)),
                "frames": picture.shape[0],
                "bands": picture.shape[1],
                "weights": in_bytes(weights),
                "states": weights.shape[1],
                "perState": clip.frames_per_state,
                "pairs": compare(clip.said, clip.right),
            }
        )
    return explorable("key_tones", {"clips": data}, _fallback(clips))


def _weights(number: int, clip: Clip) -> Tensor:
    weights = numbers(f"weights of clip {number}", clip.weights, "keys states", between=(0, 1))
    if len(weights) != len(clip.said):
        raise ValueError(
            f"weights of clip {number} must hold one row for each of the {len(clip.said)} keys said, "
            f"got {len(weights)}"
        )
    sums = weights.sum(1)
    if ((sums - 1).abs() > 1e-2).any():
        wrong = sums[(sums - 1).abs() > 1e-2][0].item()
        raise ValueError(f"every row of the weights of clip {number} must sum to 1, got {wrong:.3f}")
    return weights


def _wav(number: int, clip: Clip) -> str:
    """Return the wave as a WAV file of 8 bits a sample, in base64."""
    samples = numbers(f"wave of clip {number}", clip.wave, "samples", between=(-1, 1))
    if len(samples) > _MOST:
        raise ValueError(
            f"wave of clip {number} must have at most {_MOST} samples: shorten it or lower its rate, "
            f"got {len(samples)}"
        )
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(1)
        out.setframerate(clip.sample_rate)
        out.writeframes(bytes((128 + (127 * samples).round()).int().tolist()))  # 8 bits have no sign
    return base64.b64encode(file.getvalue()).decode()


def compare(said: Sequence[str], right: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Return what was said beside what is right, with the fewest differences; None is a gap.

    The pairs that differ are as many as the edit distance.
    """
    cost = [[i + j for j in range(len(right) + 1)] for i in range(len(said) + 1)]
    for i, a in enumerate(said, 1):
        for j, b in enumerate(right, 1):
            cost[i][j] = min(cost[i - 1][j - 1] + (a != b), cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    pairs, i, j = [], len(said), len(right)
    while i or j:
        if i and j and cost[i][j] == cost[i - 1][j - 1] + (said[i - 1] != right[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((said[i], right[j]))
        elif i and cost[i][j] == cost[i - 1][j] + 1:
            i -= 1
            pairs.append((said[i], None))
        else:
            j -= 1
            pairs.append((None, right[j]))
    return pairs[::-1]


def _fallback(clips: Sequence[Clip]) -> str:
    """Return what was said of each clip, for wherever the picture cannot move."""
    rows = "".join(
        f'<tr><th scope="row">{clip.decibels:g} dB</th><td>{html.escape(" ".join(clip.right))}</td>'
        f"<td>{html.escape(' '.join(clip.said)) or 'nothing'}</td></tr>"
        for clip in clips
    )
    return (
        "<p><em>Here stands a figure that needs JavaScript: key tones in noise, to hear and to see. It "
        "moves in the built book, in Jupyter and in Colab.</em></p>"
        "<table><caption>What a model heard, by how far the tones stand above the noise</caption>"
        '<tr><th scope="col">tones above noise</th><th scope="col">right</th><th scope="col">said</th></tr>'
        f"{rows}</table>"
    )

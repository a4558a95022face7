"""A sound that plays on a page: the wave lies in the page itself, so that no network is needed."""

import base64
import html
import io
import wave as wave_file
from collections.abc import Sequence
from typing import Any

import numpy as np
from IPython.display import HTML

#: 16 bits a sample
_LOUDEST = 2**15 - 1


def wav(samples: Sequence[float] | Any, rate: int) -> bytes:
    """Return ``samples`` [n] as a WAV file of one channel, as loud as its largest sample allows.

    Raises a ``ValueError`` for no samples, for other shapes, and where a sample is not finite.
    """
    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim != 1 or not samples.size or not np.isfinite(samples).all():
        raise ValueError(f"samples must be finite, in one row [n], got shape {samples.shape}")
    loudest = max(float(np.abs(samples).max()), 1e-9)
    buffer = io.BytesIO()
    with wave_file.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples / loudest * _LOUDEST).astype("<i2").tobytes())
    return buffer.getvalue()


def player(samples: Sequence[float] | Any, rate: int, label: str) -> HTML:
    """Return a player for ``samples`` [n] at ``rate`` samples a second, under its ``label``.

    Raises a ``ValueError`` without a label, and as ``wav`` does.
    """
    if not label.strip():
        raise ValueError("label must say in words what is heard, got an empty string")
    data = base64.b64encode(wav(samples, rate)).decode()
    words = html.escape(label, quote=True)
    style = "margin: 0.8em 0; text-align: center;"
    return HTML(
        f'<figure style="{style}"><figcaption>{words}</figcaption>'
        f'<audio controls preload="metadata" aria-label="{words}" style="max-width: 100%" '
        f'src="data:audio/wav;base64,{data}"></audio></figure>'
    )

"""Text that came from elsewhere, made fit to be shown."""

from typing import Any


def printable(value: Any, limit: int = 300) -> str:
    """``str(value)`` on one line, without control characters, cut to ``limit``; never raises."""
    try:
        text = str(value)
    except Exception:
        return "(its text could not be read)"
    text = " ".join(text[: 4 * limit].split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"

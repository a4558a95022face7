"""The book's colours: one meaning each, in every figure, formula and explorable.

Query blue, key orange, value green, weights purple (after Okabe and Ito's colour-blind-safe set), each with a
lighter twin for dark pages. Colour never carries a meaning alone: whatever is coloured is labelled too.

What is compared and is none of the four takes ink, muted, ochre and indigo, in this order.

Weights have one scale, the ramp: 0 is the page's own ground (``paper``), then ``weights``, and 1 is ``deep``.
"""

from collections.abc import Mapping

LIGHT = {
    "query": "#0072B2",
    "key": "#D55E00",
    "value": "#009E73",
    "weights": "#CC79A7",
    "ink": "#1F2328",
    "muted": "#5E6670",
    "line": "#C9CED4",
    "paper": "#FFFFFF",
    "deep": "#6B2850",
    "ochre": "#8C6D1F",
    "indigo": "#4B3FA7",
}

DARK = {
    "query": "#5CB8EE",
    "key": "#FF9A52",
    "value": "#3DCCA3",
    "weights": "#E6A6CB",
    "ink": "#E4E8EC",
    "muted": "#A6AFB9",
    "line": "#4A525C",
    "paper": "#14181E",
    "deep": "#FBE3F0",
    "ochre": "#D9B24C",
    "indigo": "#8C83F0",
}

#: The knee is the weight that gets ``weights`` itself: there, equal steps look about equally large.
#: Letters on a cell are ``on-low`` below the flip and ``on-high`` from it on; only there can both be read.
LIGHT_RAMP = {"knee": 0.5, "flip": 0.68, "on-low": "#000000", "on-high": "#FFFFFF"}
DARK_RAMP = {"knee": 0.78, "flip": 0.455, "on-low": "#FFFFFF", "on-high": "#000000"}

#: The ramp in CSS, for an element whose ``--w`` is its weight from 0 to 1: its ground, and letters on it.
CELL = (
    "color-mix(in srgb, var(--ac-deep)"
    " clamp(0%, 100% * (var(--w, 0) - var(--ac-knee)) / (1 - var(--ac-knee)), 100%),"
    " color-mix(in srgb, var(--ac-weights) clamp(0%, 100% * var(--w, 0) / var(--ac-knee), 100%),"
    " var(--ac-paper)))"
)
ON_CELL = (
    "color-mix(in srgb, var(--ac-on-high) clamp(0%, 1000000% * (var(--w, 0) - var(--ac-flip)), 100%),"
    " var(--ac-on-low))"
)

#: What says "this page is dark" in a built book, in JupyterLab and in Colab.
_DARK_PAGES = ('html[data-theme="dark"]', 'body[data-jp-theme-light="false"]', 'html[theme="dark"]')

#: What says "this page is light"; only a page that says neither follows the system's setting.
_LIGHT_PAGES = (
    'html[data-theme="light"]',
    'body[data-jp-theme-light="true"]',
    'html[theme="light"]',
)


def _variables(colours: Mapping[str, object]) -> str:
    return " ".join(f"--ac-{name}: {colour};" for name, colour in colours.items())


def css(scope: str) -> str:
    """Return a ``<style>`` element that defines ``--ac-query`` and the others inside ``scope``.

    ``scope`` is a CSS selector, such as ``".ac-figure"``. The dark twins hold on dark pages of the
    built book, JupyterLab and Colab, and elsewhere when the reader's system asks for dark.
    """
    light, dark = _variables(LIGHT | LIGHT_RAMP), _variables(DARK | DARK_RAMP)
    dark_pages = ", ".join(f"{page} {scope}" for page in _DARK_PAGES)
    light_pages = ", ".join(f"{page} {scope}" for page in _LIGHT_PAGES)
    return (
        "<style>"
        f"{scope} {{ {light} }} "
        f"@media (prefers-color-scheme: dark) {{ {scope} {{ {dark} }} }} "
        f"{light_pages} {{ {light} }} "
        f"{dark_pages} {{ {dark} }}"
        "</style>"
    )

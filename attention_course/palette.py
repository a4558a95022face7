"""The book's colours: one meaning each, in every figure, formula and explorable.

Query blue, key orange, value green, weights purple (after Okabe and Ito's colour-blind-safe set), each with a
lighter twin for dark pages. Colour never carries a meaning alone: whatever is coloured is labelled too.
"""

LIGHT = {
    "query": "#0072B2",
    "key": "#D55E00",
    "value": "#009E73",
    "weights": "#CC79A7",
    "ink": "#1F2328",
    "muted": "#5E6670",
    "line": "#C9CED4",
    "paper": "#FFFFFF",
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
}

#: What says "this page is dark" in a built book, in JupyterLab and in Colab.
_DARK_PAGES = ('html[data-theme="dark"]', 'body[data-jp-theme-light="false"]', 'html[theme="dark"]')

#: What says "this page is light"; only a page that says neither follows the system's setting.
_LIGHT_PAGES = (
    'html[data-theme="light"]',
    'body[data-jp-theme-light="true"]',
    'html[theme="light"]',
)


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--ac-{name}: {colour};" for name, colour in colours.items())


def css(scope: str) -> str:
    """Return a ``<style>`` element that defines ``--ac-query`` and the others inside ``scope``.

    ``scope`` is a CSS selector, such as ``".ac-figure"``. The dark twins hold on dark pages of the
    built book, JupyterLab and Colab, and elsewhere when the reader's system asks for dark.
    """
    dark_pages = ", ".join(f"{page} {scope}" for page in _DARK_PAGES)
    light_pages = ", ".join(f"{page} {scope}" for page in _LIGHT_PAGES)
    return (
        "<style>"
        f"{scope} {{ {_variables(LIGHT)} }} "
        f"@media (prefers-color-scheme: dark) {{ {scope} {{ {_variables(DARK)} }} }} "
        f"{light_pages} {{ {_variables(LIGHT)} }} "
        f"{dark_pages} {{ {_variables(DARK)} }}"
        "</style>"
    )

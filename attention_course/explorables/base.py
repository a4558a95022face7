"""What every explorable shares: its parts, its data and its colours become one piece of HTML.

The result needs no server, no kernel and no network. It lives in a shadow tree, so that neither the
page's styles nor a second copy of the same figure can reach into it.
"""

import base64
import json
import secrets
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from attention_course import palette

_PARTS = files(__package__) / "parts"

_SHELL = """\
{colours}
<style>{output}</style>
<div id="{uid}" class="ac-explorable" data-lm-suppress-shortcuts="true">
{fallback}
<template><style>
{style}
</style>
{markup}
</template>
</div>
<script>
(() => {{
const uid = "{uid}";
const data = {data};
{script}
}})();
</script>
"""

#: On dark pages the book's theme puts a light box behind HTML outputs; a figure has its own ground.
_OUTPUT = ".text_html:has(> #{uid}) {{ background: none !important; padding: 0 !important }}"


#: An element whose ``--w`` is a weight has its ground and its letters from these.
_RAMP = f"* {{ --ac-cell: {palette.CELL}; --ac-on-cell: {palette.ON_CELL}; }}\n"


@dataclass(frozen=True)
class Explorable:
    """A figure that a notebook shows as HTML, as ``IPython.display.HTML`` would be shown."""

    name: str
    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


def embed(data: object) -> str:
    """Return ``data`` as JSON that may stand inside a ``<script>``, whatever its strings hold.

    Raises ``ValueError`` for NaN and infinities, which JSON cannot carry.
    """
    text = json.dumps(data, allow_nan=False)  # plain ASCII: everything else is escaped
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def explorable(name: str, data: dict, fallback: str) -> Explorable:
    """Return the explorable made of ``parts/NAME.html``, ``.css`` and ``.js``.

    ``data`` reaches the script as the constant ``data``; ``fallback`` is HTML that stands in the
    figure's place wherever scripts do not run.
    """
    uid = f"ac-{secrets.token_hex(4)}"  # random: outputs of two kernels may share a page
    return Explorable(
        name,
        _SHELL.format(
            uid=uid,
            colours=palette.css(f"#{uid}"),
            output=_OUTPUT.format(uid=uid),
            fallback=fallback,
            style=_RAMP + _part("common.css") + _part(f"{name}.css"),
            markup=_part(f"{name}.html"),
            script=_part("common.js") + _part(f"{name}.js") + "begin(explore);",
            data=embed(data),
        ),
    )


def numbers(name: str, given: Any, dimensions: str, *, between: tuple[int, int] | None = None) -> Tensor:
    """Return ``given``, a tensor or an array, as a tensor of floats; ``dimensions`` names its shape.

    Raises ``ValueError`` for another number of dimensions, an empty one, and numbers that are not
    finite or not ``between`` these two.
    """
    tensor = torch.as_tensor(given).detach().cpu().float()
    if tensor.ndim != len(dimensions.split()) or 0 in tensor.shape:
        raise ValueError(
            f"{name} must be [{', '.join(dimensions.split())}], none of them empty, "
            f"got shape {tuple(tensor.shape)}"
        )
    if not tensor.isfinite().all():
        raise ValueError(f"{name} must be finite, got {tensor[~tensor.isfinite()][0].item()}")
    if between is not None:
        wrong = tensor[(tensor < between[0] - 1e-3) | (tensor > between[1] + 1e-3)]
        if len(wrong):
            raise ValueError(
                f"{name} must lie between {between[0]} and {between[1]}, got {wrong[0].item():.4g}"
            )
        tensor = tensor.clamp(*between)
    return tensor


def in_bytes(tensor: Tensor) -> str:
    """Return numbers from 0 to 1 as base64, a byte each: wrong by at most 1/510."""
    return base64.b64encode((tensor * 255).round().to(torch.uint8).numpy().tobytes()).decode()


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")

"""Claims: what training or timing did on this run, each a statement with its number and its bound.

Algebra, shapes and hand numbers are asserted: they are right everywhere or wrong. What a trained
model or a clock says depends on seeds and processors. A page states it as a :class:`Claim` and goes
on where it comes out otherwise, saying so in place; ``ATTENTION_COURSE_CLAIMS=strict`` and
``CI=true`` make it an error. ``make replicate`` asks how far each claim is from its bound.
"""

import html
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

#: where a cell's output carries its claims for those who read the executed notebook
MIME = "application/vnd.attention-course.claims+json"
#: what a margin must be so that a claim with hundreds beside it holds on nearly every machine
ENOUGH = 4.0


class ClaimBroken(AssertionError):
    """A claim came out otherwise where every claim has to hold."""


@dataclass(frozen=True)
class Claim:
    """A statement in ``words`` that holds while ``number`` keeps its bound.

    The words and the bound say the same. A number that is not finite keeps no bound. Raises a
    ``ValueError`` without words or without a bound, and a ``TypeError`` for what is no single number.
    """

    words: str
    number: SupportsFloat
    at_least: float | int | None = None
    at_most: float | int | None = None

    def __post_init__(self) -> None:
        if not self.words.strip():
            raise ValueError("words must say what is claimed, got none")
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"a claim needs at_least or at_most, got neither: {self.words}")
        try:
            object.__setattr__(self, "number", float(self.number))
        except (TypeError, ValueError, RuntimeError):
            kind = type(self.number).__name__
            raise TypeError(f"number must be a single number, got {kind}: {self.words}") from None

    @property
    def held(self) -> bool:
        """Whether the number keeps its bound."""
        return keeps(self.number, self.at_least, self.at_most)

    @property
    def shown(self) -> str:
        """The number with the digits a reader can use, and as many as tell it from a bound it missed."""
        bounds = {_short(bound) for bound in (self.at_least, self.at_most) if bound is not None}
        digits = 3
        while not self.held and math.isfinite(self.number) and _short(self.number, digits) in bounds:
            digits += 1
        return _short(self.number, digits)

    @property
    def bound(self) -> str:
        """The bound in words."""
        parts = (("at least", self.at_least), ("at most", self.at_most))
        return " and ".join(f"{word} {_short(bound)}" for word, bound in parts if bound is not None)


class Checked:
    """Claims that were looked at, as one quiet line that unfolds; what came out otherwise is said openly."""

    def __init__(self, statements: tuple[Claim, ...]) -> None:
        self.statements = statements

    @property
    def broken(self) -> list[Claim]:
        return [claim for claim in self.statements if not claim.held]

    def __repr__(self) -> str:
        lines = [_summary(self.statements)]
        lines += [f"  {'✓' if c.held else '✗'} {c.words}: {c.shown} ({c.bound})" for c in self.statements]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        openly = "".join(
            f'<p class="claim-otherwise"><strong>Otherwise on this machine.</strong> {html.escape(c.words)}: '
            f"here the number is {c.shown}, not {c.bound}.</p>"
            for c in self.broken
        )
        items = "".join(
            f"<li>{'✓' if c.held else '✗'} {html.escape(c.words)}: "
            f"<strong>{c.shown}</strong> ({c.bound})</li>"
            for c in self.statements
        )
        summary = _summary(self.statements)
        return f'{openly}<details class="claims"><summary>{summary}</summary><ul>{items}</ul></details>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        kept = [
            {
                "words": c.words,
                "number": c.number if math.isfinite(c.number) else None,
                "at_least": c.at_least,
                "at_most": c.at_most,
                "held": c.held,
            }
            for c in self.statements
        ]
        return {"text/plain": repr(self), "text/html": self._repr_html_(), MIME: kept}


def claims(*statements: Claim) -> None:
    """Look at every claim and show them all; where claims are strict, raise for those that broke.

    Raises a :class:`ClaimBroken` that names each of them, after all were shown.
    """
    from IPython.display import display

    checked = Checked(statements)
    display(checked)
    if checked.broken and strict():
        lines = (f"{c.words}: {c.shown}, not {c.bound}" for c in checked.broken)
        raise ClaimBroken("came out otherwise:\n" + "\n".join(lines))


def strict() -> bool:
    """Return whether a broken claim is an error here: ``ATTENTION_COURSE_CLAIMS=strict``, or under CI.

    ``ATTENTION_COURSE_CLAIMS=report`` says no, whatever else is set.
    """
    setting = os.environ.get("ATTENTION_COURSE_CLAIMS")
    return setting == "strict" or (setting != "report" and os.environ.get("CI") == "true")


def carried(notebook: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the claims that the outputs of an executed notebook carry, in their order."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            yield from output.get("data", {}).get(MIME, ())


def keeps(number: float | None, at_least: float | int | None, at_most: float | int | None) -> bool:
    """Return whether ``number`` lies within its bounds; one that is not finite (``None``) never does."""
    low = -math.inf if at_least is None else at_least
    high = math.inf if at_most is None else at_most
    return number is not None and math.isfinite(number) and low <= number <= high


def margin(
    numbers: Sequence[float | None], at_least: float | int | None, at_most: float | int | None
) -> float:
    """Return how far the mean of ``numbers`` is from the nearer bound, in their standard deviations.

    Negative beyond the bound. Without any spread it is infinite; a number that was not finite (``None``)
    breaks every bound. Raises a ``ValueError`` for fewer than two numbers.
    """
    if len(numbers) < 2:
        raise ValueError(f"a spread needs at least two numbers, got {len(numbers)}")
    if any(number is None or not math.isfinite(number) for number in numbers):
        return -math.inf
    mean, spread = statistics.fmean(numbers), statistics.stdev(numbers)
    room = min(
        math.inf if at_least is None else mean - at_least,
        math.inf if at_most is None else at_most - mean,
    )
    if spread == 0:
        return math.inf if room >= 0 else -math.inf
    return room / spread


def _summary(statements: tuple[Claim, ...]) -> str:
    count, broken = len(statements), sum(not claim.held for claim in statements)
    what = f"{count} statement{'s' * (count != 1)} checked on this run"
    return f"✗ {what}, {broken} came out otherwise" if broken else f"✓ {what}"


def _short(number: float | int, digits: int = 3) -> str:
    """The number with so many digits; whole ones with all of them."""
    if math.isfinite(number) and number == int(number) and abs(number) < 1e6:
        return f"{int(number):,}".replace("-", "−")
    return f"{number:.{digits}g}".replace("-", "−")

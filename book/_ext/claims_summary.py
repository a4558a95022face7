"""Sum up the claims of the executed book, at the end of ``make book``.

A claim is what training or a clock said on this run. One that came out
otherwise is named with its page, its number and its bound. That is an error
only where claims are strict: ``ATTENTION_COURSE_CLAIMS=strict``, ``CI=true``.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import executed

#: a page, and a claim as its output carries it
Found = tuple[Path, dict]


def found(
    pages: Iterable[Path],
    root: Path = executed.ROOT,
    execution: Callable = executed.just_executed,
) -> list[Found]:
    """Return every claim that the executions of ``pages`` carry."""
    carried = executed.lab("page/claims").carried
    return [
        (page, claim)
        for page in pages
        if (notebook := execution(page, root)) is not None
        for claim in carried(notebook)
    ]


def where(page: Path) -> str:
    """Return a page's name for people: its chapter, or its file."""
    number = re.match(r"\d+", page.stem)
    if number:
        return f"chapter {int(number[0])}"
    return f"the page {page.stem.replace('_', ' ')}"


def claim_line(page: Path, claim: dict) -> str:
    """Return a claim with its number and its bound, on one line."""
    number = claim["number"]
    stated = executed.lab("page/claims").Claim(
        claim["words"],
        math.nan if number is None else number,
        at_least=claim["at_least"],
        at_most=claim["at_most"],
    )
    here = "no finite number" if number is None else stated.shown
    return f"{where(page)}: {stated.words}: {here}, not {stated.bound}"


def summary(statements: Sequence[Found]) -> list[str]:
    """Return the lines that sum up ``statements``."""
    count = len(statements)
    broken = [(page, claim) for page, claim in statements if not claim["held"]]
    if not broken:
        return [
            f"{count} statement{'s' * (count != 1)} about training and timing "
            f"{'were' if count != 1 else 'was'} checked on this run; "
            f"{'all held' if count != 1 else 'it held'}."
        ]
    chapters = ", ".join(dict.fromkeys(where(page) for page, _ in broken))
    first = (
        f"{len(broken)} of {count} statements about training and timing came "
        f"out otherwise on this machine: {chapters}."
    )
    return [first, *(f"  {claim_line(page, claim)}" for page, claim in broken)]


def main() -> int:
    executions = {
        page: executed.just_executed(page) for page in executed.pages()
    }
    statements = found(executions, execution=lambda page, _: executions[page])
    if statements:
        print("\n".join(summary(statements)))
    lost = [page for page, notebook in executions.items() if notebook is None]
    if lost:
        print(f"Not looked at: {', '.join(map(where, lost))}. Build again.")
    broken = any(not claim["held"] for _, claim in statements)
    return int((broken or bool(lost)) and executed.lab("page/claims").strict())


if __name__ == "__main__":
    sys.exit(main())

"""What the programs in ``benchmarks/`` printed and kept, for the pages that quote it."""

import subprocess
from pathlib import Path

REPOSITORY = "https://github.com/attention-course/attention-course"


def kept(name: str) -> str:
    """Return the text of a file of the repository, named as seen from a page: ``../benchmarks/results/…``.

    Where a notebook is alone, as on Colab, the repository is fetched first. Raises a
    ``FileNotFoundError`` that says what lies beside it instead.
    """
    path = Path(name)
    if not path.parent.is_dir():
        alone = Path("attention-course")
        if not alone.is_dir():
            subprocess.run(["git", "clone", "--depth", "1", REPOSITORY, str(alone)], check=True)
        path = alone / path.relative_to("..")
    if not path.is_file():
        there = sorted(other.name for other in path.parent.glob("*"))
        raise FileNotFoundError(f"name must be a kept result, got {name!r}; beside it are {there}")
    return path.read_text(encoding="utf8")

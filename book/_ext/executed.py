"""Where the executed notebooks of the book are, and what they stand on.

Each notebook has a cache of its own, named by a digest of what its cells can
reach: the package's modules behind its imports, data beside the pages, files of
the project that it names, the pins, the interpreter. If one of them changes,
the notebook is executed again, and no other. The code cells themselves are the
key inside a cache. Nothing here imports the package: it would take seconds.
"""

import functools
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
CACHES = Path("_build") / ".jupyter_cache"

#: what lies beside the pages and is read by no cell
NO_DATA = {".ipynb", ".md", ".bib", ".toml"}
#: pins that no output depends on: they test, tidy, or show what was executed
TOOLS = {
    "axe-playwright-python", "beartype", "codespell", "hypothesis",
    "jupyter-book", "jupyterlab", "jupyterlab-myst", "myst-nb", "nbstripout",
    "nbval", "packaging", "playwright", "pytest", "pytest-xdist", "pyyaml",
    "ruff", "setuptools", "sphinx", "sphinx-book-theme", "sphinx-exercise",
    "torch-geometric",
}  # fmt: skip


@functools.cache
def lab(name: str) -> ModuleType:
    """Load a module below ``attention_course/lab`` that needs nothing else."""
    folder = Path(__file__).parents[2] / "attention_course" / "lab"
    spec = importlib.util.spec_from_file_location(
        f"_lab_{name.replace('/', '_')}", folder / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def code_cells(notebook: Path) -> list[str]:
    """Return the sources of the code cells of a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    return [
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"
    ]


def stands_on(notebook: Path, root: Path = ROOT) -> list[Path]:
    """Return every file that the outputs of a notebook may depend on."""
    cells = code_cells(notebook)
    package = lab("train/closure").files_behind(
        cells, root / "attention_course"
    )
    return [
        *package,
        *beside_the_pages(root / "book"),
        *named_files(cells, notebook.parent, root),
    ]


def beside_the_pages(book: Path) -> Iterator[Path]:
    """Yield the files in ``book/`` that a cell may read: no pages, no looks."""
    for path in lab("train/closure").below(book):
        looks = path.relative_to(book).parts[0] in {"_ext", "_static"}
        if path.suffix not in NO_DATA and not looks:
            yield path


def named_files(
    cells: Iterable[str], folder: Path, root: Path
) -> Iterator[Path]:
    """Yield the project's files that strings in ``cells`` name.

    A name is a path from the notebook's folder, or that of a folder of the
    project. Of a folder, every file counts; of a path that is not there or
    that is put together, the folder that is.
    """
    rooms = {
        path.name: path
        for path in root.iterdir()
        if path.is_dir() and path.name not in {"attention_course", "book"}
    }
    for word in re.findall(r"""["']([^"'\n\\]+)["']""", "\n".join(cells)):
        path = rooms.get(word)
        if path is None and "." in word:
            path = (folder / word).resolve()
            while "/" in word and not path.exists():
                path = path.parent
        if path is None or path in (root, folder) or root not in path.parents:
            continue
        hidden = path.relative_to(root).parts[0].startswith((".", "_"))
        if path.is_file() and not hidden:
            yield path
        elif path.is_dir() and not hidden:
            yield from lab("train/closure").below(path)


def pins(root: Path) -> list[str]:
    """Return the pins that an output may depend on, without comments."""
    path = root / "requirements.txt"
    text = path.read_text(encoding="utf8") if path.exists() else ""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return sorted(
        line
        for line in lines
        if line and line.partition("==")[0].strip().lower() not in TOOLS
    )


def digest(notebook: Path, root: Path = ROOT) -> str:
    """Return a digest of what a notebook's outputs stand on beside itself."""
    version = f"{sys.implementation.name} {sys.version_info[:2]}"
    moves = lab("measure/machine").MOVES
    moved = [os.environ.get(name, "") for name in moves]
    files = stands_on(notebook, root)
    return lab("train/closure").digest(
        files, root, version, *pins(root), *moved
    )


def machine() -> list[str]:
    """Return what of this machine an output may show and no file tells."""
    triton = importlib.util.find_spec("triton") is not None
    gpu = shutil.which("nvidia-smi")
    return [lab("measure/machine").processor(), str(triton), str(gpu)]


def cache_of(notebook: Path, root: Path = ROOT) -> Path:
    """Return the folder of a notebook's own cache of executions, made here."""
    name = lab("train/closure").digest(
        [], root, digest(notebook, root), *machine()
    )
    return root / CACHES / f"{notebook.stem}-{name}"


def remove_old_caches(current: Iterable[Path], root: Path = ROOT) -> None:
    """Remove every cache but those in ``current``."""
    keep = set(current)
    for path in (root / CACHES).glob("*"):
        if path not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def pages(root: Path = ROOT) -> list[Path]:
    """Return the notebooks of the book in the order of its contents."""
    import yaml

    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    paths = (root / f"{name}.ipynb" for name in listed(contents))
    return [path for path in paths if path.exists()]


def listed(contents: dict) -> Iterator[str]:
    """Yield the pages of a table of contents, nested ones behind their own."""
    yield from (contents[key] for key in ("root", "file") if key in contents)
    for inside in ("parts", "chapters", "sections"):
        for entry in contents.get(inside, ()):
            yield from listed(entry)


def executed(notebook: Path, root: Path = ROOT) -> dict | None:
    """Return a notebook with the outputs of its execution, or ``None``.

    An execution counts only for the code cells and the surroundings that it
    was made with.
    """
    return outputs(notebook, cache_of(notebook, root))


def just_executed(notebook: Path, root: Path = ROOT) -> dict | None:
    """Return the same right after a build, which leaves current caches only."""
    digest = "[0-9a-f]" * 16
    found = list((root / CACHES).glob(f"{notebook.stem}-{digest}"))
    return outputs(notebook, found[0]) if len(found) == 1 else None


def outputs(notebook: Path, cache: Path) -> dict | None:
    """Return a notebook with the outputs that a cache has for its cells."""
    if not cache.is_dir():
        return None
    import nbformat
    from jupyter_cache import get_cache

    try:
        _, found = get_cache(cache).merge_match_into_notebook(
            nbformat.read(notebook, 4)
        )
    except KeyError:
        return None
    return found

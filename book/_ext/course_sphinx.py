"""What the strict, offline build needs beyond Jupyter Book.

* Executed notebooks are cached under a digest of everything a notebook's output
  depends on besides itself. A change in the package gives a new cache, hence a
  new execution; old caches are removed. Nothing stale is ever shown.
* A change in the style sheet or in a vendored script rewrites every page.
* Pages of chapters that no longer exist are removed from the output.
* sphinx-thebe's script, which would come from another site, is dropped.
* Entries of the bibliography are plain list items: the role that Sphinx gives
  them is deprecated.
* The empty corner of a table is a plain cell: a heading without words stops a
  screen reader. The lines of a long signature are no list of definitions.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

CACHES = ".jupyter_cache"


def digest(root: Path, files: Iterable[Path], *more: str) -> str:
    """Digest ``more`` and the names and bytes of ``files`` below ``root``."""
    result = hashlib.sha256(repr(more).encode())
    for path in sorted(files):
        content = path.read_bytes()
        result.update(
            f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode()
        )
        result.update(content)
    return result.hexdigest()[:16]


def files_below(folder: Path) -> list[Path]:
    """Return every file below ``folder`` but compiled and hidden ones."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix != ".pyc"
        and not any(
            part.startswith(".") for part in path.relative_to(folder).parts
        )
    ]


def execution_digest(root: Path) -> str:
    """Digest what a notebook's output depends on besides the notebook.

    That is the package with its data, the pinned environment, the interpreter,
    and the book's own data files and scripts: everything in ``book/`` that is
    neither a page nor part of its looks.
    """
    book = root / "book"
    beside_the_pages = [
        path
        for path in files_below(book)
        if path.suffix not in {".ipynb", ".md", ".bib"}
        and path.relative_to(book).parts[0] not in {"_ext", "_static"}
    ]
    pins = [path for path in [root / "requirements.txt"] if path.exists()]
    version = f"{sys.implementation.name} {sys.version_info[:2]}"
    return digest(
        root,
        [*files_below(root / "attention_course"), *beside_the_pages, *pins],
        version,
    )


def set_cache(app: Sphinx, config: Config) -> None:
    """Point myst-nb at the cache of the present sources; remove the others.

    ``nb_execution_cache_path`` is a value whose change makes Sphinx read every
    page again, so that new outputs also reach pages whose notebook is the same.
    """
    root = Path(app.srcdir)
    caches = Path(app.outdir).parent / CACHES
    cache = caches / execution_digest(root)
    config.nb_execution_cache_path = str(cache)
    config.course_looks = digest(root, files_below(root / "book" / "_static"))
    if caches.is_dir():
        for other in caches.iterdir():
            if other != cache:
                shutil.rmtree(other) if other.is_dir() else other.unlink()


def remove_old_pages(app: Sphinx, exception: Exception | None) -> None:
    """Remove the page and the source of every chapter that is gone."""
    if exception or app.builder.format != "html":
        return
    for folder in (
        Path(app.outdir) / "book",
        Path(app.outdir) / "_sources" / "book",
    ):
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix in {".html", ".ipynb", ".md"}:
                docname = (
                    "book/"
                    + path.relative_to(folder).with_suffix("").as_posix()
                )
                if docname not in app.env.all_docs:
                    path.unlink()


def drop_thebe(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict,
    doctree: object,
) -> None:
    """Drop sphinx-thebe's scripts and style: it adds them even when off."""

    def is_thebe(asset: object) -> bool:
        name = str(getattr(asset, "filename", None) or asset)
        body = getattr(asset, "attributes", {}).get("body") or ""
        return "thebe" in name or "THEBE_JS_URL" in body

    for kind in ("script_files", "css_files"):
        context[kind] = [
            asset for asset in context[kind] if not is_thebe(asset)
        ]


def mend_accessibility(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict,
    doctree: object,
) -> None:
    """Mend the markup of bibliography entries and empty table corners."""
    if "body" in context:
        body = context["body"].replace(
            'role="doc-biblioentry"', 'role="listitem"'
        )
        body = re.sub(r"<th([^>]*)><p></p></th>", r"<td\1></td>", body)
        context["body"] = re.sub(
            r"<dl>\s*((?:<dd>.*?</dd>\s*)+)</dl>",
            lambda found: (
                '<div class="signature-lines">'
                + found[1].replace("<dd>", "<div>").replace("</dd>", "</div>")
                + "</div>"
            ),
            body,
        )


def setup(app: Sphinx) -> dict:
    app.add_config_value("course_looks", "", "html", str)
    app.connect("config-inited", set_cache, priority=900)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("html-page-context", mend_accessibility, priority=900)
    app.connect("build-finished", remove_old_pages)
    return {
        "version": "1",
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }

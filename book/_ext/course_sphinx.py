"""What the strict, offline build needs beyond Jupyter Book.

* Executed notebooks are kept under a digest of everything that a notebook's
  output depends on besides itself: see ``executed``. A change executes and
  reads again the pages that it can reach. Nothing stale is ever shown.
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
from collections.abc import Iterable, Sequence
from pathlib import Path

import executed
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment


def note_looks(app: Sphinx, config: Config) -> None:
    """Digest the style sheet and scripts: a change rewrites every page."""
    closure, root = executed.lab("train/closure"), Path(app.srcdir)
    looks = closure.below(root / "book" / "_static")
    config.course_looks = closure.digest(looks, root)


def current_caches(app: Sphinx, names: Iterable[str]) -> dict[str, Path]:
    """Return the cache of every page that is a notebook."""
    root = Path(app.srcdir)
    paths = {name: Path(app.env.doc2path(name)) for name in names}
    return {
        name: executed.cache_of(path, root)
        for name, path in paths.items()
        if path.suffix == ".ipynb"
    }


def find_outdated(
    app: Sphinx,
    env: BuildEnvironment,
    added: set[str],
    changed: set[str],
    removed: set[str],
) -> Sequence[str]:
    """Return the pages whose outputs stand on something that has changed.

    Caches that no page asks for any more are removed.
    """
    app.course_caches = current_caches(app, env.found_docs)
    app.course_read = []
    before = getattr(env, "course_caches", {})
    executed.remove_old_caches(app.course_caches.values(), Path(app.srcdir))
    return [
        name
        for name, cache in app.course_caches.items()
        if before.get(name) != mark(cache, Path(env.doc2path(name)))
        or not cache.is_dir()
    ]


def mark(cache: Path, page: Path) -> str:
    """Return what a page that was read is known by: a later save is another."""
    text = hashlib.sha256(page.read_bytes()).hexdigest()
    return f"{cache.name} {text}"


def choose_cache(app: Sphinx, name: str, source: list[str]) -> None:
    """Point myst-nb at the cache of the page that is read next."""
    cache = app.course_caches.get(name)
    if cache:
        app.course_read.append(name)
        env = app.env
        env.mystnb_config = env.mystnb_config.copy(
            execution_cache_path=str(cache)
        )
        env.course_caches = getattr(env, "course_caches", {})
        env.course_caches[name] = mark(cache, Path(env.doc2path(name)))


def doubt_what_changed(app: Sphinx, exception: Exception | None) -> None:
    """Forget executions during which something changed that they stand on."""
    read = [name for name in app.course_read if name in app.course_caches]
    for name, cache in current_caches(app, read).items():
        if cache != app.course_caches[name]:
            shutil.rmtree(app.course_caches[name], ignore_errors=True)


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
    app.course_caches, app.course_read = {}, []
    app.add_config_value("course_looks", "", "html", str)
    app.connect("config-inited", note_looks, priority=900)
    app.connect("env-get-outdated", find_outdated)
    app.connect("source-read", choose_cache)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("html-page-context", mend_accessibility, priority=900)
    app.connect("build-finished", doubt_what_changed)
    app.connect("build-finished", remove_old_pages)
    return {
        "version": "2",
        "env_version": 2,
        "parallel_read_safe": False,  # a page's cache is chosen as it is read
        "parallel_write_safe": True,
    }

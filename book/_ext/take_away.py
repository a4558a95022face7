"""Write each page's take-away to a file of its own, and offer it on the page.

The code cells of a page that carry the tag ``take-away`` are, in order, one
module that needs torch alone. The build writes them to ``take_away/NAME.py``
beside the pages, and says so with a link above the first of them. The plain
copies keep the cells as they are and say nothing of a file: whoever reads
there has no site beside the page.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import plain_copies
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

TAG = "take-away"
FOLDER = "take_away"
#: what a reader who has torch can import
MODULES = {"torch", *sys.stdlib_module_names}


def take_away(notebook: Path, root: Path = plain_copies.ROOT) -> str | None:
    """Return the file that a page's tagged cells make; ``None`` without any.

    Raises a ``ValueError`` that names the page and the cell for one that is
    folded away, no plain Python, or imports more than torch.
    """
    content = json.loads(notebook.read_text(encoding="utf8"))
    sources = []
    for cell in tagged(content):
        found = "".join(cell["source"]).strip("\n")
        if wrong := fault(found, cell["metadata"]["tags"]):
            raise ValueError(
                f"{notebook.name}: the take-away's cell {cell['id']} {wrong}"
            )
        sources.append(found)
    if not sources:
        return None
    first = header(title(content) or notebook.stem, notebook, root)
    return first + "\n\n" + "\n\n\n".join(sources) + "\n"


def tagged(notebook: dict) -> Iterator[dict]:
    """Yield the cells of a notebook that belong to its take-away."""
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", ())
        if cell["cell_type"] == "code" and TAG in tags:
            yield cell


def fault(source: str, tags: list[str]) -> str | None:
    """Return what keeps a cell from being part of a file, if anything."""
    folded = sorted(plain_copies.FOLDED & set(tags))
    if folded:
        return f"is tagged {folded[0]}: a take-away is there to be read"
    try:
        tree = ast.parse(source)
        compile(source, "a cell", "exec")  # an await outside, for one
    except SyntaxError as error:
        line = (error.text or "").strip()
        return f"is no plain Python (a magic?): {line}"
    more = [name for name in imports(tree) if name not in MODULES]
    return f"imports {more[0]}: torch alone is allowed" if more else None


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the name of every package that code imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            yield name.partition(".")[0] or name


def title(notebook: dict) -> str | None:
    """Return the heading of a page."""
    for cell in notebook["cells"]:
        heading = re.search(r"^# (.+)$", "".join(cell["source"]), re.MULTILINE)
        if cell["cell_type"] == "markdown" and heading:
            return heading[1].strip()
    return None


def header(name: str, notebook: Path, root: Path) -> str:
    """Return the comment above the code: its page and its licence."""
    rights = (root / "LICENSE").read_text(encoding="utf8").partition("\n")[0]
    licence = f"{plain_copies.repository(root)['url']}/blob/main/LICENSE"
    page = plain_copies.absolute(notebook.name, notebook, root)
    return (
        f'# From the page "{name}": {page}\n'
        f"# {rights}. Licence: MIT, {licence}\n"
        "# Needs Python and torch, nothing else."
    )


# The build ------------------------------------------------------------------


def collect(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """Find the take-aways before a page is read: one that is wrong ends it."""
    pages = {name: Path(env.doc2path(name)) for name in env.found_docs}
    app.take_aways = {}
    for name, page in sorted(pages.items()):
        if page.suffix != ".ipynb":
            continue
        try:
            text = take_away(page, Path(app.srcdir))
        except ValueError as error:
            raise ExtensionError(str(error)) from error
        if text is not None:
            app.take_aways[name] = f"{page.stem}.py", text
    return []


def offer(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put a link to the file above the first cell of the take-away."""
    if docname not in app.take_aways or app.builder.format != "html":
        return
    file, _ = app.take_aways[docname]
    first = next(
        node
        for node in doctree.findall(nodes.container)
        if f"tag_{TAG}" in node["classes"]
    )
    address = "../" * docname.count("/") + f"{FOLDER}/{file}"
    link = addnodes.download_reference("", file, refuri=address)
    line = nodes.paragraph("", "Take it with you: ", classes=[TAG])
    line += link
    line += nodes.Text(
        ", the marked cells of this page in one file that needs torch alone."
    )
    first.parent.insert(first.parent.index(first), line)


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the files, and remove those that no page offers any more."""
    if exception or app.builder.format != "html":
        return
    folder = Path(app.outdir) / FOLDER
    files = dict(app.take_aways.values())
    for path in folder.glob("*.py"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf8")


def setup(app: Sphinx) -> dict:
    app.take_aways = {}
    app.connect("env-get-outdated", collect)
    app.connect("doctree-resolved", offer)
    app.connect("build-finished", write)
    return {
        "version": "1",
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }

"""What every page has around its text: folds, captions and boxes.

Authors write Markdown that any renderer shows. In the built page

* a folded cell is one quiet line that says what is in it;
* a paragraph "**Figure 3.2.** …" is the caption of the figure above it, and
  "**Table 3.1.** …" that of the table beside it;
* Predict boxes have a class that the style sheet and ``course.js`` know;
* the start page is not called after the book twice.
"""

import re
from html import escape

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

START = "An executable textbook"
CAPTION = re.compile(r"(?P<name>(?P<kind>Figure|Table) \w+\.\d+\w*)\.?")
#: an output that is one figure
FIGURE = re.compile(
    r"(?P<start>\s*(<style>[^<]*</style>\s*)*<figure\b[^>]*>)"
    r"(?P<inside>.*)</figure>\s*",
    re.DOTALL,
)
CLAIMS = re.compile(r'\s*<(details class="claims|p class="claim-otherwise)')


def label(
    source: str,
    *,
    first: bool = False,
    output: bool = False,
    ran: bool = True,
    whole: bool = False,
    shows: str = "",
) -> tuple[str, str]:
    """Return what the line of a folded cell says while closed, and while open.

    ``shows`` is the name of the figure or table under the cell, ``whole`` says
    that the output is folded, too. Only what ``ran`` was checked.
    """
    if first:
        parts = f"imports and the code for {shows}" if shows else "imports"
        sign = "Set-up, " if shows else "Set-up and "
        return sign + parts, f"Hide {sign.lower()}{parts}"
    if shows:
        return f"Code for {shows}", f"Hide the code for {shows}"
    if output:
        more = " and its output" if whole else ""
        return f"Show the code{more}", f"Hide the code{more}"
    if ran and re.search(r"^\s*assert\b", source, re.MULTILINE):
        return "✓ checked", "Hide the code"
    if re.match(r"(import|from)\s", source):
        return "Imports", "Hide imports"
    return "Helper code", "Hide helper code"


def lead(node: nodes.Node | None) -> str:
    """Return the bold words that a paragraph begins with."""
    if not isinstance(node, nodes.paragraph):
        return ""
    first = next((part for part in node if part.astext()), None)
    return first.astext() if isinstance(first, nodes.strong) else ""


def caption(node: nodes.Node | None) -> re.Match | None:
    """Return name and kind of what a paragraph is the caption of."""
    return CAPTION.fullmatch(lead(node))


def asks(quote: nodes.block_quote) -> bool:
    """Return whether a quotation is a box that lets the reader predict."""
    first = quote.children[0] if quote.children else None
    return re.match(r"Predict\b", lead(first)) is not None


# Cells ----------------------------------------------------------------------


def is_cell(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.container)
        and node.get("nb_element") == "cell_code"
    )


def part(cell: nodes.container, name: str) -> list[nodes.Node]:
    """Return what is in a cell's ``source`` or in its ``output``."""
    wanted = f"cell_code_{name}"
    return [
        node
        for child in cell.children
        if child.get("nb_element") == wanted
        for node in child.children
    ]


def is_quiet(cell: nodes.container) -> bool:
    """Return whether a reader sees no more of a cell than a line or two."""
    mode = cell.get("hide_mode")
    outputs = [] if mode == "all" else part(cell, "output")
    return bool(mode) and all(
        isinstance(node, nodes.raw) and CLAIMS.match(node.astext())
        for node in outputs
    )


def cell_above(node: nodes.Node) -> nodes.container | None:
    """Return the cell that a caption stands under, past the quiet ones."""
    above = node.parent.children[: node.parent.index(node)]
    for before in reversed(above):
        if not is_cell(before):
            return None
        if not is_quiet(before):
            return before
    return None


def tables_in(node: nodes.Node | None) -> list[nodes.table]:
    """Return the tables that a node is, or that a cell shows."""
    if isinstance(node, nodes.table):
        return [node]
    if node is None or not is_cell(node):
        return []
    outputs = part(node, "output")
    return [table for each in outputs for table in each.findall(nodes.table)]


def captioned(paragraph: nodes.paragraph) -> nodes.Node | None:
    """Return the cell or the table that a caption belongs to.

    Both stand above their captions. A table may also stand below, where the
    one above has a caption or there is none.
    """
    cell = cell_above(paragraph)
    if caption(paragraph)["kind"] == "Figure":
        return cell
    place, siblings = paragraph.parent.index(paragraph), paragraph.parent
    beside = (*siblings[max(0, place - 1) : place], *siblings[place + 1 :][:1])
    for candidate in (cell, *beside):
        tables = tables_in(candidate)
        if tables and not any(has_caption(table) for table in tables):
            return candidate
    return None


def has_caption(table: nodes.table) -> bool:
    return isinstance(table.children[0], nodes.title)


# Captions -------------------------------------------------------------------


def place_caption(paragraph: nodes.paragraph) -> nodes.Node | None:
    """Move a caption into its figure or table; return what it belongs to.

    Where it cannot be moved, it stays a paragraph of its own.
    """
    found, owner = caption(paragraph), captioned(paragraph)
    paragraph["classes"].append("caption")
    name = re.sub(r"\W+", "-", found["name"].lower())
    if found["kind"] == "Table":
        tables = tables_in(owner)
        if len(tables) == 1:
            entitle(tables[0], paragraph, name)
    elif owner is not None:
        pictures = [out for out in part(owner, "output") if picture(out)]
        if pictures:
            enclose(pictures[-1], paragraph, name)
    return owner


def entitle(table: nodes.table, paragraph: nodes.paragraph, name: str) -> None:
    """Make a paragraph the title of a table, which HTML calls its caption."""
    paragraph.parent.remove(paragraph)
    table["ids"].append(name)
    table.insert(0, nodes.title("", "", *paragraph.children))


def picture(output: nodes.Node) -> re.Match | None:
    """Return an output in parts, if it is one figure without a caption."""
    if not isinstance(output, nodes.raw):
        return None
    found = FIGURE.fullmatch(output.astext())
    return found if found and "<fig" not in found["inside"] else None


def enclose(output: nodes.raw, paragraph: nodes.paragraph, name: str) -> None:
    """Put a paragraph into a figure, below its picture, which may scroll."""
    paragraph.parent.remove(paragraph)
    figure, classes = picture(output), " ".join(output["classes"])
    opening = (
        f'<div class="{classes}">{figure["start"]}'
        f'<div class="picture">{figure["inside"]}</div>'
        f'<figcaption id="{name}">'
    )
    closing = "</figcaption></figure></div>"
    place = output.parent.index(output)
    output.parent[place : place + 1] = [
        nodes.raw("", opening, format="html"),
        paragraph,
        nodes.raw("", closing, format="html"),
    ]


# The build ------------------------------------------------------------------


class Furniture(SphinxPostTransform):
    """Caption and label, just before myst-nb folds the cells."""

    default_priority = 198
    formats = ("html",)

    def run(self, **kwargs) -> None:
        furnish(self.document)


def furnish(document: nodes.document) -> None:
    """Put captions into place, name boxes, and say what each fold holds."""
    for quote in document.findall(nodes.block_quote):
        quote["classes"] += ["predict"] if asks(quote) else []
    shown = {}
    for paragraph in list(document.findall(nodes.paragraph)):
        if found := caption(paragraph):
            shown[id(place_caption(paragraph))] = found["name"]
    cells = [
        node for node in document.findall(nodes.container) if is_cell(node)
    ]
    for cell in cells:
        if cell.get("hide_mode"):
            cell["prompt_show"], cell["prompt_hide"] = label(
                "".join(node.astext() for node in part(cell, "source")),
                first=cell is cells[0],
                output=bool(part(cell, "output")),
                ran=cell.get("exec_count") is not None,
                whole=cell["hide_mode"] == "all",
                shows=shown.get(id(cell), ""),
            )


def open_fold(self, node: HideCodeCellNode) -> None:
    """Write the line as it is read aloud: myst-nb's has another name."""
    classes = " ".join(["hide", *node["classes"]])
    self.body.append(
        f'<details class="{classes}">\n<summary>'
        f'<span class="collapsed">{escape(node["prompt_show"])}</span>'
        f'<span class="expanded">{escape(node["prompt_hide"])}</span>'
        "</summary>\n"
    )


def close_fold(self, node: HideCodeCellNode) -> None:
    self.body.append("</details>\n")


def name_start(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict,
    doctree: object,
) -> None:
    """Name the start page's window: what it is, then the book."""
    if pagename == app.config.root_doc:
        context["title"] = START


def setup(app: Sphinx) -> dict:
    app.setup_extension("myst_nb")
    app.add_node(HideCodeCellNode, override=True, html=(open_fold, close_fold))
    app.add_post_transform(Furniture)
    app.connect("html-page-context", name_start)
    return {
        "version": "1",
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }

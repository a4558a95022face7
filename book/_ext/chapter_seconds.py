"""The table of seconds per page, from what this build (or its cache) measured.

The directive ``nb-exec-table`` of myst-nb leaves a placeholder and rewrites its
page whenever a notebook has run again. Here the placeholder becomes a table of
titles and seconds in the order of the contents, with their sum.
"""

from collections.abc import Iterable, Sequence

import executed
from docutils import nodes
from myst_nb.ext.execution_tables import ExecutionStatsNode
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform


def measured(env: BuildEnvironment) -> list[tuple[str, str, float]]:
    """Return name, title and seconds of every page that ran cells."""
    data = NbMetadataCollector.get_doc_data(env)
    order = {name: place for place, name in enumerate(in_order(env))}
    return [
        (name, env.titles[name].astext(), data[name]["exec_data"]["runtime"])
        for name in sorted(data, key=lambda name: order.get(name, len(order)))
        if data[name].get("exec_data")
        and data[name]["exec_data"]["runtime"] is not None
        and name in env.titles
    ]


def in_order(env: BuildEnvironment) -> Iterable[str]:
    """Yield the pages as a reader turns them, from the first to the last."""
    waiting, seen = [env.config.root_doc], set()
    while waiting:
        name = waiting.pop(0)
        if name not in seen:
            seen.add(name)
            yield name
            waiting = [*env.toctree_includes.get(name, []), *waiting]


def line(*cells: nodes.Node, head: bool = False) -> nodes.row:
    """Return a row: text at the left, numbers at the right."""
    row = nodes.row()
    for number, cell in enumerate(cells):
        entry = nodes.entry("", nodes.paragraph("", "", cell))
        entry["classes"] += ["text-right"] if number else []
        row += entry
    return row


def link(name: str, title: str, here: str) -> pending_xref:
    return pending_xref(
        "",
        nodes.inline(text=title),
        refdoc=here,
        refdomain="std",
        refexplicit=True,
        reftarget="/" + name,
        reftype="doc",
        refwarn=True,
    )


def table(
    pages: Sequence[tuple[str, str, float]], here: str
) -> list[nodes.Node]:
    """Return the table, and a sentence about the machine it was made on."""
    group = nodes.tgroup(cols=2)
    group += [nodes.colspec(colwidth=80), nodes.colspec(colwidth=20)]
    head, body = nodes.thead(), nodes.tbody()
    head += line(nodes.Text("Page"), nodes.Text("Seconds"))
    for name, title, seconds in pages:
        body += line(link(name, title, here), nodes.Text(f"{seconds:.0f}"))
    total = sum(seconds for _, _, seconds in pages)
    body += line(
        nodes.strong(text="All together"),
        nodes.strong(text=f"{total:.0f}"),
    )
    group += [head, body]
    result = nodes.table("", group, classes=["colwidths-auto"])
    return [result, nodes.paragraph(text=machine_note(pages))]


def machine_note(pages: Sequence[tuple[str, str, float]]) -> str:
    """Return on which machine this was measured, and the longest page."""
    machine = executed.lab("measure/machine")
    longest = max((seconds for _, _, seconds in pages), default=0)
    cores = machine.cores()
    return (
        f"Measured on {cores} core{'s' * (cores != 1)} of this processor: "
        f"{machine.processor()}. The longest page took {longest:.0f} s; "
        f"on a machine half as fast it takes about {2 * longest:.0f} s."
    )


class ChapterSeconds(SphinxPostTransform):
    """Put the table where the directive stands, before myst-nb puts its own."""

    default_priority = 7

    def run(self, **kwargs) -> None:
        for node in list(self.document.findall(ExecutionStatsNode)):
            node.replace_self(table(measured(self.env), self.env.docname))


def setup(app: Sphinx) -> dict:
    app.add_post_transform(ChapterSeconds)
    return {
        "version": "1",
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }

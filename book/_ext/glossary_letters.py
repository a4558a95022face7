"""The glossary's letters to jump to, and each term's first chapter.

That is the first one in the contents that links to the term. It may change
with any page, so the glossary is written again whenever anything is.
"""

import re
from collections.abc import Iterator

from chapter_seconds import in_order
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors import EnvironmentCollector
from sphinx.util.nodes import make_refnode

NUMBER = re.compile(r"(\d+[a-z]?)\. ")  # what a chapter's title begins with


class Terms(EnvironmentCollector):
    """Keep for every page the terms it links to."""

    def clear_doc(
        self, app: Sphinx, env: BuildEnvironment, docname: str
    ) -> None:
        kept(env).pop(docname, None)

    def merge_other(
        self,
        app: Sphinx,
        env: BuildEnvironment,
        docnames: set[str],
        other: object,
    ) -> None:
        kept(env).update(
            {
                name: kept(other)[name]
                for name in docnames
                if name in kept(other)
            }
        )

    def process_doc(self, app: Sphinx, doctree: nodes.document) -> None:
        if terms := {
            link["reftarget"].lower()
            for link in doctree.findall(pending_xref)
            if link.get("reftype") == "term"
        }:
            kept(app.env)[app.env.docname] = terms


def kept(env: BuildEnvironment) -> dict[str, set[str]]:
    """Return each page's terms: the environment's own, so that they last."""
    if not hasattr(env, "course_terms"):
        env.course_terms = {}
    return env.course_terms


def glossaries(doctree: nodes.document) -> Iterator[nodes.definition_list]:
    """Yield the lists of terms of a page."""
    for listed in doctree.findall(nodes.definition_list):
        if "glossary" in listed["classes"]:
            yield listed


def first_met(env: BuildEnvironment) -> dict[str, str]:
    """Return each term's first chapter, by the name of its document."""
    met: dict[str, str] = {}
    for name in in_order(env):
        if name in env.titles and NUMBER.match(env.titles[name].astext()):
            for term in kept(env).get(name, ()):
                met.setdefault(term, name)
    return met


def again(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Return the pages to write again."""
    return sorted(name for name in env.all_docs if "glossary" in name)


def show(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put letters before a glossary, and its chapter behind each term."""
    for listed in list(glossaries(doctree)):  # the page grows on the way
        met = first_met(app.env)
        letters: dict[str, str] = {}
        for item in listed.findall(nodes.definition_list_item):
            term = item.next_node(nodes.term)
            letters.setdefault(term.astext()[0].upper(), term["ids"][0])
            if page := met.get(term.astext().lower()):
                number = NUMBER.match(app.env.titles[page].astext())[1]
                text = nodes.Text(f"chapter {number}")
                link = make_refnode(app.builder, docname, page, "", text)
                definition = item.next_node(nodes.definition)
                definition += nodes.paragraph(
                    "",
                    "",
                    nodes.Text("First met in "),
                    link,
                    nodes.Text("."),
                    classes=["first-met"],
                )
        line = nodes.paragraph(classes=["letters"])
        for letter, place in letters.items():
            line += [
                nodes.reference("", letter, internal=True, refid=place),
                nodes.Text(" "),
            ]
        listed.parent.insert(listed.parent.index(listed), line)


def setup(app: Sphinx) -> dict[str, object]:
    """Called by Sphinx."""
    app.add_env_collector(Terms)
    app.connect("env-updated", again)
    app.connect("doctree-resolved", show)
    return {
        "version": "1",
        "env_version": 1,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }

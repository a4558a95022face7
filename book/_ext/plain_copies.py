"""Write copies of all notebooks for readers that know no MyST: Colab, GitHub,
JupyterLab without an extension.

Citations, terms, references and links become plain Markdown with absolute
addresses, exercises become headings, included files become blocks of text.
Folded cells fold in Colab and in Jupyter, too. The copies lie in
``_build/plain`` under the paths of their sources; the workflow that publishes
the book publishes them on the branch that ``_config.yml`` names, which is
what the rocket and the links to the exercises open.

    python book/_ext/plain_copies.py
"""

import codecs
import json
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path, PurePosixPath

import latexcodec  # noqa: F401, teaches Python TeX's accents
import yaml
from pybtex.database import Entry, parse_file

ROOT = Path(__file__).resolve().parents[2]
PLAIN = Path("_build") / "plain"
SOURCES = ("book/*.ipynb", "exercises/release/*/*.ipynb")
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def copies(root: Path = ROOT) -> dict[str, str]:
    """Return the text of every copy by its path below the root."""
    paths = sorted(path for glob in SOURCES for path in root.glob(glob))
    return {
        path.relative_to(root).as_posix(): copy(path, root) for path in paths
    }


def copy(path: Path, root: Path) -> str:
    """Return the plain copy of a notebook."""
    notebook = json.loads(path.read_text(encoding="utf8"))
    labels = equations(notebook)
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = plain(text, path, root, labels)
        elif FOLDED & set(cell["metadata"].get("tags", ())):
            text = fold(cell, text)
        cell["source"] = text.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def fold(cell: dict, text: str) -> str:
    """Fold a cell of code for Colab, which wants a title, and for Jupyter."""
    cell["metadata"]["cellView"] = "form"
    cell["metadata"].setdefault("jupyter", {})["source_hidden"] = True
    if text.startswith("%%"):
        return text  # such a line has to stay the first
    return f"# @title {title(text)}\n{text}"


def title(text: str) -> str:
    """Return what a folded cell is for, as far as its text says."""
    if "%pip install" in text:
        return "Set-up"
    for found, name in (
        (r"plotting\.figure|plt\.subplots", "Code of the figure"),
        (r"^claims\(", "What is checked on this run"),
        (r"\btable\(", "Code of the table"),
        (r"^(import|from) ", "Imports"),
        (r"^assert ", "What is checked on this run"),
    ):
        if re.search(found, text, re.MULTILINE):
            return name
    return "Code"


# Markdown -------------------------------------------------------------------


def plain(text: str, path: Path, root: Path, labels: dict[str, str]) -> str:
    """Return Markdown that needs no extension. Code in it stays as it is."""
    text = re.sub(
        r"^```\{literalinclude\} (\S+)\n(?::\w+:.*\n)*```",
        partial(included, path),
        text,
        flags=re.MULTILINE,
    )
    pieces = re.split(r"(^```.*?^```$|`[^`\n]+`)", text, flags=re.M | re.S)
    # A role is a word in braces in front of what looks like code.
    for i in range(1, len(pieces), 2):
        role = re.search(r"\{([a-z:]+)\}$", pieces[i - 1])
        if role:
            pieces[i - 1] = pieces[i - 1][: role.start()]
            pieces[i] = ROLES[role[1]](pieces[i].strip("`"), root, labels)
    for i in range(0, len(pieces), 2):
        pieces[i] = prose(pieces[i], path, root, labels)
    return "".join(pieces)


def prose(text: str, path: Path, root: Path, labels: dict[str, str]) -> str:
    text = re.sub(
        r"^:::\{exercise\} (.+)\n(?::\w+:.*\n)*",
        r"### Exercise \1\n",
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r"^:::$", "", text, flags=re.MULTILINE)
    text = re.sub(
        r"\$\$ \(([\w-]+)\)$",
        lambda found: f"\\tag{{{labels[found[1]]}}} $$",
        text,
        flags=re.MULTILINE,
    )
    return re.sub(
        r"\]\((?!https?://|#)([^)\s]+)\)",
        lambda found: f"]({absolute(found[1], path, root)})",
        text,
    )


def included(path: Path, found: re.Match) -> str:
    """Return a file that a page includes, as a block of text."""
    text = (path.parent / found[1]).read_text(encoding="utf8").rstrip("\n")
    return f"```text\n{text}\n```"


def equations(notebook: dict) -> dict[str, str]:
    """Number the labelled equations of a notebook, as the book does."""
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"])
    labels = re.findall(r"^.*\$\$ \(([\w-]+)\)$", text, re.MULTILINE)
    return {label: str(number) for number, label in enumerate(labels, 1)}


def absolute(link: str, path: Path, root: Path) -> str:
    """Return the address of what a link of the page at ``path`` leads to.

    Raises a ``ValueError`` for a link that leads nowhere.
    """
    name, _, anchor = link.partition("#")
    for ending in ("", ".ipynb", ".md"):
        target = (path.parent / f"{name}{ending}").resolve()
        if target.is_file():
            break
    else:
        raise ValueError(f"{path.name}: the link {link} leads nowhere")
    config = repository(root)
    below = PurePosixPath(target.relative_to(root))
    branch = config["branch"] if below.suffix == ".ipynb" else "main"
    address = f"{config['url']}/blob/{branch}/{below}"
    return (
        f"{address}#{anchor}" if anchor and below.suffix == ".md" else address
    )


@cache
def repository(root: Path) -> dict[str, str]:
    """Return the repository's address and the branch of the copies."""
    text = (root / "_config.yml").read_text(encoding="utf8")
    return yaml.safe_load(text)["repository"]


# Roles ----------------------------------------------------------------------


def cite(keys: str, root: Path, *, brackets: bool) -> str:
    """Return authors and year, linked to the paper where it has an address."""
    sources = bibliography(root / "book" / "references.bib")
    parts = []
    for key in map(str.strip, keys.split(",")):
        entry = sources[key]
        year = entry.fields["year"]
        text = (
            f"{authors(entry)} {year}"
            if brackets
            else f"{authors(entry)} ({year})"
        )
        where = address(entry)
        parts.append(f"[{text}]({where})" if where else text)
    return f"({'; '.join(parts)})" if brackets else ", ".join(parts)


@cache
def bibliography(path: Path) -> dict[str, Entry]:
    return parse_file(str(path)).entries


def authors(entry: Entry) -> str:
    """Return the family names, three and more as one and the others."""
    people = entry.persons.get("author") or entry.persons["editor"]
    names = [" ".join((*p.prelast_names, *p.last_names)) for p in people]
    names = [decoded(name) for name in names]
    if len(names) > 2:
        return f"{names[0]} et al."
    return " and ".join(names)


def decoded(name: str) -> str:
    """Return a name without TeX's accents and braces."""
    return re.sub("[{}]", "", codecs.decode(name, "ulatex"))


def address(entry: Entry) -> str | None:
    fields = entry.fields
    if "eprint" in fields:
        return f"https://arxiv.org/abs/{fields['eprint']}"
    if "doi" in fields:
        return f"https://doi.org/{fields['doi']}"
    return fields.get("url")


def term(text: str, root: Path) -> str:
    """Return a term, linked to the glossary: "shown <entry>" or the entry."""
    shown = re.sub(r"\s*<[^>]*>$", "", text)
    return f"[{shown}]({repository(root)['url']}/blob/main/book/glossary.md)"


ROLES: dict[str, Callable[[str, Path, dict[str, str]], str]] = {
    "cite:t": lambda text, root, _: cite(text, root, brackets=False),
    "cite:p": lambda text, root, _: cite(text, root, brackets=True),
    "term": lambda text, root, _: term(text, root),
    "eq": lambda text, _, labels: f"({labels[text]})",
}


def main() -> int:
    for name, text in copies().items():
        target = ROOT / PLAIN / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf8")
    print(f"Copies for Colab and other plain readers are in {PLAIN}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

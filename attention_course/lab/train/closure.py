"""What a piece of code stands on: the files of a package that it can reach, read without running it.

A digest of these files changes when a result may change, and seldom otherwise. Imports are followed
wherever they stand: in functions, relative ones, ``import_module`` of a constant name, programs in
strings. A package's ``__init__`` is followed name by name: ``from package import name`` leads to the
module that defines ``name``, not to all that its neighbours need. A module that does more than define
when it is imported counts for all who import it. Where nothing can be told, everything counts.
"""

import ast
import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: what an import names: dots before the module, the module, the name that is taken from it
Target = tuple[int, str, str | None]

#: a module that uses one of these can find the files beside it
FINDERS = {"__file__", "__path__", "__spec__", "get_data", "pkgutil", "resources"}
#: a name without dots that is handed to one of these is looked for, not used
ASKERS = {"Path", "find_spec", "version"}
#: cell magics whose body is Python
PYTHON_CELLS = ("%%capture", "%%prun", "%%time", "%%timeit")


def files_behind(code: str | Iterable[str], package: Path) -> list[Path]:
    """Return the files of ``package``, a folder, that ``code`` can reach, sorted.

    ``code`` is Python, or the code cells of a notebook with their ``%`` and ``!`` commands. What cannot
    be parsed can reach everything.
    """
    walk = _Walk(package)
    cells = [code] if isinstance(code, str) else list(code)
    try:
        walk.follow(_facts(tuple(cells)))
    except SyntaxError:
        walk.everything(package.name)
    return sorted(walk.counted)


def files_behind_names(names: Iterable[str], package: Path) -> list[Path]:
    """Return the files of ``package``, a folder, that whoever uses these full names can reach, sorted."""
    walk = _Walk(package)
    for name in names:
        walk.mention(name)
    return sorted(walk.counted)


def digest(files: Iterable[Path], root: Path, *more: str) -> str:
    """Digest ``more`` and the bytes of ``files`` with their names below ``root``."""
    result = hashlib.sha256(repr(more).encode())
    for path in sorted(set(files)):
        content = path.read_bytes()
        result.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        result.update(content)
    return result.hexdigest()[:16]


def below(folder: Path) -> Iterator[Path]:
    """Yield every file below ``folder`` but compiled and hidden ones."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and path.suffix != ".pyc" and not hidden:
            yield path


# What a source says ----------------------------------------------------------------------------


@dataclass
class Facts:
    """What a source imports and under which names, what it does with these names, what its strings say."""

    bound: dict[str, set[Target]] = field(default_factory=lambda: defaultdict(set))
    #: name -> the chains of attributes that are asked of it; () where it is used by itself
    uses: dict[str, set[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(set))
    #: text, and whether something unknown follows it
    strings: set[tuple[str, bool]] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    #: imports that run when the module is imported
    at_once: set[Target] = field(default_factory=set)
    acts: bool = False
    finds_files: bool = False


@functools.cache
def _facts(sources: tuple[str, ...]) -> Facts:
    """Read Python with IPython's commands. Raises a ``SyntaxError`` for what is none."""
    facts = Facts()
    for source in sources:
        try:  # most sources have no commands, and a line of theirs may begin with % all the same
            tree, commands = ast.parse(source), []
        except SyntaxError:
            python, commands = _without_commands(source)
            tree = ast.parse(python)
        for text in commands:
            facts.strings.add((text, False))
            facts.uses["!"].add(tuple(text.split()))
        for statement in tree.body:
            _at_import(facts, statement)
        _read(facts, tree)
    for text, _ in facts.strings:
        for name, chain in re.findall(r"\b([^\W\d]\w*)((?:\.[^\W\d]\w*)+)", text):
            facts.uses[name].add(tuple(chain[1:].split(".")))
    return facts


def _without_commands(source: str) -> tuple[str, list[str]]:
    """Part a cell's Python from its commands. Installing something uses nothing of it."""
    first, _, rest = source.lstrip().partition("\n")
    if first.startswith("%%") and not first.startswith(PYTHON_CELLS):
        return "", [first, rest]
    found = re.findall(r"^[ \t]*([%!].*)$", source, re.MULTILINE)
    python = re.sub(r"^([ \t]*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)
    return python, [text for text in found if not re.match(r"[%!]\s*pip\b", text)]


def _at_import(facts: Facts, statement: ast.stmt) -> None:
    """Note what a statement of a module's top level does when the module is imported."""
    match statement:
        case ast.Import() | ast.ImportFrom():
            facts.at_once.update(_targets(statement))
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            facts.defined.add(name)
        case ast.Assign() | ast.AnnAssign():
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for node in (node for target in targets for node in ast.walk(target)):
                if isinstance(node, ast.Name):
                    facts.defined.add(node.id)
                facts.acts |= isinstance(node, ast.Attribute | ast.Subscript)
        case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert():
            pass
        case ast.If() | ast.Try():
            for inner in ast.iter_child_nodes(statement):
                nested = inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                for node in nested:
                    if isinstance(node, ast.stmt):
                        _at_import(facts, node)
        case _:
            facts.acts = True
            for node in ast.walk(statement):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    facts.at_once.update(_targets(node))
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    facts.defined.add(node.id)


def _targets(node: ast.Import | ast.ImportFrom) -> Iterator[Target]:
    for name in node.names:
        if isinstance(node, ast.Import):
            yield 0, name.name, None
        else:
            yield node.level, node.module or "", name.name


def _read(facts: Facts, node: ast.AST) -> None:
    """Note what ``node`` and all below it import, use and say."""
    match node:
        case ast.Import() | ast.ImportFrom():
            for name, target in zip(node.names, _targets(node), strict=True):
                # without "as", `import a.b` binds a, and a.b is loaded
                root = target if name.asname or target[2] else (0, name.name.split(".")[0], None)
                facts.bound[name.asname or name.name.split(".")[0]].add(root)
                facts.bound[""].add(target)
                facts.finds_files |= not FINDERS.isdisjoint({*target[1].split("."), target[2]})
        case ast.Expr(value=ast.Constant()):
            pass  # a docstring speaks of modules, it does not use them
        case ast.Attribute() | ast.Name():
            chain: list[str] = []
            while isinstance(node, ast.Attribute):
                chain.insert(0, node.attr)
                node = node.value
            facts.finds_files |= not FINDERS.isdisjoint(chain)
            if isinstance(node, ast.Name):
                facts.uses[node.id].add(tuple(chain))
                facts.finds_files |= node.id in FINDERS
            else:
                _read(facts, node)
        case ast.Call(
            func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(text))]
        ) if name in ASKERS and re.fullmatch(r"[\w-]+", text):
            _read(facts, node.func)
        case ast.Constant(value=str(text)):
            facts.strings.add((text, False))
        case ast.JoinedStr():
            for part in node.values:
                if isinstance(part, ast.Constant):
                    facts.strings.add((part.value, part is not node.values[-1]))
                else:
                    _read(facts, part)
        case _:
            for child in ast.iter_child_nodes(node):
                _read(facts, child)


# From names to files ---------------------------------------------------------------------------


class _Walk:
    """Follows names through the modules of a package and counts the files they lead to."""

    def __init__(self, package: Path) -> None:
        self.folder, self.name = package, package.name
        self.counted: set[Path] = set()
        self.seen: set[tuple] = set()
        self.places: dict[str, Path | None] = {}
        self.sources: dict[str, Facts] = {}

    def once(self, *what: object) -> bool:
        """Whether this is asked for the first time."""
        first = what not in self.seen
        self.seen.add(what)
        return first

    def place(self, module: str) -> Path | None:
        """The file of a module or the ``__init__`` of a package; ``None`` where there is none."""
        first, *parts = module.split(".")
        if first != self.name:
            return None
        if module not in self.places:
            path = self.folder.joinpath(*parts)
            files = (path / "__init__.py", path.with_suffix(".py") if parts else path)
            self.places[module] = next((file for file in files if file.is_file()), None)
        return self.places[module]

    def facts(self, module: str) -> Facts:
        if module not in self.sources:
            self.sources[module] = _facts((self.place(module).read_text(encoding="utf8"),))
        return self.sources[module]

    def is_package(self, module: str) -> bool:
        return self.place(module).name == "__init__.py"

    def absolute(self, target: Target, importer: str) -> str:
        """The full name of the module that an import in the module ``importer`` starts from."""
        level, module, _ = target
        if not level:
            return module
        if not importer:  # a cell is in no package: such an import fails
            return ""
        parts = importer.split(".")
        if not self.is_package(importer):
            level += 1
        parts = parts[: len(parts) - level + 1]
        return ".".join([*parts, module]) if module else ".".join(parts)

    def follow(self, facts: Facts, importer: str = "", *, only_used: bool = False) -> None:
        """Count what a source reaches by its imports and its strings."""
        for name, targets in facts.bound.items():
            if only_used and name not in facts.uses:
                continue
            for target in targets:
                module = self.absolute(target, importer)
                taken = (target[2],) if target[2] else ()
                self.reach(module, taken, whole=False)
                for chain in facts.uses.get(name, ()):
                    self.reach(module, (*taken, *chain))
        for text, goes_on in facts.strings:
            self.read(text, goes_on)

    def reach(self, module: str, chain: tuple[str, ...] = (), *, whole: bool = True) -> None:
        """Count what ``module.a.b`` leads to, for a chain (a, b). A package alone is all if ``whole``."""
        while self.place(module) is None:  # a name in a module, not a module
            module, _, name = module.rpartition(".")
            chain = (name, *chain)
            if not module.startswith(self.name):
                return
        if not self.once("reach", module, chain, whole):
            return
        self.load(module)
        facts = self.facts(module)
        inside = chain and facts.bound.get(chain[0], ())
        for target in inside:
            taken = (target[2],) if target[2] else ()
            self.reach(self.absolute(target, module), (*taken, *chain[1:]), whole=whole)
        if not self.is_package(module):
            self.module(module)
        elif not chain:
            if whole:
                self.everything(module)
        elif chain[0] in facts.defined:
            self.module(module)
        elif self.place(f"{module}.{chain[0]}"):
            self.reach(f"{module}.{chain[0]}", chain[1:], whole=whole)
        elif not inside:
            self.everything(module)  # "*", __path__, or nothing that can be told

    def load(self, module: str) -> None:
        """Count the packages around a module, and what acts when they are imported."""
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if self.is_package(name):
                self.counted.add(self.place(name))
            self.imported(name)

    def imported(self, module: str) -> None:
        """Look for modules that do more than define among those that an import runs."""
        if self.place(module) is None or not self.once("imported", module):
            return
        facts = self.facts(module)
        if facts.acts:
            self.module(module)
        for target in facts.at_once:
            name = self.absolute(target, module)
            parts = [*name.split("."), *([target[2]] if target[2] else [])]
            for end in range(1, len(parts) + 1):
                self.imported(".".join(parts[:end]))

    def module(self, module: str) -> None:
        """Count a module, and all that its own code reaches; of a package's ``__init__``, what it uses."""
        if not self.once("module", module):
            return
        self.load(module)
        path, facts = self.place(module), self.facts(module)
        self.counted.add(path)
        if facts.finds_files:
            self.counted.update(self.beside(path.parent))
        self.follow(facts, module, only_used=self.is_package(module))

    def beside(self, folder: Path) -> Iterator[Path]:
        """Yield the data files in a folder of the package, and in its folders without modules."""
        for path in below(folder):
            between = [parent for parent in path.parents if folder in parent.parents]
            if path.suffix != ".py" and not any((parent / "__init__.py").exists() for parent in between):
                yield path

    def everything(self, package: str) -> None:
        """Count all of a package, and what it reaches."""
        if not self.once("everything", package):
            return
        folder = self.place(package).parent
        for path in below(folder):
            self.counted.add(path)
            if path.suffix == ".py":
                parts = path.relative_to(self.folder).with_suffix("").parts
                self.module(".".join([self.name, *(part for part in parts if part != "__init__")]))

    # Strings -------------------------------------------------------------------------------------

    def read(self, text: str, goes_on: bool = False) -> None:
        """Count the modules that a string names: a module's name, a command, a program."""
        command = self.name.replace("_", "-")
        if re.match(rf"(?:!\s*)?{command}(?:\s|$)", text):
            self.reach(f"{self.name}.cli")
        if self.name not in text:
            return
        program = self.program(text)
        if text == self.name:
            self.everything(self.name)
        elif program:
            self.follow(program)
        else:
            for found in re.finditer(rf"\b{self.name}((?:[./]\w+)*)(\.?)", text):
                parts = [part for part in re.split("[./]", found[1]) if part]
                open_end = found[2] and found.end() == len(text) and (goes_on or found.start() == 0)
                if parts or open_end:
                    self.mention(".".join([self.name, *parts]))

    def program(self, text: str) -> Facts | None:
        """What a string says if it is a program that imports something."""
        try:
            facts = _facts((text,))
        except SyntaxError:
            return None  # words, or a part of a program
        return facts if facts.bound else None

    def mention(self, name: str) -> None:
        """Count what a full name leads to: a module's, or that of something in a module."""
        first, *parts = name.split(".")
        if first == self.name:
            self.reach(self.name, tuple(parts))

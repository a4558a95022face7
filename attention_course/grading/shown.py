"""What of the course a notebook sees in its sandbox: what its given cells use, and nothing beside.

A notebook may be handed one function of a module that also holds answers. So a module is shown with
the names that are used of it, and with what these stand on: its other definitions are left out. Where
one of them is asked for, because a demonstration calls it, all functions of the module are shown as
stubs. Data that a notebook imports (``attention_course.lab``) are shown whole.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

_COURSE = Path(__file__).parents[1]
_ROOT = "attention_course"
#: these hold the answers
_HIDDEN = (f"{_ROOT}.checks", f"{_ROOT}.grading")
#: what is asked of a module: a name, or all of it
Wanted = tuple[str, str | None]


def shown(cells: Sequence[str], asked_for: Collection[str]) -> dict[str, bytes]:
    """Path within ``attention_course`` -> content of all that the Python of ``cells`` uses of the course.

    Args:
        asked_for: names of functions that must not be shown.
    """
    trees = [ast.parse(source) for source in cells]
    used_names: dict[str, set[str | None]] = {_ROOT: set()}
    waiting = list(_uses([node for tree in trees for node in ast.walk(tree)], whole_data=True))
    while waiting:
        module, name = waiting.pop()
        path = _path(module)
        if (
            path is None
            or _is_within(module, _HIDDEN)
            or (module in used_names and name in used_names[module])
        ):
            continue
        if module != _ROOT:
            waiting.append((module.rpartition(".")[0], ""))
        used_names.setdefault(module, set()).add(name)
        waiting += _uses(_nodes(_kept(path.read_text(encoding="utf-8"), used_names[module], asked_for)))
    return {
        str(path.relative_to(_COURSE)): _text(path, names, asked_for)
        for module, names in used_names.items()
        if (path := _path(module))
    }


def is_module(name: str) -> bool:
    """Whether ``name``, such as ``attention_course.masks``, is a module of the course."""
    return _path(name) is not None


def _text(path: Path, names: set[str | None], asked_for: Collection[str]) -> bytes:
    content = path.read_text(encoding="utf-8")
    if None in names and not _defines(ast.parse(content).body, asked_for):
        return content.encode()
    return (ast.unparse(ast.Module(_kept(content, names, asked_for), [])) + "\n").encode()


def _path(module: str) -> Path | None:
    path = _COURSE.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path if path.is_file() else None


def _is_within(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _nodes(statements: Iterable[ast.stmt]) -> list[ast.AST]:
    return [node for statement in statements for node in ast.walk(statement)]


# What code uses -------------------------------------------------------------------------------


def _uses(nodes: Sequence[ast.AST], *, whole_data: bool = False) -> Iterator[Wanted]:
    """Every name of a module of the course that is used, also as ``module.name``."""
    modules: dict[str, str] = {}  # the name here -> the module
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_within(alias.name, (_ROOT,)):
                    modules[alias.asname or _ROOT] = alias.name if alias.asname else _ROOT
                    yield alias.name, _all_of(alias.name) if whole_data else ""
        elif isinstance(node, ast.ImportFrom) and _is_within(node.module or "", (_ROOT,)):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if alias.name in _bound_in(node.module) or not _path(submodule):
                    yield node.module, None if alias.name == "*" else alias.name
                    if whole_data:
                        yield node.module, _all_of(node.module)
                else:
                    modules[alias.asname or alias.name] = submodule
                    yield submodule, _all_of(submodule) if whole_data else ""
    within = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            parts = _dotted(node)
            if parts and parts[0] in modules:
                module, *rest = modules[parts[0]], *parts[1:]
                while rest and rest[0] not in _bound_in(module) and _path(f"{module}.{rest[0]}"):
                    module = f"{module}.{rest.pop(0)}"
                yield module, rest[0] if rest else ""
                within.add(id(node.value))
            elif id(node) in within:
                within.add(id(node.value))
    for node in nodes:  # handed on as a whole
        if isinstance(node, ast.Name) and node.id in modules and id(node) not in within:
            yield modules[node.id], None


def _all_of(module: str) -> str | None:
    return None if _is_within(module, (f"{_ROOT}.lab",)) else ""


def _dotted(node: ast.Attribute) -> list[str]:
    """``["a", "b", "c"]`` for ``a.b.c``, nothing for anything else."""
    parts, inner = [], node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    return [inner.id, *reversed(parts)] if isinstance(inner, ast.Name) else []


# What a module keeps --------------------------------------------------------------------------


def _bound_in(module: str) -> set[str]:
    path = _path(module)
    if not path:
        return set()
    statements = _statements(path.read_text(encoding="utf-8"))
    return {name for statement in statements for name in _binds(statement)}


def _statements(content: str) -> Iterator[ast.stmt]:
    """The module's statements. What is imported for type checkers alone, the module loads when it is asked
    for; whoever is shown a part of it gets a plain import."""
    for statement in ast.parse(content).body:
        lazy = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
        yield from statement.body if lazy else (statement,)


def _kept(content: str, names: set[str | None], asked_for: Collection[str]) -> list[ast.stmt]:
    """The module's statements that define ``names``, and those on which these stand; without answers."""
    body = [statement for statement in _statements(content) if "__all__" not in _binds(statement)]
    kept = _closure(body, names)
    if not _defines(kept, asked_for):
        return kept
    for node in _nodes(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = ast.parse("raise NotImplementedError('not shown here: it is asked for')").body
    return _closure(body, names)


def _defines(statements: Iterable[ast.stmt], names: Collection[str]) -> bool:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return any(isinstance(statement, kinds) and statement.name in names for statement in statements)


def _closure(body: list[ast.stmt], names: set[str | None]) -> list[ast.stmt]:
    if None in names:
        return body
    needed, kept = set(names), set()
    while True:
        more = [
            place for place, statement in enumerate(body)
            if place not in kept and (not _binds(statement) or _binds(statement) & needed)
        ]  # fmt: skip
        if not more:
            break
        kept.update(more)
        for place in more:
            needed |= {node.id for node in ast.walk(body[place]) if isinstance(node, ast.Name)}
    return [_only(body[place], needed) for place in sorted(kept)]


def _binds(statement: ast.stmt) -> set[str]:
    """The names a statement defines; none where it has to run whatever is used (if, for, try, with)."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            return set()
        return {_bound_by(alias) for alias in statement.names}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        inner = [node for target in targets for node in ast.walk(target)]
        if not any(isinstance(node, ast.Subscript | ast.Attribute) for node in inner):
            return {node.id for node in inner if isinstance(node, ast.Name)}
    return set()


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _only(statement: ast.stmt, needed: set[str | None]) -> ast.stmt:
    """An import without the names that nobody needs."""
    if not isinstance(statement, ast.Import | ast.ImportFrom) or not _binds(statement):
        return statement
    aliases = [alias for alias in statement.names if _bound_by(alias) in needed]
    return type(statement)(**{**dict(ast.iter_fields(statement)), "names": aliases})

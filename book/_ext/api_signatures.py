"""Signatures on the reference page, as they stand in the source.

jaxtyping's annotations carry the shapes. Sphinx would print their internal
names; so each signature is read from the source instead, and a module's short
names for such annotations (``Lengths``) are written out. So are names of
classes of which the package has two (``Encoder``).
"""

import ast
import dataclasses
import inspect
import sys
import textwrap

from sphinx.application import Sphinx
from sphinx.config import Config

FIELD = ast.AnnAssign
DTYPES = {"Bool", "Float", "Int", "Shaped"}


def short_names(module: str) -> dict[str, ast.expr]:
    """Return the annotations a module gives a name: ``Query = Float[…]``."""
    source = inspect.getsource(sys.modules[module])
    return {
        statement.targets[0].id: statement.value
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Subscript)
        and isinstance(statement.value.value, ast.Name)
        and statement.value.value.id in DTYPES
    }


class WrittenOut(ast.NodeTransformer):
    """Put the annotation in the place of its short name."""

    def __init__(self, module: str) -> None:
        self.module, self.names = module, short_names(module)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.names:
            return self.names[node.id]
        own = getattr(sys.modules[self.module], node.id, None)
        if inspect.isclass(own) and has_namesake(own):
            name = f"{own.__module__.rpartition('.')[2]}.{node.id}"
            return ast.parse(name, mode="eval").body
        return node


def has_namesake(own: type) -> bool:
    """Return whether another class of the package has the same name."""
    found = (
        getattr(module, own.__name__, own)
        for name, module in sys.modules.items()
        if name.startswith("attention_course")
    )
    return any(inspect.isclass(other) and other is not own for other in found)


def signature(something: object) -> tuple[str, str] | None:
    """Return arguments and result of a function or a class, or ``None``."""
    if dataclasses.is_dataclass(something):
        source = textwrap.dedent(inspect.getsource(something))
        (own,) = ast.parse(source).body
        fields = [ast.unparse(s) for s in own.body if isinstance(s, FIELD)]
        return f"(*, {', '.join(fields)})", ""
    if inspect.isclass(something):
        if issubclass(something, tuple):
            return None  # a named tuple: its fields are its arguments
        written = signature(something.__init__)
        own = something.__init__.__module__.startswith("attention_course")
        return (written[0], "") if written and own else ("()", "")
    if not inspect.isfunction(something):
        return None
    source = textwrap.dedent(inspect.getsource(something))
    (function,) = ast.parse(source).body
    function = WrittenOut(something.__module__).visit(function)
    arguments = function.args
    if arguments.args and arguments.args[0].arg in {"self", "cls"}:
        del arguments.args[0]
    result = ast.unparse(function.returns) if function.returns else ""
    return f"({ast.unparse(arguments)})", result


def as_written(
    app: Sphinx,
    what: str,
    name: str,
    something: object,
    options: object,
    arguments: str | None,
    returns: str | None,
) -> tuple[str, str] | None:
    if what not in {"function", "method", "class"}:
        return None
    try:
        return signature(getattr(something, "__func__", something))
    except (OSError, TypeError):  # made by Python, as a named tuple's is
        return None


def configure(app: Sphinx, config: Config) -> None:
    """Types are words here, not links; long signatures take several lines."""
    config.nitpick_ignore_regex = [("py:.*", ".*")]
    config.add_module_names = False
    config.autodoc_inherit_docstrings = False  # torch's say nothing of ours
    config.autodoc_member_order = "bysource"
    config.python_maximum_signature_line_length = 60


def setup(app: Sphinx) -> dict:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("config-inited", configure)
    app.connect("autodoc-process-signature", as_written)
    return {
        "version": "1",
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }

"""Writes `docs/graphreplay-api.md` from the docstrings of graphreplay's public names.

    python scripts/api_docs.py [--check]

Reads the source and imports nothing of it, so that it needs neither torch nor lightning. Public is what a module of
`PAGES` lists in `__all__`, or, where it has none, what it defines without a leading underscore. With `--check` it
writes nothing and exits with 1 where the page is not current.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "graphreplay-api.md"
LIBRARY = ROOT / "library"
PAGES = (
    "graphreplay",
    "graphreplay.testing",
    "graphreplay.testing.rehearsal",
    "graphreplay.optim",
    "graphreplay.tasks.batch",
    "graphreplay.tasks.scenes",
    "graphreplay.tasks.networks",
    "graphreplay.tasks.losses",
    "graphreplay.tasks.metrics",
    "graphreplay.tasks.modules",
    "graphreplay.tasks.errors",
    "graphreplay.tasks.parity",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
HEAD = """\
# graphreplay: the public names

Made of the docstrings by `python scripts/api_docs.py`. How to begin is in [replay.md](replay.md).
"""


class Source(NamedTuple):
    """A module's text, parsed."""

    name: str
    tree: ast.Module

    @classmethod
    def of(cls, name: str) -> Source:
        """The module of that dotted name."""
        path = LIBRARY.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return cls(name, ast.parse(file.read_text(encoding="utf-8")))

    def public(self) -> list[str]:
        """Its public names, as `__all__` orders them or as they are defined."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(_is_name(target, "__all__") for target in node.targets):
                return list(ast.literal_eval(node.value))
        return [name for node in self.tree.body for name in _defined(node) if not name.startswith("_")]

    def find(self, name: str) -> ast.stmt | None:
        """Where `name` is defined, here or where it is imported from."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("graphreplay"):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return Source.of(node.module).find(alias.name)
        return next((node for node in self.tree.body if name in _defined(node)), None)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def page() -> str:
    """The whole page.

    Raises:
        LookupError: A public name is nowhere defined, or a class or function has no docstring.
    """
    return "\n".join([HEAD, *(part for name in PAGES for part in module(Source.of(name)))])


def module(source: Source) -> Iterator[str]:
    """One module's section."""
    yield f"## `{source.name}`\n"
    yield f"{ast.get_docstring(source.tree)}\n"
    values = []
    for name in source.public():
        node = source.find(name)
        if node is None:
            raise LookupError(f"{source.name}.{name} is public and nowhere defined")
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            values.append(f"- `{name} = {ast.unparse(node.value)}`" if node.value else f"- `{name}`")
        elif isinstance(node, ast.ClassDef):
            yield from klass(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from function(node, "###", node.name)
    if values:
        yield "### Values\n"
        yield "\n".join(values) + "\n"


def klass(node: ast.ClassDef) -> Iterator[str]:
    """A class with what its instances can be asked for."""
    start = next((one for one in node.body if isinstance(one, Function) and one.name == "__init__"), None)
    yield f"### `{node.name}{_arguments(start) if start else ''}`\n"
    bases = [ast.unparse(base) for base in node.bases]
    if bases:
        yield f"Of {', '.join(f'`{base}`' for base in bases)}.\n"
    yield told(node, node.name)
    members = [ast.unparse(one) for one in node.body if isinstance(one, ast.Assign) and "Enum" in bases]
    if members:
        yield "\n".join(f"- `{member}`" for member in members) + "\n"
    for one in node.body:
        if isinstance(one, Function) and not one.name.startswith("_") and ast.get_docstring(one):
            yield from function(one, "####", f"{node.name}.{one.name}")


def function(node: Function, level: str, name: str) -> Iterator[str]:
    """A function, method or property."""
    is_property = any(_is_name(decorator, "property") for decorator in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    yield f"{level} `{name}{'' if is_property else _arguments(node)}{returns}`\n"
    yield told(node, name)


def _arguments(node: Function) -> str:
    """The arguments in parentheses, without `self`."""
    found = ast.unparse(node.args)
    for first in ("self", "cls"):
        if found == first or found.startswith(f"{first}, "):
            found = found[len(first) :].removeprefix(", ")
    return f"({found})"


def told(node: ast.ClassDef | Function, name: str) -> str:
    """The docstring as Markdown: sections become lists.

    Raises:
        LookupError: There is none.
    """
    text = ast.get_docstring(node)
    if not text:
        raise LookupError(f"{name} is public and has no docstring")
    lines: list[str] = []
    section = False
    for line in inspect.cleandoc(text).splitlines():
        head = line.removesuffix(":")
        if head in ("Args", "Attributes", "Returns", "Raises", "Example") and line.endswith(":"):
            lines.append(f"{head}:\n")
            section = head in ("Args", "Attributes", "Raises")
        elif section and line.startswith("    ") and not line.startswith("     "):
            word, _, rest = line.strip().partition(": ")
            lines.append(f"- `{word}`: {rest}")
        elif section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            section = section and not line.strip()
            lines.append(line)
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Writes or checks."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/graphreplay-api.md is not current: run python scripts/api_docs.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

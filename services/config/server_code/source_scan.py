"""Scans a Python file for its dependencies: imports, file names, and Rollyard's extras."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

_IMPORTERS = frozenset({"import_module", "__import__", "find_spec"})


@dataclass(frozen=True)
class Source:
    """The result of scanning one Python file; empty for a file that is not Python."""

    imports: frozenset[str] = frozenset()
    """Absolute dotted names of imported modules, and of the names imported from them, which may also be modules."""
    texts: frozenset[str] = field(default=frozenset(), repr=False)
    """String constants except docstrings; in f-strings, `*` replaces the values."""
    extras: frozenset[str] = frozenset()
    """Rollyard's extras that the code requires: `require("torch", "train")`."""
    is_script: bool = False
    """The file contains an `if __name__ == "__main__"` block."""


def read_source(path: Path, package: str) -> Source:
    """Scan a file. `package` is the package of the module, which is needed to resolve relative imports."""
    try:
        return _source(path.read_bytes(), package)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return Source()


@lru_cache(maxsize=1024)
def _source(text: bytes, package: str) -> Source:
    """Cached, because servers in the same process share most of their code."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return Source(
        imports=frozenset(name for node in nodes for name in _imports(node, package)),
        texts=frozenset(text for node in nodes if id(node) not in docstrings for text in _text(node)),
        extras=frozenset(extra for node in nodes for extra in _extra(node)),
        is_script=any(isinstance(node, ast.If) and _compares_name(node.test) for node in tree.body),
    )


def _compares_name(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        with suppress(ImportError):
            if node.level:
                module = importlib.util.resolve_name("." * node.level + module, package)
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))
    elif isinstance(node, ast.Call) and _called_name(node) in _IMPORTERS:
        yield from filter(None, map(_constant, node.args[:1]))


def _text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(_constant(part) or "*" for part in node.values)
    elif text := _constant(node):
        yield text


def _extra(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and _called_name(node) == "require":
        yield from filter(None, map(_constant, node.args[1:2]))


def _called_name(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def _constant(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""

"""The Python modules of a checkout, found and read without importing them. It uses only the standard library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ("resources_servers", "responses_api_models", "agents")
PACKAGES = ("records", "services", *PLUGINS, "analysis", "launchers", "training", "cli")
"""The folders of the product, to which links in src/rollyard lead."""
TEST_PACKAGES = ("tests", "benchmarks", "examples")


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the path of every module, relative to `root`, by its dotted name."""
    found = {}
    for package in (*PACKAGES, *TEST_PACKAGES):
        for path in (root / package).rglob("*.py"):
            name = _name(path.relative_to(root))
            found[name if package in TEST_PACKAGES else f"rollyard.{name}"] = path.relative_to(root)
    own = root / "src" / "rollyard"
    for path in own.rglob("*.py"):  # what the links in it lead to is above
        found[_name(path.relative_to(own.parent))] = path.relative_to(root)
    return found


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.Module) -> set[str]:
    """Return the names of modules that a module imports anywhere in its code, and of what it imports from them."""
    names: set[str] = set()
    for statement in _statements(tree):
        if isinstance(statement, ast.Import):
            names.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names.update((statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)))
    return names


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the statements at all depths, which alone can import, without their expressions."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, block, ())

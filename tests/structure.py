"""Measures the layout of the code. `python -m tests.structure` prints the numbers and fails if a rule is broken."""

from __future__ import annotations

import ast
import gc
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from tests.modules import PACKAGES, PLUGINS, ROOT, imported
from tests.modules import modules as modules_of_checkout
from tests.support.jsonl_parsers import parses_jsonl

SOURCE = ROOT / "src"
JSONL_PARSERS = 1
PARTS = {
    "records": (),
    "play": ("records",),
    "read": ("records",),
    "launch": ("records", "play"),
    "learn": ("records", "play"),
    "cli": ("records", "play", "read", "launch", "learn", "api"),
    "api": ("records", "play", "read"),
}
"""The parts of the code, and what a module of each may import besides its own part (ARCHITECTURE.md)."""
FORBIDDEN_IMPORTS = 5
FOLDER_CIRCLES = 9
"""How many imports against the table and circles of folders are left. The redesign ends with 0 of both."""
PART_OF_FOLDER = {
    "records": "records",
    **dict.fromkeys(("services", *PLUGINS), "play"),
    "analysis": "read",
    "launchers": "launch",
    "training": "learn",
    "cli": "cli",
}
"""The part of a folder at the root. What is in src/rollyard itself is the part `api`."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, reached through the links in src/rollyard."""
    files = modules_of_checkout().items()
    return {name: SOURCE / "rollyard" / path for name, path in files if path.parts[0] in PACKAGES}


class Source(NamedTuple):
    """What the syntax tree of a file tells. The trees are not kept: there are a million nodes."""

    imports: frozenset[str]
    """Modules, and names in them, that it imports anywhere."""
    has_docstring: bool
    parses_jsonl: bool


@cache
def sources() -> dict[str, Source]:
    """Every module of the package by its dotted name."""
    return dict(zip(modules(), read_sources(modules().values()), strict=True))


def read_sources(paths: Iterable[Path]) -> list[Source]:
    gc.disable()  # syntax trees have no cycles, and collections would take most of the time
    try:
        return [_read_source(path.read_text()) for path in paths]
    finally:
        gc.enable()


def _read_source(text: str) -> Source:
    tree = ast.parse(text)
    return Source(frozenset(imported(tree)), bool(ast.get_docstring(tree)), parses_jsonl(text, tree))


@cache
def imports_of(name: str) -> frozenset[str]:
    """Modules of the package that a module imports anywhere."""
    return frozenset(found for found in sources()[name].imports if found in modules() and "." in found)


def import_circle() -> list[str]:
    """The modules of an import cycle; empty if there is none."""
    graph = {name: imports_of(name) - {name} for name in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def forbidden_imports() -> list[str]:
    """Imports that the table of parts does not allow. Programs (`if __name__ == "__main__"`) may import every part."""
    return [
        f"{name} imports {used}"
        for name, path in modules().items()
        if 'if __name__ == "__main__"' not in path.read_text()
        for used in sorted(imports_of(name))
        if part_of(used) not in (part_of(name), *PARTS[part_of(name)])
    ]


def part_of(name: str) -> str:
    """The part of a module."""
    return PART_OF_FOLDER.get(f"{name}.".split(".")[1], "api")


def folder_circles() -> list[list[str]]:
    """Folders whose modules import each other, directly or through other folders; the largest circle first."""
    graph: dict[str, set[str]] = {}
    for name, path in modules().items():
        folder = str(path.parent)
        used = {str(modules()[other].parent) for other in imports_of(name)}
        graph.setdefault(folder, set()).update(used - {folder})
    circles = [circle for circle in strongly_connected(graph) if len(circle) > 1]
    return sorted(
        ([folder.removeprefix(f"{SOURCE}/rollyard/") for folder in sorted(circle)] for circle in circles),
        key=len,
        reverse=True,
    )


def strongly_connected(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of a directed graph (Tarjan 1972, SIAM J. Comput. 1(2))."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(set(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def line_counts() -> dict[str, int]:
    """Lines of every module that holds code."""
    counts = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    return {name: count for name, count in counts.items() if count > 1}


def folder_sizes() -> Counter[str]:
    """Number of Python and JavaScript files directly in each folder, without `__init__.py` and vendored files."""
    scripts = (SOURCE / "rollyard" / "analysis" / ".").rglob("*.js")
    files = [*modules().values(), *(path for path in scripts if "vendor" not in path.parts)]
    return Counter(str(path.parent.relative_to(SOURCE / "rollyard")) for path in files if path.name != "__init__.py")


def modules_parsing_jsonl() -> list[str]:
    return [name for name, source in sources().items() if source.parses_jsonl]


def broken_bounds() -> list[str]:
    """Return a sentence for each rule that is broken."""
    broken = forbidden_imports()
    if circle := import_circle():
        broken.append(f"import circle: {' -> '.join(circle)}")
    if len(parsers := modules_parsing_jsonl()) > JSONL_PARSERS:
        broken.append(f"{len(parsers)} modules parse JSONL, at most {JSONL_PARSERS}: {', '.join(parsers)}")
    return broken


def main() -> int:
    lines = line_counts()
    longest = max(lines, key=lambda name: lines[name])
    folder, files = folder_sizes().most_common(1)[0]
    print(f"modules               {len(lines)}")
    print(f"median file           {statistics.median(lines.values()):.0f} lines")
    print(f"longest file          {lines[longest]} lines, {longest}")
    print(f"largest flat folder   {files} files, {folder}")
    print(f"import circles        {int(bool(import_circle()))} (0)")
    print(f"forbidden imports     {len(forbidden_imports())} (0)")
    print(f"circles of folders    {len(folder_circles())} (0)")
    print(f"modules parsing JSONL {len(modules_parsing_jsonl())} ({JSONL_PARSERS})")
    broken = broken_bounds()
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

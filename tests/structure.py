"""Measures the layout of the code. `make structure` prints the numbers and fails if a rule is broken."""

from __future__ import annotations

import ast
import asyncio
import gc
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from tests.modules import PACKAGES, PLUGINS, ROOT, imported
from tests.modules import modules as modules_of_checkout
from tests.rollout_trace import trace

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
FORBIDDEN_IMPORTS = 0
"""How many imports against the table are left. The redesign ends with 0."""
PART_OF_FOLDER = {
    "records": "records",
    **dict.fromkeys(("services", *PLUGINS), "play"),
    "analysis": "read",
    "launchers": "launch",
    "training": "learn",
    "cli": "cli",
    "interop": "learn",
}
"""The part of a folder at the root. What is in src/rollyard itself is the part `api`."""
TARGETS = {
    "lines of product Python": (121_382, 85_000),
    "its files": (1_325, 450),
    "its folders": (145, 45),
    "lines of the viewer's scripts and styles": (7_684, 5_500),
    "lines of tests": (102_760, 65_000),
    "circles of modules": (0, 0),
    "circles of folders": (18, 0),
    "imports against the table of parts": (103, 0),
    "files of one rollout": (60, 25),
    "jumps between them": (702, 271),
    "modules that ng_collect_rollouts imports": (157, 60),
    "modules that a server imports": (62, 40),
    "modules that ng_viewer imports": (386, 120),
    "class names that occur twice": (80, 20),
    "modules that parse JSON Lines": (1, 1),
}
"""What is measured -> its value at 0456cd10, on 28 November 2026, and what it shall be at most.

A jump is a call from a function in one file into one in another, while a room is played through `/run`. The design
counts them in another way, 388 with a target of 150: the target here is the same share."""


LINES = {"line", "raw"}
PARSERS = {"loads", "_loads", "parse", "parsed", "lenient", "strict", "model_validate_json", "validate_json"}
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


_WORDS = [re.compile(rf"\b(?:{'|'.join(names)})\b") for names in (LINES, PARSERS)]


def parses_jsonl(text: str, tree: ast.AST) -> bool:
    if not all(words.search(text) for words in _WORDS):
        return False  # quickly
    loops = (loop for loop in ast.walk(tree) if isinstance(loop, LOOPS))
    calls = (node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call) and node.args)
    return any(_called(call) in PARSERS and any(_names(each) & LINES for each in call.args) for call in calls)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, reached through the links in src/rollyard."""
    files = modules_of_checkout().items()
    linked = {name: SOURCE / "rollyard" / path for name, path in files if path.parts[0] in PACKAGES}
    return linked | {name: ROOT / path for name, path in files if path.parts[0] == "src"}


class Source(NamedTuple):
    """What the syntax tree of a file tells. The trees are not kept: there are a million nodes."""

    imports: frozenset[str]
    """Modules, and names in them, that it imports anywhere."""
    classes: tuple[str, ...]
    """Classes at its top level."""
    has_docstring: bool
    parses_jsonl: bool


@cache
def sources() -> dict[str, Source]:
    return dict(zip(modules(), read_sources(modules().values()), strict=True))


def read_sources(paths: Iterable[Path]) -> list[Source]:
    gc.disable()  # syntax trees have no cycles, and collections would take most of the time
    try:
        return [_read_source(path.read_text()) for path in paths]
    finally:
        gc.enable()


def _read_source(text: str) -> Source:
    tree = ast.parse(text)
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return Source(frozenset(imported(tree)), classes, bool(ast.get_docstring(tree)), parses_jsonl(text, tree))


@cache
def imports_of(name: str) -> frozenset[str]:
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


def class_names_twice() -> list[str]:
    """Names of classes that more than one module defines."""
    counts = Counter(name for source in sources().values() for name in source.classes)
    return sorted(name for name, count in counts.items() if count > 1)


def modules_at_import(name: str) -> int:
    """How many modules of ours a new process has loaded after it imported one."""
    code = f"import sys, {name}\nprint(sum(name.startswith('rollyard.') for name in sys.modules))"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def _lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def _files(folder: Path, *endings: str) -> list[Path]:
    found = (path for ending in endings for path in folder.rglob(f"*{ending}"))
    return [path for path in found if not {"vendor", "node_modules", "__pycache__"} & set(path.parts)]


def measured() -> dict[str, int]:
    """What the redesign is to make smaller, by the names of `TARGETS`."""
    files = list(modules().values())
    with tempfile.TemporaryDirectory() as scratch:
        rollout = asyncio.run(trace(Path(scratch)))
    return {
        "lines of product Python": _lines(files),
        "its files": len(files),
        "its folders": len({path.parent for path in files}),
        "lines of the viewer's scripts and styles": _lines(_files(ROOT / "analysis", ".js", ".css")),
        "lines of tests": _lines(_files(ROOT / "tests", ".py", ".js", ".mjs")),
        "circles of modules": int(bool(import_circle())),
        "circles of folders": len(folder_circles()),
        "imports against the table of parts": len(forbidden_imports()),
        "files of one rollout": len(rollout.files),
        "jumps between them": rollout.jumps.total(),
        "modules that ng_collect_rollouts imports": modules_at_import("rollyard.cli.collect_rollouts"),
        "modules that a server imports": modules_at_import("rollyard.services.runtime.serve"),
        "modules that ng_viewer imports": modules_at_import("rollyard.cli.viewer"),
        "class names that occur twice": len(class_names_twice()),
        "modules that parse JSON Lines": len(modules_parsing_jsonl()),
    }


def modules_parsing_jsonl() -> list[str]:
    return [name for name, source in sources().items() if source.parses_jsonl]


def broken_bounds() -> list[str]:
    broken = forbidden_imports()
    broken += [f"circle of folders: {', '.join(circle)}" for circle in folder_circles()]
    if circle := import_circle():
        broken.append(f"import circle: {' -> '.join(circle)}")
    if len(parsers := modules_parsing_jsonl()) > JSONL_PARSERS:
        broken.append(f"{len(parsers)} modules parse JSONL, at most {JSONL_PARSERS}: {', '.join(parsers)}")
    return broken


def main() -> int:
    print(f"{'':42}{'28 Nov':>8}{'now':>8}{'target':>8}")
    for name, now in measured().items():
        before, target = TARGETS[name]
        print(f"{name:42}{before:8}{now:8}{target:8}{'' if now <= target else '  above'}")
    broken = broken_bounds()
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

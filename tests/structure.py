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

from tests.modules import PACKAGES, ROOT, imported
from tests.modules import modules as modules_of_checkout
from tests.support.jsonl_parsers import parses_jsonl

SOURCE = ROOT / "src"
JSONL_PARSERS = 1
LAYERS = (
    ("types", "run_types", "rollout_types", "token_types", "verdict_fields", "errors", "backoff"),
    ("io",),
    ("http", "responses"),
    ("server",),
    ("config", "head", "datasets", "expressions"),
    ("rollouts", "notes", "metrics", "sandbox"),
    PACKAGES[1:4],
    ("runtime",),
    ("charts",),
    ("findings",),
    ("report", "viewer", "tracking", "evaluation"),
    ("interop", "launchers", "training"),
    ("cli",),
)
"""Packages from the lowest layer up: a module imports from its own layer and from those below it."""


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


def upward_imports() -> list[str]:
    """Imports of a package in a higher layer. Programs (`if __name__ == "__main__"`) are above all layers."""
    layers = {package: number for number, packages in enumerate(LAYERS) for package in packages}
    return [
        f"{name} imports {used}"
        for name, path in modules().items()
        if 'if __name__ == "__main__"' not in path.read_text()
        for used in sorted(imports_of(name))
        if layers[_package(used)] > layers[_package(name)]
    ]


def _package(name: str) -> str:
    """The package of `services/` that contains a module, or the plug-in family."""
    _, family, *rest = name.split(".")
    return rest[0] if family == "services" and rest else family


def line_counts() -> dict[str, int]:
    """Lines of every module that holds code."""
    counts = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    return {name: count for name, count in counts.items() if count > 1}


def folder_sizes() -> Counter[str]:
    """Number of Python and JavaScript files directly in each folder, without `__init__.py` and vendored files."""
    scripts = (SOURCE / "rollyard" / "services" / ".").rglob("*.js")
    files = [*modules().values(), *(path for path in scripts if "vendor" not in path.parts)]
    return Counter(str(path.parent.relative_to(SOURCE / "rollyard")) for path in files if path.name != "__init__.py")


def modules_parsing_jsonl() -> list[str]:
    return [name for name, source in sources().items() if source.parses_jsonl]


def broken_bounds() -> list[str]:
    """Return a sentence for each rule that is broken."""
    broken = upward_imports()
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
    print(f"upward imports        {len(upward_imports())} (0)")
    print(f"modules parsing JSONL {len(modules_parsing_jsonl())} ({JSONL_PARSERS})")
    broken = broken_bounds()
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

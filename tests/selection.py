"""Selects the suites that CI runs in full: those of which something changed since the newest commit older than a day.

`python -m tests.selection` prints each suite, whether it runs in full or only its smoke test, and why; with `--full`,
only the names of those that run in full. A suite is a target of the Makefile whose recipe has `$(SMOKE)`. It depends on

- the folders and files of tests that its recipe names, and the locks of the environments that it needs (the Makefile);
- every module that these tests import, directly or through helpers of tests;
- the commands and server folders that run in other processes: named by strings in the tests, or on pages named there;
- what is imported from there within a package (a folder of a part, or a server's folder). Imports of other packages
  are not followed: each suite would reach half of the code. Faults there are for `make test` and the smoke tests;
- records and wire types;
- other files, such as scripts and configs, in packages on which it depends, and those that the tests name; modules that
  the tests run by their path, and files of examples/, only if the tests name the whole path.

Every suite runs in full if FULL is set, if .ci/ or the selection changed, or if no commit is older than a day. This
module uses only the standard library.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.modules import ROOT, TEST_PACKAGES, imported, modules

ALWAYS = (".ci/", "tests/selection.py", "tests/modules.py")
"""What decides which suites run: a change of it runs all of them."""
RECORDS = re.compile(r"rollyard\.records\.(?:\w*types|verdict_fields|errors)")
"""Modules of records and wire types, on which every suite depends."""
WORD = re.compile(r"[\w.-]*\w")
NAMES_NO_DEPENDENCY = ("Makefile", "README.md")
"""Names of files that tests name, but whose change is a reason to run them only if they name the path, too."""


@dataclass(frozen=True)
class Suite:
    name: str
    tests: tuple[str, ...]
    """Folders and files, relative to the root."""
    locks: frozenset[str]
    """Files in requirements/."""


class Tree:
    """The Python modules of a checkout by their dotted names, and what each depends on."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def modules(self) -> dict[str, str]:
        return {name: str(path) for name, path in modules(self.root).items()}

    @cached_property
    def named(self) -> dict[str, set[str]]:
        """What runs in another process, by the word with which tests name it: commands, and folders of servers."""
        found: dict[str, set[str]] = {}
        for module in self.modules:
            if command := re.fullmatch(r"rollyard\.cli\.(\w+)", module):
                found.setdefault(f"ng_{command[1]}", set()).add(module)
            elif server := re.fullmatch(r"rollyard\.\w+\.(\w+)\.app", module):
                found.setdefault(server[1], set()).add(module)
        return found

    @cached_property
    def pages(self) -> dict[str, Path]:
        """The pages of the documentation, whose commands tests run, by file name; without the page of all projects, of
        which each suite runs its own.
        """
        return {path.name: path for path in (self.root / "docs").rglob("*.md") if path.name != "coming-from.md"}

    def text(self, module: str) -> str:
        return (self.root / self.modules[module]).read_text()

    def words(self, text: str) -> set[str]:
        """What a text names: its words, and those of the pages that are among them."""
        found = set(WORD.findall(text))
        return found.union(*(WORD.findall(self.pages[name].read_text()) for name in found & self.pages.keys()))

    def direct(self, module: str) -> set[str]:
        """Modules that a module imports anywhere in its code; for a test, also those of processes that it starts."""
        tree = ast.parse(self.text(module))
        wanted = imported(tree)
        if is_test(module):
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words = self.words(node.value)
                    wanted |= {*words, *(started for word in words for started in self.named.get(word, ()))}
        parents = {name.rsplit(".", n)[0] for name in wanted for n in range(1, name.count(".") + 1)}
        return (wanted | parents) & self.modules.keys()

    @cached_property
    def _known(self) -> dict[str, set[str]]:
        return {}

    def uses(self, module: str) -> set[str]:
        """The result of `direct`, computed once."""
        if module not in self._known:
            self._known[module] = self.direct(module)
        return self._known[module]

    def reached(self, suite: Suite) -> set[str]:
        own = {name for name, path in self.modules.items() if path.startswith(suite.tests)}
        pending = [*own, *(name for name in self.modules if name.endswith("conftest") and is_above(name, own))]
        pending += filter(RECORDS.fullmatch, self.modules)
        found: set[str] = set()
        while pending:
            module = pending.pop()
            if module not in found:
                found.add(module)
                leads_on = is_test(module) or module.startswith("rollyard.cli.")
                pending += (used for used in self.uses(module) if leads_on or package(used) == package(module))
        return found

    def reason(self, suite: Suite, changed: Iterable[str]) -> str | None:
        """Return the first changed file on which a suite depends; None if there is none."""
        reached = self.reached(suite)
        files = {self.modules[name] for name in reached}
        folders = {path.rpartition("/")[0] for path in files if not path.startswith(TEST_PACKAGES)}
        texts = [self.text(name) for name in reached if is_test(name)]
        words = {word for text in texts for word in self.words(text)}
        for path in changed:
            folder, _, file = path.rpartition("/")
            if path in files or path.startswith(suite.tests) or path in suite.locks:
                return path
            if folder and any(path in text for text in texts):
                return path
            if path.endswith(".py") or path.startswith(TEST_PACKAGES) or file in NAMES_NO_DEPENDENCY:
                continue
            if self.is_inside(folder, folders) or file in words:
                return path
        return None

    def is_inside(self, folder: str, packages: set[str]) -> bool:
        """True for one of these packages, and for a folder without Python code below one."""
        while folder and folder not in packages:
            if any((self.root / folder).glob("*.py")):
                return False
            folder = folder.rpartition("/")[0]
        return bool(folder)


def package(module: str) -> str:
    """The package of a module: `rollyard.services.http` for what is below it, all of `rollyard.training`."""
    return ".".join(module.split(".")[: 2 if module.startswith("rollyard.training.") else 3])


def is_test(module: str) -> bool:
    return module.startswith(TEST_PACKAGES)


def is_above(conftest: str, modules: Iterable[str]) -> bool:
    """True for a conftest that pytest loads for one of these modules."""
    return any(module.startswith(conftest.removesuffix("conftest")) for module in modules)


def suites(root: Path = ROOT) -> list[Suite]:
    """Read the suites from the Makefile."""
    makefile = (root / "Makefile").read_text()
    rules = re.findall(r"^(test-[a-z-]+):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    return [suite(name, root) for name, recipe in rules if "$(SMOKE)" in recipe]


def suite(name: str, root: Path) -> Suite:
    """Return the suite of a target, from the commands that make would run to make everything that it needs."""
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", name]
    printed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    tested = " ".join(line for line in printed.splitlines() if " -m pytest " in line)
    tests = tuple(sorted(set(re.findall(r"(?<=[ =])tests/[\w/.-]+", tested)) - ignored(tested)))
    locks = {"all", *re.findall(r"--(?:lock|sources) ([\w-]+)", printed)}
    return Suite(name, tests, frozenset(f"requirements/{lock}.lock" for lock in locks))


def ignored(printed: str) -> set[str]:
    return set(re.findall(r"--ignore=(\S+)", printed))


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def changed_files() -> tuple[str, list[str]] | None:
    """The newest commit older than a day, and every file that differs from it; None if there is no such commit."""
    try:
        base = git("rev-list", "-1", "--before=1 day ago", "HEAD")
        if not base:
            return None
        new = git("ls-files", "--others", "--exclude-standard")
        return base, sorted({*git("diff", "--name-only", "--no-renames", base).split("\n"), *new.split("\n")} - {""})
    except (OSError, subprocess.CalledProcessError):
        return None


def reasons(tree: Tree, known: list[Suite], changed: list[str]) -> dict[str, str | None]:
    """Return for each suite the changed file for which it runs in full; None if only its smoke test runs."""
    deciding = next((path for path in changed if path.startswith(ALWAYS)), None)
    return {suite.name: deciding or tree.reason(suite, changed) for suite in known}


def plan() -> tuple[str, dict[str, str | None]]:
    known = suites()
    if os.environ.get("FULL"):
        return "FULL is set", {suite.name: "FULL" for suite in known}
    found = changed_files()
    if found is None:
        return "no commit older than a day", {suite.name: "nothing to compare with" for suite in known}
    base, changed = found
    headline = f"{len(changed)} files changed since {git('log', '-1', '--format=%h (%cs: %s)', base)}"
    return headline, reasons(Tree(ROOT), known, changed)


def main(arguments: list[str]) -> int:
    headline, found = plan()
    if arguments == ["--full"]:
        print("\n".join(name for name, reason in found.items() if reason))
        return 0
    print(headline)
    for name, reason in found.items():
        print(f"{name:18} {f'in full: {reason}' if reason else 'smoke test'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

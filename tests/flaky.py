"""Run changed tests many times on a busy machine. `make flaky` lists each test that fails in any round.

A round is one run of pytest as `make test` starts it, so the fixtures of a session are made again in each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.modules import ROOT
from tests.mutation.selection import SUITES, Imports, is_test
from tests.mutation.suites import git, newest_older_than_a_day

FOLDERS = (*SUITES, "tests/walkthroughs", "tests/faults")
"""What runs in this environment. Others are run in theirs: `.venv-vllm/bin/python -m tests.flaky FILE...`."""
_FEW = 10
"""A changed helper that more test files import is not followed: that would be the whole suite."""
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"
"""Ends with its parent, even if that is killed."""


def changed_tests(changed: Iterable[str], imports: Imports) -> list[str]:
    """Return the changed test files, and the test files that import a changed helper, unless they are many."""
    found: set[str] = set()
    for path in changed:
        if is_test(path, FOLDERS):
            found.add(path)
        elif path.startswith("tests/") and path.endswith(".py") and (imports.root / path).exists():
            users = [user for user in imports.users_of(path) if is_test(user, FOLDERS)]
            found |= set(users if len(users) <= _FEW else ())
    return sorted(path for path in found if (imports.root / path).exists())


def changed_since(revision: str) -> list[str]:
    """Return the paths that differ from a revision, with new ones that git does not know yet."""
    new = git("ls-files", "--others", "--exclude-standard", "tests")
    return [*git("diff", "--name-only", revision, "--", "tests").splitlines(), *new.splitlines()]


@contextmanager
def load(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def failures(report: Path) -> dict[str, str]:
    """Read the tests that failed, and how, from pytest's report in the format of JUnit."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        for result in case:
            if result.tag in ("failure", "error"):
                found.setdefault(
                    f"{case.get('classname')}::{case.get('name')}", result.text or result.get("message") or ""
                )
    return found


def run_round(files: list[str]) -> dict[str, str]:
    """Run the files once; return the tests that failed, and how."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", *files]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        failed = failures(report) if report.exists() else {}
    if done.returncode and not failed:
        failed[f"pytest ended with {done.returncode}"] = (done.stdout + done.stderr)[-4000:]
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="make flaky", description=__doc__)
    parser.add_argument("files", nargs="*", help="default: what changed since the newest commit older than a day")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--load", type=int, default=8, help="busy processes beside the tests")
    arguments = parser.parse_args()
    files = arguments.files or changed_tests(changed_since(newest_older_than_a_day()), Imports(ROOT))
    if not files:
        print(f"No test below {', '.join(FOLDERS)} has changed.")
        return 0
    print(f"Test files: {len(files)}. Rounds: {arguments.rounds}. Busy processes: {arguments.load}.")
    seen: dict[str, list[tuple[int, str]]] = {}
    with load(arguments.load):
        for number in range(1, arguments.rounds + 1):
            failed = run_round(files)
            for test, text in failed.items():
                seen.setdefault(test, []).append((number, text))
            print(f"Round {number}: {len(failed)} failed.", flush=True)
    for test, results in sorted(seen.items()):
        rounds = ", ".join(str(number) for number, _ in results)
        print(f"\n{test} failed in {len(results)} of {arguments.rounds} rounds: {rounds}\n{results[0][1]}")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())

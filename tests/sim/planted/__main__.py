"""`python -m tests.sim.planted [NAME ...]`: after how many seeds does the simulator find each planted bug, and how?

Each bug is planted in a copy of the product, and seeds are played from several starting points until one fails. The
exit status is 1 if a bug is not found from one of them.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import markdown, write_between
from tests.sim.planted.bugs import Bug, all_bugs

BEGIN, END = "<!-- planted bugs: begin -->", "<!-- planted bugs: end -->"
APART = 10_000
"""Distance of two starting points."""
HANGS_S = 900.0
"""A seed that takes longer does not end."""
COLUMNS = ("bug", "introduced", "found by", "seeds (median)", "command")
INVARIANTS = {
    r"not ended after|repeated \d+ times": "every run ends in bounded virtual time",
    r"has the key|has a rollout twice|the output has|one episode gave two": "each rollout is in the output once",
    r"ended as complete|left out": "what a command reports as complete is, and stays",
    r"status|was printed": "progress never lies",
    r"reward": "a reward stands only with the answer that earned it",
    r"asked for|after its close": "an environment does what the model asked for, once",
    r"has left|left open": "no session, request or environment is left",
    r"temporary files": "no temporary file is left",
    r"directory": "the directory lists what lives",
}
"""What a violation says -> the invariant that it is of. Of several, the first counts."""


@dataclass(frozen=True)
class Hunt:
    bug: Bug
    seeds: list[int]
    """Number of seeds until the bug was found, from each starting point where it was."""
    violations: list[str]
    missed: int
    """Number of starting points from which it was not found."""

    @property
    def row(self) -> tuple[str, ...]:
        found = Counter(map(invariant, self.violations)).most_common()
        how = "; ".join(name for name, _ in found) or "**not found**"
        median = f"{statistics.median(self.seeds):g}" if self.seeds else "-"
        missed = f", not from {self.missed} of {self.missed + len(self.seeds)} starts" if self.missed else ""
        command = f"`make sim-bugs BUGS={self.bug.name}`"
        return self.bug.breaks, self.bug.introduced, how, f"{median}{missed}", command


def invariant(violation: str) -> str:
    return next((name for words, name in INVARIANTS.items() if re.search(words, violation)), violation[:80])


def hunt(bug: Bug, starts: int, limit: int) -> Hunt:
    seeds, violations = list[int](), list[str]()
    with tempfile.TemporaryDirectory(prefix="rollyard-planted-") as name:
        folder = Path(name)
        bug.plant(folder)
        for first in range(APART, (starts + 1) * APART, APART):
            if found := _first_violation(folder, first, limit):
                seeds.append(found[0] - first + 1)
                violations.append(found[1])
                print(f"{bug.name}: seed {found[0]}: {found[1][:300]}", flush=True)
            else:
                print(f"{bug.name}: not found by seeds {first} to {first + limit - 1}", flush=True)
    return Hunt(bug, seeds, violations, starts - len(seeds))


def _first_violation(folder: Path, first: int, limit: int) -> tuple[int, str] | None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.sim", "--stop", "--jobs", "1"]
    command += ["--first", str(first), "--seeds", str(limit)]
    path = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            command, cwd=folder, env=path, capture_output=True, text=True, check=False, timeout=HANGS_S
        )
    except subprocess.TimeoutExpired:
        return first, "a seed has not ended after 15 minutes"
    if found := re.search(r"^seed (\d+): (.*)$", ended.stdout, re.MULTILINE):
        return int(found[1]), found[2]
    if ended.returncode:
        raise RuntimeError(f"the simulator itself failed:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make sim-bugs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of the names of bugs; default: all")
    parser.add_argument("--starts", type=int, default=5, help="number of starting points")
    parser.add_argument("--limit", type=int, default=300, help="seeds from each of them at most")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose table to replace")
    given = parser.parse_args(arguments)
    bugs = [bug for bug in all_bugs() if not given.names or bug.name.startswith(tuple(given.names))]
    if not bugs:
        parser.error(f"no bug is named {' or '.join(given.names)}; there are {', '.join(bug.name for bug in all_bugs())}")
    with ThreadPoolExecutor(2) as pool:
        hunts = list(pool.map(lambda bug: hunt(bug, given.starts, given.limit), bugs))
    table = markdown(COLUMNS, [one.row for one in hunts])
    print("\n".join(table))
    if given.write:
        about = f"From {given.starts} starting points each, with at most {given.limit} seeds:"
        write_between(given.write, BEGIN, END, "\n".join([about, "", *table, ""]))
    return 1 if any(one.missed for one in hunts) else 0


if __name__ == "__main__":
    sys.exit(main())

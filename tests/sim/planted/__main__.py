"""`python -m tests.sim.planted [NAME ...]`: after how many seeds does the simulator find each planted bug, and how?

Each bug is planted in a copy of the product, and seeds are played from several starting points until one fails that
does not fail without the bug. The exit status is 1 if a bug is not found from one of them.
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
from tests.modules import ROOT
from tests.sim.planted.bugs import Bug, all_bugs

BEGIN, END = "<!-- planted bugs: begin -->", "<!-- planted bugs: end -->"
APART = 10_000
"""Distance of two starting points."""
COLUMNS = ("bug", "introduced", "found by", "seeds (median)", "command")
INVARIANTS = {
    r"^(?!Broken)": "no command ends with a traceback",
    r"temporary files": "no temporary file is left",
    r"not ended after|repeated \d+ times": "every run ends in bounded virtual time",
    r"has the key|has a rollout twice|the output has|one episode gave two": "each rollout is in the output once",
    r"had been written|are on the disk": "nothing that was written is lost",
    r"without a cause|can have failed": "no attempt fails by our own fault",
    r"attempts? ": "each failed attempt is counted, and their number is bounded",
    r"was interrupted": "after an interrupt, nothing is started",
    r"with other": "no rollouts of another collection are added",
    r"ended as complete|left out": "what a command reports as complete is, and stays",
    r"(a|the) reward\b": "a reward stands only with the answer that earned it",
    r"has failed: b": "no server fails",
    r"a row (of|has|counts|that)|a model was": "a row tells what has happened",
    r"was sent": "retries are bounded",
    r"which has left": "no server works for a client that has left",
    r"another run|before it was ready": "a server serves its own run, once it is ready",
    r"status|was printed": "progress never lies",
    r"has played": "an episode is played by the servers of its task",
    r"has lost a file": "no command takes a file from one that runs",
    r"asked for|the end of its episode|another call": "an environment does what the model asked for, once",
    r"has left|left (files )?open": "no session, request, environment or file is left",
    r"directory|which has died": "the directory lists what lives",
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
                seed, violation = found
                seeds.append(seed - first + 1)
                violations.append(violation)
                print(f"{bug.name}: seed {seed}: {violation[:300]}", flush=True)
            else:
                print(f"{bug.name}: not found by seeds {first} to {first + limit - 1}", flush=True)
    return Hunt(bug, seeds, violations, starts - len(seeds))


def _first_violation(folder: Path, first: int, limit: int) -> tuple[int, str] | None:
    seeds = range(first, first + limit)
    while seeds and (found := _violation(folder, "--first", str(seeds.start), "--seeds", str(len(seeds)))):
        if (as_it_is := _violation(ROOT, "--seed", str(found[0]))) is None:
            return found
        print(f"seed {found[0]} fails without the bug, too, and does not count: {as_it_is[1][:300]}", flush=True)
        seeds = range(found[0] + 1, seeds.stop)
    return None


def _violation(folder: Path, *options: str) -> tuple[int, str] | None:
    """Run the simulator on the tree in the folder. Return the first seed that fails, and how."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.sim", "--stop", "--jobs", "1", *options]
    path = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        return None
    if found := re.search(r"^seed (\d+): (.*)$", ended.stdout, re.MULTILINE):
        return int(found[1]), found[2]
    sys.exit(f"{' '.join(command)} has failed:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make sim-bugs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of the names of bugs; default: all")
    parser.add_argument("--starts", type=int, default=5, help="number of starting points")
    parser.add_argument("--limit", type=int, default=300, help="seeds from each of them at most")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose table to replace")
    given = parser.parse_args(arguments)
    bugs = [bug for bug in all_bugs() if not given.names or bug.name.startswith(tuple(given.names))]
    if not bugs:
        known = ", ".join(bug.name for bug in all_bugs())
        parser.error(f"no bug's name begins with {' or '.join(given.names)}; there are {known}")
    with ThreadPoolExecutor(2) as pool:
        hunts = list(pool.map(lambda bug: hunt(bug, given.starts, given.limit), bugs))
    head, _, *rows = markdown(COLUMNS, [one.row for one in hunts])
    table = [head, "|---" * len(COLUMNS) + "|", *rows]
    print("\n".join(table))
    if given.write:
        about = f"From {given.starts} starting points each, with at most {given.limit} seeds:"
        write_between(given.write, BEGIN, END, "\n".join([about, "", *table, ""]))
    return 1 if any(one.missed for one in hunts) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Change drawn lines of the product, one at a time, and compare which suite of tests notices more of the changes.

Results are kept in build/mutants/results.jsonl, so an interrupted run goes on where it stopped, and a test file that
both suites have runs once. Each suite runs on the product of its revision, in which the drawn lines are the same: the
tests of before need not pass on later code. The current tree is what `git stash create` saves.
"""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys

from tests.modules import ROOT
from tests.mutation.judge import Judge, Results
from tests.mutation.mutations import Mutation, draw, same_lines
from tests.mutation.suites import Suite, git, newest_older_than_a_day

FOLDERS = (
    *("services/rollouts", "services/http", "resources_servers/answers", "services/sandbox"),
    "responses_api_models/chat_engine",
)
"""Each gives the same share of the drawn lines."""


def drawn_lines(old: Suite, new: Suite, count: int, seed: str) -> list[tuple[str, Mutation]]:
    """Draw from each folder in turn. The positions of the mutations are those in `old`."""
    drawn: list[tuple[int, tuple[str, Mutation]]] = []
    for number, folder in enumerate(FOLDERS):
        share = count // len(FOLDERS) + (number < count % len(FOLDERS))
        drawn += enumerate(draw(old.sources(folder), new.sources(folder), share, f"{seed} {folder}"))
    return [line for _, line in sorted(drawn, key=lambda entry: entry[0])]


def compare(old: Suite, new: Suite, path: str, mutation: Mutation, judge: Judge) -> tuple[str | None, str | None]:
    name = f"{path}:{mutation.line}:{mutation.column} {mutation.old} -> {mutation.new}"
    before = judge.judge(old, path, mutation, name)
    lines = same_lines(old.source(path), new.source(path))
    after = judge.judge(new, path, mutation.moved(lines[mutation.line] - mutation.line), name, first=before)
    return before, after


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", default="27")
    parser.add_argument("--count", type=int, default=60, help="lines to change")
    parser.add_argument("--before", help="git revision; default: the newest commit that is more than a day old")
    parser.add_argument("--after", help="git revision; default: the current tree, with all files that git knows")
    parser.add_argument("--cpu-s", type=float, default=40.0, help="CPU seconds of tests for a change that none notices")
    parser.add_argument("--hang-s", type=float, default=180.0, help="a test that takes longer hangs")
    arguments = parser.parse_args()
    folder = ROOT / "build" / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser.exit(2, f"another process uses {folder}: wait for its end\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the tests, too

    before = git("rev-parse", arguments.before or newest_older_than_a_day())
    after = git("rev-parse", f"{arguments.after or git('stash', 'create') or 'HEAD'}^{{tree}}")
    print(f"Seed {arguments.seed}. Before: commit {before[:12]}. After: tree {after[:12]}.", flush=True)
    old, new = Suite(folder / "before", before), Suite(folder / "after", after)
    judge = Judge(Results(folder / "results.jsonl"), arguments.cpu_s, arguments.hang_s)
    rows: list[tuple[str, str | None, str | None]] = []
    for path, mutation in drawn_lines(old, new, arguments.count, arguments.seed):
        rows.append((f"{path}:{mutation.line}  {mutation}", *compare(old, new, path, mutation, judge)))
        print("{}\n    before: {}\n    after:  {}".format(*rows[-1]), flush=True)
    print(f"\nSeed {arguments.seed}\n\n{'before':8}{'after':8}change")
    for change, *tests in rows:
        print("".join(f"{'caught' if test else '-':8}" for test in tests) + change)
    count_before, count_after = (sum(bool(row[column]) for row in rows) for column in (1, 2))
    print(f"{count_before:<8}{count_after:<8}caught of {len(rows)}")
    return 1 if count_after < count_before else 0


if __name__ == "__main__":
    sys.exit(main())

"""`make fuzz`: gives each target new inputs for a share of the minutes, guided by coverage, one process per core.

    python -m tests.fuzz --minutes 60
    python -m tests.fuzz --minutes 5 expressions formula

Inputs that reach new code stay in build/fuzz, from which the next run goes on. One that breaks a target is kept there,
too, and named; once it is understood, it belongs into tests/fuzz/corpus/<target>, which `make test` replays.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.fuzz.targets import CORPUS, TARGETS
from tests.modules import ROOT

FOUND = ROOT / "build" / "fuzz"
LONGEST = 4096
"""Bytes of an input. Longer ones find little that shorter ones do not."""
MEMORY_MB = 2048
HANGS_S = 30
"""Wall time after which an input is one that never ends. What only takes long is measured in CPU time (engine.py)."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="target", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together; default: 5")
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - TARGETS.keys()):
        parser.error(f"unknown target {', '.join(unknown)}; expected {', '.join(TARGETS)}")
    chosen = options.targets or list(TARGETS)
    processes = min(len(os.sched_getaffinity(0)), len(chosen))
    seconds = max(1, round(options.minutes * 60 * processes / len(chosen)))
    with ThreadPoolExecutor(processes) as pool:
        held = list(pool.map(partial(fuzz, seconds=seconds), chosen))
    sys.exit(not all(held))


def fuzz(target: str, seconds: int) -> bool:
    """Run one target in a process of its own. Return whether its properties held; print what happened."""
    found = FOUND / target
    found.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={HANGS_S}", f"-rss_limit_mb={MEMORY_MB}"]
    command = [sys.executable, "-m", "tests.fuzz.engine", target, *limits, "-print_final_stats=1"]
    command += [f"-artifact_prefix={FOUND}/{target}-", str(found), str(CORPUS / target)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    printed = ended.stdout.decode("utf-8", "replace")
    counted = re.search(r"number_of_executed_units: (\d+)", printed)
    inputs = f"{int(counted[1]):>10,} inputs" if counted else " " * 17
    print(f"{target:<18}{inputs}  {'held' if not ended.returncode else 'BROKEN'}", flush=True)
    if ended.returncode:
        print("\n".join(printed.splitlines()[-40:]), flush=True)
    return not ended.returncode


if __name__ == "__main__":
    main()

"""`make fuzz`: gives each target new inputs for a share of the minutes, guided by coverage, one process per core.

    python -m tests.fuzz --minutes 60
    python -m tests.fuzz --minutes 5 expressions formula

Inputs that reach new code stay in build/fuzz, from which the next run goes on. One that breaks a target is kept there,
too, and named; once it is understood, it belongs into tests/fuzz/corpus/<target>, which `make test` replays.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import atheris

from tests.fuzz.mutation import json_mutator
from tests.modules import ROOT

FOUND = ROOT / "build" / "fuzz"
LONGEST = 4096
"""Bytes of an input. Longer ones find little that shorter ones do not."""
MAX_CPU_S = 3.0
"""CPU time of one input, with the cost of the coverage. None of the kept inputs takes a tenth of it."""
HANGS_S = 60
"""Wall time after which an input is one that never ends."""
MEMORY_MB = 2048


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="target", help="default: all")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together; default: 5")
    options = parser.parse_args()
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["rollyard"]):
        from tests.fuzz.targets import CORPUS, JSON, TARGETS
    if unknown := sorted(set(options.targets) - TARGETS.keys()):
        parser.error(f"unknown target {', '.join(unknown)}; expected {', '.join(TARGETS)}")
    waiting = options.targets or list(TARGETS)
    processes = min(len(os.sched_getaffinity(0)), len(waiting))
    seconds = max(1, round(options.minutes * 60 * processes / len(waiting)))
    logging.disable(logging.CRITICAL)  # servers log every refusal
    running: dict[int, str] = {}
    broken = False
    while waiting or running:
        while waiting and len(running) < processes:
            name = waiting.pop(0)
            if (process := os.fork()) == 0:
                fuzz(name, TARGETS[name], seconds, CORPUS / name, is_json=name in JSON)
            running[process] = name
        process, status = os.wait()
        broken |= report(running.pop(process), status)
    sys.exit(broken)


def log_of(target: str) -> Path:
    return FOUND / f"{target}.log"


def fuzz(name: str, target: Callable[[bytes], None], seconds: int, corpus: Path, *, is_json: bool) -> None:
    """Run the target in this process, which ends with it."""
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    with log_of(name).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def one(data: bytes) -> None:
        started = time.process_time()
        target(data)
        if (used := time.process_time() - started) > MAX_CPU_S:
            raise AssertionError(f"the input took {used:.1f} s of CPU time")

    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={HANGS_S}", f"-rss_limit_mb={MEMORY_MB}"]
    kept = ["-print_final_stats=1", f"-artifact_prefix={FOUND}/{name}-", str(found), str(corpus)]
    # The function is another one after the call of Fuzz.
    mutator = {"custom_mutator": json_mutator(lambda data, size: atheris.Mutate(data, size))} if is_json else {}
    atheris.Setup([name, *limits, *kept], one, **mutator)
    atheris.Fuzz()


def report(target: str, status: int) -> bool:
    """Print how many inputs the target got, and the end of its log if one broke it. Return whether one did."""
    printed = log_of(target).read_text(errors="replace")
    counted = re.search(r"number_of_executed_units: (\d+)", printed)
    print(f"{target:<18}{int(counted[1]) if counted else 0:>10,} inputs  {'BROKEN' if status else 'held'}", flush=True)
    if status:
        print("\n".join(printed.splitlines()[-40:]), flush=True)
    return status != 0


if __name__ == "__main__":
    main()

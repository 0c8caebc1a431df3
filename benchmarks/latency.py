"""Rollouts/s when the policy takes 200 ms: the share of what the numbers in parallel allow, and how full the CPU was.

Ideal is `parallel / (turns * latency)` rollouts a second. Of N rollouts the first fill the pipe and the last run it
empty, so the rate is read over the middle: between a fifth and four fifths of the rows, from the times at which the
collector's status file, written once a second, counted them. CPU is that of the whole machine over the same time,
whoever used it; beside it ours, of all processors together. A share below 90 % is missed only while the CPU had room.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import worlds
from benchmarks.processes import cpu_s, machine_cpu_s
from benchmarks.runs import Broken, Policy, Run, collect, policy, stack
from benchmarks.tables import table, verdict

TURNS = 6
LATENCY_S = 0.2
PARALLEL = (64, 256, 1024)
SECONDS = 12
"""A collection's length if it went ideally."""
SHARE = 0.9
FULL = 0.9
"""Of the machine's CPU; from there on it is the CPU that decides."""


@dataclass(frozen=True)
class Sample:
    """Where a collection stood."""

    measured: int
    clock: float
    busy_s: float
    had_s: float
    ours_s: float


def watch(run: Run, script: Policy, rows: Path, parallel: int) -> tuple[Sample, Sample]:
    """Collect; two samples, of the beginning and of the end of its middle."""
    collection = collect(run, worlds.AGENT, rows, parallel=parallel, repeats=worlds.REPEATS)
    samples: list[Sample] = []
    seen = 0.0
    while collection.process.poll() is None:
        time.sleep(0.02)
        status = collection.status()
        if status and status["state"] == "running" and status["updated"] > seen:
            seen = status["updated"]
            try:
                ours = sum(run.cpu().values()) + cpu_s(collection.process.pid) + cpu_s(script.pid)
            except FileNotFoundError:
                break
            samples.append(Sample(status["measured"], seen, *machine_cpu_s(), ours))
    expected = status["expected"]
    middle = [sample for sample in samples if 0.2 <= sample.measured / expected <= 0.8]
    if collection.process.wait() != 0 or len(middle) < 2:
        raise Broken(f"{len(middle)} samples of {status}; the collection failed or was too short")
    return middle[0], middle[-1]


def row_of(parallel: int, first: Sample, last: Sample) -> list[object]:
    """A line of the table."""
    seconds = last.clock - first.clock
    rate = (last.measured - first.measured) / seconds
    ideal = parallel / (TURNS * LATENCY_S)
    full = (last.busy_s - first.busy_s) / (last.had_s - first.had_s)
    ours = (last.ours_s - first.ours_s) / seconds / (os.cpu_count() or 1)
    met = rate / ideal >= SHARE
    word = verdict(met) if met or full < FULL else "CPU full"
    shown = [f"{100 * value:.0f} %" for value in (rate / ideal, full, ours)]
    return [str(parallel), rate, ideal, shown[0], f">={100 * SHARE:.0f} %", word, *shown[1:]]


def series(folder: Path, parallel: Sequence[int], seconds: float, options: Sequence[str]) -> list[list[object]]:
    """A line for each number in parallel."""
    lines: list[list[object]] = []
    slow = policy(latency_ms=1000 * LATENCY_S, turns=TURNS)
    with slow as script, stack(folder, worlds.game(script.url), *options) as run:
        warm = worlds.sokoban_rows(run.folder / "warm.jsonl", 320, seed=2, turns=TURNS)
        collect(run, worlds.AGENT, warm, parallel=320, repeats=worlds.REPEATS).finish()
        for number in parallel:
            rollouts = round(number * max(seconds / (TURNS * LATENCY_S), 4))
            rows = run.folder / f"rows{number}.jsonl"
            worlds.sokoban_rows(rows, rollouts, seed=100 * number, turns=TURNS)
            lines.append(row_of(number, *watch(run, script, rows, number)))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: 64 in parallel only, shorter")
    options = parser.parse_args(arguments)
    parallel, seconds = ((64,), 7) if options.quick else (PARALLEL, SECONDS)
    head = ["parallel", "rollouts/s", "ideal", "share", "target", "", "CPU in use", "by us"]
    with tempfile.TemporaryDirectory() as temporary:
        for title, extra in (("a process a server", ()), ("all servers in one process", ("+colocate=true",))):
            lines = series(Path(temporary), parallel, seconds, extra)
            table(f"Sokoban, policy answers after {1000 * LATENCY_S:.0f} ms, {title}", head, lines)


if __name__ == "__main__":
    main()

"""Rollouts/s when the policy takes 200 ms: the share of what the numbers in parallel allow, and how full the CPU was.

Ideal is `parallel / (turns * latency)` rollouts a second. Of N rollouts the first fill the pipe and the last run it
empty, so the rate is that of the middle: the slope of the policy's own count of turns between a fifth and four fifths
of all, which episodes that begin together do not distort. CPU is that of the whole machine over the same time, whoever
used it; beside it ours, and that of our busiest process, of one processor (a server is one thread). A share below 90 %
is missed only while there was room: neither the machine nor one process full. `disturbed`: others had filled it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

from benchmarks import workloads
from benchmarks.commands import Broken, Policy, Run, collect, policy, stack
from benchmarks.processes import cpu_s, machine_cpu_s
from benchmarks.tables import table, verdict

TURNS = 6
LATENCY_S = 0.2
PARALLEL = (64, 256, 1024)
SECONDS = 8
"""A collection's length if it went ideally."""
SHARE = 0.9
FULL = 0.85
"""Of the machine's CPU, or of one processor for one process: from there on it is the CPU that decides."""
EVERY_S = 0.05


@dataclass(frozen=True)
class Sample:
    """Where everything stood at a moment."""

    turns: int
    clock: float
    busy_s: float
    had_s: float
    ours_s: dict[str, float]


def watch(run: Run, script: Policy, rows: Path, parallel: int, rollouts: int) -> list[Sample]:
    """Collect; samples of the middle."""
    before, _ = script.stats()
    collection = collect(run, workloads.AGENT, rows, parallel=parallel, repeats=workloads.REPEATS)
    samples: list[Sample] = []
    while collection.process.poll() is None:
        turns = script.stats()[0] - before
        if 0.2 <= turns / (TURNS * rollouts) <= 0.8:
            ours = {**run.cpu(), "collector": cpu_s(collection.process.pid), "policy": cpu_s(script.pid)}
            samples.append(Sample(turns, time.monotonic(), *machine_cpu_s(), ours))
        time.sleep(EVERY_S)
    if collection.process.wait() != 0 or len(samples) < 2:
        raise Broken(f"{len(samples)} samples; the collection failed or was too short: {collection.status()}")
    return samples


def row_of(parallel: int, samples: Sequence[Sample]) -> list[object]:
    """A line of the table."""
    first, last = samples[0], samples[-1]
    seconds = last.clock - first.clock
    slope = linear_regression([sample.clock for sample in samples], [sample.turns for sample in samples]).slope
    rate, ideal = slope / TURNS, parallel / (TURNS * LATENCY_S)
    used = {name: (spent - first.ours_s[name]) / seconds for name, spent in last.ours_s.items()}
    machine = (last.busy_s - first.busy_s) / (last.had_s - first.had_s)
    busiest = max(used, key=lambda name: used[name])
    met = rate / ideal >= SHARE
    of_machine = sum(used.values()) / (os.cpu_count() or 1)
    if met or max(machine, used[busiest]) < FULL:
        word = verdict(met)
    else:
        word = "CPU full" if max(of_machine, used[busiest]) >= FULL else "disturbed"
    share, full, ours, most = (f"{100 * value:.0f} %" for value in (rate / ideal, machine, of_machine, used[busiest]))
    return [str(parallel), rate, ideal, share, f">={100 * SHARE:.0f} %", word, full, ours, f"{busiest} {most}"]


def series(folder: Path, parallel: Sequence[int], seconds: float, options: Sequence[str]) -> list[list[object]]:
    """A line for each number in parallel."""
    lines: list[list[object]] = []
    slow = policy(latency_ms=1000 * LATENCY_S, turns=TURNS)
    with slow as script, stack(folder, workloads.game(script.url), *options) as run:
        warm = workloads.sokoban_rows(run.folder / "warm.jsonl", 320, seed=2, turns=TURNS)
        collect(run, workloads.AGENT, warm, parallel=320, repeats=workloads.REPEATS).finish()
        for number in parallel:
            rollouts = -(-round(number * seconds / (TURNS * LATENCY_S)) // workloads.REPEATS) * workloads.REPEATS
            rows = run.folder / f"rows{number}.jsonl"
            workloads.sokoban_rows(rows, rollouts, seed=100 * number, turns=TURNS)
            lines.append(row_of(number, watch(run, script, rows, number, rollouts)))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: 64 in parallel, processes, shorter")
    options = parser.parse_args(arguments)
    parallel, seconds = ((64,), 3) if options.quick else (PARALLEL, SECONDS)
    head = ["parallel", "rollouts/s", "ideal", "share", "target", "", "CPU used", "by us", "busiest process"]
    with tempfile.TemporaryDirectory() as temporary:
        modes = [("a process a server", []), ("all servers in one process", ["+colocate=true"])]
        for title, extra in modes[: 1 if options.quick else None]:
            lines = series(Path(temporary), parallel, seconds, extra)
            table(f"Sokoban, policy answers after {1000 * LATENCY_S:.0f} ms, {title}", head, lines)


if __name__ == "__main__":
    main()

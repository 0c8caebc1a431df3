"""Rollouts/s when the model server takes 200 ms: the share of the ideal throughput, and the CPU utilization.

The ideal is `parallel / (turns * latency)` rollouts per second. The rate excludes ramp-up and drain: it is the slope of
the model endpoint's turn count between 20 % and 80 % of all turns, so episodes that start together do not distort it.
`CPU used` is the utilization of the host by all processes, `benchmark` the share of this benchmark, and
`busiest process` is relative to one core, because a server has one thread. A share below 90 % is a missed target only
if neither the host nor a single process was at its CPU limit. `disturbed`: other processes used up the CPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

from benchmarks import workloads
from benchmarks.commands import BenchmarkError, Collection, ModelEndpoint, Run, collect, model_endpoint, stack
from benchmarks.processes import cpu_s, host_cpu_s
from benchmarks.tables import table, verdict

TURNS = 6
LATENCY_S = 0.2
PARALLEL = (64, 256, 1024)
SECONDS = 8
"""Duration of a collection at the ideal rate."""
SHARE = 0.9
FULL = 0.85
"""Utilization of the host, or of one core by one process, above which the CPU is the bottleneck."""
EVERY_S = 0.05


@dataclass(frozen=True)
class Sample:
    """Counters at one point in time."""

    turns: int
    clock: float
    busy_s: float
    available_s: float
    """CPU seconds of the host since boot: busy, and in total."""
    used_s: dict[str, float]
    """CPU seconds by process of the benchmark."""


def watch(run: Run, script: ModelEndpoint, collection: Collection, turns: int) -> Iterator[Sample]:
    """Wait for a collection that has just been started; yield the samples between 20 % and 80 % of its `turns`."""
    before, _ = script.stats()
    count = 0
    while collection.process.poll() is None:
        made = script.stats()[0] - before
        if 0.2 <= made / turns <= 0.8:
            used = {**run.cpu(), "collector": cpu_s(collection.process.pid), "model endpoint": cpu_s(script.pid)}
            count += 1
            yield Sample(made, time.monotonic(), *host_cpu_s(), used)
        time.sleep(EVERY_S)
    if collection.process.wait() != 0 or count < 2:
        raise BenchmarkError(f"{count} samples; the collection failed or was too short: {collection.status()}")


def turns_per_s(samples: Sequence[Sample]) -> float:
    return linear_regression([sample.clock for sample in samples], [sample.turns for sample in samples]).slope


def row_of(parallel: int, samples: Sequence[Sample]) -> list[object]:
    """Return one row of the table."""
    first, last = samples[0], samples[-1]
    seconds = last.clock - first.clock
    rate, ideal = turns_per_s(samples) / TURNS, parallel / (TURNS * LATENCY_S)
    used = {name: (spent - first.used_s[name]) / seconds for name, spent in last.used_s.items()}
    of_host = (last.busy_s - first.busy_s) / (last.available_s - first.available_s)
    busiest = max(used, key=lambda name: used[name])
    met = rate / ideal >= SHARE
    by_benchmark = sum(used.values()) / (os.cpu_count() or 1)
    if met or max(of_host, used[busiest]) < FULL:
        result = verdict(met)
    else:
        result = "CPU full" if max(by_benchmark, used[busiest]) >= FULL else "disturbed"
    share, full, own, most = (f"{100 * value:.0f} %" for value in (rate / ideal, of_host, by_benchmark, used[busiest]))
    return [str(parallel), rate, ideal, share, f">={100 * SHARE:.0f} %", result, full, own, f"{busiest} {most}"]


def series(folder: Path, parallel: Sequence[int], seconds: float, options: Sequence[str]) -> list[list[object]]:
    """Return one row per degree of parallelism."""
    lines: list[list[object]] = []
    slow = model_endpoint(latency_ms=1000 * LATENCY_S, turns=TURNS)
    with slow as script, stack(folder, workloads.game(script.url), *options) as run:
        warm = workloads.sokoban_rows(run.folder / "warm.jsonl", 320, seed=2, turns=TURNS)
        collect(run, workloads.AGENT, warm, parallel=320, repeats=workloads.REPEATS).finish()
        for number in parallel:
            rollouts = -(-round(number * seconds / (TURNS * LATENCY_S)) // workloads.REPEATS) * workloads.REPEATS
            rows = run.folder / f"rows{number}.jsonl"
            workloads.sokoban_rows(rows, rollouts, seed=100 * number, turns=TURNS)
            collection = collect(run, workloads.AGENT, rows, parallel=number, repeats=workloads.REPEATS)
            lines.append(row_of(number, list(watch(run, script, collection, TURNS * rollouts))))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: 64 in parallel, not colocated, shorter")
    options = parser.parse_args(arguments)
    parallel, seconds = ((64,), 3) if options.quick else (PARALLEL, SECONDS)
    head = ["parallel", "rollouts/s", "ideal", "share", "target", "", "CPU used", "benchmark", "busiest process"]
    with tempfile.TemporaryDirectory() as temporary:
        modes = [("one process per server", []), ("all servers in one process", ["+colocate=true"])]
        for title, extra in modes[: 1 if options.quick else None]:
            lines = series(Path(temporary), parallel, seconds, extra)
            table(f"Sokoban, model latency {1000 * LATENCY_S:.0f} ms, {title}", head, lines)


if __name__ == "__main__":
    main()

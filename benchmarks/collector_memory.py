"""Memory of ng_collect_rollouts over 100,000 rows. It streams rows and rollouts, and keeps neither in memory.

The agent is a plug-in that responds at once with 4.5 kB. The RSS of the collector's process is sampled from the first
rollout on disk to the end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import workloads
from benchmarks.commands import BenchmarkError, Collection, Run, collect, stack
from benchmarks.processes import rss_mb
from benchmarks.tables import table, verdict

ROWS = 100_000
PARALLEL = 64
GROWTH_MB = 150.0
EVERY_S = 0.2


def sampled(collection: Collection) -> list[tuple[int, float]]:
    """Return samples of (rollouts on disk, RSS in MB), from the first status file until the collection ends."""
    samples: list[tuple[int, float]] = []
    while collection.process.poll() is None:
        if status := collection.status():
            try:
                samples.append((status["measured"], rss_mb(collection.process.pid)))
            except (FileNotFoundError, IndexError):
                break
        time.sleep(EVERY_S)
    if collection.process.wait() != 0 or not samples:
        raise BenchmarkError(f"the collection failed: {collection.status()}")
    return [sample for sample in samples if sample[1] > 0]


def measure(run: Run, count: int) -> list[list[object]]:
    """Collect `count` rows; return the rows of the table."""
    rows = workloads.plain_rows(run.folder / "rows.jsonl", count)
    collection = collect(run, workloads.AGENT, rows, parallel=PARALLEL, repeats=1)
    samples = sampled(collection)
    start, peak, end = samples[0][1], max(rss for _, rss in samples), samples[-1][1]
    quartiles = [next(rss for done, rss in samples if done >= part * samples[-1][0]) for part in (0.25, 0.5, 0.75)]
    written = collection.output.stat().st_size / 2**20
    grown = peak - start
    result = verdict(grown <= GROWTH_MB)
    rate = collection.status()["rollouts_per_s"]
    return [[f"{count:,}", written, start, *quartiles, end, peak, grown, f"<={GROWTH_MB:.0f}", result, rate]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: 3,000 rows")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        plugins = workloads.plug_ins(Path(temporary) / "plugins")
        with stack(Path(temporary), workloads.instant(), f"+server_roots=[{plugins}]") as run:
            lines = measure(run, 3_000 if options.quick else ROWS)
    head = ["rows", "MB out", "start", "1/4", "1/2", "3/4", "end", "max", "growth", "target", "", "rows/s"]
    table("ng_collect_rollouts with an instant agent: RSS of its process, MB", head, lines)


if __name__ == "__main__":
    main()

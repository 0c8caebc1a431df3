"""Memory of ng_collect_rollouts over 100,000 rows: it streams them in, writes rollouts out, and keeps neither.

The agent is an instant one (a plug-in in a folder of the benchmark's own), its answers 4.5 kB. RSS of the collector's
process is sampled from the first rollout on disk to the end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import workloads
from benchmarks.commands import Broken, Collection, Run, collect, stack
from benchmarks.processes import rss_mb
from benchmarks.tables import table, verdict

ROWS = 100_000
PARALLEL = 64
GROWTH_MB = 150.0
EVERY_S = 0.2


def sampled(collection: Collection) -> list[tuple[int, float]]:
    """(rollouts on disk, RSS in MB) as long as it runs, from its first status after the start."""
    samples: list[tuple[int, float]] = []
    while collection.process.poll() is None:
        if status := collection.status():
            try:
                samples.append((status["measured"], rss_mb(collection.process.pid)))
            except (FileNotFoundError, IndexError):
                break
        time.sleep(EVERY_S)
    if collection.process.wait() != 0 or not samples:
        raise Broken(f"the collection failed: {collection.status()}")
    return [sample for sample in samples if sample[1] > 0]


def measure(run: Run, count: int) -> list[list[object]]:
    """Collect `count` rows; the table's lines."""
    rows = workloads.plain_rows(run.folder / "rows.jsonl", count)
    collection = collect(run, workloads.AGENT, rows, parallel=PARALLEL, repeats=1)
    samples = sampled(collection)
    start, most, end = samples[0][1], max(rss for _, rss in samples), samples[-1][1]
    marks = [next(rss for done, rss in samples if done >= part * samples[-1][0]) for part in (0.25, 0.5, 0.75)]
    written = collection.output.stat().st_size / 2**20
    grown = most - start
    word = verdict(grown <= GROWTH_MB)
    rate = collection.status()["rollouts_per_s"]
    return [[f"{count:,}", written, start, *marks, end, most, grown, f"<={GROWTH_MB:.0f}", word, rate]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: 3,000 rows")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        mine = workloads.plug_ins(Path(temporary) / "mine")
        with stack(Path(temporary), workloads.instant(), f"+server_roots=[{mine}]") as run:
            lines = measure(run, 3_000 if options.quick else ROWS)
    head = ["rows", "MB out", "start", "1/4", "1/2", "3/4", "end", "most", "growth", "target", "", "rows/s"]
    table("ng_collect_rollouts before an instant agent: RSS of its process, MB", head, lines)


if __name__ == "__main__":
    main()

"""Memory and CPU time of ng_collect_rollouts over 100,000 rows, of which it keeps neither rows nor rollouts.

The agent is a plug-in that responds with 4.5 kB, at once or after --latency-s. RSS and CPU time of the collector's
process are sampled from the first rollout on disk to the end, by quarters of the rows, so that growth is seen.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import workloads
from benchmarks.commands import BenchmarkError, Collection, Run, collect, stack
from benchmarks.processes import cpu_s, rss_mb
from benchmarks.tables import table, verdict

ROWS = 100_000
PARALLEL = 64
GROWTH_MB = 150.0
EPISODE_MB = 0.03
"""More for each episode in flight: its row, its request and its connection."""
EVERY_S = 0.2
EACH = 5_000
"""Episodes in flight that an agent's process has enough open files for."""


def sampled(collection: Collection) -> list[tuple[int, float, float]]:
    """Return samples of (rollouts on disk, RSS in MB, CPU s), from the first status file until the collection ends."""
    samples: list[tuple[int, float, float]] = []
    pid = collection.process.pid
    while collection.process.poll() is None:
        if status := collection.status():
            try:
                samples.append((status["measured"], rss_mb(pid), cpu_s(pid)))
            except (FileNotFoundError, IndexError):
                break
        time.sleep(EVERY_S)
    if collection.process.wait() != 0 or not samples:
        raise BenchmarkError(f"the collection failed: {collection.status()}")
    return [sample for sample in samples if sample[1] > 0]


def measure(run: Run, count: int, parallel: int) -> list[object]:
    """Collect `count` rows; return the row of the table."""
    rows = workloads.plain_rows(run.folder / "rows.jsonl", count)
    collection = collect(run, workloads.AGENT, rows, parallel=parallel, repeats=1)
    samples = sampled(collection)
    quarters = [next(one for one in samples if one[0] >= part * samples[-1][0]) for part in (0, 0.25, 0.5, 0.75, 1)]
    peak = max(rss for _, rss, _ in samples)
    written = collection.output.stat().st_size / 2**20
    grown = peak - samples[0][1]
    cpu = [
        (after[2] - before[2]) * 1e6 / max(after[0] - before[0], 1) for before, after in itertools.pairwise(quarters)
    ]
    limit = GROWTH_MB + EPISODE_MB * parallel
    rate = collection.status()["rollouts_per_s"]
    memory = [*(rss for _, rss, _ in quarters), peak, grown, f"<={limit:.0f}", verdict(grown <= limit)]
    return [f"{count:,}", f"{parallel:,}", written, *memory, *cpu, rate]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: 3,000 rows")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--parallel", type=int, default=PARALLEL, help=f"episodes in flight (default: {PARALLEL})")
    parser.add_argument("--latency-s", type=float, default=0.0, help="how long an episode takes (default: 0)")
    options = parser.parse_args(arguments)
    config = workloads.instant(options.latency_s, replicas=2 if options.parallel > EACH else 1)
    with tempfile.TemporaryDirectory() as temporary:
        plugins = workloads.plug_ins(Path(temporary) / "plugins")
        with stack(Path(temporary), config, f"+server_roots=[{plugins}]") as run:
            line = measure(run, 3_000 if options.quick else options.rows, options.parallel)
    memory = ["MB out", "start", "1/4", "1/2", "3/4", "end", "max", "growth", "target", ""]
    cpu = ["us/row 1", "2", "3", "4", "rows/s"]
    table("ng_collect_rollouts: RSS of its process in MB, CPU by quarter", ["rows", "parallel", *memory, *cpu], [line])


if __name__ == "__main__":
    main()

"""Time from `ng_run` to "All 3 / 3 servers ready!" with warm caches; idle memory and CPU, processes, shutdown time.

CPU time of `--help`, for the command that takes the longest.

Memory is read from /proc/<pid>/smaps_rollup two seconds after the start, for head and servers together. The target
applies to the sum of RSS, which counts a shared page once per process; PSS counts it once in total.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import workloads
from benchmarks.commands import COMMANDS, cpu_of, stack
from benchmarks.comparison import Figure, Measure, warmed_up
from benchmarks.processes import children, family_cpu_s, memory_mb
from benchmarks.tables import table, verdict

READY_S = 1.5
HELP_S = 0.3
IDLE_MB = 400.0
SETTLE_S = 2.0
HELPFUL = ("ng_run", "ng_collect_rollouts", "ng_viewer")
"""Commands whose `--help` is compared."""
UNUSED_URL = "http://127.0.0.1:9"
"""URL of a model endpoint that is never called."""


@dataclass(frozen=True)
class Start:
    """Startup, idling and shutdown of one run."""

    ready_s: float
    cpu_s: float
    """CPU time of all processes until the run was ready."""
    rss_mb: float
    pss_mb: float
    processes: int
    idle_cpu: float
    """CPU seconds per second."""
    stop_s: float


def measure(folder: Path, options: Sequence[str], settle_s: float) -> Start:
    with stack(folder, workloads.game(UNUSED_URL), *options) as run:
        pids = [run.pid, *children(run.pid)]
        used = sum(run.cpu().values())
        started = time.monotonic()
        time.sleep(settle_s)
        idle = (sum(run.cpu().values()) - used) / (time.monotonic() - started)
        memory = [memory_mb(pid) for pid in pids]
        stopping = time.monotonic()
    stop_s = time.monotonic() - stopping
    rss, pss = (sum(column) for column in zip(*memory, strict=True))
    return Start(run.ready_s, used, rss, pss, len(pids), idle, stop_s)


def figures() -> list[Figure]:
    """Return what a comparison measures: a start, and `--help`."""

    @contextmanager
    def start(commands: Path, folder: Path) -> Iterator[Measure]:
        def once(number: int) -> dict[str, float]:
            with stack(folder, workloads.game(UNUSED_URL), commands=commands) as run:
                return {"all processes": family_cpu_s(run.pid)}

        yield warmed_up(once)

    @contextmanager
    def help_of(commands: Path, folder: Path) -> Iterator[Measure]:
        yield warmed_up(lambda _: {name: cpu_of([str(commands / name), "--help"], folder) for name in HELPFUL})

    return [Figure("ng_run to ready", "CPU s", start), Figure("--help", "CPU s", help_of)]


def slowest_help(commands: Iterable[str], runs: int, folder: Path) -> tuple[str, list[float]]:
    """Return the command with the largest median, and its CPU seconds of each run."""
    found = {name: [cpu_of([str(COMMANDS / name), "--help"], folder) for _ in range(runs)] for name in commands}
    return max(found.items(), key=lambda item: statistics.median(item[1]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: one start of each kind")
    parser.add_argument("--runs", type=int, default=5, help="measured starts of each kind, after one warm-up start")
    options = parser.parse_args(arguments)
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, extra in (("one process per server", ()), ("colocated", ("+colocate=true",))):
            if options.quick:
                found = [measure(Path(temporary), extra, 0.2)]
            else:
                found = [measure(Path(temporary), extra, SETTLE_S) for _ in range(options.runs + 1)][1:]
            rows += _table_rows(name, found)
        every = sorted(path.name for path in COMMANDS.glob("ng_*"))
        command, used = slowest_help(
            HELPFUL if options.quick else every, 1 if options.quick else options.runs, Path(temporary)
        )
    rows.append(_row(f"{command} --help, CPU-s", used, HELP_S))
    head = ["", "median", "min", "max", "target", ""]
    table("ng_run: head, vllm_model, grl_sokoban, game_agent", head, rows)


def _table_rows(name: str, starts: Sequence[Start]) -> list[list[object]]:
    def line(label: str, values: Sequence[float], most: float | None = None) -> list[object]:
        return _row(f"{name}: {label}", values, most)

    return [
        line("to ready, s", [start.ready_s for start in starts], READY_S),
        line("to ready, CPU-s", [start.cpu_s for start in starts]),
        line("idle RSS, MB", [start.rss_mb for start in starts], IDLE_MB),
        line("idle PSS, MB", [start.pss_mb for start in starts]),
        line("idle CPU, s/s", [start.idle_cpu for start in starts]),
        line("processes", [start.processes for start in starts]),
        line("stop, s", [start.stop_s for start in starts]),
    ]


def _row(label: str, values: Sequence[float], most: float | None) -> list[object]:
    median = statistics.median(values)
    target = [f"<{most:g}", verdict(median < most)] if most else ["", ""]
    return [label, median, min(values), max(values), *target]


if __name__ == "__main__":
    main()

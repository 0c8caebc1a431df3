"""CPU time per turn: ng_collect_rollouts, game agent, Sokoban, and vllm_model in front of an endpoint without CPU cost.

A turn is one model call; an episode has 6 model calls and 5 tool calls. The result is the CPU time of all Rollyard
processes, including head and collector, from /proc/<pid>/stat before and after; the benchmark's model endpoint is
excluded. The startup of the collector (imports, about 1.0 CPU-s) is subtracted: it is what the same command uses for a
single rollout. Rollouts/s is the collector's own number, from its first request to its last row, so it includes ramp-up
and drain. Each point uses new rooms, with 16 rollouts each, so generating them is included. The best of `--rounds`
measurements is reported, because other load on the host only increases the CPU time.

With `--turns 5,20,100` it measures episodes of so many turns at one degree of parallelism, and the memory of each
process after them. With `--against REVISION` it measures that commit and this checkout in turn on the same rows, with
both stacks up, and prints the medians, their ratio and its interval (comparison.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import workloads
from benchmarks.commands import COMMANDS, ModelEndpoint, Run, collect, model_endpoint, stack
from benchmarks.comparison import LIMIT, Figure, Measure, Plan, against
from benchmarks.processes import rss_mb
from benchmarks.tables import table, verdict, write_section

TURNS = 6
MODES: dict[str, Sequence[str]] = {"processes": (), "colocated": ("+colocate=true",)}
PARALLEL = (1, 16, 64, 256, 1024)
ROLLOUTS = {1: 320, 16: 1600, 64: 1600, 256: 2048, 1024: 3072}
MAX_MS_PER_TURN = {"processes": 1.0, "colocated": 0.5}
MAX_MS_PER_TURN_AT_1024 = {"processes": 1.4, "colocated": 0.5}
MIN_ROLLOUTS_PER_S = 250
PROCESSES = ("head", "model", "environment", workloads.AGENT, "servers", "collector")


@dataclass(frozen=True)
class Point:
    """One collection: milliseconds of CPU per turn by process, and the throughput."""

    parallel: int
    ms: dict[str, float]
    endpoint_ms: float
    turns_per_rollout: float
    rate: float
    """Rollouts per second."""

    @property
    def total_ms(self) -> float:
        return sum(self.ms.values())


def measure(run: Run, script: ModelEndpoint, rows: Path, parallel: int, start_s: float) -> Point:
    """Collect every row of `rows`. `start_s`: CPU seconds of a collector that plays a single, short rollout."""
    turns, endpoint_cpu = script.stats()
    before = run.cpu()
    collected = collect(run, workloads.AGENT, rows, parallel=parallel, repeats=workloads.REPEATS).finish()
    used = {name: cpu - before[name] for name, cpu in run.cpu().items()}
    turns_after, endpoint_cpu_after = script.stats()
    turns_made = turns_after - turns
    seconds = {**used, "collector": collected.cpu_s - start_s}
    ms = {name: 1000 * seconds[name] / turns_made for name in PROCESSES if name in seconds}
    return Point(
        parallel,
        ms,
        1000 * (endpoint_cpu_after - endpoint_cpu) / turns_made,
        turns_made / collected.measured,
        collected.rate,
    )


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    parallel: Sequence[int] = PARALLEL
    scale: float = 1.0
    """Factor on the number of rollouts."""
    rounds: int = 2
    """The best one is reported."""


QUICK = Effort((64,), 0.2, 1)


@dataclass(frozen=True)
class Warm:
    """A stack that has played, with what its collector needs to start."""

    run: Run
    script: ModelEndpoint
    start_s: float
    """CPU seconds of a collector that plays a single rollout."""

    def measure(self, rows: Path, parallel: int) -> Point:
        return measure(self.run, self.script, rows, parallel, self.start_s)


@contextmanager
def warm(
    folder: Path, environment: str, options: Sequence[str], rounds: int, commands: Path = COMMANDS, turns: int = TURNS
) -> Iterator[Warm]:
    """Start a model endpoint and a stack in front of it, and let it play."""
    with (
        model_endpoint(turns=turns) as script,
        stack(folder, workloads.game(script.url, environment, turns), *options, commands=commands) as run,
    ):
        one = workloads.sokoban_rows(run.folder / "one.jsonl", 1, seed=1, turns=turns)
        some = workloads.sokoban_rows(run.folder / "warm.jsonl", -(-320 * TURNS // turns), seed=2, turns=turns)
        collect(run, workloads.AGENT, some, parallel=32, repeats=workloads.REPEATS).finish()
        starts = [collect(run, workloads.AGENT, one, parallel=1, repeats=1).finish().cpu_s for _ in range(rounds)]
        yield Warm(run, script, min(starts))


def series(folder: Path, environment: str, options: Sequence[str], effort: Effort) -> list[Point]:
    """Measure one point per degree of parallelism on one stack, after a warm-up."""
    points: list[Point] = []
    with warm(folder, environment, options, effort.rounds) as stack:
        for parallel in effort.parallel:
            rollouts = round(ROLLOUTS[parallel] * effort.scale)
            found: list[Point] = []
            for number in range(effort.rounds):
                rows = stack.run.folder / f"rows{parallel}-{number}.jsonl"
                workloads.sokoban_rows(rows, rollouts, seed=100 * parallel + number, turns=TURNS)
                found.append(stack.measure(rows, parallel))
            points.append(min(found, key=lambda point: point.total_ms))
    return points


def show(title: str, mode: str, points: Sequence[Point]) -> None:
    """Print the table of one series."""
    names = list(points[0].ms)
    rows: list[list[object]] = []
    for point in points:
        most = MAX_MS_PER_TURN[mode] if point.parallel <= 256 else MAX_MS_PER_TURN_AT_1024[mode]
        speed: list[object] = [point.rate, f">={MIN_ROLLOUTS_PER_S}", verdict(point.rate >= MIN_ROLLOUTS_PER_S)]
        speed = [point.rate, "", ""] if point.parallel == 1 else speed
        cpu = [point.total_ms, f"<={most}", verdict(point.total_ms <= most)]
        rows.append([str(point.parallel), *speed, *cpu, *(point.ms[name] for name in names), point.endpoint_ms])
    head = ["parallel", "rollouts/s", "target", "", "ms/turn", "target", "", *names, "(endpoint)"]
    turns = {round(point.turns_per_rollout, 2) for point in points}
    note = f"CPU ms per turn: the sum, then each process; turns per rollout: {', '.join(map(str, sorted(turns)))}"
    table(title, head, rows, note)


def compact(title: str, points: Sequence[Point]) -> tuple[str, list[str], list[list[object]]]:
    """Return the table of one series for the README."""
    names = [name for name in points[0].ms if name != "head"]
    rows = [[f"{one.parallel:,}", one.total_ms, *(one.ms[name] for name in names), one.rate] for one in points]
    return f"{title}: ms of CPU per turn", ["parallel", "all", *names, "rollouts/s"], rows


def figures(numbers: Sequence[int], scale: float) -> list[Figure]:
    """Return what a comparison measures: CPU per turn, with a process per server and colocated."""

    def figure(mode: str, options: Sequence[str], parallel: int) -> Figure:
        @contextmanager
        def prepare(commands: Path, folder: Path) -> Iterator[Measure]:
            with warm(folder, "grl_sokoban", options, 2, commands) as ready:

                def once(number: int) -> dict[str, float]:
                    rows = folder / f"rows{number}.jsonl"
                    rollouts = round(ROLLOUTS[parallel] * scale)
                    workloads.sokoban_rows(rows, rollouts, seed=1000 * parallel + number, turns=TURNS)
                    return ready.measure(rows, parallel).ms

                yield once

        return Figure(f"turns, {mode}, {parallel} in flight", "CPU ms/turn", prepare)

    return [figure(mode, options, parallel) for parallel in numbers for mode, options in MODES.items()]


def curve(folder: Path, lengths: Sequence[int], parallel: int, effort: Effort) -> None:
    """Print CPU time and memory by the number of turns of the episodes."""
    for mode, options in MODES.items():
        cells: list[list[object]] = []
        for turns in lengths:
            with warm(folder, "grl_sokoban", options, effort.rounds, turns=turns) as ready:
                rollouts = max(parallel, round(ROLLOUTS[parallel] * effort.scale * TURNS / turns))
                found: list[Point] = []
                for number in range(effort.rounds):
                    rows = ready.run.folder / f"rows{number}.jsonl"
                    workloads.sokoban_rows(rows, rollouts, seed=100 * turns + number, turns=turns)
                    found.append(ready.measure(rows, parallel))
                memory = {name: rss_mb(pid) for name, pid in {**ready.run.pids, "servers": ready.run.pid}.items()}
            best = min(found, key=lambda point: point.total_ms)
            of = [f"{ms:.2f}" + (f" ({memory[name]:.0f})" if name in memory else "") for name, ms in best.ms.items()]
            cells.append([str(turns), best.turns_per_rollout, best.total_ms, *of, best.endpoint_ms])
            head = ["turns", "made", "ms/turn", *best.ms, "(endpoint)"]
        table(f"{mode}, {parallel} in flight: CPU ms per turn by process (and its RSS in MB)", head, cells)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="smoke test: one series, one point, few rollouts, one round"
    )
    parser.add_argument("--rounds", type=int, default=2, help="measurements per point; the best one is reported")
    parser.add_argument("--turns", type=_numbers, metavar="5,20,100", help="the curve over the length of episodes")
    parser.add_argument("--against", metavar="REVISION", help="compare with this commit, in turn")
    parser.add_argument("--pairs", type=int, default=8, help="with --against: measurements of each (default: 8)")
    parser.add_argument(
        "--parallel", type=int, nargs="+", default=[64], choices=ROLLOUTS, help="with these two (default: 64)"
    )
    parser.add_argument("--max-ratio", type=float, default=LIMIT, help="with --against: fail if a ratio is above it")
    parser.add_argument("--write", type=Path, help="page whose tables to replace")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    effort = QUICK if options.quick else Effort(rounds=options.rounds)
    if options.against:
        plan = Plan(pairs=options.pairs, most_pairs=options.pairs, limit=options.max_ratio)
        sys.exit(against(options.against, figures(options.parallel, effort.scale), plan))
    if options.turns:
        with tempfile.TemporaryDirectory() as temporary:
            for parallel in options.parallel:
                curve(Path(temporary), options.turns, parallel, effort)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        roots = f"+server_roots=[{workloads.plug_ins(folder / 'plugins')}]"
        all_series = [
            ("Sokoban, one process per server", "processes", "grl_sokoban", []),
            ("Sokoban, all servers in one process", "colocated", "grl_sokoban", ["+colocate=true"]),
            ("An environment with one empty tool, one process per server", "processes", "trivial", [roots]),
        ]
        tables = []
        for title, mode, environment, extra in all_series[: 1 if options.quick else None]:
            points = series(folder, environment, extra, effort)
            show(title, mode, points)
            tables.append(compact(title, points))
    if options.write:
        write_section(options.write, "turns", load, tables)


if __name__ == "__main__":
    main()

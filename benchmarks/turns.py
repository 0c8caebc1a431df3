"""CPU of a turn: vllm_model before a policy that costs nothing, Sokoban, the game agent, ng_collect_rollouts.

A turn is one model call; an episode has 6 of them and 5 tool calls. Counted is the CPU time of all our processes
together, head and collector too, from /proc/<pid>/stat before and after; not that of the benchmark's own policy. The
collector's start (imports; 1.0 CPU-s or so) is taken off: it is what the same command uses for a single rollout.
Rollouts/s is what the collector reports: from its first request to its last row, so that filling up and running empty
are in it. Rooms are new at each point, 16 rollouts each, so that making them is in it. Of `--rounds` the best counts,
because other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import workloads
from benchmarks.commands import Policy, Run, collect, policy, stack
from benchmarks.tables import table, verdict

TURNS = 6
PARALLEL = (1, 16, 64, 256, 1024)
ROLLOUTS = {1: 320, 16: 1600, 64: 1600, 256: 2048, 1024: 3072}
MS_A_TURN = {"processes": 1.0, "colocated": 0.5}
MS_A_TURN_AT_1024 = {"processes": 1.4, "colocated": 0.5}
ROLLOUTS_A_S = 250
SERVERS = ("head", "model", "world", workloads.AGENT, "servers")


@dataclass(frozen=True)
class Point:
    """One collection: milliseconds of CPU a turn by process, and how fast it went."""

    parallel: int
    ms: dict[str, float]
    policy_ms: float
    turns_a_rollout: float
    rate: float

    @property
    def total_ms(self) -> float:
        return sum(self.ms.values())


def measure(run: Run, script: Policy, rows: Path, parallel: int, start_s: float) -> Point:
    """Collect every row of `rows`. `start_s`: CPU seconds of a collector that does next to nothing."""
    turns, policy_cpu = script.stats()
    before = run.cpu()
    collected = collect(run, workloads.AGENT, rows, parallel=parallel, repeats=workloads.REPEATS).finish()
    used = {name: cpu - before[name] for name, cpu in run.cpu().items()}
    turns_after, policy_cpu_after = script.stats()
    made = turns_after - turns
    seconds = {**used, "collector": collected.cpu_s - start_s}
    ms = {name: 1000 * spent / made for name, spent in seconds.items()}
    return Point(parallel, ms, 1000 * (policy_cpu_after - policy_cpu) / made, made / collected.measured, collected.rate)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    parallel: Sequence[int] = PARALLEL
    scale: float = 1.0
    """Of the rollouts."""
    rounds: int = 2
    """Of them the best counts."""


QUICK = Effort((64,), 0.2, 1)


def series(folder: Path, world: str, options: Sequence[str], effort: Effort) -> list[Point]:
    """A point for each number in parallel: one stack, warmed up first."""
    points: list[Point] = []
    with policy(turns=TURNS) as script, stack(folder, workloads.game(script.url, world), *options) as run:
        one = workloads.sokoban_rows(run.folder / "one.jsonl", 1, seed=1, turns=TURNS)
        warm = workloads.sokoban_rows(run.folder / "warm.jsonl", 320, seed=2, turns=TURNS)
        collect(run, workloads.AGENT, warm, parallel=32, repeats=workloads.REPEATS).finish()
        starts = [
            collect(run, workloads.AGENT, one, parallel=1, repeats=1).finish().cpu_s for _ in range(effort.rounds)
        ]
        for parallel in effort.parallel:
            rollouts = round(ROLLOUTS[parallel] * effort.scale)
            found: list[Point] = []
            for number in range(effort.rounds):
                rows = run.folder / f"rows{parallel}-{number}.jsonl"
                workloads.sokoban_rows(rows, rollouts, seed=100 * parallel + number, turns=TURNS)
                found.append(measure(run, script, rows, parallel, min(starts)))
            points.append(min(found, key=lambda point: point.total_ms))
    return points


def show(title: str, mode: str, points: Sequence[Point]) -> None:
    """The table of one series."""
    names = [name for name in (*SERVERS, "collector") if name in points[0].ms]
    rows: list[list[object]] = []
    for point in points:
        most = MS_A_TURN[mode] if point.parallel <= 256 else MS_A_TURN_AT_1024[mode]
        speed: list[object] = [point.rate, f">={ROLLOUTS_A_S}", verdict(point.rate >= ROLLOUTS_A_S)]
        speed = [point.rate, "", ""] if point.parallel == 1 else speed
        cpu = [point.total_ms, f"<={most}", verdict(point.total_ms <= most)]
        rows.append([str(point.parallel), *speed, *cpu, *(point.ms[name] for name in names), point.policy_ms])
    head = ["parallel", "rollouts/s", "target", "", "ms/turn", "target", "", *names, "(policy)"]
    turns = {round(point.turns_a_rollout, 2) for point in points}
    note = (
        f"CPU ms a turn, the parts by process beside their sum; turns a rollout: {', '.join(map(str, sorted(turns)))}"
    )
    table(title, head, rows, note)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: one point, few rollouts, one round")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each point; the best counts")
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else Effort(rounds=options.rounds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        roots = f"+server_roots=[{workloads.plug_ins(folder / 'mine')}]"
        all_series = [
            ("Sokoban, a process a server", "processes", "grl_sokoban", []),
            ("Sokoban, all servers in one process", "colocated", "grl_sokoban", ["+colocate=true"]),
            ("a world of one empty tool, a process a server", "processes", "trivial", [roots]),
        ]
        for title, mode, world, extra in all_series[: 2 if options.quick else None]:
            show(title, mode, series(folder, world, extra, effort))


if __name__ == "__main__":
    main()

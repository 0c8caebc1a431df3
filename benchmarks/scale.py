"""Throughput, CPU, memory and files from 64 to 10,000 episodes in flight, and with 1, 2 and 4 processes per server.

The environment has one empty tool; the model endpoint has almost no CPU cost, and a latency that differs by up to half.
Rates and CPU are those between 20 % and 80 % of all turns. It also measures the costs from which `ng_capacity`
calculates, and compares what they predict with points that were measured in turn with them, but from which they were
not calculated. `--write docs/scale.md` updates the tables of that page and
`services/config/costs.json`; `--costs FILE` writes only the costs, for hosts of your own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import linear_regression, mean

import numpy as np
import orjson

from benchmarks import workloads
from benchmarks.commands import (
    BenchmarkError,
    Collection,
    Config,
    ModelEndpoint,
    Run,
    collect,
    model_endpoint,
    stack,
)
from benchmarks.processes import cpu_s, host_cpu_s, open_files, rss_mb
from benchmarks.tables import host, markdown, table, verdict, write_between
from rollyard.cli.capacity import (
    EXAMPLE,
    CapacityOptions,
    Hosts,
    Load,
    capacity,
    report,
)
from rollyard.cli.options import read_options
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import iter_jsonl, refuse
from rollyard.services.config.replicas import MEASURED, TOGETHER_S, Costs, Measured

KINDS = {"agent": "agent", "model": "model server", "environment": "environment", "collector": "collector"}
"""Name of a process -> what the tables call it."""
TURNS, LONG_TURNS = 6, 24
LONG_KB = 32
SPREAD = 0.5
"""By what share the model's latency differs at most. With one latency, all episodes call the model at the same time, in
bursts during which the servers never sleep."""
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"
EXAMPLE_BEGIN, EXAMPLE_END = "<!-- example: begin -->", "<!-- example: end -->"
WITHIN = 0.15
"""Largest deviation of a prediction."""
LEAST_MS_PER_TURN = 0.5
"""Assumed CPU per turn, which decides how many episodes are played without a model latency."""
FULL = 0.85
"""Utilization of the host above which the CPU is the bottleneck."""
SAMPLE_EVERY_S, LOOK_EVERY_S = 0.05, 1.0
IDLE_FILES = 30
"""Open files of a process without episodes."""


@dataclass(frozen=True)
class Play:
    """What to play: `parallel` episodes at a time."""

    parallel: int
    latency_s: float
    turns: int = TURNS
    kb: int = 1
    """Size of the prompt."""
    replicas: int = 2


@dataclass(frozen=True)
class Point:
    """One collection."""

    play: Play
    rate: float
    """Turns per second."""
    ms: dict[str, float]
    """CPU per turn of all processes of a kind."""
    memory_mb: dict[str, float]
    """Memory of all processes of a kind."""
    files: dict[str, int]
    """Open files of the process of a kind with the most."""
    busiest: tuple[str, float]
    """The busiest process, and its share of a core."""
    busy: float
    others: float
    """Shares of the host's CPU that all processes and others used."""
    tool_ms: tuple[float, float]
    """Median and 99th percentile."""
    lost: int
    failed_attempts: int
    sessions_left: int
    prompt_bytes: float
    turn_bytes: float

    @property
    def total_ms(self) -> float:
        return sum(self.ms.values())

    def processes(self, kind: str) -> int:
        return 1 if kind == "collector" else self.play.replicas

    @property
    def load(self) -> Load:
        return Load(
            turns=self.play.turns,
            model_latency_s=self.play.latency_s,
            environment_ms=0.0,
            prompt_bytes=self.prompt_bytes,
            turn_bytes=self.turn_bytes,
            in_flight=self.play.parallel,
            episodes_per_s=None,
        )


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    seconds: float = 10.0
    """Duration of a point at the ideal rate; at least two episodes are played in each slot."""
    latencies: Sequence[float] = (0.2, 2.0)
    in_flight: Sequence[int] = (64, 512, 4096, 10_000)
    replicas: Sequence[int] = (1, 2, 4)
    replicas_in_flight: int = 512
    costs: Sequence[Play] = (
        Play(1024, 1.0, replicas=1),
        Play(1024, 1.0, kb=LONG_KB, replicas=1),
        Play(256, 0.25, turns=LONG_TURNS, replicas=1),
        Play(1280, 0.5, replicas=1),
        Play(512, 1.0),
    )
    """Of these, the second has a large prompt, the third many turns, and processes of the others are more or less busy.
    The memory of a conversation is that by which the first two differ."""
    checks: Sequence[Play] = (Play(512, 0.5, replicas=1), Play(1024, 1.0, turns=12, kb=16), Play(2048, 2.0, turns=10))
    rounds: int = 2
    """Measurements of `costs` and `checks`, in turn, so that all have the same share of what else the host does."""


QUICK = Effort(1.0, (0.1,), (32, 64), (), 32, (Play(32, 0.1, replicas=1), Play(32, 0.1, kb=LONG_KB, replicas=1)), (), 1)
"""Most of it would be starts of servers, so that points of other tables are shown where there are none."""


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
        time.sleep(SAMPLE_EVERY_S)
    if collection.process.wait() != 0 or count < 2:
        raise BenchmarkError(f"{count} samples; the collection failed or was too short: {collection.status()}")


@contextmanager
def playing(play: Play) -> Iterator[tuple[Run, ModelEndpoint]]:
    """Start an endpoint and a stack, and let them play."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        model_endpoint("--spread", str(SPREAD), latency_ms=1000 * play.latency_s, turns=play.turns) as script,
    ):
        folder = Path(temporary)
        config: Config = workloads.game(script.url, "trivial", replicas=play.replicas, max_steps=2 * play.turns)
        with stack(folder, config, f"+server_roots=[{workloads.plug_ins(folder / 'plugins')}]") as run:
            rows = workloads.plain_rows(run.folder / "warm.jsonl", 4)
            collect(run, workloads.AGENT, rows, parallel=32, repeats=workloads.REPEATS).finish()
            yield run, script


def measure(run: Run, script: ModelEndpoint, play: Play, seconds: float) -> Point:
    episode_s = play.turns * max(play.latency_s, play.parallel * LEAST_MS_PER_TURN / 1000)
    count = -(-round(play.parallel * max(seconds / episode_s, 2.0)) // workloads.REPEATS)
    rows = workloads.plain_rows(run.folder / "rows.jsonl", count, kb=play.kb)
    expected = count * workloads.REPEATS
    collection = collect(run, workloads.AGENT, rows, parallel=play.parallel, repeats=workloads.REPEATS)
    pids = {**run.pids, "collector": collection.process.pid}
    memory_mb: dict[str, float] = {}
    files: dict[str, int] = {}
    samples, looked = [], 0.0
    for sample in watch(run, script, collection, play.turns * expected):
        samples.append(sample)
        if sample.clock - looked > LOOK_EVERY_S:
            looked = sample.clock
            memory_mb = {name: max(rss_mb(pid), memory_mb.get(name, 0.0)) for name, pid in pids.items()}
            files = {name: max(open_files(pid), files.get(name, 0)) for name, pid in pids.items()}
    first, last = samples[0], samples[-1]
    seconds = last.clock - first.clock
    rate = linear_regression([sample.clock for sample in samples], [sample.turns for sample in samples]).slope
    used = {name: (spent - first.used_s[name]) / seconds for name, spent in last.used_s.items()}
    endpoint = used.pop("model endpoint")
    busiest = max(used, key=lambda name: used[name])
    busy = (last.busy_s - first.busy_s) / (last.available_s - first.available_s)
    others = busy - (sum(used.values()) + endpoint) / (os.cpu_count() or 1)
    status = collection.status()
    tool_ms, prompt_bytes, turn_bytes = _read(collection, play.turns)
    return Point(
        play,
        rate,
        {kind: 1000 * value / rate for kind, value in _by_kind(used).items()},
        _by_kind(memory_mb),
        {kind: max(count for name, count in files.items() if _kind(name) == kind) for kind in _by_kind(memory_mb)},
        (busiest, used[busiest]),
        busy,
        max(others, 0.0),
        tool_ms,
        expected - status["measured"],
        status["failed_attempts"],
        run.sessions_left(),
        prompt_bytes,
        turn_bytes,
    )


def _read(collection: Collection, turns: int) -> tuple[tuple[float, float], float, float]:
    """Return the tool times in ms, and the sizes of a prompt and of a turn in the model's conversation."""
    tool_ms: list[float] = []
    prompt = turn = 0.0
    for line in iter_jsonl(collection.output, refuse(collection.output)):
        row = line.value
        tool_ms.append(1000 * row["timings"]["tool_s"] / row["timings"]["tool_calls"])
        if not prompt:
            prompt = len(orjson.dumps(row["responses_create_params"]))
            turn = len(orjson.dumps(row["response"]["output"])) / turns
    tool_ms.sort()
    return (tool_ms[len(tool_ms) // 2], tool_ms[len(tool_ms) * 99 // 100]), prompt, turn


def _kind(process: str) -> str:
    return process.partition("[")[0]


def _by_kind(values: dict[str, float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, value in values.items():
        sums[_kind(name)] = sums.get(_kind(name), 0.0) + value
    return sums


@dataclass(frozen=True)
class Found:
    """Everything that was measured."""

    replicas: Sequence[Point]
    """The costs are also calculated from the first, whose processes are the busiest."""
    in_flight: Sequence[Point]
    rounds: Sequence[Sequence[Point]]
    """The points of `Effort.costs`, several times."""
    checks: Sequence[Point]

    def costs(self) -> Measured:
        return Measured(measured=host(), **{kind: self._costs(kind) for kind in KINDS})

    def _costs(self, kind: str) -> Costs:
        points = [*self.replicas[:1], *(point for one in self.rounds for point in one)]
        episode_ms, turn_ms, wake_ms, kb_ms = fitted([_terms(point, kind) for point in points])
        per_process = [point.play.parallel / point.processes(kind) for point in self.in_flight]
        memory = [point.memory_mb[kind] / point.processes(kind) for point in self.in_flight]
        slope_mb, base_mb = linear_regression(per_process, memory)
        grown = [_growth(one[0], one[1], kind) for one in self.rounds]
        copies = max(mean(grown), 0.0)
        usual = self.in_flight[0].load.conversation_kb
        files = [point.files[kind] - IDLE_FILES for point in self.in_flight]
        return Costs(
            episode_ms=round(episode_ms, 3),
            turn_ms=round(turn_ms, 4),
            wake_ms=round(wake_ms, 4),
            kb_ms=round(kb_ms, 5),
            base_mb=round(max(base_mb, 0.0), 1),
            episode_kb=round(max(1000 * slope_mb - usual * copies, 0.0), 1),
            copies=round(copies, 2),
            # Whole connections: how many of them are open at the same time varies, and channels are no part of it.
            files=round(max(count / episodes for count, episodes in zip(files, per_process, strict=True))),
        )


def _terms(point: Point, kind: str) -> list[float]:
    """Return by what each cost of an episode is multiplied, as shares of the CPU per episode that was measured."""
    woken = 1 / (1 + point.rate / point.processes(kind) * TOGETHER_S)
    turns, measured_ms = point.play.turns, point.ms[kind] * point.play.turns
    return [term / measured_ms for term in (1.0, turns, turns * woken, point.load.sent_kb)]


def fitted(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the factors, none negative, with which the terms of each row have a sum of about 1, by least squares.

    A negative one cannot simply be replaced by zero, because the others would then be those that fit it.
    """
    terms, goal = np.array(rows), np.ones(len(rows))
    best, least = [0.0] * terms.shape[1], float(len(rows))
    for used in product([False, True], repeat=terms.shape[1]):
        chosen = np.flatnonzero(used)
        factors = np.linalg.lstsq(terms[:, chosen], goal, rcond=None)[0]
        error = float(((terms[:, chosen] @ factors - goal) ** 2).sum())
        if error < least and (factors >= 0).all():
            best, least = [0.0] * terms.shape[1], error
            for term, factor in zip(chosen, factors, strict=True):
                best[term] = float(factor)
    return best


def _growth(small: Point, large: Point, kind: str) -> float:
    """Return how many copies of a conversation are in memory."""
    grown_mb = large.memory_mb[kind] - small.memory_mb[kind]
    return 1000 * grown_mb / small.play.parallel / (large.load.conversation_kb - small.load.conversation_kb)


def run(effort: Effort) -> Found:
    replicas = []
    for count in effort.replicas:
        play = Play(effort.replicas_in_flight, 0.0, replicas=count)
        with playing(play) as (stack, script):
            replicas.append(measure(stack, script, play, effort.seconds))
        _say(replicas[-1])
    in_flight = []
    for latency_s in effort.latencies:
        with playing(Play(1, latency_s)) as (stack, script):
            for parallel in effort.in_flight:
                in_flight.append(measure(stack, script, Play(parallel, latency_s), effort.seconds))
                _say(in_flight[-1])
    rounds, checks = [], []
    for _ in range(effort.rounds):
        rounds.append([_alone(play, effort.seconds) for play in effort.costs])
        checks.append([_alone(play, effort.seconds) for play in effort.checks])
    shown = [_averaged(points) for points in zip(*checks, strict=True)]
    return Found(replicas or rounds[0][:1], in_flight, rounds, shown or in_flight[:1])


def _alone(play: Play, seconds: float) -> Point:
    """Measure with servers of its own, whose memory is that of no earlier point."""
    with playing(play) as (stack, script):
        point = measure(stack, script, play, seconds)
    _say(point)
    return point


def _averaged(points: Sequence[Point]) -> Point:
    """Return the first of some measurements of a point with the means of what is predicted."""
    return replace(
        points[0],
        rate=mean(point.rate for point in points),
        busy=max(point.busy for point in points),
        ms={kind: mean(point.ms[kind] for point in points) for kind in points[0].ms},
        memory_mb={kind: mean(point.memory_mb[kind] for point in points) for kind in points[0].memory_mb},
    )


def _say(point: Point) -> None:
    play = point.play
    print(
        f"{play.parallel} in flight, {play.latency_s:g} s, {play.turns} turns, {play.kb} kB, {play.replicas} replicas: "
        f"{point.rate:.0f} turns/s, {point.total_ms:.2f} ms per turn",
        flush=True,
    )


Table = tuple[str, Sequence[str], list[list[object]]]


def tables(found: Found, measured: Measured) -> list[Table]:
    names = [*KINDS, "head"]
    replicas: list[list[object]] = [
        [
            str(point.play.replicas),
            f"{point.rate / point.play.turns:.0f}",
            point.total_ms,
            *(point.ms[name] for name in names),
            host_cpu(point),
        ]
        for point in found.replicas
    ]
    in_flight: list[list[object]] = []
    for point in found.in_flight:
        play = point.play
        in_flight.append(
            [
                f"{play.parallel:,}",
                f"{play.latency_s:g} s",
                f"{point.rate / play.turns:.0f}",
                f"{100 * point.rate * play.latency_s / play.parallel:.0f} %",
                point.total_ms,
                f"{point.busiest[0]} {100 * point.busiest[1]:.0f} %",
                " / ".join(f"{value:,.1f}" for value in point.tool_ms),
                str(point.lost),
                str(point.failed_attempts),
                str(point.sessions_left),
                host_cpu(point),
            ]
        )
    memory: list[list[object]] = []
    for point in found.in_flight:
        each = [f"{point.memory_mb[kind]:.0f} MB, {point.files[kind]:,}" for kind in KINDS]
        memory.append([f"{point.play.parallel:,}", f"{point.play.latency_s:g} s", *each])
    costs: list[list[object]] = [
        [
            name,
            f"{one.episode_ms:.2f}",
            f"{one.turn_ms:.3f}",
            f"{one.wake_ms:.3f}",
            f"{one.kb_ms:.4f}",
            f"{one.base_mb:.0f}",
            f"{one.episode_kb:.0f}",
            f"{one.copies:.1f}",
            f"{one.files:.1f}",
        ]
        for name, one in measured.kinds().items()
    ]
    checks: list[list[object]] = []
    for point in found.checks:
        play = point.play
        predicted = capacity(point.load, Hosts(replicas=play.replicas), measured)
        cells: list[object] = []
        worst = 0.0
        for before, after in (
            (predicted.turns_per_s, point.rate),
            (1000 * predicted.cores / predicted.turns_per_s, sum(point.ms[kind] for kind in KINDS)),
            (predicted.memory_mb, sum(point.memory_mb[kind] for kind in KINDS)),
        ):
            cells += [before, after]
            worst = max(worst, abs(before / after - 1))
        title = f"{play.parallel:,}, {play.latency_s:g} s, {play.turns} turns, {play.kb} kB"
        # On a host whose CPU is used up, turns take longer than any calculation says.
        found_within = "disturbed" if worst > WITHIN and point.busy > FULL else verdict(worst <= WITHIN)
        checks.append([title, *cells, f"{100 * worst:.0f} % {found_within}"])
    latency = ["in flight", "latency", "episodes/s", "of the ideal", "CPU ms/turn", "busiest process"]
    latency += ["tool call p50 / p99, ms", "lost", "failed attempts", "sessions left", "CPU (others)"]
    return [
        (
            f"Processes per server, {found.replicas[0].play.parallel} in flight, no model latency, CPU ms per turn",
            ["processes", "episodes/s", "all", *(KINDS.get(name, name) for name in names), "CPU (others)"],
            replicas,
        ),
        ("Episodes in flight, two processes per server", latency, in_flight),
        (
            "Memory of all processes of a kind, and open files of each",
            ["in flight", "latency", *KINDS.values()],
            memory,
        ),
        (
            "Costs, from which `ng_capacity` calculates",
            [
                "",
                "ms per episode",
                "ms per turn",
                "to wake up",
                "ms per kB sent",
                "MB",
                "kB per episode",
                "copies",
                "files",
            ],
            costs,
        ),
        (
            "Predicted and measured",
            ["", "turns/s", "measured", "CPU ms/turn", "measured", "memory, MB", "measured", "worst"],
            checks,
        ),
    ]


def host_cpu(point: Point) -> str:
    return f"{100 * point.busy:.0f} % ({100 * point.others:.0f} %)"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test; the numbers are not representative")
    parser.add_argument(
        "--write", type=Path, help="page whose tables to replace; also rewrites services/config/costs.json"
    )
    parser.add_argument("--costs", type=Path, help="file for the costs, for ng_capacity --costs FILE")
    parser.add_argument("--in-flight", type=int, nargs="+", help="episodes in flight (default: 64 512 4096 10000)")
    parser.add_argument("--rounds", type=int, help="measurements of what costs and checks need (default: 2)")
    options = parser.parse_args(arguments)
    if options.quick and options.write:
        raise OperatorError("--write needs all points; drop --quick")
    started = time.monotonic()
    effort = QUICK if options.quick else Effort()
    effort = replace(effort, in_flight=options.in_flight or effort.in_flight, rounds=options.rounds or effort.rounds)
    found = run(effort)
    measured = found.costs()
    shown = tables(found, measured)
    for title, columns, rows in shown:
        table(title, columns, rows)
    print(f"\n{measured.measured}; {(time.monotonic() - started) / 60:.0f} min")
    for path in [options.costs, MEASURED.resolve() if options.write else None]:
        if path is not None:
            path.write_bytes(orjson.dumps(measured.model_dump(), option=orjson.OPT_INDENT_2) + b"\n")
    if options.write:
        parts = [f"Measured on {measured.measured}.", ""]
        for title, columns, rows in shown:
            parts += [f"**{title}**", "", *markdown(columns, rows), ""]
        write_between(options.write, BEGIN, END, "\n".join(parts))
        example, _ = read_options(CapacityOptions, EXAMPLE.split()[1:])
        answer = "\n".join(["```text", *report(*example.calculated()), "```", ""])
        write_between(options.write, EXAMPLE_BEGIN, EXAMPLE_END, answer)
        print(f"wrote the tables to {options.write}")


if __name__ == "__main__":
    main()

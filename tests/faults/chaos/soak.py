"""Soak test: thousands of episodes in flight on one stack, with 5 % of the model's responses faulty, and with kills.

    python -m tests.faults.chaos.soak                                      # 4,096 in flight, 200 ms, an hour
    python -m tests.faults.chaos.soak --parallel 10000 --minutes 10 --kill-server-s 0 --kill-collector-s 0
    python -m tests.faults.chaos.soak --minutes 3 --kill-collector-s 60    # to try it
    python -m tests.faults.chaos.soak --short                              # 512 in flight, 30 s, a server killed

Each server has two replicas, and two collectors share one output. SIGKILL ends a server each minute, in turn a replica
of each part whose other replica lives to the end, and every ten minutes a collector, which is started again. The test
passes if each rollout is in the file at most once and as the script determines it; no attempt failed for another reason
than the endpoint's faults and the kills; no session, process, descriptor, thread or temporary file is left; memory,
descriptors and threads of no process grew by more than a tenth in the last half; and 99.9 % of the `/metrics` requests
took at most 2 s, without the delay of the measuring process itself. In less than 5 minutes growth is only printed; the
short form also only prints the times and fails if there is no response.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from benchmarks.processes import rss_mb
from rollyard.records.errors import FailureKind
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from tests.faults.chaos.command import Command
from tests.faults.chaos.invariants import Broken
from tests.faults.chaos.workspace import HERE, Run, Workspace, get, read_lines
from tests.support.waiting import deadline_s, until

ROWS = HERE / "resources_servers/grl_sokoban/data/qwen3_4b_eval/test_examples_200.jsonl"
COPIES, REPEATS = 20, 1024
METRICS_WITHIN_S = 2.0
MAX_LATE = 0.001
"""Share of the `/metrics` requests that may take longer."""
DRAIN_S = 900.0
MAX_ATTEMPTS = 3
REPLICAS = COLLECTORS = 2
MAX_GROWTH = 1.1
"""Largest memory of a process in the last quarter of the time, relative to the third; also descriptors and threads."""
GROWTH_MINUTES = 5.0
"""In less time, memory still grows with the number of episodes."""
IDLE_SLACK = 8
"""How many descriptors or threads more than before the load an idle server may keep: its pool of threads."""
LOAD_SLACK = {"memory_mb": 0, "descriptors": 64, "threads": IDLE_SLACK}
"""By how much they may vary under load beside MAX_GROWTH: connections are opened and closed as needed."""
MODEL_TIMEOUT_S, SHORT_MODEL_TIMEOUT_S = 60.0, 20.0
"""Ends calls to which the endpoint never responds. On a busy host others take up to 10 s, or 1 s in the short form."""
POLICY = "model"
PARTS = ("agent", "environment", POLICY)
OF_A_KILL = (FailureKind.SESSION_LOST, FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST)
BURN = "while True: pass"
TEMPORARY = "tmp"
"""Where the processes make temporary files."""
FORK_SERVER = "pymp-"
"""The folder of this program's own fork server."""

StartCollector = Callable[[str], Awaitable[Command]]
Live = dict[str, dict[str, Any]]
"""The head and the instances that are alive, by server and number; each with url and pid."""


@dataclass
class Answers:
    """Response times of one instance's /metrics."""

    seconds: list[float] = field(default_factory=list)
    silent: int = 0

    @property
    def late(self) -> int:
        return sum(second > METRICS_WITHIN_S for second in self.seconds) + self.silent

    def summary(self) -> str:
        if not self.seconds:
            return f"no response to {self.silent} requests"
        ranked = sorted(self.seconds)
        worst, usual = ranked[-1], ranked[len(ranked) // 2]
        return (
            f"{len(ranked)} responses, median {usual:.2f} s, worst {worst:.2f} s, later than 2 s or none: {self.late}"
        )


class Lateness:
    """Delays of this process, which are not charged to the servers."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + 0.05
            await asyncio.sleep(0.05)
            if (late := time.monotonic() - due) > 0.02:
                self._late.append((due, late))

    def within(self, started: float, ended: float) -> float:
        return sum(late for due, late in self._late if due + late >= started and due <= ended)


@dataclass(frozen=True)
class Held:
    """What a process holds at one time."""

    memory_mb: float
    descriptors: int
    threads: int


def held(pid: int) -> Held:
    """Raises OSError if the process has ended."""
    process = Path("/proc") / str(pid)
    return Held(rss_mb(pid), sum(1 for _ in (process / "fd").iterdir()), sum(1 for _ in (process / "task").iterdir()))


class Holdings:
    """What processes hold over time, from the start of each."""

    def __init__(self) -> None:
        self._of: dict[str, list[Held]] = {}
        self._pids: dict[str, int] = {}

    async def watch(self, live: Live, collectors: Mapping[str, Command]) -> None:
        while True:
            pids = {name: one["pid"] for name, one in live.items()}
            for name, pid in (pids | {name: one.process.pid for name, one in collectors.items()}).items():
                if self._pids.get(name) != pid:
                    self._pids[name], self._of[name] = pid, []
                with contextlib.suppress(OSError):
                    self._of[name].append(held(pid))
            await asyncio.sleep(1.0)

    def growth(self) -> list[str]:
        """Print the largest values of the third and of the last quarter; return which of them grew."""
        grew = []
        for name, of in self._of.items():
            third, last = of[len(of) // 2 : -len(of) // 4], of[-len(of) // 4 :]
            largest = {
                what: (max(getattr(one, what) for one in third), max(getattr(one, what) for one in last))
                for what in LOAD_SLACK
                if third and last
            }
            parts = (f"{what} {before:.0f}, at last {after:.0f}" for what, (before, after) in largest.items())
            print(f"{name:<15} {'; '.join(parts)}")
            if len(of) < GROWTH_MINUTES * 60:
                continue
            grew += [
                f"{what} of {name} grew from {before:.0f} to {after:.0f} in the last half"
                for what, (before, after) in largest.items()
                if after > max(MAX_GROWTH * before, before + LOAD_SLACK[what])
            ]
        return grew


class Kills:
    """Ends servers and collectors with SIGKILL, and waits until they are back."""

    def __init__(self, run: Run, live: Live, collectors: dict[str, Command], start: StartCollector) -> None:
        self._run = run
        self._live = live
        self._collectors = collectors
        self._start = start
        self.count: Counter[str] = Counter()
        self.spans: list[tuple[float, float]] = []
        """Unix times of each kill of a server, and when its replacement was ready."""

    async def servers(self, every_s: float, ended: asyncio.Event) -> None:
        for part in itertools.cycle(PARTS):
            if await _within(every_s, ended):
                return
            name = f"{part}[0]"
            known = {one["pid"] for one in self._live.values()}
            killed = time.time()
            try:
                os.kill(self._live.pop(name)["pid"], signal.SIGKILL)
            except ProcessLookupError:
                raise Broken(f"{name} had ended by itself") from None
            self.count[name] += 1
            self._live[name] = await self._back(part, known)
            self.spans.append((killed, time.time()))

    async def _back(self, part: str, known: set[int]) -> dict[str, Any]:
        """The replica that replaces a killed one. `known`: the process ids before the kill."""
        for _ in range(int(deadline_s() / 0.2)):
            for one in await self._run.servers():
                if one["server_name"] == part and one["ready"] and one["pid"] not in known:
                    return one
            await asyncio.sleep(0.2)
        raise Broken(f"a killed replica of {part} did not come back")

    async def collectors(self, every_s: float, ended: asyncio.Event) -> None:
        for name in itertools.cycle([*self._collectors]):
            if await _within(every_s, ended):
                return
            self._collectors[name].signal(signal.SIGKILL)
            await self._collectors[name].exit_status()
            self.count[name] += 1
            self._collectors[name] = await self._start(name)


async def _within(seconds: float, ended: asyncio.Event) -> bool:
    """True if the event happens within that time."""
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def soak(workspace: Workspace, options: argparse.Namespace) -> list[str]:
    rows = workspace.folder / "rows.jsonl"
    rows.write_bytes(ROWS.read_bytes() * COPIES)
    async with policy(workspace, options) as url, workspace.run(config(url, options)) as run:
        live: Live = {"head": {"url": run.head_url, "pid": run.command.process.pid}, **named(await run.servers())}
        output = workspace.folder / "rollouts.jsonl"

        async def start(name: str) -> Command:
            collector = await workspace.collect(
                run,
                output,
                rows,
                f"+num_repeats={REPEATS}",
                f"+num_samples_in_parallel={options.parallel // COLLECTORS}",
                f"+max_attempts={MAX_ATTEMPTS}",
                f"+shard={name}/{COLLECTORS}",
            )
            await until(lambda: "plan:" in collector.output or collector.ended, "the collector runs")
            return collector

        before = {name: held(one["pid"]) for name, one in live.items()}
        collectors = {str(number + 1): await start(str(number + 1)) for number in range(COLLECTORS)}
        answers = {name: Answers() for name in live}
        lateness, holdings, kills = Lateness(), Holdings(), Kills(run, live, collectors, start)
        ended = asyncio.Event()
        killing = [
            asyncio.create_task(kill(every_s, ended))
            for kill, every_s in (
                (kills.servers, options.kill_server_s),
                (kills.collectors, options.kill_collector_s),
            )
            if every_s
        ]
        sampling = asyncio.create_task(holdings.watch(live, collectors))
        watchers = [asyncio.create_task(lateness.watch())]
        watchers += [asyncio.create_task(poll_metrics(name, live, answers[name], lateness)) for name in answers]
        await watch(collectors, output, options, live, killing)
        ended.set()
        broken = await failures(killing)
        sampling.cancel()
        for collector in collectors.values():
            collector.signal(signal.SIGINT)
        print("draining ...", flush=True)
        ends = {name: await collector.exit_status(DRAIN_S) for name, collector in collectors.items()}
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(sampling, *watchers, return_exceptions=True)
        faults = orjson.loads((await get(f"{url}/stats"))[1])
        print(f"the endpoint answered {sum(faults.values())} calls: {faults}; busy processes: {options.busy}")
        print(f"killed: {dict(kills.count)}")
        merge = await workspace.start("ng_merge", str(output))
        if (status := await merge.exit_status()) > 1:  # 1: rollouts are missing
            broken.append(f"ng_merge ended with {status}: {merge.output[-1500:]}")
        else:
            broken += check_files(output, faults.get("hang", 0), kills.spans)
        broken += await open_sessions(live)
        broken += await restarted_servers(live, run) + await not_idle(live, before, kills)
        for name, status in ends.items():
            if status not in (0, 130):
                broken.append(f"collector {name} ended with {status}: {collectors[name].output[-1500:]}")
        if not sum(count for name, count in faults.items() if name != "none"):
            broken.append("the endpoint injected no fault")
        broken += holdings.growth()
        broken += check_metrics(answers, options)
        run.command.signal(signal.SIGINT)
        if status := await run.command.exit_status():
            broken.append(f"ng_run ended with {status}")
    if left_behind := await workspace.left_behind():
        broken.append(f"{left_behind} processes are left behind")
    return broken + temporary_files(workspace.folder)


def named(instances: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The instances by server and number."""
    found: dict[str, dict[str, Any]] = {}
    for instance in sorted(instances, key=lambda one: (one["server_name"], one["pid"])):
        name = instance["server_name"]
        found[f"{name}[{sum(key.startswith(f'{name}[') for key in found)}]"] = instance
    return found


def config(url: str, options: argparse.Namespace) -> dict[str, Any]:
    refs = {"resources_server": {"type": "resources_servers", "name": "environment"}}
    replicas = {"replicas": REPLICAS}
    timeout_s = SHORT_MODEL_TIMEOUT_S if options.short else MODEL_TIMEOUT_S
    refs |= {"model_server": {"type": "responses_api_models", "name": POLICY}}
    return {
        POLICY: {
            "responses_api_models": {
                "vllm_model": {"base_url": f"{url}/v1", "api_key": "unused-key", "model": "script", **replicas}
            }
        },
        "environment": {"resources_servers": {"grl_sokoban": replicas}},
        "agent": {"agents": {"game_agent": {"max_steps": 10, "model_timeout_s": timeout_s, **replicas, **refs}}},
    }


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    burning = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def policy(workspace: Workspace, options: argparse.Namespace) -> AsyncIterator[str]:
    """The endpoint, in a separate process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.chaos.soak_policy", "--seed", str(options.seed)),
        *("--latency-ms", str(options.latency_ms), "--fault-rate", str(options.fault_rate)),
        cwd=HERE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE / "src")},
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def poll_metrics(name: str, live: Live, answers: Answers, lateness: Lateness) -> None:
    """Request /metrics once a second while the instance is alive."""
    while True:
        started = time.monotonic()
        if instance := live.get(name):
            try:
                status, _ = await get(f"{instance['url']}/metrics")
                ended = time.monotonic()
                if status == 200:
                    answers.seconds.append(max(ended - started - lateness.within(started, ended), 0.0))
                else:
                    answers.silent += 1
            except Broken:
                answers.silent += live.get(name) is instance
        await asyncio.sleep(max(1.0 - (time.monotonic() - started), 0.05))


def check_metrics(answers: Mapping[str, Answers], options: argparse.Namespace) -> list[str]:
    for name, metrics in answers.items():
        print(f"/metrics of {name:<15} {metrics.summary()}")
    late, silent = (sum(getattr(one, what) for one in answers.values()) for what in ("late", "silent"))
    asked = sum(len(one.seconds) + one.silent for one in answers.values())
    if (late > MAX_LATE * asked and not options.short) or silent > MAX_LATE * asked:
        return [f"{late} of {asked} requests for /metrics took longer than {METRICS_WITHIN_S:g} s, {silent} failed"]
    return []


async def failures(killing: list[asyncio.Task[None]]) -> list[str]:
    """What did not come back after a kill, or could not be killed because it had ended by itself."""
    found = []
    for task in killing:
        try:
            await task
        except (Broken, OSError) as error:
            found.append(f"the kills ended early: {error}")
    return found


async def watch(
    collectors: Mapping[str, Command],
    output: Path,
    options: argparse.Namespace,
    live: Live,
    killing: list[asyncio.Task[None]],
) -> None:
    """Print how far it is until the time is over, all collectors have ended, or kills failed."""
    ends = time.monotonic() + options.minutes * 60
    statuses = [RolloutPaths(Shard(i + 1, COLLECTORS).output(output)).status for i in range(COLLECTORS)]
    while (
        time.monotonic() < ends
        and not all(collector.ended for collector in collectors.values())
        and not any(task.done() for task in killing)
    ):
        await asyncio.sleep(min(15.0, max(ends - time.monotonic(), 0.1)))
        now = [orjson.loads(status.read_bytes()) for status in statuses if status.exists()]

        names = ("measured", "in_flight", "rollouts_per_s", "failed_attempts", "failed")
        shown = ", ".join(f"{name} {sum(float(one[name]) for one in now):.0f}" for name in names)
        oldest_s = max((one["oldest_s"] for one in now), default=0.0)
        print(
            f"{options.minutes * 60 - (ends - time.monotonic()):5.0f} s  {shown}, oldest {oldest_s:.0f} s; "
            f"{await lags(live)}",
            flush=True,
        )


async def lags(live: Live) -> str:
    parts = []
    for name, one in [*live.items()]:
        with contextlib.suppress(Broken):
            _, text = await get(f"{one['url']}/metrics")
            if found := re.search(rb"^rollyard_event_loop_lag_worst_seconds (\S+)$", text, re.MULTILINE):
                parts.append(f"{name} {float(found.group(1)):.1f}")
    return f"lag s: {', '.join(parts)}"


def check_files(output: Path, hangs: int, spans: list[tuple[float, float]]) -> list[str]:
    """What is wrong with the output. `hangs`: calls without a response of the endpoint. `spans`: see Kills."""
    keys: set[tuple[int, int]] = set()
    rewards: dict[int, set[tuple[Any, ...]]] = {}
    twice = 0
    with output.open("rb") as lines:
        for line in lines:
            row = orjson.loads(line)
            key = (row["_ng_task_index"], row["_ng_rollout_index"])
            twice += key in keys
            keys.add(key)
            # The script only depends on the conversation, so all rollouts of a puzzle are equal.
            outcome = (row["reward"], row["finish_reason"], row["moves"], len(row["response"]["output"]))
            rewards.setdefault(key[0] % 200, set()).add(outcome)
    failed = read_lines(output.with_name("rollouts_failures.jsonl"))
    kinds = Counter((row["failure_kind"], row["server"]) for row in failed)
    attempts = Counter((row["_ng_task_index"], row["_ng_rollout_index"]) for row in failed)
    # Three faults of the endpoint in a row fail a call, and so does no response. Neither is an error of the stack.
    own = Counter(
        (row["failure_kind"], row["server"]) for row in failed if not is_endpoints(row) and not is_of_a_kill(row, spans)
    )
    own["timeout", POLICY] -= min(hangs, own["timeout", POLICY])
    abandoned = [key for key, tried in attempts.items() if tried >= MAX_ATTEMPTS and key not in keys]
    print(f"measured {len(keys)}, failed attempts {len(failed)}: {dict(kinds)}, given up {len(abandoned)}")
    for row in {(row["failure_kind"], row["server"]): row for row in failed}.values():
        print(f"  {row['failure_kind']} at {row['server']}: {row['detail'][:300]}")
    broken = [f"{twice} rollouts are in the file twice"] if twice else []
    broken += [f"{count} attempts failed with {kind} at {server}" for (kind, server), count in own.items() if count]
    different = sum(len(found) > 1 for found in rewards.values())
    broken += [f"{different} puzzles have unequal rollouts although the script is the same"] if different else []
    return [*broken, *([] if keys else ["nothing was measured"])]


def is_endpoints(row: dict[str, Any]) -> bool:
    """True for a failure that the endpoint's faults alone explain."""
    of_a_call = row["failure_kind"] in ("malformed_answer", "upstream_error", "rate_limited")
    return bool(row["server"] == POLICY and (of_a_call or "/v1/chat/completions" in row["detail"]))


def is_of_a_kill(row: dict[str, Any], spans: list[tuple[float, float]]) -> bool:
    """True for a failure that a kill explains: during the attempt, a server was killed or not yet back."""
    began, ended = row["time"] - row["duration_s"], row["time"]
    return row["failure_kind"] in OF_A_KILL and any(killed <= ended and began <= back for killed, back in spans)


async def open_sessions(live: Live) -> list[str]:
    """Servers with sessions that are still open 30 s after the end, and those that do not answer."""
    left: list[str] = []
    for _ in range(60):
        left = [found for name, one in live.items() if (found := await open_at(name, one["url"]))]
        if not left:
            break
        await asyncio.sleep(0.5)
    return left


async def open_at(name: str, url: str) -> str:
    try:
        count = await sessions(url)
    except (Broken, OSError) as error:
        return f"{name} does not answer: {error}"
    return f"{count} sessions are left at {name}" if count else ""


async def not_idle(live: Live, before: Mapping[str, Held], kills: Kills) -> list[str]:
    """Descriptors and threads that servers alive since the start still hold a minute after the end."""
    since_start = {name: one["pid"] for name, one in live.items() if not kills.count[name]}
    left: list[str] = []
    for _ in range(60):
        left = [found for name, pid in since_start.items() for found in more_than_before(name, pid, before[name])]
        if not left:
            break
        await asyncio.sleep(1.0)
    return left


def more_than_before(name: str, pid: int, before: Held) -> list[str]:
    try:
        now = held(pid)
    except OSError:
        return [f"{name} ended by itself"]
    return [
        f"{name} has {after} {what}, {before_it} before the load"
        for what in ("descriptors", "threads")
        if (after := getattr(now, what)) > (before_it := getattr(before, what)) + IDLE_SLACK
    ]


def temporary_files(folder: Path) -> list[str]:
    names = [path.name for path in (folder / TEMPORARY).iterdir() if not path.name.startswith(FORK_SERVER)]
    names += [path.name for path in folder.iterdir() if path.is_file() and path.name.startswith(".")]
    return [f"temporary files are left: {', '.join(sorted(names)[:10])}"] if names else []


async def sessions(url: str) -> int:
    _, text = await get(f"{url}/metrics")
    found = re.search(rb"^rollyard_sessions (\S+)$", text, re.MULTILINE)
    return int(float(found.group(1))) if found else 0


async def restarted_servers(live: Live, run: Run) -> list[str]:
    try:
        now = await run.servers()
    except (Broken, OSError) as error:
        return [f"the head does not list its servers: {error}"]
    known = {one["pid"] for one in live.values()}
    return [f"{one['server_name']} was restarted, not after a kill" for one in now if one["pid"] not in known]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="512 in flight, 30 s, kills every 10 and 15 s")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--parallel", type=int, default=4096, help="episodes in flight")
    parser.add_argument("--kill-server-s", type=float, default=60.0, help="time between kills of a server; 0: none")
    parser.add_argument("--kill-collector-s", type=float, default=600.0, help="time between kills of a collector")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="latency of each model response")
    parser.add_argument("--fault-rate", type=float, default=0.05, help="share of faulty model responses")
    parser.add_argument("--busy", type=int, default=0, help="other processes that keep the CPU busy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder in which files are kept; default: a temporary one")
    options = parser.parse_args()
    if options.short:
        options.minutes, options.parallel = 0.5, 512
        options.kill_server_s, options.kill_collector_s = 10.0, 15.0
    return options


async def main() -> int:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="rollyard-soak-") as temporary:
        folder = options.keep or Path(temporary)
        (folder / TEMPORARY).mkdir(parents=True, exist_ok=True)
        os.environ["TMPDIR"] = str(folder / TEMPORARY)
        with busy(options.busy):
            broken = await soak(Workspace(folder), options)
    for what in broken:
        print(f"broken: {what}")
    print("soak: " + (f"{len(broken)} checks failed" if broken else "held"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

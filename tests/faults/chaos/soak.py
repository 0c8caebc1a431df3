"""Soak test: ten thousand episodes in flight on one stack, with 5 % of the model's responses faulty.

    python -m tests.faults.chaos.soak                      # 10,000 in flight, 200 ms, 10 minutes
    python -m tests.faults.chaos.soak --minutes 1          # to try it
    python -m tests.faults.chaos.soak --short              # 512 in flight, 30 s

Each server has two replicas, and two collectors share one output. It passes if each rollout is in the file at most once
and as the script determines it, none failed for another reason than the endpoint's faults, no session or process is
left, no process grew by more than a tenth in the last half, and every `/metrics` request took at most 2 s, without the
delay of the measuring process itself. In less than 5 minutes, memory is only printed; the short form also only prints
the times and fails if there is no response.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from benchmarks.processes import rss_mb
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from tests.faults.chaos.command import Command
from tests.faults.chaos.invariants import Broken
from tests.faults.chaos.workspace import HERE, Workspace, get, read_lines

ROWS = HERE / "resources_servers/grl_sokoban/data/qwen3_4b_eval/test_examples_200.jsonl"
COPIES, REPEATS = 20, 256
METRICS_WITHIN_S = 2.0
DRAIN_S = 900.0
MAX_ATTEMPTS = 3
REPLICAS = COLLECTORS = 2
MAX_GROWTH = 1.1
"""Largest memory of a process in the last quarter of the time, relative to that in the third."""
GROWTH_MINUTES = 5.0
"""In less time, memory still grows with the number of episodes."""
MODEL_TIMEOUT_S, SHORT_MODEL_TIMEOUT_S = 60.0, 20.0
"""Ends calls to which the endpoint never responds. On a busy host others take up to 10 s, or 1 s in the short form."""
POLICY = "model"
BURN = "while True: pass"


@dataclass
class Answers:
    """Response times of one server's /metrics."""

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


class Memory:
    """Resident memory of processes over time."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._mb: dict[str, list[float]] = {name: [] for name in pids}

    async def watch(self) -> None:
        while True:
            for name, pid in self._pids.items():
                with contextlib.suppress(OSError):
                    self._mb[name].append(rss_mb(pid))
            await asyncio.sleep(1.0)

    def growth(self) -> dict[str, tuple[float, float]]:
        """Process -> the largest value of the third and of the last quarter, in MB."""
        quarters = {
            name: (mb[len(mb) // 2 : -len(mb) // 4], mb[-len(mb) // 4 :]) for name, mb in self._mb.items() if mb
        }
        return {name: (max(third, default=0.0), max(last)) for name, (third, last) in quarters.items()}


async def soak(workspace: Workspace, options: argparse.Namespace) -> list[str]:
    rows = workspace.folder / "rows.jsonl"
    rows.write_bytes(ROWS.read_bytes() * COPIES)
    async with policy(workspace, options) as url, workspace.run(config(url, options)) as run:
        instances = named(await run.servers())
        servers = {"head": run.head_url, **{name: instance["url"] for name, instance in instances.items()}}
        output = workspace.folder / "rollouts.jsonl"
        collectors = {
            f"collector[{number}]": await workspace.collect(
                run,
                output,
                rows,
                f"+num_repeats={REPEATS}",
                f"+num_samples_in_parallel={options.parallel // COLLECTORS}",
                f"+max_attempts={MAX_ATTEMPTS}",
                f"+shard={number + 1}/{COLLECTORS}",
            )
            for number in range(COLLECTORS)
        }
        answers = {name: Answers() for name in servers}
        lateness = Lateness()
        pids = {"head": run.command.process.pid, **{name: instance["pid"] for name, instance in instances.items()}}
        memory = Memory({**pids, **{name: collector.process.pid for name, collector in collectors.items()}})
        watchers = [asyncio.create_task(lateness.watch()), asyncio.create_task(memory.watch())]
        watchers += [
            asyncio.create_task(poll_metrics(target, answers[name], lateness)) for name, target in servers.items()
        ]
        await watch(list(collectors.values()), output, options, servers)
        watchers[1].cancel()
        for collector in collectors.values():
            collector.signal(signal.SIGINT)
        print("draining ...", flush=True)
        ends = {name: await collector.exit_status(DRAIN_S) for name, collector in collectors.items()}
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        faults = orjson.loads((await get(f"{url}/stats"))[1])
        print(f"the endpoint answered {sum(faults.values())} calls: {faults}; busy processes: {options.busy}")
        await (await workspace.start("ng_merge", str(output))).exit_status()
        broken = check_files(output, faults.get("hang", 0)) + await open_sessions(servers)
        broken += restarted_servers(pids, await run.servers())
        for name, status in ends.items():
            if status not in (0, 130):
                broken.append(f"{name} ended with {status}: {collectors[name].output[-1500:]}")
        if not sum(count for name, count in faults.items() if name != "none"):
            broken.append("the endpoint injected no fault")
        for name, (before, after) in memory.growth().items():
            print(f"memory of {name:<15} {before:5.0f} MB, at last {after:5.0f} MB")
            if options.minutes >= GROWTH_MINUTES and after > MAX_GROWTH * before:
                broken.append(f"the memory of {name} grew from {before:.0f} to {after:.0f} MB in the last half")
        for name, metrics in answers.items():
            print(f"/metrics of {name:<15} {metrics.summary()}")
            if metrics.silent or (metrics.late and not options.short):
                broken.append(
                    f"/metrics of {name}: {metrics.late} of {len(metrics.seconds) + metrics.silent} later than 2 s"
                )
        run.command.signal(signal.SIGINT)
        if ended := await run.command.exit_status():
            broken.append(f"ng_run ended with {ended}")
    left_behind = await workspace.left_behind()
    return [*broken, f"{left_behind} processes are left behind"] if left_behind else broken


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


async def poll_metrics(url: str, answers: Answers, lateness: Lateness) -> None:
    """Request /metrics once a second."""
    while True:
        started = time.monotonic()
        try:
            status, _ = await get(f"{url}/metrics")
            ended = time.monotonic()
            if status == 200:
                answers.seconds.append(max(ended - started - lateness.within(started, ended), 0.0))
            else:
                answers.silent += 1
        except Broken:
            answers.silent += 1
        await asyncio.sleep(max(1.0 - (time.monotonic() - started), 0.05))


async def watch(collectors: list[Command], output: Path, options: argparse.Namespace, servers: dict[str, str]) -> None:
    ends = time.monotonic() + options.minutes * 60
    statuses = [RolloutPaths(Shard(i + 1, COLLECTORS).output(output)).status for i in range(COLLECTORS)]
    while time.monotonic() < ends and not all(collector.ended for collector in collectors):
        await asyncio.sleep(min(15.0, max(ends - time.monotonic(), 0.1)))
        now = [orjson.loads(status.read_bytes()) for status in statuses if status.exists()]

        names = ("measured", "in_flight", "rollouts_per_s", "failed_attempts", "failed")
        shown = ", ".join(f"{name} {sum(float(one[name]) for one in now):.0f}" for name in names)
        oldest_s = max((one["oldest_s"] for one in now), default=0.0)
        print(
            f"{options.minutes * 60 - (ends - time.monotonic()):5.0f} s  {shown}, oldest {oldest_s:.0f} s; "
            f"{await lags(servers)}",
            flush=True,
        )


async def lags(servers: dict[str, str]) -> str:
    parts = []
    for name, url in servers.items():
        with contextlib.suppress(Broken):
            _, text = await get(f"{url}/metrics")
            if found := re.search(rb"^rollyard_event_loop_lag_worst_seconds (\S+)$", text, re.MULTILINE):
                parts.append(f"{name} {float(found.group(1)):.1f}")
    return f"lag s: {', '.join(parts)}"


def check_files(output: Path, hangs: int) -> list[str]:
    """What is wrong with the output. `hangs`: calls to which the endpoint never responded."""
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
    own = Counter((row["failure_kind"], row["server"]) for row in failed if not is_endpoints(row))
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


async def open_sessions(servers: dict[str, str]) -> list[str]:
    """Servers with sessions that are still open 30 s after the end."""
    open_now: dict[str, int] = {}
    for _ in range(60):
        open_now = {name: count for name, url in servers.items() if (count := await sessions(url))}
        if not open_now:
            return []
        await asyncio.sleep(0.5)
    return [f"{count} sessions are left at {name}" for name, count in open_now.items()]


async def sessions(url: str) -> int:
    _, text = await get(f"{url}/metrics")
    found = re.search(rb"^rollyard_sessions (\S+)$", text, re.MULTILINE)
    return int(float(found.group(1))) if found else 0


def restarted_servers(before: dict[str, int], now: list[dict[str, Any]]) -> list[str]:
    return [f"{one['server_name']} was restarted" for one in now if one["pid"] not in before.values()]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="512 in flight, 30 s")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--parallel", type=int, default=10000, help="episodes in flight")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="latency of each model response")
    parser.add_argument("--fault-rate", type=float, default=0.05, help="share of faulty model responses")
    parser.add_argument("--busy", type=int, default=0, help="other processes that keep the CPU busy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder in which files are kept; default: a temporary one")
    options = parser.parse_args()
    if options.short:
        options.minutes, options.parallel = 0.5, 512
    return options


async def main() -> int:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="rollyard-soak-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with busy(options.busy):
            broken = await soak(Workspace(folder), options)
    for what in broken:
        print(f"broken: {what}")
    print("soak: " + (f"{len(broken)} checks failed" if broken else "held"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

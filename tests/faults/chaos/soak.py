"""Soak test: thousands of episodes in flight on a busy host, with 5 % of the model's responses faulty.

    python -m tests.faults.chaos.soak                      # 4,096 in flight, 200 ms, 8 minutes
    python -m tests.faults.chaos.soak --short              # 512 in flight, 30 s

It passes if no rollout was abandoned, none failed because a server of the run was late, none was measured wrongly, no
session or process is left, and every `/metrics` request took at most 2 s. The delay of the measuring process itself is
subtracted. The short form only prints the times and fails if there is no response.
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

from tests.faults.chaos.invariants import Broken
from tests.faults.chaos.workspace import HERE, Run, Workspace, get, read_lines

ROWS = HERE / "resources_servers/grl_sokoban/data/qwen3_4b_eval/test_examples_200.jsonl"
COPIES, REPEATS = 20, 64
METRICS_WITHIN_S = 2.0
DRAIN_S = 900.0
MAX_ATTEMPTS = 3
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


async def soak(workspace: Workspace, options: argparse.Namespace) -> list[str]:
    rows = workspace.folder / "rows.jsonl"
    rows.write_bytes(ROWS.read_bytes() * COPIES)
    async with policy(workspace, options) as url, workspace.run(config(url)) as run:
        servers = {
            "head": run.head_url,
            **{instance["server_name"]: instance["url"] for instance in await run.servers()},
        }
        pids = {instance["server_name"]: instance["pid"] for instance in await run.servers()}
        output = workspace.folder / "rollouts.jsonl"
        collect_options = [f"+num_repeats={REPEATS}", f"+num_samples_in_parallel={options.parallel}"]
        collecting = await workspace.collect(run, output, rows, *collect_options, "+max_attempts=3")
        answers = {name: Answers() for name in servers}
        lateness = Lateness()
        watchers = [asyncio.create_task(lateness.watch())]
        watchers += [
            asyncio.create_task(poll_metrics(target, answers[name], lateness)) for name, target in servers.items()
        ]
        await watch(collecting, output, options, servers)
        collecting.signal(signal.SIGINT)
        print("draining ...", flush=True)
        status = await collecting.exit_status(DRAIN_S)
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        faults = orjson.loads((await get(f"{url}/stats"))[1])
        print(f"the endpoint answered {sum(faults.values())} calls: {faults}")
        broken = (
            check_files(output)
            + await open_sessions(run, list(servers)[1:])
            + restarted_servers(pids, await run.servers())
        )
        print(f"ng_collect_rollouts ended with {status}; busy processes on the host: {options.busy}")
        if status not in (0, 130):
            broken.append(f"exit status {status}: {collecting.output[-1500:]}")
        if not sum(count for name, count in faults.items() if name != "none"):
            broken.append("the endpoint injected no fault")
        for name, metrics in answers.items():
            print(f"/metrics of {name:<6} {metrics.summary()}")
            if metrics.silent or (metrics.late and not options.short):
                broken.append(
                    f"/metrics of {name}: {metrics.late} of {len(metrics.seconds) + metrics.silent} later than 2 s"
                )
        run.command.signal(signal.SIGINT)
        if ended := await run.command.exit_status():
            broken.append(f"ng_run ended with {ended}")
    left_behind = await workspace.left_behind()
    return [*broken, f"{left_behind} processes are left behind"] if left_behind else broken


def config(url: str) -> dict[str, Any]:
    refs = {"resources_server": {"type": "resources_servers", "name": "environment"}}
    refs |= {"model_server": {"type": "responses_api_models", "name": POLICY}}
    return {
        POLICY: {
            "responses_api_models": {
                "vllm_model": {"base_url": f"{url}/v1", "api_key": "unused-key", "model": "script"}
            }
        },
        "environment": {"resources_servers": {"grl_sokoban": {}}},
        "agent": {"agents": {"game_agent": {"max_steps": 10, **refs}}},
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


async def watch(collecting: Any, output: Path, options: argparse.Namespace, servers: dict[str, str]) -> None:
    ends = time.monotonic() + options.minutes * 60
    status = output.with_name("rollouts_status.json")
    while time.monotonic() < ends and not collecting.ended:
        await asyncio.sleep(min(15.0, max(ends - time.monotonic(), 0.1)))
        if status.exists():
            now = orjson.loads(status.read_bytes())
            print(
                f"{options.minutes * 60 - (ends - time.monotonic()):5.0f} s  measured {now['measured']}  in flight "
                f"{now['in_flight']}  {now['rollouts_per_s']:.0f}/s  failed attempts {now['failed_attempts']}  "
                f"given up {now['failed']} {now['failures']}  oldest {now['oldest_s']:.0f} s  {await lags(servers)}",
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


def check_files(output: Path) -> list[str]:
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
    abandoned = [key for key, tried in attempts.items() if tried >= MAX_ATTEMPTS and key not in keys]
    # Three faults of the endpoint in a row fail a call; that is not an error of the stack.
    own = Counter((row["failure_kind"], row["server"]) for row in failed if not is_endpoints(row))
    print(f"measured {len(keys)}, failed attempts {len(failed)}: {dict(kinds)}, given up {len(abandoned)}")
    for row in {(row["failure_kind"], row["server"]): row for row in failed}.values():
        print(f"  {row['failure_kind']} at {row['server']}: {row['detail'][:300]}")
    broken = [f"{len(abandoned)} rollouts abandoned"] if abandoned else []
    broken += [f"{twice} rollouts are in the file twice"] if twice else []
    broken += [f"{count} attempts failed with {kind} at {server}" for (kind, server), count in own.items()]
    different = sum(len(found) > 1 for found in rewards.values())
    broken += [f"{different} puzzles have unequal rollouts although the script is the same"] if different else []
    return [*broken, *([] if keys else ["nothing was measured"])]


def is_endpoints(row: dict[str, Any]) -> bool:
    """True for a failure that the endpoint's faults alone explain."""
    of_a_call = row["failure_kind"] in ("malformed_answer", "upstream_error", "rate_limited")
    return bool(row["server"] == POLICY and (of_a_call or "/v1/chat/completions" in row["detail"]))


async def open_sessions(run: Run, servers: list[str]) -> list[str]:
    """Servers with sessions that are still open 30 s after the end."""
    open_now: dict[str, float] = {}
    for _ in range(60):
        open_now = {name: count for name in servers if (count := await run.gauge(name, "rollyard_sessions"))}
        if not open_now:
            return []
        await asyncio.sleep(0.5)
    return [f"{count:.0f} sessions are left at {name}" for name, count in open_now.items()]


def restarted_servers(before: dict[str, int], now: list[dict[str, Any]]) -> list[str]:
    return [
        f"{instance['server_name']} was restarted"
        for instance in now
        if before[instance["server_name"]] != instance["pid"]
    ]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="512 in flight, 30 s")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--parallel", type=int, default=4096, help="episodes in flight")
    parser.add_argument("--latency-ms", type=float, default=200.0, help="latency of each model response")
    parser.add_argument("--fault-rate", type=float, default=0.05, help="share of faulty model responses")
    parser.add_argument("--busy", type=int, default=2, help="other processes that keep the CPU busy")
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

"""Processes that die, stop, block or mix up responses."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from functools import partial
from pathlib import Path

from tests.faults.chaos.command import Command
from tests.faults.chaos.endpoint import Endpoint, Script
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import (
    AGENT,
    ENVIRONMENT,
    MODEL,
    QUICK,
    REPEATS,
    TASKS,
    FaultContext,
    stack,
    written,
)
from tests.faults.chaos.invariants import Broken, hold, injected, read, whole
from tests.faults.chaos.workspace import Run
from tests.support.processes import alive
from tests.support.waiting import deadline_s

BLOCKED_S = 8.0


async def killed(victim: str, context: FaultContext, rng: random.Random) -> None:
    """Kill a server repeatedly: the collection, with resumes, equals that of an uninterrupted run."""
    output = context.output()
    # The sessions of a killed agent are closed after this idle time.
    async with context.playing(session_idle_s=8.0) as (run, _):
        command = await context.begin(run, output, "+max_attempts=50", "+max_failure_rate=1")
        kills = 0
        for _ in range(3):
            injected(await written(output, rng.randrange(2, 30), command) or kills, "the collection ended too early")
            if (pid := await _pid(run, victim)) is None or command.ended:
                continue
            os.kill(pid, signal.SIGKILL)
            kills += 1
            await _gone(run, victim, pid)
        injected(kills, "nothing was killed")
        status = await command.ends()
        if status:
            await context.completes(run, output, "+max_attempts=50")
        whole(output, TASKS, REPEATS)
        await no_sessions(run)


async def _pid(run: Run, victim: str) -> int | None:
    for _ in range(int(2 * deadline_s())):
        try:
            if pid := await run.pid(victim):
                return int(pid)
        except Broken:
            pass
        await asyncio.sleep(0.05)
    return None


async def _gone(run: Run, victim: str, pid: int) -> None:
    for _ in range(int(2 * deadline_s())):
        if await run.pid(victim) not in (None, pid):
            return
        await asyncio.sleep(0.05)
    raise Broken(f"{victim} was not restarted")


async def killed_collector(context: FaultContext, rng: random.Random) -> None:
    """Kill the collector: the same command completes the output with each rollout once."""
    output = context.output()
    run, _ = await context.plain()
    for _ in range(3):
        command = await context.begin(run, output)
        have = output.read_bytes().count(b"\n") if output.exists() else 0
        if not await written(output, have + rng.randrange(1, 40), command):
            break
        command.signal(signal.SIGKILL)
        await command.exit_status()
    injected(command.process.returncode == -signal.SIGKILL, "the collection ended too early")
    await context.completes(run, output)


async def killed_run(context: FaultContext, rng: random.Random) -> None:
    """Kill ng_run and with it the head: no server outlives it, and a new run completes the collection."""
    output = context.output()
    async with Endpoint(Script(latency_s=QUICK)).up() as endpoint:
        config = stack(endpoint.url)
        async with context.run(config) as run:
            pids = [shown["pid"] for shown in await run.servers()]
            command = await context.begin(run, output, "+max_attempts=1")
            injected(await written(output, rng.randrange(5, 60), command), "the collection ended too early")
            run.command.signal(signal.SIGKILL)
            status = await command.ends()
            hold(status == 1, f"the collection ended with {status}")
            for _ in range(int(2 * deadline_s())):
                if not (left := [pid for pid in pids if alive(pid)]):
                    break
                await asyncio.sleep(0.05)
            hold(not left, f"{len(left)} servers outlived ng_run")
        async with context.run(config) as run:
            await context.completes(run, output)


async def stopped(victim: str, context: FaultContext, rng: random.Random) -> None:
    """Send SIGSTOP, then SIGCONT after 8 s, as on a busy host: no attempt fails."""
    output = context.output()
    async with context.playing() as (run, _):
        command = await context.begin(run, output, "+num_samples_in_parallel=32")
        injected(await written(output, rng.randrange(5, 40), command), "the collection ended too early")
        pid = run.command.process.pid if victim == "head" else await run.pid(victim)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(BLOCKED_S)
            # Without its head, a collection may end normally.
            injected(victim == "head" or not command.ended, "the collection ended before SIGCONT")
        finally:
            os.kill(pid, signal.SIGCONT)
        await unharmed(run, command, output)


async def unharmed(run: Run, command: Command, output: Path) -> None:
    """Check that a delay alone fails no attempt."""
    status = await command.ends()
    failed = read(output.with_name("rollouts_failures.jsonl"))
    kinds = sorted({f"{row['failure_kind']} at {row['server']}" for row in failed})
    hold(not failed, f"{len(failed)} attempts failed: {', '.join(kinds)}")
    whole(output, TASKS, REPEATS)
    hold(status == 0, f"ended with {status}")
    await no_sessions(run)


async def no_sessions(run: Run) -> None:
    left = 0.0
    for _ in range(int(deadline_s())):
        if not (left := await run.gauge(ENVIRONMENT, "rollyard_sessions")):
            return
        await asyncio.sleep(0.1)
    raise Broken(f"{left:.0f} sessions are left")


async def blocked(victim: str, context: FaultContext, rng: random.Random) -> None:
    """A plug-in blocks its server's event loop for 8 s while new episodes arrive."""
    output = context.output()
    at = rng.choice([rng.randrange(5, 60), rng.randrange(60, 140)])
    async with Endpoint(Script(latency_s=QUICK)).up() as endpoint:
        if victim == ENVIRONMENT:
            config = stack(endpoint.url, block_s=BLOCKED_S, block_at=at)
        else:
            config = stack(endpoint.url, agent="blocking_agent")
            config[AGENT]["agents"]["blocking_agent"]["block_at"] = at
        async with context.run(config) as run:
            command = await context.begin(run, output, "+num_samples_in_parallel=64")
            worst = 0.0
            while not command.ended:
                await asyncio.sleep(0.5)
                worst = max(worst, await run.gauge(victim, "rollyard_event_loop_lag_worst_seconds"))
            injected(worst > BLOCKED_S - 2, f"the loop of {victim} was late by {worst:.1f} s at most")
            await unharmed(run, command, output)


async def doubled(context: FaultContext, rng: random.Random) -> None:
    """The environment sends every response again a little later: no episode receives another's response."""
    output = context.output()
    async with context.playing(twice=True) as (run, _):
        command = await context.begin(
            run, output, "+max_attempts=50", "+max_failure_rate=1", "+num_samples_in_parallel=16"
        )
        status = await command.ends()
        rows = read(output)
        wrong = [row for row in rows if row["reward"] != 1.0]
        hold(not wrong, f"{len(wrong)} of {len(rows)} rollouts received another's response, exit {status}")
        whole(output, TASKS, REPEATS)
        hold(status == 0, f"ended with {status}: {command.output[-300:]}")


SAME, CALM = "equal to an uninterrupted run", "no attempt fails"

FAULTS = [
    *(
        Fault(f"the {victim} killed with SIGKILL", 3, SAME, partial(killed, victim), slow=victim == MODEL)
        for victim in (AGENT, ENVIRONMENT, MODEL)
    ),
    Fault("the collector killed with SIGKILL", 3, SAME, killed_collector),
    Fault("ng_run killed with SIGKILL", 3, SAME, killed_run, slow=True),
    *(
        Fault(f"the {victim} stopped for 8 s", 3, CALM, partial(stopped, victim), slow=victim not in (ENVIRONMENT,))
        for victim in (AGENT, ENVIRONMENT, MODEL, "head")
    ),
    *(
        Fault(
            f"the event loop of the {victim} blocked for 8 s", 3, CALM, partial(blocked, victim), slow=victim == AGENT
        )
        for victim in (ENVIRONMENT, AGENT)
    ),
    Fault(
        "every response of the environment sent twice on a kept-alive connection",
        3,
        "no rollout receives another's response",
        doubled,
    ),
]

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
from tests.faults.chaos.invariants import Broken, hold, injected, no_crash, read, whole
from tests.faults.chaos.workspace import Run

BLOCKED_S = 8.0


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
    status = await command.exit_status()
    no_crash(command.output)
    failed = read(output.with_name("rollouts_failures.jsonl"))
    kinds = sorted({f"{row['failure_kind']} at {row['server']}" for row in failed})
    hold(not failed, f"{len(failed)} attempts failed: {', '.join(kinds)}")
    whole(output, TASKS, REPEATS)
    hold(status == 0, f"ended with {status}")
    await no_sessions(run)


async def no_sessions(run: Run) -> None:
    left = 0.0
    for _ in range(300):
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
        status = await command.exit_status()
        no_crash(command.output)
        rows = read(output)
        wrong = [row for row in rows if row["reward"] != 1.0]
        hold(not wrong, f"{len(wrong)} of {len(rows)} rollouts received another's response, exit {status}")
        whole(output, TASKS, REPEATS)
        hold(status == 0, f"ended with {status}: {command.output[-300:]}")


CALM = "no attempt fails"

FAULTS = [
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

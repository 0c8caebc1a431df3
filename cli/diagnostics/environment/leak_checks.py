"""Checks that finished episodes leave nothing behind: sessions, tasks, files, processes, threads, memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from random import Random

from rollyard.cli.diagnostics.environment.episode_client import Environment
from rollyard.cli.diagnostics.environment.play import act, answers_for, message, verify_body
from rollyard.cli.diagnostics.environment.process_usage import Usage
from rollyard.cli.diagnostics.findings import Finding, failed, note, ok
from rollyard.records.types import Json

SESSIONS, TASKS, FAILED_CLOSES = "rollyard_sessions", "rollyard_asyncio_tasks", "rollyard_failed_closes_total"
SETTLE_S = 10.0
"""How long sessions may take to close after the last episode."""
MEMORY_PER_EPISODE = 256 * 1024
"""Growth that counts as a leak, in bytes per episode; a full garbage collection may be rare."""
MIB = 1 << 20


@dataclass(frozen=True)
class Level:
    """What the server holds at one time."""

    metrics: dict[str, float]
    usage: Usage | None


async def check_leaks(
    environment: Environment,
    rows: Sequence[Json],
    tools: Sequence[Json],
    episodes: int,
    usage: Callable[[], Usage] | None,
    progress: Callable[[str], None],
) -> AsyncIterator[Finding]:
    """Play `episodes` episodes as a warm-up, then as many again, and compare what the server holds."""
    for number in range(episodes):
        await _play(environment, rows[number % len(rows)], tools, number)
    before = await _level(environment, usage)
    for number in range(episodes):
        await _play(environment, rows[number % len(rows)], tools, number)
        if number % 10 == 9:
            progress(f"{number + 1} of {episodes} episodes")
    after = await _level(environment, usage)
    for finding in _compare(before, after, episodes):
        yield finding


async def _play(environment: Environment, row: Json, tools: Sequence[Json], number: int) -> None:
    """Play an episode to its verdict. Every fourth one is closed without a verdict, like an episode that fails."""
    async with environment.episode(row) as (client, opened):
        transcript = await act(environment, client, opened, tools, Random(str(number)))
        if number % 4 != 3:
            await client.post("/verify", verify_body(row, opened, [*transcript.items, message(answers_for(row)[-1])]))


async def _level(environment: Environment, usage: Callable[[], Usage] | None) -> Level:
    metrics = await _metrics(environment)
    for _ in range(int(SETTLE_S / 0.1)):
        if not metrics.get(SESSIONS):
            break
        await asyncio.sleep(0.1)
        metrics = await _metrics(environment)
    return Level(metrics, usage() if usage else None)


async def _metrics(environment: Environment) -> dict[str, float]:
    text = await environment.get("/metrics")
    lines = re.findall(r"^(\w+) ([-+.\deE]+)$", text if isinstance(text, str) else "", re.MULTILINE)
    return {name: float(value) for name, value in lines}


def _compare(before: Level, after: Level, episodes: int) -> list[Finding]:
    findings = []
    if (sessions := after.metrics.get(SESSIONS)) is None:
        findings.append(note("sessions", "unknown: the server has no Rollyard metrics"))
    elif sessions:
        findings.append(failed("sessions", f"{sessions:.0f} are open after all episodes have ended"))
    else:
        findings.append(ok("sessions", f"none is open after {2 * episodes} episodes"))
    if (closes := after.metrics.get(FAILED_CLOSES)) is not None:
        findings.append(
            failed("close", f"raised an error, hung or was cancelled in {closes:.0f} episodes", "see the server's log")
            if closes
            else ok("close", "succeeded in every episode")
        )
    levels = [("tasks", before.metrics.get(TASKS), after.metrics.get(TASKS))]
    if before.usage is not None and after.usage is not None:
        levels += [
            ("files", before.usage.files, after.usage.files),
            ("processes", before.usage.processes, after.usage.processes),
            ("threads", before.usage.threads, after.usage.threads),
        ]
    for name, low, high in levels:
        if low is None or high is None:
            continue
        found = f"{low:.0f} before, {high:.0f} after {episodes} episodes"
        grows = high - low >= max(3, episodes / 4)
        findings.append(failed(name, found, "release them in close") if grows else ok(name, found))
    if before.usage is None or after.usage is None:
        findings.append(note("memory", "unknown: the process of an external server cannot be measured"))
    else:
        findings.append(_memory(before.usage, after.usage, episodes))
    return findings


def _memory(before: Usage, after: Usage, episodes: int) -> Finding:
    grown = after.memory - before.memory
    found = f"{before.memory / MIB:.1f} MiB before, {after.memory / MIB:.1f} MiB after {episodes} episodes"
    if grown > max(episodes * MEMORY_PER_EPISODE, 4 * MIB):
        return failed("memory", found, "keep nothing of an episode in module or class variables")
    return ok("memory", found)

"""Runs one rollout through an entire stack (processes, head, collector, store) in a temporary folder."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rollyard.services.config.load import RunConfig, ServerSpec
from rollyard.services.datasets.tasks import TaskFile
from rollyard.services.errors import OperatorError, RollyardError, RunError
from rollyard.services.io.jsonl import iter_jsonl, refuse
from rollyard.services.rollouts.collector import Collector, Limits
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore, StorePaths
from rollyard.services.runtime.launcher import LocalLauncher
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import Stack, new_keys
from rollyard.services.types import Json, ServerRef

LONGEST_S = 120.0
"""Timeout of the rollout itself."""


async def play(
    config: RunConfig, cache: Path, environ: Mapping[str, str], *, agent: str | None = None, rows: Path | None = None
) -> str:
    """Start the servers, collect a rollout at temperature 0 like ng_collect_rollouts, and return the result.

    Raises RollyardError with what failed.
    """
    player = _agent(config, agent)
    tasks = TaskFile(rows or _example(config, player), agent=player.name, limit=1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rollyard-doctor-", ignore_cleanup_errors=True) as place:
        keys = new_keys()
        launcher = LocalLauncher(cache)
        folder = RunFolder.create(Path(place), keys.run_id)
        stack = Stack(config, keys, folder, say=lambda _: None, launcher=launcher, head_port=0, environ=environ)
        try:
            await stack.start()
            ready_s = time.monotonic() - began
            row = await _collected(stack, tasks, Path(place) / "rollouts.jsonl")
        finally:
            await stack.stop()
    success = "" if "success" not in row else ", success" if row["success"] else ", no success"
    times = f"ready in {ready_s:.1f} s, {time.monotonic() - began:.1f} s in all"
    return f"{player.name}: reward {row['reward']:.4g}{success}; {row.get('finish_reason')} ({times})"


async def _collected(stack: Stack, tasks: TaskFile, output: Path) -> Json:
    store = RolloutStore(StorePaths(output), {}, {}, resume=True, overwrite=False)
    progress = CollectionProgress(tasks.count)
    try:
        store.load(progress.count)
        limits = Limits(parallel=1, max_attempts=2, rollout_timeout_s=LONGEST_S)
        collector = Collector(tasks.rollouts(1), {"temperature": 0}, stack.client, store, progress, limits)
        await collector.run()
    finally:
        store.close()
    rows = await asyncio.to_thread(lambda: list(iter_jsonl(output, refuse(output))))
    if len(rows) != 1:
        why = "; ".join(f"{row.failure_kind} at {row.server}: {row.detail}" for row in collector.failures)
        raise RunError(why or "no rollout was stored")
    return rows[0].value


def _agent(config: RunConfig, name: str | None) -> ServerSpec:
    agents = {spec.name: spec for spec in config.servers if spec.family == "agents"}
    if name is None and len(agents) == 1:
        return next(iter(agents.values()))
    if name not in agents:
        found = ", ".join(agents) or "none"
        raise OperatorError(f"select an agent with +agent_name=...; the configs have: {found}")
    return agents[name]


def _example(config: RunConfig, player: ServerSpec) -> Path:
    """Return the example rows of the agent's environment."""
    named = {value.name for _, value in player.settings if isinstance(value, ServerRef)}
    for spec in config.servers:
        if spec.name in named and (path := spec.folder / "data" / "example.jsonl").is_file():
            return path
    raise OperatorError(f"{player.name} has no example rows; pass some with +input_jsonl_fpath=rows.jsonl")


async def tried(
    config: RunConfig, cache: Path, environ: Mapping[str, str], *, agent: str | None = None, rows: Path | None = None
) -> tuple[str, str]:
    """Return the rollout and the failure; one of the two is empty."""
    try:
        async with asyncio.timeout(LONGEST_S * 4):
            return await play(config, cache, environ, agent=agent, rows=rows), ""
    except RollyardError as error:
        return "", str(error)
    except TimeoutError:
        return "", f"did not finish within {LONGEST_S * 4:g} s"

"""Runs one rollout through an entire stack (processes, head, collector, store) in a temporary folder."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rollyard.records.errors import OperatorError, RollyardError, RunError
from rollyard.records.jsonl import iter_jsonl, refuse
from rollyard.records.rollout_paths import RolloutPaths
from rollyard.records.types import Json, ServerRef
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.datasets.tasks import TaskFile
from rollyard.services.rollouts.collector import Collector, Limits
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.runtime.launcher import LocalLauncher
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import Stack, new_keys

ROLLOUT_TIMEOUT_S = 120.0
"""Timeout for the rollout itself, not counting the start and stop of the servers."""


async def run_rollout(
    config: RunConfig, cache: Path, environ: Mapping[str, str], *, agent: str | None = None, rows: Path | None = None
) -> str:
    """Start the servers, collect one rollout at temperature 0 and return a description of the result.

    It uses the same code as ng_run and ng_collect_rollouts. Raises RollyardError if a step fails.
    """
    agent_spec = _agent(config, agent)
    tasks = TaskFile(rows or _example(config, agent_spec), agent=agent_spec.name, limit=1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rollyard-doctor-", ignore_cleanup_errors=True) as temporary:
        keys = new_keys()
        launcher = LocalLauncher(cache)
        folder = RunFolder.create(Path(temporary), keys.run_id)
        stack = Stack(config, keys, folder, print_line=lambda _: None, launcher=launcher, head_port=0, environ=environ)
        try:
            await stack.start()
            ready_s = time.monotonic() - started
            row = await _collect(stack, tasks, Path(temporary) / "rollouts.jsonl")
        finally:
            await stack.stop()
    success = "" if "success" not in row else ", success" if row["success"] else ", no success"
    times = f"ready in {ready_s:.1f} s, {time.monotonic() - started:.1f} s in total"
    return f"{agent_spec.name}: reward {row['reward']:.4g}{success}; {row.get('finish_reason')} ({times})"


async def _collect(stack: Stack, tasks: TaskFile, output: Path) -> Json:
    store = RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False)
    progress = CollectionProgress(tasks.count)
    try:
        store.load(progress.count)
        limits = Limits(parallel=1, max_attempts=2, rollout_timeout_s=ROLLOUT_TIMEOUT_S)
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
        raise OperatorError(f"select an agent with --agent-name ...; available: {found}")
    return agents[name]


def _example(config: RunConfig, agent_spec: ServerSpec) -> Path:
    """Return the file with example rows for the agent's environment. Raises OperatorError if there is none."""
    named = {value.name for _, value in agent_spec.settings if isinstance(value, ServerRef)}
    for spec in config.servers:
        if (
            spec.external_url is None
            and spec.name in named
            and (path := spec.folder / "data" / "example.jsonl").is_file()
        ):
            return path
    raise OperatorError(f"no example rows for {agent_spec.name}; pass some with --input-jsonl-fpath rows.jsonl")


async def try_rollout(
    config: RunConfig, cache: Path, environ: Mapping[str, str], *, agent: str | None = None, rows: Path | None = None
) -> tuple[str, str]:
    """Return descriptions of the rollout and of the failure; one of the two is empty."""
    try:
        async with asyncio.timeout(ROLLOUT_TIMEOUT_S * 4):
            return await run_rollout(config, cache, environ, agent=agent, rows=rows), ""
    except RollyardError as error:
        return "", str(error)
    except TimeoutError:
        return "", f"did not finish within {ROLLOUT_TIMEOUT_S * 4:g} s"

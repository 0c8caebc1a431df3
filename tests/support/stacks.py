"""Complete stacks: all servers in this process (`colocated`), or each in its own (`processes`)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
from omegaconf import OmegaConf

from rollyard.records.data_files import INSTALLED
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json, State
from rollyard.services.backoff import Backoff
from rollyard.services.config.load import load
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.config.run_config import RunConfig
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.rollouts.collector import CollectionLimits, Collector
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.runtime.launcher import Launcher, LocalLauncher
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import Stack, new_keys
from tests.support.waiting import deadline_s

SOKOBAN = "configs/sokoban_builtin.yaml"
AGENT = "grl_sokoban_game_agent"
EXAMPLES = INSTALLED / "resources_servers/grl_sokoban/data/example.jsonl"
PUZZLES = INSTALLED / "resources_servers/grl_sokoban/data/qwen3_4b_eval/test_examples_200.jsonl"
SHARED = INSTALLED.parent / "shared"


def load_config(
    *overrides: str, config: str | Mapping[str, Any] = SOKOBAN, roots: Sequence[Path] = (), tmp_path: Path | None = None
) -> RunConfig:
    """Load a config, which is a file of the repository or a dictionary, with overrides."""
    if not isinstance(config, str):
        assert tmp_path is not None
        path = tmp_path / "config.yaml"
        path.write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
        config = str(path)
    return load([config], parse_overrides(overrides), [*roots, INSTALLED], {})


def colocated(
    config: RunConfig,
    folder: Path,
    *,
    token: str | None = None,
    messages: list[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> AbstractAsyncContextManager[Stack]:
    """Start all servers in this process, on free ports; `messages` receives what the stack reports."""
    return _started(config, folder, None, token, messages, environ)


def processes(
    config: RunConfig, folder: Path, *, token: str | None = None, messages: list[str] | None = None
) -> AbstractAsyncContextManager[Stack]:
    """Start each server in its own process. Dead ones restart quickly; `messages` receives what the stack reports."""
    return _started(config, folder, LocalLauncher(folder / "cache"), token, messages)


@contextlib.asynccontextmanager
async def _started(
    config: RunConfig,
    folder: Path,
    launcher: Launcher | None,
    token: str | None,
    messages: list[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Stack]:
    keys = new_keys(token)
    stack = Stack(
        config,
        keys,
        RunFolder.create(folder, keys.run_id),
        print_line=(messages if messages is not None else []).append,
        launcher=launcher,
        head_port=0,
        ready_timeout_s=3 * deadline_s(),
        restarts=Backoff(first_pause_s=0.05, longest_pause_s=0.5),
        environ=environ,
    )
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()


async def collect(
    stack: Stack,
    output: Path,
    *,
    rows: Path = EXAMPLES,
    repeats: int = 2,
    limit: int | None = None,
    limits: CollectionLimits | None = None,
    params: Mapping[str, Any] | None = None,
    agent: str | None = AGENT,
    identity: Json | None = None,
    overwrite: bool = False,
    seeded: bool = True,
) -> tuple[State, CollectionProgress]:
    tasks = TaskFile(rows, agent=agent, limit=limit)
    store = RolloutStore(RolloutPaths(output), identity or {}, {}, resume=True, overwrite=overwrite)
    progress = CollectionProgress(tasks.count * repeats)
    try:
        store.load(progress.count)
        progress.resumed()
        sampling = {"temperature": 0.8} if params is None else params
        limits = limits or CollectionLimits(parallel=8, first_pause_s=0.01, longest_pause_s=0.05)
        collector = Collector(tasks.rollouts(repeats), sampling, stack.client, store, progress, limits, seeded=seeded)
        return await collector.run(), progress
    finally:
        store.close()


def read_rows(path: Path) -> list[Json]:
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line]


def keys_of(rows: Sequence[Json]) -> list[tuple[int, int]]:
    return sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)


def reproducible_part(row: Json) -> Json:
    """The part of a row that must be equal in two runs with the same seeds: no ids, no times."""
    kept = ("type", "name", "arguments", "output", "content", "role")
    output = [{key: item.get(key) for key in kept} for item in row["response"]["output"]]
    compared = ("reward", "success", "finish_reason", "moves", "boxes_on_target", "_ng_task_index", "_ng_rollout_index")
    return {**{key: row[key] for key in compared}, "output": output}

"""A policy that fails one request in ten in various ways: no failure becomes a reward, nothing hangs, nothing leaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.rollouts.collector import CollectionLimits, Collector
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.runtime.stack import Stack
from tests.support.processes import free_port
from tests.support.stacks import AGENT, PUZZLES, collect, load_config, read_rows

from .harness import (
    ENVIRONMENT,
    POLICY,
    collect_arguments,
    essences,
    failures,
    falls_to_zero,
    forked,
    forked_collect,
    gauge,
    status,
)

ENGINE = "engine"
FAULTS = {"error_rate": 0.1, "hang_rate": 0.1, "garbage_rate": 0.1, "rate_limit_rate": 0.1, "retry_after_s": 0}
HANGING = {"hang_rate": 1.0}
TIMEOUT_S = 0.4
QUICK = CollectionLimits(parallel=32, max_attempts=3, first_pause_s=0.01, longest_pause_s=0.05, max_failure_rate=1.0)
TASKS, REPEATS = 15, 2
KEYS = {(task, repeat) for task in range(TASKS) for repeat in range(REPEATS)}


def environment_and_agent(timeout_s: float) -> Json:
    environment = {"grl_sokoban": {"entrypoint": "app.py"}}
    agent = {
        "max_steps": 10,
        "model_timeout_s": timeout_s,
        "resources_server": {"name": ENVIRONMENT},
        "model_server": {"name": POLICY},
    }
    return {ENVIRONMENT: {"resources_servers": environment}, AGENT: {"agents": {"game_agent": agent}}}


def direct(faults: Mapping[str, float], timeout_s: float = TIMEOUT_S) -> Json:
    """The agent calls the failing policy directly."""
    return {
        POLICY: {"responses_api_models": {"builtin_model": {"faults": dict(faults)}}},
        **environment_and_agent(timeout_s),
    }


def behind_vllm(faults: Mapping[str, float], timeout_s: float = TIMEOUT_S) -> Json:
    """The failing policy is the engine of a vllm_model, which retries."""
    port = free_port()
    vllm = {
        "base_url": f"http://127.0.0.1:{port}/v1",
        "api_key": "",
        "model": "builtin",
        "request_timeout_s": timeout_s,
        "max_attempts": 8,
        "retry_pause_s": 0.01,
    }
    engine = {"port": port, "faults": dict(faults)}
    return {
        ENGINE: {"responses_api_models": {"builtin_model": engine}},
        POLICY: {"responses_api_models": {"vllm_model": vllm}},
        **environment_and_agent(60.0),
    }


async def test_with_retries_behind_vllm_model_faults_change_no_rollout(tmp_path: Path) -> None:
    outputs = []
    for name, faults in (("calm", {}), ("faulty", FAULTS)):
        folder = tmp_path / name
        folder.mkdir()
        async with forked(load_config(config=behind_vllm(faults), tmp_path=folder), folder) as stack:
            output = folder / "rollouts.jsonl"
            state, _ = await collect(stack, output, rows=PUZZLES, limit=TASKS, repeats=REPEATS, limits=QUICK)
            assert state == "complete", failures(output)
            outputs.append(essences(output))
            await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")
            await falls_to_zero(stack, ENGINE, "rollyard_in_flight")
    assert outputs[0] == outputs[1]


@pytest_asyncio.fixture(scope="module")
async def faulty(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stack, Path, int, str]]:
    """A stack, a finished collection with its failing policy, the command's exit status and output."""
    folder = tmp_path_factory.mktemp("faulty")
    async with forked(load_config(config=direct(FAULTS), tmp_path=folder), folder) as stack:
        output, log = folder / "rollouts.jsonl", folder / "collect.log"
        options = {"limit": TASKS, "num_repeats": REPEATS, "max_failure_rate": 1.0}
        exit_status = await forked_collect(collect_arguments(stack, PUZZLES, output, **options), log).wait()
        yield stack, output, exit_status, log.read_text()


Faulty = tuple[Stack, Path, int, str]


async def test_missing_rollouts_are_counted_and_set_the_exit_status(faulty: Faulty) -> None:
    _, output, exit_status, output_text = faulty
    measured = len(essences(output))
    assert measured < len(KEYS), "without retries in the model server some rollouts must fail"
    assert exit_status == 1
    assert f"{measured} of {len(KEYS)} rollouts measured" in output_text
    assert f"the {len(KEYS) - measured} missing rollouts" in output_text
    assert (status(output)["measured"], status(output)["expected"]) == (measured, len(KEYS))


async def test_every_missing_rollout_is_recorded_with_all_its_attempts(faulty: Faulty) -> None:
    _, output, _, _ = faulty
    attempts: dict[tuple[int, int], list[int]] = {}
    for row in failures(output):
        attempts.setdefault((row["_ng_task_index"], row["_ng_rollout_index"]), []).append(row["_ng_attempt_index"])
    missing = KEYS - set(essences(output))
    assert missing <= set(attempts)
    assert all(attempts[key] == [0, 1, 2] for key in missing)


async def test_every_failure_has_the_right_kind(faulty: Faulty) -> None:
    _, output, _, _ = faulty
    kinds = {(row["failure_kind"], row["upstream_status"]) for row in failures(output)}
    assert kinds == {("server_error", 500), ("rate_limited", 429), ("timeout", None), ("malformed_answer", None)}
    assert {row["server"] for row in failures(output)} == {POLICY}


async def test_after_the_failures_no_stored_rollout_is_affected_and_no_session_and_no_request_is_left(
    faulty: Faulty,
) -> None:
    stack, output, _, _ = faulty
    for row in read_rows(output):
        assert row["finish_reason"] in ("done", "answered", "max_steps")
        assert row["response"]["status"] == "completed"
    await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")
    await falls_to_zero(stack, POLICY, "rollyard_in_flight")


def collector_of(stack: Stack, output: Path, limits: CollectionLimits) -> tuple[Collector, RolloutStore]:
    tasks = TaskFile(PUZZLES, agent=AGENT, limit=50)
    store = RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False)
    params: dict[str, Any] = {"temperature": 0.8}
    return Collector(
        tasks.rollouts(4), params, stack.client, store, CollectionProgress(200), limits, seeded=True
    ), store


@pytest.mark.parametrize(("config", "engine"), [(direct, POLICY), (behind_vllm, ENGINE)], ids=["direct", "vllm"])
async def test_a_cancelled_collection_leaves_no_request_and_no_session(
    config: Any, engine: str, tmp_path: Path
) -> None:
    async with forked(load_config(config=config(HANGING, 600.0), tmp_path=tmp_path), tmp_path) as stack:
        collector, store = collector_of(stack, tmp_path / "rollouts.jsonl", CollectionLimits(parallel=16))
        running = asyncio.create_task(collector.run())
        while await gauge(stack, engine, "rollyard_in_flight") < 16:
            await asyncio.sleep(0.02)
        collector.cancel()
        assert await running == "interrupted"
        store.close()
        await falls_to_zero(stack, engine, "rollyard_in_flight")
        await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")


async def test_a_collection_cancelled_at_any_moment_leaves_no_session(tmp_path: Path) -> None:
    rng = random.Random("cancel")
    async with forked(load_config(), tmp_path) as stack:
        for number in range(60):
            collector, store = collector_of(stack, tmp_path / f"rollouts{number}.jsonl", CollectionLimits(parallel=16))
            running = asyncio.create_task(collector.run())
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            collector.cancel()
            assert await running == "interrupted"
            store.close()
        await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")


async def test_a_policy_that_always_fails_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    config = direct({"error_rate": 1.0})
    output, log = tmp_path / "rollouts.jsonl", tmp_path / "collect.log"
    async with forked(load_config(config=config, tmp_path=tmp_path), tmp_path) as stack:
        exit_status = await forked_collect(collect_arguments(stack, PUZZLES, output, max_attempts=2), log).wait()
    output_text = log.read_text()
    assert exit_status == 1
    assert "more than max_failure_rate=0.5" in output_text
    assert "The server had an error" in output_text
    assert read_rows(output) == []
    assert status(output)["state"] == "stopped"
    assert len({row["_ng_task_index"] for row in failures(output)}) < 200, "the collection must stop before the end"

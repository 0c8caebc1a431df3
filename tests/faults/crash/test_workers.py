"""Several workers collect one output: killed, stopped, drained and replaced, it equals an uninterrupted run."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.records.types import Json
from rollyard.services.rollouts.shared.shared_paths import SharedPaths
from rollyard.services.rollouts.shared.shared_records import MergeResult
from rollyard.services.rollouts.shared.worker_progress import shared_progress
from rollyard.services.runtime.stack import Stack
from tests.support.stacks import AGENT, PUZZLES, collect, colocated, load_config, read_rows
from tests.support.waiting import until
from tests.unit.services.rollouts.shared.workers import beat, lease_block

from .harness import Forked, command, essences, failures, forked, forked_collect, status

REPORT = (sys.executable, "-c", "from rollyard.cli.reward_profile import main; main()")
TASKS, REPEATS = 60, 4
SLOW_POLICY = "policy_model.responses_api_models.builtin_model.latency_s=0.05"


@pytest_asyncio.fixture(scope="module")
async def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Json]:
    folder = tmp_path_factory.mktemp("unbroken")
    async with colocated(load_config(), folder) as stack:
        state, _ = await collect(stack, folder / "rollouts.jsonl", rows=PUZZLES, limit=TASKS, repeats=REPEATS)
    assert state == "complete"
    return essences(folder / "rollouts.jsonl")


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with forked(load_config(SLOW_POLICY), tmp_path) as running:
        yield running


def start(stack: Stack, folder: Path, name: str, *more: str) -> Forked:
    """Start a worker."""
    arguments = [
        f"+agent_name={AGENT}",
        f"+input_jsonl_fpath={PUZZLES}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        f"+limit={TASKS}",
        f"+num_repeats={REPEATS}",
        "+num_repeats_add_seed=true",
        "+responses_create_params.temperature=0.8",
        "+num_samples_in_parallel=2",
        f"+head={stack.head_url.removeprefix('http://')}",
        f"+worker={name}",
        *more,
    ]
    return forked_collect(arguments, folder / f"{name}.log")


def blocks_done(output: Path) -> int:
    found = shared_progress(output)
    return found.done if found else 0


def result(output: Path) -> MergeResult:
    return MergeResult.model_validate_json(SharedPaths(output).round(1).merged.read_bytes())


async def test_eight_workers_become_seven_and_then_twenty_seven_while_three_are_killed(
    stack: Stack, tmp_path: Path, uninterrupted: dict[tuple[int, int], Json]
) -> None:
    output = tmp_path / "rollouts.jsonl"
    first = [start(stack, tmp_path, f"a{number}") for number in range(8)]
    await until(lambda: blocks_done(output) > 30, "the first blocks are done")
    for worker in first[:3]:
        worker.kill()
    second = [start(stack, tmp_path, f"b{number}") for number in range(2)]
    await until(lambda: blocks_done(output) > 100, "more blocks are done")
    first[3].signal(signal.SIGUSR1)
    first[4].terminate()
    third = [start(stack, tmp_path, f"c{number}") for number in range(20)]
    assert [await worker.wait() for worker in first[:3]] == [-signal.SIGKILL] * 3
    assert [await worker.wait() for worker in first[3:5]] == [130, 130]
    others = [*first[5:], *second, *third]
    statuses = [await worker.wait() for worker in others]
    assert statuses == [0] * len(others), [log.read_text() for log in tmp_path.glob("*.log")]
    assert essences(output) == uninterrupted
    assert failures(output) == []
    assert status(output)["state"] == "complete"
    assert result(output).shards >= 10


async def test_a_stopped_worker_is_replaced_and_changes_nothing_when_it_goes_on(
    stack: Stack, tmp_path: Path, uninterrupted: dict[tuple[int, int], Json]
) -> None:
    output = tmp_path / "rollouts.jsonl"
    stopped = start(stack, tmp_path, "stopped", "+lease_s=3")
    await until(lambda: blocks_done(output) > 3, "the worker has begun")
    stopped.signal(signal.SIGSTOP)
    others = [start(stack, tmp_path, f"other{number}", "+lease_s=3") for number in range(3)]
    assert [await worker.wait() for worker in others] == [0, 0, 0]
    assert "taking over" in "".join((tmp_path / f"other{number}.log").read_text() for number in range(3))
    assert essences(output) == uninterrupted
    content = output.read_bytes()
    stopped.signal(signal.SIGCONT)
    assert await stopped.wait() == 0
    assert output.read_bytes() == content
    assert len(read_rows(output)) == TASKS * REPEATS


async def test_workers_killed_during_the_merge_leave_a_complete_output_behind(
    stack: Stack, tmp_path: Path, uninterrupted: dict[tuple[int, int], Json]
) -> None:
    output = tmp_path / "rollouts.jsonl"
    rounds = SharedPaths(output).round(1)
    for attempt in range(6):
        worker = start(stack, tmp_path, f"w{attempt}", "+num_samples_in_parallel=16")
        if attempt < 5:
            await until(lambda number=attempt: _merging(rounds.folder, number), "the merge begins")  # type: ignore[misc]
            worker.kill()
        await worker.wait()
        if rounds.merged.exists():
            break
    assert essences(output) == uninterrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
async def test_a_signal_ends_a_worker_that_waits_for_the_merge_of_another(
    stack: Stack, tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "rollouts.jsonl"
    worker = start(stack, tmp_path, "waiting", "+limit=5", "+num_repeats=2")
    await until(lambda: blocks_done(output) > 0, "the worker has begun")
    paths = SharedPaths(output).round(1)
    lease_block(paths, 10, "merging-1")
    beat(paths, "merging-1")
    log = tmp_path / "waiting.log"
    await until(lambda: "waiting for merging" in log.read_text(), "the worker waits")
    worker.signal(number)
    assert await worker.wait() == 130
    assert "Traceback" not in log.read_text()
    found = shared_progress(output)
    assert found is not None and not found.merged
    assert [each.state for each in found.workers] == ["ended"]


def _merging(folder: Path, attempt: int) -> bool:
    return (folder / "merged.json").exists() or (folder / f"merge-{attempt + 1}").exists()


async def test_two_stacks_collect_one_output(
    stack: Stack, tmp_path: Path, uninterrupted: dict[tuple[int, int], Json]
) -> None:
    output = tmp_path / "rollouts.jsonl"
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    async with forked(load_config(SLOW_POLICY), other_folder) as other:
        workers = [start(stack, tmp_path, "here"), start(other, tmp_path, "there")]
        assert [await worker.wait() for worker in workers] == [0, 0]
    assert essences(output) == uninterrupted
    progress = shared_progress(output)
    assert progress is not None
    assert all(worker.measured > 0 for worker in progress.workers)
    status_code, printed = await command(*REPORT, f"+jsonl_fpath={output}", here=tmp_path)
    assert status_code == 0, printed
    assert "240 of 240" in printed


async def test_a_folder_that_is_moved_away_stops_the_worker_with_one_line_and_loses_nothing(
    stack: Stack, tmp_path: Path, uninterrupted: dict[tuple[int, int], Json]
) -> None:
    output, shared = tmp_path / "rollouts.jsonl", tmp_path / "rollouts_shared"
    worker = start(stack, tmp_path, "a")
    await until(lambda: blocks_done(output) > 3, "the worker has begun")
    shared.rename(tmp_path / "away")
    assert await worker.wait() == 1
    assert "was moved to" in (tmp_path / "a.log").read_text()
    assert "Traceback" not in (tmp_path / "a.log").read_text()
    (tmp_path / "away").rename(shared)
    assert await start(stack, tmp_path, "b", "+num_samples_in_parallel=16").wait() == 0
    assert essences(output) == uninterrupted


async def test_workers_killed_at_random_instants_until_one_survives_lose_and_repeat_nothing(
    stack: Stack, tmp_path: Path, uninterrupted: dict[tuple[int, int], Json]
) -> None:
    output, rng = tmp_path / "rollouts.jsonl", random.Random("workers")
    for attempt in range(12):
        workers = [start(stack, tmp_path, f"w{attempt}-{number}", "+lease_s=3") for number in range(3)]
        for worker in workers:
            await worker.ended_within(rng.uniform(0.0, 0.8))
            worker.kill()
        for worker in workers:
            await worker.wait()
    last = start(stack, tmp_path, "last", "+num_samples_in_parallel=16")
    assert await last.wait() == 0, (tmp_path / "last.log").read_text()
    assert essences(output) == uninterrupted
    assert failures(output) == []
    assert result(output).shards > 3

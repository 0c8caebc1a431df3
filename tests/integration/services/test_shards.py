"""Several jobs that share an output: `rollyard.collect(..., shard="i/n")` in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

import rollyard
from rollyard.agents.episode import Episode, ModelTurn
from rollyard.collection_summary import CollectionSummary
from rollyard.errors import OperatorError, RunError
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_file import RolloutPaths, read_status
from rollyard.records.rollout_keys import Shard
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.shards import shard_files
from rollyard.services.rollouts.store import JsonLines
from rollyard.services.runtime.running_stack import RunningStack
from tests.support.rollout_files import write
from tests.support.stacks import keys_of, read_rows, reproducible_part

CONFIG: dict[str, Any] = {
    "policy_model": {"responses_api_models": {"builtin_model": {}}},
    "sokoban": {"resources_servers": {"grl_sokoban": {}}},
    "player": {
        "agents": {"game_agent": {"resources_server": {"name": "sokoban"}, "model_server": {"name": "policy_model"}}}
    },
}
PUZZLE = {"dim_room": [6, 6], "num_boxes": 1, "responses_create_params": {"input": "Solve.", "temperature": 0.8}}
ROWS = [{"seed": seed, **PUZZLE} for seed in range(8)]
IMPOSSIBLE = {**PUZZLE, "dim_room": [1, 1], "seed": 1}
REPEATS = 3
EVERY = [(task, repeat) for task in range(len(ROWS)) for repeat in range(REPEATS)]


@pytest_asyncio.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningStack]:
    async with rollyard.stack(CONFIG, colocate=True, folder=tmp_path_factory.mktemp("run")) as running:
        yield running


async def collect(stack: RunningStack, out: Path, shard: str | None = None, **more: Any) -> CollectionSummary:
    options = {"num_repeats": REPEATS, "num_repeats_add_seed": True, "num_samples_in_parallel": 2, **more}
    return await rollyard.collect(stack, options.pop("rows", ROWS), out, shard=shard, **options)


def share(number: int, count: int) -> list[tuple[int, int]]:
    return [key for key in EVERY if key in Shard(number, count)]


class Stopped(Exception):
    """Ends a collection."""


async def begun(stack: RunningStack, out: Path, shard: str | None = None, rows: int = 2) -> None:
    left = rows

    def stop(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Stopped

    with pytest.raises(Stopped):
        await collect(stack, out, shard, on_rollout=stop)


async def test_the_jobs_leave_the_files_of_an_ordinary_collection(stack: RunningStack, tmp_path: Path) -> None:
    alone, out = tmp_path / "alone.jsonl", tmp_path / "out.jsonl"
    await collect(stack, alone)
    found = await asyncio.gather(*(collect(stack, out, f"{number}/4") for number in range(1, 5)))
    assert [each.state for each in found] == ["complete"] * 4
    assert sum(each.collected for each in found) == len(EVERY)
    merged = [each for each in found if each.output == out]
    assert merged and {each.measured for each in merged} == {len(EVERY)}
    rows, expected = read_rows(out), read_rows(alone)
    assert keys_of(rows) == EVERY
    essences = [{_key(row): reproducible_part(row) for row in each} for each in (rows, expected)]
    assert essences[0] == essences[1]
    one, many = (orjson.loads(RolloutPaths(path).manifest.read_bytes()) for path in (alone, out))
    assert many["output"] == "out.jsonl"
    assert {key: many[key] for key in ("identity", "versions")} == {key: one[key] for key in ("identity", "versions")}
    before, after = read_status(alone), read_status(out)
    assert before and after
    compared = ("state", "expected", "measured", "tasks", "failed", "successes", "mean_reward", "reward_stderr")
    assert [getattr(after, name) for name in compared] == [getattr(before, name) for name in compared]
    assert shard_files(out) == []
    for shard in (None, "2/3"):
        again = await collect(stack, out, shard)
        assert (again.state, again.collected, again.measured) == ("complete", 0, len(EVERY))


async def test_jobs_of_another_n_collect_only_what_no_file_holds(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    await begun(stack, out)
    await begun(stack, out, "1/2")
    await begun(stack, out, "2/2")
    held = {key for path in (out, *shard_files(out)) for key in keys_of(read_rows(path))}
    found = [await collect(stack, out, f"{number}/3") for number in (1, 2, 3)]
    assert [each.collected for each in found] == [len(set(share(number, 3)) - held) for number in (1, 2, 3)]
    assert [each.output.name for each in found] == ["out.shard-1-of-3.jsonl", "out.shard-2-of-3.jsonl", "out.jsonl"]
    assert (keys_of(read_rows(out)), shard_files(out)) == (EVERY, [])


async def test_a_job_syncs_the_files_that_it_relies_on_as_their_writers_may_have_been_killed(
    stack: RunningStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, synced, fsync = tmp_path / "out.jsonl", set[str](), os.fsync
    await begun(stack, out, "1/2")

    def record(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    await collect(stack, out, "1/3")
    assert {"out.shard-1-of-2.jsonl", "out.shard-1-of-2_failures.jsonl", tmp_path.name} <= synced


async def test_a_collection_without_a_shard_takes_the_shards_over(stack: RunningStack, tmp_path: Path) -> None:
    out, lines = tmp_path / "out.jsonl", list[str]()
    await begun(stack, out, "1/2")
    await begun(stack, out, "2/2")
    held = sum(len(read_rows(path)) for path in shard_files(out))
    with pytest.raises(OperatorError, match="resume=True"):
        await collect(stack, out, resume=False)
    found = await collect(stack, out, print_line=lines.append)
    assert (found.state, found.collected, found.measured) == ("complete", len(EVERY) - held, len(EVERY))
    assert (keys_of(read_rows(out)), shard_files(out)) == (EVERY, [])
    assert any("2 files" in line for line in lines)


async def test_a_collection_without_a_shard_removes_what_jobs_left_that_ended_before_their_manifest(
    stack: RunningStack, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    for number in (1, 2):
        Shard(number, 2).output(out).touch()
    with closing(JsonLines(shard_files(out)[0])), pytest.raises(RunError, match="another process is writing"):
        await collect(stack, out)
    found = await collect(stack, out)
    assert (found.state, found.collected, shard_files(out)) == ("complete", len(EVERY), [])


async def test_a_job_with_other_parameters_is_refused_with_the_differences(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    await begun(stack, out, "1/2")
    with pytest.raises(OperatorError, match="num_repeats: 3 in the file, 5 now"):
        await collect(stack, out, "2/2", num_repeats=5)
    assert shard_files(out) == [Shard(1, 2).output(out)]


async def test_a_job_whose_code_differs_is_refused_or_marks_its_rows(stack: RunningStack, tmp_path: Path) -> None:
    out, manifest = tmp_path / "out.jsonl", tmp_path / "out_manifest.json"
    await collect(stack, out)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:7]))
    old = orjson.loads(manifest.read_bytes())
    old["code"][0]["servers"]["sokoban"]["digest"] = "0" * 16
    old["code"][0]["digest"] = "0" * 16
    manifest.write_bytes(orjson.dumps(old))
    with pytest.raises(OperatorError, match="accept_changed_code"):
        await collect(stack, out, "1/2")
    await asyncio.gather(*(collect(stack, out, f"{number}/2", accept_changed_code=True) for number in (1, 2)))
    rows = read_rows(out)
    assert keys_of(rows) == EVERY
    versions = orjson.loads(manifest.read_bytes())["code"]
    assert [version["digest"] == "0" * 16 for version in versions] == [True, False]
    assert {row.get("_ng_code", "") for row in rows[:7]} == {""}
    assert {row["_ng_code"] for row in rows[7:]} == {versions[1]["digest"]}


@pytest.mark.parametrize(("running", "starting"), [("1/2", "1/2"), ("1/2", "1/3"), ("1/2", None), (None, "1/2")])
async def test_jobs_that_would_collect_the_same_rollouts_do_not_run_at_the_same_time(
    stack: RunningStack, tmp_path: Path, running: str | None, starting: str | None
) -> None:
    out, shard = tmp_path / "out.jsonl", Shard.parse(running)
    await begun(stack, out, running)
    with (
        closing(JsonLines(out if shard is None else shard.output(out))),
        pytest.raises(RunError, match="another process is writing to"),
    ):
        await collect(stack, out, starting)


async def test_a_task_that_is_rejected_does_not_keep_the_jobs_from_merging(stack: RunningStack, tmp_path: Path) -> None:
    out, rows = tmp_path / "out.jsonl", [*ROWS[:3], IMPOSSIBLE]
    found = [await collect(stack, out, f"{n}/2", rows=rows, max_failure_rate=1.0) for n in (1, 2)]
    assert (found[-1].state, found[-1].output, found[-1].measured, found[-1].failed) == ("incomplete", out, 9, 3)
    assert (keys_of(read_rows(out)), shard_files(out)) == (EVERY[:9], [])
    again = [await collect(stack, out, f"{n}/3", rows=rows, max_failure_rate=1.0) for n in (1, 2, 3)]
    assert sum(each.failed_attempts for each in again) == 0


async def test_failed_attempts_are_those_of_each_job_and_its_rollouts_are_tried_again(
    stack: RunningStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(self: Episode) -> ModelTurn:
        raise Failure(FailureKind.TIMEOUT, "late")

    out = tmp_path / "out.jsonl"
    options = {"max_attempts": 2, "max_failure_rate": 1.0}
    with monkeypatch.context() as patch:
        patch.setattr(Episode, "ask", ask)
        found = await asyncio.gather(*(collect(stack, out, f"{n}/2", **options) for n in (1, 2)))
    assert {each.state for each in found} == {"incomplete"} and not out.exists()
    for number in (1, 2):
        await collect(stack, out, f"{number}/2")
    assert keys_of(read_rows(out)) == EVERY
    assert len(read_rows(RolloutPaths(out).failures)) == 2 * len(EVERY)


async def test_the_plan_counts_neither_refused_nor_masked_rollouts_nor_tasks_that_were_not_given(
    stack: RunningStack, tmp_path: Path
) -> None:
    out, rows = tmp_path / "out.jsonl", [*ROWS[:3], IMPOSSIBLE]
    given = [write(tmp_path / f"{count}.jsonl", rows[:count]) for count in (4, 1)]
    await collect(stack, out, rows=given[0], max_failure_rate=1.0)
    lines = [row for row in read_rows(out) if row["_ng_rollout_index"] != 1]
    write(out, [{**lines[0], "mask_sample": True}, *lines[1:]])
    missing = [(0, 1), (1, 1), (2, 1)]
    for path, shard, expected in (
        (given[0], None, 3),
        (given[1], None, 1),
        *((given[0], Shard(number, 2), sum(key in Shard(number, 2) for key in missing)) for number in (1, 2)),
        *((given[1], Shard(number, 2), int(missing[0] in Shard(number, 2))) for number in (1, 2)),
    ):
        plan = CollectionPlan(out, "player", REPEATS, seeded=True, shard=shard)
        async with OpenCollection.opened(plan, TaskFile(path, agent="player", limit=None), stack.access.clients) as one:
            assert one.missing == expected


async def test_a_job_always_continues_the_output(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for options in ({"overwrite": True}, {"resume": False}):
        with pytest.raises(OperatorError, match="always continue"):
            await collect(stack, out, "1/2", **options)
    with pytest.raises(OperatorError, match="expected i/n"):
        await collect(stack, out, "3/2")
    assert list(tmp_path.iterdir()) == []


async def test_overwrite_moves_the_shards_aside(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    await begun(stack, out, "1/2")
    content = Shard(1, 2).output(out).read_bytes()
    found = await collect(stack, out, overwrite=True, num_repeats=1)
    assert (found.measured, len(read_rows(out))) == (len(ROWS), len(ROWS))
    assert shard_files(out) == []
    assert [path.read_bytes() for path in tmp_path.glob("out.shard-1-of-2.jsonl.*")] == [content]


async def test_rows_without_a_manifest_are_adopted_by_a_collection_without_a_shard_first(
    stack: RunningStack, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    await begun(stack, out)
    RolloutPaths(out).manifest.unlink()
    with pytest.raises(OperatorError, match="no manifest"):
        await collect(stack, out, "1/1")


def _key(row: dict[str, Any]) -> tuple[int, int]:
    return row["_ng_task_index"], row["_ng_rollout_index"]

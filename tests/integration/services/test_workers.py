"""Several workers that share an output: `rollyard.collect(..., worker=...)` in one process."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

import rollyard
from rollyard.collection_summary import CollectionSummary
from rollyard.errors import OperatorError, RunError
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollouts.status_file import read_status
from rollyard.services.rollouts.shared import opening
from rollyard.services.rollouts.shared.partial_merge import merge_shards
from rollyard.services.rollouts.shared.shared_paths import SharedPaths
from rollyard.services.rollouts.shared.worker_progress import shared_progress
from rollyard.services.runtime.running_stack import RunningStack
from tests.support.stacks import keys_of, read_rows, reproducible_part
from tests.support.waiting import until
from tests.unit.services.rollouts.shared.workers import beat, failure, lease_block, write_shard

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


async def collect(stack: RunningStack, out: Path, worker: str | None = None, **more: Any) -> CollectionSummary:
    options = {"num_repeats": REPEATS, "num_repeats_add_seed": True, "num_samples_in_parallel": 2, **more}
    return await rollyard.collect(stack, options.pop("rows", ROWS), out, worker=worker, **options)


async def test_workers_divide_the_rollouts_and_leave_the_files_of_an_ordinary_collection(
    stack: RunningStack, tmp_path: Path
) -> None:
    alone, out = tmp_path / "alone.jsonl", tmp_path / "out.jsonl"
    await collect(stack, alone)
    found = await asyncio.gather(*(collect(stack, out, f"w{number}") for number in range(4)))
    assert [each.state for each in found] == ["complete"] * 4
    assert sum(each.collected for each in found) == len(EVERY)
    assert {each.measured for each in found} == {len(EVERY)}
    rows, expected = read_rows(out), read_rows(alone)
    assert keys_of(rows) == EVERY
    assert {_key(row): reproducible_part(row) for row in rows} == {
        _key(row): reproducible_part(row) for row in expected
    }
    one, many = (orjson.loads(RolloutPaths(path).manifest.read_bytes()) for path in (alone, out))
    assert many["output"] == "out.jsonl"
    assert {key: many[key] for key in ("identity", "versions")} == {key: one[key] for key in ("identity", "versions")}
    before, after = read_status(alone), read_status(out)
    assert before and after
    compared = ("state", "expected", "measured", "tasks", "failed", "successes", "mean_reward", "reward_stderr")
    assert [getattr(after, name) for name in compared] == [getattr(before, name) for name in compared]
    resumed = await collect(stack, out)
    assert (resumed.state, resumed.collected, resumed.measured) == ("complete", 0, len(EVERY))
    late = await collect(stack, out, "late")
    assert (late.state, late.collected, late.measured) == ("complete", 0, len(EVERY))


async def test_workers_continue_an_output_that_one_process_has_begun(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    task = asyncio.create_task(collect(stack, out, num_samples_in_parallel=1))
    await until(lambda: out.exists() and len(out.read_bytes().split(b"\n")) >= 6)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    content = out.read_bytes()
    assert 0 < len(read_rows(out)) < len(EVERY)
    with out.open("ab") as file:
        file.write(b'{"torn')
    await asyncio.gather(*(collect(stack, out, name) for name in "ab"))
    assert keys_of(read_rows(out)) == EVERY
    assert out.read_bytes().startswith(content)
    assert (tmp_path / "out_torn.jsonl").read_bytes() == b'{"torn'


async def test_a_worker_leaves_a_complete_output_of_one_process_as_it_is(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    await collect(stack, out)
    found = await collect(stack, out, "a")
    assert (found.state, found.measured, found.collected) == ("complete", len(EVERY), 0)
    assert not (tmp_path / "out_shared").exists()
    with pytest.raises(OperatorError, match="different parameters"):
        await collect(stack, out, "a", num_repeats=5)


async def test_a_worker_with_other_parameters_is_refused_with_the_differences(
    stack: RunningStack, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    await collect(stack, out, "a")
    with pytest.raises(OperatorError, match="num_repeats: 3 in the file, 5 now"):
        await collect(stack, out, "b", num_repeats=5)


async def test_an_output_with_unmerged_shards_is_refused_without_a_worker_and_workers_take_it_up_again(
    stack: RunningStack, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    task = asyncio.create_task(collect(stack, out, "a"))
    await _some_done(out)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(OperatorError, match="worker=NAME"):
        await collect(stack, out)
    partial = merge_shards(out, tmp_path / "partial.jsonl")
    rows = read_rows(tmp_path / "partial.jsonl")
    assert 0 < partial.measured == len(rows) < partial.expected == len(EVERY)
    assert not out.exists()
    found = await collect(stack, out, "b")
    assert (found.state, found.measured) == ("complete", len(EVERY))
    assert found.collected == len(EVERY) - len(rows)  # rollouts in flight were abandoned, measured ones kept


async def test_workers_adopt_an_output_without_a_manifest_once(stack: RunningStack, tmp_path: Path) -> None:
    out, lines = tmp_path / "out.jsonl", list[str]()
    await collect(stack, out)
    RolloutPaths(out).manifest.unlink()
    content = b"".join(out.read_bytes().splitlines(keepends=True)[:7])
    out.write_bytes(content)
    await asyncio.gather(*(collect(stack, out, name, print_line=lines.append) for name in "abc"))
    assert keys_of(read_rows(out)) == EVERY
    assert out.read_bytes().startswith(content)
    assert sum("7 rollouts" in line for line in lines) == 1
    assert orjson.loads(RolloutPaths(out).manifest.read_bytes())["adopted"]["rollouts"] == 7


async def test_a_worker_refuses_a_part_of_the_input_and_names_the_original(stack: RunningStack, tmp_path: Path) -> None:
    out, whole, part = tmp_path / "out.jsonl", tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    lines = [orjson.dumps(row) + b"\n" for row in ROWS]
    whole.write_bytes(b"".join(lines))
    part.write_bytes(lines[3])
    await collect(stack, out, rows=whole)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:7]))
    expected = rf"1 of the {len(ROWS)} tasks of .*whole\.jsonl.* pass rows={whole}$"
    with pytest.raises(OperatorError, match=expected):
        await collect(stack, out, "a", rows=part)
    part.write_bytes(lines[3] + lines[2].replace(b'"num_boxes":1', b'"num_boxes":2'))
    with pytest.raises(OperatorError, match=r"part\.jsonl has a row \(2\)"):
        await collect(stack, out, "a", rows=part)
    assert (await collect(stack, out, "a", rows=whole)).state == "complete"


async def test_merged_shards_leave_no_second_copy_and_the_state_of_the_whole(
    stack: RunningStack, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    await asyncio.gather(*(collect(stack, out, name) for name in "ab"))
    shards = SharedPaths(out).round(1).shards
    assert sorted({path.name.rpartition("_")[2] for path in shards.iterdir()}) == ["manifest.json", "status.json"]
    assert {orjson.loads(path.read_bytes())["state"] for path in shards.glob("*_status.json")} == {"complete"}
    with out.open("ab") as file:
        file.write(b'{"torn')
    assert (await collect(stack, out, "late")).state == "complete"
    assert keys_of(read_rows(out)) == EVERY
    assert (tmp_path / "out_torn.jsonl").read_bytes() == b'{"torn'


async def test_workers_whose_code_differs_from_the_outputs_are_refused_or_mark_their_rows(
    stack: RunningStack, tmp_path: Path
) -> None:
    out, manifest = tmp_path / "out.jsonl", tmp_path / "out_manifest.json"
    await collect(stack, out)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:7]))
    old = orjson.loads(manifest.read_bytes())
    old["code"][0]["servers"]["sokoban"]["digest"] = "0" * 16
    old["code"][0]["digest"] = "0" * 16
    manifest.write_bytes(orjson.dumps(old))
    with pytest.raises(OperatorError, match="accept_changed_code"):
        await collect(stack, out, "a")
    await asyncio.gather(*(collect(stack, out, name, accept_changed_code=True) for name in "abc"))
    rows = read_rows(out)
    assert keys_of(rows) == EVERY
    versions = orjson.loads(manifest.read_bytes())["code"]
    assert [version["digest"] == "0" * 16 for version in versions] == [True, False]
    assert {row.get("_ng_code", "") for row in rows[:7]} == {""}
    assert {row["_ng_code"] for row in rows[7:]} == {versions[1]["digest"]}


async def test_a_command_without_a_worker_that_is_running_excludes_workers(
    stack: RunningStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_BRIEF_LOCK_S", 0.0)  # the command without a worker ends sooner than the default
    out = tmp_path / "out.jsonl"
    alone = asyncio.create_task(collect(stack, out, num_samples_in_parallel=1))
    await until(out.exists)
    with pytest.raises(RunError, match=rf"writing to .*{out.name}"):
        await collect(stack, out, "a")
    assert (await alone).state == "complete"
    assert (await collect(stack, out, "a")).state == "complete"


async def test_attempts_count_over_all_workers_and_the_next_round_tries_again(
    stack: RunningStack, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    rows = [*ROWS[:3], IMPOSSIBLE]
    options = {"rows": rows, "rollout_timeout_s": 1e-6, "max_attempts": 2, "max_failure_rate": 1.0}
    found = await asyncio.gather(*(collect(stack, out, name, **options) for name in "abc"))
    assert {each.state for each in found} == {"incomplete"}
    failures = read_rows(RolloutPaths(out).failures)
    counts = {key: sum(_key(row) == key for row in failures) for key in map(_key, failures)}
    attempts = (2, 2, 2, 1)  # the environment rejects the last row, which is not tried again
    assert counts == {(task, repeat): attempts[task] for task in range(4) for repeat in range(REPEATS)}
    again = await collect(stack, out, "d", rows=rows, max_failure_rate=1.0)
    assert (again.state, again.measured) == ("incomplete", 9)
    refused = [row for row in read_rows(RolloutPaths(out).failures) if row["failure_kind"] == "bad_task"]
    assert sorted(map(_key, refused)) == [(3, repeat) for repeat in range(REPEATS)]
    last = await collect(stack, out, "e", rows=rows)  # only rejected tasks are missing: nothing is tried again
    assert (last.state, last.measured, last.failed_attempts) == ("incomplete", 9, 0)
    assert SharedPaths(out).latest_round() == SharedPaths(out).round(2)


async def test_a_rollout_that_another_worker_has_tried_has_only_the_remaining_attempts(
    stack: RunningStack, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    options: dict[str, Any] = {"rows": ROWS[:1], "num_repeats": 2, "rollout_timeout_s": 1e-6}
    begun = asyncio.create_task(collect(stack, out, "a", **options))
    paths = SharedPaths(out).round(1)
    await until(paths.leases.exists)
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    for block in range(2):
        lease_block(paths, block, "dead-1")
    tried = [{**failure((0, repeat)), "_ng_attempt_index": 0} for repeat in range(2)]
    write_shard(paths, "dead-1", [], tried)
    beat(paths, "dead-1", ended=True)
    own = len([row for path in paths.shards.glob("a-*_failures.jsonl") for row in read_rows(path)])
    found = await collect(stack, out, "b", max_attempts=3, max_failure_rate=1.0, **options)
    assert found.state == "incomplete"
    assert found.failed_attempts == 2 * 3 - 2 - own


async def test_workers_need_no_flock(stack: RunningStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    out, lines = tmp_path / "out.jsonl", list[str]()
    await asyncio.gather(*(collect(stack, out, name, print_line=lines.append) for name in "abc"))
    assert keys_of(read_rows(out)) == EVERY
    assert any("No locks available" in line for line in lines)
    with pytest.raises(RunError, match="locks"):
        await collect(stack, tmp_path / "alone.jsonl")


async def test_two_workers_of_one_name_share_the_work_and_write_different_shards(
    stack: RunningStack, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    await asyncio.gather(*(collect(stack, out, "same") for _ in range(2)))
    assert keys_of(read_rows(out)) == EVERY
    progress = shared_progress(out)
    assert progress is not None
    assert (progress.merged, progress.blocks, progress.done, progress.leased) == (True, len(EVERY), len(EVERY), 0)
    assert len({worker.owner.token for worker in progress.workers}) == 2
    assert sum(worker.measured for worker in progress.workers) == len(EVERY)


async def test_a_name_that_cannot_be_a_file_name_is_refused(stack: RunningStack, tmp_path: Path) -> None:
    for name in ("", "../up", "a b", "$(date)", "x" * 65):
        with pytest.raises(OperatorError, match=r"worker is .*; expected"):
            await collect(stack, tmp_path / "out.jsonl", name)
    assert not (tmp_path / "out_shared").exists()


async def test_overwrite_moves_the_shards_of_the_old_collection_aside(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    await collect(stack, out, "a")
    with pytest.raises(OperatorError, match="overwrite"):
        await collect(stack, out, "a", overwrite=True)
    await collect(stack, out, overwrite=True, num_repeats=1)
    assert len(read_rows(out)) == len(ROWS)
    assert not (tmp_path / "out_shared").exists()
    assert [path.is_dir() for path in tmp_path.glob("out_shared.*")] == [True]


def _key(row: dict[str, Any]) -> tuple[int, int]:
    return row["_ng_task_index"], row["_ng_rollout_index"]


async def _some_done(out: Path) -> None:
    await until(lambda: (progress := shared_progress(out)) is not None and progress.done > 2)

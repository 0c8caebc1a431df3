"""The merge: every rollout once, whatever the workers did and wherever a merge was interrupted."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.errors import RunError
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollouts.status_file import read_status
from rollyard.services.rollouts.shared import merge
from rollyard.services.rollouts.shared.blocks import block_size
from rollyard.services.rollouts.shared.merge import merge_into, publish
from rollyard.services.rollouts.shared.merge_turn import MergeTurn
from rollyard.services.rollouts.shared.owners import OwnerWatch
from rollyard.services.rollouts.shared.shared_paths import RoundPaths
from rollyard.services.rollouts.shared.shared_records import MergeResult
from tests.support.stacks import keys_of, read_rows
from tests.unit.services.rollouts.shared.workers import (
    MANIFEST,
    Clock,
    blocks,
    failure,
    lease_block,
    new_round,
    owner,
    row,
    write_shard,
)

BLOCKS = blocks(5, 3, 4)
ALL = [BLOCKS.key(index) for index in range(15)]


class Crash(BaseException):
    """Stands for the death of the process."""


def merged(paths: RoundPaths, name: str = "m-1") -> MergeResult:
    """Merge as a worker does, from the lease to the last file."""
    output = paths.folder.parent.parent / "out.jsonl"
    clock = Clock()
    turn = MergeTurn(paths, BLOCKS.count, owner(name), OwnerWatch(paths.workers, 60.0, clock))
    if (folder := turn.take()) is None:  # the lease of the last attempt must expire first
        clock.now += 61
        folder = turn.take()
    assert folder is not None
    result = merge_into(folder, output, paths, MANIFEST, BLOCKS, finished=True)
    publish(folder, output, paths)
    return result


@contextmanager
def round_folder() -> Iterator[RoundPaths]:
    folder = Path(tempfile.mkdtemp())
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda fd: None)  # these properties do not depend on it, and it takes most time
            yield new_round(folder)
    finally:
        shutil.rmtree(folder)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int, list[int]]]:
    """(block, worker, rollouts that it measured) for each lease, in the order of the leases."""
    steps = []
    for block in range(BLOCKS.count):
        indices = [BLOCKS.index(key) for key in BLOCKS.keys(block)]
        for worker in draw(st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True)):
            steps.append((block, worker, draw(st.lists(st.sampled_from(indices), unique=True))))
    return draw(st.permutations(steps))


def play(paths: RoundPaths, history: list[tuple[int, int, list[int]]], in_base: set[int]) -> dict[int, str]:
    """Write what the workers measured, in an order of their own; return who owns each rollout of the output."""
    expected = dict.fromkeys(in_base, "base")
    shards: dict[int, list[int]] = {}
    for block, worker, indices in history:
        lease_block(paths, block, f"w-{worker}")
        for index in indices:
            shards.setdefault(worker, []).append(index)
            expected.setdefault(index, f"w-{worker}")
    for worker, indices in shards.items():
        write_shard(paths, f"w-{worker}", [row(BLOCKS.key(index), f"w-{worker}") for index in indices])
    output = paths.folder.parent.parent / "out.jsonl"
    output.write_bytes(b"".join(orjson.dumps(row(BLOCKS.key(index), "base")) + b"\n" for index in in_base))
    return expected


@settings(max_examples=25)
@given(histories(), st.sets(st.integers(0, 14)))
def test_every_measured_rollout_is_merged_once_from_the_first_lease_that_has_it(
    history: list[tuple[int, int, list[int]]], in_base: set[int]
) -> None:
    with round_folder() as paths:
        expected = play(paths, history, in_base)
        result = merged(paths)
        rows = read_rows(paths.folder.parent.parent / "out.jsonl")
        assert {
            BLOCKS.index((found["_ng_task_index"], found["_ng_rollout_index"])): found["answer"] for found in rows
        } == expected
        assert len(rows) == len(expected) == result.measured
        written = sum(len(indices) for _, _, indices in history) + len(in_base)
        assert result.superseded == written - len(expected) == len(read_rows(paths.superseded))


@settings(max_examples=25)
@given(histories(), st.sets(st.integers(0, 14)), st.integers(0, 9), st.integers(0, 9))
def test_a_merge_that_dies_between_any_two_steps_is_completed_by_the_next(
    history: list[tuple[int, int, list[int]]], in_base: set[int], first: int, second: int
) -> None:
    with round_folder() as paths:
        play(paths, history, in_base)
        write_shard(paths, "w-9", [], [failure(ALL[0], time=1.0), failure(ALL[0], time=2.0)])
        output = paths.folder.parent.parent / "out.jsonl"
        whole = paths.folder.parent.parent / "whole"
        whole.mkdir()
        undisturbed = merge_into(whole, output, paths, MANIFEST, BLOCKS, finished=True)
        for steps in (first, second):
            with pytest.MonkeyPatch.context() as patch:
                _die_after(steps, patch)
                try:
                    merged(paths, f"m-{steps}")
                except Crash:
                    continue
            break
        else:
            merged(paths, "m-last")
        assert output.read_bytes() == (whole / "out.jsonl").read_bytes()
        for name in ("out_failures.jsonl", "out_manifest.json"):
            assert output.with_name(name).read_bytes() == (whole / name).read_bytes()
        assert sorted(paths.superseded.read_bytes().splitlines()) == sorted(
            (whole / "superseded.jsonl").read_bytes().splitlines()
        )
        assert MergeResult.model_validate_json(paths.merged.read_bytes()) == undisturbed


def _die_after(steps: int, patch: pytest.MonkeyPatch) -> None:
    """End the merge after this many files were written or moved."""
    left = [steps]
    write, move = merge._write, Path.replace

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    def dying_write(*arguments: object) -> int:
        count()
        return write(*arguments)  # type: ignore[arg-type]

    def dying_move(path: Path, target: Path) -> Path:
        count()
        return move(path, target)

    patch.setattr(merge, "_write", dying_write)
    patch.setattr(Path, "replace", dying_move)


def test_a_paused_merge_that_was_taken_over_can_change_nothing(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    output = tmp_path / "out.jsonl"
    lease_block(paths, 0, "w-1")
    write_shard(paths, "w-1", [row(ALL[0], "first")])
    paused = MergeTurn(paths, BLOCKS.count, owner("paused"), OwnerWatch(paths.workers, 60.0)).take()
    assert paused is not None
    merge_into(paused, output, paths, MANIFEST, BLOCKS, finished=True)
    merged(paths, "taker")
    with output.open("ab") as file:  # a later command continues the output
        file.write(orjson.dumps(row(ALL[1], "later")) + b"\n")
    content = output.read_bytes()
    with pytest.raises(OSError):
        publish(paused, output, paths)
    assert output.read_bytes() == content


def test_a_merger_that_is_paused_before_it_makes_its_folder_cannot_make_it_later(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    assert lease_block(paths, BLOCKS.count, "paused") == 1
    merged(paths, "taker")
    with pytest.raises(FileExistsError):
        (paths.folder / "merge-1").mkdir()


def test_a_row_whose_line_is_incomplete_counts_as_not_measured(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    lease_block(paths, 0, "w-1")
    shard = write_shard(paths, "w-1", [row(ALL[0], "whole"), row(ALL[1], "torn")])
    shard.write_bytes(shard.read_bytes()[:-5])
    assert merged(paths).measured == 1
    assert keys_of(read_rows(tmp_path / "out.jsonl")) == [ALL[0]]


def test_a_row_without_a_readable_lease_is_used_only_if_there_is_no_other(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    for token in ("a-1", "b-1"):
        lease_block(paths, 0, token)
    (paths.leases / "0.1").write_bytes(b"")
    write_shard(paths, "a-1", [row(ALL[0], "a"), row(ALL[1], "a")])
    write_shard(paths, "b-1", [row(ALL[0], "b")])
    merged(paths)
    assert [found["answer"] for found in read_rows(tmp_path / "out.jsonl")] == ["b", "a"]


def test_failures_of_all_workers_are_kept_once_and_counted(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    lease_block(paths, 0, "a-1")
    RolloutPaths(tmp_path / "out.jsonl").failures.write_bytes(orjson.dumps(failure(ALL[0], time=0.0)) + b"\n")
    write_shard(paths, "a-1", [row(ALL[0], "a")], [failure(ALL[0], time=1.0), failure(ALL[1], "bad_task", time=2.0)])
    result = merged(paths)
    assert (result.measured, result.refused, result.expected) == (1, 1, 15)
    assert [found["time"] for found in read_rows(tmp_path / "out_failures.jsonl")] == [0.0, 1.0, 2.0]
    status = read_status(tmp_path / "out.jsonl")
    assert status is not None
    assert (status.state, status.measured, status.failed, status.failed_attempts) == ("incomplete", 1, 14, 3)


def test_a_changed_shard_refuses_the_merge_and_names_the_line(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    lease_block(paths, 0, "w-1")
    shard = write_shard(paths, "w-1", [row((99, 0), "elsewhere")])
    with pytest.raises(RunError, match=r"line 1 .*task 99, repeat 0"):
        merged(paths)
    assert shard.exists()
    assert not (tmp_path / "out.jsonl").exists()


def test_a_million_rollouts_need_about_a_thousand_blocks_and_small_collections_many() -> None:
    assert 1_000_000 / block_size(1_000_000) < 1100
    assert [block_size(count) for count in (1, 8, 200, 800, 3200)] == [1, 1, 1, 3, 4]

"""The state of an evaluation, and how evaluations are found."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import orjson
import pytest

from rollyard.launchers.evaluation.eval_state import (
    MARK,
    POLL_S,
    RECORDS,
    ControlRequests,
    EvalFolder,
    FoundEval,
    end_leftovers,
    find_eval,
    is_alive,
    locked,
    new_state,
    read_state,
    write_state,
)
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.process_group import start_ticks
from rollyard.records.rollout_keys import Shard
from tests.support.waiting import deadline_s, until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def evaluation(here: Path, run_id: str, started: str, shard: str | None = None) -> EvalFolder:
    """The files of an evaluation of this process that was started in `here`."""
    folder = EvalFolder(here / f"out-{run_id}", Shard.parse(shard))
    folder.own.mkdir(parents=True)
    write_state(folder.state, new_state(run_id, folder.root, shard, 1))
    (here / RECORDS).mkdir(parents=True, exist_ok=True)
    record = {"id": run_id, "folder": str(folder.root), "shard": shard}
    (here / RECORDS / f"{started}-{run_id}.json").write_bytes(orjson.dumps(record))
    return folder


def test_a_state_is_alive_only_with_its_own_process_and_a_torn_or_missing_one_is_none(tmp_path: Path) -> None:
    state = new_state("a", tmp_path, None, 3)
    assert is_alive(state)
    (tmp_path / "torn.json").write_text(state.model_dump_json()[:-9])
    assert read_state(tmp_path / "torn.json") is read_state(tmp_path / "missing.json") is None
    assert not is_alive(state.model_copy(update={"started_ticks": state.started_ticks + 1})), "a reused process id"
    assert not is_alive(state.model_copy(update={"host": "another"}))


def test_an_evaluation_is_found_by_its_id_its_folder_from_within_it_or_as_the_newest(tmp_path: Path) -> None:
    old = evaluation(tmp_path, "old", "20260101-000000")
    evaluation(tmp_path, "new", "20260102-000000")
    old.logs.mkdir()
    (tmp_path / "a/b").mkdir(parents=True)
    for here in (tmp_path, tmp_path / "a/b"):
        assert find_eval(here, None).folder.root.name == "out-new"
        assert find_eval(here, "old").folder == old
    for here, name in ((tmp_path, "out-old"), (old.logs, None), (old.root, None)):
        assert find_eval(here, name).folder == old
    shard = evaluation(tmp_path, "a", "20260101-000000", shard="2/4")
    for name in ("out-a/shards/2-of-4", "a"):
        assert find_eval(tmp_path, name).folder == shard


@pytest.mark.parametrize("name", [None, "x"])
def test_an_unknown_evaluation_is_refused(tmp_path: Path, name: str | None) -> None:
    with pytest.raises(OperatorError, match="no evaluation"):
        find_eval(tmp_path, name)


@needs_root
def test_the_records_of_another_user_are_ignored(tmp_path: Path) -> None:
    evaluation(tmp_path, "a", "20260101-000000")
    (record,) = (tmp_path / RECORDS).iterdir()
    os.chown(record, 4321, -1)
    with pytest.raises(OperatorError, match="no evaluation"):
        find_eval(tmp_path, "a")


def test_a_folder_is_locked_once_and_each_shard_has_its_own_lock(tmp_path: Path) -> None:
    one, two = (EvalFolder(tmp_path, Shard(number, 2)) for number in (1, 2))
    with locked(EvalFolder(tmp_path)) as before, locked(one), locked(two):
        assert before is None
        with pytest.raises(RunError, match="another ng_eval is running"), locked(EvalFolder(tmp_path)):
            pass
    with locked(EvalFolder(tmp_path)):
        pass


def test_a_folder_whose_evaluation_runs_without_a_lock_is_in_use(tmp_path: Path) -> None:
    """As on a file system without locks."""
    folder, parent = EvalFolder(tmp_path), os.getppid()
    running = {"pid": parent, "started_ticks": start_ticks(parent)}
    write_state(folder.state, new_state("a", tmp_path, None, 1).model_copy(update=running))
    with pytest.raises(RunError, match=r"id a, process \d+"), locked(folder):
        pass


async def test_a_request_in_the_folder_is_followed_once_and_an_old_one_is_not(tmp_path: Path) -> None:
    folder, requests = EvalFolder(tmp_path), ControlRequests()
    found = FoundEval(folder)
    found.request("stop")
    async with requests.follow(folder, new_state("a", tmp_path, None, 1), tmp_path):
        assert not requests.ending
        found.request("pause")
        await until(lambda: requests.paused)
        found.request("resume")
        await until(lambda: not requests.paused)
        found.request("stop")
        await until(lambda: requests.ending == "stopped")
        assert not folder.request.exists()
    assert find_eval(tmp_path, "a").folder == folder


@needs_root
async def test_the_request_of_another_user_is_ignored(tmp_path: Path) -> None:
    folder, requests = EvalFolder(tmp_path), ControlRequests()
    async with requests.follow(folder, new_state("a", tmp_path, None, 1), tmp_path):
        (tmp_path / "given").write_text("stop")
        os.chown(tmp_path / "given", 4321, -1)
        (tmp_path / "given").rename(folder.request)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(requests.changed(), 5 * POLL_S)
    assert not requests.ending


async def test_only_the_processes_that_an_evaluation_left_are_ended() -> None:
    run_id = f"left-over-{os.getpid()}"
    left, other = (subprocess.Popen(["sleep", "99"], env={**os.environ, MARK: mark}) for mark in (run_id, f"x{run_id}"))
    try:
        assert await end_leftovers(run_id) == 1
        assert (left.wait(deadline_s()), other.poll()) == (-9, None)
        assert await end_leftovers(run_id) == 0
    finally:
        for process in (left, other):
            process.kill()
            process.wait()

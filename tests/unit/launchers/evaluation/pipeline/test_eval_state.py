"""The state of an evaluation, and how evaluations are found."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.pipeline.control.control_client import find_eval
from rollyard.launchers.evaluation.pipeline.control.control_server import RECORDS, ControlRecord
from rollyard.launchers.evaluation.pipeline.eval_lock import locked
from rollyard.launchers.evaluation.pipeline.eval_state import EvalState, is_alive, new_state, read_state, write_state
from rollyard.records.errors import OperatorError, RunError


def evaluation(here: Path, run_id: str, started: str, worker: str | None = None) -> EvalFolder:
    """The files of an evaluation of this process that was started in `here`."""
    folder = EvalFolder(here / f"out-{run_id}", worker)
    folder.own.mkdir(parents=True)
    write_state(folder.state, new_state(run_id, folder.root, worker, 1))
    record = ControlRecord(id=run_id, folder=str(folder.root), worker=worker, address="http://127.0.0.1:1", token="t")
    (here / RECORDS).mkdir(parents=True, exist_ok=True)
    for path in (here / RECORDS / f"{started}-{run_id}.json", folder.control):
        path.write_bytes(orjson.dumps(record.model_dump()))
    return folder


def test_a_state_is_alive_only_with_its_own_process(tmp_path: Path) -> None:
    state = new_state("a", tmp_path, None, 3)
    assert is_alive(state)
    assert not is_alive(state.model_copy(update={"started_ticks": state.started_ticks + 1})), "a reused process id"
    assert not is_alive(state.model_copy(update={"host": "another"}))


def test_a_torn_or_missing_state_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path / "eval_state.json") is None
    (tmp_path / "eval_state.json").write_text('{"id": "a", "fol')
    assert read_state(tmp_path / "eval_state.json") is None


def test_the_newest_evaluation_of_this_folder_is_found_from_any_folder_below_it(tmp_path: Path) -> None:
    evaluation(tmp_path, "old", "20260101-000000")
    evaluation(tmp_path, "new", "20260102-000000")
    (tmp_path / "a/b").mkdir(parents=True)
    for here in (tmp_path, tmp_path / "a/b"):
        assert find_eval(here, None).folder.root.name == "out-new"
        assert find_eval(here, "old").folder.root.name == "out-old"


def test_an_evaluation_is_found_by_its_folder_and_from_within_it(tmp_path: Path) -> None:
    old = evaluation(tmp_path, "old", "20260101-000000")
    evaluation(tmp_path, "new", "20260102-000000")
    old.logs.mkdir()
    assert find_eval(tmp_path, "out-old").folder == old
    assert find_eval(old.logs, None).folder == old
    assert find_eval(old.root, None).record is not None


def test_the_folder_of_a_worker_is_an_evaluation_of_its_own(tmp_path: Path) -> None:
    worker = evaluation(tmp_path, "a", "20260101-000000", worker="job-1")
    assert find_eval(tmp_path, "out-a/workers/job-1").folder == worker
    assert find_eval(tmp_path, "a").folder == worker


def test_an_unknown_evaluation_is_refused(tmp_path: Path) -> None:
    for name in (None, "x"):
        with pytest.raises(OperatorError, match="no evaluation"):
            find_eval(tmp_path, name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_records_of_another_user_are_ignored(tmp_path: Path) -> None:
    evaluation(tmp_path, "a", "20260101-000000")
    (record,) = (tmp_path / RECORDS).iterdir()
    os.chown(record, 4321, -1)
    with pytest.raises(OperatorError, match="no evaluation"):
        find_eval(tmp_path, "a")


def test_a_folder_is_locked_once_and_each_worker_has_its_own_lock(tmp_path: Path) -> None:
    with locked(EvalFolder(tmp_path)) as before, locked(EvalFolder(tmp_path, "w1")), locked(EvalFolder(tmp_path, "w2")):
        assert before is None
        with pytest.raises(RunError, match="another ng_eval is running"), locked(EvalFolder(tmp_path)):
            pass
    with locked(EvalFolder(tmp_path)):
        pass


def test_a_folder_whose_evaluation_runs_without_a_lock_is_in_use(tmp_path: Path) -> None:
    """As on a file system without locks."""
    folder = EvalFolder(tmp_path)
    parent = new_state("a", tmp_path, None, 1)
    ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
    write_state(folder.state, parent.model_copy(update={"pid": os.getppid(), "started_ticks": ticks}))
    with pytest.raises(RunError, match=r"id a, process \d+"), locked(folder):
        pass


def test_a_state_file_holds_one_whole_record(tmp_path: Path) -> None:
    state = new_state("a", tmp_path, "w", 3)
    write_state(tmp_path / "s.json", state)
    assert EvalState.model_validate_json((tmp_path / "s.json").read_bytes()) == state

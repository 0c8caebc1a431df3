from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.records.locked_files import open_private
from rollyard.records.run_types import HeadFile
from rollyard.services.runtime.run_dir import HOME, KEPT_RUNS, RunFolder, running_heads


def head(run_id: str, pid: int | None = None, token: str | None = None) -> HeadFile:
    return HeadFile(run_id=run_id, url="http://127.0.0.1:1", pid=pid or os.getpid(), token=token)


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_the_owner_can_read_the_head_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path, "r1")
        folder.write_head(head("r1", token="t0ken"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder.path / "head.json").stat().st_mode) == 0o600


def test_the_repr_does_not_show_the_token() -> None:
    assert "t0ken" not in repr(head("r1", token="t0ken"))


def test_runs_of_dead_processes_are_ignored(tmp_path: Path, dead_pid: int) -> None:
    RunFolder.create(tmp_path, "dead").write_head(head("dead", dead_pid))
    RunFolder.create(tmp_path, "alive").write_head(head("alive"))
    assert [found.run_id for found in running_heads(tmp_path)] == ["alive"]


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for stamp in ("20250101-000000", "20260101-000000", "20251231-235959"):
        folder = RunFolder(tmp_path / HOME / f"{stamp}-x")
        folder.path.mkdir(parents=True)
        folder.write_head(head(stamp))
    assert [found.run_id for found in running_heads(tmp_path)] == [
        "20260101-000000",
        "20251231-235959",
        "20250101-000000",
    ]


@pytest.mark.parametrize("content", [b"", b"{", b'{"run_id": "x"}', b"[]"])
def test_an_invalid_head_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder.create(tmp_path, "r1")
    (folder.path / "head.json").write_bytes(content)
    assert running_heads(tmp_path) == []


def test_a_finished_run_is_not_found(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "r1")
    folder.write_head(head("r1"))
    folder.end()
    folder.end()
    assert running_heads(tmp_path) == []


def test_nobody_else_can_read_a_run_folder_or_a_file_in_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path, "r1")
        folder.write_config({"a": 1})
        open_private(folder.logs / "server.log").close()
        (folder.logs / "server.log.1").touch()  # of a child, or a rotated log
        folder.end()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder.path, *folder.path.rglob("*")]}
    assert {modes[folder.path.name], modes["logs"]} == {0o700}
    assert {modes[name] for name in ("config.yaml", "server.log", "server.log.1")} == {0o600}


def test_the_folders_of_the_newest_ended_runs_are_kept(tmp_path: Path, dead_pid: int) -> None:
    runs = tmp_path / HOME
    for number in range(KEPT_RUNS + 5):
        RunFolder(runs / f"20250101-{number:06}-r").path.mkdir(parents=True)
    RunFolder(runs / "20240101-000000-alive").path.mkdir()
    RunFolder(runs / "20240101-000000-alive").write_head(head("alive"))
    (runs / "mine").mkdir()
    RunFolder(runs / "20250101-000054-r").write_head(head("r", dead_pid))
    created = RunFolder.create(tmp_path, "new")
    left = {path.name for path in runs.iterdir()}
    assert {created.path.name, "mine", "20240101-000000-alive"} <= left
    assert len(left) == KEPT_RUNS + 2 and "20250101-000005-r" not in left and "20250101-000006-r" in left
    assert not (runs / "20250101-000054-r/head.json").exists()


def test_a_run_on_another_host_is_never_tidied_away(tmp_path: Path, dead_pid: int) -> None:
    elsewhere = RunFolder(tmp_path / HOME / "20250101-000000-r")
    elsewhere.path.mkdir(parents=True)
    elsewhere.write_head(head("r", dead_pid).model_copy(update={"host": "other"}))
    RunFolder.create(tmp_path, "new")
    assert (elsewhere.path / "head.json").exists()

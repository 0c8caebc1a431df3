from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.services.run_types import HeadFile
from rollyard.services.runtime.run_dir import HOME, RunFolder, running_heads


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


def test_a_written_head_file_is_found(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "r1").write_head(head("r1", token="t0ken"))
    assert running_heads(tmp_path) == [head("r1", token="t0ken")]


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
    folder.forget_head()
    folder.forget_head()
    assert running_heads(tmp_path) == []


def test_a_folder_without_runs_has_no_heads(tmp_path: Path) -> None:
    assert running_heads(tmp_path) == []

"""A rollout counts as done only once its line is in the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import RunError
from rollyard.records.rollout_file import RolloutPaths
from rollyard.services.rollouts.store import RolloutStore


def row(repeat: int) -> bytes:
    return orjson.dumps({"_ng_task_index": 0, "_ng_rollout_index": repeat, "reward": 1.0})


def store(output: Path) -> RolloutStore:
    return RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False)


def short_write(write: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    written: list[int] = []

    def half_then_full(fd: int, data: bytes) -> int:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(write(fd, data[: len(data) // 2]))
        return written[0]

    return half_then_full


def failing(number: int) -> Callable[[int, bytes], int]:
    def write(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    return write


@pytest.mark.parametrize("failure", ["full", "broken", "short"])
def test_a_row_that_could_not_be_written_is_not_done_and_can_be_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    opened = store(tmp_path / "x.jsonl")
    opened.append((0, 0), row(0))
    real = os.write
    fake = {"full": failing(errno.ENOSPC), "broken": failing(errno.EIO), "short": short_write(real)}[failure]
    monkeypatch.setattr(os, "write", fake)
    with pytest.raises(RunError, match="cannot write"):
        opened.append((0, 1), row(1))
    monkeypatch.setattr(os, "write", real)
    assert (0, 1) not in opened.done and len(opened.done) == 1
    opened.append((0, 1), row(1))
    opened.close()
    assert (tmp_path / "x.jsonl").read_bytes() == row(0) + b"\n" + row(1) + b"\n"


def test_a_disk_that_fails_at_the_end_is_named_and_the_files_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = store(tmp_path / "x.jsonl")
    opened.append((0, 0), row(0))

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(RunError, match=r"x\.jsonl.*" + os.strerror(errno.EIO)):
            opened.close()
    store(tmp_path / "x.jsonl").close()

"""Closing a store while a thread of its cancelled collection still syncs the file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rollyard.services.io.rollout_paths import RolloutPaths
from rollyard.services.rollouts.store import RolloutStore
from tests.support.waiting import deadline_s


def store(path: Path) -> RolloutStore:
    return RolloutStore(RolloutPaths(path), {}, {}, resume=True, overwrite=False)


def test_close_waits_for_a_running_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_started, disk_ready = threading.Event(), threading.Event()
    first, fsync = store(tmp_path / "x.jsonl"), os.fsync

    def slow_fsync(fd: int) -> None:
        sync_started.set()
        assert disk_ready.wait(deadline_s())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow_fsync)
    syncing = threading.Thread(target=first.sync)
    syncing.start()
    assert sync_started.wait(deadline_s())
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    disk_ready.set()
    closing.join(deadline_s())
    store(tmp_path / "x.jsonl").close()
    syncing.join(deadline_s())
    first.sync()  # a late sync of the closed store does not touch the files of the next store

"""A store that is closed while a thread of its cancelled collection still writes to the disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rollyard.services.rollouts.store import RolloutStore, StorePaths


def store(path: Path) -> RolloutStore:
    return RolloutStore(StorePaths(path), {}, {}, resume=True, overwrite=False)


def test_closing_waits_for_a_sync_under_way_so_that_the_next_store_can_open_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, disk = threading.Event(), threading.Event()
    first, fsync = store(tmp_path / "x.jsonl"), os.fsync

    def slow(fd: int) -> None:
        begun.set()
        assert disk.wait(60)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    syncing = threading.Thread(target=first.sync)
    syncing.start()
    assert begun.wait(60)
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    disk.set()
    closing.join(60)
    store(tmp_path / "x.jsonl").close()
    syncing.join(60)
    first.sync()  # a thread that comes late does nothing to the files of the next store

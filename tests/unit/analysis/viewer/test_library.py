"""Files are indexed in the background, by several processes if worthwhile; closing leaves no thread or process."""

from __future__ import annotations

import itertools
import threading
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.rollout_list import Query
from tests.support.reading_pools import read_in_threads
from tests.support.rollout_files import grid, random_rows, write
from tests.support.waiting import eventually
from tests.unit.analysis.viewer.opened_runs import open_index


def test_the_number_of_processes_does_not_change_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_threads(monkeypatch)
    path = write(tmp_path / "x.jsonl", random_rows(20, 5))
    single, several = open_index(path), open_index(path, workers=2, worth_processes=1, part=5000)
    assert several.runs[0].page(Query(limit=500)) == single.runs[0].page(Query(limit=500))


def test_an_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    runs = open_index(tmp_path / "bad.jsonl", write(tmp_path / "good.jsonl", grid([1], 2))).overview().runs
    assert "No such file" in runs[0].error
    assert (runs[1].measured, runs[1].error) == (2, "")


def test_an_index_can_be_queried_immediately_and_grows_in_the_background(tmp_path: Path) -> None:
    file_index = FileIndex([("x", write(tmp_path / "x.jsonl", random_rows(40, 5)))], part=1000)
    assert file_index.runs[0].page(Query()).total == 0
    file_index.start()
    eventually("all rows are listed", lambda: file_index.runs[0].page(Query()).total == 200)
    file_index.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "library"]


def test_reading_through_does_not_wait_after_a_slow_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 100.0)
    slow = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("rollyard.analysis.viewer.growing_index.time", slow)
    file_index = open_index(path := write(tmp_path / "x.jsonl", grid([1], 2)))
    write(path, grid([1, 1], 2))
    file_index.read_through()
    assert file_index.runs[0].page(Query()).total == 4


def test_closing_during_a_parallel_read_leaves_no_process(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", random_rows(400, 5))
    file_index = FileIndex([("x", path)], workers=2, worth_processes=1, part=500)
    file_index.start()
    eventually("a reader process starts", active_children)
    file_index.close()
    # Another thread of this process may not have removed an ended reader from the list yet.
    eventually("every reader process has ended", lambda: not active_children())
    assert file_index.runs[0].page(Query()).total < 2000

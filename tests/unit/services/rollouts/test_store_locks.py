"""The files of a collection: closed while a thread still syncs, left by a killed one, named by a link; and limits on
open files.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import is_locked
from rollyard.records.rollout_file import RolloutPaths, read_status
from rollyard.records.rollout_keys import Shard
from rollyard.records.run_types import Directory
from rollyard.services.rollouts.collection import (
    CollectionPlan,
    check_open_files,
    most_parallel,
)
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import JsonLines, RolloutStore
from tests.support.waiting import deadline_s


def store(path: Path) -> RolloutStore:
    return RolloutStore(RolloutPaths(path), {}, {}, resume=True, overwrite=False)


@contextmanager
def full_disk() -> Iterator[None]:
    """Let this process write no byte to any file; empty ones can still be made."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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


def test_what_a_killed_collection_was_writing_is_removed_by_the_next_one(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path / "x [1].jsonl")
    store(paths.output).close()
    for path in (paths.status, paths.manifest, paths.notes):
        path.with_name(f".{path.name}.4321").write_bytes(b"{")
    store(paths.output).close()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [f".{paths.notes.name}.4321"]


def test_a_collection_that_cannot_write_its_manifest_locks_nothing(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path / "x.jsonl")
    with full_disk(), pytest.raises(RunError, match="cannot write"):
        store(paths.output)
    assert not is_locked(paths.output)
    assert not is_locked(paths.failures)


def test_an_incomplete_line_that_cannot_be_moved_aside_is_an_error_that_locks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"reward"')
    with full_disk(), pytest.raises(RunError, match="incomplete line"):
        JsonLines(path)
    assert not is_locked(path)
    assert path.read_bytes() == b'{"reward"'


def test_a_collection_whose_files_were_moved_leaves_the_status_of_the_next_one_alone(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path / "x.jsonl")
    (tmp_path / "moved").mkdir()
    with closing(store(paths.output)) as frozen:
        for path in list(tmp_path.glob("x*")):
            path.rename(tmp_path / "moved" / path.name)
        with closing(store(paths.output)) as current:
            current.write_status(CollectionProgress(3).status("running"))
            frozen.write_status(CollectionProgress(5).status("stopped"))
    status = read_status(paths.output)
    assert status is not None and (status.expected, status.state) == (3, "running")


def test_a_link_to_an_output_is_the_same_output(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link, output = tmp_path / "link.jsonl", tmp_path / "real" / "x.jsonl"
    link.symlink_to(output)
    plan = CollectionPlan(link)
    assert plan.output == output and RolloutPaths(link).sidecars() == RolloutPaths(output).sidecars()
    first = RolloutStore(RolloutPaths(link), {}, {}, resume=True, overwrite=False)
    try:
        with pytest.raises(RunError, match="another process"):
            RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False)
    finally:
        first.close()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["link.jsonl"] * link.exists()


REACHED = {"agent", "model", "environment"}


def with_open_files(limits: dict[str, int], agents: int = 1, plain: str = "") -> Directory:
    """The directory of a run whose servers, except `plain`, accept channels."""
    servers = {"agent": ["http://a"] * agents, "model": ["http://m"], "environment": ["http://e"]}
    return Directory(
        run_id="r1",
        servers=servers,
        families={"agent": "agents", "model": "responses_api_models", "environment": "resources_servers"},
        settings={},
        references={"agent": ["model", "environment"]},
        open_files=limits,
        channels=frozenset(url for name, urls in servers.items() if name != plain for url in urls),
    )


@pytest.mark.parametrize(
    ("limits", "plain", "parallel", "short"),
    [
        ({"agent": 300, "environment": 300, "model": 4096}, "", 2000, ""),
        ({"agent": 300, "environment": 300, "model": 2100}, "", 2000, "model"),
        ({"agent": 300, "environment": 300, "unused": 64}, "", 100_000, ""),
        ({"agent": 1024, "model": 4096}, "environment", 2000, "agent"),
        ({"agent": 4096, "environment": 300}, "model", 2000, ""),
        ({"agent": 1024, "environment": 300}, "model", 2000, "agent"),
        ({"environment": 1024, "model": 8192}, "agent", 2000, "environment"),
        ({"environment": 4096, "model": 4096}, "agent", 2000, "model"),
        ({"environment": 4096, "model": 8192}, "agent", 2000, ""),
        ({}, "", 100_000, ""),
    ],
)
def test_episodes_that_do_not_fit_into_the_open_files_of_a_server_are_refused_with_its_name(
    limits: dict[str, int], plain: str, parallel: int, short: str
) -> None:
    expected = pytest.raises(OperatorError, match=rf"^{short} may open .* set replicas: \d") if short else nullcontext()
    with expected:
        check_open_files(with_open_files(limits, plain=plain), REACHED, parallel)


def test_several_processes_of_an_agent_share_its_episodes() -> None:
    directory = with_open_files({"agent": 1300}, agents=2, plain="model")
    check_open_files(directory, REACHED, 2000)
    with pytest.raises(OperatorError, match="in each of its 2 processes"):
        check_open_files(directory, REACHED, 2400)


def test_the_most_episodes_that_fit_are_divided_among_the_shards() -> None:
    directory = with_open_files({"model": 440})
    most = most_parallel(directory, REACHED)
    assert [most_parallel(directory, REACHED, Shard(number, 4)) for number in (1, 4)] == [most // 4] * 2
    check_open_files(directory, REACHED, most)
    with pytest.raises(OperatorError, match=r"^model may open 440 files"):
        check_open_files(directory, REACHED, most + 1)


def test_a_collector_needs_an_open_file_per_episode_only_for_agents_without_channels() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    check_open_files(with_open_files({}), REACHED, limit)
    check_open_files(with_open_files({}, plain="agent"), REACHED, limit, collectors=2)
    with pytest.raises(OperatorError, match=rf"^this command may open {limit} files.*--num-collectors"):
        check_open_files(with_open_files({}, plain="agent"), REACHED, limit)


def test_a_command_whose_output_was_moved_writes_no_status_beside_another_one(tmp_path: Path) -> None:
    output = tmp_path / "x.jsonl"
    with closing(store(output)) as moved:
        output.rename(tmp_path / "moved.jsonl")
    output.touch()
    moved.write_status(CollectionProgress(1).status("complete"))
    assert read_status(output) is None


def test_a_command_writes_no_status_over_that_of_one_that_began_later(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    with closing(store(output)) as earlier:
        old = CollectionProgress(1).status("stopped")
    later = CollectionProgress(1).status("complete").model_copy(update={"pid": old.pid + 1, "started": old.started + 1})
    RolloutPaths(output).status.write_text(later.model_dump_json())
    earlier.write_status(old)
    assert read_status(output) == later


def test_an_output_that_is_moved_before_it_is_read_is_named(tmp_path: Path) -> None:
    output = tmp_path / "x.jsonl"
    with closing(store(output)) as moved:
        output.rename(tmp_path / "moved.jsonl")
        with pytest.raises(RunError, match=r"x\.jsonl was moved to .*moved\.jsonl"):
            moved.load()


def test_what_a_killed_overwrite_was_writing_is_removed_by_the_next_command(tmp_path: Path) -> None:
    left = tmp_path / ".x.jsonl.new"
    left.touch()
    with closing(store(tmp_path / "x.jsonl")):
        assert not left.exists()

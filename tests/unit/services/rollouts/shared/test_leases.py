"""Leases under races, torn files and clocks that differ."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from rollyard.services.rollouts.shared.exclusive_files import create_exclusive, flock_note
from rollyard.services.rollouts.shared.heartbeats import HeartbeatWriter
from rollyard.services.rollouts.shared.leases import Leases
from rollyard.services.rollouts.shared.owners import OwnerWatch, has_exited, this_owner
from tests.support.waiting import deadline_s, eventually
from tests.unit.services.processes import FORKS
from tests.unit.services.rollouts.shared.workers import Clock, beat, lease_block, new_round, owner

PROCESSES, BLOCKS = 8, 80


def _claim_all(folder: Path, number: int, generation: int, start: Barrier, results: Any) -> None:
    start.wait(deadline_s())
    leases = Leases(new_round(folder))
    mine = [block for block in range(BLOCKS) if leases.claim(block, generation, owner(f"w-{number}"))]
    results.put((number, mine))


def race(folder: Path, generation: int) -> Counter[int]:
    """Let several processes claim every block at once; return how often each block was claimed."""
    new_round(folder)
    start, results = FORKS.Barrier(PROCESSES), FORKS.Queue()
    arguments = [(folder, number, generation, start, results) for number in range(PROCESSES)]
    racers = [FORKS.Process(target=_claim_all, args=given, daemon=True) for given in arguments]
    for racer in racers:
        racer.start()
    claimed = Counter(block for _ in racers for block in results.get(timeout=deadline_s())[1])
    for racer in racers:
        racer.join(deadline_s())
    return claimed


def test_of_several_processes_exactly_one_leases_each_block(tmp_path: Path) -> None:
    claimed = race(tmp_path, 1)
    assert claimed == dict.fromkeys(range(BLOCKS), 1)
    assert Leases(new_round(tmp_path)).table().generations == dict.fromkeys(range(BLOCKS), 1)


def test_of_several_processes_exactly_one_takes_over_each_expired_block(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    for block in range(BLOCKS):
        lease_block(paths, block, "dead-1")
    assert race(tmp_path, 2) == dict.fromkeys(range(BLOCKS), 1)
    history = [list(Leases(paths).history(block, 2)) for block in range(BLOCKS)]
    assert all(first and second and first.owner.token == "dead-1" != second.owner.token for first, second in history)


def test_a_file_system_without_hard_links_still_has_one_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    assert race(tmp_path, 1) == dict.fromkeys(range(BLOCKS), 1)


def test_a_link_that_an_nfs_server_reports_as_failed_but_made_counts_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def repeated(*arguments: Any, **options: Any) -> None:
        link(*arguments, **options)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr("os.link", repeated)
    assert create_exclusive(tmp_path / "lease", b"mine")
    monkeypatch.undo()
    assert not create_exclusive(tmp_path / "lease", b"theirs")
    assert (tmp_path / "lease").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["lease"]


def test_a_lease_expires_only_if_the_heartbeat_stood_still_for_a_whole_lease_of_the_observers_own_clock(
    tmp_path: Path,
) -> None:
    paths, clock = new_round(tmp_path), Clock()
    watch = OwnerWatch(paths.workers, 60.0, clock)
    lease_block(paths, 0, "w-1")
    lease = Leases(paths).lease(0, 1)

    def is_free() -> bool:
        return watch.is_free(lease, "0.1")

    beat(paths, "w-1", 1)
    os.utime(paths.workers / "w-1.json", (1.0, 1.0))  # the clock of its host is decades behind
    assert not is_free()
    clock.now += 59
    assert not is_free()
    beat(paths, "w-1", 2)
    clock.now += 59
    assert not is_free()  # it changed since
    clock.now += 59
    assert not is_free()
    clock.now += 2
    assert is_free()


def test_the_owner_decides_how_long_its_leases_last(tmp_path: Path) -> None:
    paths, clock = new_round(tmp_path), Clock()
    lease_block(paths, 0, "w-1")
    beat(paths, "w-1", lease_s=600.0)
    lease, watch = Leases(paths).lease(0, 1), OwnerWatch(paths.workers, 6.0, clock)
    assert not watch.is_free(lease, "0.1")
    clock.now += 599
    assert not watch.is_free(lease, "0.1")
    clock.now += 2
    assert watch.is_free(lease, "0.1")


def test_an_observer_that_was_itself_stopped_reads_the_heartbeat_again_before_it_decides(tmp_path: Path) -> None:
    paths, clock = new_round(tmp_path), Clock()
    lease_block(paths, 0, "w-1")
    beat(paths, "w-1", 1)
    lease, watch = Leases(paths).lease(0, 1), OwnerWatch(paths.workers, 60.0, clock)
    assert not watch.is_free(lease, "0.1")
    beat(paths, "w-1", 2)
    clock.now += 100_000
    assert not watch.is_free(lease, "0.1")


@pytest.mark.parametrize("content", [b"", b'{"block": 0, "gen', b"\0" * 100])
def test_a_torn_lease_can_be_taken_over_after_a_lease_and_blocks_nobody_forever(tmp_path: Path, content: bytes) -> None:
    paths, clock = new_round(tmp_path), Clock()
    (paths.leases / "7.1").write_bytes(content)
    leases, watch = Leases(paths), OwnerWatch(paths.workers, 60.0, clock)
    assert leases.table().generations == {7: 1}
    assert leases.lease(7, 1) is None
    assert not watch.is_free(None, "7.1")
    clock.now += 61
    assert watch.is_free(None, "7.1")
    assert leases.claim(7, 2, owner("w-2"))


def test_a_torn_or_missing_heartbeat_expires_like_a_silent_one(tmp_path: Path) -> None:
    paths, clock = new_round(tmp_path), Clock()
    watch = OwnerWatch(paths.workers, 60.0, clock)
    for block, token in enumerate(("torn-1", "missing-1")):
        lease_block(paths, block, token)
    (paths.workers / "torn-1.json").write_bytes(b'{"owner"')
    leases = [Leases(paths).lease(block, 1) for block in range(2)]
    assert not any(watch.is_free(lease, "") for lease in leases)
    clock.now += 61
    assert all(watch.is_free(lease, "") for lease in leases)


def test_released_leases_and_those_of_a_worker_that_ended_are_free_at_once(tmp_path: Path) -> None:
    paths, clock = new_round(tmp_path), Clock()
    for block in range(3):
        lease_block(paths, block, "w-1")
    leases, watch = Leases(paths), OwnerWatch(paths.workers, 60.0, clock)
    beat(paths, "w-1", 1, released=[(1, 1)])
    assert [watch.is_free(leases.lease(block, 1), "") for block in range(3)] == [False, True, False]
    beat(paths, "w-1", 2, ended=True)
    clock.now += 1
    assert all(watch.is_free(leases.lease(block, 1), "") for block in range(3))


def test_a_killed_process_of_this_machine_is_noticed_at_once(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    program = (
        "import sys; from pathlib import Path\n"
        "from rollyard.services.rollouts.shared.owners import this_owner\n"
        "print(this_owner('w').model_dump_json(), flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    found = this_owner("w").model_validate_json(process.stdout.readline())
    leases, watch = Leases(paths), OwnerWatch(paths.workers, 60.0, Clock())
    assert leases.claim(0, 1, found)
    assert not has_exited(found)
    assert not watch.is_free(leases.lease(0, 1), "0.1")
    process.kill()
    process.communicate()
    assert has_exited(found)
    assert watch.is_free(leases.lease(0, 1), "0.1")


def test_a_reused_process_id_is_another_process() -> None:
    me = this_owner("w")
    assert not has_exited(me)
    assert has_exited(me.model_copy(update={"started": me.started - 1}))
    assert not has_exited(me.model_copy(update={"machine": "another host", "started": 1}))


def test_two_workers_with_one_name_have_different_tokens() -> None:
    assert this_owner("w").token != this_owner("w").token


def test_a_heartbeat_goes_on_while_the_main_thread_is_busy_and_notices_a_gap(tmp_path: Path) -> None:
    paths, clock = new_round(tmp_path), Clock()
    heartbeat = HeartbeatWriter(paths.workers, owner("w-1"), 60.0, clock)
    heartbeat.beat()
    clock.now += 59
    assert heartbeat.is_current
    clock.now += 2
    assert not heartbeat.is_current
    heartbeat.beat()
    assert heartbeat.is_current
    assert heartbeat.lapses == 1


def test_a_stopped_owner_loses_its_lease_and_knows_it_when_it_goes_on(tmp_path: Path) -> None:
    paths = new_round(tmp_path)
    program = (
        "import sys, time; from pathlib import Path\n"
        "from rollyard.services.rollouts.shared.heartbeats import HeartbeatWriter\n"
        "from rollyard.services.rollouts.shared.owners import this_owner\n"
        "me = this_owner('w'); beats = HeartbeatWriter(Path(sys.argv[1]), me, 0.6); beats.start()\n"
        "print(me.model_dump_json(), flush=True)\n"
        "while not beats.lapses: time.sleep(0.01)\n"
        "print('lapsed', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(paths.workers)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        found = this_owner("w").model_validate_json(process.stdout.readline())
        leases, watch = Leases(paths), OwnerWatch(paths.workers, 60.0)
        assert leases.claim(0, 1, found)
        process.send_signal(signal.SIGSTOP)
        eventually("the lease expires", lambda: watch.is_free(leases.lease(0, 1), "0.1"))
        assert leases.claim(0, 2, owner("taker-1"))
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == b"lapsed\n"
    finally:
        process.kill()
        process.communicate()


def test_the_probe_reports_what_flock_does_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "flock excludes" in flock_note(tmp_path)

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert "No locks available" in flock_note(tmp_path)
    assert list(tmp_path.iterdir()) == []

"""The lock of a conversion: one holder, takeover from dead ones, never from live ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rollyard.launchers.conversion.lock import Held, Lease, LockSettings, Outcome, SharedLock
from rollyard.launchers.conversion.owner import Owner, is_running, this_process
from rollyard.records.errors import RunError
from tests.unit.launchers.conversion.fake_conversion import FAST

DONE = Outcome(state="done")


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lock(
    folder: Path, owner: Owner | None = None, settings: LockSettings = FAST, clock: Clock | None = None
) -> SharedLock:
    return SharedLock(folder / "x.lock", owner or this_process({}), settings, clock=clock or Clock())


def ended_owner(**changes: object) -> Owner:
    """The record of a process of this host that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    child.wait()
    return this_process({}).model_copy(update={"pid": child.pid, "start_time": "1", **changes})


def acquire(lock: SharedLock) -> Lease:
    lease = lock.try_acquire()
    assert isinstance(lease, Lease)
    return lease


def abandon(folder: Path, owner: Owner) -> None:
    """Leave the lock behind as a killed owner does."""
    lease = acquire(lock(folder, owner))
    lease._stop.set()
    lease._thread.join()


def test_a_held_lock_names_its_owner_and_is_free_after_its_release(tmp_path: Path) -> None:
    lease = acquire(lock(tmp_path, this_process({"SLURM_JOB_ID": "4711"})))
    held = lock(tmp_path).try_acquire()
    assert isinstance(held, Held)
    assert f"process {os.getpid()} on" in held.shown
    assert "SLURM job 4711" in held.shown
    lease.release(DONE)
    acquire(lock(tmp_path)).release(DONE)


def test_exactly_one_of_many_threads_acquires_a_free_lock(tmp_path: Path) -> None:
    start, results = threading.Barrier(16), list[Lease | Held]()

    def attempt() -> None:
        start.wait()
        results.append(lock(tmp_path).try_acquire())

    threads = [threading.Thread(target=attempt) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leases = [result for result in results if isinstance(result, Lease)]
    assert (len(leases), len(results)) == (1, 16)
    leases[0].release(DONE)


def test_exactly_one_of_many_threads_takes_over_from_a_dead_owner(tmp_path: Path) -> None:
    abandon(tmp_path, ended_owner())
    test_exactly_one_of_many_threads_acquires_a_free_lock(tmp_path)


def test_an_owner_of_this_host_that_has_ended_is_dead_at_once(tmp_path: Path) -> None:
    abandon(tmp_path, ended_owner())
    acquire(lock(tmp_path)).release(DONE)


def test_another_process_with_the_id_of_the_owner_is_not_the_owner() -> None:
    assert is_running(this_process({}))
    assert is_running(this_process({}).model_copy(update={"start_time": "1"})) is False


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_running(this_process({}).model_copy(update={"pid": child.pid, "start_time": ""})) is False
    child.wait()


@pytest.mark.parametrize("change", [{"boot_id": "another host"}, {"pid_namespace": "pid:[1]"}, {"boot_id": ""}])
def test_whether_a_process_of_another_host_or_container_runs_is_unknown(change: dict[str, str]) -> None:
    assert is_running(this_process({}).model_copy(update=change)) is None


def test_an_owner_of_another_host_is_dead_after_a_period_without_heartbeat(tmp_path: Path) -> None:
    """B14: flock works on few shared file systems, and there was no rule for dead owners."""
    abandon(tmp_path, ended_owner(boot_id="another host"))
    clock = Clock()
    waiter = lock(tmp_path, clock=clock)
    assert isinstance(waiter.try_acquire(), Held)
    clock.now += FAST.expiry_s - 1
    assert isinstance(waiter.try_acquire(), Held)
    clock.now += 1
    acquire(waiter).release(DONE)


def test_a_heartbeat_keeps_an_owner_of_another_host_alive(tmp_path: Path) -> None:
    abandon(tmp_path, ended_owner(boot_id="another host"))
    clock = Clock()
    waiter = lock(tmp_path, clock=clock)
    for count in range(5):
        (tmp_path / "x.lock" / "000001.beat").write_bytes(b"%020d" % (100 + count))
        assert isinstance(waiter.try_acquire(), Held)
        clock.now += FAST.expiry_s - 1


def test_the_clock_and_file_times_of_another_host_do_not_matter(tmp_path: Path) -> None:
    abandon(tmp_path, ended_owner(boot_id="another host", created="1970-01-01T00:00:00+00:00"))
    for file in (tmp_path / "x.lock").iterdir():
        os.utime(file, (0, 0))
    assert isinstance(lock(tmp_path).try_acquire(), Held)


def test_half_an_owner_record_expires(tmp_path: Path) -> None:
    (tmp_path / "x.lock").mkdir()
    (tmp_path / "x.lock" / "000001.owner").write_text('{"host": "no')
    clock = Clock()
    waiter = lock(tmp_path, clock=clock)
    held = waiter.try_acquire()
    assert isinstance(held, Held)
    assert not any(letter.isdigit() for letter in held.shown)
    clock.now += FAST.expiry_s
    acquire(waiter).release(DONE)


def test_a_holder_increases_its_heartbeat(tmp_path: Path) -> None:
    lease = acquire(lock(tmp_path))
    beat = tmp_path / "x.lock" / "000001.beat"
    seen = set[bytes]()
    while len(seen) < 3:
        seen.add(beat.read_bytes() if beat.exists() else b"")
    lease.release(DONE)


def test_a_paused_owner_finds_out_that_it_lost_the_lock(tmp_path: Path) -> None:
    paused = acquire(lock(tmp_path, ended_owner()))
    assert paused.is_current()
    successor = acquire(lock(tmp_path))
    assert not paused.is_current()
    assert successor.is_current()
    paused.release(Outcome(state="failed", error="lost"))
    assert isinstance(lock(tmp_path).try_acquire(), Held)
    successor.release(DONE)


def test_a_file_system_without_hard_links_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    lease = acquire(lock(tmp_path))
    assert isinstance(lock(tmp_path).try_acquire(), Held)
    lease.release(DONE)
    test_exactly_one_of_many_threads_acquires_a_free_lock(tmp_path)


def test_waiting_ends_with_the_outcome(tmp_path: Path) -> None:
    lease, waiter = acquire(lock(tmp_path)), lock(tmp_path)
    held = waiter.try_acquire()
    assert isinstance(held, Held)
    lease.release(Outcome(state="failed", error="a reason"))
    assert waiter.wait(held, deadline=1e9) == Outcome(state="failed", error="a reason")


def test_waiting_ends_when_the_owner_dies(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        owner = this_process({}).model_copy(update={"pid": child.pid, "start_time": ""})
        abandon(tmp_path, owner)
        waiter = lock(tmp_path)
        held = waiter.try_acquire()
        assert isinstance(held, Held)
        child.kill()
    assert waiter.wait(held, deadline=1e9) is None


def test_waiting_is_bounded(tmp_path: Path) -> None:
    lease, waiter = acquire(lock(tmp_path)), lock(tmp_path)
    held = waiter.try_acquire()
    assert isinstance(held, Held)
    with pytest.raises(RunError, match=rf"\b{FAST.max_wait_s:.0f} s .*--max-wait"):
        waiter.wait(held, deadline=0)
    lease.release(DONE)

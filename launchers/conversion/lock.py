"""A lock on a shared file system, without flock: a folder with one numbered entry for each acquisition.

    000001.owner     the process that holds or held the lock
    000001.beat      a counter that it increases while it holds the lock
    000001.outcome   how it ended

The lock is free if the entry with the highest number has an outcome, or a dead owner. It is acquired by creating the
next number exclusively; entries are never removed or used again. So exactly one process takes over from a dead owner,
and a process with an outdated view of the folder takes nothing from a live one.

An owner is dead if it runs on this host according to its record but not according to the kernel, or if its counter has
not changed during a whole expiry period of the observer's own monotonic clock. Clocks of hosts are never compared. An
owner that was only paused for that long finds a higher number when it continues, and discards its work.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rollyard.launchers.conversion.owner import Owner, is_running
from rollyard.records.errors import RunError
from rollyard.records.io.locked_files import sync_folder
from rollyard.records.types import Record


class LockSettings(Record):
    """Durations in seconds."""

    heartbeat_s: float = 10
    expiry_s: float = 120
    """An owner on another host counts as dead after this long without a heartbeat."""
    max_wait_s: float = 7200
    poll_s: float = 1


class Outcome(Record):
    """How an owner released the lock."""

    state: Literal["done", "failed", "interrupted"]
    """`failed`: another attempt would fail, too. `interrupted`: another process should try."""
    error: str = ""


@dataclass(frozen=True)
class Held:
    """An acquisition of the lock by another process."""

    number: int
    owner: Owner | None
    """None if its record is incomplete."""

    @property
    def shown(self) -> str:
        """The owner as shown in messages."""
        return self.owner.shown if self.owner else "a process that has not recorded its name"


class Lease:
    """The lock, held by this process."""

    def __init__(self, lock: SharedLock, number: int) -> None:
        self.number = number
        self._lock = lock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="conversion lock", daemon=True)
        self._thread.start()

    def is_current(self) -> bool:
        """Return False if another process has taken over, because this one was paused for too long."""
        return self._lock.highest() == self.number

    def release(self, outcome: Outcome) -> None:
        """Record the outcome and release the lock. If that fails, the lock expires."""
        self._stop.set()
        self._thread.join()
        with suppress(OSError):  # for example a full disk
            self._lock.write(self.number, "outcome", outcome.model_dump_json().encode())

    def _beat(self) -> None:
        file = self._lock.entry(self.number, "beat")
        count = 0
        while True:
            with suppress(OSError):
                # Overwritten in place: a full disk has room for that.
                fd = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
                try:
                    os.pwrite(fd, b"%020d" % count, 0)
                finally:
                    os.close(fd)
            count += 1
            if self._stop.wait(self._lock.settings.heartbeat_s):
                return


class SharedLock:
    """The lock in `folder`, which is created on the first acquisition."""

    def __init__(
        self, folder: Path, owner: Owner, settings: LockSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self._folder = folder
        self._owner = owner
        self._clock = clock
        self._beats: dict[int, tuple[bytes, float]] = {}

    def try_acquire(self) -> Lease | Held:
        """Acquire the lock, or return who holds it. Raises OSError if the folder cannot be written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            number = self.highest()
            if number and self.outcome(number) is None and not self._is_dead(number):
                return Held(number, self._owner_of(number))
            if self._create(number + 1):
                return Lease(self, number + 1)
            if self.highest() == number:  # a cached listing of the folder
                return Held(number + 1, None)

    def wait(self, held: Held, deadline: float) -> Outcome | None:
        """Wait until an acquisition has ended. Returns None if its owner died. Raises RunError at the deadline."""
        while True:
            if outcome := self.outcome(held.number):
                return outcome
            if self.highest() > held.number or self._is_dead(held.number):
                return self.outcome(held.number)  # it may have been written in between
            if self._clock() >= deadline:
                raise RunError(
                    f"waited {self.settings.max_wait_s:.0f} s for a conversion by {held.shown}, which still runs. Look "
                    "at the output of that job, or wait longer with --max-wait"
                )
            time.sleep(self.settings.poll_s)

    def highest(self) -> int:
        """Return the number of the last acquisition; 0 if there was none."""
        numbers = (
            name.partition(".")[0] for name in (path.name for path in self._folder.iterdir()) if name.endswith(".owner")
        )
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    def outcome(self, number: int) -> Outcome | None:
        """Return the outcome of an acquisition; None if there is none yet."""
        try:
            return Outcome.model_validate_json(self.entry(number, "outcome").read_bytes())
        except (OSError, ValidationError):
            return None

    def entry(self, number: int, kind: str) -> Path:
        """Return the path of a file of an acquisition."""
        return self._folder / f"{number:06}.{kind}"

    def write(self, number: int, kind: str, data: bytes) -> None:
        """Write a file of an acquisition atomically."""
        temporary = self._temporary(data)
        temporary.rename(self.entry(number, kind))

    def _create(self, number: int) -> bool:
        """Create an owner file with its content, and return whether this process did it."""
        target, data = self.entry(number, "owner"), self._owner.model_dump_json().encode()
        temporary = self._temporary(data)
        try:
            with suppress(FileExistsError):
                os.link(temporary, target)
                sync_folder(self._folder)
                return True
            # NFS can report that the file exists although this call has created it.
            return temporary.stat().st_nlink == 2
        except OSError:  # a file system without hard links; a reader of half a record waits until it expires
            try:
                fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                return False
            with os.fdopen(fd, "wb") as file:
                file.write(data)
            return True
        finally:
            temporary.unlink(missing_ok=True)

    def _temporary(self, data: bytes) -> Path:
        file = self._folder / f".{uuid.uuid4().hex}"
        try:
            with file.open("xb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
        except OSError:
            file.unlink(missing_ok=True)
            raise
        return file

    def _owner_of(self, number: int) -> Owner | None:
        try:
            return Owner.model_validate_json(self.entry(number, "owner").read_bytes())
        except (OSError, ValidationError):
            return None

    def _is_dead(self, number: int) -> bool:
        owner = self._owner_of(number)
        running = is_running(owner) if owner else None
        if running is not None:
            return not running
        try:
            beat = self.entry(number, "beat").read_bytes()
        except OSError:
            beat = b""
        before, since = self._beats.get(number, (None, 0.0))
        if before != beat:
            self._beats[number] = (beat, self._clock())
            return False
        return self._clock() - since >= self.settings.expiry_s

"""Converts a checkpoint at most once, however many processes ask for it at the same time.

A conversion is written to `NAME.tmp.N-…` next to its target, checked, synced, given its manifest and renamed: a process
that is killed at any instant leaves either a complete conversion or a temporary folder, which the next one removes.
"""

from __future__ import annotations

import errno
import re
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollyard.launchers.conversion.lock import Lease, LockSettings, Outcome, SharedLock
from rollyard.launchers.conversion.manifest import Contents, Manifest, sync_files, write_manifest
from rollyard.launchers.conversion.owner import Owner
from rollyard.launchers.conversion.source import CONVERTER_VERSION, Source
from rollyard.launchers.conversion.versions import Versions
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.locked_files import sync_folder

_FULL = (errno.ENOSPC, errno.EDQUOT)


class _LockLostError(Exception):
    """Another process took over, because this one was paused for longer than the expiry period."""


class Converter(Protocol):
    """Writes a checkpoint in Hugging Face format into an empty folder, and checks it. Raises RunError if it fails."""

    def __call__(self, source: Source, target: Path, report: Callable[[str], None]) -> Contents: ...


@dataclass
class CachedConversion:
    """The conversion of one source."""

    source: Source
    versions: Versions
    token: str
    """Not empty for a forced conversion."""
    owner: Owner
    settings: LockSettings
    converter: Converter
    report: Callable[[str], None]

    def obtain(self) -> Path:
        """Return the converted checkpoint; converts it if needed. Raises RunError or OperatorError if that fails."""
        if found := self.versions.current():
            self.report(f"Found cached HF checkpoint at: {found}")
            self.report("Using cached checkpoint, skipping conversion")
            return found
        self.versions.require_own()
        base = self.versions.base
        lock = SharedLock(base.with_name(f"{base.name}.lock"), self.owner, self.settings)
        deadline = time.monotonic() + self.settings.max_wait_s
        waited = False
        while True:
            lease = lock.try_acquire()
            if isinstance(lease, Lease):
                with suppress(_LockLostError):
                    return self._with_lock(lease)
                self.report("Another process took the conversion over, because this one was paused")
                continue
            if not waited:
                self.report("Another process is converting, waiting for completion...")
                self.report(f"It is {lease.shown}")
                waited = True
            outcome = lock.wait(lease, deadline)
            if found := self.versions.current():
                self.report("Conversion completed by another process")
                return found
            if outcome and outcome.state == "failed":
                raise RunError(f"the conversion by {lease.shown} failed: {outcome.error}")
            if outcome is None:
                self.report(f"The conversion by {lease.shown} ended without a result")

    def _with_lock(self, lease: Lease) -> Path:
        outcome = Outcome(state="interrupted")
        try:
            if found := self.versions.current():
                self.report("Another process completed conversion, using cached checkpoint")
            else:
                self.report("Acquired lock, converting DCP to HF format...")
                found = self._convert(lease)
                self.report(f"Successfully converted checkpoint to: {found}")
            outcome = Outcome(state="done")
            return found
        except (RunError, OperatorError) as error:
            outcome = Outcome(state="failed", error=str(error))
            raise
        except OSError as error:
            # Other errors of this host may not occur on the next one.
            outcome = Outcome(state="failed" if error.errno in _FULL else "interrupted", error=str(error))
            where = f" ({error.filename})" if error.filename else ""
            raise RunError(f"the conversion failed: {error.strerror or error}{where}") from error
        finally:
            lease.release(outcome)

    def _convert(self, lease: Lease) -> Path:
        base = self.versions.base
        self._remove_leftovers(lease.number)
        self._require_space(base.parent)
        folder = base.with_name(f"{base.name}.tmp.{lease.number}-{uuid.uuid4().hex[:8]}")
        try:
            folder.mkdir()
            contents = self.converter(self.source, folder, self.report)
            self.source.require_unchanged()
            write_manifest(folder, self._manifest(folder, contents))
            if not lease.is_current():
                raise _LockLostError
            return self._publish(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, folder: Path) -> Path:
        target = self.versions.next()
        try:
            folder.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise RunError(f"{target} appeared during the conversion; repeat the command") from error
        sync_folder(target.parent)
        return target

    def _manifest(self, folder: Path, contents: Contents) -> Manifest:
        return Manifest(
            key=self.source.key,
            token=self.token,
            converter_version=CONVERTER_VERSION,
            checkpoint=str(self.source.checkpoint),
            config=str(self.source.config),
            created=self.owner.created,
            host=self.owner.host,
            pid=self.owner.pid,
            job_id=self.owner.job_id,
            files=sync_files(folder),
            contents=contents,
        )

    def _require_space(self, folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if free < self.source.size:
            raise RunError(
                f"{folder} has {free:,} bytes left; the conversion needs about {self.source.size:,}. Free some space, "
                "or set LOG or --hf-ckpt-path to another disk"
            )

    def _remove_leftovers(self, number: int) -> None:
        """Remove the temporary folders of earlier owners, all of which have ended or lost the lock.

        They are renamed first, so that an owner that was only paused cannot publish a folder that is being removed.
        """
        base = self.versions.base
        name = re.compile(re.escape(base.name) + r"\.tmp\.([0-9]+)-[0-9a-f-]+")
        for folder in list(base.parent.iterdir()):
            if (found := name.fullmatch(folder.name)) and int(found[1]) < number:
                removed = folder.with_name(f"{base.name}.tmp.{found[1]}-{uuid.uuid4().hex[:8]}")
                with suppress(OSError):
                    folder.rename(removed)
                    shutil.rmtree(removed, ignore_errors=True)
                    self.report(f"Removed {folder}, which an interrupted conversion had left")

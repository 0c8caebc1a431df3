"""MergeTurn: lets one worker at a time merge, and keeps a worker whose turn is over from changing anything."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from rollyard.services.rollouts.shared.exclusive_files import create_exclusive
from rollyard.services.rollouts.shared.leases import Leases
from rollyard.services.rollouts.shared.owners import OwnerWatch
from rollyard.services.rollouts.shared.shared_paths import RoundPaths
from rollyard.services.rollouts.shared.shared_records import Owner


class MergeTurn:
    """The lease on the merge, as a block after the last one.

    The merge of generation g writes its files to the folder `merge-g` and then moves them into place. A worker that
    takes over the merge removes that folder first, so that an owner that was only paused has nothing left to move.
    """

    def __init__(self, paths: RoundPaths, block: int, owner: Owner, watch: OwnerWatch) -> None:
        self._paths = paths
        self._block = block
        self._owner = owner
        self._watch = watch
        self._leases = Leases(paths)
        self.waits_for: Owner | None = None
        """The worker whose turn it is, after `take` has returned None. None if it is unknown."""

    def take(self) -> Path | None:
        """Return the folder for this worker's merge, or None while it is another worker's turn. Raises OSError."""
        self.waits_for = None
        generation = self._leases.table().generations.get(self._block, 0)
        if generation:
            lease = self._leases.lease(self._block, generation)
            own = lease is not None and lease.owner.token == self._owner.token
            if not own and not self._watch.is_free(lease, self._leases.name(self._block, generation)):
                self.waits_for = lease.owner if lease else None
                return None
        if not self._leases.claim(self._block, generation + 1, self._owner):
            return None
        for earlier in range(1, generation + 1):
            self._revoke(self._folder(earlier))
        folder = self._folder(generation + 1)
        try:
            folder.mkdir()
        except FileExistsError:
            return None  # revoked before it was created
        return folder

    def _folder(self, generation: int) -> Path:
        return self._paths.folder / f"merge-{generation}"

    def _revoke(self, folder: Path) -> None:
        """Make sure that the owner of `folder` can neither create it nor move a file out of it."""
        while not create_exclusive(folder, b"revoked"):
            if folder.is_file():
                return
            with suppress(OSError):  # its owner may still be writing to it
                shutil.rmtree(folder)

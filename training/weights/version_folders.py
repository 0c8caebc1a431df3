"""VersionFolders: the weights of each version in a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.io.locked_files import sync_folder, sync_tree

_PARTIAL = ".partial"


class VersionFolders:
    """Folders in `root`, named after their versions. A folder never changes once it has its name, because engines that
    restart read it again.
    """

    def __init__(self, root: Path, *, keep: int) -> None:
        self._root = root.absolute()  # engines may have another working directory
        self._keep = keep

    def write(self, version: str, save: Callable[[Path], None]) -> Path:
        """Have `save` write the files of a version into an empty folder, and return that folder under its final name.

        Raises RunError if the version exists or the files cannot be written. What `save` raises is passed on.
        """
        folder, partial = self._root / version, self._root / f".{version}{_PARTIAL}"
        if folder.exists():
            raise RunError(
                f"{folder} already exists: each version needs its own name, because engines may be reading it"
            )
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save(partial)
            sync_tree(partial)
            partial.rename(folder)
            sync_folder(self._root)
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error.strerror}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return folder

    def prune(self, in_use: Collection[Path]) -> None:
        """Remove all versions except the newest `keep` and those in use, and what a killed trainer left behind."""
        if not self._root.is_dir():
            return
        found = [entry for entry in self._root.iterdir() if entry.is_dir() and not entry.is_symlink()]
        partial = [entry for entry in found if entry.name.endswith(_PARTIAL)]
        versions = sorted(set(found) - set(partial), key=lambda entry: (entry.stat().st_mtime_ns, entry.name))
        for folder in [*partial, *versions[: -self._keep]]:
            if folder not in in_use:
                shutil.rmtree(folder, ignore_errors=True)

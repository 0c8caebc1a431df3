"""Versions of one conversion: NAME, NAME-2, NAME-3, ... next to each other.

A published version is never renamed, changed or removed, because an engine may be loading it: engines open one shard
after another, so that even an atomic exchange of folders could mix two versions. A forced conversion becomes the next
version, and the highest valid version is the current one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rollyard.launchers.conversion.manifest import MANIFEST, Manifest, damage, read_manifest
from rollyard.records.errors import OperatorError


class Versions:
    """The versions that share a base path and a source key."""

    def __init__(
        self, base: Path, key: str, *, token: str = "", verify: bool = False, report: Callable[[str], None] = print
    ) -> None:
        self.base = base
        self._key = key
        self._token = token
        self._verify = verify
        self._report = report
        self._checked: dict[Path, str] = {}

    def current(self) -> Path | None:
        """Return the highest valid version; with a token, the highest that carries it."""
        for _, folder in sorted(self._folders(), reverse=True):
            manifest = read_manifest(folder)
            if manifest and self._is_wanted(manifest) and not self._damage(folder, manifest):
                return folder
        return None

    def next(self) -> Path:
        """Return the path of a new version."""
        if not any(self._folders()):
            return self.base
        return self.base.with_name(f"{self.base.name}-{max(number for number, _ in self._folders()) + 1}")

    def require_own(self) -> None:
        """Raise OperatorError if the base path holds something that this command did not write."""
        if not (self.base.exists() or self.base.is_symlink()) or _is_empty(self.base):
            return
        manifest = read_manifest(self.base)
        if manifest is None:
            raise OperatorError(
                f"{self.base} exists, but has no valid {MANIFEST}: it was not converted by this command, and will be "
                "neither used nor removed. Give another --hf-ckpt-path, or evaluate it as it is with --skip-conversion"
            )
        if manifest.key != self._key and not self._token:
            raise OperatorError(
                f"{self.base} holds a conversion of another checkpoint or config ({manifest.checkpoint}, converted "
                f"{manifest.created}). Give another --hf-ckpt-path; --force-conversion writes {self.next()}"
            )

    def _is_wanted(self, manifest: Manifest) -> bool:
        return manifest.key == self._key and (not self._token or manifest.token == self._token)

    def _damage(self, folder: Path, manifest: Manifest) -> str:
        found = damage(folder, manifest, verify=self._verify)
        if found and self._checked.get(folder) != found:
            self._report(f"{folder} is damaged and not used: {found}")
        self._checked[folder] = found
        return found

    def _folders(self) -> Iterator[tuple[int, Path]]:
        name = re.compile(re.escape(self.base.name) + r"(?:-([2-9]|[1-9][0-9]+))?")
        if self.base.parent.is_dir():
            for folder in self.base.parent.iterdir():
                if (found := name.fullmatch(folder.name)) and not _is_empty(folder):
                    yield int(found[1] or 1), folder


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())

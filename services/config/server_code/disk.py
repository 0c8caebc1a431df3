"""Detects files that changed on disk since servers loaded their code and the configs were read.

Files are polled, because network filesystems do not report changes made by other hosts. A poll calls `stat` for each
known file and folder; only files whose `stat` changed are read. A change is reported once no file has changed between
two polls, so that a half-written file or an unfinished `git checkout` is not reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.records.run_types import CodeSources, ServerCode
from rollyard.services.config.server_code.code_files import CODE, files_of, folders_of
from rollyard.services.config.server_code.file_digest import file_digest
from rollyard.services.config.server_code.source_scan import read_source

REMOVED = ""
"""Used in place of the digest of an absent file."""

_Stat = tuple[int, int, int, int]


@dataclass(frozen=True)
class DiskChanges:
    """The files whose content differs from what the run uses."""

    servers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Server name -> file name, as in `ServerCode.files` -> the file's current digest."""
    configs: frozenset[Path] = frozenset()


class CodeOnDisk:
    """Watches the files that affect the servers of a run."""

    def __init__(self, configs: Mapping[Path, str]) -> None:
        """`configs`: digests of the config files at the time they were read."""
        self._configs = configs
        self._servers: dict[str, tuple[ServerCode, CodeSources]] = {}
        self._folders: dict[Path, _Folder] = {}
        self._digests: dict[Path, tuple[_Stat, str]] = {}
        self._seen: dict[Path, _Stat | None] = {}
        self._settled = False

    def follow(self, server: str, code: ServerCode, sources: CodeSources) -> None:
        """From now on, compare the files of `server` with this code."""
        if self._servers.get(server) != (code, sources):
            self._servers[server] = code, sources
            self._settled = False

    def poll(self) -> DiskChanges | None:
        """Return the current differences; None if there are no new ones, or if files are still changing."""
        try:
            seen = {path: _stat(path) for path in {*self._configs, *self._paths()}}
        except OSError:  # a folder was removed while it was being listed
            self._settled = False
            return None
        if seen != self._seen:
            self._seen, self._settled = seen, False
            return None
        if self._settled:
            return None
        self._settled = True
        return DiskChanges(
            {name: changed for name, own in self._servers.items() if (changed := self._changed_files(*own))},
            frozenset(path for path, digest in self._configs.items() if self._digest(path, digest) != digest),
        )

    def _paths(self) -> set[Path]:
        found: set[Path] = set()
        for _, sources in self._servers.values():
            found |= {Path(path) for path in sources.paths.values()}
            for root in map(Path, sources.folders.values()):
                found.update(self._folders.setdefault(root, _Folder(root)).list())
        return found

    def _changed_files(self, code: ServerCode, sources: CodeSources) -> dict[str, str]:
        changed: dict[str, str] = {}
        for name, location in sources.paths.items():
            loaded = code.files[name]
            if (now := self._digest(Path(location), loaded)) != loaded:
                changed[name] = now
        known = set(map(Path, sources.paths.values()))
        for name, folder in sources.folders.items():
            root = Path(folder)
            for path in self._folders[root].files:
                # A script that the server did not load counts only if a file that it loaded changes, too.
                if path not in known and not read_source(path, "").is_script:
                    changed[str(Path(name) / path.relative_to(root))] = self._digest(path, REMOVED)
        return changed

    def _digest(self, path: Path, absent: str) -> str:
        """Return the file's digest; for a missing file REMOVED, or `absent` if it was unreadable before as well."""
        stat = self._seen[path]
        if stat is None:
            return absent if absent.startswith("unreadable") else REMOVED
        known = self._digests.get(path)
        if known is None or known[0] != stat:
            known = self._digests[path] = stat, file_digest(path)
        return known[1]


class _Folder:
    """The code files in a folder. The list is updated when files are added or removed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._times: dict[Path, _Stat | None] = {}
        self.files: tuple[Path, ...] = ()

    def list(self) -> tuple[Path, ...]:
        """Return the code files. Raises OSError if folders are removed at the same time."""
        if not self._times or any(_stat(folder) != seen for folder, seen in self._times.items()):
            self._times, times = {}, {self._root: _stat(self._root)}
            if self._root.is_dir():
                times = {folder: _stat(folder) for folder in folders_of(self._root)}
            self.files = (
                tuple(path for path in files_of(self._root) if path.suffix in CODE) if times[self._root] else ()
            )
            self._times = times
        return self.files


def _stat(path: Path) -> _Stat | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns

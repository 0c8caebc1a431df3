"""CodeWatcher: reports when code or configs on disk differ from those in use, and can reload servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path

from rollyard.records.errors import OperatorError, RunError
from rollyard.services.config.server_code.disk import REMOVED, CodeOnDisk, DiskChanges
from rollyard.services.head.registry import ServerRegistry

log = logging.getLogger(__name__)

INTERVAL_S = 0.5
PARALLEL = 4
"""Maximum number of servers that are reloaded concurrently. Each takes at least a second of CPU time."""
_MAX_FILES = 6

Reload = Callable[[str], Awaitable[None]]
"""Restarts the named server. Raises OperatorError or RunError if it cannot start with the new code."""


class CodeWatcher:
    """Checks the files of the servers on this host every `INTERVAL_S` seconds."""

    def __init__(
        self,
        registry: ServerRegistry,
        configs: Mapping[Path, str],
        servers: Collection[str],
        *,
        print_line: Callable[[str], None],
        remedy: str,
        reload: Reload | None = None,
    ) -> None:
        """`configs`: digests of the config files as they were read; `servers`: names of the servers to watch.

        `remedy`: advice on how to run the changed code; it ends messages about changed files.
        """
        self._registry = registry
        self._servers = servers
        self._disk = CodeOnDisk(configs)
        self._print_line = print_line
        self._remedy = remedy
        self._reload_server = reload
        self._reported: dict[str, frozenset[str]] = {}
        """Server name -> changed files that have been reported."""
        self._reported_configs: frozenset[Path] = frozenset()
        self._tried: dict[str, Mapping[str, str]] = {}
        """Server name -> the changes (file -> digest) that triggered its last reload attempt."""
        self._refused: set[str] = set()
        """Servers that could not start with the code on disk."""

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                await self.check()
        except Exception as error:
            log.warning("no longer watching for code changes", exc_info=error)
            self._print_line(f"ng_run no longer detects changed code ({type(error).__name__}: {error})")

    async def check(self) -> None:
        """Check the files once, then report the changes or reload the servers."""
        for name in self._servers:
            if name in self._registry.code and name in self._registry.sources:
                self._disk.follow(name, self._registry.code[name], self._registry.sources[name])
        changes = await asyncio.to_thread(self._disk.poll)
        if changes is None:
            return
        self._registry.changed_files = {name: sorted(files) for name, files in changes.servers.items()}
        self._report_configs(changes.configs)
        if self._reload_server is None:
            self._report(changes)
        else:
            await self._reload(changes, self._reload_server)

    def _report(self, changes: DiskChanges) -> None:
        new: dict[str, str] = {}
        back: set[str] = set()
        for name in {*self._reported, *changes.servers}:
            now = changes.servers.get(name, {})
            before = self._reported.get(name, frozenset())
            new |= {file: digest for file, digest in now.items() if file not in before}
            back |= before - now.keys()
        self._reported = {name: frozenset(files) for name, files in changes.servers.items()}
        if new:
            self._print_line(f"{_describe(new, self._loaded_files())}; {self._remedy}")
        if back:
            differ = "differs" if len(back) == 1 else "differ"
            self._print_line(f"{_join(back)} no longer {differ} from what the servers loaded")

    def _report_configs(self, changed: frozenset[Path]) -> None:
        if new := changed - self._reported_configs:
            has = "has" if len(new) == 1 else "have"
            self._print_line(
                f"{_join(map(_short_path, new))} {has} changed; configs are only read at startup: "
                "restart ng_run to apply the changes"
            )
        if back := self._reported_configs - changed:
            differ = "differs" if len(back) == 1 else "differ"
            self._print_line(f"{_join(map(_short_path, back))} no longer {differ} from what was read at startup")
        self._reported_configs = changed

    def _loaded_files(self) -> set[str]:
        return {
            file for name in self._servers if name in self._registry.code for file in self._registry.code[name].files
        }

    async def _reload(self, changes: DiskChanges, reload: Reload) -> None:
        limit = asyncio.Semaphore(PARALLEL)

        async def reload_server(name: str) -> None:
            async with limit:
                self._registry.reloading.add(name)
                try:
                    await reload(name)
                    self._refused.discard(name)
                except (OperatorError, RunError) as error:
                    self._registry.reloading.discard(name)
                    self._refused.add(name)
                    why = str(error).removeprefix(f"{name}: ")
                    running = "; its old code keeps running" if self._registry.directory().servers[name] else ""
                    self._print_line(f"{name} cannot start with the changed code: {why}{running}")

        for name in self._tried.keys() - changes.servers.keys():
            del self._tried[name]
            if name in self._refused:
                self._refused.discard(name)
                self._print_line(f"{name} runs the code on disk again")
        changed = {name: files for name, files in changes.servers.items() if self._tried.get(name) != files}
        if not changed:
            return
        self._tried |= changed
        files = {file: digest for own in changed.values() for file, digest in own.items()}
        self._print_line(f"{_describe(files, self._loaded_files())}; reloading {_join(changed)}")
        await asyncio.gather(*(reload_server(name) for name in changed))


def _describe(files: Mapping[str, str], loaded: Collection[str]) -> str:
    """Describe the changes. `loaded`: the files that existed when the servers started."""
    removed = {name for name, digest in files.items() if digest == REMOVED}
    added = files.keys() - removed - set(loaded)
    changed = files.keys() - removed - added
    parts = [
        f"{_join(names)} {one if len(names) == 1 else many}"
        for names, one, many in (
            (changed, "has changed", "have changed"),
            (added, "was added", "were added"),
            (removed, "was removed", "were removed"),
        )
        if names
    ]
    return ", ".join(parts)


def _join(names: Iterable[str]) -> str:
    ordered = sorted(names)
    shown = ordered[:_MAX_FILES]
    more = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _short_path(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)

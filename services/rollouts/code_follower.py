"""CodeFollower: stops or continues a running collection when a server restarts with different code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from rollyard.records.errors import RunError
from rollyard.records.rollouts.code_history import difference
from rollyard.records.run_types import Directory, ServerCode
from rollyard.services.head.client import Registry
from rollyard.services.rollouts.collector import Collector
from rollyard.services.rollouts.store import RolloutStore

RELOAD_S = 60.0
"""How long a new collection waits for servers that are reloading. It then starts, and its calls wait for them."""
_POLL_S = 0.2


async def wait_for_reload(
    registry_client: Registry, directory: Directory, servers: Set[str], *, print_line: Callable[[str], None]
) -> Directory:
    """Wait until none of `servers` is reloading, so that a new collection uses the new code. Return the directory."""
    for number in range(round(RELOAD_S / _POLL_S)):
        if not (reloading := servers & set(directory.reloading)):
            break
        if number == 0:
            print_line(f"waiting for {', '.join(sorted(reloading))}: ng_run reloads changed code")
        await asyncio.sleep(_POLL_S)
        directory = await registry_client.directory()
    return directory


def stale_code_notes(directory: Directory, servers: Set[str]) -> list[str]:
    """Return a note for each of `servers` that runs older code than the code on disk."""
    return [
        f"note: {name} runs older code than is on disk ({', '.join(files)})"
        for name, files in sorted(directory.changed_files.items())
        if name in servers
    ]


class CodeFollower:
    """Checks the head's directory for code changes in the servers that a collection uses."""

    def __init__(
        self,
        registry_client: Registry,
        collector: Collector,
        store: RolloutStore,
        *,
        accept: bool,
        print_line: Callable[[str], None],
    ) -> None:
        """`accept`: continue with changed code, mark the rows, and record both versions."""
        self._registry_client = registry_client
        self._collector = collector
        self._store = store
        self._accept = accept
        self._print_line = print_line

    @property
    def digests(self) -> dict[str, str]:
        """Server name -> digest of the code that new rows are marked with."""
        return {name: code.digest for name, code in self._store.code.items()}

    async def follow(self) -> bool:
        """If code has changed, stop the collection or continue with the new code; return True if it continues.

        The head omits a reloaded server from its directory until the collection has reported the new code, so that
        no row from the new code is marked with the old version. Raises Failure if the head does not respond.
        """
        directory = await self._registry_client.directory()
        for server, changed in directory.changed_code.items():
            self._collector.stop(
                f"{server} was restarted with different code ({changed}), which its run does not allow: restore the "
                "code and repeat the command, or restart ng_run and add --accept-changed-code"
            )
        if not self._changed(directory):
            return False
        known, now = self._store.code, await self._registry_client.code()
        code = {name: now.get(name, old) for name, old in known.items()}
        differences_text = ", ".join(
            f"{name}: {difference(known[name], code[name])}" for name in self._changed_in(code)
        )
        if not self._accept:
            self._collector.stop(
                f"ng_run reloaded servers with different code ({differences_text}): repeat the command with "
                "--accept-changed-code to continue with the new code and mark its rows, or with "
                "--overwrite to start over"
            )
            return False
        try:
            self._store.set_code(code)
        except RunError as error:
            self._collector.stop(str(error))
            return False
        self._print_line(
            f"ng_run reloaded servers with different code ({differences_text}): new rows are marked with _ng_code"
        )
        return True

    def _changed(self, directory: Directory) -> bool:
        return any(directory.code.get(name, old.digest) != old.digest for name, old in self._store.code.items())

    def _changed_in(self, code: dict[str, ServerCode]) -> list[str]:
        return [name for name, old in self._store.code.items() if code[name].digest != old.digest]

"""CodeFollower: what a running collection does when a server comes back with other code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from rollyard.services.config.server_code.code_history import difference
from rollyard.services.errors import RunError
from rollyard.services.head.client import RegistryClient
from rollyard.services.rollouts.collector import Collector
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.types import Directory, ServerCode

RELOAD_S = 60.0
"""How long a collection waits for servers that are being reloaded; then it starts, and its calls wait for them."""
_AGAIN_S = 0.2


async def until_reloaded(
    link: RegistryClient, directory: Directory, servers: Set[str], *, say: Callable[[str], None]
) -> Directory:
    """The directory once none of `servers` is being reloaded: rows of a new collection are then of the new code."""
    for number in range(round(RELOAD_S / _AGAIN_S)):
        if not (reloading := servers & set(directory.reloading)):
            break
        if number == 0:
            say(f"waiting for {', '.join(sorted(reloading))}: ng_run reloads changed code")
        await asyncio.sleep(_AGAIN_S)
        directory = await link.directory()
    return directory


def older_code(directory: Directory, servers: Set[str]) -> list[str]:
    """A note for each of `servers` whose code on disk is newer than what it runs."""
    return [
        f"note: {name} runs older code than is on disk ({', '.join(files)})"
        for name, files in sorted(directory.changed_files.items())
        if name in servers
    ]


class CodeFollower:
    """Compares the code of the servers that a collection reaches with the head's directory."""

    def __init__(
        self,
        link: RegistryClient,
        collector: Collector,
        store: RolloutStore,
        *,
        accept: bool,
        say: Callable[[str], None],
    ) -> None:
        """`accept`: go on with changed code, mark the rows, and record both versions."""
        self._link = link
        self._collector = collector
        self._store = store
        self._accept = accept
        self._say = say

    @property
    def digests(self) -> dict[str, str]:
        """Server name -> digest of the code by which rows are marked now."""
        return {name: code.digest for name, code in self._store.code.items()}

    async def look(self) -> bool:
        """Act on what changed; True if the collection goes on with other code now. Raises Failure.

        The head keeps a reloaded server out of its directory until the collection has reported the new code, so that
        no row of the new code is marked as one of the old.
        """
        directory = await self._link.directory()
        for server, changed in directory.changed_code.items():
            self._collector.stop(
                f"{server} was started again with other code ({changed}), which its run refuses: restore the "
                "code and repeat the command, or restart ng_run and add +accept_changed_code=true"
            )
        if not self._changed(directory):
            return False
        known, now = self._store.code, await self._link.code()
        code = {name: now.get(name, old) for name, old in known.items()}
        what = ", ".join(f"{name}: {difference(known[name], code[name])}" for name in self._changed_in(code))
        if not self._accept:
            self._collector.stop(
                f"ng_run reloaded servers with other code ({what}): repeat the command with +accept_changed_code=true "
                "to go on with the new code and mark its rows, or with +overwrite=true to start over"
            )
            return False
        try:
            self._store.take_code(code)
        except RunError as error:
            self._collector.stop(str(error))
            return False
        self._say(f"ng_run reloaded servers with other code ({what}): rows from now on carry _ng_code")
        return True

    def _changed(self, directory: Directory) -> bool:
        return any(directory.code.get(name, old.digest) != old.digest for name, old in self._store.code.items())

    def _changed_in(self, code: dict[str, ServerCode]) -> list[str]:
        return [name for name, old in self._store.code.items() if code[name].digest != old.digest]

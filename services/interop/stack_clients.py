"""Creates the clients of a running stack, which may be another project's."""

from __future__ import annotations

from collections.abc import Callable

from rollyard.records.run_types import Directory, HeadFile, Keys
from rollyard.services.head.client import Registry, RegistryClient
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym.head import NemoGymHead
from rollyard.services.rollouts.collection import StackClients


def clients_of(
    head: HeadFile,
    transport: HttpTransport,
    lag: LoopLag,
    on_directory: Callable[[Directory], None] = lambda directory: None,
) -> StackClients:
    """Return clients for the stack of `head`. `on_directory` is called with each directory that they fetch."""
    keys = Keys(run_id=head.run_id, secret="", token=head.token)
    registry: Registry
    if head.stack == "nemo_gym":
        registry = NemoGymHead(transport, head.url)
    else:
        registry = RegistryClient(transport, head.url, keys)

    async def fetch() -> Directory:
        directory = await registry.directory()
        on_directory(directory)
        return directory

    return StackClients(ServerClient(transport, keys, AddressBook(fetch), clock=lag.now), registry)

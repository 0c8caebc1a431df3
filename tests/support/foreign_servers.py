"""Servers of other frameworks in this process: plain apps that know nothing of Rollyard."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rollyard.agents.base import Agent
from rollyard.records.run_types import Directory, Keys
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient
from rollyard.services.http.request import ASGIApp
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context
from tests.support.in_process import KEYS, InProcessServers, Script, agent

TOKEN_KEYS = Keys(run_id="test", secret="a secret of this test", token="run-token")


@contextlib.asynccontextmanager
async def foreign_environment(
    app: ASGIApp | str,
    script: Script,
    kind: type[Agent[Any]],
    *,
    keys: Keys = KEYS,
    others: Mapping[str, ASGIApp] | None = None,
    **settings: Any,
) -> AsyncIterator[InProcessServers]:
    """Start an agent of `kind` between the scripted model and `app`, a foreign environment, or the URL of one.

    `others` are further apps by their base URL.
    """
    transport = LocalTransport(HttpTransport())
    environment = app if isinstance(app, str) else "http://environment:1"
    names = ("environment", "model", "agent")

    async def directory() -> Directory:
        urls = {**{name: [f"http://{name}:1"] for name in names}, "environment": [environment]}
        foreign = {environment: "environment"}
        return Directory(run_id=keys.run_id, servers=urls, families={}, settings={}, foreign=foreign)

    client = ServerClient(transport, keys, AddressBook(directory), RetryPolicy(wait_s=0.2))
    model = script.model(Context("model", keys, client))
    player = agent(kind, **settings)(Context("agent", keys, client))
    if not isinstance(app, str):
        transport.mount(environment, app)
    transport.mount("http://model:1", model)
    transport.mount("http://agent:1", player)
    for url, other in (others or {}).items():
        transport.mount(url, other)
    try:
        yield InProcessServers(client, {"model": model, "agent": player}, transport)
    finally:
        await player.stop()
        await transport.close()

"""Serves environments over OpenEnv or ORS in this process, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI

from rollyard.services.http.listener import bind
from rollyard.services.interop.environment import ServedEnvironment, TaskList, open_environment
from rollyard.services.interop.openenv import openenv_app
from rollyard.services.interop.ors import ors_app
from rollyard.services.interop.served_app import listening_to_clients
from rollyard.services.runtime.stack import Stack
from tests.support.stacks import colocated, load_config
from tests.support.waiting import deadline_s

MakeApp = Callable[[ServedEnvironment], FastAPI]


def openenv(environment: ServedEnvironment) -> FastAPI:
    return openenv_app(environment, max_sessions=5000, idle_s=600.0)


def openenv_of_first_task(environment: ServedEnvironment) -> FastAPI:
    """Serve the first example only, because MCP has no reset, and its episodes are for a random task."""
    return openenv(replace(environment, tasks=TaskList(environment.tasks.rows[:1])))


def ors(environment: ServedEnvironment) -> FastAPI:
    return ors_app(environment, version="1", max_sessions=5000, idle_s=600.0)


@dataclass(frozen=True)
class Served:
    url: str
    http: aiohttp.ClientSession
    environment: ServedEnvironment
    stack: Stack
    app: FastAPI

    async def open_sessions(self) -> int:
        response = await self.stack.client.get(self.environment.server, "/metrics", deadline_s())
        lines = response.body.decode().splitlines()
        return int(float(next(line for line in lines if line.startswith("rollyard_sessions ")).split()[1]))

    async def until_closed(self) -> None:
        """Wait until the environment has no open episode."""
        async with asyncio.timeout(deadline_s()):
            while await self.open_sessions():
                await asyncio.sleep(0.02)

    async def post(self, path: str, body: Any, session_id: str = "") -> tuple[int, Any]:
        headers = {"x-session-id": session_id} if session_id else {}
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await response.json(content_type=None)


@contextlib.asynccontextmanager
async def served(folder: str, make: MakeApp, tmp_path: Path, **settings: Any) -> AsyncIterator[Served]:
    node: Mapping[str, Any] = {folder: {"resources_servers": {folder: {"entrypoint": "app.py", **settings}}}}
    config = load_config(config=node, tmp_path=tmp_path)
    async with colocated(config, tmp_path) as stack:
        environment = await open_environment(stack.client, None, None, None, 60.0)
        app = make(environment)
        sock = bind("127.0.0.1", 0)
        async with listening_to_clients(app, sock, "127.0.0.1", None), aiohttp.ClientSession() as http:
            yield Served(f"http://127.0.0.1:{sock.getsockname()[1]}", http, environment, stack, app)


def served_once(folder: str, make: MakeApp, **settings: Any) -> Any:
    """A fixture: `served` for all tests of a module."""

    @pytest.fixture(scope="module")
    async def found(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
        async with served(folder, make, tmp_path_factory.mktemp(folder), **settings) as running:
            yield running

    return found

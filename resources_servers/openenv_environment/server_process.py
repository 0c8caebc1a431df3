"""The OpenEnv server that episodes use: one that runs already, or a container that is started with this server."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.resources_servers.openenv_environment.action_schema import ActionSchema
from rollyard.resources_servers.openenv_environment.settings import OpenEnvSettings

ASK_S = 10.0
_SCHEMES = {"ws://": "http://", "wss://": "https://"}


@dataclass(frozen=True)
class OpenEnvServer:
    """A reachable server and what it said about its actions."""

    url: str
    http: aiohttp.ClientSession
    actions: ActionSchema


@contextlib.asynccontextmanager
async def openenv_server(settings: OpenEnvSettings) -> AsyncIterator[OpenEnvServer]:
    """Yield the server, once it has told its schema. Raises OperatorError if it is a different one, and
    Failure unreachable if it does not respond.
    """
    headers = {"authorization": f"Bearer {settings.token}"} if settings.token else {}
    connector = aiohttp.TCPConnector(limit=0)  # one connection per episode; `max_sessions` limits them
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, headers=headers))
        url = await stack.enter_async_context(_container(settings)) if settings.url is None else settings.url
        for scheme, plain in _SCHEMES.items():
            url = plain + url.removeprefix(scheme) if url.startswith(scheme) else url
        url = url.rstrip("/").removesuffix("/ws")
        yield OpenEnvServer(url, http, ActionSchema(await _action_schema(http, url, settings)))


async def _action_schema(http: aiohttp.ClientSession, url: str, settings: OpenEnvSettings) -> Any:
    """Return the schema of actions; waits for a server that is starting."""
    problem = "no answer"
    try:
        async with asyncio.timeout(settings.start_wait_s):
            while True:
                try:
                    timeout = aiohttp.ClientTimeout(total=ASK_S)
                    async with http.get(f"{url}/schema", timeout=timeout) as response:
                        if response.status == 200:
                            answer = await response.json(content_type=None)
                            break
                        problem = f"status {response.status}"
                        if response.status < 500:
                            raise _no_server(url, f"GET /schema has {problem}")
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    problem = str(error) or type(error).__name__
                await asyncio.sleep(0.2)
    except TimeoutError as error:
        # Not an OperatorError: the check of a config accepts a server that is not up yet.
        detail = f"there is no OpenEnv server at {url}: {problem}, for {settings.start_wait_s:g} s (start_wait_s)"
        raise Failure(FailureKind.UNREACHABLE, detail) from error
    action = answer.get("action") if isinstance(answer, dict) else None
    if not isinstance(action, dict):
        raise _no_server(url, f"GET /schema answered {answer!r:.100}, without the schema of an action")
    return action


def _no_server(url: str, found: str) -> OperatorError:
    return OperatorError(f"there is no OpenEnv server at {url}: {found}. Start it first, or correct `url`")


@contextlib.asynccontextmanager
async def _container(settings: OpenEnvSettings) -> AsyncIterator[str]:
    """Start the image and yield the address of its server; stop it at the end."""
    if shutil.which(settings.docker) is None:
        raise OperatorError(
            f"image {settings.image} needs the command {settings.docker!r}, which is not installed. Install Docker, or "
            "start the environment's server elsewhere and set `url`"
        )
    published = f"127.0.0.1:0:{settings.image_port}"
    container = await _docker(settings, "run", "--detach", "--rm", "--publish", published, str(settings.image))
    try:
        addresses = (await _docker(settings, "port", container, str(settings.image_port))).splitlines()
        yield f"http://{addresses[0].strip()}"
    finally:
        await _docker(settings, "stop", "--time", "5", container)


async def _docker(settings: OpenEnvSettings, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        settings.docker, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        said = errors.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise OperatorError(f"{settings.docker} {arguments[0]} failed for image {settings.image}: {said[-1]}")
    return output.decode().strip()

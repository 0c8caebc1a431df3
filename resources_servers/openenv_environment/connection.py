"""One WebSocket connection to an OpenEnv server, which is one episode there."""

from __future__ import annotations

import asyncio

import aiohttp

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.openenv_environment.settings import OpenEnvSettings
from rollyard.services.responses.lenient_json import loads

WORDS = frozenset({"VALIDATION_ERROR", "EXECUTION_ERROR", "INVALID_JSON"})
"""Errors that an action can cause. Their message is for the model; a failure would buy the action a second try."""


class RejectedMessage(Exception):
    """The server answered a message with an error that the message may have caused."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class StepTimeout(Exception):
    """The server did not answer in time. The connection is closed: a late answer would be taken for the next one."""


class Connection:
    """Sends messages and reads their answers, one at a time."""

    def __init__(self, http: aiohttp.ClientSession, url: str, settings: OpenEnvSettings) -> None:
        self._http = http
        self._url = url
        self._settings = settings
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self) -> None:
        """Connect. Raises Failure unreachable or timeout."""
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                size = self._settings.max_message_mb * 1024 * 1024
                self._socket = await self._http.ws_connect(self._url + "/ws", max_msg_size=size)
        except TimeoutError as error:
            raise self._failure(FailureKind.TIMEOUT, "did not accept a connection in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(FailureKind.UNREACHABLE, f"cannot be reached: {error}") from error

    async def ask(self, kind: str, data: Json | None = None) -> Json:
        """Send a message and return the `data` of its answer.

        Raises RejectedMessage, StepTimeout, or Failure if the server fails or the connection is lost.
        """
        if self._socket is None or self._socket.closed:
            raise self._failure(FailureKind.CONNECTION_LOST, "has closed the connection")
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                await self._socket.send_json({"type": kind} if data is None else {"type": kind, "data": data})
                message = await self._socket.receive()
        except TimeoutError as error:
            await self.close()
            raise StepTimeout(f"no answer within {self._settings.step_timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(FailureKind.CONNECTION_LOST, f"lost the connection: {error}") from error
        if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            raise self._failure(FailureKind.CONNECTION_LOST, f"closed the connection ({message.type.name})")
        return self._data(message.data)

    async def close(self) -> None:
        """Close the connection, which ends the episode there."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    def _data(self, text: str | bytes) -> Json:
        try:
            answer = loads(text.encode("utf-8", "replace") if isinstance(text, str) else text)
        except ValueError as error:
            detail = f"sent a message that is not JSON: {str(text)[:100]!r}"
            raise self._failure(FailureKind.MALFORMED_ANSWER, detail) from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            raise self._failure(FailureKind.MALFORMED_ANSWER, f"sent {answer!r:.100}; expected an object with data")
        if answer.get("type") != "error":
            return data
        code, words = str(data.get("code")), str(data.get("message"))
        if code in WORDS:
            more = f" {data['errors']}" if data.get("errors") else ""
            raise RejectedMessage(code, f"{words}{more}"[:2000])
        kind = FailureKind.OVERLOADED if code == "CAPACITY_REACHED" else FailureKind.SERVER_ERROR
        raise self._failure(kind, f"reported {code}: {words}")

    def _failure(self, kind: FailureKind, what: str) -> Failure:
        return Failure(kind, f"the OpenEnv server at {self._url} {what}")

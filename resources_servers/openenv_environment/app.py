"""Plays the environments of an OpenEnv server. One episode is one WebSocket connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import aiohttp
from pydantic import Field, model_validator

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.rewards import VerdictField
from rollyard.records.types import MAX_REWARD, RESERVED_PATHS, Json, is_number
from rollyard.resources_servers.base import (
    BadTask,
    EnvironmentSettings,
    InvalidToolCall,
    ToolResult,
    Turn,
    Verdict,
    Verification,
    serve,
)
from rollyard.resources_servers.tools import EpisodeTools
from rollyard.services.responses.response_validity import as_text, loads


class OpenEnvSettings(EnvironmentSettings):
    url: str | None = Field(default=None, pattern=r"^(http|https|ws|wss)://")
    """Address of a running OpenEnv server, such as http://127.0.0.1:8000. Set this or `image`."""
    image: str | None = None
    """Docker image of an OpenEnv server, which is started with this server and stopped with it."""
    docker: str = "docker"
    """Command that runs `image`: docker, or a program with the same options, such as podman."""
    image_port: int = Field(default=8000, ge=1, le=65535)
    """Port on which the server in the image listens."""
    token: str | None = None
    """Token that the server requires, sent as Authorization: Bearer."""
    start_wait_s: float = Field(default=10.0, gt=0)
    """How long to wait for the server while this one starts. An image that starts slowly needs more."""
    step_timeout_s: float = Field(default=45.0, gt=0)
    """How long a reset or step may take. Must be below the agent's `tool_timeout_s`."""
    timeout: Literal["end", "failure"] = "end"
    """What a step that exceeds its time means. `end`: the episode is over, with the rewards so far, because the model's
    action may be the cause. `failure`: the rollout failed and is tried again."""
    reward: Literal["sum", "last"] = "sum"
    """How the steps' rewards become the episode's: their sum, or the last one that is a number."""
    tool_name: str = Field(default="act", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
    """Name of the tool that takes an action. Environments with MCP tools offer those instead."""
    text_field: str | None = None
    """Field of the action that holds the model's message, in turn-based mode; default: its only required string."""
    observation_field: str | None = None
    """Field of the observation that the model reads; default: the whole observation as JSON."""
    max_message_mb: int = Field(default=16, ge=1)
    """Maximum size of a message of the server."""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is None) == (self.image is None):
            found = "both url and image are set" if self.url else "neither url nor image is set"
            raise ValueError(f"{found}; set exactly one of them")
        return self


WORDS = frozenset({"VALIDATION_ERROR", "EXECUTION_ERROR", "INVALID_JSON"})
"""Errors that an action can cause. Their message is for the model; a failure would buy the action a second try."""


class RejectedMessage(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class StepTimeout(Exception):
    """The server did not answer in time. The connection is closed: a late answer would be taken for the next one."""


class OpenEnvConnection:
    def __init__(self, http: aiohttp.ClientSession, url: str, settings: OpenEnvSettings) -> None:
        self._http = http
        self._url = url
        self._settings = settings
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self) -> None:
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                size = self._settings.max_message_mb * 1024 * 1024
                self._socket = await self._http.ws_connect(self._url + "/ws", max_msg_size=size)
        except TimeoutError as error:
            raise self._failure(FailureKind.TIMEOUT, "did not accept a connection in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(FailureKind.UNREACHABLE, f"cannot be reached: {error}") from error

    async def ask(self, kind: str, data: Json | None = None) -> Json:
        """Return the `data` of the answer. Raises RejectedMessage, StepTimeout, or Failure if the server fails."""
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


_REMEDY = "Start it first, or correct `url`"


@dataclass(frozen=True)
class OpenEnvServer:
    url: str
    http: aiohttp.ClientSession
    actions: ActionSchema


@contextlib.asynccontextmanager
async def openenv_server(settings: OpenEnvSettings) -> AsyncIterator[OpenEnvServer]:
    """Yield the server. Raises OperatorError for a server of another kind, Failure if it does not respond."""
    headers = {"authorization": f"Bearer {settings.token}"} if settings.token else {}
    connector = aiohttp.TCPConnector(limit=0)  # one connection per episode; `max_sessions` limits them
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, headers=headers))
        url = await stack.enter_async_context(_container(settings)) if settings.url is None else settings.url
        url = re.sub("^ws(?=s?://)", "http", url).rstrip("/").removesuffix("/ws")
        yield OpenEnvServer(url, http, ActionSchema(await _action_schema(http, url, settings)))


async def _action_schema(http: aiohttp.ClientSession, url: str, settings: OpenEnvSettings) -> Any:
    """Return the schema of actions; waits for a server that is starting."""
    problem, timeout = "no answer", aiohttp.ClientTimeout(total=10.0)
    no_server = f"there is no OpenEnv server at {url}: "
    try:
        async with asyncio.timeout(settings.start_wait_s):
            while True:
                try:
                    async with http.get(f"{url}/schema", timeout=timeout) as response:
                        if response.status == 200:
                            answer = await response.json(content_type=None)
                            break
                        problem = f"status {response.status}"
                        if response.status < 500:
                            raise OperatorError(f"{no_server}GET /schema has {problem}. {_REMEDY}")
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    problem = str(error) or type(error).__name__
                await asyncio.sleep(0.2)
    except TimeoutError as error:
        # Not an OperatorError: the check of a config accepts a server that is not up yet.
        detail = f"{no_server}{problem}, for {settings.start_wait_s:g} s (start_wait_s)"
        raise Failure(FailureKind.UNREACHABLE, detail) from error
    action = answer.get("action") if isinstance(answer, dict) else None
    if not isinstance(action, dict):
        raise OperatorError(f"{no_server}GET /schema answered {answer!r:.100}, without an action's schema. {_REMEDY}")
    return action


@contextlib.asynccontextmanager
async def _container(settings: OpenEnvSettings) -> AsyncIterator[str]:
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


@dataclass(frozen=True)
class ActionSchema:
    schema: Json

    @property
    def is_mcp(self) -> bool:
        """Whether the actions are calls of MCP tools, which the server lists on request."""
        fields = self.schema.get("properties")
        return isinstance(fields, dict) and "tool_name" in fields

    def tool(self, name: str) -> Json:
        """Return the tool whose arguments are an action. Metadata is not for the model."""
        fields = {key: value for key, value in self._fields.items() if key != "metadata"}
        required = [key for key in self.schema.get("required", []) if key != "metadata"]
        parameters = {**self.schema, "type": "object", "properties": fields, "required": required}
        about = str(self.schema.get("description") or "Take one action in the environment.")
        return {"type": "function", "name": name, "description": about, "parameters": parameters, "strict": False}

    @property
    def text_field(self) -> str | None:
        """The only required string field, which can hold a message; None if there is not exactly one."""
        required = [key for key in self.schema.get("required", []) if key in self._fields]
        texts = [key for key in required if self._fields[key].get("type") == "string"]
        return texts[0] if len(required) == len(texts) == 1 else None

    @property
    def _fields(self) -> dict[str, Any]:
        fields = self.schema.get("properties")
        return fields if isinstance(fields, dict) else {}


def mcp_tools(listed: object) -> dict[str, Json]:
    """Return the tools of a `list_tools` observation by the names under which the model calls them. Each has the
    additional key `original`. A name that is part of Rollyard's wire format gets the prefix `env_`.
    """
    tools: dict[str, Json] = {}
    for found in listed if isinstance(listed, list) else ():
        if not isinstance(found, dict) or not isinstance(original := found.get("name"), str):
            continue
        name = f"env_{original}" if original.lower() in RESERVED_PATHS else original
        parameters = found.get("input_schema") or found.get("inputSchema") or {"type": "object", "properties": {}}
        about = str(found.get("description") or original)
        tool: Json = {"type": "function", "name": name, "description": about, "parameters": parameters}
        tools[name] = {**tool, "strict": False, "original": original}
    return tools


_OVER = "The episode is over."


class OpenEnvEnvironment(EpisodeTools[OpenEnvSettings]):
    """One episode on an OpenEnv server. The row's `seed` and `reset` are the arguments of its reset."""

    verdict_fields = (
        VerdictField(path="openenv_steps", role="outcome", label="steps"),
        VerdictField(path="openenv_done", role="outcome", label="done"),
        VerdictField(path="openenv_timed_out", role="limit", label="timed out"),
    )
    shared: ClassVar[OpenEnvServer]

    def __init__(self, task: Mapping[str, Any], settings: OpenEnvSettings) -> None:
        super().__init__(task, settings)
        self._arguments = task.get("reset", {})
        if not isinstance(self._arguments, dict):
            found = f"reset is {self._arguments!r:.100}"
            raise BadTask(f"{found}; expected an object with the arguments of the server's reset")
        if (seed := task.get("seed")) is not None:
            if not isinstance(seed, int) or isinstance(seed, bool):
                raise BadTask(f"seed is {seed!r:.100}; expected an integer")
            self._arguments = {**self._arguments, "seed": seed}
        self._connection = OpenEnvConnection(self.shared.http, self.shared.url, settings)
        self._tools: dict[str, Json] = {}
        self._rewards: list[float] = []
        self._steps = 0
        self._first = ""
        self._done = False
        self._timed_out = False

    @classmethod
    @contextlib.asynccontextmanager
    async def lifespan(cls, settings: OpenEnvSettings) -> AsyncIterator[OpenEnvServer]:
        async with openenv_server(settings) as server:
            yield server

    async def seed(self) -> list[Json]:
        """Connect and reset. The first observation is the model's first message."""
        await self._connection.open()
        try:
            opened = await self._connection.ask("reset", self._arguments)
            if self.shared.actions.is_mcp:
                listed = await self._connection.ask("step", {"type": "list_tools"})
                self._tools = mcp_tools(_observation(listed).get("tools"))
        except RejectedMessage as error:
            if error.code == "VALIDATION_ERROR":
                raise BadTask(f"the OpenEnv server rejects the row's seed or reset: {error}") from error
            raise Failure(FailureKind.SERVER_ERROR, f"the OpenEnv server failed to reset: {error}") from error
        except StepTimeout as error:
            raise Failure(FailureKind.TIMEOUT, f"reset of the OpenEnv server: {error}") from error
        self._first = self._text(opened)
        return [{"role": "user", "content": self._first}] if self._first else []

    def episode_tools(self) -> list[Json]:
        if self.shared.actions.is_mcp:
            return [{key: value for key, value in tool.items() if key != "original"} for tool in self._tools.values()]
        return [self.shared.actions.tool(self.settings.tool_name)]

    async def call_episode_tool(self, name: str, arguments: Json) -> Any:
        is_mcp = self.shared.actions.is_mcp
        known = list(self._tools) if is_mcp else [self.settings.tool_name]
        if name not in known:
            raise InvalidToolCall(f"There is no tool {name[:200]!r}. Tools: {', '.join(known) or 'none'}.")
        if is_mcp:
            arguments = {"type": "call_tool", "tool_name": self._tools[name]["original"], "arguments": arguments}
        return await self._step(arguments)

    async def reset(self) -> tuple[str, Json]:
        """Turn-based mode, for environments whose action is a text."""
        self._message_field()
        return self._first, {}

    async def turn(self, text: str) -> Turn:
        before = len(self._rewards)
        result = await self._step({self._message_field(): text})
        return Turn(_shown(result.output), sum(self._rewards[before:]), terminated=result.done)

    async def verify(self, response: Verification) -> Verdict:
        rewards = self._rewards or [0.0]
        reward = sum(rewards) if self.settings.reward == "sum" else rewards[-1]
        fields = {"openenv_steps": self._steps, "openenv_done": self._done, "openenv_timed_out": self._timed_out}
        return Verdict(reward=reward, **fields)

    async def close(self) -> None:
        await self._connection.close()

    async def _step(self, action: Json) -> ToolResult:
        if self._done:
            return ToolResult(_OVER, done=True)
        self._steps += 1
        try:
            answer = await self._connection.ask("step", action)
        except RejectedMessage as error:
            raise InvalidToolCall(f"The environment rejects this action: {error}") from error
        except StepTimeout as error:
            if self.settings.timeout == "failure":
                raise Failure(FailureKind.TIMEOUT, f"step of the OpenEnv server: {error}") from error
            self._done = self._timed_out = True
            return ToolResult(f"The action took too long ({error}). {_OVER}", done=True)
        reward, done = answer.get("reward"), answer.get("done")
        if not isinstance(reward, bool | None) and not is_number(reward, MAX_REWARD):
            raise Failure(FailureKind.MALFORMED_ANSWER, f"the OpenEnv server sent the reward {reward!r:.100}")
        if not isinstance(done, bool | None):  # a wrong type is no "false": the episode would go on after its end
            detail = f"the OpenEnv server sent done: {done!r:.100}; expected true or false"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail)
        self._rewards += [] if reward is None else [float(reward)]
        self._done = done is True
        return ToolResult(
            self._text(answer) if self.settings.observation_field else _observation(answer), done=self._done
        )

    def _text(self, answer: Json) -> str:
        observation = _observation(answer)
        field = self.settings.observation_field
        if field is None:
            return as_text(observation) if observation else ""
        if field not in observation:
            known = ", ".join(observation) or "no fields"
            detail = f"the observation has no {field!r} (observation_field); it has {known}"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail)
        return _shown(observation[field])

    def _message_field(self) -> str:
        field = self.settings.text_field or self.shared.actions.text_field
        if field is None:
            raise BadTask("the action is not a single text: play it with tools, or set text_field")
        return field


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else as_text(value)


def _observation(answer: Json) -> Json:
    """Return the observation without metadata and empty fields."""
    observation = answer.get("observation")
    if not isinstance(observation, dict):
        found = f"the OpenEnv server sent the observation {observation!r:.100}"
        raise Failure(FailureKind.MALFORMED_ANSWER, f"{found}; expected an object")
    return {key: value for key, value in observation.items() if key != "metadata" and value is not None}


server = serve(OpenEnvEnvironment)

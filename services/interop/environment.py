"""One environment of a run, its tasks and its episodes, as programs that speak another project's protocol see them.

An episode uses the environment's own HTTP API (`/seed_session` or `/reset`, `/<tool>` or `/step`, `/verify`, `/close`)
and keeps the transcript that `/verify` scores. The rewards of an episode add up to the reward that an agent of Rollyard
would record: every step is worth 0, except the last one, which is worth the verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from rollyard.records.data_files import DataFile
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError, did_you_mean
from rollyard.records.rewards import mask_of, tidy
from rollyard.records.rows import valid_rows
from rollyard.records.types import RESERVED_PATHS, Json, is_number, mapping
from rollyard.services.http.client import SESSION_END_HEADER, SESSION_HEADER, ServerClient, Session
from rollyard.services.http.request import PROBLEM_TYPE, HttpResponse, raise_for_status
from rollyard.services.responses.response_validity import loads, read_answer

ASK_S = 60.0
CLOSE_S = 10.0
_WORDS = (400, 404, 405, 413, 422)
"""Statuses with which servers of other frameworks reject a model's tool call. Their text is for the model."""
_ABSENT = (404, 405)


@dataclass(frozen=True)
class ServedEnvironment:
    """The environment, its tools and its tasks. Opens episodes."""

    client: ServerClient
    server: str
    name: str
    turn_based: bool
    """Whether an action is a message of the model (`/reset`, `/step`) instead of a tool call."""
    tasks: TaskList
    tools: list[Json] = field(default_factory=list)
    timeout_s: float = 600.0

    @property
    def description(self) -> str:
        return f"The environment {self.server} of a Rollyard run"

    def episode(self, row: Json) -> ServedEpisode:
        return ServedEpisode(self.client, self.server, row, turn_based=self.turn_based, timeout_s=self.timeout_s)

    async def act(self, episode: ServedEpisode, name: str, arguments: Json) -> EpisodeOutcome:
        """Call a tool by name; the submit tool sends its argument as the model's message."""
        if name != self.submit_name:
            return await episode.call(name, arguments)
        if not isinstance(answer := arguments.get("answer"), str):
            return EpisodeOutcome(f"answer is {answer!r:.100}; expected a string", problem="invalid_args")
        return await episode.say(answer)

    @property
    def submit_name(self) -> str:
        """Name of the tool that gives the final answer; it is not one of the environment's own names."""
        names = {tool["name"] for tool in self.tools}
        return next(name for name in ("submit", "submit_answer", "submit_final_answer") if name not in names)

    @property
    def submit_tool(self) -> Json:
        """A tool for clients that can only call tools. Its argument is the model's message."""
        what = (
            "Send a message to the environment, which answers with the next observation."
            if self.turn_based
            else "Give the final answer. This ends the episode and scores it."
        )
        answer = {"type": "string", "description": "The final answer."}
        parameters = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
        return {"type": "function", "name": self.submit_name, "description": what, "parameters": parameters}


async def tools_of(client: ServerClient, server: str) -> list[Json]:
    """Return a server's tools; none if it does not list them, as those of other frameworks. Raises Failure."""
    return [tool for tool in await _listed(client, server, "/tools") if isinstance(tool.get("name"), str)]


async def _listed(client: ServerClient, server: str, path: str) -> list[Json]:
    response = await client.get(server, path, ASK_S)
    if response.status in _ABSENT:
        return []
    found = loads(raise_for_status(response, server).body)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


async def open_environment(
    client: ServerClient, server: str | None, name: str | None, tasks: TaskList | None, timeout_s: float
) -> ServedEnvironment:
    """Return the environment. `server`: its name in the run, optional if the run has only one environment.

    Without `tasks`, they are the environment's example rows. Raises OperatorError if the server is unknown, and
    RunError if it does not answer.
    """
    families = (await client.book.current()).families
    known = [each for each, family in families.items() if family == "resources_servers"]
    if server is None and len(known) == 1:
        server = known[0]
    if server is None or server not in known:
        found = "the run has no environment" if server is None and not known else f"--environment is {server!r}"
        hint = did_you_mean(server, known) if server else ""
        raise OperatorError(f"{found}{hint}; expected one of the run's environments: {', '.join(known) or 'none'}")
    try:
        tools = await tools_of(client, server)
        used = tasks or TaskList(await _listed(client, server, "/examples"))
        environment = ServedEnvironment(client, server, name or server, True, used, tools, timeout_s)
        return replace(environment, turn_based=await _is_turn_based(environment))
    except Failure as failure:
        raise RunError(f"{server} cannot be served: {failure.problem.detail}") from failure


async def _is_turn_based(turns: ServedEnvironment) -> bool:
    """Return whether the environment plays with `/reset` and `/step`, tried with its first task.

    Only an environment without tools needs this test: one that has tools is played with them.
    """
    if turns.tools or not turns.tasks:
        return False
    episode = turns.episode(turns.tasks.rows[0])
    try:
        await episode.open()
    except Failure as failure:
        refused = failure.kind in (FailureKind.BAD_TASK, FailureKind.BAD_REQUEST)
        if refused or failure.problem.upstream_status in _ABSENT:
            return False
        raise
    finally:
        await episode.close()
    return True


class UnknownTask(ValueError):
    """The client asked for a task that does not exist. The message says which ones do."""


class TaskList:
    """The rows of one dataset, under the name of a split."""

    def __init__(self, rows: Sequence[Json], split: str = "train") -> None:
        self.rows = rows
        self.split = split

    @classmethod
    def read(cls, file: DataFile, split: str) -> TaskList:
        """Read a dataset file. Raises OperatorError if a row is invalid, or if there are none."""
        rows = list(valid_rows(file))
        if not rows:
            raise OperatorError(f"{file} has no rows")
        return cls(rows, split)

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: Any) -> Json:
        """Return the row with this number, counted from 0. Raises UnknownTask."""
        if not isinstance(index, int) or isinstance(index, bool):
            raise UnknownTask(f"index is {index!r:.100}; expected an integer")
        if not 0 <= index < len(self.rows):
            raise UnknownTask(f"index is {index!r:.40}; there are {len(self.rows)} tasks, counted from 0")
        return self.rows[index]

    def choose(self, asked: Json) -> Json:
        """Return the row for a reset: `row` itself, else number `index`, else `seed` modulo the number of rows.

        Without any of them, the row is random. Raises UnknownTask.
        """
        if (row := asked.get("row")) is not None:
            if not isinstance(row, dict):
                raise UnknownTask(f"row is a JSON {type(row).__name__}; expected an object")
            return row
        if (index := asked.get("index")) is not None:
            return self.row(index)
        if not self.rows:
            raise UnknownTask("this server has no tasks: send `row`, or start it with --data FILE")
        seed = asked.get("seed")
        if seed is None:
            return random.choice(self.rows)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UnknownTask(f"seed is {seed!r:.100}; expected a non-negative integer")
        return self.rows[seed % len(self.rows)]

    def check_split(self, split: Any) -> None:
        """Raise UnknownTask unless this is the name of the only split."""
        if split != self.split:
            raise UnknownTask(f"split is {split!r:.100}; this server has only {self.split!r}")

    def between(self, start: Any, stop: Any) -> list[int]:
        """Return the numbers of the tasks in `range(start, stop)`; both may be None or negative, as in a slice."""
        for name, value in (("start", start), ("stop", stop)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UnknownTask(f"{name} is {value!r:.100}; expected an integer or null")
        return list(range(len(self.rows)))[start:stop]


@dataclass(frozen=True)
class EpisodeOutcome:
    text: str
    value: Any = None
    """The tool's result as JSON; None if it is not JSON."""
    problem: str = ""
    """Why nothing was executed: `tool_not_found`, `invalid_args`, `execution_error` or `episode_over`; else empty."""
    done: bool = False
    reward: float = 0.0
    mask: str = ""
    """Why the reward is no measurement; empty if it is one."""
    info: Json = field(default_factory=dict)
    """Further facts: the reward of this step alone, and the fields of the verdict."""


_OVER = EpisodeOutcome(
    "The episode is over. Reset the environment to start another one.", problem="episode_over", done=True
)


class ServedEpisode:
    """One session of one environment. Its methods must not be called concurrently; `Failure` passes through."""

    def __init__(self, client: ServerClient, server: str, row: Json, *, turn_based: bool, timeout_s: float) -> None:
        self._row = row
        self._turn_based = turn_based
        self._timeout_s = timeout_s
        # The id is chosen here, so that the session can be closed even if the response that opens it is lost.
        self._session = Session(client, server, headers={SESSION_HEADER: secrets.token_hex(16)})
        self._output: list[Json] = []
        """The model's actions and their results, as the output of an OpenAI Response."""
        self._step_rewards: list[float] = []
        self.tools: list[Json] = []
        """The tools of this episode: those of the row, else those of the environment."""
        self.messages: list[Json] = []
        """The conversation before the model's first turn, as `{"role", "content"}`."""
        self.steps = 0
        self.over = False

    async def open(self) -> list[Json]:
        """Open the session, and return the messages that the environment adds. Raises Failure, such as bad_task."""
        path = "/reset" if self._turn_based else "/seed_session"
        body = await self._session.post(path, orjson.dumps(self._row), self._timeout_s)
        answer = read_answer(body or b"{}", self._session.server)
        params, added = mapping(self._row.get("responses_create_params")), mapping(answer.get("additions"))
        offered = params.get("tools") or added.get("tools") or []
        self.tools = [] if self._turn_based else [tool for tool in offered if isinstance(tool, dict)]
        self.messages = opening_messages(params, added, answer.get("observation"))
        return opening_messages({}, added, answer.get("observation"))

    async def call(self, name: str, arguments: Any) -> EpisodeOutcome:
        """Execute a tool call. An invalid call has an outcome with words for the model."""
        if self.over:
            return _OVER
        names = [str(tool.get("name")) for tool in self.tools]
        if self._turn_based or not is_tool_name(name) or (names and name not in names):
            known = ", ".join(names) or "none; send a message instead"
            return EpisodeOutcome(f"There is no tool {name[:100]!r}. Tools: {known}.", problem="tool_not_found")
        if wrong := arguments_error(arguments):
            return EpisodeOutcome(f"Invalid call to {name}: {wrong}", problem="invalid_args")
        body = orjson.dumps(arguments)
        self.steps += 1
        response = await self._session.send(f"/{name}", body, self._timeout_s)
        refused = response.status in _WORDS and not _is_problem(response)
        result = response.body if refused else raise_for_status(response, self._session.server).body
        value = None if refused else _json_of(result)
        text = value if isinstance(value, str) else result.decode("utf-8", "replace")
        self._add_call(name, body.decode(), text)
        outcome = EpisodeOutcome(text, value, "execution_error" if refused else "")
        return await self._finished(outcome) if _is_done(value) else outcome

    async def say(self, text: str) -> EpisodeOutcome:
        """Send a message of the model. In an environment that is not turn-based it is the final answer."""
        if self.over:
            return _OVER
        self.steps += 1
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"id": f"msg_{secrets.token_hex(8)}", "type": "message", "role": "assistant", "status": "completed"}
        self._output.append({**message, "content": content})
        if not self._turn_based:
            return await self._finished(EpisodeOutcome("The answer was scored."))
        row = orjson.dumps({**self._row, "response": {"output": [self._output[-1]]}})
        answer = read_answer(await self._session.post("/step", row, self._timeout_s), self._session.server)
        observation, reward = text_of(answer.get("observation")), self._number(answer.get("reward"), "/step")
        self._step_rewards.append(reward)
        outcome = EpisodeOutcome(observation, info={**mapping(answer.get("info")), "step_reward": reward})
        if answer.get("terminated") is True or answer.get("truncated") is True:
            return await self._finished(outcome)
        self._output.append({"type": "message", "role": "user", "content": observation})
        return outcome

    async def finish(self, output: list[Json]) -> EpisodeOutcome:
        """End the episode and score it. `output`: what the model said and did, by the caller's own record."""
        self._output = output
        return await self._finished(EpisodeOutcome(""))

    async def close(self) -> None:
        """Close the session if it is open. Never raises: a session that cannot be reached expires by itself."""
        self.over = True
        if not self._session.may_be_open:
            return
        closing = asyncio.ensure_future(self._session.send("/close", b"{}", CLOSE_S))
        with contextlib.suppress(Failure):
            await asyncio.shield(closing)

    async def _finished(self, last: EpisodeOutcome) -> EpisodeOutcome:
        """Request the verdict, which ends the session. Without a verdict, the reward is the sum of the steps."""
        self.over = True
        whole = {"id": "resp_episode", "object": "response", "status": "completed", "output": self._output}
        body = orjson.dumps({**self._row, "response": whole})
        response = await self._session.send("/verify", body, self._timeout_s, {SESSION_END_HEADER: "1"})
        if self._turn_based and response.status in (*_ABSENT, 501) and not _is_problem(response):
            reward, mask, facts = tidy(sum(self._step_rewards)), "", dict[str, Any]()
        else:
            answer = raise_for_status(response, self._session.server).body
            verdict = read_answer(answer, self._session.server)
            reward, mask = self._number(verdict.get("reward"), "/verify"), mask_of(verdict)
            facts = {name: value for name, value in verdict.items() if name not in (*self._row, "response", "reward")}
        return EpisodeOutcome(last.text, last.value, done=True, reward=reward, mask=mask, info={**last.info, **facts})

    def _add_call(self, name: str, arguments: str, result: str) -> None:
        call_id = f"call_{len(self._output)}"
        call = {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}
        self._output.append({**call, "id": f"fc_{secrets.token_hex(8)}", "status": "completed"})
        self._output.append({"type": "function_call_output", "call_id": call_id, "output": result})

    def _number(self, value: Any, path: str) -> float:
        if is_number(value):
            return float(value)
        detail = f"{path} returned reward {value!r:.100}; expected a finite number"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=self._session.server)


def _is_problem(response: HttpResponse) -> bool:
    """Return whether a server of Rollyard reports an error, which is not one of the model."""
    return response.headers.get("content-type", "").startswith(PROBLEM_TYPE)


def _json_of(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _is_done(value: object) -> bool:
    """Return whether a tool's result, or the last part of one that is a list, states that the episode is over."""
    if isinstance(value, list):
        return any(_is_done(_json_of(str(part.get("text")).encode())) for part in value if isinstance(part, dict))
    return isinstance(value, Mapping) and value.get("done") is True


MAX_ARGUMENTS = 1024 * 1024
"""Maximum size of a tool call's arguments in bytes, as for Rollyard's agents."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def is_tool_name(name: str) -> bool:
    """Return whether POST `/name` can only be a tool: a single path segment that is not an endpoint of the protocol."""
    return _TOOL_NAME.fullmatch(name) is not None and name.strip(".") != "" and name.lower() not in RESERVED_PATHS


def arguments_error(arguments: Any) -> str:
    """Return what is wrong with a tool call's arguments, in words for the model; empty if they can be sent."""
    if not isinstance(arguments, dict):
        return f"the arguments are a JSON {type(arguments).__name__}; expected an object."
    try:
        size = len(orjson.dumps(arguments))
    except TypeError:
        return "the arguments are nested too deeply, or contain a number or text that JSON does not support."
    if size > MAX_ARGUMENTS:
        return f"the arguments have {size} bytes; the limit is {MAX_ARGUMENTS}."
    return ""


def opening_messages(params: Json, added: Json, observation: object) -> list[Json]:
    """Return the messages before the model's first turn: additions, the row's input, then the observation."""
    given = params.get("input")
    items: list[Any] = [{"role": "system", "content": params["instructions"]}] if params.get("instructions") else []
    items += added.get("input") or []
    items += [{"role": "user", "content": given}] if isinstance(given, str) else list(given or [])
    if isinstance(observation, str) and observation:
        items.append({"role": "user", "content": observation})
    elif isinstance(observation, list):
        # `/seed_session` returns items; `/reset` may return the parts of one message.
        is_items = all(isinstance(item, dict) and "role" in item for item in observation)
        items += observation if is_items else [{"role": "user", "content": observation}]
    return [_message(item) for item in items if isinstance(item, dict) and item.get("role")]


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)


def _message(item: Json) -> Json:
    role = "system" if item["role"] == "developer" else str(item["role"])
    return {"role": role, "content": text_of(item.get("content"))}

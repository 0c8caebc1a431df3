"""ServedEpisode: one episode of an environment, played by a program that speaks another project's protocol.

It uses the environment's own HTTP API (`/seed_session` or `/reset`, `/<tool>` or `/step`, `/verify`, `/close`) and
keeps the transcript that `/verify` scores. The rewards of an episode add up to the reward that an agent of Rollyard
would record: every step is worth 0, except the last one, which is worth the verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rewards import mask_of, tidy
from rollyard.records.types import RESERVED_PATHS, Json
from rollyard.services.http.client import SESSION_END_HEADER, SESSION_HEADER, ServerClient, Session
from rollyard.services.http.request import PROBLEM_TYPE, raise_for_status
from rollyard.services.responses.response_validity import read_answer

CLOSE_S = 10.0
_WORDS = (400, 404, 405, 413, 422)
"""Statuses with which servers of other frameworks reject a model's tool call. Their text is for the model."""
_OVER = "The episode is over. Reset the environment to start another one."


@dataclass(frozen=True)
class EpisodeOutcome:
    text: str
    """What the model reads next."""
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


class ServedEpisode:
    """One session of one environment. Its methods must not be called concurrently; `Failure` passes through."""

    def __init__(self, client: ServerClient, server: str, row: Json, *, turn_based: bool, timeout_s: float) -> None:
        self._row = row
        self._turn_based = turn_based
        self._timeout_s = timeout_s
        # The id is chosen here, so that the session can be closed even if the response that opens it is lost.
        self._session = Session(client, server, headers={SESSION_HEADER: secrets.token_hex(16)})
        self._transcript = Transcript()
        self._step_rewards: list[float] = []
        self.tools: list[Json] = []
        """The tools of this episode: those of the row, else those of the environment."""
        self.messages: list[Json] = []
        """The conversation before the model's first turn, as `{"role", "content"}`."""
        self.steps = 0
        self.over = False

    async def open(self) -> list[Json]:
        """Open the session, and return the messages that the environment adds to those of the row. Afterwards,
        `messages` and `tools` are known. Raises Failure, such as bad_task.
        """
        path = "/reset" if self._turn_based else "/seed_session"
        body = await self._session.post(path, orjson.dumps(self._row), self._timeout_s)
        answer = read_answer(body or b"{}", self._session.server)
        given = self._row.get("responses_create_params")
        params = given if isinstance(given, dict) else {}
        additions = answer.get("additions")
        added: Json = additions if isinstance(additions, dict) else {}
        offered = params.get("tools") or added.get("tools") or []
        self.tools = [] if self._turn_based else [tool for tool in offered if isinstance(tool, dict)]
        self.messages = opening_messages(params, added, answer.get("observation"))
        return opening_messages({}, added, answer.get("observation"))

    async def call(self, name: str, arguments: Any) -> EpisodeOutcome:
        """Execute a tool call. An invalid call has an outcome with words for the model."""
        if self.over:
            return EpisodeOutcome(_OVER, problem="episode_over", done=True)
        names = [str(tool.get("name")) for tool in self.tools]
        if self._turn_based or not is_tool_name(name) or (names and name not in names):
            known = ", ".join(names) or "none; send a message instead"
            return EpisodeOutcome(f"There is no tool {name[:100]!r}. Tools: {known}.", problem="tool_not_found")
        if wrong := arguments_error(arguments):
            return EpisodeOutcome(f"Invalid call to {name}: {wrong}", problem="invalid_args")
        body = orjson.dumps(arguments)
        self.steps += 1
        response = await self._session.send(f"/{name}", body, self._timeout_s)
        problem_json = response.headers.get("content-type", "").startswith(PROBLEM_TYPE)
        if response.status in _WORDS and not problem_json:
            text = response.body.decode("utf-8", "replace")
            self._transcript.add_call(name, body.decode(), text)
            return EpisodeOutcome(text, problem="execution_error")
        result = raise_for_status(response, self._session.server).body
        value = _json_of(result)
        text = value if isinstance(value, str) else result.decode("utf-8", "replace")
        self._transcript.add_call(name, body.decode(), text)
        outcome = EpisodeOutcome(text, value)
        return await self._finished(outcome) if _is_done(value) else outcome

    async def say(self, text: str) -> EpisodeOutcome:
        """Send a message of the model. In an environment that is not turn-based it is the final answer."""
        if self.over:
            return EpisodeOutcome(_OVER, problem="episode_over", done=True)
        self.steps += 1
        self._transcript.add_message("assistant", text)
        if not self._turn_based:
            return await self._finished(EpisodeOutcome("The answer was scored."))
        row = {**self._row, "response": {"output": [self._transcript.output[-1]]}}
        answer = read_answer(
            await self._session.post("/step", orjson.dumps(row), self._timeout_s), self._session.server
        )
        observation, reward = text_of(answer.get("observation")), self._number(answer.get("reward"), "/step")
        self._step_rewards.append(reward)
        info = answer.get("info")
        facts = {**(info if isinstance(info, dict) else {}), "step_reward": reward}
        outcome = EpisodeOutcome(observation, info=facts)
        if answer.get("terminated") is True or answer.get("truncated") is True:
            return await self._finished(outcome)
        self._transcript.add_message("user", observation)
        return outcome

    async def finish(self, output: list[Json]) -> EpisodeOutcome:
        """End the episode and score it. `output`: what the model said and did, by the caller's own record."""
        self._transcript.output = output
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
        body = orjson.dumps({**self._row, "response": self._transcript.response()})
        response = await self._session.send("/verify", body, self._timeout_s, {SESSION_END_HEADER: "1"})
        problem = response.headers.get("content-type", "").startswith(PROBLEM_TYPE)
        if self._turn_based and response.status in (404, 405, 501) and not problem:
            reward, mask, facts = tidy(sum(self._step_rewards)), "", dict[str, Any]()
        else:
            answer = raise_for_status(response, self._session.server).body
            verdict = read_answer(answer, self._session.server)
            reward, mask = self._number(verdict.get("reward"), "/verify"), mask_of(verdict)
            facts = {name: value for name, value in verdict.items() if name not in (*self._row, "response", "reward")}
        return EpisodeOutcome(last.text, last.value, done=True, reward=reward, mask=mask, info={**last.info, **facts})

    def _number(self, value: object, path: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        detail = f"{path} returned reward {value!r:.100}; expected a finite number"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=self._session.server)


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


class Transcript:
    """The model's actions and their results, as the output of an OpenAI Response."""

    def __init__(self) -> None:
        self.output: list[Json] = []

    def add_message(self, role: str, text: str) -> None:
        """Append a message; messages of the user are observations of the environment."""
        if role != "assistant":
            self.output.append({"type": "message", "role": role, "content": text})
            return
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"id": f"msg_{secrets.token_hex(8)}", "type": "message", "role": role, "status": "completed"}
        self.output.append({**message, "content": content})

    def add_call(self, name: str, arguments: str, result: str) -> None:
        call_id = f"call_{len(self.output)}"
        call = {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}
        self.output.append({**call, "id": f"fc_{secrets.token_hex(8)}", "status": "completed"})
        self.output.append({"type": "function_call_output", "call_id": call_id, "output": result})

    def response(self) -> Json:
        return {"id": "resp_episode", "object": "response", "status": "completed", "output": self.output}


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
    """Return the text of a message's content: a string, or a list of content parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)


def _message(item: Json) -> Json:
    role = "system" if item["role"] == "developer" else str(item["role"])
    return {"role": role, "content": text_of(item.get("content"))}

"""One conversation between a model and an environment. An agent's loop calls the methods of Episode."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Protocol, TypeGuard, cast

import orjson
from fastapi import Query, responses
from prometheus_client.core import GaugeMetricFamily, Metric

from rollyard.agents.tools import McpClient, McpProbe, ToolAnswer, answer_of, error_answer, open_tools
from rollyard.records.activity import (
    EPISODE_ID_HEADER,
    MAX_RECORD_BYTES,
    PARTIAL_MEMBER,
    RECORD_HEADER,
    STAGES,
    EpisodeTail,
    PartialConversation,
    RunningEpisode,
    RunningEpisodes,
    Stage,
    StageActivity,
)
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import (
    CreateParams,
    PlayedEpisode,
    PrefixMismatchSummary,
    Response,
    ResponseItem,
    Usage,
)
from rollyard.records.types import RESERVED_PATHS, TOKEN_FIELDS, FinishReason, Json, items, json_kind, mapping
from rollyard.services.http.client import Session
from rollyard.services.http.request import RawRequest, raise_for_status, reported_failure, with_server
from rollyard.services.responses.response_validity import (
    offered,
    read_answer,
    read_arguments,
    read_items,
    read_name,
    read_response,
    sendable_items,
)
from rollyard.services.rollouts.run_answer import encoded_item, shortened

MODEL_PATH = "/v1/responses"
ABSENT = (404, 405, 501)
_REJECTED = (400, 413, 422)


class ModelTurn(NamedTuple):
    response: Response
    ended: FinishReason | None = None
    """Set if the model could not be called because the conversation no longer fits into its context."""

    @property
    def calls(self) -> list[ResponseItem]:
        return [item for item in self.response["output"] if item.get("type") == "function_call"]

    @property
    def ending(self) -> FinishReason:
        """Why the episode ends, if it ends with this turn of the model."""
        if self.ended is not None:
            return self.ended
        if self.response.get("finish_reason") == FinishReason.UNREADABLE_CALL:
            return FinishReason.UNREADABLE_CALL
        details = self.response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if self.response.get("status") != "incomplete" and reason is None:  # NeMo Gym's servers set only the reason
            return FinishReason.ANSWERED
        return FinishReason.CONTENT_FILTER if reason == "content_filter" else FinishReason.LENGTH

    @property
    def cut_off(self) -> bool:
        """True if the model could not finish this turn, so that its tool calls may not be all that it wanted."""
        return self.ending.truncated


class ModelSession(Protocol):
    """What an episode needs of its model server."""

    server: str
    foreign: bool

    async def post(self, path: str, body: bytes, timeout_s: float) -> bytes: ...


class Episode:
    """Provides the methods for an agent's loop: `ask` calls the model, and `call` runs a tool. Both record timings."""

    def __init__(
        self,
        conversation: Conversation,
        environment: Session,
        model: ModelSession,
        state: EpisodeState,
        *,
        model_timeout_s: float,
        tool_timeout_s: float,
        max_tool_calls: int = 64,
        model_path: str = MODEL_PATH,
        mcp_probe: McpProbe | None = None,
    ) -> None:
        self.conversation = conversation
        self.timings = Timings(state.spans)
        self.closed = False  # True once the resources server has closed the session with its verdict
        self._environment = environment
        self._model = model
        self._state = state
        self._model_timeout_s = model_timeout_s
        self._tool_timeout_s = tool_timeout_s
        self._max_tool_calls = max_tool_calls
        self._turn_calls = 0
        self._model_path = model_path
        self._mcp_probe = mcp_probe
        self._mcp: McpClient | None = None

    async def ask(self) -> ModelTurn:
        """Call the model with the conversation so far and append its response."""
        started = self._state.enter("model", self._model.server)
        try:
            body = await self._model.post(self._model_path, self.conversation.request(), self._model_timeout_s)
        except Failure as failure:
            if self._model.foreign and self._model_path != MODEL_PATH:
                detail = "policy_base_url requires a model server of Rollyard, and this one is of another framework"
                raise Failure(FailureKind.BAD_REQUEST, detail, server=self._model.server) from failure
            # Before the first response there is no episode to end: the task itself does not fit.
            if failure.kind is not FailureKind.CONTEXT_OVERFLOW or not self.timings.model_calls:
                raise
            return ModelTurn({"output": []}, FinishReason.CONTEXT_OVERFLOW)
        self._state.finish("model", started)
        self.timings.model_calls += 1
        self._turn_calls = 0
        response = read_response(body, self._model.server)
        response["output"] = read_items(response["output"])
        self.conversation.add(cast(Response, response))
        return ModelTurn(cast(Response, response))

    async def call(self, call: ResponseItem) -> ToolAnswer:
        """Run one tool call in the environment and append its result. An invalid call results in an error message, and
        so does each call of a turn beyond the limit.
        """
        self._turn_calls += 1
        if self._turn_calls > self._max_tool_calls:
            result = error_answer(self._too_many())
            self._append_output(call, result)
            return result
        started = self._state.enter("tool", self._environment.server)
        name = read_name(call.get("name"))
        result = await self._execute(name, call.get("arguments"))
        self._state.finish("tool", started)
        self.timings.tool_calls += 1
        self._append_output(call, result)
        return result

    def _append_output(self, call: ResponseItem, answer: ToolAnswer) -> None:
        item: ResponseItem = {"type": "function_call_output", "call_id": call["call_id"], "output": answer.output}
        self.conversation.answer(item)

    def _too_many(self) -> str:
        limit = self._max_tool_calls
        return f"Not run: at most {limit} tool call{'s' * (limit != 1)} per turn are run. Call again in your next turn."

    async def _execute(self, name: str, arguments: object) -> ToolAnswer:
        mcp = self._mcp if self._mcp and name in self._mcp.names else None
        if mcp is None and not is_tool_name(name):
            shown = f"{name[:100]!r} ... ({len(name)} characters)" if len(name) > 100 else repr(name)
            return error_answer(f"There is no tool {shown}.")
        try:
            body = arguments_body(read_arguments(arguments))
        except ValueError as error:
            declared = (mapping(tool) for tool in items(self.conversation.params.get("tools")))
            parameters = next((tool.get("parameters") for tool in declared if tool.get("name") == name), None)
            expected = "Expected a JSON object."
            if isinstance(parameters, dict):
                expected = f"Expected a JSON object with {orjson.dumps(parameters.get('properties')).decode()[:2000]}."
            return error_answer(f"Invalid call to {name}: invalid arguments: {error}. {expected}")
        try:
            if mcp is not None:
                return await mcp.call(name, orjson.loads(body))
            answer = await self._environment.send(f"/{name}", body, self._tool_timeout_s)
            return answer_of(answer, self._environment.server)
        except Failure as failure:
            # Not a failure, because a model could otherwise get another attempt with a call that takes too long.
            # Tools of Rollyard's environments limit their own work, so their timeouts are failures of the server.
            if failure.kind is FailureKind.TIMEOUT and self._environment.foreign:
                return error_answer(f"The tool did not respond within {self._tool_timeout_s:g} s.")
            raise

    async def seed(self, row: bytes) -> None:
        """Open the session with the complete row, and add what the environment returns to the conversation.

        Raises Failure bad_task if there is still no message for the model to respond to.
        """
        started = self._state.enter("seed", self._environment.server)
        body = await self._open("/seed_session", row)
        seeded = read_answer(body or b"{}", self._environment.server)
        self._mcp = await self._mcp_tools(seeded)
        self._state.finish("seed", started)
        observed = seeded.get("observation")
        try:
            self.conversation.open(seeded.get("additions"), observed if isinstance(observed, list) else [])
        except Failure as failure:
            raise with_server(failure, self._environment.server) from failure
        if self._mcp is not None:
            self.conversation.offer(self._mcp.tools)

    async def _open(self, path: str, row: bytes) -> bytes:
        """Open the session at `path` with the row. Raises Failure bad_task if another framework's server rejects it."""
        response = await self._environment.send(path, row, self._tool_timeout_s)
        server = self._environment.server
        if response.status in _REJECTED and reported_failure(response, server) is None:
            excerpt = response.body[:2000].decode("utf-8", "replace")
            detail = f"{path} rejected the row (status {response.status}): {excerpt}"
            raise Failure(FailureKind.BAD_TASK, detail, server=server, upstream_status=response.status)
        if response.status in ABSENT and reported_failure(response, server) is None:
            other = "turn_agent for /reset and /step" if path == "/seed_session" else "simple_agent for tools"
            detail = (
                f"the environment does not serve POST {path} (status {response.status}); try another agent: {other}"
            )
            raise Failure(FailureKind.BAD_REQUEST, detail, server=server, upstream_status=response.status)
        return raise_for_status(response, server).body

    async def _mcp_tools(self, seeded: Json) -> McpClient | None:
        """Open the environment's MCP server. It is announced by `/seed_session`, or found at /mcp if the row has no
        tools.
        """
        metadata = seeded.get("mcp")
        if metadata is None:
            probe = self._mcp_probe
            if probe is None or not self._environment.foreign or self.conversation.params.get("tools"):
                return None
            if not await probe.found(self._tool_timeout_s):
                return None
            metadata = {}
        return await open_tools(self._environment, metadata, self._tool_timeout_s)

    async def verify(self, body: bytes, headers: Mapping[str, str]) -> Json:
        started = self._state.enter("verify", self._environment.server)
        answer = await self._environment.post("/verify", body, self._tool_timeout_s, headers)
        self._state.finish("verify", started)
        verdict = read_answer(answer, self._environment.server)
        # Rollyard's servers close the session with the verdict; other frameworks' echo the row and leave it open.
        self.closed = "response" not in verdict
        return verdict

    async def needs_session(self) -> bool:
        """Return whether the verdict may depend on what was played in the session, not only on row and response."""
        response = await self._environment.get("/reverify_mode", self._tool_timeout_s)
        if response.status in ABSENT:  # a server of another framework
            return True
        return raise_for_status(response, self._environment.server).body != b'"stateless"'

    async def disconnect(self) -> None:
        """End the connection to the environment's MCP server. Raises Failure if it cannot be reached."""
        if self._mcp is not None:
            await self._mcp.close()

    def response(self) -> Response:
        usage = cast(Usage, self.conversation.usage)
        return {**self.conversation.last, "output": self.conversation.output, "usage": usage or None}

    def result(self) -> PlayedEpisode:
        """Return the fields that the episode adds to the row.

        They are `responses_create_params` of the first model call, `response`, and `token_trail` if tokens were
        recorded.
        """
        params = cast(CreateParams, self.conversation.create_params)
        played: PlayedEpisode = {"responses_create_params": params, "response": self.response()}
        trail = _token_trail(self.conversation.output)
        return {**played, "token_trail": trail} if trail else played


def _token_trail(output: list[ResponseItem]) -> PrefixMismatchSummary | None:
    """Summarize the recorded tokens; None if no tokens were recorded.

    The summary contains the number of turns after the first, of prefix mismatches and of contiguous segments, and the
    names of the sampling constraints.
    """
    traces = [trace for item in output if isinstance(trace := item.get("token_trace"), dict)]
    if not traces:
        return None
    mismatches = sum("break" in trace for trace in traces)
    segment = traces[-1].get("segment", 0)
    if not isinstance(segment, int):
        return None  # written by another framework
    samplings = (mapping(trace.get("sampling")) for trace in traces)
    constraints = {name for one in samplings for name in items(one.get("constrained")) if isinstance(name, str)}
    trail: PrefixMismatchSummary = {"turns": len(traces) - 1, "breaks": mismatches, "segments": segment + 1}
    return {**trail, "constrained": sorted(constraints)} if constraints else trail


@dataclass(slots=True)
class Timings:
    spans: Sequence[tuple[str, float]]
    """Each stage that has ended, with its duration in seconds."""
    model_calls: int = 0
    tool_calls: int = 0

    def seconds(self) -> Json:
        spent: dict[str, float] = {}
        for stage, took in self.spans:
            spent[stage] = spent.get(stage, 0.0) + took
        seconds = {f"{stage}_s": round(total, 6) for stage, total in spent.items()}
        return {**seconds, "model_calls": self.model_calls, "tool_calls": self.tool_calls}


MAX_ARGUMENTS = 1024 * 1024
"""Maximum size of a tool call's arguments in bytes. A server would reject larger arguments, which would count as an
internal failure instead of a mistake by the model."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def is_tool_name(name: object) -> TypeGuard[str]:
    """Return whether `/name` can only be a tool: it is a single path segment and not a protocol endpoint."""
    return (
        isinstance(name, str)
        and _TOOL_NAME.fullmatch(name) is not None
        and name.strip(".") != ""
        and name.lower() not in RESERVED_PATHS
    )


def arguments_body(arguments: str) -> bytes:
    """Return the request body for a tool call.

    Raises ValueError, with a message for the model, unless the arguments are a valid JSON object. Servers of other
    frameworks accept NaN, lone surrogates and unlimited nesting, and fail on them later.
    """
    try:
        body = arguments.encode()
        if len(body) > MAX_ARGUMENTS:
            raise ValueError(f"{len(body)} bytes exceed the limit of {MAX_ARGUMENTS} bytes")
        if not body.strip():
            return b"{}"
        value = orjson.loads(body)
        orjson.dumps(value)
    except TypeError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("they contain a lone surrogate, which is not valid text") from error
    if not isinstance(value, dict):
        raise ValueError(f"found a JSON {type(value).__name__}")
    return body


class Conversation:
    """The messages and tools of one episode. Items are plain JSON objects, which are not validated.

    Each is encoded once, so an item of `start` or of `params` can be replaced, but not changed in place.
    """

    def __init__(self, params: Json, row: Json | None = None) -> None:
        """`row` is the dataset row that contains `params`, for messages about it."""
        start = params.get("input")
        self._sent: list[bytes] = []
        """What follows `start` in the next request, encoded once."""
        self._head = b""
        """What precedes it, encoded once from `_head_of`."""
        self._head_of: tuple[Json, list[ResponseItem]] = {}, []
        self._with_tokens: dict[int, ResponseItem] = {}
        """Items of the last turn in `_sent` that hold tokens."""
        self._tools = offered(params.get("tools"))
        self.params = params
        self._row = {} if row is None else row
        self._changed = False
        self.start: list[ResponseItem] = (
            [{"role": "user", "content": start}] if isinstance(start, str) else list(start or [])
        )
        self.output: list[ResponseItem] = []
        self.usage: Json = {}
        self.last: Response = {"output": []}

    def open(self, additions: object, observed: list[ResponseItem]) -> None:
        """Prepend the environment's input to the row's, append its observation, and use its tools if the row has none.

        Raises Failure bad_task if there is still no message for the model to respond to.
        """
        has_input = bool(self.start)
        added: Json = additions if isinstance(additions, dict) else {}
        if added.get("tools") and self.params.get("tools") is None:
            self.params = {**self.params, "tools": added["tools"]}
            self._tools = offered(added["tools"])
        if (before := added.get("input") or []) or observed:
            self.start = [*before, *self.start, *observed]
            self._changed = True
        if not has_input and all(item.get("role") in ("system", "developer") for item in self.start):
            raise missing_input(self._row)

    def offer(self, tools: list[Json]) -> None:
        given = self.params.get("tools") or []
        if not isinstance(given, list):
            return  # the model server rejects the request
        added = {tool["name"]: tool for tool in tools if tool["name"] not in self._tools}
        self.params = {**self.params, "tools": [*given, *added.values()]}
        self._tools = offered(self.params["tools"])

    @property
    def create_params(self) -> Json:
        return {**self.params, "input": self.start} if self._changed else self.params

    def request(self) -> bytes:
        """Return the body of the next model call, which adds items to the last one, so that servers read only these.

        Raises Failure malformed_answer if it cannot be encoded as JSON.
        """
        if not self._head or self._head_of != (self.params, self.start):
            params = {key: value for key, value in self.params.items() if key != "input"}
            self._head = _encoded({**params, "input": self.start})[:-2]
            self._head_of = {**self.params}, [*self.start]
        if not self.start and self._sent:
            return b"%b%b]}" % (self._head, b",".join(self._sent))
        return b"%b]}" % b",".join((self._head, *self._sent))

    def add(self, response: Response) -> None:
        """Append a model response to the record and, in a format that every engine accepts, to the next request.

        Raises Failure malformed_answer if it cannot be encoded as JSON.
        """
        self.output.extend(response["output"])
        # The next prompt needs only the last turn's tokens; keeping them all would make requests grow quadratically.
        if self._with_tokens:
            for index, item in self._with_tokens.items():
                self._sent[index] = _encoded(without_tokens(item))
            self._with_tokens = {}
        for item in sendable_items(response["output"], self._tools):
            if "generation_token_ids" in item:
                self._with_tokens[len(self._sent)] = item
            self._sent.append(_encoded(item))
        add_usage(self.usage, response.get("usage"))
        self.last = response

    def answer(self, item: ResponseItem) -> None:
        """Append what is not of the model, such as a tool's output. Raises Failure like `add`."""
        self.output.append(item)
        self._sent.append(_encoded(item))


def _encoded(part: Any) -> bytes:
    try:
        return orjson.dumps(part)
    except TypeError as error:
        detail = f"the conversation cannot be encoded as JSON ({error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error


def without_tokens(item: ResponseItem) -> ResponseItem:
    kept = {key: value for key, value in item.items() if key not in TOKEN_FIELDS}
    return cast(ResponseItem, kept)


def add_usage(total: Json, usage: object) -> None:
    """Add the usage of a call, including nested details. Values that are not numbers are dropped."""
    for key, value in usage.items() if isinstance(usage, dict) else ():
        before = total.get(key)
        if type(value) in _NUMBERS:
            total[key] = before + value if type(before) in _NUMBERS else value
        elif isinstance(value, dict):
            if not isinstance(before, dict):
                before = total[key] = {}
            add_usage(before, value)


_NUMBERS = frozenset({int, float, bool})
_PARAMS = "responses_create_params"


def create_params(row: Json) -> Json:
    """Return the row's parameters. Raises Failure bad_task if they are invalid.

    They may have no `input`, because the environment can add it.
    """
    if (params := row.get(_PARAMS)) is None:
        return {}
    if not isinstance(params, dict):
        raise _bad(f"the row's {_PARAMS}", params, "an object whose `input` is a string or a list")
    check_params(params, f"the row's {_PARAMS}.")
    return params


def check_params(params: Json, where: str = "") -> None:
    """Raise Failure bad_task if the input or the tools are invalid. `where` precedes a field's name."""
    given = params.get("input")
    if not isinstance(given, str | list | None):
        raise _bad(f"{where}input", given, "a string or a list of items")
    _check_objects(f"{where}input", given if isinstance(given, list) else None)
    if not isinstance(tools := params.get("tools"), list | None):
        raise _bad(f"{where}tools", tools, "a list of tools")
    _check_objects(f"{where}tools", tools)


def missing_input(row: Json) -> Failure:
    """Return the failure for a row to which the environment added no message that the model could respond to."""
    keys = ", ".join(sorted(row)[:10]) or "nothing"
    detail = (
        f"the row has no {_PARAMS}.input, and the environment does not add any (the row has {keys}); expected an "
        "`input` (a string or a list), or a user_template in the environment that builds it from the row's fields"
    )
    if row.keys() == {"idx"}:
        detail += ". A row with idx alone needs an environment that serves a dataset"
    return Failure(FailureKind.BAD_TASK, detail)


def _check_objects(field: str, items: list[Any] | None) -> None:
    for index, item in enumerate(items or ()):
        if not isinstance(item, dict):
            raise _bad(f"{field}[{index}]", item, "an object")


def _bad(field: str, found: Any, expected: str) -> Failure:
    return Failure(FailureKind.BAD_TASK, f"{field} is {json_kind(found)}; expected {expected}")


MEDIAN_WINDOW = 256
STUCK_AFTER_S = 30.0
STUCK_TIMES = 10.0
"""An episode is stuck once its stage takes longer than STUCK_AFTER_S and STUCK_TIMES times the median duration."""
STUCK_WITHOUT_MEDIAN_S = 300.0
"""The limit that applies while there is no median, because no stage of this kind has finished yet."""


@dataclass(slots=True, eq=False)
class EpisodeState:
    episode: str
    task: int | None
    repeat: int | None
    server: str
    durations: dict[Stage, deque[float]]
    stage: Stage = "seed"
    turn: int = 0
    started: float = field(default_factory=time.perf_counter)
    since: float = 0.0
    spans: list[tuple[str, float]] = field(default_factory=list)
    row: Json = field(default_factory=dict)
    conversation: Conversation | None = None
    """The conversation so far; None before the episode is created."""

    def __post_init__(self) -> None:
        self.since = self.started

    def enter(self, stage: Stage, server: str) -> float:
        self.stage = stage
        self.server = server
        self.since = now = time.perf_counter()
        if stage == "model":
            self.turn += 1
        return now

    def progress(self, now: float) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "server": self.server,
            "turn": self.turn,
            "stage_s": round(now - self.since, 3),
            "age_s": round(now - self.started, 3),
        }

    def finish(self, stage: Stage, stage_started: float) -> None:
        took = time.perf_counter() - stage_started
        self.durations[stage].append(took)
        self.spans.append((stage, took))


class ActiveEpisodes:
    def __init__(self, agent: str, *, environment: str, model: str) -> None:
        self._agent = agent
        self._servers: dict[Stage, str] = {stage: model if stage == "model" else environment for stage in STAGES}
        self._states: dict[EpisodeState, None] = {}
        self._durations: dict[Stage, deque[float]] = {stage: deque(maxlen=MEDIAN_WINDOW) for stage in STAGES}

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def one(self, episode: str, row: Json) -> Iterator[EpisodeState]:
        """Track an episode until the `with` block ends. It starts in the `seed` stage, waiting for its environment."""
        task, repeat = _index(row, "_ng_task_index"), _index(row, "_ng_rollout_index")
        state = EpisodeState(episode, task, repeat, self._servers["seed"], self._durations)
        self._states[state] = None
        try:
            yield state
        finally:
            del self._states[state]

    def find(self, episode: str) -> EpisodeState | None:
        return next((state for state in self._states if state.episode == episode), None)

    def now(self, limit: int | None) -> RunningEpisodes:
        now = time.perf_counter()
        medians = {stage: statistics.median(took) for stage, took in self._durations.items() if took}
        shown: list[RunningEpisode] = []
        groups: dict[tuple[Stage, str], list[EpisodeState]] = {}
        for state in self._states:
            groups.setdefault((state.stage, state.server), []).append(state)
            if limit is None or len(shown) < limit:
                shown.append(self._record(state, now, medians))
        stages: list[StageActivity] = []
        for (stage, server), states in sorted(groups.items(), key=lambda item: (STAGES.index(item[0][0]), item[0][1])):
            median = medians.get(stage)
            slowest = min(states, key=lambda state: state.since)
            stages.append(
                StageActivity(
                    stage=stage,
                    server=server,
                    episodes=len(states),
                    median_s=None if median is None else round(median, 6),
                    stuck=sum(is_stuck(now - state.since, median) for state in states),
                    slowest=self._record(slowest, now, medians),
                )
            )
        return RunningEpisodes(agent=self._agent, total=len(self._states), stages=stages, episodes=shown)

    def collect(self) -> Iterable[Metric]:
        running = GaugeMetricFamily("rollyard_episodes", "Active episodes", labels=["stage", "waits_for"])
        stuck = GaugeMetricFamily("rollyard_episodes_stuck", "Stuck active episodes", labels=["stage", "waits_for"])
        oldest = GaugeMetricFamily("rollyard_episode_oldest_seconds", "Age of the oldest active episode")
        # A stage without episodes is reported as 0, because a series that disappears looks like a server that is down.
        counts = dict.fromkeys(STAGES, (0, 0))
        counts |= {now.stage: (now.episodes, now.stuck) for now in self.now(0).stages}
        for stage, server in self._servers.items():
            running.add_metric([stage, server], counts[stage][0])
            stuck.add_metric([stage, server], counts[stage][1])
        first = next(iter(self._states), None)
        oldest.add_metric([], 0.0 if first is None else time.perf_counter() - first.started)
        yield from (running, stuck, oldest)

    def _record(self, state: EpisodeState, now: float, medians: dict[Stage, float]) -> RunningEpisode:
        return RunningEpisode(
            agent=self._agent,
            episode=state.episode,
            task=state.task,
            repeat=state.repeat,
            **state.progress(now),
            stuck=is_stuck(now - state.since, medians.get(state.stage)),
        )


def is_stuck(stage_s: float, median_s: float | None) -> bool:
    return stage_s > (STUCK_WITHOUT_MEDIAN_S if median_s is None else max(STUCK_AFTER_S, STUCK_TIMES * median_s))


def _index(row: Json, key: str) -> int | None:
    value = row.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


KEPT_BYTES = 32 << 20
KEPT_S = 60.0
"""Conversations of cancelled episodes are kept this long, up to KEPT_BYTES: their caller no longer waits for `/run`."""
TAIL_BYTES = 2 << 20
"""A watcher gets at most this much at once, but at least one item."""
_EPISODE_ID = re.compile(r"[0-9a-f]{32}")

log = logging.getLogger(__name__)


class PartialEpisodes:
    def __init__(self, agent: str, active: ActiveEpisodes) -> None:
        self._agent = agent
        self._active = active
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._kept_bytes = 0

    @contextmanager
    def recording(self, call: RawRequest, state: EpisodeState) -> Iterator[None]:
        """If the caller asked for it, add the partial conversation to what fails within the `with` block. The failure
        stays the same otherwise. If the caller disconnects, the conversation is kept for a while.
        """
        given = call.header(RECORD_HEADER.encode()) or ""
        # 0 if the caller does not want the conversation.
        limit = min(int(given), MAX_RECORD_BYTES) if re.fullmatch(r"[0-9]{1,9}", given) else 0
        try:
            yield
        except asyncio.CancelledError:
            if limit:
                encoded = partial_of(state, limit).model_dump_json().encode()
                self._kept[state.episode] = (time.monotonic(), encoded)
                self._kept_bytes += len(encoded)
                self._expire()
            raise
        except Failure as failure:
            if limit:
                _attach(failure, state, limit)
            raise
        except (Exception, SystemExit) as error:  # code of a plug-in may call sys.exit
            if not limit:
                raise
            log.error("%s%s failed", self._agent, call.path, exc_info=error)
            detail = f"{type(error).__name__}: {error} (traceback in the log of {self._agent})"
            raised = Failure(FailureKind.SERVER_ERROR, detail)
            _attach(raised, state, limit)
            raise raised from error

    async def partial(
        self, episode: str, bytes: Annotated[int, Query(ge=1, le=MAX_RECORD_BYTES)]
    ) -> responses.Response:
        """Return the conversation of an active episode, or of one whose caller disconnected within the last minute."""
        self._expire()
        # A cancelled episode stays active while its session is closed, but what it waited for is no longer known.
        if (kept := self._kept.pop(episode, None)) is not None:
            self._kept_bytes -= len(kept[1])
            return _json(kept[1])
        if (state := self._active.find(episode)) is None:
            raise _unknown(episode)
        return _json(partial_of(state, bytes).model_dump_json().encode())

    async def tail(self, episode: str, since: Annotated[int, Query(ge=0)] = 0) -> responses.Response:
        """Return an active episode from the output item `since` on."""
        if (state := self._active.find(episode)) is None or state.conversation is None:
            raise _unknown(episode)
        now, output = time.perf_counter(), state.conversation.output
        row: Json | None = None
        if since == 0:
            row, _ = shortened(_fields(state), state.conversation.start, [], MAX_RECORD_BYTES)
        tail = EpisodeTail(
            agent=self._agent,
            episode=episode,
            task=state.task,
            repeat=state.repeat,
            **state.progress(now),
            timings=_rounded(state.spans),
            row=row,
            since=since,
            items=_first_items(output[since:]),
            total=len(output),
        )
        return _json(tail.model_dump_json().encode())

    def _expire(self) -> None:
        oldest = time.monotonic() - KEPT_S
        while self._kept:
            kept_at, encoded = next(iter(self._kept.values()))
            if kept_at > oldest and self._kept_bytes <= KEPT_BYTES:
                return
            self._kept.popitem(last=False)
            self._kept_bytes -= len(encoded)


def episode_id(call: RawRequest) -> str:
    given = call.header(EPISODE_ID_HEADER.encode()) or ""
    return given if _EPISODE_ID.fullmatch(given) else secrets.token_hex(16)


def partial_of(state: EpisodeState, limit: int) -> PartialConversation:
    now, conversation = time.perf_counter(), state.conversation
    start, output = (conversation.start, conversation.output) if conversation else ([], [])
    timings = _rounded(state.spans[:_SPANS] + state.spans[max(_SPANS, len(state.spans) - _SPANS) :])
    row, omitted = shortened(_fields(state), start, output, limit - _SPAN_BYTES * len(timings))
    return PartialConversation(source="agent", **state.progress(now), timings=timings, row=row, omitted=omitted)


_SPANS = 500
_SPAN_BYTES = 20
"""The first and the last 500 durations are recorded, each of which takes about 20 bytes."""


def _rounded(spans: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    return [(stage, round(seconds, 6)) for stage, seconds in spans]


def _fields(state: EpisodeState) -> Json:
    params = state.conversation.params if state.conversation else {}
    return {**state.row, "responses_create_params": params}


def _attach(failure: Failure, state: EpisodeState, limit: int) -> None:
    partial = partial_of(state, limit).model_dump(mode="json")
    failure.problem = failure.problem.model_copy(update={PARTIAL_MEMBER: partial})


def _first_items(output: Sequence[ResponseItem]) -> list[Json]:
    found: list[Json] = []
    used = 0
    for item in output:
        encoded = encoded_item(item)
        used += len(encoded)
        if used > TAIL_BYTES and found:
            break
        found.append(orjson.loads(encoded))
    return found


def _unknown(episode: str) -> Failure:
    detail = f"episode {episode[:64]!r} is not active: it has ended, or the agent restarted"
    return Failure(FailureKind.BAD_REQUEST, detail, status=404, code="episode_not_active")


def _json(body: bytes) -> responses.Response:
    return responses.Response(body, media_type="application/json")

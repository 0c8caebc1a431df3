"""The base class for agents. Import it from this module to write your own agent.

You write `play(episode)`, a plain loop: call the model, run the tools that it calls, decide when to stop.

    class Patient(Agent[AgentSettings]):
        async def play(self, episode: Episode) -> FinishReason:
            while (turn := await episode.ask()).calls:
                for call in turn.calls:
                    await episode.call(call)
            return turn.ending

    server = Patient

The type argument is the settings class; the settings are in `self.settings`.
The base class does the rest: `/run` seeds a session, plays, verifies, and closes the session in every case;
`/v1/responses` plays in a session that the caller has already opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Required, TypeVar
from urllib.parse import unquote, urlsplit

import orjson
from fastapi import Query
from pydantic import Field, field_validator
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from rollyard.agents.episode import (
    MODEL_PATH,
    ActiveEpisodes,
    Conversation,
    Episode,
    EpisodeState,
    PartialEpisodes,
    check_params,
    create_params,
    episode_id,
)
from rollyard.agents.stored_episode import StoredEpisode
from rollyard.agents.tools import McpProbe
from rollyard.records.activity import RunningEpisodes
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.nemo_gym import name_of
from rollyard.records.rewards import MASK_KEYS, check_reward, with_verdict
from rollyard.records.rollout_types import DatasetRow, EpisodeTimings
from rollyard.records.types import FinishReason, Json, ServerRef, items, json_kind, mapping, text_of
from rollyard.services.http.client import EPISODE_HEADER, OWNER_HEADER, SESSION_END_HEADER, SESSION_HEADER, Session
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.responses import api_shapes, stream_events
from rollyard.services.responses.policy_endpoint import POLICY_HEADER, POLICY_PATH, PolicyEndpoint
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS
from rollyard.services.rollouts.run_answer import (
    REPLAY_HEADER,
    RESPONSE_BYTES_HEADER,
    encode_response,
    encode_row,
)
from rollyard.services.server.app import Context, Server, with_failure_rows
from rollyard.services.server.openapi import Shape
from rollyard.services.server.settings import ServerSettings, settings_argument

BASE_URL, API_KEY, MODEL_NAME = "policy_base_url", "policy_api_key", "policy_model_name"
_REPLAY = REPLAY_HEADER.encode()
log = logging.getLogger(__name__)


class AgentSettings(ServerSettings):
    """Settings that all agents share."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        *("model_timeout_s", "tool_timeout_s", "policy_base_url_allowlist", "failures_as_rows")
    }

    resources_server: ServerRef
    """The environment's resources server."""
    model_server: ServerRef
    """The model server that serves the policy."""
    model_timeout_s: float = Field(default=900.0, gt=0)
    """Timeout of one model call, including the model server's retries."""
    tool_timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of one call to the environment."""
    max_tool_calls_per_turn: int = Field(default=64, ge=1)
    """Maximum number of tool calls that are run for one response of the model. Each further call is answered with a
    message that says so."""
    policy_base_url_allowlist: list[str] = Field(default_factory=list)
    """Where the `policy_base_url` of a `/run` body may lead: URL prefixes (http://trainer:30000/sessions), hosts, or
    host:port. Empty: the agent refuses `policy_base_url`. Requires a run token."""
    failures_as_rows: bool = False
    """Report a failed `/run` as a row with status 200 and `_ng_failure_class`, as NeMo Gym's collector expects, to
    callers that are not Rollyard's."""

    @field_validator("policy_base_url_allowlist")
    @classmethod
    def _readable(cls, entries: list[str]) -> list[str]:
        for entry in entries:
            AllowedUrl.parse(entry)
        return entries

    @property
    def token_needed_for(self) -> str:
        reason = "policy_base_url_allowlist would let any local process choose where episodes send their model calls"
        return reason if self.policy_base_url_allowlist else ""


class Rollout(TypedDict, total=False):
    """The row, the episode and the verdict; for a task of NeMo Gym 0.7 its result, or its failure."""

    reward: float
    response: api_shapes.ResponseObject
    finish_reason: str
    truncated: bool
    timings: EpisodeTimings
    episode_id: Any
    result: Json
    failure: Json


class MetricsRequest(TypedDict):
    verify_responses: list[Json]


class AgentSession(TypedDict, total=False):
    agent_session_id: Required[str]
    tool_accesses: list[Json]


S = TypeVar("S", bound=AgentSettings)


class Agent(Server, Generic[S]):
    """Plays one episode per `/run`."""

    Settings: ClassVar[type[ServerSettings]] = AgentSettings
    settings: S
    episode_type: Callable[..., Episode] = Episode
    """Creates the episode passed to `play`. A subclass of Episode may use other endpoints of the resources server."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Settings" not in cls.__dict__:
            cls.Settings = settings_argument(cls, AgentSettings) or cls.Settings

    def __init__(self, settings: S, context: Context) -> None:
        super().__init__(settings, context)
        self.__model = settings.model_server.name
        self.__owner = {OWNER_HEADER: context.instance} if context.instance else {}
        self.__closer = SessionCloser()
        self.__mcp_probe = McpProbe(context.client, settings.resources_server.name)
        self.__policies = PolicyOverrides(settings.policy_base_url_allowlist, has_token=bool(context.keys.token))
        self.__active_episodes = ActiveEpisodes(
            self.name, environment=settings.resources_server.name, model=settings.model_server.name
        )
        self.__partial_episodes = PartialEpisodes(self.name, self.__active_episodes)
        run = with_failure_rows(self.__run, self.name) if settings.failures_as_rows else self.__run
        self.route("/run", run, cancellable=True, shape=Shape(DatasetRow, Rollout))
        self.route("/v1/responses", self.__responses, cancellable=True, shape=api_shapes.RESPONSES)
        self.route("/aggregate_metrics", self.__aggregate_metrics, shape=Shape(MetricsRequest))
        self.route("/v1/agent_sessions", self.__open_session, shape=Shape(AgentSession, AgentSession))
        self.route("/v1/agent_sessions/close", self.__close_session, shape=Shape(AgentSession, AgentSession))
        self.allow_play("/run", "/v1/responses", "/aggregate_metrics", "/v1/agent_sessions", "/v1/agent_sessions/close")
        self.app.get("/episodes")(self.__episodes)
        self.app.get("/episodes/{episode}")(self.__partial_episodes.tail)
        self.app.get("/episodes/{episode}/partial")(self.__partial_episodes.partial)
        self.measure(self.__active_episodes)

    # --- what you write ---------------------------------------------------------------------------------------------

    async def play(self, episode: Episode) -> FinishReason:
        """Play one episode and return why it ended. If something fails, raise an exception instead."""
        raise NotImplementedError(f"{type(self).__name__} must define play")

    # --- what is done for you ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        await self.__closer.settle()

    @property
    def sessions(self) -> int:
        return len(self.__active_episodes)

    async def __run(self, call: RawRequest) -> RawResponse:
        """Seed the session, play, and verify. Returns the row, the complete episode and the verdict."""
        await asyncio.sleep(0)  # an episode within one process may never wait, and others need the loop too
        given = call.json()
        if _is_task(given):
            return await self.__run_task(call, given)
        stored = StoredEpisode(given, self.__model) if _REPLAY in call.headers else None
        row, policy = self.__policies.read(given) if stored is None else (stored.row, None)
        # Chosen here, so that the session can be closed even if the response with its cookie is lost.
        headers = {SESSION_HEADER: secrets.token_hex(16), **self.__owner}
        environment = Session(self.client, self.settings.resources_server.name, headers=headers)
        with self.__active_episodes.one(episode_id(call), row) as state:
            episode = self.__episode(create_params(row), environment, state, row=row, policy=policy, stored=stored)
            try:
                with self.__partial_episodes.recording(call, state):
                    await episode.seed(call.body if row is given else orjson.dumps(row))
                    reason = await (self.play(episode) if stored is None else self.__replay(episode, stored))
                    if not isinstance(reason, FinishReason):
                        raise TypeError(f"play returned {reason!r:.100}; expected a FinishReason: `turn.ending`")
                    played = {**row, **episode.result(), **(stored.played if stored else {})}
                    response, body = _encoded(played, self.__model)
                    verdict = await episode.verify(body, {SESSION_END_HEADER: "1"})
                    check_reward(verdict, "/verify", environment.server)
            finally:
                if environment.may_be_open and not episode.closed:
                    state.enter("close", environment.server)
                    await self.__closer.close(environment, episode.disconnect)
            timings = {**episode.timings.seconds(), "total_s": round(time.perf_counter() - state.started, 6)}
        outcome = {"finish_reason": reason, "truncated": reason.truncated, "timings": timings}
        # Servers of other frameworks echo the request, which may be a finished rollout with these keys.
        identity = {
            key: value
            for key, value in row.items()
            if key == "agent_ref" or (key.startswith("_ng_") and key not in MASK_KEYS)
        }
        rollout = {**with_verdict(row, played, verdict), **outcome, **identity}
        if policy:
            rollout |= policy.recorded
        if stored is not None:
            rollout |= stored.outcome
        replayed = () if stored is None else ((_REPLAY, b"1"),)
        if "response" in verdict:
            return RawResponse(orjson.dumps(rollout), headers=replayed)
        length = (RESPONSE_BYTES_HEADER.encode(), str(len(response)).encode())
        return RawResponse(encode_row(rollout, response), headers=(*replayed, length))

    async def __run_task(self, call: RawRequest, given: Json) -> RawResponse:
        """Play a task in the form in which NeMo Gym 0.7's collector sends it to an environment server.

        A failure is part of the answer, as its collector expects; it has no reward.
        """
        ids = {"episode_id": given["episode_id"], "task_id": mapping(given["task"]).get("task_id")}
        body = encoded_task(given["task"])
        try:
            played = await self.__run(RawRequest(call.path, call.headers, body, call.query))
        except Failure as failure:
            told = {"failure_reason": failure.problem.detail[:MAX_REASON], "failure_kind": name_of(failure.kind)}
            return RawResponse(orjson.dumps({**ids, "failure": {**told, "terminal": failure.terminal}}))
        result = {key: value for key, value in orjson.loads(played.body).items() if not key.startswith("_ng_")}
        return RawResponse(orjson.dumps({**ids, "result": result}))

    async def __replay(self, episode: Episode, stored: StoredEpisode) -> FinishReason:
        """Play with the stored turns in place of the model's, unless the environment needs no session for a verdict."""
        if not await episode.needs_session():
            return stored.ending
        reason = await self.play(episode)
        stored.check_end()
        return reason

    async def __responses(self, call: RawRequest) -> RawResponse:
        """Play in the caller's session, which is identified by its cookies. Returns the episode as one Response.

        With `"stream": true`, returns the finished episode as a stream of events.
        """
        params, policy = self.__policies.read(call.json())
        check_params(params)
        stream = params.get("stream")
        environment = Session(self.client, self.settings.resources_server.name, call.header(b"cookie") or "")
        episode_id = call.header(EPISODE_HEADER.encode()) or secrets.token_hex(16)
        with self.__active_episodes.one(episode_id, params) as state:
            episode = self.__episode(params, environment, state, policy=policy)
            await self.play(episode)
        # Some clients keep only the cookies of the last response, but /verify needs the environment's cookies.
        cookies = tuple((b"set-cookie", f"{pair}; Path=/".encode()) for pair in environment.cookies)
        response = episode.response()
        if stream:
            events = stream_events.whole(dict(response))
            return RawResponse(events, content_type=SSE, headers=(*STREAM_HEADERS, *cookies))
        return RawResponse(orjson.dumps(response), headers=cookies)

    async def __open_session(self, call: RawRequest) -> RawResponse:
        """Open an agent session for an environment server of NeMo Gym, which has opened the environment's session.

        Nothing is kept here: the caller gets the cookies of that session, and sends them with `/v1/responses`.
        """
        given = call.json()
        cookies: list[str] = []
        for access in items(given.get("tool_accesses")):
            kind, url = mapping(access).get("kind"), text_of(mapping(access).get("base_url")).rstrip("/")
            if kind == "direct_http":
                name = self.settings.resources_server.name
                known = (await self.client.book.current()).servers.get(name, ())
                if url not in known:
                    detail = (
                        f"the tools are at {url!r:.200}; this agent plays {name}, at {', '.join(known) or 'no URL'}"
                    )
                    raise Failure(FailureKind.BAD_REQUEST, detail)
                cookies = [f"{key}={value}" for key, value in mapping(access.get("cookies")).items()]
                if not all(cookie.isascii() and cookie.isprintable() and ";" not in cookie for cookie in cookies):
                    raise Failure(FailureKind.BAD_REQUEST, "tool_accesses has cookies that cannot be sent in a header")
            elif mapping(access).get("required", True):
                detail = (
                    f"this agent has no tool access of kind {kind!r:.100}; set resources_tool_transports: [direct_http]"
                )
                raise Failure(FailureKind.BAD_REQUEST, detail)
        if given.get("sandbox_access") is not None:
            raise Failure(FailureKind.BAD_REQUEST, "this agent uses no sandbox, and the request has a sandbox_access")
        set_cookies = tuple((b"set-cookie", f"{cookie}; Path=/".encode()) for cookie in cookies)
        return RawResponse(orjson.dumps({_AGENT_SESSION: _agent_session(given)}), headers=set_cookies)

    async def __close_session(self, call: RawRequest) -> bytes:
        """Close an agent session. Returns the cookies of the environment's session, with which it can be verified."""
        pairs = [pair.strip().partition("=") for pair in (call.header(b"cookie") or "").split(";")]
        cookies = {name: value for name, separator, value in pairs if separator}
        closed: Json = {_AGENT_SESSION: _agent_session(call.json())}
        return orjson.dumps({**closed, "resources_cookies": cookies} if cookies else closed)

    async def __aggregate_metrics(self, call: RawRequest) -> bytes:
        """Return the metrics that the environment aggregates from `{"verify_responses": [...]}`."""
        name = self.settings.resources_server.name
        response = await self.client.post(name, "/aggregate_metrics", call.body, self.settings.tool_timeout_s)
        return response.body

    async def __episodes(self, limit: Annotated[int, Query(ge=0)] | None = None) -> RunningEpisodes:
        """Return the number of active episodes in each stage, and the `limit` oldest episodes."""
        return self.__active_episodes.now(limit)

    def __episode(
        self,
        params: Json,
        environment: Session,
        state: EpisodeState,
        *,
        row: Json | None = None,
        policy: EpisodePolicy | None = None,
        stored: StoredEpisode | None = None,
    ) -> Episode:
        headers = {EPISODE_HEADER: state.episode}
        if policy is not None:
            headers[POLICY_HEADER] = policy.endpoint.sealed(self.context.keys.secret)
        # Turns are not streamed, because the loop needs their complete content to decide what to do next.
        unstreamed = {key: value for key, value in params.items() if key not in ("stream", "stream_options")}
        state.row = row or {}
        state.conversation = Conversation(unstreamed, row) if stored is None else stored.conversation(unstreamed)
        return self.episode_type(
            state.conversation,
            environment,
            stored or Session(self.client, self.settings.model_server.name, headers=headers),
            state,
            model_timeout_s=self.settings.model_timeout_s,
            tool_timeout_s=self.settings.tool_timeout_s,
            max_tool_calls=self.settings.max_tool_calls_per_turn,
            model_path=POLICY_PATH if policy else MODEL_PATH,
            mcp_probe=self.__mcp_probe,
        )


_AGENT_SESSION = "agent_session_id"
MAX_REASON = 2000
"""Length of a failure's reason that NeMo Gym accepts."""


def _agent_session(given: Json) -> str:
    if not (name := text_of(given.get(_AGENT_SESSION))):
        raise Failure(
            FailureKind.BAD_REQUEST, f"{_AGENT_SESSION} is {given.get(_AGENT_SESSION)!r:.100}; expected a text"
        )
    return name


def _is_task(given: Json) -> bool:
    return "episode_id" in given and "task_input" in mapping(given.get("task"))


def encoded_task(task: Any) -> bytes:
    """Return the encoded flat row of a materialized task of NeMo Gym 0.7. Raises Failure bad_request if it is none."""
    given = mapping(task).get("task_input")
    if not isinstance(given, dict) or not isinstance(given.get("task_data", {}), dict):
        raise Failure(
            FailureKind.BAD_REQUEST, "task has no task_input with the task's fields, or its task_data is none"
        )
    row = {**given.get("task_data", {}), **{key: value for key, value in given.items() if key != "task_data"}}
    if _is_task(row):
        raise Failure(FailureKind.BAD_REQUEST, "task_input is itself a task with an episode_id; expected a row")
    try:
        return orjson.dumps(row)
    except TypeError as error:
        raise Failure(FailureKind.BAD_REQUEST, f"task_input cannot be encoded as JSON ({error})") from error


def _encoded(played: Json, model: str) -> tuple[bytes, bytes]:
    """Return the encoded response, and the encoded row that contains it. The long episode is encoded only once.

    Raises Failure malformed_answer if the episode is nested too deeply to be encoded as JSON.
    """
    try:
        response = encode_response(played["response"])
        return response, encode_row(played, response)
    except TypeError as error:
        detail = f"the model's responses cannot be encoded as JSON ({error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=model) from error


WAIT_S = 5.0
STOP_S = 2.5
"""How long a stopping agent waits for all sessions to close; its process is killed soon after."""
ATTEMPT_TIMEOUT_S = 10.0
PAUSES_S = (0.2, 1.0, 5.0, 15.0)
MAX_CONCURRENT_RETRIES = 64
"""Maximum number of sessions whose closing is retried at the same time. The environment may already be overloaded."""
_TRANSIENT = frozenset({FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT})


class SessionCloser:
    """Closes sessions. One instance serves all episodes of an agent."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_RETRIES)

    async def close(self, environment: Session, disconnect: Callable[[], Awaitable[None]]) -> None:
        """Close the session that `environment` has, or may have, opened. Returns once it is closed, or after WAIT_S.

        `disconnect` is called once before, to end what the episode opened within the session.
        """
        task = asyncio.create_task(self._close(environment, disconnect))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.wait({task}, timeout=WAIT_S)

    async def settle(self) -> None:
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=STOP_S)
            for task in left:
                task.cancel()

    async def _close(self, environment: Session, disconnect: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(Failure):  # the server ends it after its own idle limit
            await disconnect()
        if await self._try_close(environment, last=False):
            return
        async with self._slots:
            for pause_s in PAUSES_S:
                await asyncio.sleep(pause_s)
                if await self._try_close(environment, last=pause_s == PAUSES_S[-1]):
                    return

    async def _try_close(self, environment: Session, *, last: bool) -> bool:
        try:
            await environment.send("/close", b"{}", ATTEMPT_TIMEOUT_S)
        except Failure as failure:
            if not last and failure.kind in _TRANSIENT:
                return False
            if failure.kind is not FailureKind.SESSION_LOST:  # else there is none any more
                log.warning(
                    "a session of %s could not be closed and will expire after its idle limit: %s",
                    environment.server,
                    failure,
                )
        return True


_FIELDS = (BASE_URL, API_KEY, MODEL_NAME)


@dataclass(frozen=True, slots=True)
class EpisodePolicy:
    endpoint: PolicyEndpoint
    recorded: Json


class PolicyOverrides:
    def __init__(self, allowlist: list[str], *, has_token: bool) -> None:
        self._allowed = [AllowedUrl.parse(entry) for entry in allowlist]
        self._has_token = has_token

    def read(self, row: Json) -> tuple[Json, EpisodePolicy | None]:
        """Return the row without the policy fields, and the episode's policy; None if it uses the agent's.

        Raises Failure: bad_request if a field is invalid, forbidden if the endpoint is not allowed.
        """
        if not any(name in row for name in _FIELDS):
            return row, None
        rest = {key: value for key, value in row.items() if key not in _FIELDS}
        given = {name: row[name] for name in _FIELDS if row.get(name) is not None}
        if not given:
            return rest, None
        if BASE_URL not in given:
            raise Failure(FailureKind.BAD_REQUEST, f"{' and '.join(given)} given without {BASE_URL}; expected a URL")
        urls = _urls(given[BASE_URL])
        if not isinstance(model := given.get(MODEL_NAME, ""), str):
            raise Failure(FailureKind.BAD_REQUEST, f"{MODEL_NAME} is {json_kind(model)}; expected text")
        endpoint = PolicyEndpoint(base_urls=urls, api_key=_key(given.get(API_KEY, "")), model=model)
        self._check(urls)
        return rest, EpisodePolicy(endpoint, {name: given[name] for name in given if name != API_KEY})

    def _check(self, urls: tuple[str, ...]) -> None:
        if not self._allowed:
            detail = f"this agent accepts no {BASE_URL}; list the allowed URLs in its setting policy_base_url_allowlist"
            raise Failure(FailureKind.FORBIDDEN, detail)
        if not self._has_token:
            detail = f"{BASE_URL} requires a run token: start the run with --token ... or ROLLYARD_TOKEN"
            raise Failure(FailureKind.FORBIDDEN, detail)
        for url in urls:
            try:
                parsed = parsed_url(url)
            except ValueError as error:
                raise Failure(FailureKind.BAD_REQUEST, f"{BASE_URL} is not usable: {error}") from error
            if not any(entry.allows(parsed) for entry in self._allowed):
                detail = (
                    f"{BASE_URL} {parsed.scheme}://{parsed.host}:{parsed.port} is not in this agent's setting "
                    "policy_base_url_allowlist"
                )
                raise Failure(FailureKind.FORBIDDEN, detail)


def _urls(value: Any) -> tuple[str, ...]:
    urls = [value] if isinstance(value, str) else value
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) and url for url in urls):
        found = f"{json_kind(value)}" if not isinstance(value, list | str) else "an empty value or one that is not text"
        raise Failure(FailureKind.BAD_REQUEST, f"{BASE_URL} is {found}; expected a URL or a list of URLs")
    return tuple(url.rstrip("/") for url in urls)


def _key(value: Any) -> str:
    """Return the key without surrounding white space. The error does not contain the value."""
    if not isinstance(value, str) or not value.strip().isascii() or not value.strip().isprintable():
        raise Failure(FailureKind.BAD_REQUEST, f"{API_KEY} is not text that can be sent in an HTTP header")
    return value.strip()


@dataclass(frozen=True, slots=True)
class AllowedUrl:
    """One entry of the list: a URL prefix (`http://trainer:30000/sessions`), a host, or `host:port`.

    A host may begin with `*.`, which stands for every host below that domain.
    """

    host: str
    scheme: str = ""
    """Empty for http and https."""
    port: int | None = None
    """None for every port."""
    path: tuple[str, ...] = ()
    """The first segments of an allowed path."""

    @classmethod
    def parse(cls, entry: str) -> AllowedUrl:
        """Raises ValueError if the entry is neither a URL nor a host."""
        given = entry.strip()
        if "://" in given:
            url = parsed_url(given)
            return cls(url.host, url.scheme, url.port, url.path)
        parsed = urlsplit(f"//{given}")
        if not parsed.hostname or parsed.path or parsed.query or parsed.fragment or "@" in given:
            raise ValueError(f"found {entry!r}; expected a URL prefix, a host, or host:port")
        return cls(_host(parsed.hostname), port=parsed.port)

    def allows(self, url: ParsedUrl) -> bool:
        if self.scheme and url.scheme != self.scheme:
            return False
        if self.port is not None and url.port != self.port:
            return False
        if self.host.startswith("*."):
            return url.host.endswith(self.host[1:]) and not self.path
        return url.host == self.host and url.path[: len(self.path)] == self.path


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    scheme: str
    host: str
    port: int
    path: tuple[str, ...]


def parsed_url(url: str) -> ParsedUrl:
    """Parse the base URL of an API.

    Raises ValueError if it is invalid, or if two parsers might read it differently: the check must see the host and
    path that the request goes to.
    """
    if not url.isascii() or not url.isprintable() or any(char in url for char in " \\"):
        raise ValueError("it contains characters that a URL must encode")
    parsed = urlsplit(url)
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ValueError("expected a URL like http://127.0.0.1:8000/v1")
    if "@" in parsed.netloc:
        raise ValueError("put the credentials in policy_api_key, not in the URL")
    if parsed.query or parsed.fragment or url.endswith(("?", "#")):
        raise ValueError("expected a base URL without a query string and fragment")
    path = tuple(part for part in parsed.path.split("/") if part)
    if any(unquote(part) in (".", "..") or "/" in unquote(part) or "\\" in unquote(part) for part in path):
        raise ValueError("its path contains `.`, `..` or an encoded slash")
    if "//" in parsed.path:
        raise ValueError("its path contains an empty segment (//)")
    port = parsed.port  # raises ValueError for a port outside 0-65535
    if port == 0:
        raise ValueError("its port is 0")
    return ParsedUrl(parsed.scheme, _host(parsed.hostname), port or (443 if parsed.scheme == "https" else 80), path)


def _host(name: str) -> str:
    return name.lower().rstrip(".")

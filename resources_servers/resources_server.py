"""Serves an Environment: opens, looks up and closes its sessions, and implements the wire format."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NotRequired

import orjson
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from rollyard.records.aggregate_metrics import aggregate
from rollyard.records.data_files import INSTALLED, fill
from rollyard.records.errors import Failure, FailureKind, OperatorError, RollyardError, RunError
from rollyard.records.rewards import declaration, with_verdict
from rollyard.records.rollout_types import DatasetRow, Response
from rollyard.records.run_types import Directory
from rollyard.records.types import Json, json_kind
from rollyard.resources_servers import checks
from rollyard.resources_servers.environment import (
    BadTask,
    Environment,
    EnvironmentSettings,
    Models,
    Turn,
    Verification,
    bind,
    is_stateless,
)
from rollyard.resources_servers.sessions import OpenEpisode, Sessions
from rollyard.resources_servers.tools import (
    MODELS_ERRORS,
    EpisodeTools,
    InvalidToolCall,
    Tool,
    as_invalid_call,
    call_episode_tool,
    tools_of,
    with_episode_tools,
)
from rollyard.services.http.client import OWNER_HEADER, RUN_HEADER, SESSION_END_HEADER, SESSION_HEADER
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.responses.response_validity import check_graded
from rollyard.services.sandbox.box_program import PATH as RUN_PROGRAM
from rollyard.services.sandbox.box_program import BoxProgram, ProgramEnd
from rollyard.services.server.app import REST, Context, Server, with_failure_rows
from rollyard.services.server.openapi import Shape
from rollyard.services.server.settings import ServerSettings

_RUN, _SESSION_END = RUN_HEADER.encode(), SESSION_END_HEADER.encode()
RESOURCES_SESSION = "resources_session_id"
"""Key of a request of NeMo Gym's environment servers, which choose the session's id themselves."""
_RESOURCES_SESSION = f'"{RESOURCES_SESSION}"'.encode()
CHECK_S = 60.0
"""How long a config check waits until the lifespan has been entered."""
LEAVE_S = 10.0
"""Timeout for exiting the lifespan. The server process is killed soon afterwards."""


class Lifespan:
    """Runs one lifespan in its own task.

    A server may be started in one task and stopped in another, but task groups, timeouts and anyio's cancel scopes
    must be exited in the task that entered them.
    """

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._name = name
        self._make = make
        self._entered = asyncio.Event()
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._shared: Any = None

    async def enter(self) -> Any:
        """Enter the lifespan and return the value that it yields.

        A RollyardError from the lifespan is raised unchanged, any other exception as RunError.
        """
        try:
            return await self._enter()
        except RunError as error:
            if error.__cause__ is not None:  # the traceback belongs in the server's log, not in the terminal of a check
                log.error("%s", error, exc_info=error.__cause__)
            raise

    async def _enter(self) -> Any:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)
        entering = asyncio.create_task(self._entered.wait())
        try:
            await asyncio.wait({self._task, entering}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            entering.cancel()
        if self._entered.is_set():
            return self._shared
        if self._task.cancelled():
            raise RunError(f"{self._name}.lifespan cancelled itself before its yield")
        error = self._task.exception()
        if isinstance(error, RollyardError):
            raise error
        raise RunError(f"{self._name}.lifespan failed: {type(error).__name__}: {error}") from error

    async def check(self) -> None:
        """Enter and exit the lifespan. Raises the same errors as `enter`.

        The check also passes if entering takes longer than CHECK_S, because the real start has its own deadline, or if
        entering fails because the run's other servers are not up yet.
        """
        try:
            async with asyncio.timeout(CHECK_S):
                await self._enter()
        except TimeoutError:
            log.info(
                "%s.lifespan takes longer than %g s to enter; the check does not wait any longer", self._name, CHECK_S
            )
        except Failure as failure:
            if failure.kind not in (FailureKind.UNKNOWN_SERVER, FailureKind.UNREACHABLE):
                raise
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Exit the lifespan within LEAVE_S seconds. Errors are logged, not raised."""
        if self._task is None:
            return
        self._leaving.set()
        if not self._entered.is_set():
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=LEAVE_S)
        if not self._task.done():
            log.error("%s.lifespan did not exit within %g s and is abandoned", self._name, LEAVE_S)
            self._task.cancel()

    async def _run(self) -> None:
        lifespan = self._make()
        if not isinstance(lifespan, AbstractAsyncContextManager):
            raise OperatorError(
                f"{self._name}.lifespan returned {type(lifespan).__name__}, not an asynchronous context manager: "
                "decorate it with @classmethod and, below that, @asynccontextmanager"
            )
        try:
            async with lifespan as self._shared:
                self._entered.set()
                await self._leaving.wait()
        except SystemExit as error:  # in a task it would end the event loop, without a message
            raise RunError(f"{self._name}.lifespan called sys.exit({error.code!r})") from error

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._entered.is_set():
            when = "while exiting" if self._leaving.is_set() else "while the server was running"
            log.error("%s.lifespan failed %s", self._name, when, exc_info=error)


log = logging.getLogger(__name__)


class SessionRequest(DatasetRow, total=False):
    """The row of a dataset, or the index of one in the served dataset."""

    idx: int
    resources_session_id: str
    """NeMo Gym's environment servers choose the session's id, and send the row as `task_data`."""
    task_data: Json


class TurnRequest(TypedDict):
    response: Response


class VerdictRequest(DatasetRow):
    """The episode's row, and the whole episode as `response`; a text and the `expected` one without a session."""

    response: Response | str
    expected: NotRequired[str]


class VerdictAnswer(TypedDict):
    """The request with the verdict's fields."""

    reward: float


class CloseRequest(TypedDict, total=False):
    resources_session_id: str


class MetricsRequest(TypedDict):
    verify_responses: list[Json]


class ResourcesServer(Server):
    """Serves one Environment class; `serve` creates a subclass per environment."""

    environment: ClassVar[type[Environment[Any]]]
    folder: ClassVar[Path | None]
    """Folder that contains the environment's module; None if the module is not a file."""

    def __init__(self, settings: ServerSettings, context: Context) -> None:
        assert isinstance(settings, EnvironmentSettings)
        super().__init__(settings, context)
        self._environment = environment = bind(self.environment, models=Models(self.client))
        self._lifespan = self._new_lifespan()
        tools = tools_of(environment).items()
        self._tools: dict[str, Tool] = {name: each for name, each in tools if environment.offers(name, settings)}
        self._schemas = [each.schema() for each in self._tools.values()]
        system = environment.system_prompt if settings.system_prompt is None else settings.system_prompt
        template = environment.user_template if settings.user_template is None else settings.user_template
        self._additions = Additions(system, template, self._schemas)
        idle_s, limit = settings.session_idle_s, settings.max_sessions
        self._sessions = Sessions(
            context.keys.secret, idle_s=idle_s, verified_idle_s=settings.verified_idle_s, limit=limit
        )
        has_tools = bool(self._tools) or issubclass(environment, EpisodeTools)
        self._stateless = is_stateless(environment, has_tools=has_tools)
        """Whether a verdict needs no session, because it depends only on the row and the response; None if unknown."""
        self._declared = declaration(environment.verdict_fields)
        self._dataset: ServedDataset | None = None
        self._orphans = OrphanedSessions(self._sessions, self.client.book.current, settings.orphan_s)
        self.measure(EpisodeMetrics(lambda: self._sessions.failed_closes))
        self._watchers: list[asyncio.Task[None]] = []
        verify = with_failure_rows(self._verify, self.name) if settings.failures_as_rows else self._verify
        routes: list[tuple[str, Handler, Shape]] = [
            ("/seed_session", self._seed, Shape(SessionRequest)),
            ("/reset", self._reset, Shape(SessionRequest)),
            ("/step", self._act, Shape(TurnRequest, Any)),
            ("/verify", verify, Shape(VerdictRequest, VerdictAnswer)),
            ("/close", self._close, Shape(CloseRequest)),
            ("/close_session", self._close, Shape(CloseRequest)),
            ("/aggregate_metrics", self._aggregate_metrics, Shape(MetricsRequest)),
            *((f"/{name}", self._act, Shape(each.arguments, Any)) for name, each in self._tools.items()),
        ]
        for path, handler, shape in routes:
            self.route(path, handler, shape=shape)
        self.allow_play(*(path for path, *_ in routes), REST, "/tools", "/dataset_size", "/reverify_mode")
        self.route(RUN_PROGRAM, self._run_program, cancellable=True, shape=Shape(BoxProgram, ProgramEnd))
        self.route_rest(self._act, shapes={"/{tool}": Shape(Json, Any)})
        self.app.get("/tools", response_model=None)(self._list_tools)
        self.app.get("/examples", response_model=None)(self._list_examples)
        self.app.get("/dataset_size", response_model=None)(self._dataset_size)
        self.app.get("/reverify_mode", response_model=None)(self._reverify_mode)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    async def start(self) -> None:
        """Open the served dataset, enter the environment's lifespan, then watch for idle and orphaned sessions."""
        self._dataset = await configured_dataset(self.settings, self.folder)
        self._environment.shared = await self._lifespan.enter()
        self._watchers = [asyncio.create_task(self._sessions.reap()), asyncio.create_task(self._orphans.watch())]

    async def stop(self) -> None:
        for task in self._watchers:
            task.cancel()
        await self._sessions.close_all()
        await self._lifespan.leave()

    async def check(self) -> None:
        """Open the served dataset, and enter and exit the lifespan. Raises the errors that would prevent the start."""
        await configured_dataset(self.settings, self.folder)
        await self._new_lifespan().check()

    def _new_lifespan(self) -> Lifespan:
        return Lifespan(self.environment.__name__, lambda: self._environment.lifespan(self.settings))

    async def _seed(self, call: RawRequest) -> RawResponse:
        """Open a session for a dataset row and return its id in a signed cookie.

        `{"idx": 3}` stands for a row of the served dataset. The response then contains the task, and no session is
        opened if the environment's verdict needs none.
        """
        given = call.json()
        if RESOURCES_SESSION in given:
            return await self._seed_for_environment_server(call, given)
        row, added = self._task(given, with_tools=True)
        if "prompt" in added and self._stateless and SESSION_HEADER.encode() not in call.headers:
            return RawResponse(checks.encoded(added, "the dataset contains a row"))
        session = self._open_session(call, row)
        observation = await self._set_up(session)
        if isinstance(session.episode, EpisodeTools):
            added = with_episode_tools(added, row, session.episode.episode_tools())
        answer = {**added, "observation": observation} if observation else added
        body = checks.encoded(answer, "seed returned items")
        return RawResponse(body, headers=_set_cookie(session))

    async def _seed_for_environment_server(self, call: RawRequest, given: Json) -> RawResponse:
        """Open the session of a caller that has chosen its id, as NeMo Gym's environment servers do. Repeating the
        request returns the same session.
        """
        name, row = session_name(given[RESOURCES_SESSION]), given.get("task_data")
        if not isinstance(row, dict):
            raise Failure(FailureKind.BAD_REQUEST, f"task_data is {json_kind(row)}; expected the task, an object")
        session = self._sessions.named(name)
        if session is None:
            session = self._open_session(call, row, name=name)
            if await self._set_up(session):
                await self._sessions.close(session)
                detail = "this environment begins with a message of its own, which an environment server cannot pass on"
                raise Failure(FailureKind.BAD_TASK, f"{detail}: send the row to the agent's /run instead")
        elif session.row != row:
            raise Failure(FailureKind.BAD_REQUEST, f"{RESOURCES_SESSION} belongs to another task", status=409)
        return RawResponse(orjson.dumps({RESOURCES_SESSION: given[RESOURCES_SESSION]}), headers=_set_cookie(session))

    async def _set_up(self, session: OpenEpisode) -> list[Json]:
        if type(session.episode).seed is Environment.seed:
            return []

        async def seed() -> list[Json]:
            return checks.seed_items(await checks.bad_task_as_failure(session.episode.seed()))

        return await self._sessions.set_up(session, seed)

    async def _reset(self, call: RawRequest) -> RawResponse:
        """Turn-based mode: open a session for a row and return the first observation."""
        row, added = self._task(call.json(), with_tools=False)
        session = self._open_session(call, row, turn_based=True)

        async def set_up() -> tuple[str, Json]:
            await checks.bad_task_as_failure(session.episode.seed())
            return checks.reset_result(await checks.bad_task_as_failure(session.episode.reset()))

        observation, info = await self._sessions.set_up(session, set_up)
        answer = {"observation": observation, "info": {"supports_explicit_close": True, **info}, **added}
        body = checks.encoded(answer, "reset returned a result")
        return RawResponse(body, headers=_set_cookie(session))

    def _task(self, body: Json, *, with_tools: bool) -> tuple[Json, Json]:
        by_index = is_index_request(body)
        if by_index:
            if self._dataset is None:
                raise missing_dataset()
            body = self._dataset.row(index := body["idx"])
        try:
            added = self._additions.for_row(body, with_tools=with_tools)
        except BadTask as error:
            raise Failure(FailureKind.BAD_TASK, str(error)) from error
        if by_index and self._dataset is not None:
            return body, task(index, self._dataset.name, body, added)
        return body, {"additions": added} if added else {}

    async def _act(self, call: RawRequest) -> bytes | RawResponse:
        """Execute the model's action. What the path means depends only on how the session was opened: after
        `/seed_session` it is the name of a tool; after `/reset` it must be `/step`, which takes one turn.
        """
        session = self._sessions.find(call)
        if session.turn_based:
            body = await self._take_turn(call, session)
        else:
            body = await self._call_tool(call, session)
        return self._with_cookie(call, session, body)

    async def _take_turn(self, call: RawRequest, session: OpenEpisode) -> bytes:
        request = Verification(call.body)
        if call.path != "/step" or not isinstance(request.row.get("response"), dict):
            detail = (
                "this session was opened by /reset: it accepts POST /step with the model's `response`, /verify, /close"
            )
            raise Failure(FailureKind.BAD_REQUEST, detail)
        text = request.text
        async with session:
            try:
                turn = checks.turn_result(await session.episode.turn(text))
            except InvalidToolCall as error:
                turn = Turn(str(error))
            except MODELS_ERRORS as error:
                turn = Turn(str(as_invalid_call(error, "the message")))
        # A Rollyard agent (`session.named`) requests the verdict first, and that call ends the session.
        if (turn.terminated or turn.truncated) and not session.named:
            await self._sessions.close(session)
        return checks.encoded(vars(turn), "turn returned a Turn")

    async def _call_tool(self, call: RawRequest, session: OpenEpisode) -> bytes:
        """Call the tool and return its result or, if the call is invalid, an error message for the model."""
        name = call.path[1:]
        try:
            if (used := self._tools.get(name)) is None:
                if isinstance(session.episode, EpisodeTools):
                    async with session:
                        return await call_episode_tool(session.episode, name, call.body)
                known = ", ".join(sorted(self._tools)) or "none"
                raise InvalidToolCall(f"There is no tool {name[:200]!r}. Tools: {known}.")
            arguments = used.parse(call.body)
            async with session:
                return await used.call(session.episode, arguments)
        except InvalidToolCall as error:
            return orjson.dumps({"error": checks.storable(str(error))})

    async def _verify(self, call: RawRequest) -> bytes | RawResponse:
        """Return the verdict on the session's episode together with all fields of the row and the request.

        Without a session, the verdict is on the row in the request, if it does not depend on what was played.
        """
        verification = Verification(call.body)
        ends = _SESSION_END in call.headers
        if not ends and is_text_request(verification.row):
            return await self._verify_text(call, verification.row)
        try:
            session = self._sessions.find(call)
        except Failure as lost:
            if ends:
                raise
            return await self._verify_row(call, verification, lost)
        if _RUN not in call.headers or not ends:
            check_graded(verification.row.get("response"))  # Rollyard's agents have checked every turn
        if session.turn_based and self._environment.verify is Environment.verify:
            # NeMo Gym's gymnasium-style servers respond the same way: the reward is the sum of the steps.
            return RawResponse(
                b'{"detail":"this environment has no verify: its reward is the sum of its steps"}', status=404
            )
        async with session:
            found = await checks.checked_verdict(session.episode.verify(verification))
            verdict = checks.verdict_json(found, self._declared, turn_based=session.turn_based)
        if not ends:
            played = {**session.row, **verification.row}
            body = checks.encoded(with_verdict(session.row, played, verdict), "verify returned a Verdict")
            answer = self._with_cookie(call, session, body)
            await self._end_verified(session, verification)
            return answer
        # Rollyard's agents send this header: they need only the verdict, and the episode ends here. This saves two
        # large bodies and a request.
        body = checks.encoded(verdict, "verify returned a Verdict")
        await self._sessions.close(session)
        return body

    async def _verify_row(self, call: RawRequest, request: Verification, lost: Failure) -> bytes:
        """Return the verdict on the row in the request, with all fields of the request. `lost`: why it has no session.

        NeMo Evaluator's native mode leaves out `expected_answer`: fields that the request lacks are those of the row of
        the served dataset with the same prompt. Raises Failure if the row is not enough for a verdict.
        """
        if not self._stateless:
            raise self._needs_session(lost)
        check_graded(request.row.get("response"))
        row = {key: value for key, value in request.row.items() if key != "response"}
        if self._dataset is not None:
            row = {**self._dataset.row_with_prompt(row.get("responses_create_params")), **row}
        verdict = await self._verdict_on(call, row, request)
        found = {**with_verdict(request.row, request.row, verdict), **self._declared}
        return checks.encoded(found, "verify returned a Verdict")

    async def _verify_text(self, call: RawRequest, body: Json) -> bytes:
        """Return the verdict on a text in NeMo Evaluator's format."""
        if not self._stateless:
            raise self._needs_session(Failure(FailureKind.BAD_REQUEST, "the request contains only the model's text"))
        dataset = self._dataset
        index = None if dataset is None else index_of(body, dataset.name)
        row = row_in(body) if dataset is None or index is None else dataset.row(index)
        request = Verification(checks.encoded(as_request(row, body["response"]), "the request contains"))
        verdict = text_verdict(await self._verdict_on(call, row, request))
        return checks.encoded(verdict, "verify returned a Verdict")

    async def _verdict_on(self, call: RawRequest, row: Json, request: Verification) -> Json:
        """Return the verdict on a row in a session that lasts for this request."""
        session = self._open_session(call, row)
        try:
            await self._set_up(session)
            async with session:
                return checks.verdict_json(await checks.checked_verdict(session.episode.verify(request)))
        finally:
            await self._sessions.close(session)

    async def _end_verified(self, session: OpenEpisode, request: Verification) -> None:
        """End the session of a client that has received a verdict, or shorten its idle limit.

        It ends at once if the request alone would be enough for another verdict, because nothing can be played in it.
        """
        if self._stateless and session.row.keys() <= request.row.keys():
            await self._sessions.close(session)
        elif not session.named:
            session.verified = True

    def _needs_session(self, lost: Failure) -> Failure:
        name = self._environment.__name__
        why = f"the verdict of {name} depends on what was played"
        if self._stateless is None:
            remedy = "if it does not, set `stateless = True` in the class"
            why = f"{name} has tools, turns or a seed, so its verdict may depend on what was played ({remedy})"
        detail = f"{lost.problem.detail}; {why}: POST the row to /seed_session, and keep its cookie until /verify"
        return Failure(lost.kind, detail)

    async def _run_program(self, call: RawRequest) -> bytes:
        """Run a program in the episode's box, or end it if the request is empty. Only agents of this run may do so."""
        session = self._sessions.find(call)
        if _RUN not in call.headers:
            raise Failure(FailureKind.BAD_REQUEST, f"{RUN_PROGRAM} is for this run's agents", status=404)
        if not call.json():
            if session.program is not None:
                session.program.cancel()
            return b"{}"
        order = call.record(BoxProgram)
        async with session:
            running = asyncio.ensure_future(checks.bad_task_as_failure(session.episode.run_program(order)))
            session.program = running
            try:
                await asyncio.wait({running})
            finally:
                session.program = None
                running.cancel()
            ended = ProgramEnd(status=None, output="") if running.cancelled() else running.result()
            return ended.model_dump_json().encode()

    async def _close(self, call: RawRequest) -> bytes:
        """End the session. Ending it twice, or before it is opened, is not an error."""
        if _RESOURCES_SESSION in call.body and RESOURCES_SESSION in (body := call.json()):
            given = body[RESOURCES_SESSION]
            name = session_name(given)
            if (session := self._sessions.named(name)) is not None:
                await self._sessions.close(session)
            self._sessions.forbid(name)
            return orjson.dumps({RESOURCES_SESSION: given})
        await self._sessions.close_for(call)
        return b'{"closed":true}'

    async def _aggregate_metrics(self, call: RawRequest) -> bytes:
        """Return statistics of `{"verify_responses": [...]}`, in NeMo Gym's format: overall, and for each task."""
        rows = call.json().get("verify_responses")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Failure(FailureKind.BAD_REQUEST, "expected {verify_responses: [...]}, a list of /verify responses")
        return await asyncio.to_thread(lambda: orjson.dumps(aggregate(rows)))

    async def _dataset_size(self) -> Json:
        """Return the number of rows of the served dataset."""
        if self._dataset is None:
            raise missing_dataset()
        return {"size": len(self._dataset)}

    async def _reverify_mode(self) -> str:
        """Return NeMo Gym's name for whether `/verify` needs a session: stateless, unsupported or unknown."""
        return "unknown" if self._stateless is None else "stateless" if self._stateless else "unsupported"

    async def _list_tools(self) -> list[Json]:
        """Return the tools as Responses function tools, ready for a dataset's rows."""
        return self._schemas

    async def _list_examples(self) -> list[Json]:
        """Return the rows of `data/example.jsonl` in the environment's folder; status 404 if there are none."""
        file = None if self.folder is None else self.folder / "data" / "example.jsonl"
        if file is None or not file.is_file():
            detail = f"no example rows: {file or 'the module of the environment is not a file'}"
            raise Failure(FailureKind.BAD_REQUEST, detail, status=404)
        # Imported late: it supports every dataset format, and its import takes 0.2 s.
        from rollyard.resources_servers.dataset_sources import read_rows

        return list(read_rows(file))

    def _with_cookie(self, call: RawRequest, session: OpenEpisode, body: bytes) -> bytes | RawResponse:
        """Build the response. Clients other than Rollyard's get the cookie again, as some keep only the latest ones."""
        if _RUN in call.headers:
            return body
        return RawResponse(body, headers=_set_cookie(session))

    def _open_session(
        self, call: RawRequest, row: Json, *, turn_based: bool = False, name: str | None = None
    ) -> OpenEpisode:
        name = name or call.header(SESSION_HEADER.encode())
        # Only agents of this run are in the directory. The server rejects requests with the header of another run.
        own = _RUN in call.headers
        owner = (call.header(OWNER_HEADER.encode()) or "") if own else ""
        try:
            return self._sessions.open(
                lambda: self._environment(row, self.settings), row, name=name, owner=owner, turn_based=turn_based
            )
        except BadTask as error:
            raise Failure(FailureKind.BAD_TASK, str(error)) from error


def session_name(given: Any) -> str:
    """Return a name for the session of a caller that chose its id, which may be any text."""
    if not isinstance(given, str) or not given:
        raise Failure(FailureKind.BAD_REQUEST, f"{RESOURCES_SESSION} is {json_kind(given)}; expected a text")
    return hashlib.blake2b(given.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _set_cookie(session: OpenEpisode) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"set-cookie", session.cookie + b"; Path=/; HttpOnly; SameSite=Lax"),)


@dataclass(frozen=True)
class Additions:
    system_prompt: str | None
    user_template: str | None
    tools: Sequence[Json]

    def for_row(self, row: Mapping[str, Any], *, with_tools: bool = True) -> Json:
        """Return the input and tools that the row lacks. Raises BadTask if it lacks a field of the user template."""
        given = row.get("responses_create_params")
        params: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        items: list[Json] = []
        added: Json = {}
        if self.system_prompt and not params.get("instructions") and not _has_system_message(params.get("input")):
            items.append({"role": "system", "content": self.system_prompt})
        if self.user_template and params.get("input") is None:
            try:
                items.append({"role": "user", "content": fill(self.user_template, row)})
            except ValueError as error:
                raise BadTask(f"the user template {error}") from error
        if items:
            added["input"] = items
        if with_tools and self.tools and params.get("tools") is None:
            added["tools"] = self.tools
        return added


def _has_system_message(given: object) -> bool:
    items = given if isinstance(given, list) else []
    return any(isinstance(item, dict) and item.get("role") in ("system", "developer") for item in items)


class EpisodeMetrics:
    """Counts failed calls of `close`, and the asyncio tasks of this process."""

    def __init__(self, failed_closes: Callable[[], int]) -> None:
        self._failed_closes = failed_closes

    def collect(self) -> Iterable[Metric]:
        about = "Episodes whose close raised, hung or cancelled itself"
        yield CounterMetricFamily("rollyard_failed_closes", about, value=self._failed_closes())
        try:
            tasks = len(asyncio.all_tasks())
        except RuntimeError:  # Prometheus calls this once outside the event loop, to learn the names
            tasks = 0
        yield GaugeMetricFamily("rollyard_asyncio_tasks", "asyncio tasks of the process", value=tasks)


class OrphanedSessions:
    """Ends the sessions of agents that exited more than `grace_s` seconds ago, unless a client still uses them."""

    def __init__(self, sessions: Sessions, directory: Callable[[], Awaitable[Directory]], grace_s: float) -> None:
        self._sessions = sessions
        self._directory = directory
        self._grace_s = grace_s
        self._missed: dict[str, float] = {}
        """Agents of open sessions that are not in the directory -> when this was first noticed."""

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(min(self._grace_s / 4, 5.0))
            with contextlib.suppress(Failure):
                self.look(set((await self._directory()).instances))

    def look(self, present: set[str]) -> None:
        """End the sessions of instances that have been missing from `present` for longer than the grace period."""
        now = time.monotonic()
        gone = {session.owner for session in self._sessions.open_now} - present - {""}
        self._missed = {owner: self._missed.get(owner, now) for owner in gone}
        for session in self._sessions.open_now:
            since = self._missed.get(session.owner)
            if since is not None and now - max(since, session.touched) > self._grace_s:
                log.warning("closing session %s because its agent %s has exited", session.id, session.owner)
                self._sessions.end(session)


INDEX = "problem_idx"
DATASET = "served_dataset"
"""Keys of the metadata: the row's index, and the name of the dataset that it refers to."""
_ANSWERS = ("expected_answer", "answer")
_VERDICT_FIELDS = ("reward", "extracted_answer", "metadata")


def is_index_request(body: Json) -> bool:
    """Return True for a request for a task of the served dataset, False for one that contains a row itself."""
    return body.keys() == {"idx"}


def is_text_request(body: Json) -> bool:
    """Return True for a request for a verdict on plain text, in which `response` is a string instead of an object."""
    return "expected" in body and isinstance(body.get("response"), str)


def index_of(body: Json, dataset: str) -> int | None:
    """Return which row of the served dataset a text request is about; None if it is about a row of the evaluator."""
    metadata = _metadata(body)
    index = metadata.get(INDEX)
    return index if isinstance(index, int) and metadata.get(DATASET) == dataset else None


def row_in(body: Json) -> Json:
    return {**_metadata(body), "expected_answer": body["expected"]}


def as_request(row: Json, text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "msg_text", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "resp_text", "object": "response", "status": "completed", "output": [message]}
    return {**row, "response": response}


def task(index: int, dataset: str, row: Json, added: Json) -> Json:
    """Return the task in the evaluator's format, and under `additions` in Rollyard's.

    `added`: the input and tools that the environment adds to the row.
    """
    params = row.get("responses_create_params") or {}
    items: list[Json] = [*added.get("input", ()), *_items(params.get("input"))]
    if isinstance(instructions := params.get("instructions"), str) and instructions:
        items.insert(0, {"role": "system", "content": instructions})
    tools = params.get("tools") or added.get("tools") or []
    messages = [{"role": item["role"], "content": _text(item.get("content"))} for item in items if item.get("role")]
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    known = {"responses_create_params", "agent_ref", *_ANSWERS}
    metadata = {key: value for key, value in row.items() if key not in known and not isinstance(value, list | dict)}
    if isinstance(extra := row.get("verifier_metadata"), dict):
        metadata["verifier_metadata"] = extra
    if tools:
        metadata["tools"] = tools
    answer = next((row[key] for key in _ANSWERS if row.get(key) is not None), "")
    return {
        "prompt": prompts[-1] if prompts else "",
        "expected_answer": answer if isinstance(answer, str) else str(answer),
        "metadata": {**metadata, INDEX: index, DATASET: dataset},
        "messages": messages,
        "system": None,
        "additions": {"input": items, **({"tools": tools} if tools else {})},
    }


def text_verdict(verdict: Mapping[str, Any]) -> Json:
    answer = verdict.get("extracted_answer")
    return {
        "reward": verdict["reward"],
        "extracted_answer": answer if isinstance(answer, str | None) else str(answer),
        "scoring_details": {key: value for key, value in verdict.items() if key not in _VERDICT_FIELDS},
        "metadata": {},
    }


def _metadata(body: Json) -> Json:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _items(given: Any) -> list[Json]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


class ServedDataset:
    """The rows of one file. Rows of a plain file are read again on demand; those of other formats stay in memory."""

    def __init__(
        self, name: str, file: Any, rows: Sequence[tuple[int, int]] | Sequence[Json], prompts: dict[bytes, int]
    ) -> None:
        """`prompts`: digest of each `responses_create_params` that only one row has -> index of the row."""
        self.name = name
        self._file = file
        self._rows = rows
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._rows)

    def row_with_prompt(self, params: object) -> Json:
        index = self._prompts.get(_digest(params)) if params else None
        return {} if index is None else self.row(index)

    def row(self, index: object) -> Json:
        """Return a row. Raises Failure bad_request if there is no row with this index."""
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self):
            detail = f"idx is {index!r:.100}; the dataset {self.name!r} has {len(self)} rows, numbered from 0"
            raise Failure(FailureKind.BAD_REQUEST, detail)
        found = self._rows[index]
        if isinstance(found, dict):
            return dict(found)
        from rollyard.records.rows import row_at

        try:
            return row_at(self._file, *found)
        except OperatorError as error:
            raise Failure(FailureKind.SERVER_ERROR, str(error)) from error


async def configured_dataset(settings: ServerSettings, folder: Path | None) -> ServedDataset | None:
    """Open the dataset of the setting `served_dataset`; None without it. `folder`: the environment's. Raises
    OperatorError, as `open_dataset` does.
    """
    assert isinstance(settings, EnvironmentSettings)
    if settings.served_dataset is None:
        return None
    roots = [Path.cwd(), *([folder] if folder else [])]
    return await asyncio.to_thread(open_dataset, settings.served_dataset, settings.datasets, roots)


def open_dataset(wanted: str, entries: Sequence[Json], roots: Sequence[Path]) -> ServedDataset:
    """Open the dataset that `wanted` names: an entry of the config's `datasets`, or a file in one of the roots. Raises
    OperatorError if there is none, or if one of its rows is not a task.
    """
    # Imported late: they support every dataset format, and most servers serve no dataset.
    from rollyard.records.data_files import DataFiles, is_plain
    from rollyard.records.rows import rows_of

    named = {str(entry.get("name")): entry for entry in entries}
    address = str(named.get(wanted, {}).get("jsonl_fpath") or wanted)
    if wanted in named and address == wanted:
        raise OperatorError(f"served_dataset is {wanted!r}, an entry of `datasets` without jsonl_fpath: add it")
    file = DataFiles([*roots, INSTALLED]).find(address)
    if file is None:
        known = f"the entries of `datasets` are {', '.join(named)}" if named else "`datasets` has no entries"
        places = ", ".join(map(str, [*roots, INSTALLED]))
        raise OperatorError(
            f"served_dataset is {wanted!r}, and there is no file {address} in {places}; {known}. "
            "Set it to the name of an entry or to the path of a file"
        )
    plain = is_plain(file)
    places_of_rows: list[tuple[int, int]] = []
    values: list[Json] = []
    prompts: dict[bytes, int] = {}
    repeated: set[bytes] = set()
    for index, row in enumerate(rows_of(file)):
        if row.problem:
            raise OperatorError(f"served_dataset {address}: line {row.line}{row.problem}")
        if params := row.value.get("responses_create_params"):
            if (digest := _digest(params)) in prompts:
                repeated.add(digest)
            prompts[digest] = index
        if plain:
            places_of_rows.append((row.offset, row.line_hash))
        else:
            values.append(row.value)
    for digest in repeated:
        del prompts[digest]
    return ServedDataset(wanted, file, places_of_rows if plain else values, prompts)


def _digest(params: object) -> bytes:
    return hashlib.blake2b(orjson.dumps(params, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def missing_dataset() -> Failure:
    detail = (
        "no dataset is served, so there is no task idx to play: set served_dataset of this server to the name of an "
        "entry of its `datasets` or to the path of a JSON Lines file, or send the row itself"
    )
    return Failure(FailureKind.BAD_REQUEST, detail)

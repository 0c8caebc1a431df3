"""The worlds' front door.

What you write: an `Environment`; one object is one episode, its state sits on `self`, no HTTP, no cookies, no locks.
What is done for you: `ResourcesServer` opens, finds, times out and closes sessions and speaks the wire format.

    class Guess(Environment[WorldSettings]):
        @tool
        async def guess(self, number: int) -> str:
            return "yes" if number == self.task["secret"] else "no"

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=float(response.text.strip() == str(self.task["secret"])))

    server = hosting(Guess)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar, TypeVar

import orjson

from resources_servers.environment import BadTask, Environment, Turn, Verification, WorldSettings, settings_of
from resources_servers.sessions import OpenEpisode, Sessions
from resources_servers.tools import Tool, ToolMistake, tool, tools_of
from services.call import Call, Handler, Reply
from services.client import RUN_HEADER, SESSION_END_HEADER
from services.errors import Failure, FailureKind
from services.server import Context, Server
from services.settings import ServerSettings
from services.types import Json, Verdict

__all__ = [
    "BadTask",
    "Environment",
    "ToolMistake",
    "Turn",
    "Verdict",
    "Verification",
    "WorldSettings",
    "hosting",
    "tool",
]

T = TypeVar("T")


class ResourcesServer(Server):
    """Hosts an Environment class."""

    def __init__(self, environment: type[Environment[Any]], settings: WorldSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._environment = environment
        tools = tools_of(environment).items()
        self._tools: dict[str, Tool] = {name: made for name, made in tools if environment.offers(name, settings)}
        self._sessions: Sessions[Environment[Any]] = Sessions(
            context.keys.secret, idle_s=settings.session_idle_s, limit=settings.max_sessions
        )
        self._reaper: asyncio.Task[None] | None = None
        routes: list[tuple[str, Handler]] = [
            ("/seed_session", self._seed),
            ("/reset", self._reset),
            ("/step", self._step),
            ("/verify", self._verify),
            ("/close", self._close),
            ("/aggregate_metrics", self._aggregate_metrics),
            *((f"/{name}", self._call_tool) for name in self._tools if name != "step"),
        ]
        for path, handler in routes:
            self.route(path, handler)
        self.route_rest(self._unknown_tool)
        self.app.get("/tools")(self._list_tools)

    @property
    def sessions(self) -> int:
        """Episodes open now."""
        return len(self._sessions)

    async def start(self) -> None:
        """Begin to look for forgotten sessions."""
        self._reaper = asyncio.create_task(self._sessions.reap())

    async def stop(self) -> None:
        """Close every episode."""
        if self._reaper is not None:
            self._reaper.cancel()
        await self._sessions.close_all()

    async def _seed(self, call: Call) -> Reply:
        """Open a session for a data set row; its id comes back in a signed cookie."""
        session = await self._begin(call)
        observation = await self._or_close(session, session.episode.seed())
        body = orjson.dumps({"observation": observation}) if observation else b"{}"
        return Reply(body, headers=((b"set-cookie", self._sessions.cookie(session)),))

    async def _reset(self, call: Call) -> Reply:
        """Turn-based: open a session for a row and answer the first observation."""
        session = await self._begin(call)
        await self._or_close(session, session.episode.seed())
        observation, info = await self._or_close(session, session.episode.reset())
        body = orjson.dumps({"observation": observation, "info": {"supports_explicit_close": True, **info}})
        return Reply(body, headers=((b"set-cookie", self._sessions.cookie(session)),))

    async def _step(self, call: Call) -> bytes | Reply:
        """The tool of that name, or, when the body holds a `response`, one turn of the turn-based form."""
        if b'"response"' not in call.body or not isinstance(call.json().get("response"), dict):
            return await (self._call_tool(call) if "step" in self._tools else self._unknown_tool(call))
        async with self._sessions.turn(call) as session:
            turn = await _refusing(session.episode.turn(Verification(call.body).text))
        if turn.terminated or turn.truncated:
            await self._sessions.close(session.id)
        return self._told(call, session, orjson.dumps(turn))

    async def _call_tool(self, call: Call) -> bytes | Reply:
        """Call this tool in the session; a bad argument is answered with words for the model."""
        used = self._tools[call.path[1:]]
        async with self._sessions.turn(call) as session:
            try:
                result = await _refusing(used.method(session.episode, **used.parse(call.body)))
            except ToolMistake as mistake:
                return self._told(call, session, orjson.dumps({"error": str(mistake)}))
        return self._told(call, session, orjson.dumps(result))

    async def _unknown_tool(self, call: Call) -> bytes | Reply:
        """A tool that does not exist: words for the model."""
        session = self._sessions.find(call)
        known = ", ".join(sorted(self._tools)) or "none"
        words = f"There is no tool {call.path[1:]!r}. Tools: {known}."
        return self._told(call, session, orjson.dumps({"error": words}))

    async def _verify(self, call: Call) -> bytes | Reply:
        """The verdict on the session's episode, beside everything that was sent."""
        verification = Verification(call.body)
        async with self._sessions.turn(call) as session:
            verdict = (await _refusing(session.episode.verify(verification))).model_dump()
        if call.header(SESSION_END_HEADER.encode()) is None:
            return self._told(call, session, orjson.dumps({**verification.row, **verdict}))
        # Our own agents ask for the verdict alone and say that the episode ends here: two big bodies and a hop less.
        await self._sessions.close(session.id)
        return orjson.dumps(verdict)

    async def _close(self, call: Call) -> bytes:
        """End the session; ending it twice is fine."""
        await self._sessions.close(self._sessions.named(call))
        return b'{"closed":true}'

    async def _aggregate_metrics(self, call: Call) -> bytes:
        """Mean of every number over `{"verify_responses": [...]}`, in NeMo Gym's shape."""
        values: dict[str, list[float]] = {}
        rows = call.json().get("verify_responses")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Failure(FailureKind.BAD_REQUEST, "expected {verify_responses: [...]}, a list of /verify answers")
        for row in rows:
            for key, value in row.items():
                if isinstance(value, int | float) and not key.startswith("_"):
                    values.setdefault(key, []).append(float(value))
        means = {f"mean/{key}": sum(found) / len(found) for key, found in values.items()}
        return orjson.dumps({"agent_metrics": means, "key_metrics": means, "group_level_metrics": []})

    async def _list_tools(self) -> list[Json]:
        """The tools as Responses function tools, ready for a data set's rows."""
        return [known.schema() for known in self._tools.values()]

    def _told(self, call: Call, session: OpenEpisode[Environment[Any]], body: bytes) -> bytes | Reply:
        """The answer; for clients of other stacks with the cookie again: some keep only the last answer's cookies."""
        if call.header(RUN_HEADER.encode()) is not None:
            return body
        return Reply(body, headers=((b"set-cookie", self._sessions.cookie(session)),))

    async def _begin(self, call: Call) -> OpenEpisode[Environment[Any]]:
        try:
            return self._sessions.open(self._environment(call.json(), self.settings))
        except BadTask as error:
            raise Failure(FailureKind.BAD_TASK, str(error)) from error

    async def _or_close(self, session: OpenEpisode[Environment[Any]], work: Awaitable[T]) -> T:
        """The result of `work`; a session that could not be set up does not stay open."""
        try:
            return await _refusing(work)
        except BaseException:
            await self._sessions.close(session.id)
            raise


async def _refusing(work: Awaitable[T]) -> T:
    try:
        return await work
    except BadTask as error:
        raise Failure(FailureKind.BAD_TASK, str(error)) from error


class Hosting(ResourcesServer):
    """A ResourcesServer bound to one Environment class; `hosting` makes them."""

    environment: ClassVar[type[Environment[Any]]]

    def __init__(self, settings: ServerSettings, context: Context) -> None:
        assert isinstance(settings, WorldSettings)
        super().__init__(self.environment, settings, context)


def hosting(environment: type[Environment[Any]]) -> type[Hosting]:
    """The server class for an Environment: the one line at the end of a world's `app.py`."""
    members = {"environment": environment, "Settings": settings_of(environment), "__doc__": environment.__doc__}
    return type(f"{environment.__name__}Server", (Hosting,), members)

"""How to write an agent: the module to import from.

What you write: `play(episode)`, the loop, plain to see: ask the model, run the tools it calls, decide when to stop.

    class Patient(Agent[AgentSettings]):
        async def play(self, episode: Episode) -> FinishReason:
            while (turn := await episode.ask()).calls:
                for call in turn.calls:
                    await episode.call(call)
            return turn.ending

    server = Patient

The type argument names the settings, which are at `self.settings`.
What is done for you: `run` seeds a session, plays, verifies and closes it whatever happened; `/v1/responses` plays in a
session that the caller already holds.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import orjson
from fastapi import Query
from pydantic import Field

from rollyard.agents.active_episodes import ActiveEpisodes, EpisodeState
from rollyard.agents.conversation import Conversation
from rollyard.agents.episode import Episode
from rollyard.agents.session_closer import SessionCloser
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.head.activity import RunningEpisodes
from rollyard.services.http.client import EPISODE_HEADER, OWNER_HEADER, SESSION_END_HEADER, SESSION_HEADER, Session
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.responses import stream_events
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS
from rollyard.services.rollouts.rewards import check_reward
from rollyard.services.rollouts.run_answer import RESPONSE_BYTES_HEADER, encode_response, encode_row
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings, settings_argument
from rollyard.services.types import FinishReason, Json, ServerRef


class AgentSettings(ServerSettings):
    """What every agent's settings share."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {"model_timeout_s", "tool_timeout_s"}

    resources_server: ServerRef
    """The world."""
    model_server: ServerRef
    """The policy."""
    model_timeout_s: float = Field(default=900.0, gt=0)
    """Deadline of one model call, retries of the model server included."""
    tool_timeout_s: float = Field(default=120.0, gt=0)
    """Deadline of one call to the world."""


S = TypeVar("S", bound=AgentSettings)


class Agent(Server, Generic[S]):
    """Plays one episode per `/run`."""

    Settings: ClassVar[type[ServerSettings]] = AgentSettings
    settings: S
    episode_type: Callable[..., Episode] = Episode
    """Makes what `play` is given. A subclass of Episode may use other endpoints of the resources server."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Settings" not in cls.__dict__:
            cls.Settings = settings_argument(cls, AgentSettings) or cls.Settings

    def __init__(self, settings: S, context: Context) -> None:
        super().__init__(settings, context)
        self.__model = settings.model_server.name
        self.__owner = {OWNER_HEADER: context.instance} if context.instance else {}
        self.__closer = SessionCloser()
        self.__active_episodes = ActiveEpisodes(
            self.name, environment=settings.resources_server.name, model=settings.model_server.name
        )
        self.route("/run", self.__run, cancellable=True)
        self.route("/v1/responses", self.__responses, cancellable=True)
        self.route("/aggregate_metrics", self.__aggregate_metrics)
        self.app.get("/episodes")(self.__episodes)
        self.measure(self.__active_episodes)

    # --- what you write ---------------------------------------------------------------------------------------------

    async def play(self, episode: Episode) -> FinishReason:
        """Play until the end and say why it ended. Failures are raised, never turned into an ending."""
        raise NotImplementedError(f"{type(self).__name__} must define play")

    # --- what is done for you ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Bring the ends of sessions to their end."""
        await self.__closer.settle()

    @property
    def sessions(self) -> int:
        """Episodes being played."""
        return len(self.__active_episodes)

    async def __run(self, call: RawRequest) -> RawResponse:
        """Play a data set row: seed, play, verify. Answers the row's request, the whole episode and the verdict."""
        row = call.json()
        # Chosen here, so that the session can be ended even where its cookie is lost on the way.
        named = {SESSION_HEADER: uuid.uuid4().hex, **self.__owner}
        environment = Session(self.client, self.settings.resources_server.name, headers=named)
        with self.__active_episodes.one(uuid.uuid4().hex, row) as place:
            episode = self.__episode(_create_params(row), environment, place)
            try:
                await episode.seed(call.body)
                reason = await self.play(episode)
                answer = {**row, **episode.result()}
                response, body = _written(answer, self.__model)
                verdict = await episode.verify(body, {SESSION_END_HEADER: "1"})
            finally:
                if environment.may_be_open and not episode.closed:
                    place.enter("close", environment.server)
                    await self.__closer.close(environment)
            check_reward(verdict, "/verify", environment.server)
            timings = {**episode.timings.seconds(), "total_s": round(time.perf_counter() - place.began, 6)}
        ended = {"finish_reason": reason, "truncated": reason.truncated, "timings": timings}
        rollout = {**answer, **ended, **verdict}
        if "response" in verdict:
            return RawResponse(orjson.dumps(rollout))
        length = (RESPONSE_BYTES_HEADER.encode(), str(len(response)).encode())
        return RawResponse(encode_row(rollout, response), headers=(length,))

    async def __responses(self, call: RawRequest) -> RawResponse:
        """Play in the caller's own session (its cookies name it); answers the episode as one Response.

        With `"stream": true` that is the events of the finished episode.
        """
        params = call.json()
        stream = params.get("stream")
        environment = Session(self.client, self.settings.resources_server.name, call.header(b"cookie") or "")
        named = call.header(EPISODE_HEADER.encode()) or uuid.uuid4().hex
        with self.__active_episodes.one(named, params) as place:
            episode = self.__episode(params, environment, place)
            await self.play(episode)
        # Some clients keep only the last answer's cookies, and need the world's for /verify.
        cookies = tuple((b"set-cookie", f"{pair}; Path=/".encode()) for pair in environment.cookies)
        response = episode.response()
        if stream:
            whole = stream_events.whole(dict(response))
            return RawResponse(whole, content_type=SSE, headers=(*STREAM_HEADERS, *cookies))
        return RawResponse(orjson.dumps(response), headers=cookies)

    async def __aggregate_metrics(self, call: RawRequest) -> bytes:
        """The world's own aggregate over `{"verify_responses": [...]}`."""
        name = self.settings.resources_server.name
        answer = await self.client.post(name, "/aggregate_metrics", call.body, self.settings.tool_timeout_s)
        return answer.body

    async def __episodes(self, limit: Annotated[int, Query(ge=0)] | None = None) -> RunningEpisodes:
        """The episodes that are being played: how many in each stage, and the oldest `limit` one by one."""
        return self.__active_episodes.now(limit)

    def __episode(self, params: Json, environment: Session, place: EpisodeState) -> Episode:
        headers = {EPISODE_HEADER: place.episode}
        # A turn is read whole: the loop decides by what is in it.
        asked = {key: value for key, value in params.items() if key not in ("stream", "stream_options")}
        return self.episode_type(
            Conversation(asked),
            environment,
            Session(self.client, self.settings.model_server.name, headers=headers),
            place,
            model_timeout_s=self.settings.model_timeout_s,
            tool_timeout_s=self.settings.tool_timeout_s,
        )


def _create_params(row: Json) -> Json:
    """The row's; the environment may add the input. Raises Failure bad_task for what cannot be a request."""
    params = {} if (found := row.get("responses_create_params")) is None else found
    if not isinstance(params, dict) or not isinstance(params.get("input"), str | list | None):
        kind = type(params["input"] if isinstance(params, dict) else params).__name__
        place = "responses_create_params.input" if isinstance(params, dict) else "responses_create_params"
        detail = f"{place} of the row is a JSON {kind}; expected an object with an `input`, a text or a list"
        raise Failure(FailureKind.BAD_TASK, detail)
    return params


def _written(answer: Json, model: str) -> tuple[bytes, bytes]:
    """The response alone, and the answer with it: the episode, which is long, is encoded once.

    Raises Failure malformed_answer for an episode that is nested deeper than JSON can be written.
    """
    try:
        response = encode_response(answer["response"])
        return response, encode_row(answer, response)
    except TypeError as error:
        detail = f"the model's answers cannot be written ({error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=model) from error

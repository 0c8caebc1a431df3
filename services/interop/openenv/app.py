"""The app that serves an environment over OpenEnv's protocol.

`POST /reset` and `POST /step` use a new episode for each request, as OpenEnv's own servers do. An episode of several
steps is played over the WebSocket `/ws`; a session lives as long as its connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, WebSocket

from rollyard.records.types import Json
from rollyard.services.interop.openenv.json_rpc import JsonRpc
from rollyard.services.interop.openenv.player import Player
from rollyard.services.interop.openenv.schemas import action_schema, observation_schema, state_schema
from rollyard.services.interop.openenv.socket import Sockets
from rollyard.services.interop.serving.environment import ServedEnvironment
from rollyard.services.interop.serving.error_handlers import handle_errors
from rollyard.services.interop.serving.json_body import InvalidBody, object_in, read_object
from rollyard.services.interop.serving.session_store import SessionStore
from rollyard.services.interop.serving.task_routes import add_task_routes

VERSION = "1.0.0"
"""Version of OpenEnv's HTTP API, which `openenv validate` reads."""


def openenv_app(environment: ServedEnvironment, *, max_sessions: int, idle_s: float) -> FastAPI:
    """Return the app. `idle_s`: after which time a session of HTTP requests without a connection is closed."""
    sessions: SessionStore[Player] = SessionStore(max_sessions, idle_s)
    rpc = JsonRpc(environment, sessions)
    sockets = Sockets(environment, sessions, rpc)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with sessions.open():
            yield

    app = FastAPI(title=environment.name, version=VERSION, redoc_url=None, lifespan=lifespan)
    app.state.sessions = sessions
    handle_errors(app, invalid_status=422)

    @app.get("/health")
    async def health() -> Json:
        return {"status": "healthy", "sessions": len(sessions)}

    @app.get("/metadata")
    async def metadata() -> Json:
        return {"name": environment.name, "description": environment.description, "version": VERSION}

    @app.get("/schema")
    async def schema() -> Json:
        action = action_schema(turn_based=environment.turn_based)
        observation = observation_schema()
        return {
            "action": action,
            "observation": observation,
            "reset_observation": observation,
            "state": state_schema(),
        }

    @app.get("/state")
    async def state() -> Json:
        """Return the state of a new episode: this request belongs to no session."""
        return Player(environment).state()

    @app.post("/reset")
    async def reset(request: Request) -> Json:
        asked, player = await read_object(request), Player(environment)
        try:
            return await player.reset(asked)
        finally:
            await player.close()

    @app.post("/step")
    async def step(request: Request) -> Json:
        asked, player = await read_object(request), Player(environment)
        if "action" not in asked:
            raise InvalidBody("action is missing; expected an object")
        try:
            await player.reset({**asked, "episode_id": None})
            return await player.step(object_in(asked, "action"))
        finally:
            await player.close()

    @app.post("/mcp")
    async def mcp(request: Request) -> Json:
        body = await request.body()
        return await rpc.answer(body)

    @app.websocket("/ws")
    async def play(socket: WebSocket) -> None:
        await sockets.play(socket)

    @app.websocket("/mcp")
    async def call_tools(socket: WebSocket) -> None:
        await sockets.call_tools(socket)

    add_task_routes(app, environment)
    return app

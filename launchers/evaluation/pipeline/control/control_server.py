"""ControlServer: lets `ng_eval status|pause|resume|stop` reach a running evaluation, on loopback and with a token."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import orjson

from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.evaluation.pipeline.control.control_requests import ControlRequests
from rollyard.launchers.evaluation.pipeline.eval_state import EvalState
from rollyard.records.types import Record

RECORDS = Path(".rollyard") / "evals"
"""Folder, in the working directory of `ng_eval`, with one file for each evaluation that was started there."""


class ControlRecord(Record):
    """Where an evaluation can be controlled. The file is readable only by its user."""

    id: str
    folder: str
    worker: str | None
    address: str
    token: str


class ControlServer:
    """GET /status, POST /pause, /resume and /stop. Each request needs the token as Authorization: Bearer."""

    def __init__(
        self, requests: ControlRequests, state: Callable[[], EvalState], folder: EvalFolder, here: Path
    ) -> None:
        self._requests = requests
        self._state = state
        self._folder = folder
        self._records = here / RECORDS
        self._token = secrets.token_urlsafe(24)
        self._server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}"

    async def __aenter__(self) -> Self:
        handler = self._handler(asyncio.get_running_loop())
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        state = self._state()
        record = ControlRecord(
            id=state.id, folder=state.folder, worker=state.worker, address=self.address, token=self._token
        )
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{state.id}.json"
        self._records.mkdir(parents=True, exist_ok=True)
        for path in (self._records / name, self._folder.control):
            _write_private(path, orjson.dumps(record.model_dump()))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()

    def _handler(self, loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
        requests, state, token = self._requests, self._state, self._token
        actions = {"/pause": requests.pause, "/resume": requests.resume, "/stop": requests.stop}

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                if self.path == "/status":
                    self._answer(200, state().model_dump())
                else:
                    self._answer(404, {"detail": "expected GET /status, or POST /pause, /resume or /stop"})

            def do_POST(self) -> None:
                if (action := actions.get(self.path)) and self._is_authorized():
                    loop.call_soon_threadsafe(action)
                    self._answer(200, state().model_dump())
                else:
                    self._answer(404, {"detail": "expected GET /status, or POST /pause, /resume or /stop"})

            def _is_authorized(self) -> bool:
                given = self.headers.get("authorization", "").encode("utf-8", "replace")
                return hmac.compare_digest(given, f"Bearer {token}".encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

            def _answer(self, status: int, body: object) -> None:
                if not self._is_authorized():
                    status, body = 401, {"detail": "expected the token of this evaluation"}
                content = orjson.dumps(body)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler


def _write_private(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    temporary.replace(path)

"""A model server whose answers are a function of the request and of the environment's script.

A request whose input begins with the input of an example row gets what the script has for that row and for the number
of turns that the model has had. Every other request comes from an environment that asks a judge.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.external.nemo_gym.compatibility.catalog import Row
from tests.external.nemo_gym.compatibility.judging import verdict

Items = list[dict[str, Any]]
Script = Callable[[Row, int, Items], Items]
"""Row, its number in the file, and the input after the row's own -> the output items of the model's next turn."""


def texts(items: Any) -> list[tuple[str, str]]:
    """Role and text of each item of an input, in a form in which equal conversations are equal."""
    if isinstance(items, str):
        return [("user", items)]
    return [(item.get("role") or item.get("type", ""), _text(item)) for item in items or []]


def _text(item: dict[str, Any]) -> str:
    content = item.get("content", item.get("output", item.get("arguments", "")))
    if isinstance(content, list):
        return "".join(part.get("text") or part.get("image_url") or "" for part in content)
    return str(content)


def model_turns(history: Items) -> int:
    """The number of turns that the model has had: runs of items that the model made."""
    made = [item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant" for item in history]
    return sum(now and not before for before, now in zip([False, *made], made, strict=False))


class ScriptedModel:
    """The answers of one environment. Thread-safe, because it changes nothing."""

    def __init__(self, rows: Sequence[Row], script: Script) -> None:
        self._rows = [(texts(row["responses_create_params"]["input"]), row) for row in rows]
        self._script = script

    def items(self, request: dict[str, Any]) -> Items:
        asked = texts(request.get("input"))
        for number, (own, row) in enumerate(self._rows):
            if asked[: len(own)] == own:
                history = request["input"][len(own) :] if isinstance(request["input"], list) else []
                return self._script(row, number, history)
        return [message(verdict(asked, _schema(request)))]

    def response(self, request: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer of /v1/responses."""
        output = self.items(request)
        digest = sha256(json.dumps(request.get("input"), sort_keys=True).encode()).hexdigest()[:16]
        sent = {"tool_choice": request.get("tool_choice") or "auto", "tools": request.get("tools") or []}
        head = {"id": f"resp_{digest}", "created_at": 1_700_000_000, "model": "scripted", "object": "response"}
        parallel = bool(request.get("parallel_tool_calls", True))
        return {**head, "output": output, "parallel_tool_calls": parallel, **sent}

    def completion(self, request: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer of /v1/chat/completions, by which some environments ask their judge."""
        items = self.items({**request, "input": request.get("messages")})
        text = "".join(_text(item) for item in items if item["type"] == "message")
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "chatcmpl_scripted", "object": "chat.completion", "created": 1_700_000_000, "model": "scripted"}
        return {**head, "choices": [choice], "usage": usage}


def _schema(request: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema in which a request of either API wants its answer; None if it names none."""
    form = request.get("response_format") or (request.get("text") or {}).get("format") or {}
    found: dict[str, Any] | None = form.get("schema") or (form.get("json_schema") or {}).get("schema")
    return found


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    digest = sha256(text.encode()).hexdigest()[:12]
    head = {"id": f"msg_{digest}", "type": "message", "role": "assistant", "status": "completed"}
    return {**head, "content": content}


def call(name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    digest = sha256(f"{name} {written}".encode()).hexdigest()[:12]
    head = {"id": f"fc_{digest}", "call_id": f"call_{digest}", "type": "function_call", "status": "completed"}
    return {**head, "name": name, "arguments": written}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class ModelServer:
    """A `ScriptedModel` over HTTP on a free port, until `close`."""

    def __init__(self, model: ScriptedModel) -> None:
        self._server = _Server(("127.0.0.1", 0), _handler(model))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

        def do_POST(self) -> None:
            answers = {"/responses": model.response, "/chat/completions": model.completion}
            answer = next((made for end, made in answers.items() if self.path.endswith(end)), None)
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self._answer(200, answer(request)) if answer else self._answer(404, {"detail": f"no {self.path}"})
            except Exception as error:  # a mistake in a script; NeMo Gym's client repeats requests that get no answer
                self._answer(500, {"detail": f"the script failed: {error!r}"})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            written = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler

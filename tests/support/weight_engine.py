"""An in-process engine with replaceable weights, modelled on the behaviour of a real vLLM 0.32.

A failed load leaves no weights: a request that runs then kills the engine, and later loads give garbage. A paused
engine holds its requests until it is resumed. Its completions name the weights that produced them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

from rollyard.records.run_types import Keys
from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.request import ASGIApp, HttpResponse, Receive, Scope, Send
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context
from tests.support.scripted_engine import empty_directory

STARTED = "/weights/started"
TOKEN = "the run's token"
GARBAGE = "/weights/garbage"
REFUSAL = "it does not want to"
"""The message of an engine that refuses a call."""


ODD_STREAM = (
    b'data: {"object": "odd", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


class WeightEngine:
    def __init__(
        self, *, failing_folder: str = "", supports_labels: bool = True, root: str = STARTED, device: str = "cuda"
    ) -> None:
        self.weights: str | None = root
        self.root = root
        """The folder that it starts with."""
        self.device = device
        self.on_load: Callable[[], object] = bool
        """Called in the middle of a load."""
        self.label = "default"
        self.calls: list[tuple[str, Json]] = []
        """(path with query, body) of each request, in order of arrival. Without the regular checks of /weight_info."""
        self.headers: list[dict[str, str]] = []
        self.checks = 0
        self.dead = False
        self.failing_folder = failing_folder
        """A folder whose load fails."""
        self.fails: set[str] = set()
        """Paths that answer 500."""
        self.fails_once: set[str] = set()
        self.crashes_at: set[str] = set()
        """Paths at which the process ends."""
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Paths that answer something else."""
        self.delayed: dict[str, asyncio.Event] = {}
        """Paths that answer only after the event."""
        self.offset = 0.0
        """Added to the log-probabilities of prompts, which otherwise are those of `log_prob`."""
        self.running = 0
        self.paused = False
        self._lost = False
        self._supports_labels = supports_labels
        self._going = asyncio.Event()
        self._going.set()
        self._aborted = asyncio.Event()

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    def hold_requests(self) -> None:
        """Keep requests running until the engine is resumed."""
        self._going.clear()

    def restart(self) -> None:
        """Replace the process by a new one."""
        self.weights, self.label = self.root, "default"
        self._lost = self.paused = self.dead = False
        self.crashes_at.clear()
        self._going.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.dead:
            raise ConnectionResetError("the engine is not running")
        body = (await receive())["body"]
        query = scope["query_string"].decode()
        path = scope["path"]
        if path == "/weight_info":
            self.checks += 1
        else:
            self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
            self.calls.append((f"{path}?{query}" if query else path, orjson.loads(body) if body else {}))
        if path in self.crashes_at:
            self.dead = True
            raise ConnectionResetError("the request killed the engine")
        status, content, content_type = await self._response(path, query, orjson.loads(body) if body else {})
        headers = [(b"content-type", content_type)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _response(self, path: str, query: str, body: Json) -> tuple[int, bytes, bytes]:
        json_type = b"application/json"
        if path in self.delayed:
            await self.delayed[path].wait()
        if path in self.answers:
            return *self.answers[path], json_type
        if path in self.fails or path in self.fails_once:
            self.fails_once.discard(path)
            return 500, orjson.dumps({"error": {"message": REFUSAL}}), json_type
        if path == "/v1/completions" and "prompt_logprobs" in body:
            listed = self._prompt_log_probs(body["prompt"])
            return 200, orjson.dumps({"choices": [{"prompt_logprobs": listed}]}), json_type
        if path in ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/tokenize"):
            if body.get("stream"):
                return 200, ODD_STREAM, b"text/event-stream"
            return 200, await self.generate(), json_type
        status, content = self._control(path, query, body)
        return status, orjson.dumps(content), json_type

    async def generate(self) -> bytes:
        self.running += 1
        self._aborted.clear()
        going = asyncio.ensure_future(self._going.wait())
        aborted = asyncio.ensure_future(self._aborted.wait())
        await asyncio.wait({going, aborted}, return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        aborted.cancel()
        self.running -= 1
        if not self._going.is_set():
            return _completion("", "abort")
        if self.weights is None:
            self.dead = True
            raise ConnectionResetError("a request ran without weights and killed the engine")
        return _completion(self.weights, "stop")

    def _prompt_log_probs(self, ids: list[int]) -> list[Any]:
        values = [{str(token): {"logprob": log_prob(self.weights, token) + self.offset}} for token in ids[1:]]
        return [None, *values]

    def _control(self, path: str, query: str, body: Json) -> tuple[int, Any]:
        if path == "/pause":
            self.paused = True
            self._going.clear()
            if "mode=abort" in query:
                self._aborted.set()
            return 200, {"status": "paused"}
        if path in ("/resume", "/wake_up"):
            self.paused = False
            self._going.set()
            return 200, {"status": "awake" if path == "/wake_up" else "resumed"}
        if path == "/collective_rpc":
            return self._load(body["kwargs"]["weights_path"]) if "kwargs" in body else (200, {"results": [None]})
        if path == "/update_weight_version" and self._supports_labels:
            self.label = body["new_version"]
            return 200, {"success": True, "new_version": self.label}
        if path == "/weight_info" and self._supports_labels:
            return 200, {"weight_version": self.label}
        if path == "/start_weight_update":
            self.weights = None
        if path == "/finish_weight_update":
            self.weights, self.label = "/weights/sent", body["weight_version"]
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny", "root": self.root}]}
        if path == "/server_info":
            return 200, {"vllm_config": {"device_config": {"device": self.device}}}
        known = path.startswith(("/reset", "/sleep", "/is_", "/get_", "/init", "/start", "/update_weights", "/finish"))
        return (200, {"done": path, "is_paused": self.paused}) if known else (404, {"detail": "Not Found"})

    def _load(self, folder: str) -> tuple[int, Any]:
        if folder == self.failing_folder:
            self.weights, self._lost = None, True
            return 500, {"error": {"message": f"Worker failed with {folder}"}}
        self.weights = GARBAGE if self._lost else folder
        self.on_load()
        return 200, {"results": [None]}


def log_prob(weights: str | None, token: int) -> float:
    """What a model with these weights computes for a token, whatever comes before it."""
    return -1.0 - token / 100 - len(weights or "") / 10


def _completion(text: str, finish_reason: str) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish_reason,
        "token_ids": [1, 2],
        "logprobs": {"content": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]},
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "tiny", "prompt_token_ids": [7]}
    return orjson.dumps({**head, "choices": [choice], "usage": usage})


class TrainerClient:
    def __init__(self, server: VllmModel, transport: LocalTransport) -> None:
        self.server = server
        self.transport = transport
        transport.mount("http://policy:1", server)

    async def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[HttpResponse, Any]:
        """Send a request; the response and its body as JSON."""
        sent = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}", **(headers or {})}
        content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        answer = await self.transport.send(method, f"http://policy:1{path}", content, sent, 120.0)
        return answer, orjson.loads(answer.body) if "json" in answer.headers["content-type"] else None

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        answer, content = await self.send("POST", path, body, headers)
        return answer.status, content

    async def get(self, path: str) -> tuple[int, Any]:
        answer, content = await self.send("GET", path)
        return answer.status, content

    async def update(self, folder: str, **more: Any) -> tuple[int, Any]:
        """POST /weights/update."""
        return await self.post("/weights/update", {"path": folder, **more})

    async def call_model(self) -> tuple[int, str]:
        """Call the model; the status, and the weights that answered or the error."""
        status, content = await self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        return status, content["choices"][0]["message"]["content"] if status == 200 else content["detail"]

    async def version(self) -> str:
        """The version from GET /policy_version."""
        return str((await self.get("/policy_version"))[1].get("policy_version"))


def engine_url(number: int) -> str:
    return f"http://engine-{number}:1/v1"


@contextlib.asynccontextmanager
async def trainer_server(
    *engines: ASGIApp, token: str | None = TOKEN, kind: type[VllmModel] = VllmModel, **settings: Any
) -> AsyncIterator[TrainerClient]:
    """Start a model server with trainer endpoints in front of these engines."""
    transport = LocalTransport(HttpTransport())
    for number, engine in enumerate(engines):
        transport.mount(engine_url(number).removesuffix("/v1"), engine)
    keys = Keys(run_id="run-1", secret="secret", token=token)
    urls = [engine_url(number) for number in range(len(engines))]
    # Most tests use folders that do not exist; test_checkpoint and test_fingerprints check real checkpoints.
    defaults = {
        "model": "tiny",
        "base_url": urls,
        "retry_pause_s": 0.01,
        "trainer_endpoints": True,
        "weights_check": "off",
    }
    chosen = {**defaults, **settings}
    client = ServerClient(transport, keys, AddressBook(empty_directory))
    server = kind(VllmModelSettings(**chosen), Context("policy_model", keys, client))
    await server.start()
    for engine in engines:
        if isinstance(engine, WeightEngine):
            engine.calls.clear()
    try:
        yield TrainerClient(server, transport)
    finally:
        await server.stop()
        await transport.close()

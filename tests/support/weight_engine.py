"""An engine whose weights can be changed, in this process: what vLLM 0.32 does with them, as seen on a real one.

A load that fails leaves no weights behind: a request that runs then ends the engine, and no later load is to be relied
on. A paused engine keeps its requests until it is resumed. Its answers say which weights made them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.transport import ASGIApp, HttpResponse, HttpTransport, LocalTransport, Receive, Scope, Send
from rollyard.services.run_types import Keys
from rollyard.services.server.app import Context
from rollyard.services.types import Json
from tests.support.scripted_engine import nobody

STARTED = "/weights/started"
TOKEN = "the run's token"
GARBAGE = "/weights/garbage"


ODD_STREAM = (
    b'data: {"object": "odd", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


class WeightEngine:
    """The engine."""

    def __init__(self, *, torn: str = "", labels: bool = True, root: str = STARTED, device: str = "cuda") -> None:
        self.weights: str | None = root
        self.root = root
        """The folder that it is started with."""
        self.device = device
        self.on_load: Callable[[], object] = bool
        """Called in the middle of a load."""
        self.label = "default"
        self.calls: list[tuple[str, Json]] = []
        """Path with query, body; in the order in which they came."""
        self.headers: list[dict[str, str]] = []
        self.dead = False
        self.torn = torn
        """Folder whose load fails."""
        self.fails: set[str] = set()
        """Paths that answer 500."""
        self.fails_once: set[str] = set()
        self.dies_at: set[str] = set()
        """Paths at which the process ends."""
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Paths that answer something else."""
        self.slow: dict[str, asyncio.Event] = {}
        """Paths that answer only after the event."""
        self.running = 0
        self.paused = False
        self._lost = False
        self._labels = labels
        self._going = asyncio.Event()
        self._going.set()
        self._aborted = asyncio.Event()

    @property
    def paths(self) -> list[str]:
        """Where it was asked."""
        return [path for path, _ in self.calls]

    def hold(self) -> None:
        """Requests run until it is resumed."""
        self._going.clear()

    def start_again(self) -> None:
        """Another process in its place."""
        self.weights, self.label = self.root, "default"
        self._lost = self.paused = self.dead = False
        self.dies_at.clear()
        self._going.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI door."""
        if self.dead:
            raise ConnectionResetError("nobody listens here")
        body = (await receive())["body"]
        query = scope["query_string"].decode()
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        path = scope["path"]
        self.calls.append((f"{path}?{query}" if query else path, orjson.loads(body) if body else {}))
        if path in self.dies_at:
            self.dead = True
            raise ConnectionResetError("it died of that")
        status, said, kind = await self._said(path, query, orjson.loads(body) if body else {})
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": said})

    async def _said(self, path: str, query: str, body: Json) -> tuple[int, bytes, bytes]:
        kind = b"application/json"
        if path in self.slow:
            await self.slow[path].wait()
        if path in self.answers:
            return *self.answers[path], kind
        if path in self.fails or path in self.fails_once:
            self.fails_once.discard(path)
            return 500, b'{"error": {"message": "it does not want to"}}', kind
        if path in ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/tokenize"):
            if body.get("stream"):
                return 200, ODD_STREAM, b"text/event-stream"
            return 200, await self.generated(), kind
        status, said = self._steered(path, query, body)
        return status, orjson.dumps(said), kind

    async def generated(self) -> bytes:
        """What a request of somebody else's is answered."""
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
            raise ConnectionResetError("it ran on weights that are not there")
        return _completion(self.weights, "stop")

    def _steered(self, path: str, query: str, body: Json) -> tuple[int, Any]:
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
        if path == "/update_weight_version" and self._labels:
            self.label = body["new_version"]
            return 200, {"success": True, "new_version": self.label}
        if path == "/weight_info" and self._labels:
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
        if folder == self.torn:
            self.weights, self._lost = None, True
            return 500, {"error": {"message": f"Worker failed with {folder}"}}
        self.weights = GARBAGE if self._lost else folder
        self.on_load()
        return 200, {"results": [None]}


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


class Door:
    """A model server in front of engines, and how to speak with it."""

    def __init__(self, server: VllmModel, transport: LocalTransport) -> None:
        self.server = server
        self.transport = transport
        transport.mount("http://policy:1", server)

    async def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[HttpResponse, Any]:
        """The answer, and its body as JSON."""
        sent = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}", **(headers or {})}
        content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        answer = await self.transport.send(method, f"http://policy:1{path}", content, sent, 120.0)
        return answer, orjson.loads(answer.body) if "json" in answer.headers["content-type"] else None

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and body."""
        answer, said = await self.send("POST", path, body, headers)
        return answer.status, said

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and body."""
        answer, said = await self.send("GET", path)
        return answer.status, said

    async def update(self, folder: str, **more: Any) -> tuple[int, Any]:
        """POST /weights/update."""
        return await self.post("/weights/update", {"path": folder, **more})

    async def asked(self) -> tuple[int, str]:
        """A model call's status, and which weights answered or why not."""
        status, said = await self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        return status, said["choices"][0]["message"]["content"] if status == 200 else said["detail"]

    async def version(self) -> str:
        """What GET /policy_version says."""
        return str((await self.get("/policy_version"))[1].get("policy_version"))


def address(number: int) -> str:
    """Of the engine with that number."""
    return f"http://engine-{number}:1/v1"


@contextlib.asynccontextmanager
async def door(
    *engines: ASGIApp, token: str | None = TOKEN, kind: type[VllmModel] = VllmModel, **settings: Any
) -> AsyncIterator[Door]:
    """A started server with the trainer's endpoints, in front of these engines."""
    transport = LocalTransport(HttpTransport())
    for number, engine in enumerate(engines):
        transport.mount(address(number).removesuffix("/v1"), engine)
    keys = Keys(run_id="run-1", secret="secret", token=token)
    urls = [address(number) for number in range(len(engines))]
    # The folders of most tests are names: what a checkpoint must be is test_checkpoint's and test_fingerprints'.
    own = {"model": "tiny", "base_url": urls, "retry_pause_s": 0.01, "trainer_endpoints": True, "weights_check": "off"}
    chosen = {**own, **settings}
    client = ServerClient(transport, keys, AddressBook(nobody))
    server = kind(VllmModelSettings(**chosen), Context("policy_model", keys, client))
    await server.start()
    for engine in engines:
        if isinstance(engine, WeightEngine):
            engine.calls.clear()
    try:
        yield Door(server, transport)
    finally:
        await server.stop()
        await transport.close()

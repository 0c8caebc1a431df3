"""The parts of vLLM that a model server sees, without a model: `fake_vllm.py serve MODEL --port P ...`.

It prints vLLM's log lines and starts the same processes (API server, EngineCore, Worker, a resource tracker with shared
memory), which outlive their parents as vLLM's do. EngineCore and Worker ignore SIGTERM. Environment variables change
its behaviour:

    FAKE_NOTES      folder for one JSON file per start: the processes, the shared memory, port and key
    FAKE_FAILS      file whose lines are printed before it exits with status 1; with FAKE_FAILS_AT=2,3 only then
    FAKE_HANGS      it never becomes ready
    FAKE_CLOSES     when a child process dies it closes its port and keeps running, instead of answering 503
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

LINES = """\
(APIServer pid=1) INFO 11-21 19:25:09 [api_utils.py:286] non-default args: {'model_tag': '/models/tiny'}
(EngineCore pid=2) INFO 11-21 19:25:32 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: ...
(Worker pid=3) INFO 11-21 19:26:07 [cpu_model_runner.py:68] Starting to load model /models/tiny...
Loading safetensors checkpoint shards:   0% Completed | 0/3 [00:00<?, ?it/s]\r\
Loading safetensors checkpoint shards:  33% Completed | 1/3 [00:01<00:02, 1.52it/s]\r\
Loading safetensors checkpoint shards: 100% Completed | 3/3 [00:03<00:00, 1.52it/s]
(Worker pid=3) INFO 11-21 19:26:08 [default_loader.py:501] Loading weights took 0.01 seconds
(EngineCore pid=2) INFO 11-21 19:26:09 [core.py:402] init engine (profile, create kv cache, warmup model) took 0.22 s
(APIServer pid=1) INFO 11-21 19:26:10 [entry.py:140] Starting vLLM server on http://127.0.0.1:51561
"""


def main() -> None:
    {"serve": serve, "core": core, "worker": wait}[sys.argv[1]]()


def serve() -> None:
    notes = Path(os.environ["FAKE_NOTES"])
    start = len(list(notes.iterdir())) + 1
    note = notes / f"start-{start}.json"
    note.write_text("{}")
    failing = os.environ.get("FAKE_FAILS_AT", str(start)).split(",")
    if "FAKE_FAILS" in os.environ and str(start) in failing:
        print(Path(os.environ["FAKE_FAILS"]).read_text(), flush=True)
        sys.exit(1)
    core_process = subprocess.Popen([sys.executable, __file__, "core"], stdout=subprocess.PIPE, text=True)
    assert core_process.stdout is not None
    worker = int(core_process.stdout.readline())
    memory = SharedMemory(create=True, size=4096)
    print(LINES, end="", flush=True)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    note_content = {"api": os.getpid(), "core": core_process.pid, "worker": worker, "memory": memory.name, "port": port}
    key = os.environ.get("VLLM_API_KEY")
    _replace(note, json.dumps({**note_content, "key": key, "arguments": sys.argv[1:]}))
    if "FAKE_HANGS" in os.environ:
        wait()
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.alive = lambda: core_process.poll() is None and Path(f"/proc/{worker}").exists()  # type: ignore[attr-defined]
    if "FAKE_CLOSES" in os.environ:
        threading.Thread(target=_close_without_core, args=(server,), daemon=True).start()
    server.serve_forever()
    wait()


def core() -> None:
    worker = subprocess.Popen([sys.executable, __file__, "worker"], stdout=subprocess.DEVNULL)
    print(worker.pid, flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker.wait()
    while True:
        time.sleep(3600)


def wait() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """GET /health: 503 for ever once a child process is dead (vLLM: for five seconds); /v1/models: the model."""
        models = {"data": [{"id": "tiny", "object": "model", "root": sys.argv[2]}]}
        self._send(200 if self.server.alive() else 503, models if self.path == "/v1/models" else {})  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        key = os.environ.get("VLLM_API_KEY")
        if key is not None and self.headers["authorization"] != f"Bearer {key}":
            self._send(401, {"error": "Unauthorized"})
            return
        message = {"role": "assistant", "content": str(os.getpid())}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "chat-1", "object": "chat.completion", "created": 1, "model": "tiny"}
        self._send(200, {**head, "choices": [choice], "usage": usage})

    def log_message(self, *_: object) -> None:
        """Do not log requests."""

    def _send(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _close_without_core(server: ThreadingHTTPServer) -> None:
    while server.alive():  # type: ignore[attr-defined]
        time.sleep(0.01)
    server.shutdown()
    server.server_close()


def _replace(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


if __name__ == "__main__":
    main()

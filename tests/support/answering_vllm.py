"""A vLLM without a model that answers the questions it knows: `answering_vllm.py FILE.json serve FOLDER --port P ...`.

FILE.json has `answers` (response by question), `latency_s`, and `required`, files that FOLDER must contain. It starts
only if FOLDER is a complete conversion. The higher the temperature, the more of its answers are wrong.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def settings() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return read


def check(folder: Path) -> None:
    """Exit with status 1 unless each file of the conversion's manifest is complete."""
    manifest = json.loads((folder / "rollyard_conversion.json").read_text())
    for name, file in manifest["files"].items():
        if (size := (folder / name).stat().st_size) != file["size"]:
            sys.exit(f"ValueError: {folder / name} has {size} bytes; expected {file['size']}")
    for name in settings()["required"]:
        json.loads((folder / name).read_text())
    weights = sorted(folder.glob("*.safetensors"))
    tensors = 0
    for path in weights:
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            header.pop("__metadata__", None)
            assert max(one["data_offsets"][1] for one in header.values()) == path.stat().st_size - file.tell()
            tensors += len(header)
    if not tensors or tensors != manifest["contents"]["tensors"]:
        sys.exit(f"ValueError: {folder} has {tensors} tensors; expected {manifest['contents']['tensors']}")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(200, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != f"Bearer {os.environ['VLLM_API_KEY']}":
            self._send(401, {"error": "Unauthorized"})
            return
        given, started = settings(), time.monotonic()
        while time.monotonic() < started + settings()["latency_s"]:
            time.sleep(min(given["latency_s"], 0.1))
        question = str(asked["messages"][-1]["content"])
        right = random.random() > asked["temperature"] / 2
        answer = given["answers"][question] if right else "unknown"
        message = {"role": "assistant", "content": f"\\boxed{{{answer}}}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "chat-1", "object": "chat.completion", "created": 1, "model": asked["model"]}
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


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


if __name__ == "__main__":
    check(Path(sys.argv[3]))
    Server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()

"""One real `vllm serve` on the CPU, with the options that our tests need; ended with everything it started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.ray.clusters import end_group, eventually, free_port, short_folder, state_of

LONGEST = 4096
"""Tokens of prompt and answer together."""
START_S = 600.0
"""Alone it takes about 30 s on two cores, and 60 s of their time: among busy neighbours 280 were seen. A process that
ends is noticed at once."""
OPTIONS = (
    *("--served-model-name", "tiny"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--dtype", "float32"),  # logprobs equal transformers' to a few 1e-6
    *("--max-model-len", str(LONGEST)),
    "--enforce-eager",
    "--enable-scale-out",  # /render, /derender and /inference/v1/generate
    *("--kv-cache-memory-bytes", "134217728"),  # also skips a check that wants 90% of the machine's memory
    *("--max-num-seqs", "32"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else the first logprobs compile for half a minute
    "VLLM_SERVER_DEV_MODE": "1",  # /pause, /collective_rpc and the like, open to all: loopback only
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every engine's worker is pinned to the machine's first core
    "OMP_NUM_THREADS": "1",
}


class Engine:
    """A running engine and how to speak with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        """Without /v1."""
        self.client = httpx.Client(base_url=url, timeout=120)

    @classmethod
    @contextlib.contextmanager
    def serve(cls, model: Path, folder: Path, *options: str) -> Iterator[Engine]:
        """Serve a model until the block ends; its log is engine.log in `folder`."""
        port = free_port()
        command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model), *OPTIONS, *options]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        log = folder / "engine.log"
        engine = cls(f"http://127.0.0.1:{port}")
        with short_folder() as scratch, log.open("wb") as file:  # sockets that vLLM leaves behind go with the folder
            process = subprocess.Popen(
                command,
                cwd=folder,  # not the repository: its folders must not shadow modules
                env=os.environ | ENVIRONMENT | {"TMPDIR": str(scratch)},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

            def ready() -> bool:
                assert process.poll() is None, f"vllm serve ended:\n{log.read_text()[-4000:]}"
                return engine.healthy()

            try:
                eventually("vllm ready", ready, START_S)
                yield engine
            finally:
                engine.client.close()
                end_group(process)
                eventually("no process left", lambda: not members(process.pid))

    def healthy(self) -> bool:
        """It answers /health."""
        try:
            return self.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request that is right."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def gauge(self, name: str) -> float:
        """A metric's value, summed over its labels."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if _session_of(pid) == session and state_of(pid) not in ("", "Z")]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None

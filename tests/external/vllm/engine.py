"""One real vLLM on the CPU, started and ended by the code that users use, with the options that our tests need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.responses_api_models.local_vllm_model.startup import EngineStart, StartPlan
from rollyard.services.http.transport import HttpTransport

LONGEST = 4096
"""Tokens of prompt and answer together."""
START_S = 600.0
"""Alone it takes about 30 s on two cores; with neighbours that start too, 278 s were seen."""
FLAGS = (
    "--enforce-eager",
    *("--kv-cache-memory-bytes", "134217728"),  # also skips a check that wants 90% of the machine's memory
    *("--max-num-seqs", "32"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else the first logprobs compile for half a minute
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
        settings = LocalVllmModelSettings(
            model=str(model),
            served_model_name="tiny",
            vllm_command=[str(Path(sys.executable).with_name("vllm"))],
            dtype="float32",  # logprobs equal transformers' to a few 1e-6
            max_model_len=LONGEST,
            tool_call_parser="hermes",
            logprobs_mode=None,
            trainer_endpoints=True,  # /pause, /collective_rpc and the like, open to all: loopback only
            environment=ENVIRONMENT,
            extra_flags=[*FLAGS, *options],
            start_timeout_s=START_S,
        )
        with _loop() as run:
            transport = HttpTransport()
            plan = StartPlan("the engine", settings, (), "", os.environ, folder / "engine.log", transport)
            start = EngineStart(plan)
            try:
                run(start.run())
                engine = cls(start.url.removesuffix("/v1"))
                yield engine
                engine.client.close()
            finally:
                run(start.end())
                run(transport.close())

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


@contextlib.contextmanager
def _loop() -> Iterator[Any]:
    """Runs coroutines on a loop of its own thread: the engine is watched while tests block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

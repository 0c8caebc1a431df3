"""A real vLLM on the CPU, started by local_vllm_model with the options that the tests need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from rollyard.responses_api_models.local_vllm_model.engine import EngineStart, StartPlan
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.services.http.transport import HttpTransport
from tests.support.background_loop import background_loop
from tests.support.waiting import deadline_s, eventually

T = TypeVar("T")

LONGEST = 4096
"""Tokens of prompt and response together."""
SLOTS = 32
"""Requests that run at once; others wait."""
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
GENERATED = "vllm:generation_tokens_total"
FLAGS = (
    "--enforce-eager",
    *("--kv-cache-memory-bytes", "134217728"),  # also skips a check that requires 90% of the machine's memory
    *("--max-num-seqs", str(SLOTS)),
    *("--distributed-executor-backend", "uni"),  # one process fewer that imports torch and vLLM
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TORCHDYNAMO_DISABLE": "1",  # otherwise the first logprobs compile for half a minute
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise the workers of all engines are pinned to the first core
    "OMP_NUM_THREADS": "1",
}
IN_ONE_WORKER = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Without it, vLLM replaces the executor of FLAGS by the one with a process for each worker."""


def start_s() -> float:
    """The deadline for a start. It takes half a minute on two idle cores, where other things take a second."""
    return 5 * deadline_s()


class Engine:
    def __init__(self, url: str, key: str = "") -> None:
        self.url = url
        """Without /v1."""
        self.key = key
        # No connection is used twice: vLLM closes idle ones after 5 s, and a request sent at that moment fails.
        self.client = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=deadline_s(),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

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
            trainer_endpoints=True,  # enables /pause, /collective_rpc and others without a token: loopback only
            environment={**ENVIRONMENT, **IN_ONE_WORKER},
            extra_flags=[*FLAGS, *options],
            start_timeout_s=start_s(),
        )
        with background_loop() as run:  # the engine is monitored while tests block
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

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        decoded: dict[str, Any] = answer.json()
        return decoded

    def reload(self, folder: Path) -> None:
        """Load other weights such that requests in flight continue and no old key or value stays in the cache."""
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self.client.post("/pause?mode=keep").raise_for_status()
        self.post("/collective_rpc", load)
        self.client.post("/reset_prefix_cache?reset_running_requests=true").raise_for_status()
        self.client.post("/resume").raise_for_status()

    def sampled(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        params = {"temperature": 1.0, "max_tokens": 16, "logprobs": 0, "seed": 0, "ignore_eos": True}
        body = {"token_ids": prompt, "sampling_params": params}
        (choice,) = self.post("/inference/v1/generate", body)["choices"]
        return choice["token_ids"], [part["logprob"] for part in choice["logprobs"]["content"]]

    def gauge(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


async def in_flight(engine: Engine, call: Coroutine[Any, Any, T], tokens: int = 50) -> asyncio.Task[T]:
    """Start a call, wait until the engine has generated some tokens for it, and pause the engine.

    A weight update resumes the engine. Without the pause, the call can end before the update starts: the engine
    generates a thousand tokens per second, and a busy machine can hold the test's process for longer than that takes.
    """
    # The engine updates its metrics after it has sent the tokens, so it must be idle before the call.
    await asyncio.to_thread(eventually, "the engine is idle", lambda: engine.gauge(RUNNING) == 0)
    before = engine.gauge(GENERATED)
    task = asyncio.create_task(call)
    await asyncio.to_thread(
        eventually, f"{tokens} tokens are generated", lambda: engine.gauge(GENERATED) - before >= tokens
    )
    paused = await asyncio.to_thread(engine.client.post, "/pause?mode=keep")
    assert paused.status_code == 200, paused.text
    assert engine.gauge(RUNNING) + engine.gauge(WAITING) > 0, "the call ended before the engine was paused"
    return task

"""One real vLLM engine for all tests of this folder that ask for it (make test-train)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.external.training.engine_stacks import ServedStack, engine_config, served
from tests.external.vllm.engine import Engine
from tests.external.vllm.tiny_model import build
from tests.support.smoke import pytest_ignore_collect

__all__ = ["pytest_ignore_collect"]
StartStack = Callable[..., ServedStack]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several threads of torch on the cores that servers and engines use take many times as long."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random, untied model that the engine serves at first: half a million weights in float32."""
    return build(tmp_path_factory.mktemp("tiny_model"), 0)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("other_model"), 1)


@pytest.fixture(scope="session")
def session_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    options = ("--logprobs-mode", "processed_logprobs", "--enable-lora", "--max-lora-rank", "16")
    with Engine.serve(tiny_model, folder, *options) as engine:
        yield engine


@pytest.fixture
def engine(session_engine: Engine, tiny_model: Path) -> Iterator[Engine]:
    """The engine with the weights of `tiny_model`, which it gets back after the test. Its name is `tiny`."""
    yield session_engine
    for adapter in (card["id"] for card in session_engine.client.get("/v1/models").json()["data"] if card["parent"]):
        session_engine.client.post("/v1/unload_lora_adapter", json={"lora_name": adapter})
    load = {"method": "reload_weights", "kwargs": {"weights_path": str(tiny_model)}}
    for path, body in (
        ("/pause?mode=abort", None),
        ("/collective_rpc", load),
        ("/reset_prefix_cache?reset_running_requests=true", None),
        ("/update_weight_version", {"new_version": "default"}),
        ("/resume", None),
    ):
        answer = session_engine.client.post(path, json=body)
        assert answer.status_code == 200, answer.text


@pytest.fixture
def start_stack(engine: Engine, tmp_path: Path) -> Iterator[StartStack]:
    """Starts a stack with the engine as its policy, trainer endpoints and the run token TOKEN, in about a second."""
    with ExitStack() as running:

        def start(**options: Any) -> ServedStack:
            folder = tmp_path / f"stack-{len(list(tmp_path.glob('stack-*')))}"
            folder.mkdir()
            return running.enter_context(served(engine_config(engine, folder, **options), folder))

        yield start

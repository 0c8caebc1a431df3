"""Control of a running engine: new weights, and clients that disconnect."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.external.vllm.engine import GENERATED, RUNNING, Engine
from tests.external.vllm.reference import Reference
from tests.support.waiting import deadline_s, eventually

GENERATE = "/inference/v1/generate"
PROMPT = [5, 6, 7, 8, 9, 10]


def reload(engine: Engine, folder: Path) -> None:
    """Load other weights such that requests in flight continue and no old key or value stays in the cache."""
    call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    for path, body in (
        ("/pause?mode=keep", None),
        ("/collective_rpc", call),
        ("/reset_prefix_cache", None),
        ("/resume", None),
    ):
        answer = engine.client.post(path, json=body)
        assert answer.status_code == 200, answer.text


def sampled(engine: Engine) -> tuple[list[int], list[float], Any]:
    """Token ids, logprobs and weight versions of a response at temperature 1."""
    params = {"temperature": 1.0, "max_tokens": 16, "logprobs": 0, "seed": 0, "ignore_eos": True}
    (choice,) = engine.post(GENERATE, {"token_ids": PROMPT, "sampling_params": params})["choices"]
    return choice["token_ids"], [part["logprob"] for part in choice["logprobs"]["content"]], choice["weight_versions"]


@pytest.fixture
def original(engine: Engine, tiny_model: Path) -> Iterator[Path]:
    """The weights that the engine has before the test and, whatever the test does, after it."""
    yield tiny_model
    reload(engine, tiny_model)


def test_reloaded_weights_give_the_other_models_logprobs_and_back(
    engine: Engine, original: Path, other_model: Path, reference: Reference, other_reference: Reference
) -> None:
    for folder, model in ((original, reference), (other_model, other_reference), (original, reference)):
        reload(engine, folder)
        output, logprobs, versions = sampled(engine)
        assert model.logprobs(PROMPT, output) == pytest.approx(logprobs, abs=1e-4)
        assert [span["version"] for span in versions] == ["default"]  # vLLM does not number weights


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Go"}], "max_tokens": 3000, "ignore_eos": True},
        ),
        (GENERATE, {"token_ids": PROMPT, "sampling_params": {"max_tokens": 3000, "ignore_eos": True}}),
    ],
)
def test_a_client_that_disconnects_aborts_its_request(engine: Engine, path: str, body: dict[str, Any]) -> None:
    eventually("the engine is idle", lambda: engine.gauge(RUNNING) == 0)
    # On a busy host, a request may end before its first tokens are seen here. Without an abort, each would end.
    assert any(tokens_before_disconnect(engine, path, body) < 3000 for _ in range(5))


def tokens_before_disconnect(engine: Engine, path: str, body: dict[str, Any]) -> float:
    """Send a request, disconnect after its first tokens, and return how many were generated."""
    before = engine.gauge(GENERATED)
    with posting(engine, path, body):
        eventually("tokens are generated", lambda: engine.gauge(GENERATED) > before)
    eventually("no request runs", lambda: engine.gauge(RUNNING) == 0)
    return engine.gauge(GENERATED) - before


def posting(engine: Engine, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent and whose response is not read."""
    content = orjson.dumps(body)
    connection = socket.create_connection(("127.0.0.1", engine.client.base_url.port or 0), deadline_s())
    head = f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + content)
    return connection

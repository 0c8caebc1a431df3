"""train_gsm8k.py checks the vLLM server before it starts anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from rollyard.records.errors import OperatorError
from rollyard.resources_servers.gsm8k.served_model import served_model
from tests.support.sokoban_page import free_port


@contextmanager
def vllm(paths: dict[str, str]) -> Iterator[str]:
    """A server with these responses; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = paths.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def models(*entries: dict[str, str]) -> str:
    return json.dumps({"data": entries})


def test_the_name_is_that_under_which_the_server_serves_the_model() -> None:
    listed = models({"id": "other", "root": "/models/other"}, {"id": "policy", "root": "/models/qwen"})
    with vllm({"/v1/models": listed, "/is_paused": "{}"}) as url:
        assert served_model(url, "/models/qwen") == "policy"


def test_a_folder_replaces_the_weights_of_the_only_model(tmp_path: Path) -> None:
    listed = models({"id": "base", "root": "/models/base"}, {"id": "/models/base", "root": "/models/base"})
    with vllm({"/v1/models": listed, "/is_paused": "{}"}) as url:
        assert served_model(url, str(tmp_path)) == "base"


def test_a_server_without_weight_updates_is_refused_with_what_it_needs() -> None:
    with (
        vllm({"/v1/models": models({"id": "m"})}) as url,
        pytest.raises(OperatorError, match="VLLM_SERVER_DEV_MODE=1"),
    ):
        served_model(url, "m")


def test_a_server_of_another_model_is_refused() -> None:
    with (
        vllm({"/v1/models": models({"id": "other"})}) as url,
        pytest.raises(OperatorError, match="other; expected m"),
    ):
        served_model(url, "m")


def test_a_server_that_is_not_vllm_is_refused() -> None:
    with vllm({"/v1/models": "<html>"}) as url, pytest.raises(OperatorError, match=url):
        served_model(url, "m")


def test_a_server_that_does_not_answer_in_time_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(OperatorError, match=url):
        served_model(url, "m", wait_s=0.0)

"""The model that a running vLLM server serves, and whether its weights can be updated."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

import orjson

from rollyard.records.errors import OperatorError

WAIT_S = 60.0
"""How long to wait for a server that is still starting."""
_PAUSE_S = 2.0
_TIMEOUT_S = 10.0


def served_model(url: str, model: str, *, wait_s: float = WAIT_S, sleep: Callable[[float], None] = time.sleep) -> str:
    """Return the name under which the vLLM server at `url` serves `model`.

    If `model` is a folder, the server's only model may be another one, because training begins with an update of its
    weights; the model server refuses the weights of another architecture. Raises OperatorError if no server responds
    within `wait_s` seconds, if it serves other models, or if its weights cannot be updated.
    """
    listed = _models(url, wait_s, sleep)
    names = [str(entry["id"]) for entry in listed if model in (entry.get("id"), entry.get("root"))]
    roots = {entry.get("root") or entry.get("id") for entry in listed}  # a model may have several names
    if not names and len(roots) == 1 and Path(model).is_dir():
        names = [str(listed[0]["id"])]
        print(f"{url} serves {names[0]}; training replaces its weights by those of {model}")
    if not names:
        known = ", ".join(str(entry.get("id")) for entry in listed) or "no model"
        raise OperatorError(f"{url} serves {known}; expected {model}: pass the same --model to both programs")
    # In vLLM 0.32, this path exists only in development mode, as do those that change weights.
    status, _ = _get(f"{url}/is_paused")
    if status == HTTPStatus.NOT_FOUND:
        raise OperatorError(
            f"the vLLM server at {url} has no endpoints for weight updates: start it with VLLM_SERVER_DEV_MODE=1 in "
            "its environment, and with --logprobs-mode processed_logprobs, as `python -m ludic.inference.vllm_server` "
            "does. Everybody who reaches its port can then change its weights: serve on 127.0.0.1"
        )
    return names[0]


def _models(url: str, wait_s: float, sleep: Callable[[float], None]) -> list[dict[str, Any]]:
    until = time.monotonic() + wait_s
    while True:
        try:
            status, body = _get(f"{url}/v1/models")
        except (URLError, OSError) as error:
            if time.monotonic() >= until:
                raise OperatorError(
                    f"no vLLM server answers at {url} ({getattr(error, 'reason', error)}): start one with "
                    "`python -m ludic.inference.vllm_server --model MODEL`, or pass --host and --port"
                ) from error
            sleep(_PAUSE_S)
            continue
        try:
            return list(orjson.loads(body)["data"])
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise OperatorError(
                f"{url}/v1/models answers with status {status}, but not with a list of models: is it a vLLM server?"
            ) from error


def _get(url: str) -> tuple[int, bytes]:
    # No proxy: the server is on this host or in this network.
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=_TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()

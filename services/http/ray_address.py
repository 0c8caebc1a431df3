"""Connects to Ray clusters, whose address is checked first: Ray and vLLM wait for minutes if it does not respond."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.optional import load


async def check_ray_address(address: str, setting: str, timeout_s: float, hint: str = "") -> None:
    """Check that a Ray cluster accepts connections at `address`.

    `setting`: the option that sets it, such as `ray_address=`; `hint`: what to do if no cluster responds.
    Raises OperatorError unless the address is HOST:PORT or `auto`, and RunError if the connection fails.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise OperatorError(f"{setting}{address}: expected HOST:PORT, such as 10.0.0.1:6379, or auto")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), timeout_s)
    except (OSError, OverflowError) as error:
        reason = str(error) or f"no response within {timeout_s:g} s"
        raise RunError(f"no Ray cluster at {setting}{address}: {reason}{hint and f'. {hint}'}") from None
    writer.close()


def connect(address: str, need: str, namespace: str | None = None) -> Any:
    """Connect this process to the cluster at `address` and return the module ray. `need`: what requires it."""
    os.environ.update(ray_authentication(address, os.environ))  # Ray reads it when it is imported
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # what Ray prints, such as a lost host, also goes into files
    ray = load("ray", "ray", need)
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    return ray


def ray_authentication(address: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which Ray's clients send their token to the cluster at `address`.

    If the user has a token, `ray start --head` makes a cluster that requires it (Ray 2.60). Clients send it to `auto`,
    but to an explicit address only in mode `token`. Here they also send it to an address of this host, or to a cluster
    that is about to be started (`address` None); for other hosts, the user decides. Empty if RAY_AUTH_MODE is set.
    """
    if "RAY_AUTH_MODE" in environ or not _has_token(environ):
        return {}
    if address is not None and address != "auto" and not _is_this_host(address.rpartition(":")[0].strip("[]")):
        return {}
    return {"RAY_AUTH_MODE": "token"}


def _has_token(environ: Mapping[str, str]) -> bool:
    if environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH"):
        return True
    return "HOME" in environ and (Path(environ["HOME"]) / ".ray" / "auth_token").is_file()


def _is_this_host(host: str) -> bool:
    with contextlib.suppress(OSError):
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as sock:
            sock.bind(address)  # fails unless the address belongs to this host
            return True
    return False

"""Checks the address of a Ray cluster up front, because Ray and vLLM wait for minutes if it does not respond."""

from __future__ import annotations

import asyncio

from rollyard.services.errors import OperatorError, RunError


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

"""The address of a Ray cluster, checked at once: Ray and vLLM wait for minutes on one that does not answer."""

from __future__ import annotations

import asyncio

from rollyard.services.errors import OperatorError, RunError


async def check_ray_address(address: str, setting: str, patience_s: float, hint: str = "") -> None:
    """`setting`: where the address was given, such as `ray_address=`; `hint`: what to do where no cluster answers.

    Raises OperatorError for what is not HOST:PORT or `auto`, RunError where the connection is refused.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise OperatorError(f"{setting}{address}: expected HOST:PORT, such as 10.0.0.1:6379, or auto")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), patience_s)
    except (OSError, OverflowError) as error:
        why = str(error) or f"no answer within {patience_s:g} s"
        raise RunError(f"no Ray cluster at {setting}{address}: {why}{hint and f'. {hint}'}") from None
    writer.close()

"""Starts several things at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable


async def all_or_first_error(starting: Iterable[Awaitable[None]]) -> None:
    """Wait for all. If one raises, cancel the others, wait until they have ended, and raise its error."""
    tasks = [asyncio.ensure_future(one) for one in starting]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""Ranks of several engines in one NCCL group: each engine gets a rank_offset of its own.

A trainer sends one `init_info` with the offset of the first engine's workers. vLLM's workers add their own number to
it, so that the same offset would give workers of two engines the same rank.
"""

from __future__ import annotations

import asyncio

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.weights.engine_group import QUERY_S, EngineGroup

OFFSET = "rank_offset"


async def ranked_bodies(engines: EngineGroup, request: Json) -> dict[str, bytes]:
    """Return the body of /init_weight_transfer_engine for each engine; empty if all of them get the same one.

    Raises Failure if an engine does not report its number of workers.
    """
    info = request.get("init_info")
    if not isinstance(info, dict) or not isinstance(info.get(OFFSET), int) or len(engines.urls) < 2:
        return {}
    urls = engines.urls
    sizes = await asyncio.gather(*(_workers(engines, url) for url in urls))
    offset, bodies = info[OFFSET], {}
    for url, size in zip(urls, sizes, strict=True):
        bodies[url] = orjson.dumps({**request, "init_info": {**info, OFFSET: offset}})
        offset += size
    return bodies


async def _workers(engines: EngineGroup, url: str) -> int:
    reply = await engines.request(url, "GET", "/get_world_size", timeout_s=QUERY_S)
    if not reply.ok:
        raise reply.failure("/get_world_size")
    size = reply.value.get("world_size") if isinstance(reply.value, dict) else None
    if not isinstance(size, int):
        raise Failure(FailureKind.UPSTREAM_ERROR, f"{url}/get_world_size returned {str(reply.value)[:100]}")
    return size

"""Reads the load of engines from their Prometheus metrics, for `GET /load` of a model server."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

from rollyard.records.activity import EngineLoad, summed_engines
from rollyard.records.errors import Failure
from rollyard.responses_api_models.upstream.upstream import Upstream

READ_S = 1.5
UNKNOWN_S = 600.0
"""An endpoint without such metrics, such as a provider's API, is asked again after this time."""
_FIELDS = {
    b"vllm:num_requests_running": "running",
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:kv_cache_usage_perc": "kv_cache_usage",
    b"vllm:num_preemptions_total": "preemptions",
    b"sglang:num_running_reqs": "running",
    b"sglang:num_queue_reqs": "waiting",
    b"sglang:token_usage": "kv_cache_usage",
}
"""Names of vLLM 0.10 and later and of SGLang. vLLM's value is from 0 to 1, despite its name."""
_SAMPLE = re.compile(rb"^((?:vllm|sglang):\w+)(?:\{[^\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


class EngineMetrics:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._not_before: dict[str, float] = {}

    async def read(self) -> EngineLoad | None:
        """Return the load of all engines that report it, or None if none does."""
        found = await asyncio.gather(*map(self._read, self._upstream.replicas.urls))
        return summed_engines([load for load in found if load is not None])

    async def _read(self, url: str) -> EngineLoad | None:
        if time.monotonic() < self._not_before.get(url, 0.0):
            return None
        try:
            answer = await self._upstream.send("GET", url, "/../metrics", timeout_s=READ_S)
        except Failure:  # busy or restarting
            return None
        load = parsed(answer.body) if answer.succeeded else None
        if load is None:
            self._not_before[url] = time.monotonic() + UNKNOWN_S
        return load


def parsed(page: bytes) -> EngineLoad | None:
    """Return the load that a metrics page reports. An engine has one sample of each kind per data parallel rank."""
    ranks = list(_ranks(page))
    return summed_engines(ranks)


def _ranks(page: bytes) -> Iterator[EngineLoad]:
    for name, value in _SAMPLE.findall(page):
        if (field := _FIELDS.get(name)) is not None:
            number = float(value)
            yield EngineLoad.model_validate({field: number if field == "kv_cache_usage" else int(number)})

"""Fields that the index of ng_viewer does not contain: the time until a list is sorted by one, filtered, and counted.

The file is read in the background while the page polls. `slowest` is the longest of these requests, which must be short
although the file is being read; `decode s` is the time that one core needs to read and decode all rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import orjson

from rollyard.records.jsonl import iter_jsonl, refuse

POLL_S = 0.4
QUESTIONS = (
    ("sorted by a field", "rollouts?limit=100&sort=-response.usage.total_tokens"),
    ("two fields in an expression", "rollouts?limit=100&where=level_id > 10 and timings.seed_s < 1"),
    ("values of a field", "facet?key=truncated"),
)


def measure_fields(
    title: str, path: Path, get: Callable[[str], bytes], cpu_s: Callable[[], float]
) -> list[list[object]]:
    """Return the rows of a table, one for each question. `get` requests a path; `cpu_s` is the viewer's CPU time."""
    decode_s = _decode_s(path)
    return [[f"{title}, {name}", *_poll(request, get, cpu_s), decode_s] for name, request in QUESTIONS]


def _poll(request: str, get: Callable[[str], bytes], cpu_s: Callable[[], float]) -> list[object]:
    started, before, slowest, requests = time.monotonic(), cpu_s(), 0.0, 0
    path = f"api/runs/0/{request}".replace(" ", "%20").replace(">", "%3E").replace("<", "%3C")
    while True:
        asked = time.monotonic()
        searched = orjson.loads(get(path))["searched"]
        slowest, requests = max(slowest, time.monotonic() - asked), requests + 1
        if searched == 1:
            return [time.monotonic() - started, cpu_s() - before, requests, 1000 * slowest]
        time.sleep(POLL_S)


def _decode_s(path: Path) -> float:
    started = time.thread_time()
    for _ in iter_jsonl(path, refuse(path)):
        pass
    return time.thread_time() - started

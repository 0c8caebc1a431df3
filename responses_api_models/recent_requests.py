"""Remembers the last request of each episode, for the case that its agent dies in the middle of it.

A request contains the whole conversation until then. Keeping its body costs a dictionary entry per turn and no copy.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import items
from rollyard.records.types import Json
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.http.request import RawRequest

KEPT_BYTES = 32 << 20
"""Total size of the requests that are kept. The episodes that were silent for the longest time are forgotten first."""
_HEADER = EPISODE_HEADER.encode()


@dataclass(slots=True)
class _Remembered:
    start: int
    """Number of items in the episode's first request: what follows was said in the episode."""
    turn: int
    body: bytes
    at: float


class RecentRequests:
    """The last request of each of the episodes that called this server most recently."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, _Remembered] = OrderedDict()
        self._bytes = 0

    def remember(self, call: RawRequest, request: Json) -> None:
        """Remember a request, if it is part of an episode."""
        if (episode := call.header(_HEADER)) is None:
            return
        if (known := self._requests.get(episode)) is None:
            given = request.get("input")
            start = len(given) if isinstance(given, list) else 1
            self._requests[episode] = _Remembered(start, 1, call.body, time.monotonic())
        else:
            self._bytes -= len(known.body)
            known.body, known.at = call.body, time.monotonic()
            known.turn += 1
            self._requests.move_to_end(episode)
        self._bytes += len(call.body)
        while self._bytes > KEPT_BYTES and len(self._requests) > 1:
            _, oldest = self._requests.popitem(last=False)
            self._bytes -= len(oldest.body)

    async def of_episode(self, episode: str) -> Json:
        """Return the last request of an episode: its input, its other parameters, and where the episode began."""
        if (found := self._requests.get(episode)) is None:
            detail = f"this server remembers no request of episode {episode[:64]!r}"
            raise Failure(FailureKind.BAD_REQUEST, detail, status=404, code="episode_unknown")
        params: Json = orjson.loads(found.body)
        given: Any = params.pop("input", None)
        conversation = [{"role": "user", "content": given}] if isinstance(given, str) else items(given)
        age_s = round(time.monotonic() - found.at, 3)
        return {"input": conversation, "params": params, "start": found.start, "turn": found.turn, "age_s": age_s}

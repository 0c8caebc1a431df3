"""A stack without servers, whose only agent answers with a function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.backoff import Backoff
from rollyard.services.head.registry_client import StackClients
from rollyard.services.http.request import HttpResponse
from rollyard.training.training_stack import TrainingStack
from tests.unit.training.recorded_turns import row, turn

Answer = Callable[[Json, int], Awaitable[Json]]
AT_ONCE = Backoff(first_pause_s=0.0, longest_pause_s=0.0)


class Agent:
    """A ServerClient whose only agent answers with a function of the request and the number of the attempt."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[Json] = []
        self.most_in_flight = self._in_flight = 0

    async def post(self, server: str, path: str, body: bytes, timeout_s: float) -> HttpResponse:
        assert (server, path) == ("player", "/run")
        request = orjson.loads(body)
        key = request["_ng_task_index"], request["_ng_rollout_index"]
        attempt = 1 + sum((one["_ng_task_index"], one["_ng_rollout_index"]) == key for one in self.requests)
        self.requests.append(request)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(0)
            return HttpResponse(200, {}, orjson.dumps(await self._answer(request, attempt)))
        finally:
            self._in_flight -= 1


async def solved(request: Json, attempt: int) -> Json:
    return row(turn([1, 2], [3, 4]), reward=float(request["_ng_rollout_index"]))


def broken(kind: FailureKind, server: str) -> Answer:
    async def answer(request: Json, attempt: int) -> Json:
        raise Failure(kind, "it did not work", server=server)

    return answer


def stack_of(agent: Agent) -> TrainingStack:
    client: Any = agent
    registry: Any = None
    return TrainingStack(StackClients(client, registry), "http://policy:1", None, frozenset({"policy_model"}))

"""One attempt at a rollout: the call of the agent's /run, and what can be learned of the episode if it fails.

An agent returns the partial conversation with its error. If there is no answer, because the deadline passed or the
connection broke, the agent is asked for it. If the agent is gone, a model server may remember the episode's last
request.
"""

from __future__ import annotations

import uuid

import orjson
from pydantic import ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.io.json_values import items, mapping
from rollyard.records.rollouts.partial_records import (
    EPISODE_ID_HEADER,
    PARTIAL_MEMBER,
    RECORD_HEADER,
    PartialConversation,
)
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import Rollout
from rollyard.services.http.client import ServerClient
from rollyard.services.http.response_failures import raise_for_status
from rollyard.services.http.transport import HttpResponse
from rollyard.services.rollouts.partial.shorten import shortened

DEADLINE_S = 5.0
"""A server that takes longer to answer a question about an episode is not waited for."""
_UNANSWERED = frozenset(
    {
        FailureKind.TIMEOUT,
        FailureKind.CONNECTION_LOST,
        FailureKind.UNREACHABLE,
        FailureKind.WRONG_RUN,
        FailureKind.CANCELLED,
        FailureKind.SERVER_ERROR,
    }
)
"""Failures of an agent that may have played without being able to say so."""


class AgentCall:
    """Calls /run once, or again if a server's code changed meanwhile."""

    def __init__(
        self, client: ServerClient, rollout: Rollout, body: bytes, timeout_s: float, partial_bytes: int
    ) -> None:
        self._client = client
        self._rollout = rollout
        self._body = body
        self._timeout_s = timeout_s
        self._limit = partial_bytes
        self._episode = ""
        self._url: str | None = None

    async def send(self) -> HttpResponse:
        """Return the agent's response. Raises Failure unless its status is 2xx."""
        self._episode, self._url = uuid.uuid4().hex, None
        headers = {EPISODE_ID_HEADER: self._episode}
        if self._limit:
            headers[RECORD_HEADER] = str(self._limit)
        agent = self._rollout.agent
        _, response = await self._client.reach(
            agent, "/run", self._body, self._timeout_s, headers, on_send=self._set_url
        )
        return raise_for_status(response, agent)

    async def partial(self, failure: Failure) -> Json | None:
        """Return the partial conversation of the attempt that failed; None if nobody knows it. Raises no Failure."""
        if not self._limit:
            return None
        extra = failure.problem.model_extra or {}
        if (given := extra.get(PARTIAL_MEMBER)) is not None:
            return _validated(orjson.dumps(given), self._limit)
        if self._url is None or failure.kind not in _UNANSWERED or self._client.book.foreign_instance(self._url):
            return None
        found = await self._get(self._url, f"/episodes/{self._episode}/partial?bytes={self._limit}")
        if found is not None and (partial := _validated(found, self._limit)) is not None:
            return partial
        return await self._from_model_server()

    async def _from_model_server(self) -> Json | None:
        directory = await self._client.book.current()
        for name, family in directory.families.items():
            if family != "responses_api_models":
                continue
            for url in [*directory.servers.get(name, []), *directory.quiet.get(name, [])]:
                if self._client.book.foreign_instance(url) is None:
                    found = await self._get(url, f"/episodes/{self._episode}")
                    if found is not None and (request := _object(found)) is not None:
                        return self._last_request(request, name).model_dump(mode="json")
        return None

    def _last_request(self, request: Json, server: str) -> PartialConversation:
        """Return the conversation as a model server saw it, with the fields of the row."""
        conversation, start = items(request.get("input")), request.get("start")
        first = start if isinstance(start, int) else len(conversation)
        fields = {**self._rollout.row, "responses_create_params": mapping(request.get("params"))}
        row, omitted = shortened(fields, conversation[:first], conversation[first:], self._limit)
        turn = request.get("turn")
        return PartialConversation(
            source="model_server", server=server, turn=turn if isinstance(turn, int) else 0, row=row, omitted=omitted
        )

    async def _get(self, url: str, path: str) -> bytes | None:
        try:
            response = await self._client.get_from(url, path, DEADLINE_S)
        except Failure:
            return None
        return response.body if response.status == 200 else None

    def _set_url(self, url: str) -> None:
        self._url = url


def _validated(body: bytes, limit: int) -> Json | None:
    """Return the record; None if it is none, or larger than the agent was asked for."""
    if len(body) > 2 * limit:
        return None
    try:
        return PartialConversation.model_validate_json(body).model_dump(mode="json")
    except ValidationError:
        return None


def _object(body: bytes) -> Json | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None

"""Lets an environment call the model servers of its run, for example a judge that grades an answer."""

from __future__ import annotations

import orjson

from rollyard.records.types import Json
from rollyard.services.http.client import ServerClient
from rollyard.services.responses.response_validity import read_response

RESPOND_S = 900.0


class Models:
    """The run's model servers, which are addressed by their names in the config."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    async def respond(self, server: str, request: Json, *, timeout_s: float = RESPOND_S) -> Json:
        """Send an OpenAI Responses create request to the model server `server` and return the Response object.

        `timeout_s` limits the whole call, including the model server's retries. If the call fails, raises Failure with
        the server's name. Do not catch it: the rollout is then recorded as failed and gets no reward.
        """
        answer = await self._client.post(server, "/v1/responses", orjson.dumps(request), timeout_s)
        return read_response(answer.body, server)

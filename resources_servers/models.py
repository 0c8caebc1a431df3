"""Models: how an environment asks a model server of its own run, such as the judge that grades an answer."""

from __future__ import annotations

import orjson

from rollyard.services.http.client import ServerClient
from rollyard.services.responses.server_answers import read_response
from rollyard.services.types import Json

RESPOND_S = 900.0


class Models:
    """The model servers of the run, by the names that the config gives them."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    async def respond(self, server: str, request: Json, *, timeout_s: float = RESPOND_S) -> Json:
        """The Response object of the model server `server` for an OpenAI Responses create request.

        `timeout_s` is the deadline of the whole call, the model server's own retries included. Raises Failure with the
        server's name: let it pass, so that the rollout is recorded as failed and gets no reward.
        """
        answer = await self._client.post(server, "/v1/responses", orjson.dumps(request), timeout_s)
        return read_response(answer.body, server)

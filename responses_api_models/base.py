"""ModelServer: the policy behind one OpenAI-compatible door.

What you must write: `responses`, a Responses create request in, a whole Response object out (plain dicts).
What you may write: `chat` (else Chat Completions is converted to `responses` and back) and `models`.
What is done for you: the routes, both APIs, streaming (synthesised from the finished answer), errors as problems.
The caller hanging up cancels your coroutine, so that an engine behind it can abort.
"""

from __future__ import annotations

import time

import orjson

from responses_api_models import convert, streaming
from services.call import Call, Reply
from services.server import Context, Server
from services.settings import ServerSettings
from services.types import Json

SSE = b"text/event-stream; charset=utf-8"


class ModelServer(Server):
    """Base of every model server."""

    def __init__(self, settings: ServerSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.route("/v1/responses", self.__serve_responses, cancellable=True)
        self.route("/v1/chat/completions", self.__serve_chat, cancellable=True)
        self.app.get("/v1/models")(self.__list_models)

    async def responses(self, request: Json, call: Call) -> Json | bytes | Reply:
        """You write this: the whole Response object for a create request.

        `stream` is gone from `request`. Return bytes or a Reply where the answer passes through as it came.
        """
        raise NotImplementedError

    async def chat(self, request: Json, call: Call) -> Json | bytes | Reply:
        """The whole Chat Completion for a create request."""
        answer = await self.responses(convert.chat_request_to_responses(request), call)
        if isinstance(answer, Reply):
            if answer.status >= 400:
                return answer
            answer = answer.body
        response: Json = orjson.loads(answer) if isinstance(answer, bytes) else answer
        return convert.response_to_chat(response)

    def models(self) -> list[str]:
        """Names served at `GET /v1/models`."""
        return [self.name]

    async def __serve_responses(self, call: Call) -> bytes | Reply:
        """OpenAI Responses: create. With `"stream": true` the answer is a stream of events."""
        request = call.json()
        stream = request.pop("stream", None)
        request.pop("stream_options", None)
        answer = await self.responses(request, call)
        return _sent(answer) if not stream else _streamed(answer, streaming.response_events)

    async def __serve_chat(self, call: Call) -> bytes | Reply:
        """OpenAI Chat Completions: create. With `"stream": true` the answer is a stream of chunks."""
        request = call.json()
        stream = request.pop("stream", None)
        options = request.pop("stream_options", None) or {}
        answer = await self.chat(request, call)
        if not stream:
            return _sent(answer)
        with_usage = bool(options.get("include_usage"))
        return _streamed(answer, lambda completion: streaming.chat_chunks(completion, with_usage))

    async def __list_models(self) -> Json:
        """The models served here, in OpenAI's list format."""
        created = int(time.time())
        entries = [{"id": name, "object": "model", "created": created, "owned_by": self.name} for name in self.models()]
        return {"object": "list", "data": entries}


def _sent(answer: Json | bytes | Reply) -> bytes | Reply:
    return orjson.dumps(answer) if isinstance(answer, dict) else answer


def _streamed(answer: Json | bytes | Reply, events: streaming.Events) -> Reply:
    """The finished answer as one body of server-sent events; an error answer stays what it is."""
    if isinstance(answer, Reply):
        if answer.status >= 400 or answer.stream is not None:
            return answer
        answer = answer.body
    if isinstance(answer, bytes):
        answer = orjson.loads(answer)
        assert isinstance(answer, dict)
    return Reply(events(answer), content_type=SSE, headers=((b"cache-control", b"no-cache"),))

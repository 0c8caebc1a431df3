"""Calls the endpoints that serve the policy of single episodes, such as a trainer's recording proxy.

Every model server does this for the agents of its run, with its own retry settings. The endpoint is called at
`/chat/completions`, which recording proxies support, and at `/responses` if it has no Chat Completions. Settings for
the server's own endpoint, such as `extra_body` and `default_headers`, are not used.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from rollyard.records.errors import Failure
from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.responses_api_models import conversion
from rollyard.responses_api_models.conversion import Dialect
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.response_parsing import encode_request, json_object, response_bytes
from rollyard.responses_api_models.upstream.settings import CallSettings
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.responses.policy_endpoint import POLICY_HEADER, PolicyEndpoint, unsealed
from rollyard.services.responses.tool_calls import offered, sendable_items
from rollyard.services.server.app import Context
from rollyard.services.server.settings import REDACTED, ServerSettings

MAX_ENDPOINTS = 4096
"""Number of endpoints whose state is kept. The least recently used one is dropped; it is created again if needed."""
SHORTEST_SECRET = 8
"""Shorter keys are placeholders such as `EMPTY`, which a response may contain by chance."""
_RETRY_SETTINGS = ("request_timeout_s", "total_timeout_s", "max_attempts", "retry_timeouts", "retry_pause_s")
_ABSENT = (404, 405, 501)


@dataclass(slots=True, eq=False)
class _Endpoint:
    upstream: Upstream
    model: str
    key: bytes
    has_chat: bool = True


class EpisodePolicies:
    def __init__(self, settings: ServerSettings, context: Context, models: Callable[[], list[str]]) -> None:
        """`models` returns the server's own model names; the first is used if an episode gives none."""
        self._context = context
        self._models = models
        self._retries = {
            name: getattr(settings, name) for name in _RETRY_SETTINGS if isinstance(settings, CallSettings)
        }
        dialect = getattr(settings, "dialect", Dialect())
        # The endpoint records the tokens itself, so they are not sent back to it.
        self._dialect: Dialect = dataclasses.replace(dialect, send_token_ids=False)
        self._endpoints: OrderedDict[PolicyEndpoint, _Endpoint] = OrderedDict()

    async def respond(self, call: RawRequest) -> RawResponse:
        """Create a Response (OpenAI's Responses API) with the endpoint of the agent's episode."""
        endpoint = self._endpoint(unsealed(call.header(POLICY_HEADER.encode()), self._context.keys.secret))
        request = call.json()
        conversion.check_responses_request(request)
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        sent = _sendable(request)
        return request_context.answered(
            await self._answer(endpoint, {**sent, "model": endpoint.model}, request_context)
        )

    async def _answer(self, endpoint: _Endpoint, request: Json, request_context: RequestContext) -> bytes:
        if endpoint.has_chat:
            try:
                return await self._chat(endpoint, request, request_context)
            except Failure as failure:
                if failure.problem.upstream_status not in _ABSENT:
                    raise
                absent = failure
            try:
                body = await self._responses(endpoint, request, request_context)
            except Failure as failure:
                raise absent from failure
            endpoint.has_chat = False
            return body
        return await self._responses(endpoint, request, request_context)

    async def _chat(self, endpoint: _Endpoint, request: Json, request_context: RequestContext) -> bytes:
        def read(answer: bytes) -> bytes:
            completion = json_object(_without_key(answer, endpoint.key))
            return conversion.encoded_response(completion, request, self._dialect)

        body = encode_request(conversion.request_to_chat(request, self._dialect))
        return await endpoint.upstream.post("/chat/completions", body, read, request_context)

    async def _responses(self, endpoint: _Endpoint, request: Json, request_context: RequestContext) -> bytes:
        def read(answer: bytes) -> bytes:
            return response_bytes(_without_key(answer, endpoint.key))

        return await endpoint.upstream.post("/responses", encode_request(request), read, request_context)

    def _endpoint(self, policy: PolicyEndpoint) -> _Endpoint:
        if (found := self._endpoints.get(policy)) is not None:
            self._endpoints.move_to_end(policy)
            return found
        model = policy.model or next(iter(self._models()), "")
        settings = CallSettings(model=model, **self._retries)
        upstream = Upstream(
            Replicas(policy.base_urls), settings, SecretStr(policy.api_key), self._context.external_transport
        )
        key = policy.api_key.encode() if len(policy.api_key) >= SHORTEST_SECRET else b""
        self._endpoints[policy] = made = _Endpoint(upstream, model, key)
        if len(self._endpoints) > MAX_ENDPOINTS:
            self._endpoints.popitem(last=False)
        return made


def _sendable(request: Json) -> Json:
    """Return the request without stream fields and tokens, and with tool calls that every endpoint accepts."""
    sent = {key: value for key, value in request.items() if key not in ("stream", "stream_options")}
    if isinstance(items := request.get("input"), list):
        sent["input"] = [_without_tokens(item) for item in sendable_items(items, offered(request.get("tools")))]
    return sent


def _without_tokens(item: Any) -> Any:
    return {key: value for key, value in item.items() if key not in TOKEN_FIELDS} if isinstance(item, dict) else item


def _without_key(body: bytes, key: bytes) -> bytes:
    """Return the body without the API key, which an endpoint that echoes its request would add to the rollout."""
    return body.replace(key, REDACTED.encode()) if key else body

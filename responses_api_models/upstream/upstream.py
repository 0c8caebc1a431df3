"""Sends requests to an external OpenAI-compatible endpoint, or to a pool of engines.

retries.py decides where calls go and when they are retried. A stream is retried only before its response has started.
The API key is sent to the endpoint, but never logged or included in errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import orjson
from pydantic import SecretStr

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.responses_api_models.streaming.first_events import Opening, StartedStream
from rollyard.responses_api_models.streaming.sse import data_of, error_in, is_event, split_events
from rollyard.responses_api_models.upstream.endpoint import Endpoint
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.response_parsing import retry_after_s, upstream_failure
from rollyard.responses_api_models.upstream.retries import RetryingCaller, UpstreamRefusal, joined
from rollyard.responses_api_models.upstream.settings import CallSettings
from rollyard.services.http.transport import HttpResponse, Transport
from rollyard.services.server.settings import header_secrets, secrets_in_bodies

T = TypeVar("T")

_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')


class Upstream:
    """Sends requests to the endpoint that a call's episode is bound to, with retries."""

    def __init__(
        self, replicas: Replicas, settings: CallSettings, api_key: SecretStr | None, transport: Transport
    ) -> None:
        self.replicas = replicas
        self._settings = settings
        self._key = api_key.get_secret_value().strip() if api_key else ""
        if not self._key.isprintable() or not self._key.isascii():
            raise OperatorError(
                "api_key contains characters that are invalid in an HTTP header; check that it was copied correctly"
            )
        self._headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "rollyard"}
        self._headers.update({name.lower(): value for name, value in settings.default_headers.items()})
        if odd := [name for name, value in self._headers.items() if not _is_header(name, value)]:
            raise OperatorError(f"default_headers: {', '.join(map(repr, odd))} cannot be sent as an HTTP header")
        if self._key:
            self._headers["authorization"] = f"Bearer {self._key}"
        self._secrets = secrets_in_bodies([self._key, *header_secrets(settings.default_headers)])
        self._transport = transport
        self.engine_model: Callable[[], str] = str
        """Returns the name under which engines currently serve the policy, instead of the model of the settings; empty
        if there is none."""
        self.ready: Callable[[], Awaitable[None]] = _at_once
        """Awaited before each attempt."""
        self._tries = RetryingCaller(replicas, settings)

    def __repr__(self) -> str:
        return f"Upstream({self.replicas.urls})"

    async def post(
        self, path: str, body: bytes, read: Callable[[bytes], T], request_context: RequestContext | None = None
    ) -> T:
        """Send a POST and return the result of `read` for the response body. If `read` raises Failure malformed_answer,
        the call is retried.

        `path` is relative to the endpoint's URL; a path that starts with `/../` is relative to the parent of its `/v1`.
        """
        request_context = request_context or RequestContext({})

        async def once(endpoint: Endpoint, timeout_s: float) -> T:
            target = joined(endpoint.url, path)
            sent, named = await self._addressed(body, timeout_s)
            answer = await self._transport.send(
                "POST", target + request_context.query, sent, self._request_headers(request_context), timeout_s
            )
            if not answer.succeeded:
                raise self._failure(answer, target)
            value = self._read(answer.body, read)
            self._check_model(answer.body, endpoint, named)
            request_context.record_response(answer)
            return value

        return await self._tries.make(path, request_context, once)

    async def stream(
        self, path: str, body: bytes, request_context: RequestContext, opening: Opening = lambda: is_event
    ) -> AsyncIterator[bytes]:
        """Return the response's server-sent events as they arrive. Raises Failure if the stream starts with an error.

        Events are held back briefly until `opening` detects the start of the response; failures before it are retried.
        Closing the stream disconnects from the engine, which then aborts the request.
        """

        async def once(endpoint: Endpoint, timeout_s: float) -> tuple[Endpoint, StartedStream]:
            target = joined(endpoint.url, path)
            headers = {**self._request_headers(request_context), "accept": "text/event-stream"}
            sent, named = await self._addressed(body, timeout_s)
            answer, chunks = await self._transport.stream(
                "POST", target + request_context.query, sent, headers, timeout_s
            )
            try:
                if not answer.succeeded or "json" in answer.headers.get("content-type", ""):
                    whole = b"".join([chunk async for chunk in chunks])
                    raise self._no_stream(HttpResponse(answer.status, answer.headers, whole), target)
                started_stream = StartedStream(split_events(chunks), opening())
                first = await started_stream.first()
                self._check_event(first, answer, target)
                self._check_model(first, endpoint, named)
                await started_stream.hold()
            except BaseException:
                await chunks.aclose()  # type: ignore[attr-defined]
                raise
            request_context.record_response(answer)
            return endpoint, started_stream

        endpoint, started_stream = await self._tries.make(path, request_context, once)
        return self._forward(path, endpoint, started_stream)

    async def send(
        self, method: str, url: str, path: str, body: bytes = b"", timeout_s: float | None = None
    ) -> HttpResponse:
        """Send one request to the engine at `url` without retries and return its response, regardless of the status.

        Raises Failure if there is no response.
        """
        limit_s = timeout_s or self._settings.request_timeout_s
        answer = await self._transport.send(method, joined(url, path), body, self._headers, limit_s)
        return HttpResponse(answer.status, answer.headers, self._without_key(answer.body))

    def _check_event(self, event: bytes, answer: HttpResponse, target: str) -> None:
        if error := error_in(event):
            code = error.get("code")
            status = code if isinstance(code, int) and 400 <= code < 600 else 500
            raise self._failure(HttpResponse(status, answer.headers, data_of(event)), target)
        if not is_event(event):
            raise self._no_stream(HttpResponse(answer.status, answer.headers, event), target)

    async def _addressed(self, body: bytes, timeout_s: float) -> tuple[bytes, str]:
        """Return the body with the model name of the policy's adapter, and that name; it may change between attempts,
        which wait while it does.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.ready()
        except TimeoutError:
            detail = f"the model call waited longer than {timeout_s:g} s for a weight update"
            raise Failure(FailureKind.TIMEOUT, detail) from None
        if not (name := self.engine_model()):
            return body, ""
        parsed = orjson.loads(body)
        if "model" not in parsed:
            return body, name
        return orjson.dumps({**parsed, "model": name}), name

    def _check_model(self, body: bytes, endpoint: Endpoint, named: str) -> None:
        """Reject an endpoint whose model differs from that of the other endpoints, because rollouts would mix two
        policies, and a response by another adapter than the policy's at the end of the call.
        """
        current = self.engine_model()
        if named != current:
            raise Failure(FailureKind.MALFORMED_ANSWER, f"{endpoint.url}: the policy's adapter changed during the call")
        if current or len(self.replicas) < 2 or not (found := _MODEL.search(body)):
            return
        model = found[1].decode("utf-8", "replace")
        if not self.replicas.answers_as(endpoint, model, self._settings.model):
            detail = f"{endpoint.url} responded with the model {model!r}; expected {self._settings.model!r}"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail)

    def _no_stream(self, answer: HttpResponse, target: str) -> Failure:
        if not answer.succeeded:
            return self._failure(answer, target)
        found = self._without_key(answer.body)[:300].decode("utf-8", "replace").strip() or "(an empty body)"
        return Failure(FailureKind.MALFORMED_ANSWER, f"{target} answered 200 without an event stream: {found}")

    async def _forward(self, path: str, endpoint: Endpoint, started_stream: StartedStream) -> AsyncIterator[bytes]:
        started = time.monotonic()
        with endpoint.busy():
            try:
                async with contextlib.aclosing(started_stream.events()) as events:
                    async for event in events:
                        yield event
            except Failure:
                endpoint.fail(path, started)
                raise

    def _request_headers(self, request_context: RequestContext) -> dict[str, str]:
        return {**request_context.headers, **self._headers} if request_context.headers else self._headers

    def _read(self, body: bytes, read: Callable[[bytes], T]) -> T:
        try:
            return read(body)
        except Failure:
            # If an endpoint echoes its request, the excerpt would contain the key.
            if (shown := self._without_key(body)) != body:
                read(shown)
            raise

    def _failure(self, answer: HttpResponse, endpoint: str) -> Failure:
        shown = HttpResponse(answer.status, answer.headers, self._without_key(answer.body))
        failure = upstream_failure(shown, endpoint, self._hint(answer, endpoint))
        return UpstreamRefusal(failure, retry_after_s(answer.headers.get("retry-after")))

    def _hint(self, answer: HttpResponse, endpoint: str) -> str:
        status = answer.status
        if status == 403 and endpoint.endswith(("/render", "/derender", "/generate")):
            return "vLLM enables it with --enable-scale-out"
        if status == 401 or status == 403:
            return "check policy_api_key" if self._key else "no api_key is set; check policy_api_key"
        if status == 404:
            missing = [url for url in self.replicas.urls if not url.endswith("/v1")]
            return "check policy_model_name" + (f", and whether {missing[0]} should end in /v1" if missing else "")
        if status < 400:
            return f"it redirects to {answer.headers.get('location')}; set policy_base_url to the final URL"
        return ""

    def _without_key(self, body: bytes) -> bytes:
        return self._secrets.sub(rb"\1***", body) if self._secrets else body


async def _at_once() -> None:
    pass


def _is_header(name: str, value: str) -> bool:
    return name.isascii() and name.isprintable() and all(char.isprintable() and char <= "\xff" for char in value)

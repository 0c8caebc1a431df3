"""Sends requests to an external OpenAI-compatible endpoint, or to a pool of engines.

The API key is sent to the endpoint, but never logged or included in errors. A stream is retried only before its
response has started.

A model call is stateless, so it can be retried. After a failed attempt:

    no connection, connection lost, 5xx, 408, 409, 425,    retry: at once on an endpoint that this call has not tried,
    429, an unreadable or empty response                   else after a pause (at least that of Retry-After)
    timeout                                                likewise, if the remaining time allows a full attempt,
                                                           unless `retry_timeouts` is false
    a rejection (any other 3xx or 4xx)                     retry once on each other endpoint; then like the above if
                                                           the endpoint has answered `path` before, or if the status is
                                                           none that explains what is wrong; else give up
    context overflow                                       give up

There are at most `max_attempts` attempts within `total_timeout_s`. Each failure caused by the endpoint starts a
cool-down (replicas.py). A 400, 413 or 422 is attributed to the request, unless another endpoint accepts it.

An episode is bound to the endpoint of its first response and retried there. It is lost if that endpoint is removed or
down, or rejects the call while there are other endpoints; the collector then repeats the episode from the start. The
first failure is logged immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import Self, TypeVar

import orjson
from pydantic import SecretStr

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.responses_api_models.upstream.replicas import Affinity, Endpoint, Replicas
from rollyard.responses_api_models.upstream.response_parsing import retry_after_s, upstream_failure
from rollyard.responses_api_models.upstream.settings import CallSettings
from rollyard.responses_api_models.upstream.sse import Opening, StartedStream, data_of, error_in, is_event, split_events
from rollyard.services.backoff import Backoff
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.http.request import Headers, HttpResponse, RawRequest, RawResponse, SentHeaders
from rollyard.services.http.transport import Transport
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS
from rollyard.services.server.settings import header_secrets, is_secret, secrets_in_bodies

T = TypeVar("T")
ForwardedHeaders = tuple[tuple[str, str], ...]
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')
log = logging.getLogger(__name__)


PAUSE_CAP_S = 10.0
_RETRIED = (
    {FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT, FailureKind.RATE_LIMITED}
    | {FailureKind.UPSTREAM_ERROR, FailureKind.MALFORMED_ANSWER}
)  # fmt: skip
_ABOUT_THE_REQUEST = frozenset({400, 411, 412, 413, 414, 415, 416, 417, 422, 431})
"""Statuses of rejections that are attributed to the request, unless another endpoint accepts it."""
_EXPLAINED = frozenset({400, 403, 404, 405, 411, 412, 414, 415, 416, 417, 422, 431})
"""Statuses with which an endpoint rejects what it never serves. Other ones may come from something in front of it."""
Attempt = Callable[[Endpoint, float], Awaitable[T]]


class Upstream:
    def __init__(
        self, replicas: Replicas, settings: CallSettings, api_key: SecretStr | None, transport: Transport
    ) -> None:
        self.replicas = replicas
        self._settings = settings
        self._key = api_key.get_secret_value().strip() if api_key else ""
        if not _is_header(self._key, ""):
            raise OperatorError("api_key contains characters that are invalid in an HTTP header; was it copied whole?")
        self._headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "rollyard"}
        self._headers.update({name.lower(): value for name, value in settings.default_headers.items()})
        if odd := [name for name, value in self._headers.items() if not _is_header(name, value)]:
            raise OperatorError(f"default_headers: {', '.join(map(repr, odd))} cannot be sent as an HTTP header")
        if self._key:
            self._headers["authorization"] = f"Bearer {self._key}"
        own = self._headers

        @lru_cache(maxsize=1 << 14)
        def with_own(headers: ForwardedHeaders) -> SentHeaders:
            return SentHeaders({**dict(headers), **own})

        self._with_own = with_own
        """Adds this server's headers to those of a call. The calls of an episode have the same ones."""
        self._secrets = secrets_in_bodies([self._key, *header_secrets(settings.default_headers)])
        self._transport = transport
        self.engine_model: Callable[[], str] = str
        """Returns the name under which engines currently serve the policy, instead of the model of the settings; empty
        if there is none."""
        self.blocked: Callable[[], Awaitable[None] | None] = lambda: None
        """Called before each attempt, which waits for what it returns."""
        self._pauses = Backoff(settings.retry_pause_s, PAUSE_CAP_S, jitter=0.5)
        self._quiet_until = 0.0
        self._unlogged = 0

    def __repr__(self) -> str:
        return f"Upstream({self.replicas.urls})"

    def post(
        self, path: str, body: bytes, read: Callable[[bytes], T], request_context: RequestContext | None = None
    ) -> Awaitable[T]:
        """Send a POST and return the result of `read` for the response body. If `read` raises Failure malformed_answer,
        the call is retried.

        `path` is relative to the endpoint's URL; a path that starts with `/../` is relative to the parent of its `/v1`.
        """
        request_context = request_context or RequestContext()
        headers = self._sent_headers(request_context)

        async def once(endpoint: Endpoint, timeout_s: float) -> T:
            target = joined(endpoint.url, path)
            if (waiting := self.blocked()) is not None:
                await _wait(waiting, timeout_s)
            sent, named = self._addressed(body)
            answer = await self._transport.send("POST", target + request_context.query, sent, headers, timeout_s)
            if not answer.succeeded:
                raise self._failure(answer, target)
            try:
                value = read(answer.body)
            except Failure:
                # If an endpoint echoes its request, the excerpt would contain the key.
                if (shown := self._without_key(answer.body)) != answer.body:
                    read(shown)
                raise
            self._check_model(answer.body, endpoint, named)
            request_context.record_response(answer)
            return value

        return self._retried(path, request_context, once)

    async def stream(
        self, path: str, body: bytes, request_context: RequestContext, opening: Opening = lambda: is_event
    ) -> AsyncIterator[bytes]:
        """Return the response's server-sent events as they arrive. Raises Failure if the stream starts with an error.

        Events are held back briefly until `opening` detects the start of the response; failures before it are retried.
        Closing the stream disconnects from the engine, which then aborts the request.
        """

        async def once(endpoint: Endpoint, timeout_s: float) -> tuple[Endpoint, StartedStream]:
            target = joined(endpoint.url, path)
            headers = {**self._sent_headers(request_context), "accept": "text/event-stream"}
            if (waiting := self.blocked()) is not None:
                await _wait(waiting, timeout_s)
            sent, named = self._addressed(body)
            answer, chunks = await self._transport.stream(
                "POST", target + request_context.query, sent, headers, timeout_s
            )
            try:
                if not answer.succeeded or "json" in answer.headers.get("content-type", ""):
                    whole = b"".join([chunk async for chunk in chunks])
                    raise self._no_stream(HttpResponse(answer.status, answer.headers, whole), target)
                started_stream = StartedStream(split_events(chunks), opening())
                first = await started_stream.first()
                if error := error_in(first):
                    code = error.get("code")
                    status = code if isinstance(code, int) and 400 <= code < 600 else 500
                    raise self._failure(HttpResponse(status, answer.headers, data_of(first)), target)
                if not is_event(first):
                    raise self._no_stream(HttpResponse(answer.status, answer.headers, first), target)
                self._check_model(first, endpoint, named)
                await started_stream.hold()
            except BaseException:
                await chunks.aclose()  # type: ignore[attr-defined]
                raise
            request_context.record_response(answer)
            return endpoint, started_stream

        endpoint, started_stream = await self._retried(path, request_context, once)
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

    def _sent_headers(self, request_context: RequestContext) -> SentHeaders:
        headers = self._with_own(request_context.headers)
        return SentHeaders({**request_context.trace, **headers}) if request_context.trace else headers

    def _addressed(self, body: bytes) -> tuple[bytes, str]:
        """Return the body with the name of the policy's adapter, and that name, which may change between attempts."""
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

    def _failure(self, answer: HttpResponse, endpoint: str) -> Failure:
        shown = HttpResponse(answer.status, answer.headers, self._without_key(answer.body))
        return upstream_failure(shown, endpoint, self._hint(answer, endpoint))

    def _hint(self, answer: HttpResponse, endpoint: str) -> str:
        status = answer.status
        if status == 403 and endpoint.endswith(("/render", "/derender", "/generate")):
            return "vLLM enables it with --enable-scale-out"
        if status in (401, 403):
            return "check policy_api_key" if self._key else "no api_key is set; check policy_api_key"
        if status == 404:
            missing = [url for url in self.replicas.urls if not url.endswith("/v1")]
            return "check policy_model_name" + (f", and whether {missing[0]} should end in /v1" if missing else "")
        if status < 400:
            return f"it redirects to {answer.headers.get('location')}; set policy_base_url to the final URL"
        return ""

    def _without_key(self, body: bytes) -> bytes:
        return self._secrets.sub(rb"\1***", body) if self._secrets else body

    async def _retried(self, path: str, request_context: RequestContext, once: Attempt[T]) -> T:
        settings = self._settings
        deadline = time.monotonic() + settings.total_timeout_s
        tried: list[Endpoint] = []
        rejecting: list[Endpoint] = []
        """Endpoints that rejected the request. This counts as their failure only if another endpoint accepts the
        request."""
        while True:
            # All requests of a call go to the same endpoint if possible.
            endpoint = request_context.endpoint
            if endpoint is None or endpoint in tried or not self.replicas.holds(endpoint):
                endpoint = await self.replicas.choose(request_context.affinity, tried)
            started = time.monotonic()
            try:
                timeout_s = max(min(settings.request_timeout_s, deadline - started), 0.01)
                with endpoint.busy():
                    answer = await once(endpoint, timeout_s)
            except Failure as failure:
                tried.append(endpoint)
                overloaded = failure.kind in (FailureKind.RATE_LIMITED, FailureKind.TIMEOUT)
                self.replicas.rejected += overloaded or failure.problem.upstream_status == 503
                refused = failure.kind is FailureKind.UPSTREAM_REFUSED
                if not refused and failure.kind not in _RETRIED:
                    raise
                requested_s = retry_after_s((failure.problem.model_extra or {}).get("retry_after"))
                if refused and failure.problem.upstream_status in _ABOUT_THE_REQUEST:
                    rejecting.append(endpoint)
                else:
                    counts = failure.kind is not FailureKind.RATE_LIMITED
                    endpoint.fail(path, started, pause_s=requested_s, counts=counts)
                self._check_affinity(failure, endpoint, request_context)
                # Whether the next attempt goes to an endpoint that this call has not tried.
                bound = self.replicas.binds(request_context.affinity, endpoint)
                elsewhere = not bound and self.replicas.best(tried) not in (None, *tried)
                pause = 0.0 if elsewhere else requested_s + self._pauses.pause_s(len(tried))
                left = deadline - time.monotonic() - pause
                last = len(tried) >= settings.max_attempts or left <= 0
                if refused and not elsewhere:
                    # Only what the endpoint always says is permanent, so a stray rejection is retried.
                    explained = failure.problem.upstream_status in _EXPLAINED
                    last = last or (explained and path not in endpoint.answered_paths)
                if failure.kind is FailureKind.TIMEOUT:
                    last = last or not settings.retry_timeouts or left < settings.request_timeout_s
                then = "giving up" if last else "retrying elsewhere" if elsewhere else f"retrying in {pause:.1f} s"
                attempt = f"attempt {len(tried)} of {settings.max_attempts}"
                self._log(f"{joined(endpoint.url, path)}: {attempt}: {failure} ({then})")
                if last:
                    problem, times = failure.problem, f" (tried {len(tried)} times)" if len(tried) > 1 else ""
                    raise Failure.of(problem.model_copy(update={"detail": problem.detail + times})) from failure
            else:
                for other in rejecting:
                    other.fail(path, started)
                self.replicas.answered(endpoint, request_context.affinity, path)
                request_context.endpoint = endpoint
                return answer
            if pause:
                await asyncio.sleep(pause)

    def _check_affinity(self, failure: Failure, endpoint: Endpoint, request_context: RequestContext) -> None:
        """Raise Failure session_lost if the episode is bound to this endpoint and cannot continue there."""
        affinity = request_context.affinity
        if affinity is None or not self.replicas.binds(affinity, endpoint):
            return
        if self.replicas.holds(endpoint):
            if len(self.replicas) == 1:
                return  # the only endpoint: the episode can continue once it is restarted
            refused = failure.kind is FailureKind.UPSTREAM_REFUSED
            if refused and failure.problem.upstream_status in _ABOUT_THE_REQUEST:
                return
            if not (refused or failure.kind is FailureKind.UNREACHABLE or endpoint.is_down):
                return
        raise self.replicas.lost(affinity, failure.problem.detail) from failure

    def _log(self, text: str) -> None:
        """Log at most one message per second, because hundreds of calls to a dead endpoint can fail at once."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        log.warning("%s%s", text, f" [and {self._unlogged} more failed attempts]" if self._unlogged else "")
        self._quiet_until, self._unlogged = now + 1.0, 0


async def _wait(waiting: Awaitable[None], timeout_s: float) -> None:
    try:
        await asyncio.wait_for(waiting, timeout_s)
    except TimeoutError:
        detail = f"the model call waited longer than {timeout_s:g} s for a weight update"
        raise Failure(FailureKind.TIMEOUT, detail) from None


def _is_header(name: str, value: str) -> bool:
    return name.isascii() and name.isprintable() and all(char.isprintable() and char <= "\xff" for char in value)


@lru_cache(maxsize=1024)
def joined(url: str, path: str) -> str:
    """Return the URL of `path`; a path that starts with `/../` is relative to the parent of the API's `/v1`."""
    return url.removesuffix("/v1") + path[3:] if path.startswith("/../") else url + path


_IN = frozenset({"cookie", "baggage"})
_TRACE = frozenset({b"traceparent", b"tracestate"})
_NOT_IN = ("x-rollyard-", "x-stainless-", "x-forwarded-", "x-real-ip")
_OUT = frozenset({"retry-after", "openai-processing-ms", "openai-version", "openai-organization"})
_NOT_OUT = ("x-rollyard-", "x-content-", "x-frame-")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class RequestContext:
    """The context of one call. All requests of the call go to the same engine as long as it responds.

    Cookies, tracing headers and affinity headers are forwarded unchanged in both directions, and the query string to
    the endpoint, so a load balancer or router in front of the engines works as if clients called it directly.
    """

    def __init__(self, headers: ForwardedHeaders = (), affinity: Affinity | None = None, query: str = "") -> None:
        self.headers = headers
        self.affinity = affinity
        self.query = query
        self.trace: dict[str, str] = {}
        """The tracing headers, which differ from call to call. `headers` are those that an episode's calls share."""
        self.endpoint: Endpoint | None = None
        self.answer_headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, call: RawRequest, cache_key: object = None) -> Self:
        """Create the context of `call`. `cache_key` is the body's `prompt_cache_key`, for calls without an episode."""
        shared, trace = call.headers, {}
        if not _TRACE.isdisjoint(shared):
            trace = {name.decode(): value.decode("latin-1") for name, value in shared.items() if name in _TRACE}
            shared = {name: value for name, value in shared.items() if name not in _TRACE}
        headers, affinity = _forwarded(tuple(shared.items()))
        if affinity is None and isinstance(cache_key, str) and cache_key:
            affinity = Affinity(cache_key, binding=False)
        context = cls(headers, affinity, _forwarded_query(call.query) if call.query else "")
        context.trace = trace
        return context

    @property
    def url(self) -> str | None:
        return self.endpoint.url if self.endpoint else None

    def record_response(self, answer: HttpResponse) -> None:
        returned: Headers = []
        for name, value in answer.headers.items():
            if (sent := _returned_name(name)) and not _CONTROL.search(value):
                returned.append((sent, _bytes(value)))
        for cookie in answer.cookies:
            if not _CONTROL.search(cookie):
                returned.append((b"set-cookie", _bytes(cookie)))
        self.answer_headers = tuple(returned)

    def answered(self, body: bytes) -> RawResponse:
        return RawResponse(body, headers=self.answer_headers)

    def streamed(self, events: AsyncIterator[bytes]) -> RawResponse:
        return RawResponse(stream=events, content_type=SSE, headers=(*STREAM_HEADERS, *self.answer_headers))


@lru_cache(maxsize=1 << 14)
def _forwarded(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[ForwardedHeaders, Affinity | None]:
    """Return the headers of a call that its request to the endpoint gets too, and the affinity of its episode."""
    decoded = ((name.decode("latin-1").lower(), value) for name, value in headers)
    kept = {name: value.decode("latin-1") for name, value in decoded if _passes(name, _IN, _NOT_IN)}
    episode = kept.get(EPISODE_HEADER)
    return tuple(kept.items()), Affinity(episode) if episode else None


def _forwarded_query(query: bytes) -> str:
    pairs = [pair for pair in query.decode("latin-1").split("&") if pair]
    kept = "&".join(pair for pair in pairs if not is_secret(pair.partition("=")[0]))
    return f"?{kept}" if kept else ""


@lru_cache(maxsize=1024)
def _returned_name(name: str) -> bytes:
    """Return the name of a header of an endpoint's response as its caller gets it; empty if the caller does not."""
    name = name.lower()
    return name.encode() if name.isascii() and _passes(name, _OUT, _NOT_OUT) else b""


def _bytes(value: str) -> bytes:
    """Restore a header value's bytes: Rollyard's own connections decode headers as Latin-1, aiohttp as UTF-8."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape")


@lru_cache(maxsize=1024)
def _passes(name: str, named: frozenset[str], barred: tuple[str, ...]) -> bool:
    if name in named:
        return True
    # A caller's x-api-key is meant for this server, not for the endpoint, which has its own.
    return name.startswith("x-") and not name.startswith(barred) and not is_secret(name.replace("-", "_"))

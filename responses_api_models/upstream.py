"""Upstream: one foreign OpenAI-compatible endpoint, or engines of our own, asked with patience that ends.

A model call keeps no state, so it may be asked again; how often, by class of failure:

    no connection, connection lost      again, after a pause; elsewhere when the episode has not begun
    429, 503                            again, after the pause that Retry-After asks for
    other 5xx, an unreadable 200        again, after a pause
    no answer in time                   again, when the budget still holds a whole try
    any other status                    never: asking again cannot help

and never more than `max_attempts` times or beyond `budget_s` seconds in all. The first failure is logged when it
happens. A stream is asked again only before its first event has come. The key is sent and never shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from pydantic import SecretStr

from responses_api_models.passage import Passage
from responses_api_models.replicas import Replicas
from responses_api_models.sse import data_of, error_in, is_event, whole_events
from responses_api_models.upstream_answers import named_failure, retry_after_s
from responses_api_models.upstream_settings import CallSettings
from services.errors import Failure, FailureKind, OperatorError
from services.transport import Answer, Transport

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_CAP_S = 10.0
"""Longest pause of our own between two tries."""
_RETRIED = (
    {FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT, FailureKind.RATE_LIMITED}
    | {FailureKind.UPSTREAM_ERROR, FailureKind.MALFORMED_ANSWER}
)  # fmt: skip
_Try = Callable[[str, float], Awaitable[T]]
"""One request to an address within so many seconds."""


class Upstream:
    """Posts to the replica on which a call's episode sits."""

    def __init__(
        self, replicas: Replicas, settings: CallSettings, api_key: SecretStr | None, transport: Transport
    ) -> None:
        self.replicas = replicas
        self._settings = settings
        self._key = api_key.get_secret_value().strip() if api_key else ""
        if not self._key.isprintable() or not self._key.isascii():
            raise OperatorError("api_key holds characters that no HTTP header can carry; check how it was copied")
        self._headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "rollyard"}
        self._headers.update({name.lower(): value for name, value in settings.default_headers.items()})
        if self._key:
            self._headers["authorization"] = f"Bearer {self._key}"
        self._transport = transport
        self._quiet_until = 0.0
        self._unlogged = 0

    def __repr__(self) -> str:
        return f"Upstream({self.replicas.urls})"

    async def post(self, path: str, body: bytes, read: Callable[[bytes], T], passage: Passage | None = None) -> T:
        """What `read` makes of the answer's body; a Failure malformed_answer from it is tried again.

        `path` is below the address; one that begins with `/../` stands beside its `/v1`.
        """
        passage = passage or Passage({})

        async def once(url: str, timeout_s: float) -> T:
            target = _joined(url, path)
            answer = await self._transport.send("POST", target + passage.query, body, self._sent(passage), timeout_s)
            if not 200 <= answer.status < 300:
                raise self._failure(answer, target)
            passage.came_back(answer)
            return self._read(answer.body, read)

        return await self._patiently(path, passage, once)

    async def stream(self, path: str, body: bytes, passage: Passage) -> AsyncIterator[bytes]:
        """The answer's server-sent events as they come, each whole. One that begins with an error is that failure.

        Closing it hangs up, so that an engine aborts the request.
        """

        async def once(url: str, timeout_s: float) -> tuple[str, AsyncIterator[bytes], bytes]:
            target = _joined(url, path)
            headers = {**self._sent(passage), "accept": "text/event-stream"}
            answer, pieces = await self._transport.stream("POST", target + passage.query, body, headers, timeout_s)
            try:
                if not 200 <= answer.status < 300 or "json" in answer.headers.get("content-type", ""):
                    whole = b"".join([piece async for piece in pieces])
                    raise self._no_stream(Answer(answer.status, answer.headers, whole), target)
                events = whole_events(pieces)
                first = await anext(events, b"")
                self._check_first(first, answer, target)
            except BaseException:
                await pieces.aclose()  # type: ignore[attr-defined]
                raise
            passage.came_back(answer)
            return url, events, first

        url, events, first = await self._patiently(path, passage, once)
        return self._flowing(url, events, first)

    async def send(self, method: str, url: str, path: str, body: bytes = b"", timeout_s: float | None = None) -> Answer:
        """One request to the engine at `url`, not tried again: its answer of any status. Raises Failure without one."""
        limit_s = timeout_s or self._settings.request_timeout_s
        answer = await self._transport.send(method, _joined(url, path), body, self._headers, limit_s)
        return Answer(answer.status, answer.headers, self._without_key(answer.body))

    def _check_first(self, event: bytes, answer: Answer, target: str) -> None:
        if error := error_in(event):
            code = error.get("code")
            status = code if isinstance(code, int) and 400 <= code < 600 else 500
            raise self._failure(Answer(status, answer.headers, data_of(event)), target)
        if not is_event(event):
            raise self._no_stream(Answer(answer.status, answer.headers, event), target)

    def _no_stream(self, answer: Answer, target: str) -> Failure:
        if not 200 <= answer.status < 300:
            return self._failure(answer, target)
        found = self._without_key(answer.body)[:300].decode("utf-8", "replace").strip() or "(an empty body)"
        return Failure(FailureKind.MALFORMED_ANSWER, f"{target} answered 200 with no stream of events: {found}")

    async def _flowing(self, url: str, events: AsyncIterator[bytes], first: bytes) -> AsyncIterator[bytes]:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            with self.replicas.busy(url):
                yield first
                async for event in events:
                    yield event

    async def _patiently(self, path: str, passage: Passage, once: _Try[T]) -> T:
        settings = self._settings
        give_up = time.monotonic() + settings.total_timeout_s
        attempt = 0
        while True:
            attempt += 1
            begun = passage.url is not None or self.replicas.seated(passage.episode)
            url = passage.url or await self.replicas.choose(passage.episode)
            try:
                timeout_s = max(min(settings.request_timeout_s, give_up - time.monotonic()), 0.01)
                with self.replicas.busy(url):
                    answer = await once(url, timeout_s)
                passage.url = url
                return answer
            except Failure as failure:
                if failure.kind not in _RETRIED:
                    raise
                self._check_seat(failure, url, passage, begun)
                asked = failure.pause_s if isinstance(failure, _Refused) else 0.0
                pause = asked + random.uniform(0.5, 1.0) * min(settings.retry_pause_s * 2 ** (attempt - 1), PAUSE_CAP_S)
                left = give_up - time.monotonic() - pause
                last = attempt >= settings.max_attempts or left <= 0
                last = last or (failure.kind is FailureKind.TIMEOUT and left < settings.request_timeout_s)
                then = "giving up" if last else f"again in {pause:.1f} s"
                tries = f"try {attempt} of {settings.max_attempts}"
                self._log(f"{_joined(url, path)}: {tries}: {failure} ({then})")
                if last:
                    raise _told(failure, attempt) from failure
            await asyncio.sleep(pause)

    def _check_seat(self, failure: Failure, url: str, passage: Passage, begun: bool) -> None:
        """An address that fails comes last; an episode on one that is gone is lost, one not begun goes elsewhere."""
        if failure.kind is not FailureKind.MALFORMED_ANSWER:
            self.replicas.shun(url)
        gone = failure.kind is FailureKind.UNREACHABLE and not self.replicas.alone(url)
        if begun and not gone and url in self.replicas.urls:
            return
        lost = self.replicas.lost(passage.episode or "", failure.problem.detail)
        if begun and passage.episode:
            raise lost from failure
        passage.url = None

    def _sent(self, passage: Passage) -> dict[str, str]:
        return {**passage.headers, **self._headers} if passage.headers else self._headers

    def _read(self, body: bytes, read: Callable[[bytes], T]) -> T:
        try:
            return read(body)
        except Failure:
            # An endpoint that echoes its request would put the key into the excerpt.
            if (shown := self._without_key(body)) != body:
                read(shown)
            raise

    def _failure(self, answer: Answer, endpoint: str) -> Failure:
        shown = Answer(answer.status, answer.headers, self._without_key(answer.body))
        failure = named_failure(shown, endpoint, self._hint(answer, endpoint))
        return _Refused(failure, retry_after_s(answer.headers.get("retry-after")))

    def _hint(self, answer: Answer, endpoint: str) -> str:
        status = answer.status
        if status == 403 and endpoint.endswith(("/render", "/derender", "/generate")):
            return "vLLM opens it with --enable-scale-out"
        if status == 401 or status == 403:
            return "check policy_api_key" if self._key else "no api_key is set; check policy_api_key"
        if status == 404:
            missing = [url for url in self.replicas.urls if not url.endswith("/v1")]
            return "check policy_model_name" + (f", and whether {missing[0]} lacks its /v1" if missing else "")
        if status < 400:
            return f"it redirects to {answer.headers.get('location')}; put the final address into policy_base_url"
        return ""

    def _without_key(self, body: bytes) -> bytes:
        return body.replace(self._key.encode(), b"***") if self._key else body

    def _log(self, text: str) -> None:
        """The first at once, then one a second: a dead endpoint with hundreds of calls must not drown the log."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        log.warning("%s%s", text, f" [and {self._unlogged} more failed tries]" if self._unlogged else "")
        self._quiet_until, self._unlogged = now + 1.0, 0


class _Refused(Failure):
    """The failure that an error answer reports, with the pause that it asks for."""

    def __init__(self, failure: Failure, pause_s: float) -> None:
        super().__init__(failure.kind, failure.problem.detail)
        self.problem = failure.problem
        self.pause_s = pause_s


def _joined(url: str, path: str) -> str:
    return url.removesuffix("/v1") + path[3:] if path.startswith("/../") else url + path


def _told(failure: Failure, attempts: int) -> Failure:
    """The failure, saying how often it was tried."""
    if attempts == 1:
        return failure
    problem = failure.problem
    return Failure.of(problem.model_copy(update={"detail": f"{problem.detail} (tried {attempts} times)"}))

"""ServerClient: calls a server of the run by name.

This module implements all deadlines and retries between the run's servers. It retries only failed connections (on a
different instance, or once the server is back), because a server may already have processed a request that was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar, cast

from rollyard.records.errors import Failure, FailureKind, did_you_mean
from rollyard.records.run_types import Directory, Keys
from rollyard.services.backoff import Backoff
from rollyard.services.http.connection_pool import RUN_LIMITS
from rollyard.services.http.request import HttpResponse, SentHeaders, raise_for_status, with_server
from rollyard.services.http.transport import CONNECT_TIMED_OUT, Transport
from rollyard.services.http.transport import RUN_HEADER as RUN_HEADER

log = logging.getLogger(__name__)
T = TypeVar("T")
TO_HEADER = "x-rollyard-to"
"""Name of the intended server: after a restart, another server of the run may be listening on its old port."""
SECRET_HEADER = "x-rollyard-secret"
SESSION_END_HEADER = "x-rollyard-session-end"
SESSION_HEADER = "x-rollyard-session"
"""A session id that the agent chose, with which it can close a session whose cookie it never received."""
OWNER_HEADER = "x-rollyard-owner"
"""Name of the agent's instance. When it leaves the run's directory, environments close its sessions."""
MISDIRECTED = 421
EPISODE_HEADER = "x-session-id"
"""The episode's id, which lets a model server send all its calls to the same engine. vLLM uses the same header."""
TRACE_HEADER = "traceresponse"
"""Header that the response of `/run` gets on its arrival if its episode was traced, with the id of the trace."""
EVENT_STREAM = "text/event-stream"
LOG_EVERY_S = 10.0
IsComplete = Callable[[HttpResponse], bool]
"""Returns whether the events so far, in the body, include the one that the caller waits for."""


@dataclass(frozen=True)
class RetryPolicy:
    """Controls how long a client retries when no instance is available."""

    wait_s: float = 60.0
    """How long to wait for a server that has no ready instance. A restart takes seconds."""
    pause_s: float = 0.1
    """Initial pause between two directory lookups. It doubles each time, up to 1 s."""


class ServerClient:
    """Calls servers by name. If a call gets no response, it raises `Failure` and never any other exception."""

    def __init__(
        self,
        transport: Transport,
        keys: Keys,
        book: AddressBook,
        retry_policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transport = transport
        self.book = book
        self._retry_policy = retry_policy or RetryPolicy()
        self._lookup_pauses = Backoff(self._retry_policy.pause_s, longest_pause_s=1.0)
        self._clock = clock
        self._run_id = keys.run_id
        self._headers = SentHeaders({"content-type": "application/json", RUN_HEADER: keys.run_id})
        if keys.token:
            self._headers["authorization"] = f"Bearer {keys.token}"
        self._in_flight: dict[str, int] = {}
        self._rotation = 0
        self._next_log: dict[str, float] = {}

    async def post(self, server: str, path: str, body: bytes, timeout_s: float) -> HttpResponse:
        """POST to the instance of `server` with the fewest calls in flight. Raises Failure unless the status is 2xx."""
        _, response = await self.reach(server, path, body, timeout_s)
        return raise_for_status(response, server)

    async def get(self, server: str, path: str, timeout_s: float) -> HttpResponse:
        """GET from the least busy ready instance; the response may have any status. Raises Failure without one."""
        url, left_s = await self._pick(server, timeout_s)
        return await self.transport.send("GET", url + path, b"", {**self._headers, TO_HEADER: server}, left_s)

    async def reach(
        self,
        server: str,
        path: str,
        body: bytes,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        on_send: Callable[[str], None] | None = None,
        is_complete: IsComplete | None = None,
        held_by: str | None = None,
    ) -> tuple[str, HttpResponse]:
        """POST to the least busy ready instance, after `on_send` with its base URL. Return the URL and any response.

        `held_by`: the base URL of the instance that holds the caller's session, which is then the only one to be tried.
        A failed connection is retried, because then nothing was sent: for as long as a restart may take if it was
        refused, and until the call's deadline if the instance does not respond, because it may just be busy. Raises
        Failure session_lost once the instance that holds the session has left the directory.
        """
        addressed = headers if held_by else {TO_HEADER: server, **(headers or {})}
        started, left_s, lookups = self._clock(), timeout_s, 0
        while True:
            try:
                url = held_by
                if url is None:
                    url, left_s = await self._pick(server, left_s)
                    if on_send is not None:
                        on_send(url)
                return url, await self.send(url, path, body, left_s, addressed, is_complete)
            except Failure as failure:
                if held_by is not None:
                    await self._check_session(failure, server, held_by)
                now = self._clock()
                timed_out = failure.problem.code == CONNECT_TIMED_OUT
                until = started + (timeout_s if timed_out else self._wait_s(server, timeout_s))
                if failure.kind is not FailureKind.UNREACHABLE or failure.problem.server or now >= until:
                    raise with_server(failure, server) from failure
                self._log_waiting(server, failure.problem.detail, until - now)
            lookups += 1
            await asyncio.sleep(self._lookup_pauses.pause_s(lookups))
            await self._refresh_directory()
            left_s = started + timeout_s - self._clock()

    async def _check_session(self, failure: Failure, server: str, url: str) -> None:
        """Raise Failure session_lost if the instance at `url` is not the one any more that a call was meant for."""
        lost = failure.kind is FailureKind.WRONG_RUN
        if failure.kind is FailureKind.UNREACHABLE:
            await self._refresh_directory()
            lost = not (await self.book.current()).has(server, url)
        if lost:
            detail = f"the instance that held the session no longer exists ({failure.problem.detail})"
            raise Failure(FailureKind.SESSION_LOST, detail, server=server) from failure

    async def send(
        self,
        url: str,
        path: str,
        body: bytes,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        is_complete: IsComplete | None = None,
    ) -> HttpResponse:
        """POST to one instance; the response may have any status.

        `is_complete`: an event stream is read until this is true, and not to its end.
        Raises Failure wrong_run if the instance belongs to a different run. Servers that are not Rollyard's own do not
        say so; they receive neither the run's token nor Rollyard's headers.
        """
        foreign = self.book.foreign  # of now: a server may leave the directory while it responds
        self._in_flight[url] = self._in_flight.get(url, 0) + 1
        try:
            all_headers = headers if isinstance(headers, SentHeaders) else self.headers_for(url, headers)
            if is_complete is None:
                channel = url in self.book.channels
                response = await self.transport.send("POST", url + path, body, all_headers, timeout_s, channel)
            else:
                response = await post_until(self.transport, url + path, body, all_headers, timeout_s, is_complete)
        finally:
            self._in_flight[url] -= 1
        is_ours = response.headers.get(RUN_HEADER) == self._run_id
        if (is_ours and response.status != MISDIRECTED) or url in foreign:
            return response
        self.book.mark_stale()
        if not is_ours:
            raise Failure(FailureKind.WRONG_RUN, f"the server at {url} does not belong to run {self._run_id}")
        return response

    async def get_from(self, url: str, path: str, timeout_s: float) -> HttpResponse:
        return await self.transport.send("GET", url + path, b"", self.headers_for(url, None), timeout_s)

    async def delete(self, url: str, path: str, timeout_s: float, headers: Mapping[str, str]) -> HttpResponse:
        return await self.transport.send("DELETE", url + path, b"", self.headers_for(url, headers), timeout_s)

    def headers_for(self, url: str, headers: Mapping[str, str] | None) -> SentHeaders:
        """Return the headers of a call. Servers of other frameworks get neither the run's token nor our headers."""
        if url not in self.book.foreign:
            return SentHeaders({**self._headers, **headers}) if headers else self._headers
        given = {name: value for name, value in (headers or {}).items() if not name.startswith("x-rollyard-")}
        return SentHeaders({"content-type": "application/json", **given})

    def _wait_s(self, server: str, left_s: float) -> float:
        """Return how long to wait for a ready instance: the server's start timeout or `wait_s`, at most `left_s`."""
        return min(max(self._retry_policy.wait_s, self.book.start_timeout_s(server)), left_s)

    async def _pick(self, server: str, left_s: float) -> tuple[str, float]:
        """Return the least busy instance, and what is left of `left_s` once one is ready."""
        directory = await self.book.current()
        urls = directory.servers.get(server) or directory.quiet.get(server)
        if not urls:
            urls, left_s = await self._wait_for_instance(server, directory, left_s)
        if len(urls) == 1:
            return urls[0], left_s
        # Equally busy instances take turns. Environments are idle between steps, so usually all are equally busy.
        self._rotation += 1
        first = self._rotation % len(urls)
        return min(urls[first:] + urls[:first], key=lambda url: self._in_flight.get(url, 0)), left_s

    async def _wait_for_instance(self, server: str, directory: Directory, left_s: float) -> tuple[list[str], float]:
        started, wait_s, lookups = self._clock(), self._wait_s(server, left_s), 0
        while not (urls := directory.servers.get(server) or directory.quiet.get(server)):
            if server not in directory.servers:
                hint = did_you_mean(server, directory.servers)
                raise Failure(
                    FailureKind.UNKNOWN_SERVER,
                    f"no server named {server!r} in this run{hint} (it has: {', '.join(sorted(directory.servers))})",
                )
            if self._clock() - started > wait_s:
                detail = f"no ready instance of {server!r} within {round(wait_s, 2):g} s"
                raise Failure(FailureKind.UNREACHABLE, detail, server=server)
            self._log_waiting(server, "no ready instance", wait_s)
            lookups += 1
            await asyncio.sleep(self._lookup_pauses.pause_s(lookups))
            await self._refresh_directory()
            directory = await self.book.current()
        return urls, left_s - (self._clock() - started)

    async def _refresh_directory(self) -> None:
        with contextlib.suppress(Failure):
            await self.book.refresh()

    def _log_waiting(self, server: str, why: str, wait_s: float) -> None:
        """Log what the client is waiting for, at most once per server every `LOG_EVERY_S` seconds."""
        now = time.monotonic()
        if now > self._next_log.get(server, 0.0):
            log.warning("%s: %s; retrying for up to %g s", server, why, round(wait_s, 2))
        self._next_log[server] = now + LOG_EVERY_S


class AddressBook:
    """Caches the run's directory. Each heartbeat updates it, and a call to an outdated URL marks it as stale."""

    def __init__(self, fetch: Callable[[], Awaitable[Directory]]) -> None:
        self._fetch = fetch
        self._directory: Directory | None = None
        self.foreign: Mapping[str, str] = {}
        """By base URL, the instances of servers that are not Rollyard's own."""
        self.channels: Collection[str] = ()
        """Base URLs of the servers to which several requests may share a connection."""
        self._stale = False
        self._refreshing: asyncio.Task[Directory] | None = None

    async def current(self) -> Directory:
        """Return the cached directory, fetching it first if it is missing or stale."""
        if self._directory is None:
            return await self.refresh()
        if self._stale:
            with contextlib.suppress(Failure):
                return await self.refresh()
        return self._directory

    def start_timeout_s(self, server: str) -> float:
        """Return how long the server may take to start, or 0 if it does not say."""
        return self._directory.start_timeouts_s.get(server, 0.0) if self._directory is not None else 0.0

    def foreign_instance(self, url: str) -> str | None:
        """Return the instance at the base URL of a server that is not Rollyard's own; None for all others."""
        return self.foreign.get(url)

    def update(self, directory: Directory) -> None:
        self._directory, self.foreign, self.channels = directory, directory.foreign, directory.channels

    def mark_stale(self) -> None:
        """Make the next call to `current` fetch the directory again."""
        self._stale = True

    async def refresh(self) -> Directory:
        """Fetch the directory from the head. Concurrent callers share one request."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            # Its callers may all have been cancelled when it fails.
            self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._refreshing)

    async def _refresh(self) -> Directory:
        directory = await self._fetch()
        self.update(directory)
        self._stale = False
        return directory


_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


async def post_until(
    transport: Transport, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, is_complete: IsComplete
) -> HttpResponse:
    """POST and return the response; of an event stream, what follows after `is_complete` is not waited for."""
    response, chunks = await transport.stream("POST", url, body, headers, timeout_s)
    has_events = response.headers.get("content-type", "").lower().startswith(EVENT_STREAM)
    read = bytearray()

    def so_far() -> HttpResponse:
        return HttpResponse(response.status, response.headers, bytes(read), response.cookies)

    async with aclosing(cast(AsyncGenerator[bytes], chunks)):
        if has_events and is_complete(so_far()):  # whatever the server sends
            return so_far()
        async for chunk in chunks:
            read += chunk
            if len(read) > RUN_LIMITS.body_bytes:
                detail = f"the response of {url} is larger than {RUN_LIMITS.body_bytes} bytes"
                raise Failure(FailureKind.MALFORMED_ANSWER, detail)
            if has_events and read.endswith(_EVENT_ENDS) and is_complete(so_far()):
                break
    return so_far()


def is_foreign(response: HttpResponse) -> bool:
    """Return True for a response of a server of another framework, which does not send the run's header."""
    return RUN_HEADER not in response.headers


class Session:
    """One episode on one instance of an environment, or of any other server that identifies its state by a cookie."""

    def __init__(
        self, client: ServerClient, server: str, cookie: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._client = client
        self._url: str | None = None
        self._sent_to: str | None = None
        self._refused = False
        self._instance: str | None = None
        """The instance that opened the session, if the server is not Rollyard's own."""
        self.foreign = False
        """True once the server has responded as a server of another framework."""
        self._headers = {TO_HEADER: server, **(headers or {}), **({"cookie": cookie} if cookie else {})}
        self._sent_headers: SentHeaders | None = None
        """The headers of all calls but the first, until a response changes the cookie."""

    async def send(
        self,
        path: str,
        body: bytes,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        is_complete: IsComplete | None = None,
    ) -> HttpResponse:
        """POST within the session; the response may have any status. The first call selects the instance."""
        if (url := self._url or self._sent_to) is None:
            first = {**self._headers, **headers} if headers else self._headers
            try:
                url, response = await self._client.reach(
                    self.server, path, body, timeout_s, first, self._record_url, is_complete
                )
            except Failure as failure:
                if failure.kind in (FailureKind.UNREACHABLE, FailureKind.WRONG_RUN):
                    self._sent_to = None
                raise
            self._refused = response.status >= 400
            self._instance = self._client.book.foreign_instance(url)
        else:
            if self._instance is not None:
                self._check_instance(url, self._instance)
            sent = self._sent_headers
            if headers:
                sent = self._client.headers_for(url, {**self._headers, **headers})
            elif sent is None:
                sent = self._sent_headers = self._client.headers_for(url, self._headers)
            _, response = await self._client.reach(
                self.server, path, body, timeout_s, sent, is_complete=is_complete, held_by=url
            )
        self._url = url
        self.foreign = RUN_HEADER not in response.headers
        if response.cookies:
            self._remember(response.cookies)
        return response

    async def post(self, path: str, body: bytes, timeout_s: float, headers: Mapping[str, str] | None = None) -> bytes:
        """Like `send`, but returns the body, and raises the reported Failure unless the status is 2xx."""
        return raise_for_status(await self.send(path, body, timeout_s, headers), self.server).body

    async def get(self, path: str, timeout_s: float) -> HttpResponse:
        """GET from the instance that opened the session; the response may have any status."""
        assert self._url is not None
        return await self._client.get_from(self._url, path, timeout_s)

    async def delete(self, path: str, timeout_s: float, headers: Mapping[str, str]) -> None:
        """DELETE a path of the instance that opened the session, whatever it responds."""
        if self._url is not None:
            await self._client.delete(self._url, path, timeout_s, {**self._headers, **headers})

    @property
    def cookies(self) -> tuple[str, ...]:
        return tuple(filter(None, self._headers.get("cookie", "").split("; ")))

    @property
    def opened(self) -> bool:
        return self._url is not None

    @property
    def may_be_open(self) -> bool:
        """True if an instance, which gets all later calls, may have opened the session: its response may be lost."""
        return self._sent_to is not None and not self._refused

    def _check_instance(self, url: str, opened: str) -> None:
        """Raise Failure session_lost if a server that is not Rollyard's own restarted: it would not notice itself."""
        instance = self._client.book.foreign_instance(url)
        if instance != opened:
            detail = f"the server restarted after the session was opened ({opened}, now {instance})"
            raise Failure(FailureKind.SESSION_LOST, detail, server=self.server)

    def _record_url(self, url: str) -> None:
        self._sent_to = url

    def _remember(self, cookies: tuple[str, ...]) -> None:
        jar = dict(pair.partition("=")[::2] for pair in self._headers.get("cookie", "").split("; ") if pair)
        for cookie in cookies:
            pair, _, attributes = cookie.partition(";")
            name, _, value = pair.strip().partition("=")
            if _is_expired(attributes):
                jar.pop(name, None)
            elif name:
                jar[name] = value
        self._sent_headers = None
        self._headers.pop("cookie", None)
        if jar:
            self._headers["cookie"] = "; ".join(f"{name}={value}" for name, value in jar.items())


def _is_expired(attributes: str) -> bool:
    """Return whether the attributes of a Set-Cookie value delete the cookie. Max-Age has precedence over Expires."""
    given = {
        name.strip().lower(): value.strip() for name, _, value in (one.partition("=") for one in attributes.split(";"))
    }
    if re.fullmatch(r"-?[0-9]+", age := given.get("max-age", "")):
        return age.startswith("-") or not age.strip("0")  # a number may be too long for int()
    try:
        return email.utils.parsedate_to_datetime(given["expires"]).timestamp() <= time.time()
    except (KeyError, ValueError, TypeError, OverflowError):
        return False

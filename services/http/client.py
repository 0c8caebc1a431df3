"""ServerClient: reach a server of the run by its name. Session: one open episode on one instance.

Deadlines and retries between our own servers live here and nowhere else: only a connection that could not be made is
tried again (elsewhere, or when the server is back), because a request that may have been acted on is never replayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from rollyard.services.errors import Failure, FailureKind, did_you_mean
from rollyard.services.http.address_book import AddressBook as AddressBook
from rollyard.services.http.transport import CONNECT_TIMED_OUT, HttpResponse, Transport
from rollyard.services.http.transport import RUN_HEADER as RUN_HEADER  # its name for the servers
from rollyard.services.types import Directory, Keys, Problem

TO_HEADER = "x-rollyard-to"
"""Names the server that is meant: after a restart another one of the run may sit on its old port."""
SECRET_HEADER = "x-rollyard-secret"
SESSION_END_HEADER = "x-rollyard-session-end"
SESSION_HEADER = "x-rollyard-session"
"""The id that an agent chose for its session: it can close it without the cookie, which may never have arrived."""
OWNER_HEADER = "x-rollyard-owner"
"""The agent's instance: an environment closes its sessions when the run's directory lists it no more."""
PROBLEM_TYPE = "application/problem+json"
MISDIRECTED = 421
EPISODE_HEADER = "x-session-id"
"""Names the episode to a model server (vLLM's own name for it): its calls stay on one engine."""
TELL_EVERY_S = 10.0

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """How long a client goes on when nobody is there."""

    wait_s: float = 60.0
    """For a server of the run that has no ready instance: restarting takes seconds."""
    pause_s: float = 0.1
    """First pause between looks at the directory; doubles up to 1 s."""


class ServerClient:
    """Calls servers by name. Every method raises `Failure` and nothing else when the answer is not there."""

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
        self._clock = clock
        self._run_id = keys.run_id
        self._headers = {"content-type": "application/json", RUN_HEADER: keys.run_id}
        if keys.token:
            self._headers["authorization"] = f"Bearer {keys.token}"
        self._in_flight: dict[str, int] = {}
        self._turns = 0
        self._quiet_until: dict[str, float] = {}

    async def post(self, server: str, path: str, body: bytes, timeout_s: float) -> HttpResponse:
        """POST to the instance of `server` with the fewest calls in flight; the answer's status is below 400."""
        _, answer = await self.reach(server, path, body, timeout_s)
        return raise_for_status(answer, server)

    async def reach(
        self,
        server: str,
        path: str,
        body: bytes,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        asking: Callable[[str], None] | None = None,
    ) -> tuple[str, HttpResponse]:
        """POST to the least busy ready instance; its base URL and its answer, which may have any status.

        `asking` is called with the base URL before each request.
        """
        addressed = {TO_HEADER: server, **(headers or {})}

        async def once(left_s: float) -> tuple[str, HttpResponse]:
            url = await self._pick(server, left_s)
            if asking is not None:
                asking(url)
            return url, await self.send(url, path, body, until - self._clock(), addressed)

        until = self._clock() + timeout_s
        return await self._connecting(server, until, once)

    async def reach_again(
        self, server: str, url: str, path: str, body: bytes, timeout_s: float, headers: Mapping[str, str]
    ) -> HttpResponse:
        """POST to the instance that holds the caller's session; the answer may have any status.

        A connection that cannot be made is tried again while the head knows of that instance: it may be too busy to
        accept. Raises Failure session_lost once it is gone.
        """

        async def once(left_s: float) -> HttpResponse:
            try:
                return await self.send(url, path, body, left_s, headers)
            except Failure as failure:
                gone = failure.kind is FailureKind.WRONG_RUN
                if failure.kind is FailureKind.UNREACHABLE:
                    await self._look_again()
                    gone = not (await self.book.current()).has(server, url)
                if gone:
                    detail = f"the instance that held the session is gone ({failure.problem.detail})"
                    raise Failure(FailureKind.SESSION_LOST, detail, server=server) from failure
                raise

        return await self._connecting(server, self._clock() + timeout_s, once)

    async def send(
        self, url: str, path: str, body: bytes, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """POST to one instance; the answer may have any status. A stranger on that port is a failure."""
        self._in_flight[url] = self._in_flight.get(url, 0) + 1
        try:
            all_headers = {**self._headers, **headers} if headers else self._headers
            answer = await self.transport.send("POST", url + path, body, all_headers, timeout_s)
        finally:
            self._in_flight[url] -= 1
        if answer.headers.get(RUN_HEADER) != self._run_id or answer.status == MISDIRECTED:
            self.book.forget()
        if answer.headers.get(RUN_HEADER) != self._run_id:
            raise Failure(FailureKind.WRONG_RUN, f"{url} is not answered by a server of run {self._run_id}")
        return answer

    async def _connecting(self, server: str, until: float, once: Callable[[float], Awaitable[T]]) -> T:
        """What `once` returns. A connection that could not be made is tried again: nothing was sent.

        An instance that refuses is given the time of a restart; one that is silent may be there and busy, and is given
        the time of the call.
        """
        patient_until = self._clock() + self._wait_s(await self.book.current(), server, until - self._clock())
        pause = self._retry_policy.pause_s
        while True:
            try:
                return await once(until - self._clock())
            except Failure as failure:
                now = self._clock()
                silent = failure.problem.code == CONNECT_TIMED_OUT
                last = now > (until if silent else patient_until) or now >= until
                if failure.kind is not FailureKind.UNREACHABLE or failure.problem.server or last:
                    raise with_server(failure, server) from failure
                self._tell(server, failure.problem.detail, (until if silent else patient_until) - now)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
            await self._look_again()

    def _wait_s(self, directory: Directory, server: str, left_s: float) -> float:
        """How long a server of which no instance is ready is waited for: what it may take to start, or a restart."""
        own_s = directory.start_timeouts_s.get(server, 0.0)
        return min(max(self._retry_policy.wait_s, own_s), left_s)

    async def _pick(self, server: str, left_s: float) -> str:
        """Base URL of the least busy instance. Waits while none is ready, no longer than `left_s`."""
        directory = await self.book.current()
        wait_s = self._wait_s(directory, server, left_s)
        give_up = self._clock() + wait_s
        pause = self._retry_policy.pause_s
        while not (urls := directory.servers.get(server) or directory.quiet.get(server)):
            if server not in directory.servers:
                hint = did_you_mean(server, directory.servers)
                raise Failure(
                    FailureKind.UNKNOWN_SERVER,
                    f"no server named {server!r} in this run{hint} (it has: {', '.join(sorted(directory.servers))})",
                )
            if self._clock() > give_up:
                detail = f"no ready instance of {server!r} within {round(wait_s, 2):g} s"
                raise Failure(FailureKind.UNREACHABLE, detail, server=server)
            self._tell(server, "no ready instance", wait_s)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
            await self._look_again()
            directory = await self.book.current()
        if len(urls) == 1:
            return urls[0]
        # Equally busy ones take turns: a world is idle between two moves, so that most of the time all are.
        self._turns += 1
        first = self._turns % len(urls)
        return min(urls[first:] + urls[:first], key=lambda url: self._in_flight.get(url, 0))

    async def _look_again(self) -> None:
        """Ask the head; one that is silent too is waited for like the server itself."""
        with contextlib.suppress(Failure):
            await self.book.refresh()

    def _tell(self, server: str, why: str, wait_s: float) -> None:
        """Say at once that somebody is waited for; not again for every call that waits."""
        now = time.monotonic()
        if now > self._quiet_until.get(server, 0.0):
            log.warning("%s: %s; trying again for up to %g s", server, why, round(wait_s, 2))
        self._quiet_until[server] = now + TELL_EVERY_S


class Session:
    """One episode on one instance of a world (or of anything that keeps state by cookie).

    Cookies set by the peer are sent back unchanged, so that worlds of other stacks work too.
    """

    def __init__(
        self, client: ServerClient, server: str, cookie: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._client = client
        self._url: str | None = None
        self._asked: str | None = None
        self._refused = False
        self._headers = {TO_HEADER: server, **(headers or {}), **({"cookie": cookie} if cookie else {})}

    async def send(
        self, path: str, body: bytes, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """POST within the session; the answer may have any status. The first call decides the instance."""
        sent = {**self._headers, **headers} if headers else self._headers
        if (url := self._url or self._asked) is None:
            try:
                url, answer = await self._client.reach(self.server, path, body, timeout_s, sent, self._note)
            except Failure as failure:
                if failure.kind in (FailureKind.UNREACHABLE, FailureKind.WRONG_RUN):
                    self._asked = None
                raise
            self._refused = answer.status >= 400
        else:
            answer = await self._client.reach_again(self.server, url, path, body, timeout_s, sent)
        self._url = url
        if answer.cookies:
            self._remember(answer.cookies)
        return answer

    async def post(self, path: str, body: bytes, timeout_s: float, headers: Mapping[str, str] | None = None) -> bytes:
        """As `send`, but an answer of status 400 and above is raised as the failure that it reports."""
        return raise_for_status(await self.send(path, body, timeout_s, headers), self.server).body

    @property
    def cookies(self) -> tuple[str, ...]:
        """The cookies it holds, each `name=value`."""
        return tuple(filter(None, self._headers.get("cookie", "").split("; ")))

    @property
    def opened(self) -> bool:
        """True once an instance has answered."""
        return self._url is not None

    @property
    def may_be_open(self) -> bool:
        """True once a request may have reached an instance, its answer lost or good. Later calls go to that one."""
        return self._asked is not None and not self._refused

    def _note(self, url: str) -> None:
        self._asked = url

    def _remember(self, cookies: tuple[str, ...]) -> None:
        jar = dict(pair.partition("=")[::2] for pair in self._headers.get("cookie", "").split("; ") if pair)
        for cookie in cookies:
            name, _, value = cookie.partition(";")[0].strip().partition("=")
            jar[name] = value
        self._headers["cookie"] = "; ".join(f"{name}={value}" for name, value in jar.items())


def raise_for_status(answer: HttpResponse, server: str) -> HttpResponse:
    """`answer` if its status is 2xx; else the failure that it reports, unchanged."""
    if 200 <= answer.status < 300:
        return answer
    if answer.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        # Another stack's problem may lack what ours have: it is then no more than an error answer.
        with contextlib.suppress(ValidationError):
            raise with_server(Failure.of(Problem.model_validate_json(answer.body)), server)
    excerpt = answer.body[:500].decode("utf-8", "replace")
    kind = FailureKind.RATE_LIMITED if answer.status == 429 else FailureKind.SERVER_ERROR
    raise Failure(kind, f"status {answer.status}: {excerpt}", server=server, upstream_status=answer.status)


def with_server(failure: Failure, server: str) -> Failure:
    """The same failure, with the server it happened at when nobody named one yet."""
    if failure.problem.server:
        return failure
    return Failure.of(failure.problem.model_copy(update={"server": server}))

"""The gate in front of every model call, which prevents a rollout from being sampled with a mixture of weights.

While weights change, calls wait. While engines have different weights, calls are rejected, and so are the responses to
calls in flight. Every response reports the policy version.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator

from rollyard.records.errors import Failure, FailureKind
from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions
from rollyard.services.http.request import Handler, RawRequest, RawResponse

VERSION_HEADER = b"x-rollyard-policy-version"
START_VERSION_HEADER = b"x-rollyard-policy-version-begun"
"""Header with the version under which a call started, if it differs from the version under which it ended."""
PAUSED = "the engines are paused (resume them with POST /resume)"
ASLEEP = "the engines are asleep (wake them with POST /wake_up)"
STOPPING = "the engines are being paused"
UPDATING = "a weight update is running"
RESYNCING = "a restarted engine is loading the policy's weights"


class Gate:
    """Delays or rejects the model calls of a server, and adds the policy version to the responses."""

    def __init__(self, versions: PolicyVersions, urls: Callable[[], list[str]], timeout_s: float) -> None:
        self._versions = versions
        self._urls = urls
        self._timeout_s = timeout_s
        self.resync: Callable[[], Awaitable[None]] = _nothing
        """Called before a call is rejected, to load the policy's weights into all engines."""
        self._reasons: dict[str, None] = {}
        self._opened = asyncio.Event()
        self._opened.set()

    def shut(self, reason: str) -> None:
        """Make model calls wait."""
        self._reasons[reason] = None
        self._opened.clear()

    def open(self, reason: str) -> None:
        """Release model calls unless there is another reason to wait."""
        self._reasons.pop(reason, None)
        if not self._reasons:
            self._opened.set()

    @contextlib.contextmanager
    def shut_while(self, reason: str) -> Iterator[None]:
        """Make model calls wait until the block ends."""
        self.shut(reason)
        try:
            yield
        finally:
            self.open(reason)

    def waits_for(self, reason: str) -> bool:
        """Return True while the gate is shut for this reason."""
        return reason in self._reasons

    @property
    def reasons(self) -> list[str]:
        """Why model calls are waiting."""
        return list(self._reasons)

    async def updated(self) -> None:
        """Wait while a weight update runs. Called before each attempt of a model call, because a repeated one is
        already behind the gate.
        """
        while UPDATING in self._reasons:
            await self._opened.wait()

    def guarded(self, handler: Handler) -> Handler:
        """Put the handler of a model call behind this gate."""

        @functools.wraps(handler)
        async def answer(call: RawRequest) -> RawResponse:
            if self._needs_check():
                await self._enter()
            started = self._versions.now
            reply = self.with_version(await handler(call), started)
            if reply.stream is None and self._needs_check():
                await self._leave()
            return reply

        return answer

    def with_version(self, reply: bytes | RawResponse, started: str = "") -> RawResponse:
        """Return the response with headers that contain the policy version."""
        now = self._versions.now
        headers: tuple[tuple[bytes, bytes], ...] = ((VERSION_HEADER, now.encode("latin-1", "replace")),)
        if started and started != now:
            headers += ((START_VERSION_HEADER, started.encode("latin-1", "replace")),)
        if isinstance(reply, bytes):
            return RawResponse(reply, headers=headers)
        reply.headers = headers + reply.headers
        return reply

    def check(self) -> None:
        """Raises Failure upstream_error while engines have different weights."""
        if difference := self._versions.difference(self._urls()):
            fix = "restart engines with unknown weights, or load one version into all engines with POST /weights/update"
            raise Failure(FailureKind.UPSTREAM_ERROR, f"model calls are rejected: {difference} ({fix})", status=503)

    async def look(self) -> None:
        """Resync the engines that do not have the policy's version, then `check`."""
        if self._versions.difference(self._urls()):
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self.resync()
            except TimeoutError:
                raise self._timeout(RESYNCING) from None
        self.check()

    def _needs_check(self) -> bool:
        return bool(self._reasons or self._versions.difference(self._urls()))

    async def _enter(self) -> None:
        if self._reasons:
            await self._wait()
        await self.look()

    async def _leave(self) -> None:
        if list(self._reasons) == [UPDATING]:
            await self._wait()  # the result of the update decides
        # If the engines are paused or asleep, the response was complete before they stopped.
        if not self._reasons.keys() & {PAUSED, ASLEEP}:
            self.check()

    async def _wait(self) -> None:
        reason = ", ".join(self._reasons)
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._reasons:
                    reason = ", ".join(self._reasons)
                    await self._opened.wait()
        except TimeoutError:
            raise self._timeout(reason) from None

    def _timeout(self, reason: str) -> Failure:
        detail = f"the model call waited longer than {self._timeout_s:g} s because {reason}"
        # Not FailureKind.TIMEOUT: the policy was not slow, and training counts its timeouts with reward 0.
        return Failure(FailureKind.UPSTREAM_ERROR, detail, status=504)


async def _nothing() -> None:
    pass

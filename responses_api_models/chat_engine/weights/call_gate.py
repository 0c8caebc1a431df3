"""Gate: what stands before every model call, so that no rollout is sampled from a mixture of weights.

While weights change, calls wait. While engines hold different weights, calls are refused, and so are the answers of
those that were under way. Every answer says which version made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator

from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.request import Handler, RawRequest, RawResponse

VERSION_HEADER = b"x-rollyard-policy-version"
BEGUN_HEADER = b"x-rollyard-policy-version-begun"
"""Only on an answer that was begun under another version."""
PAUSED = "the engines are paused (POST /resume ends it)"
ASLEEP = "the engines are asleep (POST /wake_up ends it)"
STOPPING = "the engines are being paused"
UPDATING = "an update of the weights is running"
RESYNCING = "an engine that was started again is brought to the policy's weights"


class Gate:
    """One for all model calls of a server."""

    def __init__(self, versions: PolicyVersions, urls: Callable[[], list[str]], patience_s: float) -> None:
        self._versions = versions
        self._urls = urls
        self._patience_s = patience_s
        self.resync: Callable[[], Awaitable[None]] = _nothing
        """Tried before a call is refused."""
        self._reasons: dict[str, None] = {}
        self._opened = asyncio.Event()
        self._opened.set()

    def shut(self, reason: str) -> None:
        """Model calls wait from now on."""
        self._reasons[reason] = None
        self._opened.clear()

    def open(self, reason: str) -> None:
        """They wait no longer, unless for another reason."""
        self._reasons.pop(reason, None)
        if not self._reasons:
            self._opened.set()

    @contextlib.contextmanager
    def shut_while(self, reason: str) -> Iterator[None]:
        """Model calls wait until the block ends."""
        self.shut(reason)
        try:
            yield
        finally:
            self.open(reason)

    def waits_for(self, reason: str) -> bool:
        """True while it is shut for that reason."""
        return reason in self._reasons

    @property
    def reasons(self) -> list[str]:
        """Why model calls wait now."""
        return list(self._reasons)

    def guarded(self, handler: Handler) -> Handler:
        """The handler of a model call behind this gate."""

        @functools.wraps(handler)
        async def answer(call: RawRequest) -> RawResponse:
            if self._raise_if_inconsistent():
                await self._enter()
            begun = self._versions.now
            reply = self.stamped(await handler(call), begun)
            if reply.stream is None and self._raise_if_inconsistent():
                await self._leave()
            return reply

        return answer

    def stamped(self, reply: bytes | RawResponse, begun: str = "") -> RawResponse:
        """The answer with the policy's version on it."""
        now = self._versions.now
        marks: tuple[tuple[bytes, bytes], ...] = ((VERSION_HEADER, now.encode("latin-1", "replace")),)
        if begun and begun != now:
            marks += ((BEGUN_HEADER, begun.encode("latin-1", "replace")),)
        if isinstance(reply, bytes):
            return RawResponse(reply, headers=marks)
        reply.headers = marks + reply.headers
        return reply

    def check(self) -> None:
        """Raises Failure upstream_error while engines hold different weights."""
        if difference := self._versions.difference(self._urls()):
            fix = "start an engine with unknown weights again; POST /weights/update brings all to one version"
            raise Failure(FailureKind.UPSTREAM_ERROR, f"no model call now: {difference} ({fix})", status=503)

    async def look(self) -> None:
        """As `check`, after a look whether the difference is still there."""
        if self._versions.difference(self._urls()):
            try:
                async with asyncio.timeout(self._patience_s):
                    await self.resync()
            except TimeoutError:
                raise self._late(RESYNCING) from None
        self.check()

    def _raise_if_inconsistent(self) -> bool:
        return bool(self._reasons or self._versions.difference(self._urls()))

    async def _enter(self) -> None:
        if self._reasons:
            await self._wait()
        await self.look()

    async def _leave(self) -> None:
        if list(self._reasons) == [UPDATING]:
            await self._wait()  # what came of it decides
        if not self._reasons.keys() & {PAUSED, ASLEEP}:  # else it was made before the engines stopped
            self.check()

    async def _wait(self) -> None:
        why = ", ".join(self._reasons)
        try:
            async with asyncio.timeout(self._patience_s):
                while self._reasons:
                    why = ", ".join(self._reasons)
                    await self._opened.wait()
        except TimeoutError:
            raise self._late(why) from None

    def _late(self, why: str) -> Failure:
        return Failure(
            FailureKind.TIMEOUT, f"model calls wait while {why}; that took longer than {self._patience_s:g} s"
        )


async def _nothing() -> None:
    pass

"""Replicas: the engine addresses behind one model server: which are there, how busy each is, where an episode sits.

An episode's first call goes to the least busy address and the later ones follow it, because the engine keeps the
episode's prefix in its cache. When that address is gone the episode is lost with it: it is played again whole, never
continued on an engine that may hold other weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from services.errors import Failure, FailureKind

SHUNNED_S = 5.0
"""How long an address that failed comes last: idle because it is dead, it would otherwise be picked first."""
EPISODES = 65_536
"""Episodes remembered; the longest unused is forgotten first, and then starts afresh on the least busy address."""


class Replicas:
    """A pool of addresses. Fixed for remote endpoints; for engines of our own they come and go."""

    def __init__(self, urls: Sequence[str] = (), *, wait_s: float = 0.0, why_none: Callable[[], str] = str) -> None:
        self._in_flight = dict.fromkeys(urls, 0)
        self._shunned_until = dict.fromkeys(urls, 0.0)
        self._seats: OrderedDict[str, str] = OrderedDict()
        self._wait_s = wait_s
        self._why_none = why_none
        self._some = asyncio.Event()
        if urls:
            self._some.set()

    @property
    def urls(self) -> list[str]:
        """The addresses that calls may go to now."""
        return list(self._in_flight)

    @property
    def in_flight(self) -> dict[str, int]:
        """Calls being answered, by address."""
        return dict(self._in_flight)

    def add(self, url: str) -> None:
        """An engine is up."""
        self._in_flight.setdefault(url, 0)
        self._shunned_until[url] = 0.0
        self._some.set()

    def remove(self, url: str) -> None:
        """An engine is gone, and the episodes on it."""
        self._in_flight.pop(url, None)
        self._shunned_until.pop(url, None)
        if not self._in_flight:
            self._some.clear()

    def shun(self, url: str) -> None:
        """An address failed: others come first for a while."""
        if url in self._shunned_until:
            self._shunned_until[url] = time.monotonic() + SHUNNED_S

    async def choose(self, episode: str | None) -> str:
        """Where a call of `episode` goes. Waits while no engine is up.

        Raises Failure: session_lost when the episode's address is gone, unreachable when none comes up in time.
        """
        if episode and (seat := self._seats.get(episode)):
            if seat in self._in_flight:
                self._seats.move_to_end(episode)
                return seat
            raise self.lost(episode, "its engine is gone")
        if not self._in_flight:
            await self._wait()
        now = time.monotonic()
        url = min(self._in_flight, key=lambda url: (self._shunned_until[url] > now, self._in_flight[url]))
        if episode:
            self._seats[episode] = url
            if len(self._seats) > EPISODES:
                self._seats.popitem(last=False)
        return url

    def alone(self, url: str) -> bool:
        """True when there is no other address to go to."""
        return len(self._in_flight) == 1 and url in self._in_flight

    def seated(self, episode: str | None) -> bool:
        """True when the episode has had a call already."""
        return episode in self._seats

    def lost(self, episode: str, why: str) -> Failure:
        """Forget the episode's seat; the failure that says so."""
        self._seats.pop(episode, None)
        return Failure(FailureKind.SESSION_LOST, f"the episode cannot go on: {why}")

    @contextlib.contextmanager
    def busy(self, url: str) -> Iterator[None]:
        """Count a call at `url` while it lasts."""
        self._in_flight[url] = self._in_flight.get(url, 0) + 1
        try:
            yield
        finally:
            if url in self._in_flight:
                self._in_flight[url] -= 1

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._some.wait()
        except TimeoutError:
            why = self._why_none()
            told = f"no engine is up{f' ({why})' if why else ''}; waited {self._wait_s:g} s"
            raise Failure(FailureKind.UNREACHABLE, told) from None

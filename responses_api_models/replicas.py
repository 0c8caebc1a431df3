"""Replicas: the engine addresses behind one model server: which are there, how busy each is, where an episode sits.

An episode's first call goes to the least busy address and the later ones follow it, because the engine keeps the
episode's prefix in its cache. When that address is gone the episode is lost with it: it is played again whole, never
continued on an engine that may hold other weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client.core import GaugeMetricFamily, Metric

from services.errors import Failure, FailureKind

SHUNNED_S = 5.0
"""How long an address that failed comes last: idle because it is dead, it would otherwise be picked first."""
EPISODES = 65_536
"""Episodes remembered; the longest unused is forgotten first, and then starts afresh on the least busy address."""


@dataclass(slots=True, eq=False)
class _Life:
    """An address while it is up. One that comes back is another: its engine may hold other weights."""

    url: str
    in_flight: int = 0
    shunned_until: float = 0.0
    chosen: int = 0
    """Serial of the last choice that fell on it: of equally busy ones the longest unchosen comes first."""


class Replicas:
    """A pool of addresses. Fixed for remote endpoints; for engines of our own they come and go."""

    def __init__(self, urls: Sequence[str] = (), *, wait_s: float = 0.0, why_none: Callable[[], str] = str) -> None:
        self._lives = {url: _Life(url) for url in urls}
        self._seats: OrderedDict[str, _Life] = OrderedDict()
        self._serials = itertools.count(1)
        self._wait_s = wait_s
        self._why_none = why_none
        self._some = asyncio.Event()
        if urls:
            self._some.set()

    @property
    def urls(self) -> list[str]:
        """The addresses that calls may go to now."""
        return list(self._lives)

    @property
    def in_flight(self) -> dict[str, int]:
        """Calls being answered, by address."""
        return {life.url: life.in_flight for life in self._lives.values()}

    def add(self, url: str) -> None:
        """An engine is up."""
        self._lives.setdefault(url, _Life(url)).shunned_until = 0.0
        self._some.set()

    def remove(self, url: str) -> None:
        """An engine is gone, and the episodes on it."""
        self._lives.pop(url, None)
        if not self._lives:
            self._some.clear()

    def shun(self, url: str) -> None:
        """An address failed: others come first for a while."""
        if life := self._lives.get(url):
            life.shunned_until = time.monotonic() + SHUNNED_S

    async def choose(self, episode: str | None) -> str:
        """Where a call of `episode` goes. Waits while no engine is up.

        Raises Failure: session_lost when the episode's engine is gone, unreachable when none comes up in time.
        """
        if episode and (seat := self._seats.get(episode)):
            if self._lives.get(seat.url) is not seat:
                raise self.lost(episode, "its engine is gone")
            self._seats.move_to_end(episode)
            return seat.url
        if not self._lives:
            await self._wait()
        now = time.monotonic()
        chosen = min(self._lives.values(), key=lambda life: (life.shunned_until > now, life.in_flight, life.chosen))
        chosen.chosen = next(self._serials)
        if episode:
            self._seats[episode] = chosen
            if len(self._seats) > EPISODES:
                self._seats.popitem(last=False)
        return chosen.url

    def alone(self, url: str) -> bool:
        """True when there is no other address to go to."""
        return len(self._lives) == 1 and url in self._lives

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
        life = self._lives.get(url) or _Life(url)
        life.in_flight += 1
        try:
            yield
        finally:
            life.in_flight -= 1

    def collect(self) -> Iterable[Metric]:
        """For Prometheus: every address that calls may go to, how many are at it, and whether it failed just now."""
        calls = GaugeMetricFamily("rollyard_engine_in_flight", "Calls at an engine", labels=["engine"])
        shunned = GaugeMetricFamily("rollyard_engine_shunned", "1: it failed and comes last", labels=["engine"])
        now = time.monotonic()
        for life in self._lives.values():
            url = urlsplit(life.url)
            engine = url.netloc.rpartition("@")[2] + url.path  # without a password
            calls.add_metric([engine], life.in_flight)
            shunned.add_metric([engine], life.shunned_until > now)
        yield from (calls, shunned)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._lives:  # who came up may be gone again before this call has its turn
                    await self._some.wait()
        except TimeoutError:
            why = self._why_none()
            told = f"no engine is up{f' ({why})' if why else ''}; waited {self._wait_s:g} s"
            raise Failure(FailureKind.UNREACHABLE, told) from None

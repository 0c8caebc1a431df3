"""Replicas: the engine addresses behind one model server: which are there, how busy each is, where an episode sits.

Calls go to the least busy endpoint among those that work (endpoint.py), unless they come with an affinity:

    an episode        (x-session-id) stays where its first call was answered, because the engine keeps the episode's
                      prefix in its cache. When that endpoint is gone or down the episode is lost with it: it is played
                      again whole, never continued on an engine that may hold other weights
    a preference      (prompt_cache_key) goes where its calls went before while that endpoint works and is not much
                      busier than the others, and anywhere else otherwise; nothing is ever lost with it
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client.core import GaugeMetricFamily, Metric

from rollyard.responses_api_models.upstream.endpoint import Endpoint
from rollyard.services.errors import Failure, FailureKind

EPISODES = 65_536
"""Affinities remembered; the longest unused is forgotten first, and then starts afresh on the least busy endpoint."""
SLACK = 4
"""A preferred endpoint may have so many calls in flight more than twice those of the least busy one."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """What calls have in common that should go to one endpoint."""

    key: str
    binding: bool = True
    """True for an episode, False for a preference."""


@dataclass(slots=True)
class _AffinityEntry:
    endpoint: Endpoint
    begun: bool = False
    """A call was answered there: before that, there is nothing to lose."""


class Replicas:
    """A pool of endpoints. Fixed for remote ones; engines of our own come and go."""

    def __init__(self, urls: Sequence[str] = (), *, wait_s: float = 0.0, why_none: Callable[[], str] = str) -> None:
        self._endpoints = {url: Endpoint(url) for url in urls}
        self._affinities: OrderedDict[Affinity, _AffinityEntry] = OrderedDict()
        self._serials = itertools.count(1)
        self._wait_s = wait_s
        self._why_none = why_none
        self._some = asyncio.Event()
        if urls:
            self._some.set()

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def urls(self) -> list[str]:
        """The addresses that calls may go to now."""
        return list(self._endpoints)

    @property
    def in_flight(self) -> dict[str, int]:
        """Calls being answered, by address."""
        return {endpoint.url: endpoint.in_flight for endpoint in self._endpoints.values()}

    def add(self, url: str) -> None:
        """An engine is up."""
        self._endpoints.setdefault(url, Endpoint(url)).recover()
        self._some.set()

    def remove(self, url: str) -> None:
        """An engine is gone, and the episodes on it."""
        self._endpoints.pop(url, None)
        if not self._endpoints:
            self._some.clear()

    def holds(self, endpoint: Endpoint) -> bool:
        """True while `endpoint` is up."""
        return self._endpoints.get(endpoint.url) is endpoint

    async def choose(self, affinity: Affinity | None = None, tried: Collection[Endpoint] = ()) -> Endpoint:
        """Where a call goes; to one of those `tried` only when there is no other. Waits while no engine is up.

        Raises Failure: session_lost when the episode's engine is gone, unreachable when none comes up in time.
        """
        entry = self._affinities.get(affinity) if affinity else None
        if entry is not None and affinity is not None:
            self._affinities.move_to_end(affinity)
            if entry.begun and affinity.binding:
                if not self.holds(entry.endpoint):
                    raise self.lost(affinity, "its engine is gone")
                return entry.endpoint
            if self._accepts(entry.endpoint, affinity) and entry.endpoint not in tried:
                return entry.endpoint
        if not self._endpoints:
            await self._wait()
        chosen = self.best(tried)
        assert chosen is not None
        chosen.chosen = next(self._serials)
        if affinity is not None and (entry is None or affinity.binding or not self._works(entry.endpoint)):
            self._assign(affinity, _AffinityEntry(chosen))
        return chosen

    def best(self, tried: Collection[Endpoint] = ()) -> Endpoint | None:
        """The least busy of those that work, or of those that may work soonest; none of `tried` if that can be."""
        now = time.monotonic()
        return min(
            self._endpoints.values(),
            key=lambda endpoint: (
                not endpoint.is_usable(now),
                endpoint.cool_downs if not endpoint.is_usable(now) else 0,
                endpoint in tried,
                endpoint.in_flight,
                endpoint.chosen,
            ),
            default=None,
        )

    def answered(self, endpoint: Endpoint, affinity: Affinity | None, path: str) -> None:
        """A call of `path` was answered there; its episode has begun."""
        endpoint.succeed(path)
        if affinity is None:
            return
        entry = self._affinities.get(affinity)
        if entry is None:
            self._assign(affinity, _AffinityEntry(endpoint, begun=True))
        elif not entry.begun:
            entry.endpoint, entry.begun = endpoint, True

    def binds(self, affinity: Affinity | None, endpoint: Endpoint) -> bool:
        """True when the episode has begun at `endpoint`."""
        if affinity is None or not affinity.binding:
            return False
        entry = self._affinities.get(affinity)
        return entry is not None and entry.begun and entry.endpoint is endpoint

    def lost(self, affinity: Affinity, why: str) -> Failure:
        """Forget where the episode was; the failure that says so."""
        self._affinities.pop(affinity, None)
        return Failure(FailureKind.SESSION_LOST, f"the episode cannot go on: {why}")

    def answers_as(self, endpoint: Endpoint, model: str, asked: str) -> bool:
        """False where the endpoint's answer names another model than `asked`, and the rest of the pool may name that.

        Gateways rename models: a name that no endpoint contradicts and most agree on is believed.
        """
        endpoint.model = model
        if _is_named(model, asked):
            return True
        now = time.monotonic()
        names = Counter(other.model for other in self._endpoints.values() if other.model)
        unknown = sum(not other.model and other.is_usable(now) for other in self._endpoints.values())
        agree = names.pop(model, 0)
        if any(_is_named(name, asked) for name in names):
            return False
        rivals = max(names.values(), default=0) + unknown
        return agree > rivals or (agree == rivals and not unknown)

    def collect(self) -> Iterable[Metric]:
        """For Prometheus: every address that calls may go to, how many are at it, and whether it cools down."""
        calls = GaugeMetricFamily("rollyard_engine_in_flight", "Calls at an engine", labels=["engine"])
        cooling = GaugeMetricFamily("rollyard_engine_shunned", "1: it failed and cools down", labels=["engine"])
        now = time.monotonic()
        for endpoint in self._endpoints.values():
            url = urlsplit(endpoint.url)
            engine = url.netloc.rpartition("@")[2] + url.path  # without a password
            calls.add_metric([engine], endpoint.in_flight)
            cooling.add_metric([engine], not endpoint.is_usable(now))
        yield from (calls, cooling)

    def _works(self, endpoint: Endpoint) -> bool:
        return self.holds(endpoint) and endpoint.is_usable(time.monotonic())

    def _accepts(self, endpoint: Endpoint, affinity: Affinity) -> bool:
        """True where a call that has not begun should go to the endpoint of those before."""
        if not self._works(endpoint):
            return False
        least = min(other.in_flight for other in self._endpoints.values())
        return affinity.binding or endpoint.in_flight <= 2 * least + SLACK

    def _assign(self, affinity: Affinity, entry: _AffinityEntry) -> None:
        self._affinities[affinity] = entry
        if len(self._affinities) > EPISODES:
            self._affinities.popitem(last=False)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._endpoints:  # an engine that came up may be gone again before this call has its turn
                    await self._some.wait()
        except TimeoutError:
            why = self._why_none()
            told = f"no engine is up{f' ({why})' if why else ''}; waited {self._wait_s:g} s"
            raise Failure(FailureKind.UNREACHABLE, told) from None


def _is_named(found: str, asked: str) -> bool:
    """Equal but for case and what hosted APIs add: an owner in front, a date or version behind."""
    found, asked = (name.lower().rpartition("/")[2] for name in (found, asked))
    rest = found.removeprefix(asked) if found.startswith(asked) else "?"
    return not rest or (rest[0] in "-@:" and (rest[1:2].isdigit() or rest[0] == ":"))

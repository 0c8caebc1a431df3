"""The pool of endpoints behind one model server: their load, and the endpoint that each episode is bound to.

Calls go to the least busy healthy endpoint (`Endpoint`), unless they have an affinity:

    an episode        (x-session-id) is bound to the endpoint of its first response, because that engine has the
                      episode's prefix in its cache. If that endpoint is removed or down, the episode is lost: it is
                      repeated from the start, and never continued on an engine that may have different weights
    a preference      (prompt_cache_key) goes to the endpoint of earlier calls with the same key while it is healthy and
                      not much busier than the others; otherwise it goes to any endpoint
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.core import GaugeMetricFamily, Metric

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.backoff import Backoff

EPISODES = 65_536
"""Maximum number of stored affinities. The least recently used one is dropped; if it is used again, a new endpoint is
chosen."""
SLACK = 4
"""A preferred endpoint is used unless its calls in flight exceed twice those of the least busy endpoint plus this
number."""


class Affinity(NamedTuple):
    """A key shared by calls that should go to the same endpoint."""

    key: str
    binding: bool = True
    """True for an episode, False for a preference."""


@dataclass(slots=True)
class _AffinityEntry:
    endpoint: Endpoint
    started: bool = False
    """Whether a call to the endpoint has succeeded. Until then, the episode can move to a different endpoint."""


class Replicas:
    def __init__(self, urls: Sequence[str] = (), *, wait_s: float = 0.0, why_none: Callable[[], str] = str) -> None:
        self._endpoints = {url: Endpoint(url) for url in urls}
        self._affinities: OrderedDict[Affinity, _AffinityEntry] = OrderedDict()
        self._serials = itertools.count(1)
        self._wait_s = wait_s
        self._why_none = why_none
        self.rejected = 0
        """Number of attempts that an endpoint rejected because of its load, or that timed out."""
        self._available = asyncio.Event()
        if urls:
            self._available.set()

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def urls(self) -> list[str]:
        return list(self._endpoints)

    @property
    def in_flight(self) -> dict[str, int]:
        return {endpoint.url: endpoint.in_flight for endpoint in self._endpoints.values()}

    def add(self, url: str) -> None:
        self._endpoints.setdefault(url, Endpoint(url)).recover()
        self._available.set()

    def remove(self, url: str) -> None:
        self._endpoints.pop(url, None)
        if not self._endpoints:
            self._available.clear()

    def holds(self, endpoint: Endpoint) -> bool:
        return self._endpoints.get(endpoint.url) is endpoint

    async def choose(self, affinity: Affinity | None = None, tried: Collection[Endpoint] = ()) -> Endpoint:
        """Choose the endpoint for a call, preferably one that is not in `tried`. Waits while no engine is up.

        Raises Failure session_lost if the episode's engine was removed, unreachable if no engine starts in time.
        """
        entry = self._affinities.get(affinity) if affinity else None
        if entry is not None and affinity is not None:
            self._affinities.move_to_end(affinity)
            if entry.started and affinity.binding:
                if not self.holds(entry.endpoint):
                    raise self.lost(affinity, "its engine has exited")
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
        """Return the least busy healthy endpoint, else the one with the fewest cool-downs; better none in `tried`."""
        now = time.monotonic()
        return min(
            self._endpoints.values(),
            key=lambda endpoint: (
                0 if endpoint.is_usable(now) else endpoint.cool_downs,
                endpoint in tried,
                endpoint.in_flight,
                endpoint.chosen,
            ),
            default=None,
        )

    def answered(self, endpoint: Endpoint, affinity: Affinity | None, path: str) -> None:
        endpoint.succeed(path)
        if affinity is not None and ((entry := self._affinities.get(affinity)) is None or not entry.started):
            self._assign(affinity, _AffinityEntry(endpoint, started=True))

    def binds(self, affinity: Affinity | None, endpoint: Endpoint) -> bool:
        entry = self._affinities.get(affinity) if affinity is not None and affinity.binding else None
        return entry is not None and entry.started and entry.endpoint is endpoint

    def lost(self, affinity: Affinity, why: str) -> Failure:
        self._affinities.pop(affinity, None)
        return Failure(FailureKind.SESSION_LOST, f"the episode cannot continue: {why}")

    def answers_as(self, endpoint: Endpoint, model: str, requested: str) -> bool:
        """Return False if the response is from a model other than the requested one, which other endpoints may serve.

        Gateways rename models, so a name is accepted if most endpoints agree on it and none returns the requested one.
        """
        endpoint.model = model
        if _is_named(model, requested):
            return True
        now = time.monotonic()
        names = Counter(other.model for other in self._endpoints.values() if other.model)
        unknown = sum(not other.model and other.is_usable(now) for other in self._endpoints.values())
        agree = names.pop(model, 0)
        if any(_is_named(name, requested) for name in names):
            return False
        rivals = max(names.values(), default=0) + unknown
        return agree > rivals or (agree == rivals and not unknown)

    def collect(self) -> Iterable[Metric]:
        shunned = "1 if the engine failed and is cooling down"
        calls = GaugeMetricFamily("rollyard_engine_in_flight", "Calls in flight at an engine", labels=["engine"])
        cooling = GaugeMetricFamily("rollyard_engine_shunned", shunned, labels=["engine"])
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
        """Return True if an unbound call should go to `endpoint`, which earlier calls with this affinity key used."""
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
                while not self._endpoints:  # an engine may be removed again before this call runs
                    await self._available.wait()
        except TimeoutError:
            why = self._why_none()
            detail = f"no engine is up{f' ({why})' if why else ''}; waited {self._wait_s:g} s"
            raise Failure(FailureKind.UNREACHABLE, detail) from None


def _is_named(found: str, requested: str) -> bool:
    """Return whether names match but for case and what APIs add: an owner, or a date or version at the end."""
    found, requested = (name.lower().rpartition("/")[2] for name in (found, requested))
    rest = found.removeprefix(requested) if found.startswith(requested) else "?"
    return not rest or (rest[0] in "-@:" and (rest[1:2].isdigit() or rest[0] == ":"))


COOL_DOWNS = Backoff(first_pause_s=1.0, longest_pause_s=60.0)
DOWN_AFTER = 3
"""Number of consecutive failures after which the episodes bound to the endpoint are abandoned."""


@dataclass(slots=True, eq=False)
class Endpoint:
    """A URL while its server is up. A restarted engine is a new Endpoint, because it may have different weights.

    Every failure caused by the endpoint starts a cool-down, during which calls prefer other endpoints. Afterwards, one
    call at a time probes it. A failed probe doubles the cool-down; a success on the path that failed ends it
    immediately.
    """

    url: str
    in_flight: int = 0
    chosen: int = 0
    """Serial number of its last selection: among equally busy endpoints, the least recently chosen one is preferred."""
    model: str = ""
    failures: int = 0
    cool_downs: int = 0
    cooling_since: float = 0.0
    cooling_until: float = 0.0
    answered_paths: set[str] = field(default_factory=set)
    _failed_path: str = ""
    probes: int = 0
    """Number of calls in flight that were sent during a cool-down."""

    @property
    def is_down(self) -> bool:
        return self.failures >= DOWN_AFTER

    def is_usable(self, now: float) -> bool:
        """Return False while the endpoint is cooling down or a probe is in flight."""
        return not self.cool_downs or (now >= self.cooling_until and not self.probes)

    def fail(self, path: str, started: float, *, pause_s: float = 0.0, counts: bool = True) -> None:
        """Record a failed call to `path` that started at `started` (monotonic time). `pause_s` is the pause that the
        response requested. `counts` is False if the failure does not count towards `is_down`.
        """
        now = time.monotonic()
        self._failed_path = path
        self.failures += counts
        if now < self.cooling_until:
            self.cooling_until = max(self.cooling_until, now + pause_s)
            return
        # Calls that were in flight when the last cool-down started failed for the same reason.
        if not self.cool_downs or started >= self.cooling_since:
            self.cool_downs += 1
        self.cooling_since, self.cooling_until = now, now + max(COOL_DOWNS.pause_s(self.cool_downs), pause_s)

    def succeed(self, path: str) -> None:
        """Record a successful call to `path`. It does not end a cool-down caused by a different path."""
        self.answered_paths.add(path)
        if self.cool_downs and path == self._failed_path:
            self.recover()

    def recover(self) -> None:
        self.failures = self.cool_downs = 0
        self.cooling_until = 0.0

    def busy(self) -> _CallInFlight:
        """Count a call in flight while a `with` block runs; during a cool-down it also counts as a probe."""
        return _CallInFlight(self)


class _CallInFlight:
    __slots__ = ("_endpoint", "_is_probe")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __enter__(self) -> None:
        self._is_probe = self._endpoint.cool_downs > 0
        self._endpoint.in_flight += 1
        self._endpoint.probes += self._is_probe

    def __exit__(self, *_: object) -> None:
        self._endpoint.in_flight -= 1
        self._endpoint.probes -= self._is_probe

"""Callers: what each client of a server may use at once, so that one client cannot take everything from the others.

A client is a user of this host, or the address of another host. The user who started the run, root, and requests with
the run's token have no limit: the run's own collector and servers, on whichever host, are among them.
"""

from __future__ import annotations

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import AccessRules
from rollyard.services.http.access import own_uid

_MAX_IDLE = 1024
RETRY_AFTER_S = 1


class Caller:
    """A client's requests in flight, whichever connection they came on, and the bytes of their bodies."""

    __slots__ = ("_limits", "held_bytes", "name", "requests")

    def __init__(self, name: str, limits: AccessRules) -> None:
        self.name = name
        self.requests = 0
        self.held_bytes = 0
        self._limits = limits

    def admits(self, body_bytes: int) -> bool:
        return self.request_refusal() is None and self.body_refusal(body_bytes) is None

    def add(self, requests: int, body_bytes: int) -> None:
        self.requests += requests
        self.held_bytes += body_bytes

    def request_refusal(self) -> Failure | None:
        """Return why one more request is too many at the moment."""
        limit = self._limits.client_requests
        if self.requests < limit:
            return None
        return _too_much(
            f"{self.name} has {self.requests} requests in flight at this server, and the limit is {limit} "
            "(ng_run --max-client-requests)"
        )

    def end_request(self, _: object) -> None:
        """Count one request less: the callback of its task."""
        self.requests -= 1

    def body_refusal(self, more: int = 0) -> Failure | None:
        """Return why the bytes that are held, and `more` of them, are too many."""
        limit = self._limits.client_bytes
        if self.held_bytes + more <= limit:
            return None
        return _too_much(
            f"the bodies of the requests in flight of {self.name} are larger than {limit} bytes "
            "(ng_run --max-client-bytes)"
        )


class Callers:
    def __init__(self, limits: AccessRules) -> None:
        self._limits = limits
        self._known: dict[str, Caller] = {}
        self._unlimited = (own_uid(), 0)

    def get(self, uid: int | None, address: str) -> Caller | None:
        """Return the client of a connection; None if it has no limit. `uid`: its user on this host, if known."""
        if uid in self._unlimited:
            return None
        name = f"the client {address}" if uid is None else f"the user with id {uid}"
        if name not in self._known:
            if len(self._known) >= _MAX_IDLE:
                self._known = {name: one for name, one in self._known.items() if one.requests or one.held_bytes}
            self._known[name] = Caller(name, self._limits)
        return self._known[name]


def _too_much(detail: str) -> Failure:
    failure = Failure(FailureKind.OVERLOADED, f"{detail}; retry later", status=429)
    return Failure.of(failure.problem.model_copy(update={"retry_after": str(RETRY_AFTER_S)}))

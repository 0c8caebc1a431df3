"""The simulated network: delays, drops, duplicates, cut bodies, partitions, and answers that are lost after the act."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from rollyard.records.errors import Failure
from rollyard.services.http.connection_pool import ConnectFailed
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import ASGIApp, HttpResponse, Message, Receive, Scope, Send
from rollyard.services.http.transport import CONNECT_TIMEOUT_S, _call, _to_failure
from tests.sim.loop import PROCESS, SimLoop


@dataclass(frozen=True)
class Faults:
    """Probabilities per request, and the mean delay of a message in seconds."""

    delay_s: float = 0.005
    slow: float = 0.0
    """A message that takes a thousand times as long."""
    refused: float = 0.0
    lost: float = 0.0
    """The connection breaks before the server has the request."""
    silent: float = 0.0
    """The connection breaks so that nobody notices: the client waits until its deadline."""
    duplicate: float = 0.0
    """The request arrives twice, the second time perhaps late, as a proxy may send it."""
    answer_lost: float = 0.0
    """The server acts, and its answer is lost."""
    cut: float = 0.0
    """The connection breaks in the middle of the answer. A client that does not know its length takes it for whole."""


@dataclass(eq=False)
class Exchange:
    client: str
    server: str
    answer: asyncio.Future[HttpResponse]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the server knows that the client has disconnected."""
    gone_at: float = 0.0

    def leave(self) -> None:
        self.gone_at = asyncio.get_running_loop().time()
        self.gone.set()


_SERVED: contextvars.ContextVar[Exchange] = contextvars.ContextVar("served")
"""The exchange for which the running code works, if it is a server's."""
GRACE_S = 1.0
"""How long a server may work on for a client that it knows to be gone."""
ATTEMPTS = 3
"""How often a model server may send a request to an engine."""


class SimNetwork:
    def __init__(
        self, loop: SimLoop, rng: random.Random, faults: Faults, log: Callable[[str], None] | None = None
    ) -> None:
        self._loop = loop
        self._rng = rng
        self.faults = faults
        self.apps: dict[str, tuple[str, ASGIApp]] = {}
        """Base URL -> (process, app)."""
        self.cut_links: set[frozenset[str]] = set()
        self._open: dict[Exchange, None] = {}
        self._died_at: dict[str, float] = {}
        """Base URL of a process that has died -> when."""
        self.patience_s = math.inf
        """How long after that others may call it: they have asked the head meanwhile."""
        self._attempts = ATTEMPTS * (1 + (faults.duplicate > 0))
        self._asked: Counter[tuple[str, str, bytes]] = Counter()
        """Number of requests of each client for the same turn of an episode."""
        self.requests = 0
        self._log = log

    def mount(self, url: str, process: str, app: ASGIApp) -> None:
        self.apps[url] = process, app

    def process_died(self, process: str) -> list[str]:
        """Break its connections, and return the hosts of the addresses that it had."""
        hosts = [url.split("/")[2].partition(":")[0] for url, (name, _) in self.apps.items() if name == process]
        self._died_at |= {url: self._loop.time() for url, (name, _) in self.apps.items() if name == process}
        self.apps = {url: (name, app) for url, (name, app) in self.apps.items() if name != process}
        for exchange in list(self._open):
            if exchange.server == process:
                self._later(exchange.client, self._break, exchange.answer)
            elif exchange.client == process:
                self._later(exchange.server, exchange.leave)
        return hosts

    def end(self) -> None:
        self.apps.clear()
        self._open.clear()

    async def request(
        self, client: str, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> HttpResponse:
        """Raises the exceptions of a connection, and waits forever where a connection would."""
        self.requests += 1
        faults, draw = self.faults, self._rng.random
        base, path = _parts(url)
        delay_s = self._delay_s()
        arrives_at = self._loop.time() + delay_s
        try:
            await asyncio.sleep(delay_s)
        except asyncio.CancelledError:  # what is under way arrives, although nobody waits for its answer any more
            context = context_of("network")
            self._loop.call_at(arrives_at, self._arrive_late, client, method, url, body, headers, context=context)
            raise
        self._check(client, method, base, path, body, headers)
        process, app = self.apps.get(base, ("", None))
        if frozenset((client, process)) in self.cut_links:
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise ConnectFailed("timed out", timed_out=True)
        if app is None or draw() < faults.refused:
            raise ConnectFailed("connection refused")
        if draw() < faults.lost:
            raise ConnectionResetError("the connection was reset")
        exchange = Exchange(client, process, self._loop.create_future())
        self._open[exchange] = None
        try:
            self._serve(exchange, app, method, path, body, headers, draw() >= faults.silent)
            if draw() < faults.duplicate:
                twin = Exchange(client, process, self._loop.create_future())
                if path == "/seed_session":  # later, it could open a session again, which only its idle limit ends
                    self._serve(twin, app, method, path, body, headers, False)
                else:
                    self._later(process, self._serve, twin, app, method, path, body, headers, False)
            return await exchange.answer
        finally:
            self._open.pop(exchange, None)
            if not exchange.answer.done() or exchange.answer.cancelled():
                self._later(process, exchange.leave)

    def _check(self, client: str, method: str, base: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Note a request that must not be sent."""
        now, what = self._loop.time(), f"{method} {path} of {client}"
        served = _SERVED.get(None)
        is_late = served is not None and served.gone.is_set() and now > served.gone_at + GRACE_S
        if served is not None and is_late and method == "POST" and path != "/close":
            self._loop.errors.append(f"{what} is for {served.client}, which has left at {served.gone_at:.3f}")
        if base not in self.apps and now > self._died_at.get(base, math.inf) + self.patience_s:
            self._loop.errors.append(f"{what} goes to {base}, which has died at {self._died_at[base]:.3f}")
        if base.startswith("http://engine"):
            turn = client, headers.get("x-session-id", ""), body
            self._asked[turn] += 1
            if self._asked[turn] > self._attempts:
                self._loop.errors.append(f"{what} was sent {self._asked[turn]} times")

    def _arrive_late(self, client: str, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        base, path = _parts(url)
        process, app = self.apps.get(base, ("", None))
        if app is not None and frozenset((client, process)) not in self.cut_links:
            exchange = Exchange(client, process, self._loop.create_future())
            self._serve(exchange, app, method, path, body, headers, False)
            self._later(process, exchange.leave)

    def _serve(
        self,
        exchange: Exchange,
        app: ASGIApp,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        answers: bool,
    ) -> None:
        faults, draw = self.faults, self._rng.random
        is_lost, is_cut = draw() < faults.answer_lost, draw() < faults.cut

        async def serve() -> None:
            _SERVED.set(exchange)
            was_ready = getattr(app, "ready", True)
            response = None
            with contextlib.suppress(Failure):  # the app has sent no complete response
                response = await _call(_connected(app, exchange.gone), method, path, body, headers)
            if self._log is not None:
                self._log(f"{method} {path} of {exchange.client}: {response and response.status}")
            if response is not None and response.status < 300 and method == "POST" and not was_ready:
                self._loop.errors.append(f"{exchange.server} has served {method} {path} before it was ready")
            if response is not None and response.status == 500 and not exchange.server.startswith("engine"):
                self._loop.errors.append(f"{exchange.server} has failed: {response.body[:300]!r}")
            if not answers or response is None or exchange.answer.done():
                return
            if frozenset((exchange.client, exchange.server)) in self.cut_links:
                return
            # Our own servers always send the length, an endpoint may not.
            if is_cut and exchange.server.startswith("engine"):
                response = response._replace(body=response.body[: self._rng.randrange(len(response.body) + 1)])
            elif is_lost or is_cut:
                self._later(exchange.client, self._break, exchange.answer)
                return
            self._later(exchange.client, _resolve, exchange.answer, response)

        self._loop.spawn(exchange.server, serve())

    def _later(self, process: str, act: Callable[..., object], *args: object) -> None:
        """Let a message arrive at a process."""
        self._loop.call_later(self._delay_s(), act, *args, context=context_of(process))

    def _delay_s(self) -> float:
        factor = 1000.0 if self._rng.random() < self.faults.slow else 1.0
        return self._rng.expovariate(1.0 / self.faults.delay_s) * factor

    @staticmethod
    def _break(answer: asyncio.Future[HttpResponse]) -> None:
        if not answer.done():
            answer.set_exception(ConnectionResetError("the connection was reset"))


def context_of(process: str) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return context


def _parts(url: str) -> tuple[str, str]:
    """The base URL, and the path with the query."""
    slash = url.find("/", 8)
    return url[:slash], url[slash:]


def _resolve(answer: asyncio.Future[HttpResponse], response: HttpResponse) -> None:
    if not answer.done():
        answer.set_result(response)


class SimTransport:
    """The Transport of one simulated process."""

    def __init__(self, network: SimNetwork, process: str, lag: LoopLag) -> None:
        self._network = network
        self._process = process
        self._lag = lag

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, channel: bool = False
    ) -> HttpResponse:
        try:
            with self._lag.timeout(timeout_s):
                return await self._network.request(self._process, method, url, body, headers)
        except Failure:
            raise
        except (TimeoutError, ValueError, OSError) as error:
            raise _to_failure(error, url, timeout_s) from error

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        response = await self.send(method, url, body, headers, timeout_s)

        async def chunks() -> AsyncIterator[bytes]:
            yield response.body

        return HttpResponse(response.status, response.headers, b"", response.cookies), chunks()

    async def close(self) -> None:
        self._lag.stop()


def _connected(app: ASGIApp, gone: asyncio.Event) -> ASGIApp:
    """The app as a server runs it: it knows the client's address, and learns that the client has disconnected."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        has_body = False

        async def received() -> Message:
            nonlocal has_body
            if not has_body:
                has_body = True
                return await receive()
            await gone.wait()
            return {"type": "http.disconnect"}

        await app({**scope, "client": ("10.0.0.1", 1)}, received, send)

    return call

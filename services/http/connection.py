"""Connection: a keep-alive connection to a peer. It handles one exchange at a time."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import cast

from rollyard.services.http.callback_budget import CallbackBudget
from rollyard.services.http.content_encoding import InvalidResponse
from rollyard.services.http.limits import Limits
from rollyard.services.http.loop_lag import SLACK_S, LoopLag
from rollyard.services.http.response_reader import ReceivedResponse, ResponseReader


class Connection(asyncio.Protocol):
    """A connection is used by one caller at a time and then returned to the pool if it is `reusable`."""

    def __init__(self, open_connections: set[Connection], limits: Limits, lag: LoopLag, budget: CallbackBudget) -> None:
        self.closed = False
        self._open_connections = open_connections
        self._reader = ResponseReader(limits)
        self._lag = lag
        self._budget = budget
        self._pending: asyncio.Future[ReceivedResponse] | None = None
        self._readable = select.poll()

    @property
    def reusable(self) -> bool:
        """True if the request and the response are complete and the peer keeps the connection open."""
        return self._reader.reusable and not self.closed and self._transport.get_write_buffer_size() == 0

    @property
    def is_idle(self) -> bool:
        """True if the peer has neither closed the connection nor sent data since the last response."""
        return not self.closed and not self._readable.poll(0)

    async def exchange(self, head: bytes, body: bytes, timeout_s: float) -> ReceivedResponse:
        """Send a request and return its response. Raises TimeoutError, InvalidResponse or ConnectionError."""
        self._loop = asyncio.get_running_loop()
        pending: asyncio.Future[ReceivedResponse] = self._loop.create_future()
        self._pending = pending
        self._reader.reset()
        # A plain timer, because a timeout context takes three times as long and every request passes here.
        self._until = self._lag.now() + timeout_s
        self._timer = self._loop.call_later(timeout_s, self._expire)
        self._transport.writelines((head, body))
        try:
            return await pending
        finally:
            self._timer.cancel()
            self._pending = None

    def abort(self) -> None:
        """Close the connection without waiting for the peer."""
        self.closed = True
        self._transport.abort()

    # --- called by the event loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the interface but not the type
        sock = transport.get_extra_info("socket")
        # A model's response may take minutes, and routers drop idle connections in that time.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._readable.register(sock.fileno(), select.POLLIN)
        self._open_connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Pass the data to the response reader. Data outside an exchange closes the connection."""
        if self._pending is None or self._reader.response is not None:
            self.abort()
            return
        try:
            self._reader.feed(data)
        except Exception as error:
            self._fail(error)
        else:
            self._deliver()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the exchange, unless the response has no length and is therefore complete when the connection closes."""
        self.closed = True
        self._open_connections.discard(self)
        if self._pending is None or self._reader.response is not None:
            return
        try:
            if error is not None:
                raise InvalidResponse(f"the peer closed the connection ({error})")
            self._reader.finish()
        except Exception as failure:
            self._fail(failure)
        else:
            self._deliver()

    def _deliver(self) -> None:
        """Deliver a complete response. If many arrive at once, some are delivered in later iterations of the loop."""
        if self._reader.response is not None and self._pending is not None:
            self._timer.cancel()
            self._budget.run(_settle, self._pending, self._reader.response)

    def _expire(self) -> None:
        if (left_s := self._until - self._lag.now()) > SLACK_S:
            # This loop was blocked, so the response may be in the socket, unread.
            self._timer = self._loop.call_later(left_s, self._expire)
            return
        self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self.abort()
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(error)


def _settle(pending: asyncio.Future[ReceivedResponse], response: ReceivedResponse) -> None:
    if not pending.done():
        pending.set_result(response)

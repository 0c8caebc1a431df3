"""Connection: one kept-alive connection to a peer, which carries one exchange at a time."""

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
    """Whoever took it from the pool owns it until the exchange is over; the pool decides by `reusable`."""

    def __init__(self, opened: set[Connection], limits: Limits, lag: LoopLag, gate: CallbackBudget) -> None:
        self.closed = False
        self._opened = opened
        self._reader = ResponseReader(limits)
        self._lag = lag
        self._gate = gate
        self._waiting: asyncio.Future[ReceivedResponse] | None = None
        self._readable = select.poll()

    @property
    def reusable(self) -> bool:
        """The whole request is away, the whole answer is here, and the peer keeps the connection open."""
        return self._reader.reusable and not self.closed and self._transport.get_write_buffer_size() == 0

    @property
    def quiet(self) -> bool:
        """Nothing has come since the last answer: no end of the connection, and no answer that nothing asked for."""
        return not self.closed and not self._readable.poll(0)

    async def exchange(self, head: bytes, body: bytes, timeout_s: float) -> ReceivedResponse:
        """Send a request; its answer. Raises TimeoutError, InvalidResponse, ConnectionError."""
        self._loop = asyncio.get_running_loop()
        waiting: asyncio.Future[ReceivedResponse] = self._loop.create_future()
        self._waiting = waiting
        self._reader.begin()
        # A timer of its own: a timeout block costs three times as much, and this is the hottest line of the stack.
        self._until = self._lag.lived() + timeout_s
        self._timer = self._loop.call_later(timeout_s, self._expire)
        self._transport.writelines((head, body))
        try:
            return await waiting
        finally:
            self._timer.cancel()
            self._waiting = None

    def hang_up(self) -> None:
        """End the connection."""
        self.closed = True
        self._transport.abort()

    # --- called by the event loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        sock = transport.get_extra_info("socket")
        # An answer of a model may take minutes, in which routers forget a silent connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._readable.register(sock.fileno(), select.POLLIN)
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        """A piece of the answer, or bytes that no request asked for."""
        if self._waiting is None or self._reader.reply is not None:
            self.hang_up()
            return
        try:
            self._reader.feed(data)
        except Exception as error:
            self._fail(error)
        else:
            self._deliver()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed; an answer without a length ends with it."""
        self.closed = True
        self._opened.discard(self)
        if self._waiting is None or self._reader.reply is not None:
            return
        try:
            if error is not None:
                raise InvalidResponse(f"closed by the peer ({error})")
            self._reader.finish()
        except Exception as failure:
            self._fail(failure)
        else:
            self._deliver()

    def _deliver(self) -> None:
        """Hand the answer over once it is whole: in this turn of the loop or, where many come at once, in a later."""
        if self._reader.reply is not None and self._waiting is not None:
            self._timer.cancel()
            self._gate.enter(_settle, self._waiting, self._reader.reply)

    def _expire(self) -> None:
        if (left_s := self._until - self._lag.lived()) > SLACK_S:
            # Our own loop was blocked meanwhile: the answer may lie unread in the socket.
            self._timer = self._loop.call_later(left_s, self._expire)
            return
        self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self.hang_up()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


def _settle(waiting: asyncio.Future[ReceivedResponse], reply: ReceivedResponse) -> None:
    if not waiting.done():
        waiting.set_result(reply)

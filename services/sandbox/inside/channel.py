"""Sends length-prefixed JSON messages over a socket. It is safe to receive messages from a malicious peer."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

MAX_MESSAGE_BYTES = 32 * 1024 * 1024


class ChannelClosed(Exception):
    """Raised when the peer disconnects or sends an invalid message."""


def framed(message: Any) -> bytes:
    """Encode `message` with its length. Raises TypeError for values that JSON does not support."""
    body = json.dumps(message).encode()
    return struct.pack("=I", len(body)) + body


class Channel:
    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Any) -> None:
        """Send a message.

        Raises ChannelClosed if the peer has disconnected, and TypeError for values that JSON does not support.
        """
        try:
            self._end.sendall(framed(message))
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> Any:
        """Return the next message. Raises ChannelClosed if there is none or it is invalid."""
        (length,) = struct.unpack("=I", self._exactly(4))
        if length > MAX_MESSAGE_BYTES:
            raise ChannelClosed(f"a message of {length} bytes is larger than the limit of {MAX_MESSAGE_BYTES}")
        try:
            return json.loads(self._exactly(length))
        except (ValueError, RecursionError) as error:
            raise ChannelClosed(f"the peer sent an invalid message: {error}") from error

    def _exactly(self, count: int) -> bytes:
        pieces = []
        while count:
            try:
                piece = self._end.recv(min(count, 1 << 20))
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not piece:
                raise ChannelClosed("the peer closed the connection")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

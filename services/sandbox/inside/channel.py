"""Messages over a socket: JSON behind its length. Safe to read from somebody who wants to do harm."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

LARGEST = 32 * 1024 * 1024


class ChannelClosed(Exception):
    """The other side is gone, or what it sent is no message."""


def framed(message: Any) -> bytes:
    """`message` as it goes over the wire. Raises TypeError for what JSON cannot say."""
    body = json.dumps(message).encode()
    return struct.pack("=I", len(body)) + body


class Channel:
    """One end of a stream socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Any) -> None:
        """Raises Closed when nobody listens, TypeError for what JSON cannot say."""
        try:
            self._end.sendall(framed(message))
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> Any:
        """The next message. Raises Closed."""
        (length,) = struct.unpack("=I", self._exactly(4))
        if length > LARGEST:
            raise ChannelClosed(f"a message of {length} bytes; at most {LARGEST} are read")
        try:
            return json.loads(self._exactly(length))
        except (ValueError, RecursionError) as error:
            raise ChannelClosed(f"not a message: {error}") from error

    def _exactly(self, count: int) -> bytes:
        pieces = []
        while count:
            try:
                piece = self._end.recv(min(count, 1 << 20))
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not piece:
                raise ChannelClosed("end of the stream")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

"""Reads the output of a jail from a pipe."""

from __future__ import annotations

import os


class PipeReader:
    """Keeps the first `limit` bytes from a pipe and discards the rest."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.data = b""
        self.cut = False
        self.open = True
        self._limit = limit
        os.set_blocking(descriptor, False)

    def read(self) -> None:
        """Read the available data without blocking."""
        for _ in range(16):  # bounded, so that endless output does not delay the deadline
            try:
                piece = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self.open = False
                return
            room = self._limit - len(self.data)
            self.data += piece[:room]
            self.cut |= len(piece) > room

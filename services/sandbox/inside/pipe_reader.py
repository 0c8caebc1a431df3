"""What a jail lets out through a pipe."""

from __future__ import annotations

import os


class PipeReader:
    """What comes out of a pipe: the first bytes are kept, the others read and forgotten."""

    def __init__(self, descriptor: int, most: int) -> None:
        self.descriptor = descriptor
        self.data = b""
        self.cut = False
        self.open = True
        self._most = most
        os.set_blocking(descriptor, False)

    def read(self) -> None:
        """Take what is there."""
        for _ in range(16):  # an answer that never stops printing must not hold up the deadline
            try:
                piece = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                self.open = False
                return
            room = self._most - len(self.data)
            self.data += piece[:room]
            self.cut |= len(piece) > room

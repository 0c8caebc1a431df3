"""Random numbers that depend only on the input for a decision, not on order, process or time."""

from __future__ import annotations

import hashlib
import struct

BLOCK = struct.Struct("<16x6Q")
UNIT = 1.0 / (1 << 64)


class RandomDraws:
    """A stream of uniform random numbers that depends only on `material` and `key`."""

    __slots__ = ("_block", "_left", "tag")

    def __init__(self, material: bytes, key: str) -> None:
        name = key.encode()
        if len(name) > hashlib.blake2b.MAX_KEY_SIZE:
            name = hashlib.blake2b(name).digest()
        self._block = hashlib.blake2b(material, key=name).digest()
        self._left = list(BLOCK.unpack(self._block))
        self.tag = self._block[:16].hex()
        """32 hex digits for use in ids; no random numbers are derived from them."""

    def unit(self) -> float:
        """Draw a number in [0, 1)."""
        if not self._left:
            self._block = hashlib.blake2b(self._block).digest()
            self._left = list(BLOCK.unpack(self._block))
        number: int = self._left.pop()
        return (number >> 11) * (UNIT * 2048)

    def below(self, limit: int) -> int:
        """Draw an integer from 0 to `limit` - 1."""
        return int(self.unit() * limit)

"""Decoder: bodies that a server has encoded, which it may do without being asked; never more than a limit of bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable


class InvalidResponse(ConnectionError):
    """What came is not an answer that can be used; its connection cannot be used again."""


class Decoder:
    """Decodes one encoding piece by piece. Raises InvalidResponse if it is truncated, unknown, or exceeds `limit`."""

    def __init__(self, encoding: str, limit: int) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise InvalidResponse(f"its body is encoded as {encoding!r}; gzip and deflate are known")
        self._encoding = encoding
        self._limit = limit
        self._left = limit
        self._begun = b""
        self._decoder: zlib._Decompress | None = None

    def feed(self, data: bytes) -> bytes:
        """The next bytes, decoded."""
        pieces: list[bytes] = []
        while data:
            if self._decoder is None:
                data, self._begun = self._begun + data, b""
                if len(data) < 2:
                    self._begun = data
                    break
                self._decoder = self._started(data)
            try:
                piece = self._decoder.decompress(data, self._left + 1)
            except zlib.error as error:
                raise InvalidResponse(f"its body is not {self._encoding}: {error}") from None
            self._left -= len(piece)
            if self._left < 0:
                raise InvalidResponse(f"its decoded body is larger than {self._limit} bytes")
            pieces.append(piece)
            data = self._decoder.unused_data
            if self._decoder.eof:  # a gzip body may have several members
                self._decoder = None
        return b"".join(pieces)

    def finish(self) -> None:
        """That was all."""
        if self._decoder is not None or self._begun:
            raise InvalidResponse(f"its {self._encoding} body breaks off")

    def _started(self, data: bytes) -> zlib._Decompress:
        # Some servers send raw deflate, others with zlib's header as the standard says.
        header = data[0] & 0x0F == 8 and not int.from_bytes(data[:2], "big") % 31
        raw = self._encoding == "deflate" and not header
        return zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)


def decoders(named: Iterable[str], limit: int) -> list[Decoder]:
    """For the values of Content-Encoding: what undoes them, in order."""
    found = [name.strip() for name in ",".join(named).lower().split(",") if name.strip() not in ("", "identity")]
    if len(found) > 2:
        raise InvalidResponse(f"its body is encoded {len(found)} times")
    return [Decoder(name, limit) for name in reversed(found)]

"""Decoder: decodes compressed response bodies, up to a size limit.

Servers may send compressed bodies even if the request has no Accept-Encoding header.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable


class InvalidResponse(ConnectionError):
    """Raised when the peer sends an unusable response. Its connection cannot be reused."""


class Decoder:
    """Decodes a body incrementally.

    Raises InvalidResponse if the encoding is unknown, or if the body is invalid, truncated, or larger than `limit`
    bytes when decoded.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise InvalidResponse(f"the response body is encoded as {encoding!r}; expected gzip or deflate")
        self._encoding = encoding
        self._limit = limit
        self._left = limit
        self._first_byte = b""
        self._decoder: zlib._Decompress | None = None

    def feed(self, data: bytes) -> bytes:
        """Decode the next bytes of the body."""
        decoded: list[bytes] = []
        while data:
            if self._decoder is None:
                data, self._first_byte = self._first_byte + data, b""
                if len(data) < 2:
                    self._first_byte = data
                    break
                self._decoder = self._start(data)
            try:
                piece = self._decoder.decompress(data, self._left + 1)
            except zlib.error as error:
                raise InvalidResponse(f"the response body is not {self._encoding}: {error}") from None
            self._left -= len(piece)
            if self._left < 0:
                raise InvalidResponse(f"the decoded response body is larger than {self._limit} bytes")
            decoded.append(piece)
            data = self._decoder.unused_data
            if self._decoder.eof:  # a gzip body may have several members
                self._decoder = None
        return b"".join(decoded)

    def finish(self) -> None:
        """Raise InvalidResponse if the body is truncated."""
        if self._decoder is not None or self._first_byte:
            raise InvalidResponse(f"the {self._encoding} response body is truncated")

    def _start(self, data: bytes) -> zlib._Decompress:
        # The standard requires zlib's header for deflate, but some servers send raw deflate data.
        header = data[0] & 0x0F == 8 and not int.from_bytes(data[:2], "big") % 31
        raw = self._encoding == "deflate" and not header
        return zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)


def decoders(values: Iterable[str], limit: int) -> list[Decoder]:
    """Return the decoders for the values of Content-Encoding, in the order in which to apply them."""
    names = [name.strip() for name in ",".join(values).lower().split(",") if name.strip() not in ("", "identity")]
    if len(names) > 2:
        raise InvalidResponse(f"the response body is encoded {len(names)} times; expected at most 2")
    return [Decoder(name, limit) for name in reversed(names)]

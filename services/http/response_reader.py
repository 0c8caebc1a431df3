"""ResponseReader: parses HTTP/1.1 responses from a connection's bytes, one at a time and within size limits."""

from __future__ import annotations

from dataclasses import dataclass

import httptools
from multidict import CIMultiDict

from rollyard.services.http.content_encoding import InvalidResponse, decoders
from rollyard.services.http.limits import Limits


@dataclass(frozen=True, slots=True)
class ReceivedResponse:
    """A complete response."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


class ResponseReader:
    """Parses the bytes passed to `feed` and sets `response` once it is complete. Raises only InvalidResponse."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = httptools.HttpResponseParser(self)  # calls the methods named on_...
        self.reset()

    def reset(self) -> None:
        """Prepare for the response to a new request."""
        self.response: ReceivedResponse | None = None
        self.reusable = False
        self._interim = 0
        self._header_bytes = 0
        self._unparsed_bytes = 0
        self._clear()

    def feed(self, data: bytes) -> None:
        """Parse the next bytes from the connection."""
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.response is not None:  # keep the response and ignore what follows
                self.reusable = False
                return
            cause = error.__context__
            raise (
                cause if isinstance(cause, InvalidResponse) else InvalidResponse(f"the response is not HTTP: {error}")
            ) from None
        except httptools.HttpParserUpgrade:
            raise InvalidResponse("the peer switched to a different protocol") from None
        if self._unparsed_bytes > self._limits.header_bytes:
            raise InvalidResponse(f"a header line is longer than {self._limits.header_bytes} bytes")

    def finish(self) -> None:
        """Handle the end of the connection.

        It completes a response without a length. Any other response is then incomplete and raises InvalidResponse.
        """
        if not self._until_close:
            raise InvalidResponse("the peer closed the connection")
        self._complete()

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.response is not None:
            raise InvalidResponse("the peer sent two responses to one request")
        self._clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, or check the size of a trailer."""
        self._unparsed_bytes = 0
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._limits.header_bytes:
            raise InvalidResponse(f"the response headers are larger than {self._limits.header_bytes} bytes")
        if self._in_body:  # trailers do not affect how the response is parsed
            return
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))
        if len(self._headers) > self._limits.headers:
            raise InvalidResponse(f"the response has more than {self._limits.headers} headers")

    def on_headers_complete(self) -> None:
        """Determine the body's length from the headers."""
        self._unparsed_bytes = 0
        lengths, encodings = set(), set()
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == "content-length":
                lengths.add(value)
            elif lowered == "transfer-encoding":
                encodings.add(value.lower())
        if len(lengths) > 1 or (lengths and encodings):
            raise InvalidResponse("the response headers contain contradictory lengths")
        if encodings and encodings != {"chunked"}:
            raise InvalidResponse(f"the transfer encoding is {sorted(encodings)}; only chunked is supported")
        if lengths and int(next(iter(lengths))) > self._limits.body_bytes:
            raise self._too_large()
        self._until_close = not lengths and not encodings
        self._in_body = True

    def on_body(self, piece: bytes) -> None:
        self._unparsed_bytes = 0
        self._body.append(piece)
        self._size += len(piece)
        if self._size > self._limits.body_bytes:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """Complete the response, unless it is an interim response (status 100 to 199)."""
        self._unparsed_bytes = 0
        if self._parser.get_status_code() >= 200:
            self._complete()
            self.reusable = self._parser.should_keep_alive()
            return
        self._interim += 1
        if self._interim > self._limits.interim_responses:
            raise InvalidResponse(f"the response has more than {self._limits.interim_responses} interim responses")

    def _clear(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._until_close = False
        self._in_body = False

    def _complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        headers = CIMultiDict(self._headers)
        if "content-encoding" in headers and body:
            for decoder in decoders(headers.getall("content-encoding"), self._limits.body_bytes):
                body = decoder.feed(body)
                decoder.finish()
        self._clear()
        self.response = ReceivedResponse(self._parser.get_status_code(), headers, body)

    def _too_large(self) -> InvalidResponse:
        return InvalidResponse(f"the response body is larger than {self._limits.body_bytes} bytes")

"""ResponseReader: parses HTTP/1.1 responses from a connection's bytes, one at a time and within size limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httptools
from multidict import CIMultiDict

from rollyard.services.http.content_encoding import InvalidResponse, decoders
from rollyard.services.http.limits import Limits

_HEAD_END = b"\r\n\r\n"
_INTERIM = re.compile(rb"HTTP/1\.[01] 1[0-9][0-9]")
_LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]+(?:[ \t]*,[ \t]*[0-9]+)*)[ \t]*\r\n", re.IGNORECASE | re.MULTILINE)


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
        self._parser = self._make_parser()
        self.reset()

    def reset(self) -> None:
        """Prepare for the response to a new request."""
        self.response: ReceivedResponse | None = None
        self.reusable = False
        self._interim = 0
        self._header_bytes = 0
        self._unparsed_bytes = 0
        self._head = b""
        """What was received before the body."""
        self._lengths_rejected = False
        self._clear()

    def feed(self, data: bytes) -> None:
        """Parse the next bytes from the connection."""
        self._unparsed_bytes += len(data)
        if not self._in_body:
            self._head += data
        try:
            if self._lengths_rejected and not self._in_body:
                self._feed_with_one_length()
            else:
                self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.response is not None:  # keep the response and ignore what follows
                self.reusable = False
                return
            cause = error.__context__
            if isinstance(cause, InvalidResponse):
                raise cause from None
            if self._in_body or self._lengths_rejected or "Content-Length" not in str(error):
                raise InvalidResponse(f"the response is not HTTP: {error}") from None
            self._lengths_rejected = True
            self.feed(b"")
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

    def _make_parser(self) -> Any:
        parser = httptools.HttpResponseParser(self)  # calls the methods named on_...
        # Trailers may contain a length. In the headers, `on_headers_complete` rejects it beside a transfer encoding.
        parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_spaces_after_chunk_size=True)
        return parser

    def _feed_with_one_length(self) -> None:
        """Parse the headers again, once they are complete, with a repeated Content-Length reduced to one.

        The parser rejects even equal lengths, which RFC 9112 (section 6.3) allows to accept.
        """
        head = _with_one_length(self._head)
        if head is not None:
            self._parser = self._make_parser()
            self._interim = self._header_bytes = 0
            self._clear()
            self._parser.feed_data(head)

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
        self._in_body = False

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


def _with_one_length(head: bytes) -> bytes | None:
    """Return the bytes with equal lengths in the final response's headers reduced to one; None if these headers are
    incomplete.
    """
    start, end = 0, head.find(_HEAD_END)
    while end >= 0 and _INTERIM.match(head, start):
        start, end = end + len(_HEAD_END), head.find(_HEAD_END, end + len(_HEAD_END))
    if end < 0:
        return None
    headers = head[start : end + 2]
    lengths = {length.strip() for line in _LENGTH.findall(headers) for length in line.split(b",")}
    if len(lengths) != 1:
        return head
    return b"%bContent-Length: %b\r\n%b" % (head[:start] + _LENGTH.sub(b"", headers), lengths.pop(), head[end + 2 :])

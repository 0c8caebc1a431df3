"""ResponseReader: one HTTP/1.1 answer at a time out of a connection's bytes, within limits."""

from __future__ import annotations

from dataclasses import dataclass

import httptools
from multidict import CIMultiDict

from rollyard.services.http.content_encoding import InvalidResponse, decoders
from rollyard.services.http.limits import Limits


@dataclass(frozen=True, slots=True)
class ReceivedResponse:
    """A whole answer."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


class ResponseReader:
    """Parses what `feed` is given; `reply` is set once an answer is whole. Raises InvalidResponse and nothing else."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = httptools.HttpResponseParser(self)  # calls the methods named on_...
        self.begin()

    def begin(self) -> None:
        """Expect the answer to a new request."""
        self.reply: ReceivedResponse | None = None
        self.reusable = False
        self._interim = 0
        self._head_bytes = 0
        self._silent = 0
        self._clear()

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._silent += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.reply is not None:  # the answer stands; what follows it does not
                self.reusable = False
                return
            cause = error.__context__
            raise (
                cause if isinstance(cause, InvalidResponse) else InvalidResponse(f"what came is not HTTP: {error}")
            ) from None
        except httptools.HttpParserUpgrade:
            raise InvalidResponse("the peer switched to another protocol") from None
        if self._silent > self._limits.head_bytes:
            raise InvalidResponse(f"a header line is longer than {self._limits.head_bytes} bytes")

    def finish(self) -> None:
        """The peer closed the connection: an answer without a length ends with it."""
        if not self._until_close:
            raise InvalidResponse("closed by the peer")
        self._complete()

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A first line."""
        if self.reply is not None:
            raise InvalidResponse("a second answer to one request")
        self._clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer."""
        self._silent = 0
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.head_bytes:
            raise InvalidResponse(f"its headers are larger than {self._limits.head_bytes} bytes")
        if self._in_body:  # a trailer says nothing of how the answer is read
            return
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))
        if len(self._headers) > self._limits.headers:
            raise InvalidResponse(f"it has more than {self._limits.headers} headers")

    def on_headers_complete(self) -> None:
        """How long the body is has been said, if it is said at all."""
        self._silent = 0
        lengths, encodings = set(), set()
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == "content-length":
                lengths.add(value)
            elif lowered == "transfer-encoding":
                encodings.add(value.lower())
        if len(lengths) > 1 or (lengths and encodings):
            raise InvalidResponse("it gives its length in more than one way")
        if encodings and encodings != {"chunked"}:
            raise InvalidResponse(f"its transfer encoding is {sorted(encodings)}; only chunked is known")
        if lengths and int(next(iter(lengths))) > self._limits.body_bytes:
            raise self._too_large()
        self._until_close = not lengths and not encodings
        self._in_body = True

    def on_body(self, piece: bytes) -> None:
        """Some of the body."""
        self._silent = 0
        self._body.append(piece)
        self._size += len(piece)
        if self._size > self._limits.body_bytes:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """The end of an answer; an interim one (100 to 199) is not the answer yet."""
        self._silent = 0
        if self._parser.get_status_code() >= 200:
            self._complete()
            self.reusable = self._parser.should_keep_alive()
            return
        self._interim += 1
        if self._interim > self._limits.interim_answers:
            raise InvalidResponse(f"more than {self._limits.interim_answers} interim answers")

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
        self.reply = ReceivedResponse(self._parser.get_status_code(), headers, body)

    def _too_large(self) -> InvalidResponse:
        return InvalidResponse(f"its body is larger than {self._limits.body_bytes} bytes")

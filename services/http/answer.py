"""AnswerReader: one HTTP/1.1 answer at a time out of a connection's bytes, within limits."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import httptools
from multidict import CIMultiDict

from services.http.limits import Limits


class BadAnswer(ConnectionError):
    """What came is not an answer that can be used; its connection cannot be used again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


class AnswerReader:
    """Parses what `feed` is given; `reply` is set once an answer is whole. Raises BadAnswer and nothing else."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = httptools.HttpResponseParser(self)  # calls the methods named on_...
        self.begin()

    def begin(self) -> None:
        """Expect the answer to a new request."""
        self.reply: Reply | None = None
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
            raise cause if isinstance(cause, BadAnswer) else BadAnswer(f"what came is not HTTP: {error}") from None
        except httptools.HttpParserUpgrade:
            raise BadAnswer("the peer switched to another protocol") from None
        if self._silent > self._limits.head_bytes:
            raise BadAnswer(f"a header line is longer than {self._limits.head_bytes} bytes")

    def finish(self) -> None:
        """The peer closed the connection: an answer without a length ends with it."""
        if not self._until_close:
            raise BadAnswer("closed by the peer")
        self._complete()

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A first line."""
        if self.reply is not None:
            raise BadAnswer("a second answer to one request")
        self._clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer."""
        self._silent = 0
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.head_bytes:
            raise BadAnswer(f"its headers are larger than {self._limits.head_bytes} bytes")
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))
        if len(self._headers) > self._limits.headers:
            raise BadAnswer(f"it has more than {self._limits.headers} headers")

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
            raise BadAnswer("it gives its length in more than one way")
        if encodings and encodings != {"chunked"}:
            raise BadAnswer(f"its transfer encoding is {sorted(encodings)}; only chunked is known")
        if lengths and int(next(iter(lengths))) > self._limits.body_bytes:
            raise self._too_large()
        self._until_close = not lengths and not encodings

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
            raise BadAnswer(f"more than {self._limits.interim_answers} interim answers")

    def _clear(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._until_close = False

    def _complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        headers = CIMultiDict(self._headers)
        for encoding in reversed(_encodings(headers)):
            body = decoded(body, encoding, self._limits.body_bytes)
        self._clear()
        self.reply = Reply(self._parser.get_status_code(), headers, body)

    def _too_large(self) -> BadAnswer:
        return BadAnswer(f"its body is larger than {self._limits.body_bytes} bytes")


def _encodings(headers: CIMultiDict[str]) -> list[str]:
    """The codings of the body in the order in which they were applied. Servers may encode without being asked."""
    if "content-encoding" not in headers:
        return []
    named = ",".join(headers.getall("content-encoding")).lower().split(",")
    found = [name.strip() for name in named if name.strip() not in ("", "identity")]
    if len(found) > 2:
        raise BadAnswer(f"its body is encoded {len(found)} times")
    return found


def decoded(body: bytes, encoding: str, limit: int) -> bytes:
    """The body before it was encoded. Raises BadAnswer: torn, another encoding, or longer than `limit`."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadAnswer(f"its body is encoded as {encoding!r}; gzip and deflate are known")
    if not body:
        return body
    pieces: list[bytes] = []
    size = 0
    while body:  # a gzip body may have several members
        # Some servers send raw deflate, others with zlib's header as the standard says.
        raw = encoding == "deflate" and (body[0] & 0x0F != 8 or int.from_bytes(body[:2], "big") % 31)
        decoder = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)
        try:
            piece = decoder.decompress(body, limit - size + 1)
        except zlib.error as error:
            raise BadAnswer(f"its body is not {encoding}: {error}") from None
        size += len(piece)
        if size > limit:
            raise BadAnswer(f"its decoded body is larger than {limit} bytes")
        if not decoder.eof:
            raise BadAnswer(f"its {encoding} body breaks off")
        pieces.append(piece)
        body = decoder.unused_data
    return b"".join(pieces)

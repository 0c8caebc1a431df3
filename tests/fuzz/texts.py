"""Targets that read bytes or text: what arrives on a connection, in a file or on a command line.

A target is a function that takes one input and raises if a property does not hold. The exceptions that a function of
the product documents are part of its answer; any other one ends the target.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from typing import TypeVar, cast

import orjson

from rollyard.records.errors import Failure, OperatorError
from rollyard.records.expression_parser import ExpressionError, Node, fields_of, parse, parse_field
from rollyard.records.expressions import column_of, evaluate, selected
from rollyard.records.jsonl import BadLine, ParsedLine, hand_over, iter_jsonl, lenient, strict, with_offsets
from rollyard.records.rollout_keys import duplicate_key, key_of
from rollyard.records.strict_json import ExactParser
from rollyard.resources_servers.harbor_task.dockerfile import HostImage, UnsupportedTask, read_build
from rollyard.resources_servers.harbor_task.task_folder import read_config
from rollyard.responses_api_models.upstream.sse import data_of, error_in, is_event, split_events
from rollyard.services.config.overrides import format_value, parse_overrides
from rollyard.services.http.channel import FRAME, FrameReader
from rollyard.services.http.connection_pool import HttpLimits, InvalidResponse, ResponseReader
from rollyard.services.http.request import HttpResponse

T = TypeVar("T")
LIMITS = HttpLimits(header_bytes=2048, headers=16, body_bytes=1 << 20)


def pieces(data: bytes) -> list[bytes]:
    """Cut the input into pieces as a connection might."""
    sizes = (1, 2, 5, 3, 11, 1, 64)
    found, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return found


def http_response(data: bytes) -> None:
    """A response is read or refused, and how it was cut into pieces makes no difference."""

    def read(received: list[bytes]) -> HttpResponse | None:
        reader = ResponseReader(LIMITS)
        try:
            for piece in received:
                reader.feed(piece)
                if reader.response is not None:
                    return reader.response
            reader.finish()
        except InvalidResponse:
            return None
        return reader.response

    whole, cut = read([data]), read(pieces(data))
    # One piece with two responses is refused; of two pieces, the second one belongs to what follows.
    assert whole is None or cut == whole, (whole, cut)


def channel_frames(data: bytes) -> None:
    """Frames are read or refused however they are cut, and those that were read can be written again."""

    def read(received: list[bytes]) -> tuple[list[tuple[int, int, int, bytes, bytes]], bool]:
        found: list[tuple[int, int, int, bytes, bytes]] = []
        reader = FrameReader(1 << 16, lambda *frame: found.append(frame))
        try:
            for piece in received:
                reader.feed(piece)
        except InvalidResponse:
            return found, False
        return found, True

    frames, valid = read([data])
    assert read(pieces(data)) == (frames, valid)
    written = b"".join(
        FRAME.pack(len(head) + len(body), number, kind, status, len(head)) + head + body
        for number, kind, status, head, body in frames
    )
    assert data.startswith(written)


def sse(data: bytes) -> None:
    """Events hold every byte of a stream in its order, however it arrives."""

    async def chunks(received: list[bytes]) -> AsyncGenerator[bytes]:
        for piece in received:
            yield piece

    async def split(received: list[bytes]) -> tuple[list[bytes], bool]:
        found: list[bytes] = []
        try:
            async for event in split_events(chunks(received)):
                found.append(event)
        except Failure:
            return found, False
        return found, True

    events, complete = _run(split([data]))
    assert _run(split(pieces(data))) == (events, complete)
    joined = b"".join(events)
    assert data.startswith(joined) or (complete and joined.endswith(b"data: [DONE]\n\n")), joined
    for event in events:
        is_event(event), data_of(event), error_in(event)


def jsonl(data: bytes) -> None:
    """Every line that is not blank is read or named, once and in order, and what was read can be written."""
    lines = [line for line in data.split(b"\n") if line and not line.isspace()]
    exact = ExactParser()
    for parser in (lenient, strict, exact):
        source = (piece + b"\n" for piece in data.split(b"\n"))
        found = list(iter_jsonl(with_offsets(source), hand_over, parse=parser))
        assert [one.line[:-1] for one in found] == lines
        for one in found:
            if isinstance(one, BadLine):
                assert one.problem
                continue
            assert isinstance(one, ParsedLine) and isinstance(one.value, dict)
            if parser is not lenient:
                again = json.loads(json.dumps(one.value))
                assert again == one.value
            if parser is exact:
                assert orjson.loads(orjson.dumps(one.value)) == one.value
            duplicate_key(one.line)
            with suppress(ValueError):
                task, repeat = key_of(one.value)
                assert task >= 0 and repeat >= 0


_ROWS = [
    {"reward": 1.0, "text": "abc", "n": 2**64, "list": [1, "a", None], "object": {"a": 1}, "none": None, "true": True},
    {"reward": 0, "text": "", "n": 3, "list": [], "object": {}, "true": False},
    {"reward": None, "text": "ABC", "n": -1.5, "list": {"a": [1]}, "object": 3, "true": "x"},
]


def expressions(data: bytes) -> None:
    """A text is an expression or is refused with words; one has a truth for each row, and a field its name."""
    text = data.decode("utf-8", "replace")
    try:
        node: Node = parse(text)
    except ExpressionError as error:
        assert str(error)
        return
    fields = {path: column_of([path.value(row) for row in _ROWS]) for path in fields_of(node)}
    assert len(selected(node, fields, len(_ROWS))) == len(evaluate(node, fields, len(_ROWS))) == len(_ROWS)
    for path in fields:
        assert parse_field(str(path)).parts == path.parts, str(path)


def overrides(data: bytes) -> None:
    """An argument is an override or is refused with words, and a value that was read is written as itself."""
    text = data.decode("utf-8", "replace").replace("\0", "")
    try:
        found = parse_overrides([text])
    except OperatorError as error:
        assert str(error)
        return
    for one in found:
        if one.delete or one.value != one.value:  # NaN
            continue
        [again] = parse_overrides([f"{one.key}={format_value(one.value)}"])
        assert again.value == one.value, (one, again)


_HOST = HostImage("debian", frozenset({"12", "bookworm"}), "3.11")


def dockerfile(data: bytes) -> None:
    with suppress(UnsupportedTask):
        dataclasses.asdict(read_build(data.decode("utf-8", "replace"), _HOST, ()))


def task_toml(data: bytes) -> None:
    with suppress(UnsupportedTask):
        read_config(data.decode("utf-8", "replace"), {})


def _run(coroutine: Coroutine[None, None, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(T, ended.value)
    raise AssertionError(f"{coroutine} waits")

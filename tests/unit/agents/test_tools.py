"""The reply to a request in the response of an MCP server, and what the model reads of a tool's result."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.agents.tools import answer_of_result, event_data, reply_to
from rollyard.services.http.request import HttpResponse

REPLY = {"jsonrpc": "2.0", "id": 7, "result": {"tools": []}}
TEXT = orjson.dumps(REPLY).decode()
OTHER = '{"jsonrpc":"2.0","id":8,"result":{}}'
NOTICE = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}'
REQUEST_OF_THE_SERVER = '{"jsonrpc":"2.0","id":7,"method":"ping"}'


def answer(body: str, content_type: str) -> HttpResponse:
    return HttpResponse(200, {"content-type": content_type}, body.encode())


@pytest.mark.parametrize("body", [TEXT, f"[{NOTICE}, {OTHER}, {TEXT}]", f" \n{TEXT}\n"])
def test_the_reply_is_found_in_a_json_body(body: str) -> None:
    assert reply_to(7, answer(body, "application/json")) == REPLY


@pytest.mark.parametrize(
    "stream",
    [
        f"event: message\ndata: {TEXT}\n\n",
        f"data:{TEXT}\n\n",
        f"id: 1\nretry: 5\ndata: \n\nevent: message\ndata: {NOTICE}\n\ndata: {OTHER}\n\ndata: {TEXT}\n\n",
        f"data: {REQUEST_OF_THE_SERVER}\n\ndata: {TEXT}\n\n",
        f": a comment\r\ndata: {TEXT}\r\n\r\n",
        f"data: {TEXT}\r\r",
        f"data: {TEXT}",
        'data: {"jsonrpc": "2.0",\ndata: "id": 7,\ndata: "result": {"tools": []}}\n\n',
        f"data: not JSON\n\ndatabase: x\ndata: {TEXT}\n\n",
        f"data: [{NOTICE},{TEXT}]\n\n",
    ],
)
def test_the_reply_is_found_among_the_events_of_a_stream(stream: str) -> None:
    assert reply_to(7, answer(stream, "text/event-stream; charset=utf-8")) == REPLY


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", "text/html"])
def test_a_body_without_the_reply_has_none(content_type: str) -> None:
    for body in ["", "null", "[]", "x", OTHER, NOTICE, REQUEST_OF_THE_SERVER, "[1]", '{"id":7}']:
        assert reply_to(7, answer(body, content_type)) is None
        assert reply_to(7, answer(f"data: {body}\n\n", content_type)) is None


def test_the_lines_of_an_event_are_joined_by_line_breaks() -> None:
    assert list(event_data("data: a\ndata\ndata: b\n\n\ndata: c")) == ["a\n\nb", "c"]


HELLO = {"type": "text", "text": "hello"}
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/jpeg"}
SHOWN_IMAGE = {"type": "input_image", "image_url": "data:image/jpeg;base64,AAAA", "detail": "auto"}


@pytest.mark.parametrize(
    ("result", "output", "done"),
    [
        ({"content": [HELLO]}, "hello", False),
        ({"content": [HELLO, {"type": "text", "text": "you"}]}, "hello\nyou", False),
        ({"content": [HELLO], "isError": True}, "hello", False),
        ({"content": [], "isError": True}, '{"error":"The tool failed without a message."}', False),
        ({"content": []}, "", False),
        ({}, "", False),
        ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}', False),
        ({"content": [HELLO], "structuredContent": {"done": True}}, "hello", True),
        ({"content": [{"type": "text", "text": '{"done": true}'}]}, '{"done": true}', True),
        ({"content": [{"type": "text", "text": '{"done": true}'}], "isError": True}, '{"done": true}', False),
        ({"content": [HELLO, IMAGE]}, [{"type": "input_text", "text": "hello"}, SHOWN_IMAGE], False),
        ({"content": [{"type": "audio", "data": "A", "mimeType": "audio/wav"}]}, "[audio, audio/wav]", False),
        ({"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}]}, "a: file:///a", False),
        ({"content": [{"type": "resource", "resource": {"uri": "x", "text": "t"}}]}, "t", False),
        (
            {"content": [{"type": "resource", "resource": {"uri": "x", "blob": "A", "mimeType": "a/b"}}]},
            "[a/b: x]",
            False,
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "x", "blob": "AAAA", "mimeType": "image/jpeg"}}]},
            [SHOWN_IMAGE],
            False,
        ),
        ({"content": [{"type": "new", "x": 1}]}, '{"type":"new","x":1}', False),
        ({"content": [5]}, "5", False),
        (5, "5", False),
        ({"content": "text"}, "", False),
    ],
)
def test_each_kind_of_content_becomes_text_or_a_part(result: Any, output: Any, done: bool) -> None:
    answer = answer_of_result(result)
    assert (answer.output, answer.done) == (output, done)

"""What the model reads of the result of an MCP tool."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.agents.mcp_tools import answer_of_result

TEXT = {"type": "text", "text": "hello"}
IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/jpeg"}
SHOWN_IMAGE = {"type": "input_image", "image_url": "data:image/jpeg;base64,AAAA", "detail": "auto"}


@pytest.mark.parametrize(
    ("result", "output", "done"),
    [
        ({"content": [TEXT]}, "hello", False),
        ({"content": [TEXT, {"type": "text", "text": "you"}]}, "hello\nyou", False),
        ({"content": [TEXT], "isError": True}, "hello", False),
        ({"content": [], "isError": True}, '{"error":"The tool failed without a message."}', False),
        ({"content": []}, "", False),
        ({}, "", False),
        ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}', False),
        ({"content": [TEXT], "structuredContent": {"done": True}}, "hello", True),
        ({"content": [{"type": "text", "text": '{"done": true}'}]}, '{"done": true}', True),
        ({"content": [{"type": "text", "text": '{"done": true}'}], "isError": True}, '{"done": true}', False),
        ({"content": [TEXT, IMAGE]}, [{"type": "input_text", "text": "hello"}, SHOWN_IMAGE], False),
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

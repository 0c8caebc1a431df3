"""Server-sent events are split correctly wherever the network cuts the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.records.errors import Failure
from rollyard.responses_api_models.streaming.sse import data_of, error_in, is_event, split_events

EVENTS = [b": ping\n\n", b'data: {"a": 1}\n\n', b"event: x\r\ndata: 1\r\ndata: 2\r\n\r\n", b"data: [DONE]\n\n"]


async def chunks_of(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def events(*chunks: bytes) -> list[bytes]:
    return [event async for event in split_events(chunks_of(*chunks))]


@given(st.lists(st.integers(0, sum(map(len, EVENTS))), max_size=8))
def test_events_are_the_same_wherever_the_body_is_cut(positions: list[int]) -> None:
    body = b"".join(EVENTS)
    bounds = sorted({0, len(body), *positions})
    parts = [body[start:end] for start, end in pairwise(bounds)]
    assert asyncio.run(events(*parts)) == EVENTS


async def test_a_body_that_ends_inside_an_event_is_a_lost_connection() -> None:
    with pytest.raises(Failure, match=r'middle of an event: data: \{"a"'):
        await events(EVENTS[0], b'data: {"a"')


async def test_the_last_event_of_a_stream_needs_no_blank_line() -> None:
    assert await events(EVENTS[1], b"data: [DONE]") == [EVENTS[1], EVENTS[3]]


def test_the_data_of_an_event_joins_all_its_data_lines() -> None:
    assert [data_of(event) for event in EVENTS] == [b"", b'{"a": 1}', b"1\n2", b"[DONE]"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"error": {"message": "no"}}\n\n', "no"),
        (b'data: {"error": "no"}\n\n', "no"),
        (b'event: error\ndata: {"type": "error", "message": "no"}\n\n', "no"),
        (b'data: {"choices": [], "error": null}\n\n', None),
        (b'data: {"choices": [{"delta": {"content": "error"}}]}\n\n', None),
        (b"data: an error\n\n", None),
        (b": error\n\n", None),
    ],
)
def test_an_error_is_found_in_the_formats_of_both_apis(event: bytes, message: str | None) -> None:
    assert (error_in(event) or {}).get("message") == message


@pytest.mark.parametrize("answer", [b"<html>\n\n", b'{"id": 1}\n\n', b""])
def test_a_body_that_is_not_an_event_is_detected(answer: bytes) -> None:
    assert not is_event(answer)
    assert all(is_event(event) for event in EVENTS)

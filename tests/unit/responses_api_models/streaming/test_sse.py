"""Events out of pieces of bytes, wherever the network cut them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.responses_api_models.streaming.sse import data_of, error_in, is_event, split_events
from rollyard.services.errors import Failure

EVENTS = [b": ping\n\n", b'data: {"a": 1}\n\n', b"event: x\r\ndata: 1\r\ndata: 2\r\n\r\n", b"data: [DONE]\n\n"]


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


async def events(*given: bytes) -> list[bytes]:
    return [event async for event in split_events(pieces(*given))]


@given(st.lists(st.integers(0, sum(map(len, EVENTS))), max_size=8))
def test_however_the_body_is_cut_its_events_are_the_same(places: list[int]) -> None:
    body = b"".join(EVENTS)
    edges = sorted({0, len(body), *places})
    cut = [body[begin:end] for begin, end in pairwise(edges)]
    assert asyncio.run(events(*cut)) == EVENTS


async def test_a_body_that_ends_within_an_event_is_a_lost_connection() -> None:
    with pytest.raises(Failure, match=r'ended within an event: data: \{"a"'):
        await events(EVENTS[0], b'data: {"a"')


async def test_the_last_words_of_a_stream_need_no_blank_line() -> None:
    assert await events(EVENTS[1], b"data: [DONE]") == [EVENTS[1], EVENTS[3]]


def test_the_data_of_an_event_is_that_of_all_its_lines() -> None:
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
def test_an_error_is_found_in_the_shapes_of_both_apis(event: bytes, message: str | None) -> None:
    assert (error_in(event) or {}).get("message") == message


@pytest.mark.parametrize("answer", [b"<html>\n\n", b'{"id": 1}\n\n', b""])
def test_what_is_no_event_is_told_apart(answer: bytes) -> None:
    assert not is_event(answer)
    assert all(is_event(event) for event in EVENTS)

"""An episode's requests: the next one is parsed from where the last one ended, and otherwise whole."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.responses_api_models.base import SILENT_S, RecentRequests
from rollyard.services.http.request import RawRequest

A, B, C = ({"role": "user", "content": text} for text in "abc")


def call(body: Json | bytes, episode: str = "e") -> RawRequest:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return RawRequest("/v1/responses", {b"x-session-id": episode.encode()} if episode else {}, data)


def request(*items: Any, **params: Any) -> Json:
    return {**params, "input": list(items)}


def test_items_that_were_there_before_are_not_parsed_again() -> None:
    recent = RecentRequests(keeps_input=True, max_bytes=1 << 30)
    first = recent.read(call(request(A, B, temperature=0.5)))
    second = recent.read(call(request(A, B, C, temperature=0.5)))
    assert second == request(A, B, C, temperature=0.5)
    assert second["input"][0] is first["input"][0] and second["input"][1] is first["input"][1]
    assert recent.read(call(request(A, B, C, temperature=0.5))) == second


def test_once_a_request_is_converted_the_next_one_has_only_new_items() -> None:
    recent = RecentRequests(keeps_input=True, max_bytes=1 << 30)
    recent.read(call(request(A, temperature=0.5)))
    episode = recent.find(call(request(A)))
    assert episode is not None
    episode.converted = b"converted"
    assert recent.read(call(request(A, B, C, temperature=0.5))) == request(B, C, temperature=0.5)
    assert recent.read(call(request(A, B, C, temperature=0.5))) == request(temperature=0.5)
    assert (episode.count, episode.complete()) == (3, request(A, B, C, temperature=0.5))


@pytest.mark.parametrize(
    "body",
    [
        request(A, C),
        request(B),
        request(A, B, temperature=1),
        {"input": [A, B], "temperature": 1},
        {"temperature": 1, "input": "text"},
        b'{"input":[{"role":"user","content":"a"}], "input":[]}',
        b'{"input":[{"role":"user","content":"a"},{"role":"user","content":"b"}],"input":[3]}',
        b'{"input":[{"role":"user","content":"a"}],"tools":[{"type":"function","name":"f"}]}',
        b'{"input": [{"role":"user","content":"a"} , {}]}',
    ],
)
def test_a_request_that_is_not_the_last_one_with_more_items_is_parsed_whole(body: Json | bytes) -> None:
    recent = RecentRequests(keeps_input=True, max_bytes=1 << 30)
    recent.read(call(request(A)))
    expected = orjson.loads(call(body).body)
    assert recent.read(call(body)) == expected
    if isinstance(expected["input"], list):
        grown = {**expected, "input": [*expected["input"], C]}
        assert recent.read(call(grown)) == grown


@pytest.mark.parametrize("end", [b",]}", b", ]}", b"x]}", b",1}", b",{]}"])
def test_a_request_that_is_not_json_is_refused_also_as_a_continuation(end: bytes) -> None:
    recent = RecentRequests(keeps_input=True, max_bytes=1 << 30)
    start = call(request(A))
    recent.read(start)
    with pytest.raises(Failure, match="not JSON"):
        recent.read(call(start.body[:-2] + end))
    assert recent.read(call(request(A, B))) == request(A, B)


def test_a_server_that_may_change_its_input_gets_new_objects_for_each_call() -> None:
    recent = RecentRequests(keeps_input=False, max_bytes=1 << 30)
    for items in ([A], [A, B], [A, B, C]):
        recent.read(call(request(*items)))["input"].clear()
    assert recent.read(call(request(A, B, C))) == request(A, B, C)


def test_calls_of_other_episodes_and_of_none_are_apart() -> None:
    recent = RecentRequests(keeps_input=True, max_bytes=1 << 30)
    for episode in ("e", "f", ""):
        assert recent.read(call(request(A, x=episode), episode)) == request(A, x=episode)
        assert recent.read(call(request(A, B, x=episode), episode)) == request(A, B, x=episode)


async def test_what_is_kept_is_bounded_and_shows_the_last_request() -> None:
    recent = RecentRequests(keeps_input=True, max_bytes=100_000)
    for number in range(100):
        recent.read(call(request(A, temperature=1), f"e{number}"))
        recent.read(call(request(A, B, temperature=1), f"e{number}"))
    assert 5 < len(recent._requests) < 15
    shown = await recent.of_episode("e99")
    assert (shown["input"], shown["params"], shown["start"], shown["turn"]) == ([A, B], {"temperature": 1}, 1, 2)


async def test_an_episode_is_forgotten_a_while_after_its_last_answer_but_never_while_it_waits_for_one() -> None:
    now = 0.0
    recent = RecentRequests(keeps_input=True, max_bytes=1 << 30, clock=lambda: now)
    for episode in ("waits", "ended"):
        recent.read(call(request(A), episode))
    recent.finish(call(request(A), "ended"))
    now = 10 * SILENT_S
    recent.read(call(request(A), "new"))
    assert list(recent._requests) == [b"new", b"waits"]
    recent.finish(call(request(A), "waits"))
    now += SILENT_S - 1
    recent.read(call(request(A), "new"))
    assert b"waits" in recent._requests
    now += 2
    recent.read(call(request(A), "new"))
    assert list(recent._requests) == [b"new"]

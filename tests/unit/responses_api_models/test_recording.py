"""Which recorded call a program's request continues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.responses_api_models.recording import Digest, Recording, ungrouped
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.responses.recorded_episode import CLOSE, OPEN, RECORDED
from rollyard.testing import Script, calls, in_process_servers, says

TOKENS: Json = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5], "token_trace": {}}
USER: Json = {"role": "user", "content": "Go."}


def answer(*items: Json) -> Json:
    return {"output": [*items[:-1], {**items[-1], **TOKENS}], "usage": {}}


def digest(*items: Json) -> bytes:
    found = Digest()
    for item in items:
        found.add(item)
    return found.value()


@pytest.mark.parametrize(
    "again",
    [
        [{"type": "reasoning", "summary": []}, says(" up\n"), calls("step", '{ "a":1, "b": [2] }', "other")],
        [calls("step", '{"b":[2],"a":1}'), {"role": "assistant", "content": "up"}],
        [
            {"role": "assistant", "content": [{"type": "text", "text": "<think>hm</think>up"}]},
            calls("step", a=1, b=[2]),
        ],
    ],
)
def test_a_turn_that_a_client_writes_in_another_way_is_the_same(again: list[Json]) -> None:
    written = [USER, says("up"), calls("step", a=1, b=[2])]
    same = [
        {"role": "user", "content": [{"type": "input_text", "text": "Go.", "cache_control": {"type": "x"}}]},
        *again,
    ]
    assert digest(*written) == digest(*same)


@pytest.mark.parametrize(
    "other", [[says("down")], [says("up"), calls("step")], [{"role": "user", "content": "up"}], [USER, says("up")]]
)
def test_another_turn_is_not(other: list[Json]) -> None:
    assert digest(USER, says("up")) != digest(USER, *other)


def test_two_calls_with_the_same_answer_are_continued_one_each() -> None:
    recording = Recording({}, 0.0)
    for _ in range(2):
        recording.add(recording.begin({"input": [USER]}), answer(says("up")))
    for text in ("one", "two", "three"):
        request = {"input": [USER, says("up"), {"role": "user", "content": text}]}
        recording.add(recording.begin(request), answer(says("end")))
    assert sorted(one.turns for one in recording.closed().conversations) == [1, 2, 2]


def test_a_call_that_failed_leaves_its_place_to_the_next_one() -> None:
    recording = Recording({}, 0.0)
    recording.add(recording.begin({"input": [USER]}), answer(says("up")))
    request: Json = {"input": [USER, says("up"), USER]}
    recording.begin(request).abandon()
    recording.add(recording.begin(request), answer(says("end")))
    assert [one.turns for one in recording.closed().conversations] == [2]


def test_only_the_last_turn_of_the_history_has_its_tokens() -> None:
    recording = Recording({}, 0.0)
    history: list[Any] = [USER]
    for _ in range(2):
        recording.add(recording.begin({"input": history}), answer(says("up"), calls("step", a=1)))
        history = [*history, says("up"), calls("step", '{"a": 1}'), USER]
    sent = recording.begin({"input": history}).request["input"]
    assert [index for index, item in enumerate(sent) if "prompt_token_ids" in item] == [5]
    assert sent[5]["arguments"] == '{"a":1}'


def test_functions_of_a_namespace_get_longer_names_and_so_do_their_calls() -> None:
    function: Json = {"type": "function", "name": "push", "parameters": {}}
    call: Json = {"type": "function_call", "call_id": "c", "namespace": "door", "name": "push", "arguments": "{}"}
    request = {"tools": [{"type": "namespace", "name": "door", "tools": [function]}], "input": [USER, call]}
    changed, grouped = ungrouped(request)
    assert changed["tools"] == [{**function, "name": "door__push"}]
    assert changed["input"][1] == {"type": "function_call", "call_id": "c", "name": "door__push", "arguments": "{}"}
    assert grouped == {"door__push": {"namespace": "door", "name": "push"}}
    without_tools, _ = ungrouped({"input": [USER, call]})  # as when Codex lets its history be summed up
    assert without_tools == {"input": changed["input"]}


@asynccontextmanager
async def model() -> AsyncIterator[Any]:
    async with in_process_servers({"model": Script(["yes"] * 9).model}) as servers:

        async def post(path: str, body: Json, episode: str = "e1") -> tuple[int, Json]:
            raw = orjson.dumps(body).replace(b'"DEEP"', b"[" * 300 + b"]" * 300)
            answered = await servers.client.send("http://model:1", path, raw, 30.0, {EPISODE_HEADER: episode})
            return answered.status, orjson.loads(answered.body)

        yield post


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("keep_s", {}),
        ("keep_s", {"keep_s": 0}),
        ("params", {"keep_s": 1, "params": []}),
        ("odd", {"keep_s": 1, "odd": 1}),
    ],
)
async def test_a_malformed_request_to_record_is_refused_with_the_name_of_its_field(field: str, request_: Json) -> None:
    async with model() as post:
        status, error = await post(OPEN, request_)
    assert (status, error["code"]) == (400, "bad_request") and f"{field}: " in error["detail"]


async def test_calls_of_an_episode_that_is_not_recorded_are_refused() -> None:
    async with model() as post:
        await post(OPEN, {"keep_s": 100})
        assert (await post(f"{RECORDED}/v1/responses", {"input": "hi"}))[0] == 200
        assert (await post(f"{RECORDED}/v1/responses", {"input": "hi"}, "e2"))[0] == 410
        assert (await post(CLOSE, {}))[1]["conversations"][0]["turns"] == 1
        assert (await post(CLOSE, {}))[0] == 410


async def test_a_programs_request_that_is_nested_too_deeply_is_refused_as_its_own_fault() -> None:
    tool: Json = {"name": "step", "input_schema": {"x": "DEEP"}}
    messages: Json = {"max_tokens": 9, "messages": [USER], "tools": [tool]}
    content: Json = {"role": "user", "content": [{"type": "text", "text": "DEEP"}]}
    call: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "DEEP"}]}
    form: Json = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"x": "DEEP"}}}
    async with model() as post:
        await post(OPEN, {"keep_s": 100})
        sent: list[tuple[str, Json]] = [
            *(("responses", {"input": [content]}), ("responses", {"input": [USER, call, USER]})),
            *(("chat/completions", {"messages": [content]}), ("messages", messages)),
            *(("messages/count_tokens", messages), ("chat/completions", {"messages": [USER], "response_format": form})),
        ]
        for path, body in sent:
            status, problem = await post(f"{RECORDED}/v1/{path}", body)
            assert (status, problem["code"]) == (400, "bad_request"), path


async def test_the_recording_of_an_agent_that_died_is_dropped() -> None:
    async with model() as post:
        await post(OPEN, {"keep_s": 1e-9})
        await post(OPEN, {"keep_s": 100}, "e2")
        assert (await post(CLOSE, {}))[0] == 410
        assert (await post(CLOSE, {}, "e2"))[0] == 200

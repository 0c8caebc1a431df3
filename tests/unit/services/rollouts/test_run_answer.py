"""The response of `/run` is read in two parts; the result equals a single parse, whatever the header says."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.errors import Failure
from rollyard.services.http.request import HttpResponse
from rollyard.services.rollouts.run_answer import decode_row, encode_response, encode_row, parse_row

RESPONSE = {"output": [{"type": "message", "content": 'a "quoted" line\nand \u2028, é'}], "usage": None}
ROW = {"reward": 1.0, "response": {"output": []}, "_ng_task_index": 3}
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('a\n"{é\u2028', max_size=5), lambda part: st.lists(part, max_size=3)
)
OBJECTS = st.dictionaries(st.sampled_from(["response", "reward", "a", '"response":', "\n"]), VALUES, max_size=4)


def read(body: bytes, response_bytes: str | None) -> Any:
    """The row as read back from the file that the collector writes."""
    line = orjson.dumps(decode_row(body, response_bytes))
    assert b"\n" not in line
    return orjson.loads(line)


@settings(max_examples=50)
@given(OBJECTS, OBJECTS)
def test_a_row_survives_the_round_trip(row: dict[str, Any], response: dict[str, Any]) -> None:
    encoded = encode_response(response)
    body = encode_row(row, encoded)
    assert read(body, str(len(encoded))) == {**row, "response": response} == orjson.loads(body)


@settings(max_examples=60)
@given(OBJECTS, OBJECTS, st.integers(-3, 60) | st.text("0-9e²", max_size=3))
def test_a_wrong_length_header_does_not_change_the_row(
    row: dict[str, Any], response: dict[str, Any], length: int | str
) -> None:
    body = encode_row(row, encode_response(response))
    assert read(body, str(length)) == {**row, "response": response}


REPORTED: list[tuple[dict[str, Any], str]] = [
    ({"_ng_failure_class": "judge_failed", "reward": 0.0, "mask_sample": True}, "upstream_error"),
    ({"_ng_failure_class": "x", "failure_kind": "session_expired"}, "session_lost"),
    ({"_ng_failure_class": "environment_server_failed", "_ng_failure_message": "why"}, "server_error"),
    ({"_ng_failure_class": "agent_timeout", "_ng_failure_terminal": True}, "bad_task"),
    ({"_ng_no_persist": True, "failure_kind": "kill_shaped"}, "cancelled"),
    ({"episode_id": {}, "failure": {"failure_reason": "why", "terminal": False}}, "server_error"),
    ({"episode_id": {}, "failure": {"failure_kind": "transport_unreachable", "terminal": False}}, "unreachable"),
    ({"episode_id": {}, "failure": {"failure_reason": "why", "terminal": True, "stage": "seed"}}, "bad_task"),
    ({"episode_id": {}, "result": {"response": {}}}, "malformed_answer"),
    ({"episode_id": {}, "result": 3}, "malformed_answer"),
    ({"episode_id": {}, "failure": {"failure_kind": "judge_failed"}, "reward": 0.0}, "upstream_error"),
    ({"episode_id": {}, "failure": "oom", "result": {"reward": 1.0}}, "malformed_answer"),
    ({"episode_id": {}, "_ng_failure_class": "x", "result": {"reward": 1.0}}, "server_error"),
    (
        {"episode_id": {}, "failure": {"failure_kind": "rollyard:upstream_refused", "terminal": True}},
        "upstream_refused",
    ),
    ({"episode_id": {}, "failure": {"failure_kind": "agent_timeout", "terminal": True}}, "bad_task"),
]


@pytest.mark.parametrize(("answer", "kind"), REPORTED)
def test_what_a_server_of_nemo_gym_reports_is_a_failure_of_the_same_kind(answer: dict[str, Any], kind: str) -> None:
    with pytest.raises(Failure) as raised:
        parse_row(HttpResponse(200, {}, orjson.dumps(answer)), "agent")
    assert raised.value.kind == kind
    # The collection stops if its agent is unreachable, and this agent has answered.
    assert raised.value.problem.server == ("" if kind == "unreachable" else "agent")


def test_the_result_of_an_environment_server_is_the_row() -> None:
    answer = {"episode_id": {}, "task_id": {}, "result": {"reward": 0.5, "level": 3}}
    assert parse_row(HttpResponse(200, {}, orjson.dumps(answer)), "agent") == answer["result"]


def test_a_row_with_an_episode_id_and_a_result_of_its_own_stays_the_row() -> None:
    row = {"episode_id": 4, "result": {"reward": 1.0}, "failure": None, "reward": 0.5}
    assert parse_row(HttpResponse(200, {}, orjson.dumps(row)), "agent") == row


def test_the_bytes_of_the_response_reach_the_line_unchanged() -> None:
    encoded = encode_response(RESPONSE)
    assert encoded in orjson.dumps(decode_row(encode_row(ROW, encoded), str(len(encoded))))


MISMATCHES = {
    "a line break in the response": (b'{"reward":1.0,"response":', b'{"output":\n[]}'),
    "a second object after it": (b'{"reward":1.0,"response":', b'{}}\n{"_ng_task_index":7,"reward":9.0}'),
    "an object that ends early": (b'{"reward":1.0,"response":', b'{},"reward":9.0,"x":{}'),
    "a response that is a list": (b'{"reward":1.0,"response":', b"[1]"),
    "a key that only ends in response": (b'{"reward":1.0,"a\\"response":', b"{}"),
    "a response in a response": (b'{"reward":1.0,"response":{"response":', b"{}}"),
    "a response key after a text key": (b'{"reward":1.0,"text":"response":', b"{}"),
    "not a number": (b'{"reward":1.0,"response":', b'{"log_prob":NaN}'),
    "an incomplete character": (b'{"reward":1.0,"response":', b'{"text":"\xf0\x9f"}'),
    "a lone surrogate": (b'{"reward":1.0,"response":', rb'{"text":"\ud83d"}'),
}


@pytest.mark.parametrize(("head", "response"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_a_body_that_contradicts_its_header_is_read_without_the_header(head: bytes, response: bytes) -> None:
    body = head + response + b"}"
    try:
        expected = orjson.loads(body)
    except orjson.JSONDecodeError:
        with pytest.raises(orjson.JSONDecodeError):
            decode_row(body, str(len(response)))
        return
    assert read(body, str(len(response))) == expected


def test_duplicate_keys_of_a_row_are_collapsed() -> None:
    body = b'{"_ng_task_index":7,"reward":9.0,"reward":1.0,"_ng_task_index":3,"response":{}}'
    line = orjson.dumps(decode_row(body, "2"))
    assert orjson.loads(line) == {"reward": 1.0, "_ng_task_index": 3, "response": {}}
    assert line.count(b"reward") == line.count(b"_ng_task_index") == 1


def test_a_response_that_is_nested_too_deeply_is_rejected_at_encoding() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    with pytest.raises(TypeError, match="ecursion"):
        encode_response(deep)
